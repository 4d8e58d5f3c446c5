//! Selects the executor of a run's call: a provider, the engine's fan-out, or a stage of a node.

use super::{DATABASE_RETRY, Turn, TurnResult};
use crate::fan_out::{Parent, no_provider};
use crate::node::stage::StageContext;
use crate::{Engine, FaultResult};
use model::effect::{Executor, ProviderAnswer, ProviderCall};
use model::fault::{Fault, FaultCode};
use model::id::{MachineId, NodeId};
use model::machine::{DiskReport, MachineSpec};
use model::node::NodeStage;
use model::power_shelf::PowerShelf;
use model::run::Run;
use model::switch::Switch;
use model::target::{TargetId, TargetKind};
use model::time::format_duration;
use providers::{Journal, Provider, Providers, Target};
use std::sync::Arc;
use std::time::Duration;
use store::{ClaimedRun, Result, Tx};
use tokio::sync::Notify;

/// The component that executes a call.
pub(super) enum CallExecutor {
    Provider(Arc<dyn Provider>, Box<Target>),
    ChildRuns(Engine, Arc<Parent>),
    Stage(Engine, Arc<StageContext>),
}

impl CallExecutor {
    pub async fn execute(&self, call: &ProviderCall, log: &Journal) -> FaultResult<ProviderAnswer> {
        match self {
            Self::Provider(provider, target) => provider.call(target, call, log).await,
            Self::ChildRuns(engine, parent) => engine.fan_out().execute(parent, call, log).await,
            Self::Stage(engine, work) => engine.nodes().execute_stage(work, call, log).await,
        }
    }

    /// Reports that the run was woken during the call.
    pub fn notify(&self) {
        match self {
            Self::Provider(..) => {}
            Self::ChildRuns(_, parent) => parent.woken_up.notify_one(),
            Self::Stage(_, work) => work.woken_up.notify_one(),
        }
    }
}

impl Turn {
    /// The executor of a call: a provider, or the engine itself.
    pub(super) async fn executor(
        &mut self,
        call: &ProviderCall,
        limit: Duration,
    ) -> TurnResult<FaultResult<CallExecutor>> {
        match call.effect.facts().executor {
            Executor::ChildRuns(group) => {
                let (run, epoch, group) =
                    (self.claimed.run.clone(), self.claimed.epoch, group.clone());
                let parent = Parent { run, epoch, group, woken_up: Notify::new() };
                Ok(Ok(CallExecutor::ChildRuns(self.engine.clone(), Arc::new(parent))))
            }
            Executor::NodeRecord { stage, node } => Ok(Ok(self.stage_executor(stage, node, limit))),
            Executor::NodeAgent { stage, node, site_provider } => {
                match self.engine.providers().is_simulated(site_provider) {
                    false => Ok(Ok(self.stage_executor(stage, node, limit))),
                    true => self.provider_executor(Some(site_provider), Providers::get).await,
                }
            }
            Executor::SiteProvider(name) => {
                self.provider_executor(Some(name), Providers::get).await
            }
            Executor::ClusterProvider => {
                self.provider_executor(None, Providers::cluster_provider).await
            }
            Executor::TargetProvider => self.provider_executor(None, Providers::get).await,
        }
    }

    fn stage_executor(&self, stage: NodeStage, node: &NodeId, limit: Duration) -> CallExecutor {
        let (run, node) = (self.claimed.run.clone(), node.clone());
        let work = StageContext { run, stage, node, limit, woken_up: Notify::new() };
        CallExecutor::Stage(self.engine.clone(), Arc::new(work))
    }

    /// The provider that `find` returns for this name, or for the target's own provider.
    async fn provider_executor(
        &mut self,
        name: Option<&str>,
        find: for<'a> fn(&'a Providers, &str) -> Option<&'a Arc<dyn Provider>>,
    ) -> TurnResult<FaultResult<CallExecutor>> {
        let target = match self.target().await? {
            Ok(target) => target,
            Err(fault) => return Ok(Err(fault)),
        };
        let name = name.unwrap_or(&target.spec.provider);
        Ok(match find(self.engine.providers(), name).cloned() {
            Some(provider) => Ok(CallExecutor::Provider(provider, Box::new(target))),
            None => Err(no_provider(name)),
        })
    }

    /// The target of the run, read once per turn.
    async fn target(&mut self) -> TurnResult<FaultResult<Target>> {
        if let Some(target) = &self.target {
            return Ok(Ok(target.clone()));
        }
        let id = self.claimed.run.spec.target.clone();
        loop {
            match self.engine.find_target(&id).await {
                Ok(target) => {
                    self.target = Some(target.clone());
                    return Ok(Ok(target));
                }
                Err(fault) if fault.code == FaultCode::DatabaseUnreachable => {
                    tracing::warn!(target = %id, %fault, "reading the target failed; retrying");
                    self.pause(DATABASE_RETRY).await?;
                }
                Err(fault) => return Ok(Err(fault)),
            }
        }
    }
}

impl Engine {
    /// Makes a call that changes nothing, for a run that is not claimed. Also returns what the call
    /// reported about the disk.
    pub(crate) async fn observe(
        &self,
        run: &Run,
        call: &ProviderCall,
        limit: Duration,
    ) -> (FaultResult<ProviderAnswer>, Option<DiskReport>) {
        let claimed = ClaimedRun { run: run.clone(), epoch: 0, wakes_requested: 0, owner: None };
        let mut turn = Turn::new(self.clone(), claimed, Arc::new(Notify::new()));
        let stopping = || Fault::new(FaultCode::DatabaseUnreachable, "the server is stopping");
        // Nothing is logged: the call is no part of the run.
        let (journal, _) = Journal::new();
        let answer = tokio::time::timeout(limit, async {
            let executor = turn.executor(call, limit).await.map_err(|_| stopping())??;
            executor.execute(call, &journal).await
        });
        let answer = answer.await.unwrap_or_else(|_| {
            let message = format!("no answer within {}", format_duration(limit));
            Err(Fault::new(FaultCode::StepTimeout, message))
        });
        (answer, journal.disk_report())
    }

    /// The target as it is passed to a provider.
    pub(crate) async fn find_target(&self, id: &TargetId) -> FaultResult<Target> {
        let found = match id.kind {
            TargetKind::Machine => {
                let machine = self.store().machine(&MachineId::trusted(&id.id)).await;
                machine.map(|found| found.map(|machine| machine.spec))
            }
            TargetKind::Switch | TargetKind::PowerShelf | TargetKind::Rack => {
                self.store().read(id.clone(), |id, tx| Box::pin(load_device_spec(tx, id))).await
            }
        };
        match found {
            Ok(Some(spec)) => Ok(Target { id: id.clone(), spec }),
            Ok(None) => {
                let message = format!("{} {id} is not there any more", id.kind.noun());
                Err(Fault::new(FaultCode::MachineGone, message))
            }
            Err(error) => Err(Fault::new(
                FaultCode::DatabaseUnreachable,
                format!("Farrier's database: {error}"),
            )),
        }
    }
}

/// The connection data of a device that is not a machine.
async fn load_device_spec(tx: &mut Tx, target: &TargetId) -> Result<Option<MachineSpec>> {
    let id = target.id.as_str();
    Ok(match target.kind {
        TargetKind::Switch => tx.record::<Switch>(id).await?.map(|one| one.spec.into()),
        TargetKind::PowerShelf => tx.record::<PowerShelf>(id).await?.map(|one| one.spec.into()),
        // A rack is no device: its operations only have child runs.
        TargetKind::Machine | TargetKind::Rack => None,
    })
}
