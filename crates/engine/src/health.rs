//! Health reports. Each change is one transaction on the object that the report is about.

use crate::Engine;
use crate::admission::event;
use model::filter::Filter;
use model::health::{AlertCounts, ReportChange, Reports};
use model::here;
use model::refusal::{Reason, Refusal};
use model::run::actions::Requester;
use model::target::{TargetId, TargetKind};
use model::time::Timestamp;
use store::{Cause, Listed, ObjectReports, Result, Tx};

#[derive(Clone)]
pub struct HealthReports(pub(crate) Engine);

impl HealthReports {
    /// The health reports of an object.
    pub async fn get(&self, object: &TargetId) -> Result<Reports> {
        self.0.store().read(object.clone(), |object, tx| Box::pin(get(tx, object))).await
    }

    /// Objects with alerts, by key, after `after`.
    pub async fn list(
        &self,
        filter: Filter,
        after: &str,
        limit: usize,
    ) -> Result<Listed<ObjectReports>> {
        let input = (filter, after.to_string(), limit);
        let found = self.0.store().scan(input, |(filter, after, limit), tx| {
            Box::pin(tx.health_list(filter, after, *limit))
        });
        let page = found.await?;
        self.0.store().unreadable().record(&page.unreadable);
        Ok(page)
    }

    /// Changes the report of one source. Idempotent.
    pub async fn change(
        &self,
        object: &TargetId,
        source: String,
        change: ReportChange,
        who: Requester,
    ) -> Result<Reports> {
        let source = model::health::source("source", &source)?;
        let change = change.checked()?;
        let change =
            ChangeHealth { object: object.clone(), source, change, who, now: self.0.now() };
        self.0
            .store()
            .retry_write("change_health", change, |change, tx| Box::pin(change.run(tx)))
            .await
    }

    /// The number of alerts of each kind, for the metrics.
    pub async fn tally(&self) -> Result<Vec<(TargetKind, AlertCounts)>> {
        self.0.store().scan((), |(), tx| Box::pin(tx.health_tally())).await
    }
}

async fn get(tx: &mut Tx, object: &TargetId) -> Result<Reports> {
    if !tx.target_exists(object).await? {
        return Err(crate::holds::unknown(object).into());
    }
    tx.health(object).await
}

struct ChangeHealth {
    object: TargetId,
    source: String,
    change: ReportChange,
    who: Requester,
    now: Timestamp,
}

impl ChangeHealth {
    async fn run(&self, tx: &mut Tx) -> Result<Reports> {
        let (object, source) = (&self.object, &self.source);
        if let ReportChange::Remove(ids) = &self.change {
            let known = tx.health(object).await?;
            let report = known.get(source).ok_or_else(|| self.nothing("no report"))?;
            if let Some(id) = ids.iter().find(|id| !report.alerts.contains_key(*id)) {
                return Err(self.nothing(&format!("no alert {id}")).into());
            }
        }
        let message = self.change.said(source);
        let event = event(Cause::Request, &self.who.by, message, here!(), self.now);
        tx.change_health(object, source, &self.change, &event).await
    }
}

impl ChangeHealth {
    /// Removing an unknown alert is refused: the id is probably mistyped.
    fn nothing(&self, what: &str) -> Refusal {
        let message = format!("there is {what} of {} on {}", self.source, self.object);
        Refusal::new(Reason::NotFound, message).next(format!("farrier health get {}", self.object))
    }
}
