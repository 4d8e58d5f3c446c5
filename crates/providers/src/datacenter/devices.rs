//! The lifecycle calls to devices: read the inventory, check the rights of our login, and compare
//! with the desired state. All of them are idempotent, so they need no checkpoint: an unknown
//! outcome is resolved by repeating the call.

use super::controller::{Controller, Identity};
use super::firmware::FirmwareRequest;
use super::provider_calls::done;
use super::{Datacenter, TargetCall};
use crate::fabric::FabricTarget;
use crate::governor::Priority;
use crate::port::{Journal, Target};
use crate::power::PowerState;
use crate::redfish::{Components, LoginPrivilege, Telemetry};
use model::effect::{
    CallOutcome, CallResult, CallVerb, DesiredPower, DeviceFacts, DeviceWork, FabricGoal, MAX_FACT,
    ProviderAnswer,
};
use model::fault::{Fault, FaultCode, Result};
use std::collections::BTreeMap;

/// The most components of one device that are recorded.
const MAX_COMPONENTS: usize = 200;
/// Reading a whole device takes many requests; its timeout is this multiple of one call's.
const READ_TIMEOUT_FACTOR: u32 = 4;

impl Datacenter {
    pub(super) async fn device(&self, request: TargetCall<'_>, work: &DeviceWork) -> CallResult {
        let TargetCall { target, call, journal } = request;
        match work {
            DeviceWork::Firmware { component, version, url, sha256 } => {
                let requested = FirmwareRequest { component, version, url, sha256 };
                self.update_firmware(request, requested).await
            }
            DeviceWork::Fabric { to } => self.fabric(request, goal_of(*to)).await,
            DeviceWork::Read => match answer_without_device(call.verb) {
                Some(answer) => Ok(answer),
                None => self.read_facts(target, journal).await,
            },
            DeviceWork::Configure => match (call.verb, answer_without_device(call.verb)) {
                (CallVerb::Observe, _) => self.configure_device(target, false, journal).await,
                (_, Some(answer)) => Ok(answer),
                (_, None) => self.configure_device(target, true, journal).await,
            },
            DeviceWork::Check { firmware, power } => match answer_without_device(call.verb) {
                Some(answer) => Ok(answer),
                None => self.check_device(target, call.verb, firmware, *power, journal).await,
            },
        }
    }

    /// Reads a whole device in one admitted call.
    async fn read_device(&self, target: &Target) -> Result<DeviceObservation> {
        let probe = async |bmc: &Controller| {
            let power = bmc.power().await?;
            Ok(DeviceObservation {
                power,
                identity: bmc.identity().await?,
                components: bmc.components().await?,
            })
        };
        let limit = self.settings.call_timeout * READ_TIMEOUT_FACTOR;
        self.bmcs.call(target, Priority::Operator, limit, probe).await
    }

    async fn read_facts(&self, target: &Target, journal: &Journal) -> CallResult {
        let observation = self.read_device(target).await?;
        for skipped in &observation.components.skipped {
            journal.write_line(format!("read: not read: {skipped}")).await;
        }
        let facts = facts_of(&observation, []);
        for (component, version) in &facts.firmware {
            journal.write_line(format!("read: firmware {component} {version}")).await;
        }
        let named =
            |text: &str| if text.is_empty() { "unknown".to_owned() } else { text.to_owned() };
        let said = format!(
            "manufacturer {}, model {}, serial {}, {} components, power is {}",
            named(&facts.manufacturer),
            named(&facts.model),
            named(&facts.serial),
            facts.firmware.len(),
            observation.power.as_str()
        );
        Ok(ProviderAnswer::Done(CallOutcome {
            message: said,
            facts: Some(facts),
            ..CallOutcome::default()
        }))
    }

    /// Checks that our login may change the device and that telemetry is on, or switches it on.
    async fn configure_device(
        &self,
        target: &Target,
        change: bool,
        journal: &Journal,
    ) -> CallResult {
        let probe = async |bmc: &Controller| {
            let status = bmc.services()?.login_privilege().await?;
            if let LoginPrivilege::ReadOnly(role) = &status {
                let message = format!(
                    "the login works and may only look: its role is {role}; give a credential that may change power and firmware"
                );
                return Err(Fault::new(FaultCode::CredentialMissing, message));
            }
            let telemetry = bmc.services()?.telemetry(change).await?;
            Ok((status, telemetry, bmc.readings().await?))
        };
        let limit = self.settings.call_timeout * READ_TIMEOUT_FACTOR;
        let (status, telemetry, readings) =
            self.bmcs.call(target, Priority::Operator, limit, probe).await?;
        let login = match status {
            LoginPrivilege::Configure(role) => format!("the login administers as {role}"),
            LoginPrivilege::ReadOnly(_) | LoginPrivilege::Unknown => {
                "the login works; the device does not tell what it may do".into()
            }
        };
        let service = match telemetry {
            Telemetry::Absent => "it has no telemetry service",
            Telemetry::Off => {
                return Ok(ProviderAnswer::Differs("its telemetry service is off".into()));
            }
            Telemetry::On => "its telemetry service is on",
            Telemetry::SwitchedOn => "its telemetry service was off and is on now",
        };
        let watched = match readings {
            0 => "it shows no sensors, so only its power is watched".to_owned(),
            some => format!("{some} sensors, fans and supplies are watched"),
        };
        let message = format!("{login}; {watched}; {service}");
        journal.write_line(format!("configure: {message}")).await;
        Ok(ProviderAnswer::Done(done(message)))
    }

    async fn check_device(
        &self,
        target: &Target,
        verb: CallVerb,
        firmware: &BTreeMap<String, String>,
        power: Option<DesiredPower>,
        journal: &Journal,
    ) -> CallResult {
        let observation = self.read_device(target).await?;
        let wrong = differences(&observation, firmware, power);
        for one in &wrong {
            journal.write_line(format!("check: {one}")).await;
        }
        let facts = Some(facts_of(&observation, firmware.keys()));
        match (wrong.as_slice(), verb) {
            ([], _) => {
                let text = format!(
                    "reachable, {} components as expected, power is {}",
                    firmware.len(),
                    observation.power.as_str()
                );
                Ok(ProviderAnswer::Done(CallOutcome {
                    message: text,
                    facts,
                    ..CallOutcome::default()
                }))
            }
            (some, CallVerb::Observe) => Ok(ProviderAnswer::Differs(some.join("; "))),
            (some, CallVerb::Perform | CallVerb::Follow | CallVerb::GetStatus | CallVerb::Stop) => {
                Err(Fault::new(FaultCode::ReadBackDiffers, some.join("; ")))
            }
        }
    }
}

struct DeviceObservation {
    power: PowerState,
    identity: Identity,
    components: Components,
}

/// The answer to verbs that need no request to the device.
const fn answer_without_device(verb: CallVerb) -> Option<ProviderAnswer> {
    match verb {
        CallVerb::Perform | CallVerb::Follow | CallVerb::Observe => None,
        CallVerb::GetStatus => Some(ProviderAnswer::NeverStarted),
        CallVerb::Stop => Some(ProviderAnswer::Stopped),
    }
}

const fn goal_of(to: FabricGoal) -> FabricTarget {
    match to {
        FabricGoal::Off => FabricTarget::Off,
        FabricGoal::Manager => FabricTarget::Manager,
        FabricGoal::Configured => FabricTarget::Configured,
    }
}

/// The facts about a device: its components by its own names and by the `requested` names of the
/// catalogue. Without the latter a catalogue entry would keep the version of its last installation.
fn facts_of<'a>(
    observation: &DeviceObservation,
    requested: impl IntoIterator<Item = &'a String>,
) -> DeviceFacts {
    let text = |text: &Option<String>| truncate_fact(text.as_deref().unwrap_or_default());
    let Identity { vendor, model, serial } = &observation.identity;
    let components = observation.components.list.iter().take(MAX_COMPONENTS);
    let own = components.map(|one| (truncate_fact(&one.id), truncate_fact(&one.version)));
    let requested = requested.into_iter().filter_map(|name| {
        let found = observation.components.find(name).ok()?;
        Some((truncate_fact(name), truncate_fact(&found.version)))
    });
    DeviceFacts {
        manufacturer: text(vendor),
        model: text(model),
        serial: text(serial),
        firmware: own.chain(requested).collect(),
        power: power_to(observation.power),
        replaced: None,
        maas: None,
    }
}

fn truncate_fact(text: &str) -> String {
    text.chars().take(MAX_FACT).collect()
}

pub(super) const fn power_to(power: PowerState) -> Option<DesiredPower> {
    match power {
        PowerState::On => Some(DesiredPower::On),
        PowerState::Off => Some(DesiredPower::Off),
        PowerState::Changing => None,
    }
}

/// All differences from the expected state.
fn differences(
    observation: &DeviceObservation,
    firmware: &BTreeMap<String, String>,
    power: Option<DesiredPower>,
) -> Vec<String> {
    let mut wrong = Vec::new();
    if let Some(desired) = power
        && power_to(observation.power) != Some(desired)
    {
        let desired = desired.as_str().to_ascii_lowercase();
        wrong.push(format!("power is {}, and should be {desired}", observation.power.as_str()));
    }
    for (component, desired) in firmware {
        match observation.components.find(component) {
            Ok(found) if found.version == *desired => {}
            Ok(found) => {
                wrong.push(format!(
                    "{component} is at {}, and should be at {desired}",
                    found.version
                ));
            }
            Err(fault) => wrong.push(fault.message),
        }
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::redfish::Firmware;

    fn observation(power: PowerState, versions: &[(&str, &str)]) -> DeviceObservation {
        let list = versions.iter().map(|(id, version)| Firmware {
            id: (*id).into(),
            version: (*version).into(),
            ..Firmware::default()
        });
        let components = Components { list: list.collect(), ..Components::default() };
        DeviceObservation { power, identity: Identity::default(), components }
    }

    #[test]
    fn every_difference_is_reported() {
        let observed = observation(PowerState::Off, &[("BMC", "1"), ("FPGA", "7")]);
        let desired = |pairs: &[(&str, &str)]| {
            pairs.iter().map(|(one, two)| ((*one).to_owned(), (*two).to_owned())).collect()
        };
        for (firmware, power, expected) in [
            (vec![], None, vec![]),
            (vec![("BMC", "1"), ("FPGA", "7")], Some(DesiredPower::Off), vec![]),
            (
                vec![("BMC", "2"), ("CPLD", "1")],
                Some(DesiredPower::On),
                vec![
                    "power is off, and should be on",
                    "BMC is at 1, and should be at 2",
                    "the device has no firmware component \"CPLD\"; it has BMC, FPGA",
                ],
            ),
        ] {
            assert_eq!(differences(&observed, &desired(&firmware), power), expected);
        }
        let between = differences(
            &observation(PowerState::Changing, &[]),
            &BTreeMap::new(),
            Some(DesiredPower::On),
        );
        assert_eq!(between, ["power is changing, and should be on"]);
    }

    /// Otherwise the version that was installed under the catalogue's name would never be updated.
    #[test]
    fn a_component_is_recorded_under_its_catalogue_name() {
        let mut observed = observation(PowerState::On, &[("BIOS_0", "1.4"), ("BMC_0", "2.0")]);
        observed.components.list[0].name = Some("BIOS".into());
        let mut known = DeviceFacts::default();
        known.firmware.insert("BIOS".into(), "1.5".into());
        known.merge(&facts_of(&observed, &["BIOS".to_owned(), "CPLD".to_owned()]));
        let versions: Vec<_> =
            known.firmware.iter().map(|(one, two)| (one.as_str(), two.as_str())).collect();
        assert_eq!(versions, [("BIOS", "1.4"), ("BIOS_0", "1.4"), ("BMC_0", "2.0")]);
    }

    #[test]
    fn facts_are_truncated() {
        let long = "x".repeat(MAX_FACT + 10);
        let facts = facts_of(&observation(PowerState::On, &[("BMC", &long)]), []);
        assert_eq!(facts.firmware["BMC"].len(), MAX_FACT);
        assert_eq!(facts.power, Some(DesiredPower::On));
        assert_eq!(facts.serial, "");
    }
}
