//! Dry runs of node requests: the request, rolled back, and for each stage whether MAAS shows its
//! goal already.

use super::{Decommission, NodeRun, Onboard};
use crate::node::Nodes;
use crate::run::RunPreview;
use model::effect::{Effect, Executor};
use model::node::{AgentTaskContext, MaasState, NodeStage, adoption_reason};
use model::plan::RunStep;
use model::site::Site;
use providers::Target;
use store::Result;

/// The preview of one stage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PreviewedStage {
    pub stage: String,
    /// The reason why the stage is skipped; none: it would run.
    pub adopted: Option<String>,
}

#[derive(Debug, Clone)]
pub struct NodeRunPreview {
    pub planned: NodeRun,
    pub stages: Vec<PreviewedStage>,
    /// The state of the machine in MAAS, or why MAAS cannot be called.
    pub upstream: std::result::Result<MaasState, String>,
    /// The stages that would run, with their time, and the gates that the override passes.
    pub preview: RunPreview,
}

impl Nodes {
    pub async fn preview_onboard(&self, request: Onboard) -> Result<NodeRunPreview> {
        let would = self.0.with_dry_run(true).nodes().onboard(request).await?;
        self.previewed(would).await
    }

    pub async fn preview_decommission(&self, request: Decommission) -> Result<NodeRunPreview> {
        let would = self.0.with_dry_run(true).nodes().decommission(request).await?;
        self.previewed(would).await
    }

    async fn previewed(&self, would: NodeRun) -> Result<NodeRunPreview> {
        let upstream = self.upstream_of(&would).await?;
        let observed = upstream.clone().unwrap_or(MaasState::Unknown);
        let has_agent = self.has_agent(&would.node.id()).await?;
        let (run, state) = (&would.run, would.node.state);
        let agent_answers = self.agent_answers(&would.node.id()).await?;
        let mut requested =
            AgentTaskContext { run, state, has_agent, agent_answers, released: false };
        // The present MAAS state is not valid for stages after the machine's release.
        let mut given_back = false;
        let (mut stages, mut executed) = (Vec::new(), Vec::new());
        let preview = self.0.runs().preview(run).await?;
        for previewed in preview.steps {
            let step = &previewed.left.step;
            let stage = stage_of(step);
            let needless =
                |stage| requested.skip_reason(stage).filter(|_| self.carries_out(&step.effect));
            let holds = |stage| adoption_reason(stage, state, observed).filter(|_| !given_back);
            let adopted = stage.and_then(|one| holds(one).or_else(|| needless(one)));
            let releases = stage == Some(NodeStage::ReleaseMaasNode);
            requested.released |= releases;
            given_back |= releases && adopted.is_none();
            stages.push(PreviewedStage { stage: step.name.clone(), adopted: adopted.clone() });
            executed.extend(Some(previewed).filter(|_| adopted.is_none()));
        }
        let preview = RunPreview { steps: executed, ..preview };
        Ok(NodeRunPreview { planned: would, stages, upstream, preview })
    }

    /// True if the engine executes a stage, not a provider.
    fn carries_out(&self, effect: &Effect) -> bool {
        match effect.facts().executor {
            Executor::NodeRecord { .. } => true,
            Executor::NodeAgent { site_provider, .. } => {
                !self.0.providers().is_simulated(site_provider)
            }
            Executor::TargetProvider
            | Executor::ClusterProvider
            | Executor::SiteProvider(_)
            | Executor::ChildRuns(_) => false,
        }
    }

    /// The state of the machine in the MAAS of its site.
    async fn upstream_of(&self, would: &NodeRun) -> Result<std::result::Result<MaasState, String>> {
        let Some(id) = &would.node.site else { return Ok(Ok(MaasState::Unknown)) };
        let site: Site = self.0.sites().get(id).await?;
        let machine = self.0.machines().get(&would.node.machine).await?;
        let Some(provider) = self.0.providers().get(&site.spec.provider) else {
            return Ok(Err(format!("the provider {:?} is not served here", site.spec.provider)));
        };
        let target = Target { id: would.run.spec.target.clone(), spec: machine.spec };
        Ok(match provider.find_at_site(&site, &target).await {
            Ok(found) => Ok(found.map_or(MaasState::Absent, |observed| observed.state)),
            Err(fault) => Err(fault.message),
        })
    }
}

/// The stage of a step. Cluster steps are recognised by the name of their stage.
fn stage_of(step: &RunStep) -> Option<NodeStage> {
    if let Effect::Stage { stage, .. } = &step.effect {
        return Some(*stage);
    }
    NodeStage::parse(&step.name)
}
