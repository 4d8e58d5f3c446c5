//! The door for sites: made, changed, looked at, removed.

use crate::Engine;
use crate::nodes::no_site;
use crate::submit::event;
use model::here;
use model::id::SiteId;
use model::machine::Labels;
use model::refusal::Refusal;
use model::run::act::Who;
use model::site::{Site, SiteSpec};
use model::text;
use model::time::Timestamp;
use store::{Cause, RecordFilter, RecordPage, Result, Tx, Work};

/// A site as its owner describes it.
#[derive(Debug, Clone)]
pub struct DescribedSite {
    pub id: SiteId,
    pub spec: SiteSpec,
    pub labels: Labels,
}

impl Engine {
    /// Makes a site, or changes a known one; at this version if one is named.
    pub async fn put_site(
        &self,
        site: DescribedSite,
        version: Option<i64>,
        who: Who,
    ) -> Result<Site> {
        let spec = site.spec.clone().checked()?;
        text::labels("site.labels", &site.labels)?;
        if self.providers().get(&spec.provider).is_none() {
            let problem = format!("{:?} is not a provider of this server", spec.provider);
            let names = self.providers().names().join(", ");
            let instead = format!("use one of: {names}");
            return Err(Refusal::invalid("site.spec.provider", problem, instead).into());
        }
        let work = || PutSite {
            site: DescribedSite { spec: spec.clone(), ..site.clone() },
            version,
            who: who.clone(),
            now: self.now(),
        };
        let site = self.racing(|| self.store().write(work())).await?;
        self.look_at_sites();
        Ok(site)
    }

    pub async fn site(&self, id: &SiteId) -> Result<Site> {
        let found = self.store().read(GetSite { id: id.clone() }).await?;
        Ok(found.ok_or_else(|| no_site(id))?)
    }

    /// When its MAAS last answered: that old is what is known of its nodes' machines.
    pub async fn site_answered(&self, id: &SiteId) -> Result<Option<Timestamp>> {
        self.store().read(AnswerOf { id: id.clone() }).await
    }

    pub async fn sites(&self, after: Option<String>, limit: usize) -> Result<RecordPage<Site>> {
        self.store().scan(ListSites { after, limit }).await
    }

    /// Removes a site that no node belongs to.
    pub async fn delete_site(&self, id: &SiteId, who: Who) -> Result<Site> {
        let work = || DeleteSite { id: id.clone(), who: who.clone(), now: self.now() };
        self.racing(|| self.store().write(work())).await
    }
}

struct PutSite {
    site: DescribedSite,
    version: Option<i64>,
    who: Who,
    now: Timestamp,
}

impl Work for PutSite {
    type Out = Site;

    async fn run(&self, tx: &mut Tx) -> Result<Site> {
        let DescribedSite { id, spec, labels } = &self.site;
        let event =
            |what: &str| event(Cause::Request, &self.who.by, what.to_string(), here!(), self.now);
        let Some(mut known) = tx.record_locked::<Site>(id.as_str()).await? else {
            if self.version.is_some() {
                return Err(no_site(id).into());
            }
            let mut site = Site::new(id, spec.clone(), labels.clone(), self.now);
            tx.insert_record(&mut site, &event("made")).await?;
            return Ok(site);
        };
        if self.version.is_some_and(|version| version != known.head.version) {
            let said = format!("{id} is at version {} by now", known.head.version);
            let refusal = Refusal::precondition("VERSION_MOVED", said);
            return Err(refusal.next(format!("farrier site get {id}")).into());
        }
        let other = known.spec.provider != spec.provider;
        if other && let Some(node) = tx.site_in_use(id).await? {
            let said = format!("{node} belongs to {id}: its provider cannot change");
            return Err(in_use(said).into());
        }
        if (&known.spec, &known.head.labels) != (spec, labels) {
            known.spec = spec.clone();
            known.head.labels = labels.clone();
            (known.machines, known.unreachable) = (None, None);
            tx.forget_answer(id)?;
            tx.update_record(&mut known, &event("changed"))?;
        }
        Ok(known)
    }
}

fn in_use(said: String) -> Refusal {
    Refusal::precondition("SITE_IN_USE", said).next("farrier node list")
}

struct GetSite {
    id: SiteId,
}

impl Work for GetSite {
    type Out = Option<Site>;

    async fn run(&self, tx: &mut Tx) -> Result<Option<Site>> {
        tx.record::<Site>(self.id.as_str()).await
    }
}

struct AnswerOf {
    id: SiteId,
}

impl Work for AnswerOf {
    type Out = Option<Timestamp>;

    async fn run(&self, tx: &mut Tx) -> Result<Option<Timestamp>> {
        tx.answer_of(&self.id).await
    }
}

struct ListSites {
    after: Option<String>,
    limit: usize,
}

impl Work for ListSites {
    type Out = RecordPage<Site>;

    async fn run(&self, tx: &mut Tx) -> Result<RecordPage<Site>> {
        tx.records(&RecordFilter::default(), self.after.as_deref(), self.limit).await
    }
}

struct DeleteSite {
    id: SiteId,
    who: Who,
    now: Timestamp,
}

impl Work for DeleteSite {
    type Out = Site;

    async fn run(&self, tx: &mut Tx) -> Result<Site> {
        let found = tx.record_locked::<Site>(self.id.as_str()).await?;
        let site = found.ok_or_else(|| no_site(&self.id))?;
        if let Some(node) = tx.site_in_use(&self.id).await? {
            let said = format!("{node} belongs to {}: decommission it first", self.id);
            return Err(in_use(said).into());
        }
        let event = event(Cause::Request, &self.who.by, "deleted".into(), here!(), self.now);
        tx.forget_answer(&self.id)?;
        tx.remove_record(&site, &event)?;
        Ok(site)
    }
}
