//! The service for sites.

use crate::Engine;
use crate::admission::event;
use crate::node::no_site;
use model::filter::Filter;
use model::here;
use model::id::SiteId;
use model::machine::Labels;
use model::refusal::Refusal;
use model::run::actions::Requester;
use model::site::{Site, SiteSpec};
use model::text;
use model::time::Timestamp;
use store::{Cause, RecordPage, Result, Tx};

/// A site as the operator describes it.
#[derive(Debug, Clone)]
pub struct SiteDescription {
    pub id: SiteId,
    pub spec: SiteSpec,
    pub labels: Labels,
}

#[derive(Clone)]
pub struct Sites(pub(crate) Engine);

impl Sites {
    /// Creates a site or replaces a known one, if `version` is the current one or none.
    pub async fn put(
        &self,
        site: SiteDescription,
        version: Option<i64>,
        who: Requester,
    ) -> Result<Site> {
        let spec = site.spec.clone().checked()?;
        text::check_labels("site.labels", &site.labels)?;
        if self.0.providers().get(&spec.provider).is_none() {
            let problem = format!("{:?} is not a provider of this server", spec.provider);
            let names = self.0.providers().names().join(", ");
            let instead = format!("use one of: {names}");
            return Err(Refusal::invalid("site.spec.provider", problem, instead).into());
        }
        let put =
            PutSite { site: SiteDescription { spec, ..site }, version, who, now: self.0.now() };
        let site =
            self.0.store().retry_write("put_site", put, |put, tx| Box::pin(put.run(tx))).await?;
        self.0.nodes().probe_sites_soon();
        Ok(site)
    }

    pub async fn get(&self, id: &SiteId) -> Result<Site> {
        let found = self
            .0
            .store()
            .read(id.clone(), |id, tx| Box::pin(tx.record::<Site>(id.as_str())))
            .await?;
        Ok(found.ok_or_else(|| no_site(id))?)
    }

    /// When the site's MAAS last answered, which is the age of the machines' observed state.
    pub async fn answered_at(&self, id: &SiteId) -> Result<Option<Timestamp>> {
        self.0.store().read(id.clone(), |id, tx| Box::pin(tx.last_site_answer(id))).await
    }

    pub async fn list(
        &self,
        filter: Filter,
        after: Option<String>,
        limit: usize,
    ) -> Result<RecordPage<Site>> {
        let input = (filter, after, limit);
        let found = self.0.store().scan(input, |(filter, after, limit), tx| {
            Box::pin(tx.records(filter, after.as_deref(), *limit))
        });
        found.await
    }

    /// Deletes a site that has no nodes.
    pub async fn delete(&self, id: &SiteId, who: Requester) -> Result<Site> {
        let input = (id.clone(), who, self.0.now());
        let written = self.0.store().retry_write("delete_site", input, |(id, who, now), tx| {
            Box::pin(delete(tx, id, who, *now))
        });
        written.await
    }
}

struct PutSite {
    site: SiteDescription,
    version: Option<i64>,
    who: Requester,
    now: Timestamp,
}

impl PutSite {
    async fn run(&self, tx: &mut Tx) -> Result<Site> {
        let SiteDescription { id, spec, labels } = &self.site;
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
            let message = format!("{id} is at version {} by now", known.head.version);
            let refusal = Refusal::precondition("VERSION_MOVED", message);
            return Err(refusal.next(format!("farrier site get {id}")).into());
        }
        let other = known.spec.provider != spec.provider;
        if other && let Some(node) = tx.live_node_of_site(id).await? {
            let message = format!("{node} belongs to {id}: its provider cannot change");
            return Err(in_use(message).into());
        }
        if (&known.spec, &known.head.labels) != (spec, labels) {
            known.spec = spec.clone();
            known.head.labels = labels.clone();
            (known.machines, known.unreachable) = (None, None);
            tx.delete_site_answer(id)?;
            tx.update_record(&mut known, &event("changed"))?;
        }
        Ok(known)
    }
}

fn in_use(message: String) -> Refusal {
    Refusal::precondition("SITE_IN_USE", message).next("farrier node list")
}

async fn delete(tx: &mut Tx, id: &SiteId, who: &Requester, now: Timestamp) -> Result<Site> {
    let found = tx.record_locked::<Site>(id.as_str()).await?;
    let site = found.ok_or_else(|| no_site(id))?;
    if let Some(node) = tx.live_node_of_site(id).await? {
        let message = format!("{node} belongs to {}: decommission it first", id);
        return Err(in_use(message).into());
    }
    let event = event(Cause::Request, &who.by, "deleted".into(), here!(), now);
    tx.delete_site_answer(id)?;
    tx.remove_record(&site, &event)?;
    Ok(site)
}
