//! The operations on a machine, and when MAAS refuses them. The states and the texts are those of
//! MAAS.

use super::state::{MaasState, Machine, USER};
use super::status::NodeStatus;
use super::{Call, Reply};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

const POWER_TYPES: [&str; 3] = ["manual", "redfish", "ipmi"];
const LAYOUTS: [&str; 7] = ["flat", "lvm", "bcache", "vmfs6", "vmfs7", "custom", "blank"];
const COMMISSIONABLE: [NodeStatus; 4] =
    [NodeStatus::New, NodeStatus::Ready, NodeStatus::FailedCommissioning, NodeStatus::Broken];
const RELEASABLE: [NodeStatus; 8] = [
    NodeStatus::Allocated,
    NodeStatus::Reserved,
    NodeStatus::Broken,
    NodeStatus::Deploying,
    NodeStatus::Deployed,
    NodeStatus::FailedDeployment,
    NodeStatus::FailedReleasing,
    NodeStatus::FailedDiskErasing,
];
/// The text of netaddr's exception.
const BROKEN_ADDRESS: &str =
    "IPAddress() does not support netmasks or subnet prefixes! See documentation for details.";
const WIREABLE: [NodeStatus; 3] = [NodeStatus::Ready, NodeStatus::Allocated, NodeStatus::Broken];

/// The parameters of an operation. MAAS ignores others; here they are an error.
fn known(name: &str) -> &'static [&'static str] {
    match name {
        "commission" => &[
            "enable_ssh",
            "skip_bmc_config",
            "skip_networking",
            "skip_storage",
            "commissioning_scripts",
            "testing_scripts",
        ],
        "deploy" => &["distro_series", "hwe_kernel", "user_data", "enable_hw_sync", "comment"],
        "release" => &["comment", "erase", "secure_erase", "quick_erase", "force"],
        "power_off" => &["stop_mode", "comment"],
        "power_on" => &["user_data", "comment"],
        "set_storage_layout" => &["storage_layout", "root_device"],
        "allocate" => &["system_id", "comment"],
        _ => &["comment"],
    }
}

fn wrong_state(words: impl Into<String>) -> Reply {
    Reply::text(409, words)
}

impl MaasState {
    pub(super) fn on_machines(&mut self, call: &Call) -> Reply {
        match (call.method.as_str(), call.op.as_deref()) {
            ("GET", None) => {
                let fitting = self.matching_machines(&call.query);
                fitting.iter().for_each(|id| self.count_read(id));
                let reported =
                    fitting.iter().filter_map(|id| self.machines.get(id)).map(Machine::to_json);
                Reply::Json(reported.collect())
            }
            ("POST", None) => self.create(call),
            ("POST", Some("allocate")) => self.allocate(call),
            (method, op) => unrecognised(method, op),
        }
    }

    pub(super) fn on_machine(&mut self, call: &Call, id: &str) -> Reply {
        if !self.machines.contains_key(id) {
            return Reply::Gone;
        }
        if call.changes() && !self.is_superuser {
            return Reply::text(403, "");
        }
        match (call.method.as_str(), call.op.as_deref()) {
            ("GET", None) => {
                self.count_read(id);
                self.show(id)
            }
            ("GET", Some("query_power_state")) => {
                let state = self.machines.get(id).map(|machine| machine.power);
                Reply::Json(json!({"state": state}))
            }
            ("GET", Some("power_parameters")) => {
                Reply::Json(json!(self.machines.get(id).map(|machine| &machine.power_parameters)))
            }
            ("PUT", None) => self.update(call, id),
            ("DELETE", None) => self.delete(id),
            ("POST", Some("set_workload_annotations")) => self.annotate(call, id),
            ("POST", Some(op)) => self.operate(call, id, op),
            (method, op) => unrecognised(method, op),
        }
    }

    fn show(&self, id: &str) -> Reply {
        self.machines.get(id).map_or(Reply::Gone, |machine| Reply::Json(machine.to_json()))
    }

    fn operate(&mut self, call: &Call, id: &str, op: &str) -> Reply {
        if let Some(name) = call.form.unknown(known(op)) {
            return Reply::field(name, format!("the operation {op} does not know this"));
        }
        let images = self.images.clone();
        if let Some(message) = self.unselectable(call, op).or_else(|| self.unavailable(id, op)) {
            return message;
        }
        if !self.rack_connected && matches!(op, "commission" | "deploy") {
            return self.bmc_unreachable(call);
        }
        let Some(machine) = self.machines.get_mut(id) else { return Reply::Gone };
        let sent = call.form.pairs().map(|(name, value)| (name.to_owned(), value.to_owned()));
        machine.requested.insert(op.to_owned(), sent.collect());
        let locked_out =
            machine.locked && !matches!(op, "unlock" | "lock" | "power_on" | "power_off");
        if locked_out {
            return Reply::text(403, "");
        }
        let refused = match op {
            "commission" => commission(machine),
            "abort" => abort(machine),
            "deploy" => deploy(machine, call, &images),
            "release" => release(machine, call),
            "power_on" => power_on(machine),
            "power_off" => power_off(machine),
            "mark_broken" => mark_broken(machine, call),
            "mark_fixed" => mark_fixed(machine),
            "lock" => lock(machine),
            "unlock" => unlock(machine),
            "set_storage_layout" => set_layout(machine, call),
            other => Some(unrecognised("POST", Some(other))),
        };
        if let Some(message) = refused {
            return message;
        }
        let comment = call.form.get("comment").unwrap_or_default();
        let kind = match op {
            "deploy" => "User starting deployment".to_owned(),
            "commission" => "User starting node commissioning".to_owned(),
            "release" => "User releasing node".to_owned(),
            op => format!("User {op}"),
        };
        // The request of a user is a DEBUG event, the new status an INFO event (run: 3.4.8; read:
        // 3.4.8 to 3.7.3).
        self.note(id, "DEBUG", (&kind, &format!("({USER}) - {comment}")));
        if let Some(status) = self.machines.get(id).map(|machine| machine.status)
            && matches!(op, "deploy" | "commission" | "release")
        {
            self.note_event(id, status.name(), "");
        }
        self.show(id)
    }

    /// No rack reaches the BMC: MAAS gives up the operation before it answers, without a
    /// `Retry-After`. A machine that was to be commissioned keeps the caller as its owner. An erase
    /// leaves Failed disk erasing, and the first one fails to go back (run: 3.4.8 for commission,
    /// deploy, release, abort, power_on and power_off, 3.5.13 for the first, third and last; read:
    /// 3.6.5 and 3.7.3).
    pub(super) fn bmc_unreachable(&mut self, call: &Call) -> Reply {
        let Some(machine) = self.machines.get_mut(call.machine()) else { return Reply::Gone };
        machine.owner.get_or_insert_with(|| USER.to_owned());
        machine.power = "unknown";
        let words = format!("No rack controllers can access the BMC of node {}", machine.hostname);
        machine.status_message = format!("Failed to query node's BMC - ({USER}) - {words}");
        if call.name() == "release" && call.form.is_true("erase") {
            let before = std::mem::replace(&mut machine.status, NodeStatus::FailedDiskErasing);
            if before != NodeStatus::FailedDiskErasing {
                let words = format!("Invalid transition: Disk erasing -> {}.", before.name());
                return Reply::text(409, words);
            }
        }
        Reply::text(503, words)
    }

    /// While an image is synced, and before 3.5 with no rack connected, a machine cannot be
    /// started: 400 in plain text, and nothing was changed (run: 3.4.8; other words from 3.5 on,
    /// read: 3.5.13 to 3.7.3).
    fn unavailable(&self, id: &str, op: &str) -> Option<Reply> {
        let status = self.machines.get(id)?.status;
        let old = self.minor_version() < 5;
        let words = match op {
            "deploy" if !matches!(status, NodeStatus::Ready | NodeStatus::Allocated) => {
                return None;
            }
            "deploy" if old => "Deployment operating system ubuntu jammy is unavailable.",
            "deploy" => {
                "Deployment operating system ubuntu/jammy is unavailable for amd64/generic."
            }
            "commission" if !COMMISSIONABLE.contains(&status) => return None,
            "commission" if old => "Ephemeral operating system ubuntu jammy is unavailable.",
            "commission" => {
                "Ephemeral operating system ubuntu/jammy for amd64/generic is unavailable."
            }
            _ => return None,
        };
        let unavailable = !self.image_synced || (old && !self.rack_connected);
        unavailable.then(|| Reply::text(400, words))
    }

    /// The error in the selected scripts or the kernel.
    fn unselectable(&self, call: &Call, op: &str) -> Option<Reply> {
        let known = |name: &str| name == "none" || self.scripts.iter().any(|one| one == name);
        let wrong = |field: &str| {
            let strange = call.form.get(field)?.split(',').find(|name| !known(name))?;
            let words =
                format!("Select a valid choice. {strange} is not one of the available choices.");
            Some(Reply::field(field, words))
        };
        match op {
            "commission" => wrong("commissioning_scripts").or_else(|| wrong("testing_scripts")),
            "deploy" => {
                let kernel = call.form.get("hwe_kernel")?;
                let fits = kernel.starts_with("ga-") || kernel.starts_with("hwe-");
                let words = format!("{kernel} is not available for ubuntu/jammy on amd64/generic.");
                (!fits).then(|| Reply::field("hwe_kernel", words))
            }
            _ => None,
        }
    }

    fn create(&mut self, call: &Call) -> Reply {
        let form = &call.form;
        let macs: Vec<String> = form.all("mac_addresses").map(str::to_ascii_lowercase).collect();
        let Some(first) = macs.first() else {
            return Reply::field("mac_addresses", "At least one MAC address must be provided.");
        };
        if form.get("architecture").is_none() {
            return Reply::field(
                "architecture",
                "Architecture must be defined for installable nodes.",
            );
        }
        let taken = |mac: &&String| self.machines.values().any(|other| has_mac(other, mac));
        if let Some(mac) = macs.iter().find(taken) {
            return Reply::field("mac_addresses", format!("MAC address {mac} already in use."));
        }
        if let Some(message) = self.placement_error(call) {
            return message;
        }
        let id = self.add(first).system_id.clone();
        for (number, mac) in macs.iter().enumerate().skip(1) {
            let interface = self.interface(&id, &format!("ens{}", number + 1), mac);
            if let Some(machine) = self.machines.get_mut(&id) {
                machine.interfaces.push(interface);
            }
        }
        if let Some(machine) = self.machines.get_mut(&id) {
            machine.serial = "Unknown".into();
            apply_settings(machine, call);
            // A machine created by an administrator is commissioned unless that is forbidden.
            if !matches!(form.get("commission"), Some("false" | "0")) {
                let _accepted = commission(machine);
            }
        }
        self.show(&id)
    }

    fn update(&mut self, call: &Call, id: &str) -> Reply {
        if let Some(message) = self.placement_error(call) {
            return message;
        }
        let Some(machine) = self.machines.get_mut(id) else { return Reply::Gone };
        if machine.locked {
            return Reply::text(403, "");
        }
        apply_settings(machine, call);
        self.show(id)
    }

    /// The error in the pool, the zone or the power settings of a machine.
    fn placement_error(&self, call: &Call) -> Option<Reply> {
        let form = &call.form;
        let choice = "Select a valid choice. That choice is not one of the available choices.";
        let none_of = |name: &str, choices: &[String]| {
            form.get(name).is_some_and(|given| !choices.iter().any(|choice| choice == given))
        };
        if none_of("pool", &self.pools) {
            return Some(Reply::field("pool", choice));
        }
        if none_of("zone", &self.zones) {
            return Some(Reply::field("zone", choice));
        }
        // MAAS reads the address as an IP address and fails over a slash (run: 3.4.8; read: 3.4.8
        // to 3.7.3).
        if form.get("power_parameters_power_address").is_some_and(|at| at.contains('/')) {
            return Some(Reply::text(500, BROKEN_ADDRESS));
        }
        let power = form.get("power_type");
        if power.is_some_and(|power| !POWER_TYPES.contains(&power)) {
            return Some(Reply::field("power_type", choice));
        }
        let hostname = form.get("hostname");
        let taken = |machine: &Machine| {
            Some(machine.hostname.as_str()) == hostname && machine.system_id != call.machine()
        };
        if self.machines.values().any(taken) {
            return Some(Reply::field("hostname", "Node with this Hostname already exists."));
        }
        let known = [
            "architecture",
            "mac_addresses",
            "hostname",
            "power_type",
            "pool",
            "zone",
            "description",
            "commission",
        ];
        let strange = |name: &&str| !known.contains(name) && !name.starts_with("power_parameters_");
        let strange = form.pairs().map(|(name, _)| name).find(strange);
        strange.map(|name| Reply::field(name, "a machine does not have this"))
    }

    fn delete(&mut self, id: &str) -> Reply {
        if self.machines.get(id).is_some_and(|machine| machine.locked) {
            return Reply::text(403, "");
        }
        self.machines.remove(id);
        Reply::Deleted
    }

    fn allocate(&mut self, call: &Call) -> Reply {
        if let Some(name) = call.form.unknown(known("allocate")) {
            return Reply::field(name, "Unable to resolve this constraint.");
        }
        let id = call.form.get("system_id").unwrap_or_default().to_owned();
        let free = |machine: &&mut Machine| {
            machine.status == NodeStatus::Ready && machine.owner.is_none() && !machine.locked
        };
        let Some(machine) = self.machines.get_mut(&id).filter(free) else {
            let words = format!(
                "No available machine matches constraints: [('system_id', ['{id}'])] (resolved to \"system_id={id}\")"
            );
            return wrong_state(words);
        };
        allocate_to_user(machine);
        let comment = call.form.get("comment").unwrap_or_default();
        self.note(&id, "DEBUG", ("User acquiring node", &format!("({USER}) - {comment}")));
        self.show(&id)
    }

    fn annotate(&mut self, call: &Call, id: &str) -> Reply {
        let Some(machine) = self.machines.get_mut(id) else { return Reply::Gone };
        if machine.owner.as_deref() != Some(USER) {
            return wrong_state("Cannot set workload annotation: it hasn't been acquired.");
        }
        for (name, value) in call.form.pairs() {
            match value {
                "" => machine.annotations.remove(name),
                value => machine.annotations.insert(name.to_owned(), value.to_owned()),
            };
        }
        self.show(id)
    }

    pub(super) fn on_disk(&mut self, call: &Call, id: &str, disk: &str) -> Reply {
        let number: i64 = disk.parse().unwrap_or_default();
        let found = self.machines.get_mut(id).filter(|m| index_of(&m.disks, number).is_some());
        let Some(machine) = found else {
            return Reply::text(404, "No BlockDevice matches the given query.");
        };
        match (call.method.as_str(), call.op.as_deref()) {
            ("POST", Some("set_boot_disk")) if machine.status == NodeStatus::Ready => {
                machine.boot_disk = number;
                Reply::text(200, "OK")
            }
            ("POST", Some("set_boot_disk")) => {
                wrong_state("Cannot set as boot disk because the machine is not Ready.")
            }
            (method, op) => unrecognised(method, op),
        }
    }

    pub(super) fn on_interface(&mut self, call: &Call, id: &str, interface: &str) -> Reply {
        let number: i64 = interface.parse().unwrap_or_default();
        let (link, subnets) = (self.id(), self.subnets.clone());
        let missing = || Reply::text(404, "No Interface matches the given query.");
        let Some(machine) = self.machines.get_mut(id) else { return missing() };
        let status = machine.status;
        let Some(position) = index_of(&machine.interfaces, number) else { return missing() };
        let Some(interface) = machine.interfaces.get_mut(position) else { return missing() };
        let (name, requests) = match (call.method.as_str(), call.op.as_deref()) {
            ("PUT", None) => ("update", rewire(interface, call)),
            ("POST", Some("link_subnet")) => {
                ("link subnet", link_up(interface, call, (link, &subnets)))
            }
            ("POST", Some("unlink_subnet")) => ("unlink subnet", unlink(interface, call)),
            (method, op) => return unrecognised(method, op),
        };
        if !WIREABLE.contains(&status) {
            return wrong_state(format!(
                "Cannot {name} interface because the machine is not Ready, Allocated, or Broken."
            ));
        }
        match requests {
            Ok(changed) => {
                *interface = changed;
                Reply::Json(interface.clone())
            }
            Err(message) => message,
        }
    }
}

pub(super) fn unrecognised(method: &str, op: Option<&str>) -> Reply {
    let op = op.unwrap_or("None");
    Reply::text(400, format!("Unrecognised signature: method={method} op={op}"))
}

fn has_mac(machine: &Machine, mac: &str) -> bool {
    machine.interfaces.iter().any(|interface| interface["mac_address"] == mac)
}

fn index_of(parts: &[Value], id: i64) -> Option<usize> {
    parts.iter().position(|part| part["id"] == id)
}

fn apply_settings(machine: &mut Machine, call: &Call) {
    for (name, value) in call.form.pairs() {
        let value = value.to_owned();
        match name {
            "hostname" => machine.hostname = value,
            "description" => machine.description = value,
            "architecture" => machine.architecture = value,
            "pool" => machine.pool = value,
            "zone" => machine.zone = value,
            "power_type" => machine.power_type = value,
            name => {
                if let Some(name) = name.strip_prefix("power_parameters_") {
                    machine.power_parameters.insert(name.to_owned(), value);
                }
            }
        }
    }
}

fn allocate_to_user(machine: &mut Machine) {
    machine.set_status(NodeStatus::Allocated);
    machine.owner = Some(USER.into());
}

fn commission(machine: &mut Machine) -> Option<Reply> {
    if !COMMISSIONABLE.contains(&machine.status) {
        let words = "Commission is not available because of the current state of the node.";
        return Some(Reply::field("__all__", words));
    }
    machine.set_status(NodeStatus::Commissioning);
    machine.owner = Some(USER.into());
    machine.power = "on";
    None
}

fn abort(machine: &mut Machine) -> Option<Reply> {
    match machine.status {
        NodeStatus::Commissioning | NodeStatus::Testing => {
            let before = machine.before;
            machine.set_status(before);
            machine.owner = None;
        }
        NodeStatus::Deploying => machine.set_status(NodeStatus::Allocated),
        NodeStatus::DiskErasing => machine.set_status(NodeStatus::FailedDiskErasing),
        other => {
            let id = &machine.system_id;
            let words =
                format!("Cannot abort in current state: node {id} is in state {}.", other.name());
            return Some(wrong_state(words));
        }
    }
    machine.power = "off";
    None
}

fn deploy(machine: &mut Machine, call: &Call, images: &[String]) -> Option<Reply> {
    // Only `distro_series` counts: `OS/RELEASE`, or a release of any system (read: 3.4.8 to 3.7.3).
    let series = call.form.get("distro_series").unwrap_or("jammy");
    let named = images.iter().find(|name| name.split_once('/').is_some_and(|(_, r)| r == series));
    let desired = named.cloned().unwrap_or_else(|| series.to_owned());
    if !matches!(machine.status, NodeStatus::Ready | NodeStatus::Allocated) {
        let words =
            format!("Can't deploy a machine that is in the '{}' state", machine.status.name());
        return Some(wrong_state(words));
    }
    if !images.contains(&desired) {
        let words =
            format!("'{desired}' is not a valid distro_series.  It should be one of: {images:?}.");
        return Some(Reply::field("distro_series", words));
    }
    let data = STANDARD.decode(call.form.get("user_data").unwrap_or_default());
    let Ok(data) = data else { return Some(Reply::text(400, "Failed to decode user_data")) };
    if machine.status == NodeStatus::Ready {
        allocate_to_user(machine);
    }
    machine.user_data = String::from_utf8_lossy(&data).into_owned();
    machine.logs.push(String::new());
    let (osystem, series) = desired.split_once('/').unwrap_or_default();
    (machine.osystem, machine.distro_series) = (osystem.into(), series.into());
    machine.enable_hw_sync = call.form.is_true("enable_hw_sync");
    power_on(machine)
}

fn release(machine: &mut Machine, call: &Call) -> Option<Reply> {
    if matches!(machine.status, NodeStatus::Releasing | NodeStatus::Ready) {
        return None;
    }
    if !RELEASABLE.contains(&machine.status) {
        let words = format!(
            "Machine cannot be released in its current state ('{}').",
            machine.status.name()
        );
        return Some(wrong_state(words));
    }
    let erases =
        ["erase", "secure_erase", "quick_erase"].iter().any(|name| call.form.is_true(name));
    machine.set_status(if erases { NodeStatus::DiskErasing } else { NodeStatus::Releasing });
    machine.power = if erases { "on" } else { "off" };
    None
}

/// Switching on an Allocated machine deploys it.
fn power_on(machine: &mut Machine) -> Option<Reply> {
    if machine.owner.is_none() {
        return Some(wrong_state("Can't start node: it hasn't been allocated."));
    }
    if machine.status == NodeStatus::Allocated {
        machine.set_status(NodeStatus::Deploying);
    }
    machine.power = "on";
    None
}

fn power_off(machine: &mut Machine) -> Option<Reply> {
    machine.power = "off";
    None
}

fn mark_broken(machine: &mut Machine, call: &Call) -> Option<Reply> {
    if machine.owner.as_deref() != Some(USER) {
        return Some(Reply::text(403, ""));
    }
    machine.set_status(NodeStatus::Broken);
    machine.clear_owner();
    machine.status_message = call.form.get("comment").unwrap_or_default().to_owned();
    None
}

fn mark_fixed(machine: &mut Machine) -> Option<Reply> {
    if machine.status != NodeStatus::Broken {
        return Some(wrong_state("Can't mark a non-broken node as 'Ready'."));
    }
    machine.set_status(NodeStatus::Ready);
    None
}

fn lock(machine: &mut Machine) -> Option<Reply> {
    if machine.locked {
        return Some(wrong_state("Machine is already locked"));
    }
    if !matches!(machine.status, NodeStatus::Deployed | NodeStatus::Deploying) {
        return Some(wrong_state("Can't lock, node is not deployed or deploying"));
    }
    machine.locked = true;
    None
}

fn unlock(machine: &mut Machine) -> Option<Reply> {
    if !machine.locked {
        return Some(wrong_state("Machine is not locked"));
    }
    machine.locked = false;
    None
}

fn set_layout(machine: &mut Machine, call: &Call) -> Option<Reply> {
    if machine.status != NodeStatus::Ready {
        return Some(wrong_state(
            "Cannot change the storage layout on a machine that is not Ready.",
        ));
    }
    let layout = call.form.get("storage_layout").unwrap_or_default();
    if !LAYOUTS.contains(&layout) {
        let words = format!("'{layout}' is not a valid storage_layout.");
        return Some(Reply::field("storage_layout", words));
    }
    if let Some(root) = call.form.get("root_device") {
        let disk = root.parse().ok().and_then(|root| index_of(&machine.disks, root));
        if disk.is_none() {
            let words =
                format!("Failed to configure storage layout '{layout}': Invalid root_device");
            return Some(Reply::text(400, words));
        }
    }
    machine.layout = layout.to_owned();
    None
}

fn rewire(interface: &Value, call: &Call) -> Result<Value, Reply> {
    let mut changed = interface.clone();
    for (name, value) in call.form.pairs() {
        match (name, value.parse::<u32>()) {
            ("mtu", Ok(mtu)) if (552..=65_535).contains(&mtu) => {
                changed["effective_mtu"] = json!(mtu)
            }
            ("mtu", _) => {
                return Err(Reply::field("mtu", "Enter a whole number from 552 to 65535."));
            }
            ("name", _) => changed["name"] = json!(value),
            ("tags", _) => changed["tags"] = value.split(',').collect(),
            ("vlan", Ok(vlan)) => {
                // The old links are on another VLAN.
                if changed["vlan"]["id"] != vlan {
                    changed["links"] = json!([]);
                }
                changed["vlan"]["id"] = json!(vlan);
            }
            _ => return Err(Reply::field(name, "an interface does not have this")),
        }
    }
    Ok(changed)
}

fn link_up(interface: &Value, call: &Call, (id, subnets): (i64, &[Value])) -> Result<Value, Reply> {
    let form = &call.form;
    if let Some(name) = form.unknown(&["mode", "subnet", "ip_address", "default_gateway"]) {
        return Err(Reply::field(name, "a link does not have this"));
    }
    let mode = form.get("mode").unwrap_or_default();
    if !["AUTO", "DHCP", "STATIC", "LINK_UP"].contains(&mode) {
        return Err(Reply::field("mode", format!("Value '{mode}' is not a valid choice.")));
    }
    let number: i64 = form.get("subnet").and_then(|id| id.parse().ok()).unwrap_or_default();
    let Some(subnet) = subnets.iter().find(|subnet| subnet["id"] == number) else {
        return Err(Reply::field("subnet", "Select a valid choice."));
    };
    let address = form.get("ip_address");
    if address.is_some() && mode != "STATIC" {
        return Err(Reply::field("ip_address", "Cannot use this field in this mode."));
    }
    let mut changed = interface.clone();
    let link = json!({"id": id, "mode": mode.to_ascii_lowercase(), "subnet": subnet, "ip_address": address});
    if let Some(links) = changed["links"].as_array_mut() {
        links.push(link);
    }
    Ok(changed)
}

fn unlink(interface: &Value, call: &Call) -> Result<Value, Reply> {
    let id: i64 = call.form.get("id").and_then(|id| id.parse().ok()).unwrap_or_default();
    let mut changed = interface.clone();
    let links = changed["links"].as_array_mut();
    match links.and_then(|links| Some(links.remove(index_of(links, id)?))) {
        Some(_) => Ok(changed),
        None => Err(Reply::field("id", "Select a valid choice.")),
    }
}
