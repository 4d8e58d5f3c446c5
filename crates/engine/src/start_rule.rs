//! The records of windows and freezes. Admission asks them; see `admission::window`.

use crate::Engine;
use crate::admission::event;
use model::filter::Filter;
use model::here;
use model::refusal::{Reason, Refusal};
use model::time::Timestamp;
use model::version::check_version;
use model::window::{
    HoldsFor, MAX_RULES, StartRule, StartRuleId, StartRuleKind, StartTerms, WeeklyWindows,
};
use store::{Cause, Listed, Result, Tx};

/// The fields of a window to change; a field without a value stays.
#[derive(Debug, Clone, Default)]
pub struct WindowUpdate {
    pub filter: Option<String>,
    pub open: Option<WeeklyWindows>,
    pub holds_for: Option<HoldsFor>,
}

/// The service of the windows and freezes.
#[derive(Clone)]
pub struct StartRules(pub(crate) Engine);

impl StartRules {
    /// Creates a window or a freeze. Idempotent. Freezes that have ended are removed.
    pub async fn create(&self, rule: StartRule) -> Result<StartRule> {
        let now = self.0.now();
        let rule = StartRule { created_at: now, updated_at: now, ..rule }.checked(now)?;
        let written = self
            .0
            .store()
            .retry_write("create_start_rule", rule, |rule, tx| Box::pin(create(tx, rule)));
        written.await
    }

    pub async fn get(&self, id: &StartRuleId) -> Result<StartRule> {
        let found = self.0.store().read(id.clone(), |id, tx| Box::pin(known(tx, id)));
        found.await
    }

    /// One page of the windows, or of the freezes, that match, by name.
    pub async fn list(
        &self,
        kind: StartRuleKind,
        filter: Filter,
        after: &str,
        limit: i64,
    ) -> Result<Listed<StartRule>> {
        let input = (kind, filter, after.to_string(), limit);
        let found = self.0.store().scan(input, |(kind, filter, after, limit), tx| {
            Box::pin(tx.start_rules(*kind, filter, after, *limit))
        });
        found.await
    }

    /// The number of windows, and of the freezes that hold now.
    pub async fn tally(&self) -> Result<(usize, usize)> {
        let now = self.0.now();
        let all = self.0.store().read(now, |now, tx| Box::pin(tx.start_rules_in_force(true, *now)));
        let all = all.await?;
        let windows = all.iter().filter(|rule| rule.id.kind == StartRuleKind::Window).count();
        Ok((windows, all.len() - windows))
    }

    /// Changes a window, at this version if one is named. Idempotent.
    pub async fn update_window(
        &self,
        id: StartRuleId,
        update: WindowUpdate,
        version: Option<i64>,
        by: String,
    ) -> Result<StartRule> {
        let change = ChangeRule { id, version, by, now: self.0.now() };
        let input = (change, update);
        let written = self.0.store().retry_write("update_window", input, |(change, update), tx| {
            Box::pin(change.update(tx, update))
        });
        written.await
    }

    /// Deletes a window, or ends a freeze, at this version if one is named.
    pub async fn delete(
        &self,
        id: StartRuleId,
        version: Option<i64>,
        by: String,
    ) -> Result<StartRule> {
        let change = ChangeRule { id, version, by, now: self.0.now() };
        let written = self
            .0
            .store()
            .retry_write("delete_start_rule", change, |change, tx| Box::pin(change.delete(tx)));
        written.await
    }
}

async fn known(tx: &mut Tx, id: &StartRuleId) -> Result<StartRule> {
    let kind = id.kind.as_str();
    let found = tx.start_rule(id).await?;
    Ok(found.ok_or_else(|| Refusal::not_found(kind, &id.name, &format!("farrier {kind} list")))?)
}

async fn create(tx: &mut Tx, desired: &StartRule) -> Result<StartRule> {
    let now = desired.created_at;
    tx.lock_start_rules().await?;
    let stored = tx.start_rule(&desired.id).await?;
    let ended = |rule: &StartRule| rule.has_ended(now);
    if let Some(known) = stored.as_ref().filter(|known| !ended(known)) {
        return match known.same_as(desired) {
            true => Ok(known.clone()),
            false => Err(desired.exists_already().into()),
        };
    }
    let all = Filter::default();
    let freezes = tx.start_rules(StartRuleKind::Freeze, &all, "", MAX_RULES as i64).await?;
    let others = freezes.items.iter().filter(|rule| ended(rule) && rule.id != desired.id);
    for rule in others {
        let event = event(Cause::Engine, "engine", "it had ended".into(), here!(), now);
        tx.delete_start_rule(rule, &event)?;
    }
    if stored.is_none() && tx.count_start_rules().await? >= MAX_RULES as i64 {
        let message = format!("there are {MAX_RULES} windows and freezes");
        let refusal = Refusal::new(Reason::TooManyStartRules, message);
        let next = "farrier window list   # delete one that is not needed";
        return Err(refusal.next(next).into());
    }
    let mut rule = desired.clone();
    let event = event(Cause::Request, &rule.created_by, rule.describe(), here!(), now);
    match stored {
        // Its history goes on.
        Some(stored) => {
            rule.version = stored.version;
            tx.update_start_rule(&mut rule, &event)?;
        }
        None => tx.insert_start_rule(&mut rule, &event).await?,
    }
    Ok(rule)
}

struct ChangeRule {
    id: StartRuleId,
    version: Option<i64>,
    by: String,
    now: Timestamp,
}

impl ChangeRule {
    async fn load(&self, tx: &mut Tx) -> Result<StartRule> {
        tx.lock_start_rules().await?;
        let found = known(tx, &self.id).await?;
        let object = format!("the {} {}", self.id.kind.as_str(), self.id.name);
        check_version(object, found.version, self.version, self.id.show())?;
        Ok(found)
    }

    async fn update(&self, tx: &mut Tx, update: &WindowUpdate) -> Result<StartRule> {
        let found = self.load(tx).await?;
        let WindowUpdate { filter, open, holds_for } = update.clone();
        let after = StartRule {
            filter: filter.unwrap_or_else(|| found.filter.clone()),
            holds_for: holds_for.unwrap_or(found.holds_for),
            terms: open.map_or_else(|| found.terms.clone(), StartTerms::Open),
            updated_at: self.now.max(found.updated_at),
            ..found.clone()
        };
        if after.same_as(&found) {
            return Ok(found);
        }
        let mut after = after.checked(self.now)?;
        let message = format!("{}; it was: {}", after.describe(), found.describe());
        let event = event(Cause::Request, &self.by, message, here!(), after.updated_at);
        tx.update_start_rule(&mut after, &event)?;
        Ok(after)
    }

    async fn delete(&self, tx: &mut Tx) -> Result<StartRule> {
        let found = self.load(tx).await?;
        let message = match found.id.kind {
            StartRuleKind::Window => "deleted",
            StartRuleKind::Freeze => "ended",
        };
        let event = event(Cause::Request, &self.by, message.into(), here!(), self.now);
        tx.delete_start_rule(&found, &event)?;
        Ok(found)
    }
}
