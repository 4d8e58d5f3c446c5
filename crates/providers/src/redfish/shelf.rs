//! A power shelf: power for a rack, without a computer.
//!
//! Its service may have no System; it has a PowerShelf equipment, or a chassis of that type. Power
//! is shown and switched at the chassis, at the outlets, or at each power supply: the first of them
//! that can be switched on and off is used; if none can, power is read only. A shelf is selected
//! like a System: it is the only one, or its serial number matches.

use super::Bmc;
use super::client::{MAX_MEMBERS, Skipped};
use super::decode::{JsonNode, Resource};
use super::power::{ACTION as SYSTEM_RESET, Power, Reset, resets_of};
use super::quirks::Quirks;
use super::system::System;
use model::fault::{EffectOutcome, Fault, FaultCode, Result};
use serde_json::json;

/// The most shelves of one service that are read.
const MAX_SHELVES: usize = 64;
const CHASSIS_RESET: &str = "#Chassis.Reset";
const SUPPLY_RESET: &str = "#PowerSupply.Reset";
const OUTLET_CONTROL: &str = "#Outlet.PowerControl";
const NO_RESETS: [Reset; 0] = [];

/// The resources at which power is shown and switched.
#[derive(Debug, Clone, PartialEq, Eq)]
enum PowerControlPoint {
    /// At one resource, with the name of its action.
    Resource {
        path: String,
        action: &'static str,
    },
    /// At each outlet of a collection.
    Outlets {
        list: String,
    },
    Supplies {
        list: String,
    },
}

/// One power shelf behind a controller.
pub struct Shelf {
    /// The shelf's own resource, read like a System.
    resource: System,
    control_point: PowerControlPoint,
}

impl Bmc {
    /// Selects the power shelf with this serial number, or the only one.
    pub async fn shelf(&self, serial: Option<&str>) -> Result<Shelf> {
        let found = self.shelves().await?;
        let fits = |doc: &&Resource| {
            let shown = doc.root().text("SerialNumber");
            match (serial, shown) {
                (Some(desired), Some(shown)) => shown.eq_ignore_ascii_case(desired.trim()),
                (Some(_), None) | (None, _) => true,
            }
        };
        let fitting: Vec<&Resource> = found.iter().filter(fits).collect();
        let why = match (fitting.as_slice(), serial) {
            ([one], _) => {
                let position = self.shelf_resource(one);
                let way = select_control_point(&position, one).await?;
                return Ok(Shelf { resource: position, control_point: way });
            }
            ([], Some(serial)) if !found.is_empty() => format!("None is {serial:?}"),
            ([], _) => "Nothing there is a power shelf".into(),
            ([_, _, ..], _) => "Nothing known of the shelf tells which".into(),
        };
        let list: Vec<String> = found.iter().map(shown).collect();
        let there = match list.as_slice() {
            [] => "no power shelf".to_owned(),
            some => some.join(", "),
        };
        let message = format!("{} has {there}. {why}", self.endpoint());
        Err(Fault::new(FaultCode::SystemAmbiguous, message))
    }

    /// The equipment of type PowerShelf, else chassis of that type, else the only chassis.
    async fn shelves(&self) -> Result<Vec<Resource>> {
        let mut skipped = Skipped::new();
        if let Some(path) = self.root.root().link("PowerEquipment")
            && let Some(equipment) = self.link.find_or_skip(&path, &mut skipped).await?
            && let Some(list) = equipment.root().link("PowerShelves")
        {
            let shelves = self.link.members(&list, MAX_SHELVES, &mut skipped).await?;
            if !shelves.is_empty() {
                return self.fail_if_skipped(skipped, shelves);
            }
        }
        let Some(list) = self.root.root().link("Chassis") else { return Ok(Vec::new()) };
        let list = self.link.get(&list).await?;
        let mut chassis = self.link.members(&list.path, MAX_SHELVES, &mut skipped).await?;
        if chassis.len() > 1 {
            chassis.retain(is_shelf);
        }
        self.fail_if_skipped(skipped, chassis)
    }

    /// Fails if a resource was skipped: it could be the requested shelf.
    fn fail_if_skipped(&self, skipped: Skipped, shelves: Vec<Resource>) -> Result<Vec<Resource>> {
        match skipped.first() {
            None => Ok(shelves),
            Some(why) => {
                let message = format!("{} has parts that cannot be read: {why}", self.endpoint());
                Err(Fault::new(FaultCode::SystemAmbiguous, message))
            }
        }
    }

    fn shelf_resource(&self, doc: &Resource) -> System {
        let makers: Vec<String> =
            doc.root().text("Manufacturer").into_iter().chain(self.about().vendor).collect();
        System {
            link: self.link.clone(),
            path: doc.path.clone(),
            quirks: Quirks::of(&makers, &doc.root().text("Model").unwrap_or_default()),
            poll_interval: self.poll_interval,
            boards: Vec::new(),
            expands: false,
            updates: self.updates(),
            services: self.services(),
            all_chassis: None,
        }
    }
}

fn is_shelf(doc: &Resource) -> bool {
    let part = doc.root();
    let kind = part.text("ChassisType").unwrap_or_default();
    kind == "Shelf" || doc.name().to_lowercase().contains("powershelf")
}

fn shown(doc: &Resource) -> String {
    match doc.root().text("SerialNumber") {
        Some(serial) => format!("{} (serial {serial})", doc.name()),
        None => doc.name().to_owned(),
    }
}

/// The first control point that can switch power on and off, else the first that shows it.
async fn select_control_point(position: &System, doc: &Resource) -> Result<PowerControlPoint> {
    let mut ways = Vec::new();
    let mut skipped = Skipped::new();
    let mut bodies = vec![doc.clone()];
    for path in doc.root().get("Links").list("Chassis").filter_map(JsonNode::as_link).take(1) {
        bodies.extend(position.link.find_or_skip(&path, &mut skipped).await?);
    }
    for body in &bodies {
        if body.root().text("PowerState").is_some() {
            let path = body.path.clone();
            let action = reset_action(body);
            ways.push((
                PowerControlPoint::Resource { path, action },
                can_switch(position, body, action).await?,
            ));
        }
    }
    if let Some(list) = doc.root().link("Outlets") {
        let outlets = position.link.members(&list, MAX_MEMBERS, &mut skipped).await?;
        let can =
            |doc: &Resource| doc.root().get("Actions").get(OUTLET_CONTROL).link("target").is_some();
        let can = !outlets.is_empty() && outlets.iter().all(can);
        ways.push((PowerControlPoint::Outlets { list }, can));
    }
    for body in &bodies {
        if let Some(list) = supplies_of(position, body, &mut skipped).await? {
            let supplies = position.link.members(&list, MAX_MEMBERS, &mut skipped).await?;
            let can = match supplies.first() {
                Some(first) => can_switch(position, first, SUPPLY_RESET).await?,
                None => false,
            };
            if !supplies.is_empty() {
                ways.push((PowerControlPoint::Supplies { list }, can));
            }
        }
    }
    let best = ways.iter().position(|(_, can)| *can).unwrap_or(0);
    let none = || position.lacks("PowerState, outlets or power supplies");
    ways.into_iter().nth(best).map(|(way, _)| way).ok_or_else(none)
}

fn reset_action(body: &Resource) -> &'static str {
    let has = |name: &&str| body.root().get("Actions").get(name).link("target").is_some();
    [CHASSIS_RESET, SYSTEM_RESET].into_iter().find(has).unwrap_or(CHASSIS_RESET)
}

async fn supplies_of(
    position: &System,
    body: &Resource,
    skipped: &mut Skipped,
) -> Result<Option<String>> {
    let own = body.root().link("PowerSupplies");
    match (own, body.root().link("PowerSubsystem")) {
        (Some(list), _) => Ok(Some(list)),
        (None, Some(subsystem)) => {
            let subsystem = position.link.find_or_skip(&subsystem, skipped).await?;
            Ok(subsystem.and_then(|subsystem| subsystem.root().link("PowerSupplies")))
        }
        (None, None) => Ok(None),
    }
}

/// True if a resource can be switched on and off.
async fn can_switch(position: &System, doc: &Resource, action: &str) -> Result<bool> {
    if doc.root().get("Actions").get(action).link("target").is_none() {
        return Ok(false);
    }
    let known = resets_of(&position.link, doc, action).await?;
    let on = known.contains(&Reset::On) || known.contains(&Reset::ForceOn);
    Ok(on && known.contains(&Reset::ForceOff))
}

impl Shelf {
    pub async fn power(&self) -> Result<Power> {
        match &self.control_point {
            PowerControlPoint::Resource { path, .. } => {
                let doc = self.resource.link.get(path).await?;
                let lacks = || self.resource.lacks("PowerState");
                let name = doc.root().text("PowerState").ok_or_else(lacks)?;
                let garbled = || self.resource.garbled(&format!("its power is {name:?}"));
                Power::parse(&name).ok_or_else(garbled)
            }
            PowerControlPoint::Outlets { list } | PowerControlPoint::Supplies { list } => {
                let parts = self.present_components(list).await?;
                let observed: Vec<Power> = parts.iter().filter_map(power_of).collect();
                combined_power(&observed)
                    .ok_or_else(|| self.resource.lacks("part that shows its power"))
            }
        }
    }

    /// The resets that it allows.
    pub async fn resets(&self) -> Result<Vec<Reset>> {
        match &self.control_point {
            PowerControlPoint::Resource { path, action } => {
                let doc = self.resource.link.get(path).await?;
                self.resets_at(&doc, action).await
            }
            PowerControlPoint::Outlets { .. } => Ok(vec![Reset::On, Reset::ForceOff]),
            PowerControlPoint::Supplies { list } => {
                match self.present_components(list).await?.first() {
                    Some(first) => self.resets_at(first, SUPPLY_RESET).await,
                    None => Ok(NO_RESETS.to_vec()),
                }
            }
        }
    }

    async fn resets_at(&self, doc: &Resource, action: &str) -> Result<Vec<Reset>> {
        match doc.root().get("Actions").get(action).link("target") {
            Some(_) => resets_of(&self.resource.link, doc, action).await,
            None => Ok(NO_RESETS.to_vec()),
        }
    }

    /// Requests a change of power. On return the shelf has accepted it; the result is unknown.
    pub async fn reset(&self, kind: Reset) -> Result<()> {
        match &self.control_point {
            PowerControlPoint::Resource { path, action } => {
                let doc = self.resource.link.get(path).await?;
                self.switch(&doc, action, kind).await
            }
            PowerControlPoint::Supplies { list } => {
                self.switch_each(list, SUPPLY_RESET, kind).await
            }
            PowerControlPoint::Outlets { list } => {
                self.switch_each(list, OUTLET_CONTROL, kind).await
            }
        }
    }

    /// Switches one by one. After the first was accepted, a failure means: may have happened.
    async fn switch_each(&self, list: &str, action: &str, kind: Reset) -> Result<()> {
        let desired = match kind {
            Reset::On | Reset::ForceOn => Some(Power::On),
            Reset::ForceOff | Reset::GracefulShutdown => Some(Power::Off),
            Reset::GracefulRestart
            | Reset::ForceRestart
            | Reset::PowerCycle
            | Reset::PushPowerButton
            | Reset::Nmi => None,
        };
        let mut taken = 0;
        for part in self.present_components(list).await? {
            if desired.is_some() && power_of(&part) == desired {
                continue;
            }
            match self.switch(&part, action, kind).await {
                Ok(()) => taken += 1,
                Err(fault)
                    if taken > 0 && fault.code.effect_outcome() == EffectOutcome::NotApplied =>
                {
                    let message =
                        format!("{taken} parts were switched, and then: {}", fault.message);
                    return Err(Fault::new(FaultCode::AnswerLost, message));
                }
                Err(fault) => return Err(fault),
            }
        }
        Ok(())
    }

    async fn switch(&self, doc: &Resource, action: &str, kind: Reset) -> Result<()> {
        let target = doc.root().get("Actions").get(action).link("target");
        let target = target.ok_or_else(|| self.resource.lacks(action.trim_start_matches('#')))?;
        let body = match action {
            OUTLET_CONTROL => json!({ "PowerState": outlet_state(kind) }),
            _ => json!({ "ResetType": kind.as_str() }),
        };
        self.resource.link.post(&target, &body).await.map(|_| ())
    }

    /// The components that are present. One that cannot be read is a fault: its power is unknown.
    async fn present_components(&self, list: &str) -> Result<Vec<Resource>> {
        let mut skipped = Skipped::new();
        let mut parts = self.resource.link.members(list, MAX_MEMBERS, &mut skipped).await?;
        if let Some(why) = skipped.first() {
            let message = format!("not every part of the shelf can be read: {why}");
            return Err(Fault::new(FaultCode::EffectFailed, message));
        }
        parts.retain(|part| state(part).as_deref() != Some("Absent"));
        Ok(parts)
    }

    /// The shelf's own resource, for requests that Systems answer too.
    pub const fn place(&self) -> &System {
        &self.resource
    }
}

const fn outlet_state(kind: Reset) -> &'static str {
    match kind {
        Reset::On | Reset::ForceOn => "On",
        Reset::ForceOff | Reset::GracefulShutdown | Reset::PushPowerButton | Reset::Nmi => "Off",
        Reset::GracefulRestart | Reset::ForceRestart | Reset::PowerCycle => "PowerCycle",
    }
}

fn state(doc: &Resource) -> Option<String> {
    doc.root().get("Status").text("State")
}

/// The power of a component. A supply without a PowerState shows it by its status.
fn power_of(doc: &Resource) -> Option<Power> {
    let shown = doc.root().text("PowerState");
    match (shown.as_deref(), state(doc).as_deref()) {
        (Some("true"), _) => Some(Power::On),
        (Some("false"), _) => Some(Power::Off),
        (Some(name), _) => Power::parse(name),
        (None, Some("Enabled" | "InTest" | "Updating")) => Some(Power::On),
        (None, Some("Disabled" | "StandbyOffline" | "UnavailableOffline")) => Some(Power::Off),
        (None, Some("Starting")) => Some(Power::PoweringOn),
        (None, _) => None,
    }
}

/// The power of all components together. A mixture of on and off counts as changing.
fn combined_power(observed: &[Power]) -> Option<Power> {
    let all = |power: Power| observed.iter().all(|one| *one == power);
    match observed {
        [] => None,
        [..] if all(Power::On) => Some(Power::On),
        [..] if all(Power::Off) => Some(Power::Off),
        [..] if observed.contains(&Power::PoweringOff) => Some(Power::PoweringOff),
        [..] => Some(Power::PoweringOn),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    fn doc(value: Value) -> Resource {
        Resource { path: "/redfish/v1/Chassis/PowerShelf_0".into(), etag: None, value }
    }

    #[test]
    fn a_component_shows_its_power_or_its_state() {
        for (value, power) in [
            (json!({"PowerState": "On"}), Some(Power::On)),
            (json!({"PowerState": "Off", "Status": {"State": "Enabled"}}), Some(Power::Off)),
            (json!({"PowerState": true}), Some(Power::On)),
            (json!({"PowerState": false}), Some(Power::Off)),
            (json!({"Status": {"State": "Enabled"}}), Some(Power::On)),
            (json!({"Status": {"State": "StandbyOffline"}}), Some(Power::Off)),
            (json!({"Status": {"State": "Starting"}}), Some(Power::PoweringOn)),
            (json!({"Status": {"State": "StandbySpare"}}), None),
            (json!({}), None),
        ] {
            assert_eq!(power_of(&doc(value.clone())), power, "{value}");
        }
    }

    #[test]
    fn a_shelf_is_on_if_all_its_components_are() {
        use Power::{Off, On, PoweringOff, PoweringOn};
        for (observed, expected) in [
            (vec![], None),
            (vec![On, On], Some(On)),
            (vec![Off], Some(Off)),
            (vec![On, Off], Some(PoweringOn)),
            (vec![PoweringOff, Off], Some(PoweringOff)),
        ] {
            assert_eq!(combined_power(&observed), expected, "{observed:?}");
        }
    }

    #[test]
    fn a_chassis_is_a_shelf_by_its_kind_or_its_name() {
        let named =
            |path: &str, value| is_shelf(&Resource { path: path.into(), etag: None, value });
        assert!(named("/redfish/v1/Chassis/PowerShelf_0", json!({"ChassisType": "Other"})));
        assert!(named("/redfish/v1/Chassis/1", json!({"ChassisType": "Shelf"})));
        assert!(!named("/redfish/v1/Chassis/BMC_eeprom", json!({"ChassisType": "Component"})));
    }
}
