//! The record of a machine in MAAS: find or create, update, delete.

use super::checkpoint::OrderCheckpoint;
use super::hand::{Work, done, outcome, state, unlocked};
use super::marks::{self, Whose};
use crate::clock::now;
use crate::maas::{Change, Machine, NewMachine, Power, Status};
use crate::port::{Target, hostname};
use model::effect::{Answer, Verb};
use model::fault::{Code, Fault};
use model::machine::Labels;
use model::node::Upstream;
use secrecy::{ExposeSecret, SecretString};
use std::collections::BTreeMap;

/// Until commissioning, when MAAS detects it. A label of the site overrides it.
const ARCHITECTURE: &str = "amd64";
const ARCHITECTURE_LABEL: &str = "architecture";

impl Work<'_> {
    pub async fn make(&self, target: &Target) -> Result<Answer, Fault> {
        let notes = self.hand.notes();
        match self.hand.verb() {
            Verb::Perform => {
                let found = self.known(target).await?;
                let before = found.as_ref().map_or(Upstream::Absent, state);
                self.hand.see_first(before).await?;
                let memo = notes.begin(OrderCheckpoint::Begun).await?;
                self.make_or_adjust(target, found, memo).await
            }
            Verb::Follow => match notes.recall().await? {
                None => Ok(Answer::NeverStarted),
                Some(memo) => {
                    let found = self.known(target).await?;
                    self.make_or_adjust(target, found, memo).await
                }
            },
            // The record may exist and not be updated yet.
            Verb::GetStatus => match notes.recall().await? {
                None => Ok(Answer::NeverStarted),
                Some(_) => Ok(Answer::UnderWay),
            },
            Verb::Observe => self.has_record(target).await,
            Verb::Stop => self.hand.stop_begun().await,
        }
    }

    /// The record of the machine, of any maker. Refuses another node's.
    async fn known(&self, target: &Target) -> Result<Option<Machine>, Fault> {
        let found = match self.there().await? {
            Some(machine) => Some(machine),
            // The stored record was removed; the machine may have a new one.
            None => self.search(target).await?,
        };
        if let Some(machine) = &found {
            self.refuse_others(machine).await?;
        }
        Ok(found)
    }

    async fn refuse_others(&self, machine: &Machine) -> Result<(), Fault> {
        let own = self.node.id();
        let made_for = marks::maker(&machine.description).map(|(node, _)| node);
        let marked = match self.hand.whose(machine, Some(&own)).await? {
            Whose::Other(other) => Some(other),
            Whose::ThisRun | Whose::ThisNode => return Ok(()),
            Whose::Nobody => None,
        };
        let other = match (marked, made_for.filter(|node| *node != own)) {
            (Some(other), _) => other,
            (None, Some(other)) if self.hand.lives(&other).await? => other,
            (None, _) => return Ok(()),
        };
        let said = format!(
            "{} ({}) has the machine's MAC address or serial number, and is {other}'s",
            machine.system_id, machine.hostname
        );
        Err(Fault::new(Code::CandidatesConflict, said))
    }

    async fn has_record(&self, target: &Target) -> Result<Answer, Fault> {
        Ok(match self.known(target).await? {
            Some(machine) => done(&machine, format!("MAAS has it as {}", machine.system_id)),
            None => Answer::Differs("MAAS has no such machine".into()),
        })
    }

    async fn make_or_adjust(
        &self,
        target: &Target,
        found: Option<Machine>,
        memo: OrderCheckpoint,
    ) -> Result<Answer, Fault> {
        let power = self.power(target).await?;
        let (id, how) = match found {
            None => (self.create(target, power, &memo).await?.system_id, "made"),
            Some(machine) => {
                self.adjust(&machine, power).await?;
                (machine.system_id, "found")
            }
        };
        let machine = self.hand.maas().machine(&id).await?;
        Ok(done(&machine, format!("{id} was {how} in MAAS, which has it as {}", machine.status)))
    }

    async fn create(
        &self,
        target: &Target,
        power: Option<Power>,
        memo: &OrderCheckpoint,
    ) -> Result<Machine, Fault> {
        let macs = target.spec.mac_addresses.clone();
        let id = &target.id;
        if macs.is_empty() {
            let said = format!(
                "the machine has no mac_addresses, and MAAS knows machines by them; \
                 add them with `farrier machine update {id} --mac …`"
            );
            return Err(Fault::new(Code::NotSupported, said));
        }
        let named = |name: &String| Some(name.clone()).filter(|name| !name.is_empty());
        let spec = &self.site.spec;
        let new = NewMachine {
            architecture: architecture(&self.site.head.labels),
            macs,
            hostname: Some(hostname(target.id.as_str())),
            power: power.unwrap_or(Power::Manual),
            pool: named(&spec.pool),
            zone: named(&spec.zone),
            description: Some(marks::made_for(&self.node.id(), self.hand.key())),
            commission: false,
        };
        self.hand
            .journal
            .line(format!("maas: {id} is made known by {}", new.macs.join(", ")))
            .await;
        self.hand.notes().compare_and_swap(memo, &OrderCheckpoint::Asked { at: now() }).await?;
        self.hand.maas().create(&new).await
    }

    /// Updates the record to the site's settings while the machine is unused.
    async fn adjust(&self, machine: &Machine, power: Option<Power>) -> Result<(), Fault> {
        let unused = machine.status == Status::FailedTesting && !machine.is_taken();
        let idle = unused
            || matches!(machine.status, Status::New | Status::Ready | Status::FailedCommissioning);
        if !idle || machine.locked {
            return Ok(());
        }
        let differs = |wanted: &String, is: &str| {
            Some(wanted.clone()).filter(|wanted| !wanted.is_empty() && wanted != is)
        };
        let spec = &self.site.spec;
        let mut change = Change {
            pool: differs(&spec.pool, &machine.pool.name),
            zone: differs(&spec.zone, &machine.zone.name),
            ..Change::default()
        };
        // A machine without a BMC in Farrier keeps its power settings in MAAS.
        if let Some(power @ (Power::Redfish(_) | Power::Ipmi(_))) = power {
            let now = self.hand.maas().power_parameters(&machine.system_id).await?;
            if machine.power_type != power.kind() || other_power(&power, &now) {
                change.power = Some(power);
            }
        }
        if change.pool.is_none() && change.zone.is_none() && change.power.is_none() {
            return Ok(());
        }
        let what =
            format!("maas: {} gets its pool, zone and power as the site wants", machine.system_id);
        self.hand.journal.line(what).await;
        let now = self.hand.maas().update(&machine.system_id, &change).await?;
        let still = [(&change.pool, &now.pool.name), (&change.zone, &now.zone.name)];
        match still.iter().find(|(wanted, is)| wanted.as_ref().is_some_and(|wanted| wanted != *is))
        {
            None => Ok(()),
            Some((wanted, is)) => {
                let said = format!("{} is in {is:?}, and not in {wanted:?}", machine.system_id);
                Err(Fault::new(Code::ReadBackDiffers, said))
            }
        }
    }

    pub async fn remove_record(&self) -> Result<Answer, Fault> {
        let gone = || self.gone("MAAS has no record of it");
        if self.site.spec.keep_in_maas {
            let kept = async {
                Ok(match self.there().await? {
                    None => self.absent("MAAS has no record of it"),
                    Some(machine) => {
                        outcome(&machine, "its record stays in MAAS, as the site wants")
                    }
                })
            };
            return self.only_look(kept).await;
        }
        let notes = self.hand.notes();
        match self.hand.verb() {
            Verb::Perform => {
                let Some(machine) = self.there().await? else { return Ok(gone()) };
                let memo = notes.begin(OrderCheckpoint::Begun).await?;
                self.forget(&machine, &memo).await
            }
            Verb::Follow => match (notes.recall().await?, self.there().await?) {
                (None, _) => Ok(Answer::NeverStarted),
                (Some(_), None) => Ok(gone()),
                (Some(memo), Some(machine)) => self.forget(&machine, &memo).await,
            },
            Verb::GetStatus => match (notes.recall().await?, self.there().await?) {
                (None, _) => Ok(Answer::NeverStarted),
                (Some(_), None) => Ok(gone()),
                (Some(_), Some(_)) => Ok(Answer::UnderWay),
            },
            Verb::Observe => Ok(match self.there().await? {
                None => gone(),
                Some(machine) => Answer::Differs(format!("MAAS has it as {}", machine.system_id)),
            }),
            Verb::Stop => match (notes.recall().await?, self.there().await?) {
                (Some(_), None) => Ok(gone()),
                (None, _) | (Some(_), Some(_)) => self.hand.stop_begun().await,
            },
        }
    }

    pub(super) async fn forget(
        &self,
        machine: &Machine,
        memo: &OrderCheckpoint,
    ) -> Result<Answer, Fault> {
        unlocked(machine)?;
        self.hand.unused(machine, &self.node.id()).await?;
        let id = &machine.system_id;
        self.hand.journal.line(format!("maas: {id} is deleted")).await;
        self.hand.notes().compare_and_swap(memo, &OrderCheckpoint::Asked { at: now() }).await?;
        match self.hand.maas().delete(id).await {
            Ok(()) => {}
            Err(fault) if fault.code == Code::MaasMachineGone => {}
            Err(fault) => return Err(fault),
        }
        match self.hand.maas().machine(id).await {
            Err(fault) if fault.code == Code::MaasMachineGone => {
                Ok(self.gone(&format!("{id} was deleted in MAAS")))
            }
            Err(fault) => Err(fault),
            Ok(_) => Err(Fault::new(Code::ReadBackDiffers, format!("{id} is still in MAAS"))),
        }
    }
}

fn architecture(labels: &Labels) -> String {
    let name = labels.get(ARCHITECTURE_LABEL).map_or(ARCHITECTURE, String::as_str);
    format!("{name}/generic")
}

/// Whether MAAS has other power settings than desired.
fn other_power(wanted: &Power, now: &BTreeMap<String, SecretString>) -> bool {
    let (Power::Redfish(bmc) | Power::Ipmi(bmc)) = wanted else { return false };
    let is = |name: &str| now.get(name).map_or("", |value| value.expose_secret());
    is("power_address") != bmc.address
        || is("power_user") != bmc.user
        || is("power_pass") != bmc.password.expose_secret()
        || bmc.more.iter().any(|(name, value)| is(name) != value)
}
