//! The record of a machine in MAAS: find or create, update, delete.

use super::annotations::{self, AnnotationOwner};
use super::checkpoint::OrderCheckpoint;
use super::executor::{StageExecutor, check_unlocked, done, outcome, upstream_state};
use crate::clock::now;
use crate::fault::possibly_happened;
use crate::maas::{Machine, MachineChange, NewMachine, PowerConfig, Status, TagChange};
use crate::port::{Target, hostname};
use model::effect::{CallResult, CallVerb, ProviderAnswer};
use model::fault::{Fault, FaultCode, Result};
use model::machine::Labels;
use model::node::MaasState;
use secrecy::{ExposeSecret, SecretString};
use std::collections::BTreeMap;

/// The architecture until commissioning, when MAAS detects it. A label of the site overrides it.
const ARCHITECTURE: &str = "amd64";
const ARCHITECTURE_LABEL: &str = "architecture";

impl StageExecutor<'_> {
    pub async fn create_or_find(&self, target: &Target) -> CallResult {
        let notes = self.call.checkpoints();
        match self.call.verb() {
            CallVerb::Perform => {
                let found = self.find_existing(target).await?;
                let before = found.as_ref().map_or(MaasState::Absent, upstream_state);
                self.call.record_first_observed(before).await?;
                let checkpoint = notes.begin(OrderCheckpoint::Begun).await?;
                self.create_or_update(target, found, checkpoint).await
            }
            CallVerb::Follow => match notes.recall().await? {
                None => Ok(ProviderAnswer::NeverStarted),
                Some(checkpoint) => {
                    let found = self.find_existing(target).await?;
                    self.create_or_update(target, found, checkpoint).await
                }
            },
            // The record may exist and not be updated yet.
            CallVerb::GetStatus => match notes.recall().await? {
                None => Ok(ProviderAnswer::NeverStarted),
                Some(_) => Ok(ProviderAnswer::UnderWay),
            },
            CallVerb::Observe => self.observe_record(target).await,
            CallVerb::Stop => self.call.stop_idempotent().await,
        }
    }

    /// The record of the machine, of any maker. Refuses another node's.
    async fn find_existing(&self, target: &Target) -> Result<Option<Machine>> {
        let found = match self.try_locate().await? {
            Some(machine) => Some(machine),
            // The stored record was removed; the machine may have a new one.
            None => self.search(target).await?,
        };
        if let Some(machine) = &found {
            self.refuse_foreign_record(machine).await?;
        }
        Ok(found)
    }

    async fn refuse_foreign_record(&self, machine: &Machine) -> Result<()> {
        let own = self.node.id();
        let made_for =
            annotations::parse_record_description(&machine.description).map(|(node, _)| node);
        let marked = match self.call.annotation_owner(machine, Some(&own)).await? {
            AnnotationOwner::OtherNode(other) => Some(other),
            AnnotationOwner::ThisRun | AnnotationOwner::ThisNode => return Ok(()),
            AnnotationOwner::Unmarked => None,
        };
        let other = match (marked, made_for.filter(|node| *node != own)) {
            (Some(other), _) => other,
            (None, Some(other)) if self.call.node_exists(&other).await? => other,
            (None, _) => return Ok(()),
        };
        let message = format!(
            "{} ({}) has the machine's MAC address or serial number, and is {other}'s",
            machine.system_id, machine.hostname
        );
        Err(Fault::new(FaultCode::CandidatesConflict, message))
    }

    async fn observe_record(&self, target: &Target) -> CallResult {
        Ok(match self.find_existing(target).await? {
            Some(machine) => done(&machine, format!("MAAS has it as {}", machine.system_id)),
            None => ProviderAnswer::Differs("MAAS has no such machine".into()),
        })
    }

    async fn create_or_update(
        &self,
        target: &Target,
        found: Option<Machine>,
        checkpoint: OrderCheckpoint,
    ) -> CallResult {
        let power = self.power_config(target).await?;
        let (id, how) = match found {
            None => (self.create(target, power, &checkpoint).await?.system_id, "made"),
            Some(machine) => {
                self.update_record(&machine, power).await?;
                (machine.system_id, "found")
            }
        };
        let machine = self.call.maas().machine(&id).await?;
        let machine = self.add_tags(machine).await?;
        Ok(done(&machine, format!("{id} was {how} in MAAS, which has it as {}", machine.status)))
    }

    /// Puts the tags of the site on the machine. Those that MAAS does not have are created.
    async fn add_tags(&self, machine: Machine) -> Result<Machine> {
        let wanted = &self.site.spec.tags;
        let missing: Vec<&String> =
            wanted.iter().filter(|tag| !machine.tags.contains(tag)).collect();
        if missing.is_empty() {
            return Ok(machine);
        }
        let (maas, id) = (self.call.maas(), machine.system_id.clone());
        let known: Vec<String> = maas.tags().await?.into_iter().map(|tag| tag.name).collect();
        let add = TagChange { add: vec![id.clone()], remove: Vec::new() };
        for tag in missing {
            if !known.contains(tag) {
                maas.create_tag(tag, "Made by Farrier").await?;
            }
            self.call.journal.write_line(format!("maas: {id} gets the tag {tag}")).await;
            maas.tag_machines(tag, &add).await?;
        }
        let now = maas.machine(&id).await?;
        match wanted.iter().find(|tag| !now.tags.contains(tag)) {
            None => Ok(now),
            Some(tag) => {
                let message = format!("{id} does not have the tag {tag:?}");
                Err(Fault::new(FaultCode::ReadBackDiffers, message))
            }
        }
    }

    async fn create(
        &self,
        target: &Target,
        power: Option<PowerConfig>,
        checkpoint: &OrderCheckpoint,
    ) -> Result<Machine> {
        let macs = target.spec.mac_addresses.clone();
        let id = &target.id;
        if macs.is_empty() {
            let message = format!(
                "the machine has no mac_addresses, and MAAS knows machines by them; \
                 add them with `farrier machine update {id} --mac …`"
            );
            return Err(Fault::new(FaultCode::NotSupported, message));
        }
        let named = |name: &String| Some(name.clone()).filter(|name| !name.is_empty());
        let spec = &self.site.spec;
        let new = NewMachine {
            architecture: architecture(&self.site.head.labels),
            macs,
            hostname: Some(hostname(target.id.as_str())),
            power: power.unwrap_or(PowerConfig::Manual),
            pool: named(&spec.pool),
            zone: named(&spec.zone),
            description: Some(annotations::record_description(&self.node.id(), self.call.key())),
            commission: false,
        };
        self.call
            .journal
            .write_line(format!("maas: {id} is made known by {}", new.macs.join(", ")))
            .await;
        self.call
            .checkpoints()
            .compare_and_swap(checkpoint, &OrderCheckpoint::Requested { at: now() })
            .await?;
        self.call.maas().create(&new).await
    }

    /// Updates the record to the site's settings while the machine is unused.
    async fn update_record(&self, machine: &Machine, power: Option<PowerConfig>) -> Result<()> {
        let unused = machine.status == Status::FailedTesting && !machine.is_taken();
        let idle = unused
            || matches!(machine.status, Status::New | Status::Ready | Status::FailedCommissioning);
        if !idle || machine.locked {
            return Ok(());
        }
        let differs = |desired: &String, is: &str| {
            Some(desired.clone()).filter(|desired| !desired.is_empty() && desired != is)
        };
        let spec = &self.site.spec;
        let mut change = MachineChange {
            pool: differs(&spec.pool, &machine.pool.name),
            zone: differs(&spec.zone, &machine.zone.name),
            ..MachineChange::default()
        };
        // A machine without a BMC in Farrier keeps its power settings in MAAS.
        if let Some(power @ (PowerConfig::Redfish(_) | PowerConfig::Ipmi(_))) = power {
            let now = self.call.maas().power_parameters(&machine.system_id).await?;
            if machine.power_type != power.kind() || power_differs(&power, &now) {
                change.power = Some(power);
            }
        }
        if change.pool.is_none() && change.zone.is_none() && change.power.is_none() {
            return Ok(());
        }
        let what =
            format!("maas: {} gets its pool, zone and power as the site wants", machine.system_id);
        self.call.journal.write_line(what).await;
        let now = self.call.maas().update(&machine.system_id, &change).await?;
        let still = [(&change.pool, &now.pool.name), (&change.zone, &now.zone.name)];
        match still
            .iter()
            .find(|(desired, is)| desired.as_ref().is_some_and(|desired| desired != *is))
        {
            None => Ok(()),
            Some((desired, is)) => {
                let message = format!("{} is in {is:?}, and not in {desired:?}", machine.system_id);
                Err(Fault::new(FaultCode::ReadBackDiffers, message))
            }
        }
    }

    pub async fn remove_record(&self) -> CallResult {
        let gone = || self.record_gone("MAAS has no record of it");
        if self.site.spec.keep_in_maas {
            let stored = async {
                Ok(match self.try_locate().await? {
                    None => self.record_gone_outcome("MAAS has no record of it"),
                    Some(machine) => {
                        outcome(&machine, "its record stays in MAAS, as the site wants")
                    }
                })
            };
            return self.run_read_only(stored).await;
        }
        let notes = self.call.checkpoints();
        match self.call.verb() {
            CallVerb::Perform => {
                let Some(machine) = self.try_locate().await? else { return Ok(gone()) };
                let checkpoint = notes.begin(OrderCheckpoint::Begun).await?;
                self.delete_record(&machine, &checkpoint).await
            }
            CallVerb::Follow => match (notes.recall().await?, self.try_locate().await?) {
                (None, _) => Ok(ProviderAnswer::NeverStarted),
                (Some(_), None) => Ok(gone()),
                (Some(checkpoint), Some(machine)) => {
                    self.delete_record(&machine, &checkpoint).await
                }
            },
            CallVerb::GetStatus => match (notes.recall().await?, self.try_locate().await?) {
                (None, _) => Ok(ProviderAnswer::NeverStarted),
                (Some(_), None) => Ok(gone()),
                (Some(_), Some(_)) => Ok(ProviderAnswer::UnderWay),
            },
            CallVerb::Observe => Ok(match self.try_locate().await? {
                None => gone(),
                Some(machine) => {
                    ProviderAnswer::Differs(format!("MAAS has it as {}", machine.system_id))
                }
            }),
            CallVerb::Stop => match (notes.recall().await?, self.try_locate().await?) {
                (Some(_), None) => Ok(gone()),
                (None, _) | (Some(_), Some(_)) => self.call.stop_idempotent().await,
            },
        }
    }

    pub(super) async fn delete_record(
        &self,
        machine: &Machine,
        checkpoint: &OrderCheckpoint,
    ) -> CallResult {
        check_unlocked(machine)?;
        self.call.check_unused(machine, &self.node.id()).await?;
        let id = &machine.system_id;
        self.call.journal.write_line(format!("maas: {id} is deleted")).await;
        self.call
            .checkpoints()
            .compare_and_swap(checkpoint, &OrderCheckpoint::Requested { at: now() })
            .await?;
        match self.call.maas().delete(id).await {
            Ok(()) => {}
            Err(fault) if fault.code == FaultCode::MaasMachineGone => {}
            Err(fault) => return Err(fault),
        }
        match self.call.maas().machine(id).await {
            Err(fault) if fault.code == FaultCode::MaasMachineGone => {
                Ok(self.record_gone(&format!("{id} was deleted in MAAS")))
            }
            // It was asked to be deleted: a failed read does not show that it is still there.
            Err(fault) => Err(possibly_happened(fault)),
            Ok(_) => Err(Fault::new(FaultCode::ReadBackDiffers, format!("{id} is still in MAAS"))),
        }
    }
}

fn architecture(labels: &Labels) -> String {
    let name = labels.get(ARCHITECTURE_LABEL).map_or(ARCHITECTURE, String::as_str);
    format!("{name}/generic")
}

/// True if MAAS has other power settings than desired.
fn power_differs(desired: &PowerConfig, now: &BTreeMap<String, SecretString>) -> bool {
    let (PowerConfig::Redfish(bmc) | PowerConfig::Ipmi(bmc)) = desired else { return false };
    let is = |name: &str| now.get(name).map_or("", |value| value.expose_secret());
    is("power_address") != bmc.address
        || is("power_user") != bmc.user
        || is("power_pass") != bmc.password.expose_secret()
        || bmc.extra_parameters.iter().any(|(name, value)| is(name) != value)
}
