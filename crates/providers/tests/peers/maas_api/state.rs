//! The state of the fake MAAS, how its machines change, and the failures that a test can request.

use super::form::Form;
use super::status::NodeStatus;
use super::{Call, Reply};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

/// The user that the valid key belongs to.
pub const USER: &str = "admin";
/// The seconds by which the local time of the region is ahead of UTC.
const LOCAL_AHEAD_S: i64 = 2 * 3_600;
/// The number of requests that are remembered.
const MAX_REQUESTS: usize = 10_000;

/// The duration of an operation of MAAS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OperationTime {
    /// This many reads of the machine, alone or in a list.
    Reads(u32),
    /// Until [`World::advance`].
    UntilAdvanced,
}

/// The end of an operation.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum End {
    #[default]
    Well,
    /// With these events, and this log of the installer.
    Fails { events: Vec<String>, log: String },
    /// It never ends.
    Stuck,
}

/// The status of a machine after its release.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Released {
    #[default]
    Ready,
    /// As MAAS does with a machine that it never commissioned.
    New,
    Fails,
}

/// The outcomes that a test chose for a machine.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PlannedOutcomes {
    pub commissioning: End,
    /// The commissioning scripts that fail with the outcome `Fails`.
    pub failed_scripts: Vec<&'static str>,
    /// Tests run after commissioning.
    pub tests: bool,
    /// The tests that fail.
    pub failed_tests: Vec<&'static str>,
    pub deployment: End,
    pub release: Released,
    /// The deployed system reports its hardware at each read.
    pub reports_hardware: bool,
}

/// The way in which a request fails.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trouble {
    /// 503, without an effect.
    Busy {
        retry_after: Option<u64>,
    },
    /// 409 of the database, without an effect.
    Conflict {
        retry_after: Option<u64>,
    },
    Says(u16, String),
    /// 503 from the power action that follows the change.
    BusyAfterActing {
        retry_after: Option<u64>,
    },
    /// No rack reaches the BMC.
    BmcUnreachable,
    /// It is executed, and the connection breaks in the middle of the answer.
    CutAfterActing,
    /// It is executed, and no answer comes.
    HangAfterActing,
    /// The same request, whose answer was lost, arrives first: it is executed, and this one is
    /// answered as the second.
    Second,
    Slow(Duration),
}

#[derive(Debug, Clone)]
pub struct Machine {
    pub system_id: String,
    pub hostname: String,
    pub description: String,
    pub architecture: String,
    pub status: NodeStatus,
    pub status_message: String,
    pub owner: Option<String>,
    pub power: &'static str,
    pub power_type: String,
    /// As they were sent; MAAS shows them only to administrators.
    pub power_parameters: BTreeMap<String, String>,
    pub osystem: String,
    pub distro_series: String,
    pub user_data: String,
    pub locked: bool,
    pub pool: String,
    pub zone: String,
    pub tags: BTreeSet<String>,
    pub serial: String,
    pub interfaces: Vec<Value>,
    pub addresses: Vec<String>,
    pub disks: Vec<Value>,
    pub boot_disk: i64,
    pub layout: String,
    pub enable_hw_sync: bool,
    pub last_sync: Option<String>,
    pub sync_interval_s: f64,
    pub annotations: BTreeMap<String, String>,
    pub planned: PlannedOutcomes,
    /// The logs of the installer, one per deployment. MAAS makes the set of results when a
    /// deployment starts (read: 3.4.8 to 3.7.3).
    pub logs: Vec<String>,
    /// The parameters of the last request, by operation.
    pub requested: BTreeMap<String, BTreeMap<String, String>>,
    pub(super) looks: u32,
    pub(super) before: NodeStatus,
}

/// The way in which the answer to a request is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnswerLoss {
    /// It arrives and is not executed.
    Before,
    /// It is executed.
    After,
    /// It is in transit, and is executed by [`World::execute_in_transit`].
    Late,
}

/// Decides for each request whether its answer is lost. The callback reports that it was.
pub type AnswerLossHook =
    Arc<dyn Fn() -> Option<(AnswerLoss, Box<dyn FnOnce() + Send>)> + Send + Sync>;

pub struct MaasState {
    pub answer_loss: Option<AnswerLossHook>,
    pub machines: BTreeMap<String, Machine>,
    pub operation_time: OperationTime,
    pub version: &'static str,
    pub is_superuser: bool,
    /// False: no machine can be started (see `unavailable` and `bmc_unreachable` in `ops`).
    pub rack_connected: bool,
    /// False while the images are being synced.
    pub image_synced: bool,
    pub pools: Vec<String>,
    pub zones: Vec<String>,
    pub tags: Vec<(String, String)>,
    /// By their full names; `custom/NAME` was uploaded.
    pub images: Vec<String>,
    /// The names of scripts and tests that a request may select.
    pub scripts: Vec<String>,
    pub subnets: Vec<Value>,
    pub events: Vec<Value>,
    /// Requests in transit whose caller is gone; they are executed nevertheless.
    pub in_transit: Vec<Call>,
    /// The last requests, `METHOD path?query`.
    pub requests: VecDeque<String>,
    pub under_way: usize,
    pub most_under_way: usize,
    /// The number of requests of each change, by machine and name. Refused requests count too.
    counts: BTreeMap<(String, String), usize>,
    troubles: Vec<(String, Trouble)>,
    nonces: BTreeSet<String>,
    next_id: i64,
    /// Later by a second with each stamp.
    stamped_s: i64,
}

impl Default for MaasState {
    fn default() -> Self {
        let subnet = |id: i64, cidr: &str, managed: bool| {
            json!({"id": id, "name": cidr, "cidr": cidr, "gateway_ip": null, "managed": managed, "space": "undefined",
                "vlan": {"id": 5000 + id, "vid": 0, "mtu": 1500, "name": "untagged", "fabric": "fabric-0", "dhcp_on": managed}})
        };
        Self {
            answer_loss: None,
            machines: BTreeMap::new(),
            operation_time: OperationTime::Reads(1),
            version: "3.4.8",
            is_superuser: true,
            rack_connected: true,
            image_synced: true,
            pools: vec!["default".into(), "gpu".into()],
            zones: vec!["default".into(), "east".into()],
            tags: Vec::new(),
            images: vec!["ubuntu/jammy".into(), "custom/gpu-node".into()],
            scripts: vec!["update_firmware".into(), "smartctl-validate".into()],
            subnets: vec![subnet(1, "10.10.0.0/24", true), subnet(2, "192.168.50.0/24", false)],
            events: Vec::new(),
            in_transit: Vec::new(),
            requests: VecDeque::new(),
            under_way: 0,
            most_under_way: 0,
            counts: BTreeMap::new(),
            troubles: Vec::new(),
            nonces: BTreeSet::new(),
            next_id: 0,
            stamped_s: jiff::Timestamp::now().as_second(),
        }
    }
}

impl MaasState {
    pub fn id(&mut self) -> i64 {
        self.next_id += 1;
        self.next_id
    }

    /// Makes the next requests of this name fail, this many times. A name is an operation, or
    /// `read`, `create`, `update`, `delete`.
    pub fn trouble(&mut self, name: &str, failure: Trouble, times: usize) {
        self.troubles.extend(std::iter::repeat_n((name.to_owned(), failure), times));
    }

    /// Forgets the failures that no request has met.
    pub fn clear_troubles(&mut self) {
        self.troubles.clear();
    }

    /// The number of requests of this change on this machine.
    pub fn count(&self, system_id: &str, name: &str) -> usize {
        self.counts.get(&(system_id.to_owned(), name.to_owned())).copied().unwrap_or_default()
    }

    /// The number of requests of any change on this machine.
    pub fn changes(&self, system_id: &str) -> usize {
        self.counts.iter().filter(|((id, _), _)| id == system_id).map(|(_, times)| times).sum()
    }

    /// Adds a machine that MAAS knows without a request, with one disk and one interface. Several
    /// may have the same MAC address.
    pub fn add(&mut self, mac: &str) -> &mut Machine {
        let number = self.id();
        let system_id = format!("m{number:05}");
        let (interface, disk) =
            (self.interface(&system_id, "ens1", mac), self.disk("sda", "DELLBOSS VD", 480));
        let machine = Machine {
            hostname: format!("host-{number}"),
            description: String::new(),
            architecture: "amd64/generic".into(),
            status: NodeStatus::New,
            status_message: String::new(),
            owner: None,
            power: "off",
            power_type: "manual".into(),
            power_parameters: BTreeMap::new(),
            osystem: String::new(),
            distro_series: String::new(),
            user_data: String::new(),
            locked: false,
            pool: "default".into(),
            zone: "default".into(),
            tags: BTreeSet::new(),
            serial: format!("SN{number}"),
            interfaces: vec![interface],
            addresses: Vec::new(),
            boot_disk: disk["id"].as_i64().unwrap_or_default(),
            disks: vec![disk],
            layout: "flat".into(),
            enable_hw_sync: false,
            last_sync: None,
            sync_interval_s: 900.0,
            annotations: BTreeMap::new(),
            planned: PlannedOutcomes::default(),
            logs: Vec::new(),
            requested: BTreeMap::new(),
            looks: 0,
            before: NodeStatus::New,
            system_id: system_id.clone(),
        };
        self.machines.entry(system_id).or_insert(machine)
    }

    pub fn interface(&mut self, system_id: &str, name: &str, mac: &str) -> Value {
        let id = self.id();
        json!({"id": id, "name": name, "type": "physical", "mac_address": mac, "enabled": true, "link_connected": true,
            "link_speed": 25_000, "effective_mtu": 1500, "vendor": "Mellanox", "product": null, "params": "", "tags": [],
            "links": [], "parents": [], "children": [], "discovered": null, "system_id": system_id,
            "vlan": self.subnets.first().map(|subnet| subnet["vlan"].clone())})
    }

    pub fn disk(&mut self, name: &str, model: &str, gigabytes: u64) -> Value {
        let id = self.id();
        json!({"id": id, "name": name, "type": "physical", "model": model, "serial": format!("D{id}"), "uuid": null,
            "size": gigabytes * 1_000_000_000, "block_size": 512, "id_path": format!("/dev/disk/by-id/{name}-D{id}"),
            "path": format!("/dev/disk/by-dname/{name}"), "used_for": "Unused", "firmware_version": null, "tags": ["ssd"]})
    }

    pub fn note_event(&mut self, system_id: &str, kind: &str, description: &str) {
        self.note(system_id, "INFO", (kind, description));
    }

    /// Notes an event: its level, type and description.
    pub fn note(&mut self, system_id: &str, level: &str, (kind, description): (&str, &str)) {
        let id = self.id();
        self.events.push(json!({"id": id, "node": system_id, "hostname": "host", "level": level, "username": null,
            "created": "Mon, 16 Nov. 2026 10:00:00", "type": kind, "description": description}));
    }

    /// The present time as MAAS shows times: naive and local up to 3.5 (run: 3.4.8; read: 3.4.8,
    /// 3.5.13), UTC with its offset from 3.6 on (read: 3.6.5, 3.7.3).
    fn stamp(&mut self) -> String {
        self.stamped_s += 1;
        let local = self.minor_version() < 6;
        let shown_s = self.stamped_s + if local { LOCAL_AHEAD_S } else { 0 };
        let shown = jiff::Timestamp::from_second(shown_s).unwrap_or_default().to_string();
        if local { shown.trim_end_matches('Z').to_owned() } else { shown }
    }

    /// 4 of 3.4.8.
    pub(super) fn minor_version(&self) -> u32 {
        let minor = self.version.split('.').nth(1).and_then(|minor| minor.parse().ok());
        minor.unwrap_or_default()
    }

    /// The deployed system reports its hardware.
    pub fn report_hardware(&mut self, system_id: &str) {
        let now = self.stamp();
        if let Some(machine) = self.machines.get_mut(system_id) {
            machine.last_sync = Some(now);
        }
    }

    /// Ends the operation in progress on a machine.
    pub fn advance(&mut self, system_id: &str) {
        let Some(machine) = self.machines.get_mut(system_id) else { return };
        machine.looks = 0;
        let (to, end) = machine.next();
        let Some(to) = to else { return };
        let deployed = machine.status == NodeStatus::Deploying;
        machine.set_status(to);
        let syncs = to == NodeStatus::Deployed && machine.enable_hw_sync;
        let (kind, events) = match end {
            End::Fails { events, log } if deployed => {
                machine.logs.pop();
                machine.logs.push(log);
                ("Node installation failure", events)
            }
            End::Fails { events, .. } => ("Node commissioning failure", events),
            End::Well | End::Stuck => ("", Vec::new()),
        };
        for event in events {
            self.note(system_id, "ERROR", (kind, &event));
        }
        self.note_event(system_id, to.name(), "");
        // MAAS itself stamps the end of a deployment as a report of hardware (run: 3.4.8; read:
        // 3.4.8 to 3.7.3).
        if syncs {
            self.report_hardware(system_id);
        }
    }

    /// Counts a read. An operation that takes a number of reads may end by it.
    pub(super) fn count_read(&mut self, system_id: &str) {
        let (OperationTime::Reads(most), Some(machine)) =
            (self.operation_time, self.machines.get_mut(system_id))
        else {
            return;
        };
        if machine.status == NodeStatus::Deployed && machine.planned.reports_hardware {
            return self.report_hardware(system_id);
        }
        if machine.status.transient() {
            machine.looks += 1;
            if machine.looks > most {
                self.advance(system_id);
            }
        }
    }

    pub(super) fn record_request(&mut self, request: String) {
        if self.requests.len() == MAX_REQUESTS {
            self.requests.pop_front();
        }
        self.requests.push_back(request);
    }

    pub(super) fn use_nonce(&mut self, nonce: &str) -> bool {
        !nonce.is_empty() && self.nonces.insert(nonce.to_owned())
    }

    pub(super) fn take_trouble(&mut self, call: &Call) -> Option<Trouble> {
        if call.changes() {
            let position = (call.machine().to_owned(), call.name().to_owned());
            *self.counts.entry(position).or_default() += 1;
        }
        let position = self.troubles.iter().position(|(name, _)| name == call.name())?;
        Some(self.troubles.remove(position).1)
    }

    /// Executes the requests in transit.
    pub fn execute_in_transit(&mut self) {
        for call in std::mem::take(&mut self.in_transit) {
            let _nobody_hears = self.execute(&call);
        }
    }

    /// Executes a request.
    pub(super) fn execute(&mut self, call: &Call) -> Reply {
        let path: Vec<&str> = call.path.iter().map(String::as_str).collect();
        match path[..] {
            ["machines"] => self.on_machines(call),
            ["machines", id] => self.on_machine(call, id),
            ["nodes", id, "blockdevices"] => self.list_of(id, |machine| json!(machine.disks)),
            ["nodes", id, "interfaces"] => self.list_of(id, |machine| json!(machine.interfaces)),
            ["nodes", id, "blockdevices", disk] => self.on_disk(call, id, disk),
            ["nodes", id, "interfaces", interface] => self.on_interface(call, id, interface),
            ["nodes", id, "results"] => self.results(call, id),
            _ => self.on_region(call, &path),
        }
    }

    fn list_of(&self, id: &str, list: impl Fn(&Machine) -> Value) -> Reply {
        match self.machines.get(id) {
            Some(machine) => Reply::Json(list(machine)),
            None => Reply::text(404, "No Node matches the given query."),
        }
    }

    /// The machines that match a list request, oldest first.
    pub(super) fn matching_machines(&self, query: &Form) -> Vec<String> {
        let fits = |machine: &&Machine| {
            let mac = |mac: &str| machine.interfaces.iter().any(|i| i["mac_address"] == mac);
            query.pairs().all(|(name, desired)| match name {
                // A name that occurs several times matches any of its values (read: 3.4.8).
                "mac_address" => query.all("mac_address").any(mac),
                "hostname" => machine.hostname == desired,
                "pool" => machine.pool == desired,
                "zone" => machine.zone == desired,
                "id" => query.all("id").any(|id| id == machine.system_id),
                _ => false,
            })
        };
        self.machines.values().filter(fits).map(|machine| machine.system_id.clone()).collect()
    }
}

impl Machine {
    pub fn set_status(&mut self, status: NodeStatus) {
        self.before = self.status;
        self.status = status;
        self.looks = 0;
        self.status_message = status.name().to_owned();
        match status {
            NodeStatus::Ready | NodeStatus::New if self.before == NodeStatus::Releasing => {
                self.clear_owner()
            }
            NodeStatus::Ready | NodeStatus::FailedCommissioning => {
                self.owner = None;
                self.power = "off";
            }
            _ => {}
        }
    }

    pub fn clear_owner(&mut self) {
        self.owner = None;
        self.annotations.clear();
        self.osystem.clear();
        self.distro_series.clear();
        self.enable_hw_sync = false;
        self.last_sync = None;
        self.power = "off";
    }

    /// The next status of the operation in progress, and how it ends.
    fn next(&self) -> (Option<NodeStatus>, End) {
        let ended = |end: &End, well: NodeStatus, badly: NodeStatus| match end {
            End::Well => (Some(well), End::Well),
            End::Fails { .. } => (Some(badly), end.clone()),
            End::Stuck => (None, End::Stuck),
        };
        let PlannedOutcomes { commissioning, tests, failed_tests, deployment, release, .. } =
            &self.planned;
        match self.status {
            NodeStatus::Commissioning => {
                let well = if *tests { NodeStatus::Testing } else { NodeStatus::Ready };
                ended(commissioning, well, NodeStatus::FailedCommissioning)
            }
            NodeStatus::Testing if !failed_tests.is_empty() => {
                (Some(NodeStatus::FailedTesting), End::Well)
            }
            NodeStatus::Testing => (Some(NodeStatus::Ready), End::Well),
            NodeStatus::Deploying => {
                ended(deployment, NodeStatus::Deployed, NodeStatus::FailedDeployment)
            }
            NodeStatus::DiskErasing => (Some(NodeStatus::Releasing), End::Well),
            NodeStatus::Releasing => match release {
                Released::Ready => (Some(NodeStatus::Ready), End::Well),
                Released::New => (Some(NodeStatus::New), End::Well),
                Released::Fails => (Some(NodeStatus::FailedReleasing), End::Well),
            },
            _ => (None, End::Well),
        }
    }

    /// The machine as MAAS shows it.
    pub fn to_json(&self) -> Value {
        let named = |id: i64, name: &str| json!({"id": id, "name": name, "description": ""});
        let boot_disk = self.disks.iter().find(|disk| disk["id"] == self.boot_disk);
        let synced = self.last_sync.as_ref();
        // Until it was commissioned, MAAS knows nothing of the hardware (read: 3.4.8).
        let known = self.serial != "Unknown";
        let fact = |value: &'static str| if known { value } else { "Unknown" };
        json!({
            "system_id": self.system_id, "hostname": self.hostname, "fqdn": format!("{}.maas", self.hostname),
            "description": self.description, "architecture": self.architecture, "status": self.status.number(),
            "status_name": self.status.name(), "status_message": self.status_message, "status_action": "",
            "owner": self.owner, "power_state": self.power, "power_type": self.power_type, "osystem": self.osystem,
            "distro_series": self.distro_series, "locked": self.locked, "netboot": self.status != NodeStatus::Deployed,
            "pool": named(1, &self.pool), "zone": named(1, &self.zone), "tag_names": self.tags,
            "interface_set": self.interfaces, "boot_interface": self.interfaces.first(), "ip_addresses": self.addresses,
            "blockdevice_set": self.disks, "physicalblockdevice_set": self.disks, "boot_disk": boot_disk,
            "cpu_count": if known { 128 } else { 0 }, "memory": if known { 2_097_152 } else { 0 },
            "hardware_uuid": null, "hardware_info": {"system_vendor": fact("Dell"), "system_product": fact("XE9680"),
                "system_serial": self.serial, "chassis_serial": "Unknown", "cpu_model": fact("Xeon 8480C"),
                "mainboard_firmware_vendor": fact("Dell Inc."), "mainboard_firmware_version": fact("2.1.7"),
                "mainboard_firmware_date": fact("05/02/2026")},
            "enable_hw_sync": self.enable_hw_sync, "last_sync": synced, "next_sync": synced,
            "sync_interval": self.enable_hw_sync.then_some(self.sync_interval_s), "workload_annotations": self.annotations,
            "owner_data": self.annotations, "node_type": 0, "node_type_name": "Machine", "pod": null,
            "resource_uri": format!("/MAAS/api/2.0/machines/{}/", self.system_id),
        })
    }
}
