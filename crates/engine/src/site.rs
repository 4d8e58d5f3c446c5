//! The service for sites.

use crate::access::Caller;
use crate::admission::event;
use crate::node::no_site;
use crate::{Change, Engine};
use model::access::Permission;
use model::here;
use model::id::SiteId;
use model::machine::Labels;
use model::order::Selection;
use model::refusal::{Reason, Refusal};
use model::run::actions::Requester;
use model::site::{Site, SiteSpec};
use model::text;
use model::time::Timestamp;
use model::version::check_version;
use providers::Providers;
use store::{Cause, NewEvent, RecordPage, Result, Tx};

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
    /// Creates a site. Idempotent: the same description returns the existing site.
    pub async fn create(&self, site: SiteDescription, who: Requester) -> Result<Site> {
        text::check_labels("site.labels", &site.labels)?;
        let write = CreateSite { site, write: self.write(who) };
        let written =
            self.0.store().retry_write("create_site", write, |write, tx| Box::pin(write.run(tx)));
        let site = written.await?;
        self.0.nodes().probe_sites_soon();
        Ok(site)
    }

    /// Changes spec and labels of a known site, at this version if one is named.
    pub async fn update(
        &self,
        id: SiteId,
        change: Change<Site, SiteDescription>,
        version: Option<i64>,
        who: Requester,
    ) -> Result<Site> {
        let (name, by) = (id.clone(), who.by.clone());
        let update = UpdateSite { id, change, version, write: self.write(who) };
        let written = self
            .0
            .store()
            .retry_write("update_site", update, |update, tx| Box::pin(update.run(tx)));
        let site = self.0.trace_refusal(name.as_str(), (&by, "update"), written.await).await?;
        self.0.nodes().probe_sites_soon();
        Ok(site)
    }

    fn write(&self, who: Requester) -> WriteSite {
        let (caller, providers) = (self.0.caller().clone(), self.0.providers().clone());
        WriteSite { who, caller, providers, now: self.0.now() }
    }

    pub async fn get(&self, id: &SiteId) -> Result<Site> {
        let found = self
            .0
            .store()
            .read(id.clone(), |id, tx| Box::pin(tx.record::<Site>(id.as_str())))
            .await?;
        Ok(found.ok_or_else(|| no_site(id))?)
    }

    /// The time when the site's MAAS last answered, which is the age of the machines' observed
    /// state.
    pub async fn answered_at(&self, id: &SiteId) -> Result<Option<Timestamp>> {
        self.0.store().read(id.clone(), |id, tx| Box::pin(tx.last_site_answer(id))).await
    }

    pub async fn list(
        &self,
        selection: impl Into<Selection>,
        after: Option<String>,
        limit: usize,
    ) -> Result<RecordPage<Site>> {
        let input = (self.0.caller().visible(selection), after, limit);
        let found = self.0.store().scan(input, |(selection, after, limit), tx| {
            Box::pin(tx.selected_records(selection, after.as_deref(), *limit))
        });
        let page = found.await?;
        self.0.store().unreadable().record(&page.unreadable);
        Ok(page)
    }

    /// Deletes a site that has no nodes, at this version if one is named.
    pub async fn delete(&self, id: &SiteId, version: Option<i64>, who: Requester) -> Result<Site> {
        let by = who.by.clone();
        let input = (id.clone(), version, who, self.0.now());
        let done =
            self.0.store().retry_write("delete_site", input, |(id, version, who, now), tx| {
                Box::pin(delete(tx, id, *version, who, *now))
            });
        self.0.trace_refusal(id.as_str(), (&by, "delete"), done.await).await
    }
}

struct CreateSite {
    site: SiteDescription,
    write: WriteSite,
}

impl CreateSite {
    async fn run(&self, tx: &mut Tx) -> Result<Site> {
        let SiteDescription { id, spec, labels } = &self.site;
        let spec = spec.clone().checked()?;
        self.write.check_provider(&spec)?;
        if let Some(known) = tx.record::<Site>(id.as_str()).await? {
            if (&known.spec, &known.head.labels) == (&spec, labels) {
                return Ok(known);
            }
            let message = format!("{id} exists already, with other settings");
            return Err(Refusal::new(Reason::SiteExists, message)
                .next(format!("farrier site update {id} …"))
                .into());
        }
        self.write.check_programs(&SiteSpec::default(), &spec)?;
        let mut site = Site::new(id, spec, labels.clone(), self.write.now);
        tx.insert_record(&mut site, &self.write.event("created", here!())).await?;
        Ok(site)
    }
}

struct UpdateSite {
    id: SiteId,
    change: Change<Site, SiteDescription>,
    version: Option<i64>,
    write: WriteSite,
}

impl UpdateSite {
    async fn run(&self, tx: &mut Tx) -> Result<Site> {
        let id = &self.id;
        let stored = tx.record_locked::<Site>(id.as_str()).await?.ok_or_else(|| no_site(id))?;
        check_site_version(&stored, self.version)?;
        let SiteDescription { spec, labels, .. } = (self.change)(&stored)?;
        text::check_labels("site.labels", &labels)?;
        let mut after = stored.updated(&spec, &labels)?;
        self.write.check_provider(&after.spec)?;
        self.write.check_programs(&stored.spec, &after.spec)?;
        if stored.spec.provider != after.spec.provider
            && let Some(node) = tx.live_node_of_site(id).await?
        {
            let message = format!("{node} belongs to {id}: its provider cannot change");
            return Err(in_use(message).into());
        }
        if after != stored {
            tx.delete_site_answer(id)?;
            tx.update_record(&mut after, &self.write.event("changed", here!()))?;
        }
        Ok(after)
    }
}

/// The input that creating and updating a site share.
struct WriteSite {
    who: Requester,
    caller: Caller,
    providers: Providers,
    now: Timestamp,
}

impl WriteSite {
    fn check_provider(&self, spec: &SiteSpec) -> Result<()> {
        if self.providers.get(&spec.provider).is_some() {
            return Ok(());
        }
        Err(self.providers.refuse_unknown("site.spec.provider", &spec.provider).into())
    }

    /// A template and scripts run as root on every machine of the site.
    fn check_programs(&self, before: &SiteSpec, after: &SiteSpec) -> Result<()> {
        let programs = |spec: &SiteSpec| (spec.cloud_init.clone(), spec.commissioning.clone());
        if programs(before) == programs(after) {
            return Ok(());
        }
        let what = "changing the cloud-init template or the commissioning of a site";
        Ok(self.caller.require(Permission::Execute, what)?)
    }

    fn event(&self, message: &str, line: &str) -> NewEvent {
        event(Cause::Request, &self.who.by, message.into(), line, self.now)
    }
}

fn check_site_version(site: &Site, expected: Option<i64>) -> Result<()> {
    let (id, next) = (&site.head.id, format!("farrier site get {}", site.head.id));
    Ok(check_version(id, site.head.version, expected, next)?)
}

fn in_use(message: String) -> Refusal {
    Refusal::new(Reason::SiteInUse, message).next("farrier node list")
}

async fn delete(
    tx: &mut Tx,
    id: &SiteId,
    version: Option<i64>,
    who: &Requester,
    now: Timestamp,
) -> Result<Site> {
    let found = tx.record_locked::<Site>(id.as_str()).await?;
    let site = found.ok_or_else(|| no_site(id))?;
    check_site_version(&site, version)?;
    if let Some(node) = tx.live_node_of_site(id).await? {
        let message = format!("{node} belongs to {}: decommission it first", id);
        return Err(in_use(message).into());
    }
    let event = event(Cause::Request, &who.by, "deleted".into(), here!(), now);
    tx.delete_site_answer(id)?;
    tx.remove_record(&site, &event)?;
    Ok(site)
}
