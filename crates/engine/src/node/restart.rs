//! Restarts a run on a node as a new one: rerun or restart clean.

use super::{create_run, no_node, node_of_run, override_note};
use crate::admission::{Created, StartedRun, event, lock_machine, no_run, not_before, replay};
use crate::node::Nodes;
use model::gate::Overrides;
use model::here;
use model::id::RunId;
use model::machine::Machine;
use model::node::Node;
use model::node::requests::admit_resume;
use model::run::actions::{Requester, RestartMode, restart};
use model::run::{ENGINE_VERSION, Run, RunSpec};
use model::time::Timestamp;
use store::{Cause, Result, Tx};

impl Nodes {
    pub(crate) async fn restart(
        &self,
        original: &RunId,
        mode: RestartMode,
        request_id: String,
        who: Requester,
    ) -> Result<StartedRun> {
        let (id, owner) =
            (RunId::new(self.0.now(), self.0.random()), self.0.scheduler().eager_owner());
        let claims = owner.is_some().then(|| id.clone());
        let (original, now) = (original.clone(), self.0.now());
        let restart = RestartOnNode { original, mode, request_id, who, id, owner, now };
        self.0
            .admit("restart_on_node", claims, restart, |restart, tx| Box::pin(restart.run(tx)))
            .await
    }
}

struct RestartOnNode {
    original: RunId,
    mode: RestartMode,
    request_id: String,
    who: Requester,
    id: RunId,
    owner: Option<String>,
    now: Timestamp,
}

impl RestartOnNode {
    async fn run(&self, tx: &mut Tx) -> Result<(StartedRun, Created)> {
        let mut created = Created::default();
        let original = tx.run(&self.original).await?.ok_or_else(|| no_run(&self.original))?;
        if let Some(run) = tx.run_of_request(&original.spec.target, &self.request_id).await? {
            // A client may name the run by its node: when it repeats the request, that resolves to
            // the run that the first request has made.
            let of = run.spec.rerun_of.as_ref();
            let named = of == Some(&self.original) || run.spec.id == self.original;
            let same = named && run.spec.restart == Some(self.mode);
            return Ok((StartedRun { run: replay(run, same)?, new: false }, created));
        }
        let progress = restart(&original, self.mode, false)?;
        let known = node_of_run(tx, &original).await?.ok_or_else(|| no_run(&self.original))?;
        let locked = tx.record_locked::<Node>(&known.head.id).await?;
        let mut node = locked.ok_or_else(|| no_node(&known.id()))?;
        let machine = lock_machine(tx, &node.machine, self.now).await?;
        // The other gates of the override hold for the restart too.
        let mut params = original.spec.params.clone();
        Overrides::of_params(&params).without_approval().store_in(&mut params);
        let spec = RunSpec {
            id: self.id.clone(),
            params,
            request_id: self.request_id.clone(),
            initiator: self.who.by.clone(),
            rerun_of: Some(self.original.clone()),
            restart: Some(self.mode),
            engine_version: ENGINE_VERSION,
            created_at: not_before(self.now, original.spec.created_at),
            ..original.spec.clone()
        };
        let run = Run { spec, progress, version: 1 };
        // A refusal names the parent: the client has named that run.
        let named = RunSpec { id: original.spec.id.clone(), ..run.spec.clone() };
        admit_resume(&node, &Run { spec: named, ..run.clone() })?;
        node.workflow = Some(self.id.clone());
        let again = self.mode.describe(&self.original, &self.who);
        let message = format!(
            "{} accepted, {again}{}",
            run.spec.run_type.as_str(),
            self.note(&machine, &run)
        );
        let event = event(Cause::Request, &self.who.by, message, here!(), self.now);
        let how = (self.owner.as_deref(), &event);
        let run = create_run(tx, &mut created, &machine, run, how).await?;
        tx.update_record(&mut node, &event)?;
        Ok((StartedRun { run, new: true }, created))
    }
}

impl RestartOnNode {
    /// The note about the override in the history. A restart keeps the original override.
    fn note(&self, machine: &Machine, run: &Run) -> String {
        let by = format!("{} as in {}", self.who.by, self.original);
        override_note(&Overrides::of_params(&run.spec.params), &by, (machine, run))
    }
}
