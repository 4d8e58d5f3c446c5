//! The lifecycle calls to devices: read the inventory, check the rights of our login, and compare
//! with the desired state. All of them are idempotent, so they need no checkpoint: an unknown
//! outcome is resolved by repeating the call.

use super::Datacenter;
use super::controller::{Controller, Identity};
use super::firmware::Wish;
use super::orders::done;
use crate::fabric::Goal;
use crate::governor::Priority;
use crate::port::{Journal, Target};
use crate::power::PowerState;
use crate::redfish::{Components, Standing, Telemetry};
use model::effect::{Answer, DeviceWork, FabricTo, Facts, MAX_FACT, Order, Outcome, PowerTo, Verb};
use model::fault::{Code, Fault};
use std::collections::BTreeMap;

/// How many components of one device are recorded.
const MAX_COMPONENTS: usize = 200;
/// Reading a whole device takes many requests; its timeout is this multiple of one call's.
const READ_TIMES: u32 = 4;

impl Datacenter {
    pub(super) async fn device(
        &self,
        target: &Target,
        order: &Order,
        work: &DeviceWork,
        journal: &Journal,
    ) -> Result<Answer, Fault> {
        match work {
            DeviceWork::Firmware { component, version, url, sha256 } => {
                let wish = Wish { component, version, url, sha256 };
                self.flash(target, order, wish, journal).await
            }
            DeviceWork::Fabric { to } => self.fabric(target, order, goal_of(*to), journal).await,
            DeviceWork::Read => match idle(order.verb) {
                Some(answer) => Ok(answer),
                None => self.read_facts(target, journal).await,
            },
            DeviceWork::Configure => match (order.verb, idle(order.verb)) {
                (Verb::Observe, _) => self.configured(target, false, journal).await,
                (_, Some(answer)) => Ok(answer),
                (_, None) => self.configured(target, true, journal).await,
            },
            DeviceWork::Check { firmware, power } => match idle(order.verb) {
                Some(answer) => Ok(answer),
                None => self.check_device(target, order.verb, firmware, *power, journal).await,
            },
        }
    }

    /// Reads a whole device in one admitted call.
    async fn survey_device(&self, target: &Target) -> Result<Sight, Fault> {
        let look = async |bmc: &Controller| {
            let power = bmc.power().await?;
            Ok(Sight {
                power,
                identity: bmc.identity().await?,
                components: bmc.components().await?,
            })
        };
        let limit = self.settings.call * READ_TIMES;
        self.bmcs.call(target, Priority::Operator, limit, look).await
    }

    async fn read_facts(&self, target: &Target, journal: &Journal) -> Result<Answer, Fault> {
        let sight = self.survey_device(target).await?;
        for skipped in &sight.components.skipped {
            journal.line(format!("read: not read: {skipped}")).await;
        }
        let facts = facts_of(&sight, []);
        for (component, version) in &facts.firmware {
            journal.line(format!("read: firmware {component} {version}")).await;
        }
        let named =
            |text: &str| if text.is_empty() { "unknown".to_owned() } else { text.to_owned() };
        let said = format!(
            "manufacturer {}, model {}, serial {}, {} components, power is {}",
            named(&facts.manufacturer),
            named(&facts.model),
            named(&facts.serial),
            facts.firmware.len(),
            sight.power.as_str()
        );
        Ok(Answer::Done(Outcome { said, facts: Some(facts), ..Outcome::default() }))
    }

    /// Checks that our login may change the device and that telemetry is on, or switches it on.
    async fn configured(
        &self,
        target: &Target,
        change: bool,
        journal: &Journal,
    ) -> Result<Answer, Fault> {
        let look = async |bmc: &Controller| {
            let standing = bmc.services()?.standing().await?;
            if let Standing::Looks(role) = &standing {
                let said = format!(
                    "the login works and may only look: its role is {role}; give a credential that may change power and firmware"
                );
                return Err(Fault::new(Code::CredentialMissing, said));
            }
            let telemetry = bmc.services()?.telemetry(change).await?;
            Ok((standing, telemetry, bmc.readings().await?))
        };
        let limit = self.settings.call * READ_TIMES;
        let (standing, telemetry, readings) =
            self.bmcs.call(target, Priority::Operator, limit, look).await?;
        let login = match standing {
            Standing::Administers(role) => format!("the login administers as {role}"),
            Standing::Looks(_) | Standing::Untold => {
                "the login works; the device does not tell what it may do".into()
            }
        };
        let service = match telemetry {
            Telemetry::Absent => "it has no telemetry service",
            Telemetry::Off => return Ok(Answer::Differs("its telemetry service is off".into())),
            Telemetry::On => "its telemetry service is on",
            Telemetry::SwitchedOn => "its telemetry service was off and is on now",
        };
        let watched = match readings {
            0 => "it shows no sensors, so only its power is watched".to_owned(),
            some => format!("{some} sensors, fans and supplies are watched"),
        };
        let said = format!("{login}; {watched}; {service}");
        journal.line(format!("configure: {said}")).await;
        Ok(Answer::Done(done(said)))
    }

    async fn check_device(
        &self,
        target: &Target,
        verb: Verb,
        firmware: &BTreeMap<String, String>,
        power: Option<PowerTo>,
        journal: &Journal,
    ) -> Result<Answer, Fault> {
        let sight = self.survey_device(target).await?;
        let wrong = wrongs(&sight, firmware, power);
        for one in &wrong {
            journal.line(format!("check: {one}")).await;
        }
        let facts = Some(facts_of(&sight, firmware.keys()));
        match (wrong.as_slice(), verb) {
            ([], _) => {
                let said = format!(
                    "reachable, {} components as expected, power is {}",
                    firmware.len(),
                    sight.power.as_str()
                );
                Ok(Answer::Done(Outcome { said, facts, ..Outcome::default() }))
            }
            (some, Verb::Observe) => Ok(Answer::Differs(some.join("; "))),
            (some, Verb::Perform | Verb::Follow | Verb::GetStatus | Verb::Stop) => {
                Err(Fault::new(Code::ReadBackDiffers, some.join("; ")))
            }
        }
    }
}

struct Sight {
    power: PowerState,
    identity: Identity,
    components: Components,
}

/// The answer to verbs that need no request to the device.
const fn idle(verb: Verb) -> Option<Answer> {
    match verb {
        Verb::Perform | Verb::Follow | Verb::Observe => None,
        Verb::GetStatus => Some(Answer::NeverStarted),
        Verb::Stop => Some(Answer::Stopped),
    }
}

const fn goal_of(to: FabricTo) -> Goal {
    match to {
        FabricTo::Off => Goal::Off,
        FabricTo::Manager => Goal::Manager,
        FabricTo::Configured => Goal::Configured,
    }
}

/// The facts about a device: its components by its own names and by the `asked` names of the
/// catalogue. Without the latter a catalogue entry would keep the version of its last installation.
fn facts_of<'a>(sight: &Sight, asked: impl IntoIterator<Item = &'a String>) -> Facts {
    let text = |text: &Option<String>| kept(text.as_deref().unwrap_or_default());
    let Identity { vendor, model, serial } = &sight.identity;
    let components = sight.components.list.iter().take(MAX_COMPONENTS);
    let own = components.map(|one| (kept(&one.id), kept(&one.version)));
    let asked = asked.into_iter().filter_map(|name| {
        let found = sight.components.find(name).ok()?;
        Some((kept(name), kept(&found.version)))
    });
    Facts {
        manufacturer: text(vendor),
        model: text(model),
        serial: text(serial),
        firmware: own.chain(asked).collect(),
        power: power_to(sight.power),
        replaced: None,
        maas: None,
    }
}

fn kept(text: &str) -> String {
    text.chars().take(MAX_FACT).collect()
}

pub(super) const fn power_to(power: PowerState) -> Option<PowerTo> {
    match power {
        PowerState::On => Some(PowerTo::On),
        PowerState::Off => Some(PowerTo::Off),
        PowerState::Changing => None,
    }
}

/// All differences from the expected state.
fn wrongs(
    sight: &Sight,
    firmware: &BTreeMap<String, String>,
    power: Option<PowerTo>,
) -> Vec<String> {
    let mut wrong = Vec::new();
    if let Some(wanted) = power
        && power_to(sight.power) != Some(wanted)
    {
        let wanted = wanted.as_str().to_ascii_lowercase();
        wrong.push(format!("power is {}, and should be {wanted}", sight.power.as_str()));
    }
    for (component, wanted) in firmware {
        match sight.components.find(component) {
            Ok(found) if found.version == *wanted => {}
            Ok(found) => {
                wrong.push(format!(
                    "{component} is at {}, and should be at {wanted}",
                    found.version
                ));
            }
            Err(fault) => wrong.push(fault.said),
        }
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::redfish::Firmware;

    fn sight(power: PowerState, versions: &[(&str, &str)]) -> Sight {
        let list = versions.iter().map(|(id, version)| Firmware {
            id: (*id).into(),
            version: (*version).into(),
            ..Firmware::default()
        });
        let components = Components { list: list.collect(), ..Components::default() };
        Sight { power, identity: Identity::default(), components }
    }

    #[test]
    fn everything_that_is_wrong_is_said() {
        let seen = sight(PowerState::Off, &[("BMC", "1"), ("FPGA", "7")]);
        let wanted = |pairs: &[(&str, &str)]| {
            pairs.iter().map(|(one, two)| ((*one).to_owned(), (*two).to_owned())).collect()
        };
        for (firmware, power, expected) in [
            (vec![], None, vec![]),
            (vec![("BMC", "1"), ("FPGA", "7")], Some(PowerTo::Off), vec![]),
            (
                vec![("BMC", "2"), ("CPLD", "1")],
                Some(PowerTo::On),
                vec![
                    "power is off, and should be on",
                    "BMC is at 1, and should be at 2",
                    "the device has no firmware component \"CPLD\"; it has BMC, FPGA",
                ],
            ),
        ] {
            assert_eq!(wrongs(&seen, &wanted(&firmware), power), expected);
        }
        let between =
            wrongs(&sight(PowerState::Changing, &[]), &BTreeMap::new(), Some(PowerTo::On));
        assert_eq!(between, ["power is changing, and should be on"]);
    }

    /// Otherwise the version that was installed under the catalogue's name would never be updated.
    #[test]
    fn what_was_asked_for_by_name_is_known_by_that_name() {
        let mut seen = sight(PowerState::On, &[("BIOS_0", "1.4"), ("BMC_0", "2.0")]);
        seen.components.list[0].name = Some("BIOS".into());
        let mut known = Facts::default();
        known.firmware.insert("BIOS".into(), "1.5".into());
        known.learn(&facts_of(&seen, &["BIOS".to_owned(), "CPLD".to_owned()]));
        let versions: Vec<_> =
            known.firmware.iter().map(|(one, two)| (one.as_str(), two.as_str())).collect();
        assert_eq!(versions, [("BIOS", "1.4"), ("BIOS_0", "1.4"), ("BMC_0", "2.0")]);
    }

    #[test]
    fn what_a_device_says_is_kept_in_measure() {
        let long = "x".repeat(MAX_FACT + 10);
        let facts = facts_of(&sight(PowerState::On, &[("BMC", &long)]), []);
        assert_eq!(facts.firmware["BMC"].len(), MAX_FACT);
        assert_eq!(facts.power, Some(PowerTo::On));
        assert_eq!(facts.serial, "");
    }
}
