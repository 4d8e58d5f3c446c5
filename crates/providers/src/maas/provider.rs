//! Nodes and machines behind MAAS.
//!
//! The stages of onboarding and decommission run at the MAAS of the node's site. Machines whose BMC
//! MAAS controls are powered and installed through it. MAAS changes by itself and by other users,
//! so every step reads first, decides, and reads back. A request that must not be sent twice is
//! preceded by a checkpoint and an annotation on the machine, which identify it after a crash.
//!
//! `sites` has the clients, `shared_poll` shares polls among waiters, `executor` runs one provider
//! call, `checkpoint` is its memory, `annotations` marks machines, `masking` hides secrets, `find`
//! matches machines, `listing` lists them. `machine`, `power` and `hosts` serve machines that are
//! not nodes.

mod annotations;
mod checkpoint;
mod commission;
mod deploy;
mod executor;
mod failure;
mod find;
mod hosts;
mod interfaces;
mod listing;
mod machine;
mod masking;
mod power;
mod prepare;
mod record;
mod reinstall;
mod release;
mod release_decision;
mod shared_poll;
mod sites;
mod storage;
mod sync;
mod undo;

use super::Settings as ClientSettings;
use crate::cluster_check::DrainPreview;
use crate::http_client::Trust;
use crate::inspect::Inspector;
use crate::peer_login::TrustPolicy;
use crate::port::{Journal, Provider, SiteNode, SiteObservation, Target, UpstreamMachine};
use crate::power::PowerTimeouts;
use crate::state_store::ProviderStateStore;
use async_trait::async_trait;
use checkpoint::CheckpointStore;
use executor::{CallContext, StageExecutor};
use machine::MachineExecutor;
use model::condition::ConditionObservation;
use model::effect::{
    CallResult, CallVerb, Capability, DrainOptions, Effect, ProviderAnswer, ProviderCall,
};
use model::fault::{EffectOutcome, Fault, FaultCode, Result};
use model::id::NodeId;
use model::machine::MachineSpec;
use model::node::{MaasObservation, NodeStage};
use model::refusal::Refusal;
use model::site::Site;
use sites::SiteClients;
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
    /// The trust in a region with TLS.
    pub trust: TrustPolicy,
    /// The BMC credential of machines that name none.
    pub bmc_credential: String,
    /// The interval of polls while a stage waits for a machine.
    pub poll_interval: Duration,
    /// The longest wait of one call, if the stage allows more.
    pub max_wait: Duration,
    /// The age up to which a poll of another site of the same region shares a list.
    pub list_max_age: Duration,
    /// The time that a request whose answer was lost may still take to reach MAAS.
    pub in_flight_window: Duration,
    pub power_timeouts: PowerTimeouts,
    /// The time that a new system has to answer over SSH before the next step is tried.
    pub host_wait: Duration,
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
            poll_interval: Duration::from_secs(5),
            max_wait: Duration::MAX,
            list_max_age: Duration::from_secs(5),
            in_flight_window: client.answer_timeout,
            power_timeouts: PowerTimeouts::default(),
            host_wait: Duration::from_secs(5 * 60),
            client,
        }
    }
}

pub struct MaasProvider {
    store: Arc<dyn ProviderStateStore>,
    settings: Settings,
    sites: SiteClients,
    /// Reaches the hosts and the clusters of its machines. None: they are not reached.
    hosts: Option<Arc<dyn Provider>>,
}

impl MaasProvider {
    pub const NAME: &'static str = "maas";

    pub fn new(store: Arc<dyn ProviderStateStore>, settings: Settings) -> Self {
        let sites = SiteClients::new(Arc::clone(&store), settings.clone());
        Self { store, settings, sites, hosts: None }
    }

    /// The name of the credential for the BMC of a machine; empty: none is configured.
    fn bmc_credential<'a>(&'a self, spec: &'a MachineSpec) -> &'a str {
        let usual = &self.settings.bmc_credential;
        if spec.bmc_credential.is_empty() { usual } else { &spec.bmc_credential }
    }

    async fn execute(
        &self,
        target: &Target,
        request: &ProviderCall,
        journal: &Journal,
    ) -> CallResult {
        if let Some(answer) = self.call_host(target, request, journal).await {
            return answer;
        }
        let Effect::Stage { stage, node, site, undo, .. } = &request.effect else {
            let work = MachineExecutor::open(self, target, request, journal).await?;
            let answer = work.execute().await;
            self.meet_new_host(target, (request, journal), &answer).await;
            return answer;
        };
        let Some(site) = site else {
            let message = format!("no MAAS manages {node}: it has no site");
            return Err(Fault::new(FaultCode::SiteUnfit, message));
        };
        let site = self.store.site(site).await?;
        let node = self.store.node(node).await?;
        let site_client = self.sites.open(&site).await?;
        let limit = stage.attempt_timeout();
        let call = CallContext::new(self, site_client, (request, journal), limit);
        let work = StageExecutor { call, site, node, stage: *stage };
        let answer = match *undo {
            false => self.perform_stage(work, *stage, target).await,
            true => self.undo_stage(work, *stage, target).await,
        };
        answer.map(|answer| with_release(answer, *stage, *undo))
    }

    async fn perform_stage(
        &self,
        work: StageExecutor<'_>,
        stage: NodeStage,
        target: &Target,
    ) -> CallResult {
        match stage {
            NodeStage::LoadSiteConfig => work.load_site().await,
            NodeStage::ResolvePowerCredentials => work.resolve_power(target).await,
            NodeStage::CreateOrFindInMaas => work.create_or_find(target).await,
            NodeStage::CommissionNode => work.commission().await,
            NodeStage::WaitForReady => work.wait_for_ready().await,
            NodeStage::ConfigureStorage => work.configure_storage().await,
            NodeStage::ApplyRocePhase2 => work.apply_roce().await,
            NodeStage::EnsurePxeInterfaceAuto => work.ensure_pxe().await,
            NodeStage::RenderCloudInit => work.render_cloud_init().await,
            NodeStage::DeployViaMaas => work.deploy().await,
            NodeStage::WaitForDeployed => work.wait_for_deployed().await,
            NodeStage::ClassifyDeployFailure => work.classify().await,
            NodeStage::RecoverForDatasourceRetry => work.recover().await,
            NodeStage::EnsureHardwareSyncConfigured => work.ensure_sync().await,
            NodeStage::WaitForHardwareSyncHealthy => work.wait_for_sync().await,
            NodeStage::ReleaseMaasNode => work.release().await,
            NodeStage::PowerOffMaasNode => work.power_off().await,
            NodeStage::RemoveMaasRecord => work.remove_record().await,
            NodeStage::WaitForAgentEnrollment
            | NodeStage::DisableNode
            | NodeStage::ForceReleaseAllocations
            | NodeStage::DrainNode
            | NodeStage::CleanupStorage
            | NodeStage::ScrubGpu
            | NodeStage::ValidateCleanNode
            | NodeStage::RetireGpuaasNode
            | NodeStage::RemoveGpuaasNodeRecord
            | NodeStage::CleanupSecrets => Err(not_at_maas(stage, "done")),
        }
    }

    async fn undo_stage(
        &self,
        work: StageExecutor<'_>,
        stage: NodeStage,
        target: &Target,
    ) -> CallResult {
        match stage {
            NodeStage::CreateOrFindInMaas => work.undo_create(target).await,
            NodeStage::CommissionNode => work.undo_commission().await,
            NodeStage::DeployViaMaas => work.undo_deploy().await,
            NodeStage::LoadSiteConfig
            | NodeStage::ResolvePowerCredentials
            | NodeStage::WaitForReady
            | NodeStage::ConfigureStorage
            | NodeStage::ApplyRocePhase2
            | NodeStage::EnsurePxeInterfaceAuto
            | NodeStage::RenderCloudInit
            | NodeStage::WaitForDeployed
            | NodeStage::ClassifyDeployFailure
            | NodeStage::RecoverForDatasourceRetry
            | NodeStage::EnsureHardwareSyncConfigured
            | NodeStage::WaitForHardwareSyncHealthy
            | NodeStage::WaitForAgentEnrollment
            | NodeStage::DisableNode
            | NodeStage::ForceReleaseAllocations
            | NodeStage::DrainNode
            | NodeStage::CleanupStorage
            | NodeStage::ScrubGpu
            | NodeStage::ValidateCleanNode
            | NodeStage::ReleaseMaasNode
            | NodeStage::PowerOffMaasNode
            | NodeStage::RetireGpuaasNode
            | NodeStage::RemoveGpuaasNodeRecord
            | NodeStage::CleanupSecrets
            | NodeStage::RemoveMaasRecord => Err(not_at_maas(stage, "taken back")),
        }
    }
}

/// Adds what the end of a release proves about the disk.
fn with_release(mut answer: ProviderAnswer, stage: NodeStage, undo: bool) -> ProviderAnswer {
    if let ProviderAnswer::Done(outcome) = &mut answer
        && let Some(maas) = outcome.facts.as_ref().and_then(|facts| facts.maas.as_ref())
    {
        outcome.evidence.extend(stage.released(undo, maas.upstream.state));
    }
    answer
}

fn not_at_maas(stage: NodeStage, what: &str) -> Fault {
    Fault::new(FaultCode::ProtocolBroken, format!("{stage} is not {what} at MAAS"))
}

impl MaasProvider {
    /// True if a disk write has failed before MAAS got a request that cannot be recalled.
    async fn has_written_nothing(&self, request: &ProviderCall, answer: &CallResult) -> bool {
        let writes = request.verb == CallVerb::Perform && request.effect.facts().disk.is_some();
        let Err(fault) = answer else { return false };
        if !writes || fault.code.effect_outcome() != EffectOutcome::NotApplied {
            return false;
        }
        let notes = CheckpointStore { store: self.store.as_ref(), key: &request.key };
        match self.store.checkpoint(&request.key).await {
            Ok(None) => true,
            Ok(Some(_)) => {
                let noted = notes.recall().await;
                matches!(noted, Ok(Some(checkpoint)) if checkpoint.requested_at().is_none())
            }
            Err(_) => false,
        }
    }
}

#[async_trait]
impl Provider for MaasProvider {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn capabilities(&self) -> &'static [Capability] {
        const OF_MAAS: usize = 5;
        const ALL: [Capability; 7] = [
            Capability::Nodes,
            Capability::PowerControl,
            Capability::Imaging,
            Capability::Netboot,
            Capability::Inspect,
            Capability::RemoteExec,
            Capability::ClusterJoin,
        ];
        if self.hosts.is_some() { &ALL } else { ALL.split_at(OF_MAAS).0 }
    }

    fn peers(&self, spec: &MachineSpec) -> Vec<String> {
        self.hosts.as_ref().map(|hosts| hosts.peers(spec)).unwrap_or_default()
    }

    fn check(&self, spec: &MachineSpec) -> Result<(), Refusal> {
        machine::parse_endpoint(&spec.bmc_endpoint).map(drop)
    }

    async fn call(&self, target: &Target, request: &ProviderCall, journal: &Journal) -> CallResult {
        let mask = self.mask_for(target).await?;
        let answer = self.execute(target, request, &journal.masked(mask.clone())).await;
        if self.has_written_nothing(request, &answer).await {
            journal.report_untouched();
        }
        masking::mask_answer(&mask, answer)
    }

    async fn check_image(&self, target: &Target, image: &str) -> Result<()> {
        self.check_region_image(target, image).await
    }

    async fn probe(&self, target: &Target) -> Result<Vec<ConditionObservation>> {
        self.probe_machine(target).await
    }

    async fn observe_site(&self, site: &Site, nodes: &[SiteNode]) -> Result<SiteObservation> {
        let client = self.sites.open(site).await?;
        client.check_administrator().await?;
        let ids = nodes.iter().map(|node| node.system_id.clone()).filter(|id| !id.is_empty());
        let max_age = self.settings.list_max_age;
        let polled = client.list.poll(&client.maas, (&site.id(), ids.collect()), max_age).await?;
        let known: HashSet<&NodeId> = nodes.iter().map(|node| &node.id).collect();
        let upstream_machine = |one: &find::ListedMachine| UpstreamMachine {
            system_id: one.system_id.clone(),
            node: one.node.clone().filter(|node| known.contains(node)),
            upstream: one.observation.clone(),
            agent_online: None,
        };
        let machines = polled.machines.iter().map(upstream_machine).collect();
        Ok(SiteObservation { machines, total: polled.total })
    }

    async fn find_at_site(&self, site: &Site, target: &Target) -> Result<Option<MaasObservation>> {
        let client = self.sites.open(site).await?;
        let id = machine::system_id_at(&target.spec, &site.id());
        let machines = client.candidates(&target.spec, id.as_deref()).await?;
        match find::find_machine(&machines, &target.spec, id.as_deref()) {
            find::FindResult::None => Ok(None),
            find::FindResult::One(one) => Ok(Some(one.observation.clone())),
            find::FindResult::Conflict(message) => {
                Err(Fault::new(FaultCode::CandidatesConflict, message))
            }
        }
    }

    fn inspector(&self) -> Option<&dyn Inspector> {
        Some(self)
    }

    async fn preview_drain(&self, target: &Target, options: &DrainOptions) -> Result<DrainPreview> {
        match &self.hosts {
            Some(hosts) => hosts.preview_drain(target, options).await,
            None => Ok(DrainPreview::default()),
        }
    }
}
