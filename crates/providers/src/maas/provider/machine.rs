//! Machines that are not nodes, with MAAS in place of a BMC: `maas://SITE/SYSTEM_ID`. They are
//! powered, installed and probed through the region of that site.

use super::MaasProvider;
use super::checkpoint::{OrderCheckpoint, checkpoint_mismatch};
use super::executor::{CallContext, describe_state, done, state_disagrees, upstream_state};
use super::failure::DEPLOYING_EVENT;
use super::power::PowerExecutor;
use super::reinstall::{FIRST_CHECKPOINT, InstallSource, ReinstallRequest, RoundResult};
use crate::fault::possibly_happened;
use crate::host_probe::{HOST_TIMEOUT, host_evidence, probe_host};
use crate::inspect::{Inspection, Inspector};
use crate::maas::{DeployRequest, EventQuery, MaasPowerState, Machine, Status, known};
use crate::port::{Journal, Target};
use crate::power::{PowerGoal, PowerState};
use crate::redfish::{Cpu, Disk, Inventory, LogEntry, Nic};
use async_trait::async_trait;
use model::condition::{ConditionObservation, ConditionType};
use model::effect::{
    CallOutcome, CallResult, CallVerb, DesiredPower, Effect, PowerOffPolicy, ProviderAnswer,
    ProviderCall, RebootMode, RmaAction,
};
use model::fault::{Fault, FaultCode, Result};
use model::id::SiteId;
use model::machine::MachineSpec;
use model::node::MaasState;
use model::refusal::Refusal;
use std::time::Duration;

const FIELD: &str = "machine.spec.bmc_endpoint";
const SCHEME: &str = "maas://";
const INSTEAD: &str = "write maas://SITE/SYSTEM_ID, as `farrier site list` and MAAS call them";
/// The time limit of an installation whose step has none.
const LIMIT: Duration = Duration::from_secs(4 * 3_600);

/// The site of a machine and its system id there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct MaasEndpoint {
    site: SiteId,
    system_id: String,
}

/// True if the machine is reached through MAAS instead of a BMC.
pub(super) fn is_maas_endpoint(spec: &MachineSpec) -> bool {
    spec.bmc_endpoint.starts_with(SCHEME)
}

/// The system id from the inventory, if the machine is at this site.
pub(super) fn system_id_at(spec: &MachineSpec, site: &SiteId) -> Option<String> {
    parse_endpoint(&spec.bmc_endpoint).ok().filter(|at| at.site == *site).map(|at| at.system_id)
}

pub(super) fn parse_endpoint(endpoint: &str) -> Result<MaasEndpoint, Refusal> {
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
        Ok(site) => Ok(MaasEndpoint { site, system_id: system_id.to_owned() }),
        Err(_) => wrong(format!("{endpoint:?} names no site")),
    }
}

/// Executes one provider call for one machine.
pub(super) struct MachineExecutor<'a> {
    call: CallContext<'a>,
    system_id: String,
}

impl<'a> MachineExecutor<'a> {
    pub async fn open(
        at: &'a MaasProvider,
        target: &Target,
        request: &'a ProviderCall,
        journal: &'a Journal,
    ) -> Result<Self> {
        let MaasEndpoint { site, system_id } = at.endpoint_of(target)?;
        let site = at.store.site(&site).await?;
        let open = at.sites.open(&site).await?;
        Ok(Self { call: CallContext::new(at, open, (request, journal), LIMIT), system_id })
    }

    pub async fn execute(&self) -> CallResult {
        match &self.call.request.effect {
            Effect::Reboot { mode: RebootMode::Bmc, power_off } => {
                self.set_power(PowerGoal::Cycle, *power_off).await
            }
            Effect::Power { to: DesiredPower::On, power_off } => {
                self.set_power(PowerGoal::On, *power_off).await
            }
            Effect::Power { to: DesiredPower::Off, power_off }
            | Effect::Rma { action: RmaAction::PowerOff, power_off } => {
                self.set_power(PowerGoal::Off, *power_off).await
            }
            Effect::Repave { image } => self.repave(image).await,
            Effect::Netboot { .. } => {
                Ok(self.nothing_to_do("MAAS boots it over the network itself whenever it has to"))
            }
            Effect::Verify { advisory: true, .. } => {
                Ok(self.nothing_to_do("MAAS knows of no clusters"))
            }
            Effect::Rma { action: RmaAction::Mark, .. } => {
                let mut answer = self.nothing_to_do("marked for return to the vendor");
                if let ProviderAnswer::Done(outcome) = &mut answer {
                    let marked = ConditionObservation::new(ConditionType::Rma, true, "RmaRun");
                    outcome.evidence = vec![marked];
                }
                Ok(answer)
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
            | Effect::ChildRuns { .. } => {
                let message =
                    format!("no machine is asked {} through MAAS", self.call.request.effect.name());
                Err(Fault::new(FaultCode::NotSupported, message))
            }
        }
    }

    /// An effect that needs no action at MAAS.
    fn nothing_to_do(&self, text: &str) -> ProviderAnswer {
        match self.call.verb() {
            CallVerb::Stop => ProviderAnswer::Stopped,
            CallVerb::Perform | CallVerb::Follow | CallVerb::GetStatus | CallVerb::Observe => {
                ProviderAnswer::Done(CallOutcome { message: text.into(), ..CallOutcome::default() })
            }
        }
    }

    async fn machine(&self) -> Result<Machine> {
        self.call.maas().machine(&self.system_id).await
    }

    async fn set_power(&self, goal: PowerGoal, power_off: PowerOffPolicy) -> CallResult {
        let machine = self.machine().await?;
        PowerExecutor { call: &self.call, system_id: &self.system_id, power_off }
            .execute(goal, &machine)
            .await
    }

    /// Logs the identity of the machine and its parts before it is returned.
    async fn record(&self) -> CallResult {
        match self.call.verb() {
            CallVerb::Perform | CallVerb::Follow => {}
            CallVerb::GetStatus => return Ok(ProviderAnswer::NeverStarted),
            CallVerb::Observe => {
                return Ok(ProviderAnswer::Differs(
                    "a record taken earlier cannot be observed".into(),
                ));
            }
            CallVerb::Stop => return Ok(ProviderAnswer::Stopped),
        }
        let machine = self.machine().await?;
        let inventory = inventory(&machine);
        for disk in &inventory.disks {
            let serial = disk.serial.as_deref().unwrap_or("unknown");
            self.call.journal.write_line(format!("record: disk {} serial {serial}", disk.id)).await;
        }
        for nic in &inventory.nics {
            self.call.journal.write_line(format!("record: nic {} {}", nic.id, nic.mac)).await;
        }
        let text = |text: Option<String>| text.unwrap_or_else(|| "unknown".into());
        let (model, serial) = (text(inventory.model), text(inventory.serial));
        Ok(done(&machine, format!("model {model}, serial {serial}; {}", describe_state(&machine))))
    }

    async fn repave(&self, image: &str) -> CallResult {
        let notes = self.call.checkpoints();
        match self.call.verb() {
            CallVerb::Perform => {
                let deploy = deployment(image, self.call.key().as_str())?;
                self.refuse_nodes().await?;
                let checkpoint = notes.begin(FIRST_CHECKPOINT).await?;
                self.install(&deploy, checkpoint).await.map_err(possibly_happened)
            }
            CallVerb::Follow => match notes.recall().await? {
                None => Ok(ProviderAnswer::NeverStarted),
                Some(checkpoint) => {
                    let deploy = deployment(image, self.call.key().as_str())?;
                    self.install(&deploy, checkpoint).await.map_err(possibly_happened)
                }
            },
            CallVerb::GetStatus => match notes.recall().await? {
                None => Ok(ProviderAnswer::NeverStarted),
                Some(checkpoint) => match self.machine().await {
                    Ok(machine) => Ok(self.call.round_status(&machine, &checkpoint, None)),
                    Err(fault) if fault.code == FaultCode::MaasMachineGone => {
                        Ok(ProviderAnswer::UnderWay)
                    }
                    Err(fault) => Err(fault),
                },
            },
            CallVerb::Observe => {
                let machine = self.machine().await?;
                let runs = format!("{}/{}", machine.osystem, machine.distro_series);
                Ok(match upstream_state(&machine) == MaasState::Deployed && runs == image {
                    true => done(&machine, format!("{}, with {image}", describe_state(&machine))),
                    false => ProviderAnswer::Differs(format!(
                        "{}, with {runs}",
                        describe_state(&machine)
                    )),
                })
            }
            CallVerb::Stop => {
                let machine = match self.machine().await {
                    Ok(machine) => Some(machine),
                    Err(fault) if fault.code == FaultCode::MaasMachineGone => None,
                    Err(fault) => return Err(fault),
                };
                self.call.stop_round(machine, None).await
            }
        }
    }

    /// A node in service is reinstalled only through its decommission.
    async fn refuse_nodes(&self) -> Result<()> {
        let machine = self.machine().await?;
        match super::annotations::annotated_node(&machine) {
            Some(node) if self.call.node_exists(&node).await? => {
                let instead =
                    format!("it is {node}: `farrier node decommission {node} --mode reimage`");
                Err(state_disagrees(&machine, &instead))
            }
            Some(_) | None => Ok(()),
        }
    }

    async fn install(&self, deploy: &DeployRequest, checkpoint: OrderCheckpoint) -> CallResult {
        let OrderCheckpoint::Reinstall { round, phase } = checkpoint else {
            return Err(checkpoint_mismatch());
        };
        let what = InstallSource::Image(deploy);
        let restarted = ReinstallRequest { system_id: &self.system_id, node: None, source: what };
        match self.call.run_round(&restarted, (round, phase)).await? {
            RoundResult { machine, installed: true, .. } => {
                Ok(done(&machine, describe_state(&machine)))
            }
            RoundResult { machine, installed: false, .. } => {
                self.call.log_events(&self.system_id, DEPLOYING_EVENT).await?;
                Err(Fault::new(FaultCode::DeployFailed, describe_state(&machine)))
            }
        }
    }
}

fn deployment(image: &str, comment: &str) -> Result<DeployRequest> {
    match image.split_once('/') {
        Some((system, release)) if !system.is_empty() && !release.is_empty() => Ok(DeployRequest {
            image: Some(image.to_owned()),
            comment: Some(comment.to_owned()),
            ..DeployRequest::default()
        }),
        Some(_) | None => {
            let message =
                format!("{image:?} is no image of MAAS; write what it calls it: ubuntu/jammy");
            let fault = Fault::new(FaultCode::ImageUnknown, message);
            Err(fault.with(|facts| facts.image = Some(image.into())))
        }
    }
}

impl MaasProvider {
    fn endpoint_of(&self, target: &Target) -> Result<MaasEndpoint> {
        parse_endpoint(&target.spec.bmc_endpoint)
            .map_err(|refusal| Fault::new(FaultCode::NotSupported, refusal.message))
    }

    pub(super) async fn machine_of(
        &self,
        target: &Target,
    ) -> Result<(std::sync::Arc<super::sites::SiteClient>, Machine)> {
        let MaasEndpoint { site, system_id } = self.endpoint_of(target)?;
        let open = self.sites.open(&self.store.site(&site).await?).await?;
        let machine = open.maas.machine(&system_id).await?;
        Ok((open, machine))
    }

    /// Checks that the region of the machine has the image.
    pub(super) async fn check_region_image(&self, target: &Target, image: &str) -> Result<()> {
        deployment(image, "")?;
        let MaasEndpoint { site, .. } = self.endpoint_of(target)?;
        let open = self.sites.open(&self.store.site(&site).await?).await?;
        let images = open.maas.images().await?;
        match images.iter().any(|known| known == image) {
            true => Ok(()),
            false => {
                let message =
                    format!("{site} has no image {image:?}; it has {}", images.join(", "));
                Err(Fault::new(FaultCode::ImageUnknown, message))
            }
        }
    }

    /// Probes the machine through MAAS and the host itself. An unreachable region proves nothing.
    pub(super) async fn probe_machine(&self, target: &Target) -> Result<Vec<ConditionObservation>> {
        let (bmc, host, node) = tokio::join!(
            self.machine_of(target),
            probe_host(&target.spec.ssh_endpoint, HOST_TIMEOUT),
            self.probe_cluster(target)
        );
        let condition = ConditionType::BmcReachable;
        let power = bmc.as_ref().ok().and_then(|(_, machine)| match machine.power_state {
            MaasPowerState::On => Some(DesiredPower::On),
            MaasPowerState::Off => Some(DesiredPower::Off),
            MaasPowerState::Unknown | MaasPowerState::Error => None,
        });
        let host = host_evidence(target, host, power);
        let bmc = match bmc {
            Ok((_, machine)) => match machine.power_state {
                MaasPowerState::On | MaasPowerState::Off => {
                    Some(ConditionObservation::new(condition, true, "Answers"))
                }
                MaasPowerState::Error => {
                    Some(ConditionObservation::new(condition, false, "MAAS cannot ask its BMC"))
                }
                MaasPowerState::Unknown => None,
            },
            Err(fault) if fault.code == FaultCode::MaasMachineGone => {
                Some(ConditionObservation::new(condition, false, fault.code.as_str()))
            }
            Err(fault) if host.is_none() && node.is_empty() => return Err(fault),
            Err(_) => None,
        };
        Ok(bmc.into_iter().chain(host).chain(node).collect())
    }
}

#[async_trait]
impl Inspector for MaasProvider {
    async fn inspect(&self, target: &Target) -> Result<Inspection> {
        let (_, machine) = self.machine_of(target).await?;
        let power = power_state(machine.power_state);
        let boot =
            (machine.status != Status::Deployed).then(|| "network, as MAAS wants".to_owned());
        Ok(Inspection { inventory: inventory(&machine), power, boot, health: None })
    }

    async fn event_log(&self, target: &Target, count: usize) -> Result<Vec<LogEntry>> {
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

    async fn power_now(&self, target: &Target) -> Result<PowerState> {
        let (open, machine) = self.machine_of(target).await?;
        let now = open.maas.query_power_state(&machine.system_id).await?;
        power_state(now).ok_or_else(|| {
            let message = format!("MAAS cannot tell whether {} is on", machine.system_id);
            Fault::new(FaultCode::BmcUnreachable, message)
        })
    }
}

const fn power_state(state: MaasPowerState) -> Option<PowerState> {
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
    let detail = |text: &str| known(text).map(str::to_owned);
    let info = &machine.hardware_info;
    let cpu = Cpu {
        id: "all".into(),
        model: detail(&info.cpu_model),
        cores: Some(machine.cpu_count),
        ..Cpu::default()
    };
    Inventory {
        vendor: detail(&info.system_vendor),
        model: detail(&info.system_product),
        serial: machine.serial().map(str::to_owned),
        uuid: machine.hardware_uuid.clone(),
        bios_version: detail(&info.mainboard_firmware_version),
        cpus: Some(cpu).filter(|_| machine.cpu_count > 0).into_iter().collect(),
        memory_mib: Some(machine.memory_mib).filter(|mib| *mib > 0),
        disks: machine.disks.iter().map(disk).collect(),
        nics: machine.interfaces.iter().map(nic).collect(),
        skipped: vec!["MAAS does not tell of memory modules, GPUs and the BMC's firmware".into()],
        ..Inventory::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_behind_maas_is_named_by_its_site_and_system_id() {
        let found = parse_endpoint("maas://site-east/abc123").unwrap();
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
            let refusal = parse_endpoint(wrong).unwrap_err();
            assert_eq!(refusal.field.as_deref(), Some(FIELD), "{wrong}");
            assert!(
                wrong.is_empty() || refusal.message.contains("maas://SITE/SYSTEM_ID"),
                "{refusal}"
            );
        }
    }

    #[test]
    fn an_image_is_a_system_and_a_release() {
        let deploy = deployment("ubuntu/jammy", "op-1").unwrap();
        assert_eq!(deploy.image.as_deref(), Some("ubuntu/jammy"));
        for wrong in ["", "jammy", "/jammy", "ubuntu/"] {
            assert_eq!(deployment(wrong, "").unwrap_err().code, FaultCode::ImageUnknown, "{wrong}");
        }
    }
}
