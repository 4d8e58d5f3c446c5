//! The service for runs.

mod act;
mod durations;
mod preview;

pub(crate) use act::superseding_run;
pub(crate) use durations::{RecordedDurations, previewed_steps};
pub use preview::RunPreview;

use crate::Engine;
use crate::admission::no_run;
use crate::explain::usual_durations;
use act::ActionTransaction;
use model::access::Permission;
use model::id::RunId;
use model::node::NODE;
use model::order::Selection;
use model::run::Run;
use model::run::actions::{Action, Requester};
use model::why::overdue;
use store::{LogLine, Result, RunPage, StoreError};

/// The most active runs that are read for the metric of overdue runs.
const MAX_OVERDUE: i64 = 1_000;

/// Starts, restarts, changes and watches runs, and deletes expired ones.
#[derive(Clone)]
pub struct Runs(pub(crate) Engine);

impl Runs {
    /// Cancel, retry, resume, adopt, mark manual.
    pub async fn act(&self, id: RunId, action: Action, who: Requester) -> Result<Run> {
        let (run, by) = (id.clone(), who.by.clone());
        let caller = self.0.caller().clone();
        let act = ActionTransaction { id, action, who, caller, now: self.0.now() };
        let done =
            self.0.store().retry_write("act_on_run", act, |act, tx| Box::pin(act.run(tx))).await;
        self.trace_action(&run, (&by, action.as_str()), done).await
    }

    /// Remembers a refused action on its run, and on the target and the node of the run: people
    /// ask about those.
    pub(crate) async fn trace_action<T>(
        &self,
        id: &RunId,
        (by, action): (&str, &str),
        done: Result<T>,
    ) -> Result<T> {
        let Err(StoreError::Refused(refusal)) = &done else { return done };
        if self.0.store().is_dry_run() {
            return self.0.hide_in_refusal(id.as_str(), done).await;
        }
        self.0.note_refusal(id.as_str(), (by, action), refusal);
        // An unknown run has no target.
        if let Ok(run) = self.get(id).await {
            let request = format!("{action} {id}");
            let node = run.spec.params.get(NODE).map(String::as_str);
            for object in [run.spec.target.as_str()].into_iter().chain(node) {
                self.0.note_refusal(object, (by, &request), refusal);
            }
        }
        self.0.hide_in_refusal(id.as_str(), done).await
    }

    pub async fn get(&self, id: &RunId) -> Result<Run> {
        let found = self.0.store().read_one(id.clone(), |id, tx| Box::pin(tx.run(id))).await?;
        Ok(found.ok_or_else(|| no_run(id))?)
    }

    pub async fn list(
        &self,
        selection: impl Into<Selection>,
        after: Option<String>,
        limit: i64,
    ) -> Result<RunPage> {
        let input = (self.0.caller().visible(selection), after, limit);
        let found = self.0.store().scan_one(input, |(selection, after, limit), tx| {
            Box::pin(tx.selected_runs(selection, after.as_deref(), *limit))
        });
        let page = found.await?;
        self.0.store().unreadable().record(&page.unreadable);
        Ok(page)
    }

    pub(crate) async fn log_page(
        &self,
        id: &RunId,
        offset: i64,
        limit: i64,
    ) -> Result<(Run, Vec<LogLine>)> {
        let input = (id.clone(), offset, limit, self.0.caller().clone());
        // The run first: when it has ended, the log read after it is complete.
        let page = self.0.store().scan(input, |(id, offset, limit, caller), tx| {
            Box::pin(async move {
                let run = tx.run(id).await?.ok_or_else(|| no_run(id))?;
                // Its machine may have left what the caller may see.
                if !caller.on_targets(tx, &run.spec).await?.contains(Permission::View) {
                    return Err(no_run(id).into());
                }
                Ok((run, tx.read_log(id, *offset, *limit).await?))
            })
        });
        page.await
    }

    /// The active runs that wait longer than normal.
    pub async fn overdue(&self) -> Result<Vec<Run>> {
        let active = self.0.store().scan((), |(), tx| {
            Box::pin(async move {
                let runs = tx.active_runs(MAX_OVERDUE).await?;
                let usual = usual_durations(tx, &runs.items.iter().collect::<Vec<_>>()).await?;
                Ok((runs, usual))
            })
        });
        let (runs, usual) = active.await?;
        self.0.store().unreadable().record(&runs.unreadable);
        let now = self.0.now();
        let late = runs.items.into_iter().zip(usual);
        let late = late.filter(|(run, usual)| overdue(run, usual.as_ref(), now));
        Ok(late.map(|(run, _)| run).collect())
    }
}
