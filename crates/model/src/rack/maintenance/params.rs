//! The request of a rack maintenance as parameters of its operation: shown to operators, and read
//! back by a rerun.

use super::{
    MaintenanceScope, PlannedMaintenance, PowerSequence, RackMaintenanceRequest, RequestedActivity,
};
use crate::gate::Overrides;
use crate::id::{FirmwareId, Id, Kind};
use crate::plan::Params;
use crate::rack::MaintenanceActivity;
use crate::refusal::Refusal;

const MACHINES: &str = "machines";
const SWITCHES: &str = "switches";
const POWER_SHELVES: &str = "power_shelves";
const ACTIVITIES: &str = "activities";
/// The firmware that the request named.
const FIRMWARE: &str = "firmware";
/// The firmware that is applied.
pub const FIRMWARE_USED: &str = "firmware_used";
const POWER: &str = "power";
/// The reason why no firmware is applied.
pub const FIRMWARE_SKIPPED: &str = "firmware_skipped";
pub const REFERENCE: &str = "reference";
/// `on-demand`, `ingestion` or `reprovision`.
pub const TRIGGER: &str = "trigger";
/// Omissions and warnings, one per line.
pub const NOTES: &str = "notes";

pub(super) fn params(planned: &PlannedMaintenance) -> Params {
    let RackMaintenanceRequest { scope, activities } = &planned.request;
    let words = activities.iter().map(|requested| requested.activity().as_str());
    let power = activities.iter().find_map(|requested| match requested {
        RequestedActivity::PowerSequence(sequence) => Some(sequence.as_str().to_string()),
        RequestedActivity::FirmwareUpgrade(_) | RequestedActivity::ConfigureNmxCluster => None,
    });
    let id = |id: &FirmwareId| id.to_string();
    let all = [
        (MACHINES, joined(&scope.machines)),
        (SWITCHES, joined(&scope.switches)),
        (POWER_SHELVES, joined(&scope.power_shelves)),
        (ACTIVITIES, words.collect::<Vec<_>>().join(",")),
        (FIRMWARE, planned.request.firmware().map(id).unwrap_or_default()),
        (FIRMWARE_USED, planned.firmware.as_ref().map(id).unwrap_or_default()),
        (POWER, power.unwrap_or_default()),
        (FIRMWARE_SKIPPED, planned.firmware_skipped.clone().unwrap_or_default()),
        (TRIGGER, planned.trigger.as_str().into()),
        (NOTES, planned.notes.join("\n")),
    ];
    let given = all.into_iter().filter(|(_, value)| !value.is_empty());
    given.map(|(name, value)| (name.to_string(), value)).collect()
}

fn joined<K: Kind>(ids: &[Id<K>]) -> String {
    ids.iter().map(Id::as_str).collect::<Vec<_>>().join(",")
}

fn split<K: Kind>(params: &Params, name: &str) -> Vec<Id<K>> {
    words(params, name).map(Id::trusted).collect()
}

fn words<'a>(params: &'a Params, name: &str) -> impl Iterator<Item = &'a str> {
    let all = params.get(name).map(String::as_str).unwrap_or_default();
    all.split(',').filter(|label| !label.is_empty())
}

/// The request that these parameters describe.
pub fn request_from_params(params: &Params) -> RackMaintenanceRequest {
    let requested = |activity: MaintenanceActivity| match activity {
        MaintenanceActivity::FirmwareUpgrade => {
            RequestedActivity::FirmwareUpgrade(params.get(FIRMWARE).map(FirmwareId::trusted))
        }
        MaintenanceActivity::ConfigureNmxCluster => RequestedActivity::ConfigureNmxCluster,
        MaintenanceActivity::PowerSequence => {
            let power = params.get(POWER).and_then(|name| PowerSequence::parse(name));
            RequestedActivity::PowerSequence(power.unwrap_or_default())
        }
    };
    let known = |name: &str| MaintenanceActivity::ALL.into_iter().find(|one| one.as_str() == name);
    RackMaintenanceRequest {
        scope: MaintenanceScope {
            machines: split(params, MACHINES),
            switches: split(params, SWITCHES),
            power_shelves: split(params, POWER_SHELVES),
        },
        activities: words(params, ACTIVITIES).filter_map(known).map(requested).collect(),
    }
}

/// The request that the parameters of a rollout describe: `activities`, `firmware` and `power`, for
/// all devices of a rack.
pub fn request_of_rollout(params: &Params) -> Result<RackMaintenanceRequest, Refusal> {
    let field = |name: &str| format!("rollout.spec.params[{name}]");
    for (name, value) in params {
        let shown: String = value.chars().take(40).collect();
        let invalid = |words: Vec<&str>| {
            let instead = format!("use {}", words.join(", "));
            Refusal::invalid(&field(name), format!("is {shown:?}"), instead)
        };
        match name.as_str() {
            FIRMWARE => drop(FirmwareId::parse_field(value, &field(name))?),
            POWER if PowerSequence::parse(value).is_some() => {}
            POWER => return Err(invalid(PowerSequence::ALL.map(PowerSequence::as_str).to_vec())),
            ACTIVITIES => {
                let known = MaintenanceActivity::ALL.map(MaintenanceActivity::as_str);
                if words(params, name).any(|word| !known.contains(&word)) {
                    return Err(invalid(known.to_vec()));
                }
            }
            _ => {
                let instead = "use activities, firmware or power";
                return Err(Refusal::invalid(&field(name), "has no use for racks", instead));
            }
        }
    }
    request_from_params(params).checked()
}

/// The notes of an operation.
pub fn notes_from_params(params: &Params) -> Vec<String> {
    let notes = params.get(NOTES).map(String::as_str).unwrap_or_default();
    notes.lines().map(String::from).collect()
}

/// The caller, with the reference of the request, such as a ticket.
pub fn initiator(by: &str, reference: &str) -> String {
    match reference {
        "" => by.to_string(),
        reference => format!("{by} ({reference})"),
    }
}

/// Adds the request's metadata: its override, and its reference.
pub fn add_request_metadata(params: &mut Params, overrides: &Overrides, reference: &str) {
    overrides.store_in(params);
    if !reference.is_empty() {
        params.insert(REFERENCE.into(), reference.into());
    }
}
