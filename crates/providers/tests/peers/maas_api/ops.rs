//! The operations on a machine, and when MAAS refuses them. The states and the texts are those of
//! MAAS.

use super::world::{Machine, USER, World};
use super::{Call, Said};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use providers::maas::Status;
use serde_json::{Value, json};

const POWER_TYPES: [&str; 3] = ["manual", "redfish", "ipmi"];
const LAYOUTS: [&str; 7] = ["flat", "lvm", "bcache", "vmfs6", "vmfs7", "custom", "blank"];
const COMMISSIONABLE: [Status; 4] =
    [Status::New, Status::Ready, Status::FailedCommissioning, Status::Broken];
const RELEASABLE: [Status; 8] = [
    Status::Allocated,
    Status::Reserved,
    Status::Broken,
    Status::Deploying,
    Status::Deployed,
    Status::FailedDeployment,
    Status::FailedReleasing,
    Status::FailedDiskErasing,
];
const WIREABLE: [Status; 3] = [Status::Ready, Status::Allocated, Status::Broken];

/// The parameters of an operation. MAAS ignores others; here they are an error.
fn known(name: &str) -> &'static [&'static str] {
    match name {
        "commission" => &["enable_ssh", "skip_networking", "skip_storage", "testing_scripts"],
        "deploy" => &["osystem", "distro_series", "user_data", "enable_hw_sync", "comment"],
        "release" => &["comment", "erase", "secure_erase", "quick_erase", "force"],
        "power_off" => &["stop_mode", "comment"],
        "power_on" => &["user_data", "comment"],
        "set_storage_layout" => &["storage_layout", "root_device"],
        "allocate" => &["system_id", "comment"],
        _ => &["comment"],
    }
}

fn wrong_state(words: impl Into<String>) -> Said {
    Said::text(409, words)
}

impl World {
    pub(super) fn on_machines(&mut self, call: &Call) -> Said {
        match (call.method.as_str(), call.op.as_deref()) {
            ("GET", None) => {
                let fitting = self.fitting(&call.query);
                fitting.iter().for_each(|id| self.looked(id));
                let told = fitting.iter().filter_map(|id| self.machines.get(id)).map(Machine::told);
                Said::Json(told.collect())
            }
            ("POST", None) => self.create(call),
            ("POST", Some("allocate")) => self.allocate(call),
            (method, op) => unrecognised(method, op),
        }
    }

    pub(super) fn on_machine(&mut self, call: &Call, id: &str) -> Said {
        if !self.machines.contains_key(id) {
            return Said::Gone;
        }
        if call.changes() && !self.is_superuser {
            return Said::text(403, "");
        }
        match (call.method.as_str(), call.op.as_deref()) {
            ("GET", None) => {
                self.looked(id);
                self.told(id)
            }
            ("GET", Some("query_power_state")) => {
                let state = self.machines.get(id).map(|machine| machine.power);
                Said::Json(json!({"state": state}))
            }
            ("GET", Some("power_parameters")) => {
                Said::Json(json!(self.machines.get(id).map(|machine| &machine.power_parameters)))
            }
            ("PUT", None) => self.update(call, id),
            ("DELETE", None) => self.delete(id),
            ("POST", Some("set_workload_annotations")) => self.annotate(call, id),
            ("POST", Some(op)) => self.operate(call, id, op),
            (method, op) => unrecognised(method, op),
        }
    }

    fn told(&self, id: &str) -> Said {
        self.machines.get(id).map_or(Said::Gone, |machine| Said::Json(machine.told()))
    }

    fn operate(&mut self, call: &Call, id: &str, op: &str) -> Said {
        if let Some(name) = call.form.unknown(known(op)) {
            return Said::field(name, format!("the operation {op} does not know this"));
        }
        let images = self.images.clone();
        let Some(machine) = self.machines.get_mut(id) else { return Said::Gone };
        let locked_out =
            machine.locked && !matches!(op, "unlock" | "lock" | "power_on" | "power_off");
        if locked_out {
            return Said::text(403, "");
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
        if let Some(said) = refused {
            return said;
        }
        let comment = call.form.get("comment").unwrap_or_default();
        let kind = match op {
            "deploy" => "User starting deployment".to_owned(),
            op => format!("User {op}"),
        };
        self.note_event(id, &kind, &format!("({USER}) - {comment}"));
        self.told(id)
    }

    fn create(&mut self, call: &Call) -> Said {
        let form = &call.form;
        let macs: Vec<String> = form.all("mac_addresses").map(str::to_ascii_lowercase).collect();
        let Some(first) = macs.first() else {
            return Said::field("mac_addresses", "At least one MAC address must be provided.");
        };
        if form.get("architecture").is_none() {
            return Said::field(
                "architecture",
                "Architecture must be defined for installable nodes.",
            );
        }
        let taken = |mac: &&String| self.machines.values().any(|other| has_mac(other, mac));
        if let Some(mac) = macs.iter().find(taken) {
            return Said::field("mac_addresses", format!("MAC address {mac} already in use."));
        }
        if let Some(said) = self.misplaced(call) {
            return said;
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
            place(machine, call);
            // A machine created by an administrator is commissioned unless that is forbidden.
            if !matches!(form.get("commission"), Some("false" | "0")) {
                let _accepted = commission(machine);
            }
        }
        self.told(&id)
    }

    fn update(&mut self, call: &Call, id: &str) -> Said {
        if let Some(said) = self.misplaced(call) {
            return said;
        }
        let Some(machine) = self.machines.get_mut(id) else { return Said::Gone };
        if machine.locked {
            return Said::text(403, "");
        }
        place(machine, call);
        self.told(id)
    }

    /// The error in the pool, the zone or the power settings of a machine.
    fn misplaced(&self, call: &Call) -> Option<Said> {
        let form = &call.form;
        let choice = "Select a valid choice. That choice is not one of the available choices.";
        let none_of = |name: &str, choices: &[String]| {
            form.get(name).is_some_and(|given| !choices.iter().any(|choice| choice == given))
        };
        if none_of("pool", &self.pools) {
            return Some(Said::field("pool", choice));
        }
        if none_of("zone", &self.zones) {
            return Some(Said::field("zone", choice));
        }
        let power = form.get("power_type");
        if power.is_some_and(|power| !POWER_TYPES.contains(&power)) {
            return Some(Said::field("power_type", choice));
        }
        let hostname = form.get("hostname");
        let taken = |machine: &Machine| {
            Some(machine.hostname.as_str()) == hostname && machine.system_id != call.machine()
        };
        if self.machines.values().any(taken) {
            return Some(Said::field("hostname", "Node with this Hostname already exists."));
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
        strange.map(|name| Said::field(name, "a machine does not have this"))
    }

    fn delete(&mut self, id: &str) -> Said {
        if self.machines.get(id).is_some_and(|machine| machine.locked) {
            return Said::text(403, "");
        }
        self.machines.remove(id);
        Said::Deleted
    }

    fn allocate(&mut self, call: &Call) -> Said {
        if let Some(name) = call.form.unknown(known("allocate")) {
            return Said::field(name, "Unable to resolve this constraint.");
        }
        let id = call.form.get("system_id").unwrap_or_default().to_owned();
        let free = |machine: &&mut Machine| {
            machine.status == Status::Ready && machine.owner.is_none() && !machine.locked
        };
        let Some(machine) = self.machines.get_mut(&id).filter(free) else {
            let words = format!(
                "No available machine matches constraints: [('system_id', ['{id}'])] (resolved to \"system_id={id}\")"
            );
            return wrong_state(words);
        };
        take(machine);
        self.told(&id)
    }

    fn annotate(&mut self, call: &Call, id: &str) -> Said {
        let Some(machine) = self.machines.get_mut(id) else { return Said::Gone };
        if machine.owner.as_deref() != Some(USER) {
            return wrong_state("Cannot set workload annotation: it hasn't been acquired.");
        }
        for (name, value) in call.form.pairs() {
            match value {
                "" => machine.annotations.remove(name),
                value => machine.annotations.insert(name.to_owned(), value.to_owned()),
            };
        }
        self.told(id)
    }

    pub(super) fn on_disk(&mut self, call: &Call, id: &str, disk: &str) -> Said {
        let number: i64 = disk.parse().unwrap_or_default();
        let found = self.machines.get_mut(id).filter(|m| part(&m.disks, number).is_some());
        let Some(machine) = found else {
            return Said::text(404, "No BlockDevice matches the given query.");
        };
        match (call.method.as_str(), call.op.as_deref()) {
            ("POST", Some("set_boot_disk")) if machine.status == Status::Ready => {
                machine.boot_disk = number;
                Said::text(200, "OK")
            }
            ("POST", Some("set_boot_disk")) => {
                wrong_state("Cannot set as boot disk because the machine is not Ready.")
            }
            (method, op) => unrecognised(method, op),
        }
    }

    pub(super) fn on_interface(&mut self, call: &Call, id: &str, interface: &str) -> Said {
        let number: i64 = interface.parse().unwrap_or_default();
        let (link, subnets) = (self.id(), self.subnets.clone());
        let missing = || Said::text(404, "No Interface matches the given query.");
        let Some(machine) = self.machines.get_mut(id) else { return missing() };
        let status = machine.status;
        let Some(place) = part(&machine.interfaces, number) else { return missing() };
        let Some(interface) = machine.interfaces.get_mut(place) else { return missing() };
        let (name, wants) = match (call.method.as_str(), call.op.as_deref()) {
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
        match wants {
            Ok(changed) => {
                *interface = changed;
                Said::Json(interface.clone())
            }
            Err(said) => said,
        }
    }
}

pub(super) fn unrecognised(method: &str, op: Option<&str>) -> Said {
    let op = op.unwrap_or("None");
    Said::text(400, format!("Unrecognised signature: method={method} op={op}"))
}

fn has_mac(machine: &Machine, mac: &str) -> bool {
    machine.interfaces.iter().any(|interface| interface["mac_address"] == mac)
}

fn part(parts: &[Value], id: i64) -> Option<usize> {
    parts.iter().position(|part| part["id"] == id)
}

fn place(machine: &mut Machine, call: &Call) {
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

fn take(machine: &mut Machine) {
    machine.become_(Status::Allocated);
    machine.owner = Some(USER.into());
}

fn commission(machine: &mut Machine) -> Option<Said> {
    if !COMMISSIONABLE.contains(&machine.status) {
        let words = "Commission is not available because of the current state of the node.";
        return Some(Said::field("__all__", words));
    }
    machine.become_(Status::Commissioning);
    machine.owner = Some(USER.into());
    machine.power = "on";
    None
}

fn abort(machine: &mut Machine) -> Option<Said> {
    match machine.status {
        Status::Commissioning | Status::Testing => {
            let before = machine.before;
            machine.become_(before);
            machine.owner = None;
        }
        Status::Deploying => machine.become_(Status::Allocated),
        Status::DiskErasing => machine.become_(Status::FailedDiskErasing),
        other => {
            let id = &machine.system_id;
            let words = format!("Cannot abort in current state: node {id} is in state {other}.");
            return Some(wrong_state(words));
        }
    }
    machine.power = "off";
    None
}

fn deploy(machine: &mut Machine, call: &Call, images: &[String]) -> Option<Said> {
    let series = call.form.get("distro_series").unwrap_or("jammy");
    let osystem = call.form.get("osystem").unwrap_or("ubuntu");
    let wanted =
        if series.contains('/') { series.to_owned() } else { format!("{osystem}/{series}") };
    if !matches!(machine.status, Status::Ready | Status::Allocated) {
        let words = format!("Can't deploy a machine that is in the '{}' state", machine.status);
        return Some(wrong_state(words));
    }
    if !images.contains(&wanted) {
        let words =
            format!("'{wanted}' is not a valid distro_series.  It should be one of: {images:?}.");
        return Some(Said::field("distro_series", words));
    }
    let data = STANDARD.decode(call.form.get("user_data").unwrap_or_default());
    let Ok(data) = data else { return Some(Said::text(400, "Failed to decode user_data")) };
    if machine.status == Status::Ready {
        take(machine);
    }
    machine.user_data = String::from_utf8_lossy(&data).into_owned();
    let (osystem, series) = wanted.split_once('/').unwrap_or_default();
    (machine.osystem, machine.distro_series) = (osystem.into(), series.into());
    machine.enable_hw_sync = call.form.is_true("enable_hw_sync");
    power_on(machine)
}

fn release(machine: &mut Machine, call: &Call) -> Option<Said> {
    if matches!(machine.status, Status::Releasing | Status::Ready) {
        return None;
    }
    if !RELEASABLE.contains(&machine.status) {
        let words =
            format!("Machine cannot be released in its current state ('{}').", machine.status);
        return Some(wrong_state(words));
    }
    let erases =
        ["erase", "secure_erase", "quick_erase"].iter().any(|name| call.form.is_true(name));
    machine.become_(if erases { Status::DiskErasing } else { Status::Releasing });
    machine.power = if erases { "on" } else { "off" };
    None
}

/// Switching on an Allocated machine deploys it.
fn power_on(machine: &mut Machine) -> Option<Said> {
    if machine.owner.is_none() {
        return Some(wrong_state("Can't start node: it hasn't been allocated."));
    }
    if machine.status == Status::Allocated {
        machine.become_(Status::Deploying);
    }
    machine.power = "on";
    None
}

fn power_off(machine: &mut Machine) -> Option<Said> {
    machine.power = "off";
    None
}

fn mark_broken(machine: &mut Machine, call: &Call) -> Option<Said> {
    if machine.owner.as_deref() != Some(USER) {
        return Some(Said::text(403, ""));
    }
    machine.become_(Status::Broken);
    machine.let_go();
    machine.status_message = call.form.get("comment").unwrap_or_default().to_owned();
    None
}

fn mark_fixed(machine: &mut Machine) -> Option<Said> {
    if machine.status != Status::Broken {
        return Some(wrong_state("Can't mark a non-broken node as 'Ready'."));
    }
    machine.become_(Status::Ready);
    None
}

fn lock(machine: &mut Machine) -> Option<Said> {
    if machine.locked {
        return Some(wrong_state("Machine is already locked"));
    }
    if !matches!(machine.status, Status::Deployed | Status::Deploying) {
        return Some(wrong_state("Can't lock, node is not deployed or deploying"));
    }
    machine.locked = true;
    None
}

fn unlock(machine: &mut Machine) -> Option<Said> {
    if !machine.locked {
        return Some(wrong_state("Machine is not locked"));
    }
    machine.locked = false;
    None
}

fn set_layout(machine: &mut Machine, call: &Call) -> Option<Said> {
    if machine.status != Status::Ready {
        return Some(wrong_state(
            "Cannot change the storage layout on a machine that is not Ready.",
        ));
    }
    let layout = call.form.get("storage_layout").unwrap_or_default();
    if !LAYOUTS.contains(&layout) {
        let words = format!("'{layout}' is not a valid storage_layout.");
        return Some(Said::field("storage_layout", words));
    }
    if let Some(root) = call.form.get("root_device") {
        let disk = root.parse().ok().and_then(|root| part(&machine.disks, root));
        if disk.is_none() {
            let words =
                format!("Failed to configure storage layout '{layout}': Invalid root_device");
            return Some(Said::text(400, words));
        }
    }
    machine.layout = layout.to_owned();
    None
}

fn rewire(interface: &Value, call: &Call) -> Result<Value, Said> {
    let mut changed = interface.clone();
    for (name, value) in call.form.pairs() {
        match (name, value.parse::<u32>()) {
            ("mtu", Ok(mtu)) if (552..=65_535).contains(&mtu) => {
                changed["effective_mtu"] = json!(mtu)
            }
            ("mtu", _) => {
                return Err(Said::field("mtu", "Enter a whole number from 552 to 65535."));
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
            _ => return Err(Said::field(name, "an interface does not have this")),
        }
    }
    Ok(changed)
}

fn link_up(interface: &Value, call: &Call, (id, subnets): (i64, &[Value])) -> Result<Value, Said> {
    let form = &call.form;
    if let Some(name) = form.unknown(&["mode", "subnet", "ip_address", "default_gateway"]) {
        return Err(Said::field(name, "a link does not have this"));
    }
    let mode = form.get("mode").unwrap_or_default();
    if !["AUTO", "DHCP", "STATIC", "LINK_UP"].contains(&mode) {
        return Err(Said::field("mode", format!("Value '{mode}' is not a valid choice.")));
    }
    let number: i64 = form.get("subnet").and_then(|id| id.parse().ok()).unwrap_or_default();
    let Some(subnet) = subnets.iter().find(|subnet| subnet["id"] == number) else {
        return Err(Said::field("subnet", "Select a valid choice."));
    };
    let address = form.get("ip_address");
    if address.is_some() && mode != "STATIC" {
        return Err(Said::field("ip_address", "Cannot use this field in this mode."));
    }
    let mut changed = interface.clone();
    let link = json!({"id": id, "mode": mode.to_ascii_lowercase(), "subnet": subnet, "ip_address": address});
    if let Some(links) = changed["links"].as_array_mut() {
        links.push(link);
    }
    Ok(changed)
}

fn unlink(interface: &Value, call: &Call) -> Result<Value, Said> {
    let id: i64 = call.form.get("id").and_then(|id| id.parse().ok()).unwrap_or_default();
    let mut changed = interface.clone();
    let links = changed["links"].as_array_mut();
    match links.and_then(|links| Some(links.remove(part(links, id)?))) {
        Some(_) => Ok(changed),
        None => Err(Said::field("id", "Select a valid choice.")),
    }
}
