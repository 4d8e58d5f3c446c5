//! Finds the object that a person means by a serial number, an address or a name.

use super::Explained;
use crate::Engine;
use model::device::Device;
use model::filter::Filter;
use model::id::ObjectId;
use model::known_as::{ambiguous, is_device, is_machine, is_record};
use model::lifecycle::Lifecycle;
use model::power_shelf::PowerShelf;
use model::refusal::RefusalKind;
use model::switch::Switch;
use store::{Result, StoreError};

/// The number of objects in one read.
const PAGE: usize = 1_000;

impl Engine {
    /// Explains the object that a person means. The exact id of an object wins.
    pub async fn explain_known_as(&self, text: &str) -> Result<(String, Explained)> {
        let exact = match ObjectId::parse(text) {
            Ok(id) => self.explain(id.as_str()).await,
            Err(refusal) => Err(refusal.into()),
        };
        let Err(unknown) = exact else { return exact.map(|found| (text.to_string(), found)) };
        let id = self.find_known_as(text, unknown).await?;
        let explained = self.explain(&id).await?;
        Ok((id, explained))
    }

    /// The id of the one object that a person may mean. `unknown` is the answer if there is none.
    pub async fn find_known_as(&self, text: &str, unknown: StoreError) -> Result<String> {
        let not_found = match &unknown {
            StoreError::Refused(refusal) => {
                matches!(refusal.kind(), RefusalKind::NotFound | RefusalKind::Invalid)
            }
            StoreError::Unavailable(_) | StoreError::Conflict | StoreError::Corrupt(_) => false,
        };
        let text = text.trim();
        if !not_found || text.is_empty() {
            return Err(unknown);
        }
        let mut candidates = self.machines_known_as(text).await?;
        candidates.extend(self.devices_known_as::<Switch>(text).await?);
        candidates.extend(self.devices_known_as::<PowerShelf>(text).await?);
        candidates.extend(self.records_known_as(text).await?);
        candidates.sort();
        match candidates.as_slice() {
            [] => Err(unknown),
            [only] => Ok(only.clone()),
            several => Err(ambiguous(text, several).into()),
        }
    }

    async fn machines_known_as(&self, text: &str) -> Result<Vec<String>> {
        let (mut found, mut after) = (Vec::new(), None);
        loop {
            let page = self.machines().list(Filter::default(), after, PAGE as i64).await?;
            let machines = page.machines.iter().filter(|machine| is_machine(machine, text));
            found.extend(machines.map(|machine| machine.id.to_string()));
            after = page.next;
            if after.is_none() {
                return Ok(found);
            }
        }
    }

    async fn devices_known_as<D: Device>(&self, text: &str) -> Result<Vec<String>> {
        let (mut found, mut after) = (Vec::new(), None);
        loop {
            let page = self.devices().list::<D>(Filter::default(), after, PAGE).await?;
            let known = page.records.iter().filter(|one| is_device(one.head(), one.spec(), text));
            found.extend(known.map(|one| one.head().id.clone()));
            after = page.next;
            if after.is_none() {
                return Ok(found);
            }
        }
    }

    async fn records_known_as(&self, text: &str) -> Result<Vec<String>> {
        let racks = self.racks().list(Filter::default(), None, PAGE).await?.records;
        let sites = self.sites().list(Filter::default(), None, PAGE).await?.records;
        let racks = racks.iter().map(Lifecycle::head);
        let known = racks.chain(sites.iter().map(Lifecycle::head));
        Ok(known.filter(|head| is_record(head, text)).map(|head| head.id.clone()).collect())
    }
}
