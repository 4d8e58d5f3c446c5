//! Machines that are not nodes, with MAAS in place of a BMC: `maas://SITE/SYSTEM_ID`. They are
//! powered, installed and probed through the region of that site.

use super::MaasProvider;
use super::checkpoint::{OrderCheckpoint, two_effects};
use super::hand::{Hand, disagrees, done, has, state};
use super::power::Switch;
use super::reinstall::{Anew, FIRST, Round, What};
use crate::fault::possibly_happened;
use crate::host_probe::{HOST_TIMEOUT, probe_host};
use crate::inspect::{Inspection, Inspector};
use crate::maas::{Deploy, EventQuery, MaasPowerState, Machine, Status};
use crate::port::{Journal, Target};
use crate::power::{PowerGoal, PowerState};
use crate::redfish::{Disk, Inventory, LogEntry, Nic};
use async_trait::async_trait;
use model::condition::{ConditionType, Evidence};
use model::effect::{
    Answer, Effect, Order, Outcome, PowerOffPolicy, PowerTo, RebootMode, RmaAction, Verb,
};
use model::fault::{Code, Fault};
use model::id::SiteId;
use model::machine::MachineSpec;
use model::node::Upstream;
use model::refusal::Refusal;
use std::time::Duration;

const FIELD: &str = "machine.spec.bmc_endpoint";
const SCHEME: &str = "maas://";
const INSTEAD: &str = "write maas://SITE/SYSTEM_ID, as `farrier site list` and MAAS call them";
/// The time limit of an installation whose step has none.
const LIMIT: Duration = Duration::from_secs(4 * 3_600);

/// The site of a machine and its system id there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    site: SiteId,
    system_id: String,
}

/// Whether the machine is reached through MAAS instead of a BMC.
pub(super) fn is_ours(spec: &MachineSpec) -> bool {
    spec.bmc_endpoint.starts_with(SCHEME)
}

/// The system id from the inventory, if the machine is at this site.
pub(super) fn system_id_at(spec: &MachineSpec, site: &SiteId) -> Option<String> {
    place(&spec.bmc_endpoint).ok().filter(|at| at.site == *site).map(|at| at.system_id)
}

pub(super) fn place(endpoint: &str) -> Result<Place, Refusal> {
    if endpoint.is_empty() {
        return Err(Refusal::missing(FIELD));
    }
    let wrong = |problem: String| Err(Refusal::invalid(FIELD, problem, INSTEAD));
    let Some(rest) = endpoint.strip_prefix(SCHEME) else {
        return wrong(format!(
            "{endpoint:?} does not begin with {SCHEME}, and the provider is maas"
        ));
    };
    let Some((site, system_id)) = rest.split_once('/') else {
        return wrong(format!("{endpoint:?} has no system id behind its site"));
    };
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    if system_id.is_empty() || !system_id.chars().all(plain) {
        return wrong(format!("{endpoint:?} has no system id that MAAS could have given"));
    }
    match SiteId::parse_field(site, FIELD) {
        Ok(site) => Ok(Place { site, system_id: system_id.to_owned() }),
        Err(_) => wrong(format!("{endpoint:?} names no site")),
    }
}

/// Executes one provider call for one machine.
pub(super) struct Errand<'a> {
    hand: Hand<'a>,
    system_id: String,
}

impl<'a> Errand<'a> {
    pub async fn open(
        at: &'a MaasProvider,
        target: &Target,
        order: &'a Order,
        journal: &'a Journal,
    ) -> Result<Self, Fault> {
        let Place { site, system_id } = at.place(target)?;
        let site = at.store.site(&site).await?;
        let open = at.sites.open(&site).await?;
        Ok(Self { hand: Hand { at, open, order, journal, limit: LIMIT }, system_id })
    }

    pub async fn carry_out(&self) -> Result<Answer, Fault> {
        match &self.hand.order.effect {
            Effect::Reboot { mode: RebootMode::Bmc, power_off } => {
                self.switch(PowerGoal::Cycle, *power_off).await
            }
            Effect::Power { to: PowerTo::On, power_off } => {
                self.switch(PowerGoal::On, *power_off).await
            }
            Effect::Power { to: PowerTo::Off, power_off }
            | Effect::Rma { action: RmaAction::PowerOff, power_off } => {
                self.switch(PowerGoal::Off, *power_off).await
            }
            Effect::Repave { image } => self.repave(image).await,
            Effect::Netboot { .. } => {
                Ok(self.said("MAAS boots it over the network itself whenever it has to"))
            }
            Effect::Verify { advisory: true, .. } => Ok(self.said("MAAS knows of no clusters")),
            Effect::Rma { action: RmaAction::Mark, .. } => {
                Ok(match self.said("marked for return to the vendor") {
                    Answer::Done(seen) => Answer::Done(Outcome {
                        evidence: vec![Evidence::new(ConditionType::Rma, true, "RmaRun")],
                        ..seen
                    }),
                    other => other,
                })
            }
            Effect::Rma { action: RmaAction::Record, .. } => self.record().await,
            Effect::Reboot { mode: RebootMode::InBand, .. }
            | Effect::Ssh { .. }
            | Effect::Join { .. }
            | Effect::Leave { .. }
            | Effect::Verify { .. }
            | Effect::Net { .. }
            | Effect::Drain { .. }
            | Effect::Uncordon { .. }
            | Effect::Device { .. }
            | Effect::Stage { .. }
            | Effect::Parts { .. } => {
                let said =
                    format!("no machine is asked {} through MAAS", self.hand.order.effect.word());
                Err(Fault::new(Code::NotSupported, said))
            }
        }
    }

    /// An effect that needs no action at MAAS.
    fn said(&self, said: &str) -> Answer {
        match self.hand.verb() {
            Verb::Stop => Answer::Stopped,
            Verb::Perform | Verb::Follow | Verb::GetStatus | Verb::Observe => {
                Answer::Done(Outcome { said: said.into(), ..Outcome::default() })
            }
        }
    }

    async fn machine(&self) -> Result<Machine, Fault> {
        self.hand.maas().machine(&self.system_id).await
    }

    async fn switch(&self, goal: PowerGoal, power_off: PowerOffPolicy) -> Result<Answer, Fault> {
        let machine = self.machine().await?;
        Switch { hand: &self.hand, system_id: &self.system_id, power_off }
            .lead(goal, &machine)
            .await
    }

    /// Logs the identity of the machine and its parts before it is returned.
    async fn record(&self) -> Result<Answer, Fault> {
        match self.hand.verb() {
            Verb::Perform | Verb::Follow => {}
            Verb::GetStatus => return Ok(Answer::NeverStarted),
            Verb::Observe => {
                return Ok(Answer::Differs("a record taken earlier cannot be observed".into()));
            }
            Verb::Stop => return Ok(Answer::Stopped),
        }
        let machine = self.machine().await?;
        let inventory = inventory(&machine);
        for disk in &inventory.disks {
            let serial = disk.serial.as_deref().unwrap_or("unknown");
            self.hand.journal.line(format!("record: disk {} serial {serial}", disk.id)).await;
        }
        for nic in &inventory.nics {
            self.hand.journal.line(format!("record: nic {} {}", nic.id, nic.mac)).await;
        }
        let text = |text: Option<String>| text.unwrap_or_else(|| "unknown".into());
        let (model, serial) = (text(inventory.model), text(inventory.serial));
        Ok(done(&machine, format!("model {model}, serial {serial}; {}", has(&machine))))
    }

    async fn repave(&self, image: &str) -> Result<Answer, Fault> {
        let notes = self.hand.notes();
        match self.hand.verb() {
            Verb::Perform => {
                let deploy = deployment(image, self.hand.key().as_str())?;
                self.refuse_nodes().await?;
                let memo = notes.begin(FIRST).await?;
                self.install(&deploy, memo).await.map_err(possibly_happened)
            }
            Verb::Follow => match notes.recall().await? {
                None => Ok(Answer::NeverStarted),
                Some(memo) => {
                    let deploy = deployment(image, self.hand.key().as_str())?;
                    self.install(&deploy, memo).await.map_err(possibly_happened)
                }
            },
            Verb::GetStatus => match notes.recall().await? {
                None => Ok(Answer::NeverStarted),
                Some(memo) => match self.machine().await {
                    Ok(machine) => Ok(self.hand.left_at(&machine, &memo, None)),
                    Err(fault) if fault.code == Code::MaasMachineGone => Ok(Answer::UnderWay),
                    Err(fault) => Err(fault),
                },
            },
            Verb::Observe => {
                let machine = self.machine().await?;
                let runs = format!("{}/{}", machine.osystem, machine.distro_series);
                Ok(match state(&machine) == Upstream::Deployed && runs == image {
                    true => done(&machine, format!("{}, with {image}", has(&machine))),
                    false => Answer::Differs(format!("{}, with {runs}", has(&machine))),
                })
            }
            Verb::Stop => {
                let machine = match self.machine().await {
                    Ok(machine) => Some(machine),
                    Err(fault) if fault.code == Code::MaasMachineGone => None,
                    Err(fault) => return Err(fault),
                };
                self.hand.stop_round(machine, None).await
            }
        }
    }

    /// A node in service is reinstalled only through its decommission.
    async fn refuse_nodes(&self) -> Result<(), Fault> {
        let machine = self.machine().await?;
        match super::marks::node_of(&machine) {
            Some(node) if self.hand.lives(&node).await? => {
                let instead =
                    format!("it is {node}: `farrier node decommission {node} --mode reimage`");
                Err(disagrees(&machine, &instead))
            }
            Some(_) | None => Ok(()),
        }
    }

    async fn install(&self, deploy: &Deploy, memo: OrderCheckpoint) -> Result<Answer, Fault> {
        let OrderCheckpoint::Reinstall { round, leg } = memo else { return Err(two_effects()) };
        let what = What::Image(deploy);
        let anew = Anew { system_id: &self.system_id, node: None, what };
        match self.hand.round(&anew, (round, leg)).await? {
            Round { machine, installed: true, .. } => Ok(match done(&machine, has(&machine)) {
                Answer::Done(seen) => Answer::Done(Outcome {
                    evidence: vec![Evidence::new(ConditionType::Provisioned, true, "Imaged")],
                    ..seen
                }),
                other => other,
            }),
            Round { machine, installed: false, .. } => {
                self.hand.tell_events(&self.system_id).await?;
                Err(Fault::new(Code::DeployFailed, has(&machine)))
            }
        }
    }
}

fn deployment(image: &str, comment: &str) -> Result<Deploy, Fault> {
    match image.split_once('/') {
        Some((system, release)) if !system.is_empty() && !release.is_empty() => Ok(Deploy {
            osystem: Some(system.to_owned()),
            distro_series: Some(release.to_owned()),
            comment: Some(comment.to_owned()),
            ..Deploy::default()
        }),
        Some(_) | None => {
            let said =
                format!("{image:?} is no image of MAAS; write what it calls it: ubuntu/jammy");
            Err(Fault::new(Code::ImageUnknown, said))
        }
    }
}

impl MaasProvider {
    fn place(&self, target: &Target) -> Result<Place, Fault> {
        place(&target.spec.bmc_endpoint)
            .map_err(|refusal| Fault::new(Code::NotSupported, refusal.said))
    }

    async fn machine_of(
        &self,
        target: &Target,
    ) -> Result<(std::sync::Arc<super::sites::Open>, Machine), Fault> {
        let Place { site, system_id } = self.place(target)?;
        let open = self.sites.open(&self.store.site(&site).await?).await?;
        let machine = open.maas.machine(&system_id).await?;
        Ok((open, machine))
    }

    /// Probes the machine through MAAS and the host itself. An unreachable region proves nothing.
    pub(super) async fn look_at(&self, target: &Target) -> Result<Vec<Evidence>, Fault> {
        let (bmc, host) = tokio::join!(
            self.machine_of(target),
            probe_host(&target.spec.ssh_endpoint, HOST_TIMEOUT)
        );
        let condition = ConditionType::BmcReachable;
        let bmc = match bmc {
            Ok((_, machine)) => match machine.power_state {
                MaasPowerState::On | MaasPowerState::Off => {
                    Some(Evidence::new(condition, true, "Answers"))
                }
                MaasPowerState::Error => {
                    Some(Evidence::new(condition, false, "MAAS cannot ask its BMC"))
                }
                MaasPowerState::Unknown => None,
            },
            Err(fault) if fault.code == Code::MaasMachineGone => {
                Some(Evidence::new(condition, false, fault.code.as_str()))
            }
            Err(fault) if host.is_none() => return Err(fault),
            Err(_) => None,
        };
        Ok(bmc.into_iter().chain(host).collect())
    }
}

#[async_trait]
impl Inspector for MaasProvider {
    async fn inspect(&self, target: &Target) -> Result<Inspection, Fault> {
        let (_, machine) = self.machine_of(target).await?;
        let power = shown(machine.power_state);
        let boot =
            (machine.status != Status::Deployed).then(|| "network, as MAAS wants".to_owned());
        Ok(Inspection { inventory: inventory(&machine), power, boot, health: None })
    }

    async fn event_log(&self, target: &Target, count: usize) -> Result<Vec<LogEntry>, Fault> {
        let (open, machine) = self.machine_of(target).await?;
        let query = EventQuery { system_id: machine.system_id, ..EventQuery::default() };
        let events = open.maas.events(&query).await?.events;
        let entry = |event: &crate::maas::Event| LogEntry {
            id: event.id.to_string(),
            log: "MAAS".into(),
            at: None,
            severity: Some(event.level.clone()).filter(|level| !level.is_empty()),
            message: format!("{} {}: {}", event.created, event.kind, event.description),
        };
        Ok(events.iter().rev().take(count).map(entry).collect())
    }

    async fn power_now(&self, target: &Target) -> Result<PowerState, Fault> {
        let (open, machine) = self.machine_of(target).await?;
        let now = open.maas.query_power_state(&machine.system_id).await?;
        shown(now).ok_or_else(|| {
            let said = format!("MAAS cannot tell whether {} is on", machine.system_id);
            Fault::new(Code::BmcUnreachable, said)
        })
    }
}

const fn shown(state: MaasPowerState) -> Option<PowerState> {
    match state {
        MaasPowerState::On => Some(PowerState::On),
        MaasPowerState::Off => Some(PowerState::Off),
        MaasPowerState::Unknown | MaasPowerState::Error => None,
    }
}

fn inventory(machine: &Machine) -> Inventory {
    let some = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    let disk = |disk: &crate::maas::BlockDevice| Disk {
        id: disk.name.clone(),
        model: some(&disk.model),
        serial: some(&disk.serial),
        capacity_bytes: Some(disk.size_bytes),
        ..Disk::default()
    };
    let nic = |card: &crate::maas::Interface| Nic {
        id: card.name.clone(),
        mac: card.mac_address.to_lowercase(),
        link_up: Some(card.link_connected),
        speed_mbps: Some(card.link_speed).filter(|speed| *speed > 0),
    };
    Inventory {
        vendor: some(&machine.hardware_info.system_vendor),
        model: some(&machine.hardware_info.system_product),
        serial: machine.serial().map(str::to_owned),
        uuid: machine.hardware_uuid.clone(),
        disks: machine.disks.iter().map(disk).collect(),
        nics: machine.interfaces.iter().map(nic).collect(),
        skipped: vec!["MAAS does not tell of processors, memory modules and firmware here".into()],
        ..Inventory::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_behind_maas_is_named_by_its_site_and_system_id() {
        let found = place("maas://site-east/abc123").unwrap();
        assert_eq!((found.site.as_str(), found.system_id.as_str()), ("site-east", "abc123"));
        let spec = |endpoint: &str| MachineSpec {
            bmc_endpoint: endpoint.into(),
            ..MachineSpec::default()
        };
        let east = SiteId::trusted("site-east");
        let known = system_id_at(&spec("maas://site-east/abc123"), &east);
        assert_eq!(known.as_deref(), Some("abc123"));
        assert_eq!(system_id_at(&spec("maas://site-west/abc123"), &east), None);
        assert_eq!(system_id_at(&spec("https://10.0.0.5"), &east), None);
        for wrong in [
            "",
            "10.0.0.5",
            "https://10.0.0.5",
            "maas://site-east",
            "maas://site-east/",
            "maas://east/abc123",
            "maas://site-east/abc/def",
            "maas://site-east/a b",
        ] {
            let refusal = place(wrong).unwrap_err();
            assert_eq!(refusal.field.as_deref(), Some(FIELD), "{wrong}");
            assert!(
                wrong.is_empty() || refusal.said.contains("maas://SITE/SYSTEM_ID"),
                "{refusal}"
            );
        }
    }

    #[test]
    fn an_image_is_a_system_and_a_release() {
        let deploy = deployment("ubuntu/jammy", "op-1").unwrap();
        assert_eq!(deploy.distro_series.as_deref(), Some("jammy"));
        for wrong in ["", "jammy", "/jammy", "ubuntu/"] {
            assert_eq!(deployment(wrong, "").unwrap_err().code, Code::ImageUnknown, "{wrong}");
        }
    }
}
