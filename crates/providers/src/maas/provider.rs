//! Nodes and machines behind MAAS.
//!
//! The stages of onboarding and decommission run at the MAAS of the node's site. Machines whose BMC
//! MAAS controls are powered and installed through it. MAAS changes by itself and by other users,
//! so every step reads first, decides, and reads back. A request that must not be sent twice is
//! preceded by a checkpoint and an annotation on the machine, which identify it after a crash.
//!
//! `sites` has the clients, `shared_poll` shares polls among waiters, `executor` runs one provider
//! call, `checkpoint` is its memory, `annotations` marks machines, `masking` hides secrets, `find`
//! matches machines. `machine` and `power` serve machines that are not nodes.

mod checkpoint;
mod commission;
mod deploy;
mod failure;
mod find;
mod hand;
mod letting;
mod machine;
mod marks;
mod masking;
mod power;
mod prepare;
mod record;
mod reinstall;
mod release;
mod sites;
mod storage;
mod sync;
mod undo;
mod watching;
mod wiring;

use super::Settings as ClientSettings;
use crate::http_client::Trust;
use crate::inspect::Inspector;
use crate::peer_login::TrustPolicy;
use crate::port::{Journal, Provider, Sighting, Target};
use crate::power::PowerTimeouts;
use crate::state_store::ProviderStateStore;
use async_trait::async_trait;
use hand::{Hand, Work};
use machine::Errand;
use model::condition::Evidence;
use model::effect::{Answer, Capability, Effect, Order};
use model::fault::{Code, Fault};
use model::id::{MachineId, NodeId};
use model::machine::MachineSpec;
use model::node::{Stage, UpstreamSeen};
use model::refusal::Refusal;
use model::site::Site;
use sites::Sites;
use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

#[derive(Debug, Clone)]
pub struct Settings {
    /// The address of Farrier for the agents of nodes.
    pub farrier_url: String,
    /// The agent binary for new nodes. Empty: none.
    pub agent_binary: PathBuf,
    /// How a region with TLS is trusted.
    pub trust: TrustPolicy,
    /// The BMC credential of machines that name none.
    pub bmc_credential: String,
    /// The interval of polls while a stage waits for a machine.
    pub look_every: Duration,
    /// The longest wait of one call, if the stage allows more.
    pub longest_wait: Duration,
    /// How long a request whose answer was lost may still reach MAAS.
    pub in_flight: Duration,
    pub power_timeouts: PowerTimeouts,
    /// Defaults of the client; the settings of a site override them.
    pub client: ClientSettings,
}

impl Settings {
    pub fn new(farrier_url: String, trust: TrustPolicy) -> Self {
        let client = ClientSettings::new(Trust::FirstUse(None));
        Self {
            farrier_url,
            agent_binary: PathBuf::new(),
            trust,
            bmc_credential: String::new(),
            look_every: Duration::from_secs(5),
            longest_wait: Duration::MAX,
            in_flight: client.answer_timeout,
            power_timeouts: PowerTimeouts::default(),
            client,
        }
    }
}

pub struct MaasProvider {
    store: Arc<dyn ProviderStateStore>,
    settings: Settings,
    sites: Sites,
}

impl MaasProvider {
    pub const NAME: &'static str = "maas";

    pub fn new(store: Arc<dyn ProviderStateStore>, settings: Settings) -> Self {
        let sites = Sites::new(Arc::clone(&store), settings.clone());
        Self { store, settings, sites }
    }

    async fn perform_stage(
        &self,
        work: Work<'_>,
        stage: Stage,
        target: &Target,
    ) -> Result<Answer, Fault> {
        match stage {
            Stage::LoadSiteConfig => work.load_site().await,
            Stage::ResolvePowerCredentials => work.resolve_power(target).await,
            Stage::CreateOrFindInMaas => work.make(target).await,
            Stage::CommissionNode => work.commission().await,
            Stage::WaitForReady => work.wait_for_ready().await,
            Stage::ConfigureStorage => work.configure_storage().await,
            Stage::ApplyRocePhase2 => work.apply_roce().await,
            Stage::EnsurePxeInterfaceAuto => work.ensure_pxe().await,
            Stage::RenderCloudInit => work.render_cloud_init().await,
            Stage::DeployViaMaas => work.deploy().await,
            Stage::WaitForDeployed => work.wait_for_deployed().await,
            Stage::ClassifyDeployFailure => work.classify().await,
            Stage::RecoverForDatasourceRetry => work.recover().await,
            Stage::EnsureHardwareSyncConfigured => work.ensure_sync().await,
            Stage::WaitForHardwareSyncHealthy => work.wait_for_sync().await,
            Stage::ReleaseMaasNode => work.release().await,
            Stage::PowerOffMaasNode => work.power_off().await,
            Stage::RemoveMaasRecord => work.remove_record().await,
            Stage::WaitForAgentEnrollment
            | Stage::DisableNode
            | Stage::ForceReleaseAllocations
            | Stage::DrainNode
            | Stage::CleanupStorage
            | Stage::ScrubGpu
            | Stage::ValidateCleanNode
            | Stage::RetireGpuaasNode
            | Stage::RemoveGpuaasNodeRecord
            | Stage::CleanupSecrets => Err(not_at_maas(stage, "done")),
        }
    }

    async fn undo_stage(
        &self,
        work: Work<'_>,
        stage: Stage,
        target: &Target,
    ) -> Result<Answer, Fault> {
        match stage {
            Stage::CreateOrFindInMaas => work.unmake(target).await,
            Stage::CommissionNode => work.uncommission().await,
            Stage::DeployViaMaas => work.take_back().await,
            Stage::LoadSiteConfig
            | Stage::ResolvePowerCredentials
            | Stage::WaitForReady
            | Stage::ConfigureStorage
            | Stage::ApplyRocePhase2
            | Stage::EnsurePxeInterfaceAuto
            | Stage::RenderCloudInit
            | Stage::WaitForDeployed
            | Stage::ClassifyDeployFailure
            | Stage::RecoverForDatasourceRetry
            | Stage::EnsureHardwareSyncConfigured
            | Stage::WaitForHardwareSyncHealthy
            | Stage::WaitForAgentEnrollment
            | Stage::DisableNode
            | Stage::ForceReleaseAllocations
            | Stage::DrainNode
            | Stage::CleanupStorage
            | Stage::ScrubGpu
            | Stage::ValidateCleanNode
            | Stage::ReleaseMaasNode
            | Stage::PowerOffMaasNode
            | Stage::RetireGpuaasNode
            | Stage::RemoveGpuaasNodeRecord
            | Stage::CleanupSecrets
            | Stage::RemoveMaasRecord => Err(not_at_maas(stage, "taken back")),
        }
    }
}

fn not_at_maas(stage: Stage, what: &str) -> Fault {
    Fault::new(Code::ProtocolBroken, format!("{stage} is not {what} at MAAS"))
}

#[async_trait]
impl Provider for MaasProvider {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn capabilities(&self) -> &'static [Capability] {
        &[
            Capability::Nodes,
            Capability::PowerControl,
            Capability::Imaging,
            Capability::Netboot,
            Capability::Inspect,
        ]
    }

    fn check(&self, spec: &MachineSpec) -> Result<(), Refusal> {
        machine::place(&spec.bmc_endpoint).map(drop)
    }

    async fn ask(
        &self,
        target: &Target,
        order: &Order,
        journal: &Journal,
    ) -> Result<Answer, Fault> {
        let Effect::Stage { stage, node, site, undo, .. } = &order.effect else {
            return Errand::open(self, target, order, journal).await?.carry_out().await;
        };
        let Some(site) = site else {
            return Err(Fault::new(
                Code::SiteUnfit,
                format!("no MAAS manages {node}: it has no site"),
            ));
        };
        let site = self.store.site(site).await?;
        let node = self.store.node(node).await?;
        let open = self.sites.open(&site).await?;
        let hand = Hand { at: self, open, order, journal, limit: stage.patience() };
        let work = Work { hand, site, node, stage: *stage };
        match *undo {
            false => self.perform_stage(work, *stage, target).await,
            true => self.undo_stage(work, *stage, target).await,
        }
    }

    async fn probe(&self, target: &Target) -> Result<Vec<Evidence>, Fault> {
        self.look_at(target).await
    }

    async fn observe_site(
        &self,
        site: &Site,
        nodes: &[(NodeId, MachineId)],
    ) -> Result<Vec<Sighting>, Fault> {
        let machines = self.sites.open(site).await?.list().await?;
        let known: HashSet<&NodeId> = nodes.iter().map(|(node, _)| node).collect();
        let sighting = |one: &find::Listed| Sighting {
            system_id: one.system_id.clone(),
            node: one.node.clone().filter(|node| known.contains(node)),
            seen: one.seen.clone(),
            heard: None,
        };
        Ok(machines.iter().map(sighting).collect())
    }

    async fn find_at_site(
        &self,
        site: &Site,
        target: &Target,
    ) -> Result<Option<UpstreamSeen>, Fault> {
        let machines = self.sites.open(site).await?.list().await?;
        let id = machine::system_id_at(&target.spec, &site.id());
        match find::find(&machines, &target.spec, id.as_deref()) {
            find::Found::None => Ok(None),
            find::Found::One(one) => Ok(Some(one.seen.clone())),
            find::Found::Conflict(said) => Err(Fault::new(Code::CandidatesConflict, said)),
        }
    }

    fn inspector(&self) -> Option<&dyn Inspector> {
        Some(self)
    }
}
