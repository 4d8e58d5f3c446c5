//! The service for runs.

mod act;

use crate::Engine;
use crate::admission::no_run;
use act::ActionTransaction;
use model::id::RunId;
use model::order::Selection;
use model::run::Run;
use model::run::actions::{Action, Requester};
use model::why::overdue;
use store::{LogLine, Result, RunPage};

/// The most active runs that are read for the metric of overdue runs.
const MAX_OVERDUE: i64 = 1_000;

/// Starts, restarts, changes and watches runs, and deletes expired ones.
#[derive(Clone)]
pub struct Runs(pub(crate) Engine);

impl Runs {
    /// Cancel, retry, resume, adopt, mark manual.
    pub async fn act(&self, id: RunId, action: Action, who: Requester) -> Result<Run> {
        let act = ActionTransaction { id, action, who, now: self.0.now() };
        self.0.store().retry_write("act_on_run", act, |act, tx| Box::pin(act.run(tx))).await
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
        let input = (selection.into(), after, limit);
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
        let input = (id.clone(), offset, limit);
        // The run first: when it has ended, the log read after it is complete.
        let page = self.0.store().scan(input, |(id, offset, limit), tx| {
            Box::pin(
                async move { Ok((tx.run(id).await?, tx.read_log(id, *offset, *limit).await?)) },
            )
        });
        let (run, lines) = page.await?;
        Ok((run.ok_or_else(|| no_run(id))?, lines))
    }

    /// The number of active runs that wait longer than normal.
    pub async fn overdue(&self) -> Result<usize> {
        let runs = self.0.store().scan((), |(), tx| Box::pin(tx.active_runs(MAX_OVERDUE))).await?;
        self.0.store().unreadable().record(&runs.unreadable);
        let now = self.0.now();
        Ok(runs.items.iter().filter(|run| overdue(run, now)).count())
    }
}
