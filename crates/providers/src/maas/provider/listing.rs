//! The list of a region's machines. MAAS shows all details of each machine and is slow at it, so
//! there is one list at a time per region, and concurrent callers share it.
//!
//! A poll of the sites needs their nodes only. Where these are few, MAAS is asked for them by their
//! system ids, and for the whole region once in a while, to count its machines.

use super::find::ListedMachine;
use crate::maas::{Maas, MachineFilter};
use model::fault::Result;
use model::id::SiteId;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::Mutex as AsyncMutex;
use tokio::time::Instant;

/// The most machines that one request names, so that its URL stays short enough.
const MAX_NAMED: usize = 200;
/// The interval at which a poll reads the whole region although its nodes are few.
const WHOLE_INTERVAL: Duration = Duration::from_secs(3_600);
/// A poll asks for the nodes alone where the region has more than this many times as many machines.
const WORTH_NAMING: usize = 2;

type Machines = Arc<Vec<ListedMachine>>;

#[derive(Default)]
pub(super) struct RegionList {
    /// Held during a request: there is one at a time.
    last: AsyncMutex<LastLists>,
    /// The system ids of the nodes of each site, as it was last polled.
    wanted: Mutex<BTreeMap<SiteId, BTreeSet<String>>>,
}

#[derive(Default)]
struct LastLists {
    whole: Option<(Instant, Machines)>,
    named: Option<(Instant, BTreeSet<String>, Machines)>,
}

/// The machines of a poll, and how many the region had when it was last read as a whole.
pub(super) struct PolledMachines {
    pub machines: Machines,
    pub total: usize,
}

impl RegionList {
    /// All machines of the region, by a request that starts after the call.
    pub async fn whole(&self, maas: &Maas) -> Result<Machines> {
        let called_at = Instant::now();
        self.last.lock().await.whole_since(maas, called_at).await
    }

    /// The machines with these MAC addresses and this system id.
    pub async fn matching(
        &self,
        maas: &Maas,
        macs: &[String],
        id: Option<&str>,
    ) -> Result<Machines> {
        let mut found = Vec::new();
        if !macs.is_empty() {
            let filter = MachineFilter { macs: macs.to_vec(), ..MachineFilter::default() };
            found.extend(maas.machines(&filter).await?);
        }
        if let Some(id) = id.filter(|id| !found.iter().any(|one| one.system_id == *id)) {
            let filter = MachineFilter { ids: vec![id.to_owned()], ..MachineFilter::default() };
            found.extend(maas.machines(&filter).await?);
        }
        Ok(Arc::new(found.iter().map(ListedMachine::of).collect()))
    }

    /// Polls the nodes of a site. The sites of a region are polled at once and share a list that
    /// was requested up to `max_age` before.
    pub async fn poll(
        &self,
        maas: &Maas,
        (site, ids): (&SiteId, BTreeSet<String>),
        max_age: Duration,
    ) -> Result<PolledMachines> {
        let fresh = Instant::now() - max_age;
        let wanted = self.want(site, ids);
        let mut last = self.last.lock().await;
        let known = last.whole.as_ref().map(|(at, machines)| (*at, machines.len()));
        let total = match known {
            Some((at, total))
                if at.elapsed() < WHOLE_INTERVAL && wanted.len() * WORTH_NAMING < total =>
            {
                total
            }
            Some(_) | None => {
                let machines = last.whole_since(maas, fresh).await?;
                return Ok(PolledMachines { total: machines.len(), machines });
            }
        };
        // The whole list may be younger than the last one by names.
        if let Some((at, machines)) = &last.whole
            && *at >= fresh
        {
            return Ok(PolledMachines { machines: Arc::clone(machines), total });
        }
        let machines = last.named_since(maas, fresh, wanted).await?;
        Ok(PolledMachines { machines, total })
    }

    /// Records the ids of a site and returns those of all sites.
    fn want(&self, site: &SiteId, ids: BTreeSet<String>) -> BTreeSet<String> {
        let mut wanted = self.wanted.lock().unwrap_or_else(PoisonError::into_inner);
        wanted.insert(site.clone(), ids);
        wanted.values().flatten().cloned().collect()
    }
}

impl LastLists {
    async fn whole_since(&mut self, maas: &Maas, since: Instant) -> Result<Machines> {
        if let Some((requested, machines)) = &self.whole
            && *requested >= since
        {
            return Ok(Arc::clone(machines));
        }
        let requested = Instant::now();
        let machines = maas.machines(&MachineFilter::default()).await?;
        let machines: Machines = Arc::new(machines.iter().map(ListedMachine::of).collect());
        self.whole = Some((requested, Arc::clone(&machines)));
        Ok(machines)
    }

    async fn named_since(
        &mut self,
        maas: &Maas,
        since: Instant,
        wanted: BTreeSet<String>,
    ) -> Result<Machines> {
        if let Some((requested, named, machines)) = &self.named
            && *requested >= since
            && wanted.is_subset(named)
        {
            return Ok(Arc::clone(machines));
        }
        let requested = Instant::now();
        let mut machines = Vec::new();
        let ids: Vec<&String> = wanted.iter().collect();
        for ids in ids.chunks(MAX_NAMED) {
            let ids = ids.iter().map(|id| (*id).clone()).collect();
            let filter = MachineFilter { ids, ..MachineFilter::default() };
            machines.extend(maas.machines(&filter).await?.iter().map(ListedMachine::of));
        }
        let machines: Machines = Arc::new(machines);
        self.named = Some((requested, wanted, Arc::clone(&machines)));
        Ok(machines)
    }
}
