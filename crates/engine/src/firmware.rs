//! The firmware catalogue, and the history of applied firmware.

use crate::Engine;
use crate::admission::event;
use model::filter::Filter;
use model::firmware::update::FirmwareUpdate;
use model::firmware::{AppliedFirmware, Firmware};
use model::here;
use model::host::{Host, HostState};
use model::id::FirmwareId;
use model::lifecycle::Lifecycle;
use model::plan::RunType;
use model::refusal::{Reason, Refusal};
use model::run::actions::Requester;
use model::time::Timestamp;
use model::version::check_version;
use store::{AppliedQuery, Cause, Listed, NewEvent, Result, Tx};

/// Operations or hosts per page.
const PAGE: i64 = 500;
/// The run types that apply firmware.
const APPLYING: [RunType; 2] = [RunType::Firmware, RunType::RackMaintenance];

/// The firmware catalogue and the history of applied firmware.
#[derive(Clone)]
pub struct FirmwareCatalog(pub(crate) Engine);

impl FirmwareCatalog {
    /// Adds a record to the catalogue. Idempotent.
    pub async fn create(&self, firmware: Firmware, who: Requester) -> Result<Firmware> {
        let firmware = Firmware { created_at: self.0.now(), ..firmware.checked()? };
        let input = (firmware, who);
        let written =
            self.0.store().retry_write("create_firmware", input, |(firmware, who), tx| {
                Box::pin(create(tx, firmware, who))
            });
        written.await
    }

    pub async fn get(&self, id: &FirmwareId) -> Result<Firmware> {
        let found = self.0.store().read(id.clone(), |id, tx| Box::pin(tx.firmware(id))).await?;
        Ok(found.ok_or_else(|| no_firmware(id))?)
    }

    /// Records that match, by id, after `after`.
    pub async fn list(&self, filter: Filter, after: &str, limit: i64) -> Result<Listed<Firmware>> {
        let input = (filter, after.to_string(), limit);
        let found = self.0.store().scan(input, |(filter, after, limit), tx| {
            Box::pin(tx.firmware_list(filter, after, *limit))
        });
        let page = found.await?;
        self.0.store().unreadable().record(&page.unreadable);
        Ok(page)
    }

    /// Changes the two flags of a record, at this version if one is named. Idempotent.
    pub async fn update(
        &self,
        id: FirmwareId,
        update: FirmwareUpdate,
        version: Option<i64>,
        who: Requester,
    ) -> Result<Firmware> {
        let input = (ChangeFirmware { id, version, who, now: self.0.now() }, update.checked()?);
        self.0
            .store()
            .retry_write("update_firmware", input, |(change, update), tx| {
                Box::pin(change.update(tx, update))
            })
            .await
    }

    /// Deletes a record that is no default and is not being applied, at this version if one is
    /// named.
    pub async fn delete(
        &self,
        id: FirmwareId,
        version: Option<i64>,
        who: Requester,
    ) -> Result<Firmware> {
        let change = ChangeFirmware { id, version, who, now: self.0.now() };
        self.0
            .store()
            .retry_write("delete_firmware", change, |change, tx| Box::pin(change.delete(tx)))
            .await
    }

    /// Applied firmware that matches.
    pub async fn applied(&self, query: AppliedQuery, limit: i64) -> Result<Vec<AppliedFirmware>> {
        let input = (query, limit);
        let found =
            self.0.store().scan(input, |(query, limit), tx| Box::pin(tx.applied(query, *limit)));
        found.await
    }
}

pub(crate) fn no_firmware(id: &FirmwareId) -> Refusal {
    Refusal::not_found("firmware", id, "farrier firmware list")
}

async fn create(tx: &mut Tx, firmware: &Firmware, who: &Requester) -> Result<Firmware> {
    let id = &firmware.id;
    if let Some(known) = tx.firmware(id).await? {
        if known.same_as(firmware) {
            return Ok(known);
        }
        let text = format!(
            "the firmware {id} is in the catalogue with other contents, and a record never changes"
        );
        return Err(Refusal::new(Reason::FirmwareExists, text)
            .next(format!("farrier firmware get {id}   # or create it under a new id"))
            .into());
    }
    let message = format!("created for hardware type {}", firmware.hardware_type);
    let event = event(Cause::Request, &who.by, message, here!(), firmware.created_at);
    if firmware.is_default {
        step_down(tx, firmware, &event).await?;
    }
    let mut created = firmware.clone();
    tx.insert_firmware(&mut created, &event).await?;
    Ok(created)
}

/// Clears the present default of the hardware type: there is at most one.
async fn step_down(tx: &mut Tx, next: &Firmware, event: &NewEvent) -> Result<()> {
    let default = tx.default_firmware(&next.hardware_type).await?;
    if let Some(before) = default.filter(|before| before.id != next.id) {
        let message = format!("no longer the default of {}: {} is", next.hardware_type, next.id);
        let mut before = Firmware { is_default: false, ..before };
        tx.update_firmware(&mut before, &NewEvent { message, ..event.clone() })?;
    }
    Ok(())
}

struct ChangeFirmware {
    id: FirmwareId,
    version: Option<i64>,
    who: Requester,
    now: Timestamp,
}

impl ChangeFirmware {
    async fn load(&self, tx: &mut Tx) -> Result<Firmware> {
        let id = &self.id;
        let found = tx.firmware(id).await?.ok_or_else(|| no_firmware(id))?;
        let next = format!("farrier firmware get {id}");
        check_version(format!("the firmware {id}"), found.version, self.version, next)?;
        Ok(found)
    }

    async fn update(&self, tx: &mut Tx, update: &FirmwareUpdate) -> Result<Firmware> {
        let found = self.load(tx).await?;
        let mut after = update.apply(&found)?;
        if after == found {
            return Ok(after);
        }
        let event =
            event(Cause::Request, &self.who.by, describe(&found, &after), here!(), self.now);
        if after.is_default && !found.is_default {
            step_down(tx, &after, &event).await?;
        }
        tx.update_firmware(&mut after, &event)?;
        Ok(after)
    }

    async fn delete(&self, tx: &mut Tx) -> Result<Firmware> {
        let found = self.load(tx).await?;
        check_unused(tx, &found).await?;
        let event = event(Cause::Request, &self.who.by, "deleted".into(), here!(), self.now);
        tx.delete_firmware(&found, &event)?;
        Ok(found)
    }
}

/// The changes of a record in words, for its history.
fn describe(before: &Firmware, after: &Firmware) -> String {
    let mut changes = Vec::new();
    if before.is_default != after.is_default {
        changes.push(format!("made the default of {}", after.hardware_type));
    }
    if before.available != after.available {
        let text = if after.available { "made available" } else { "made unavailable" };
        changes.push(text.to_string());
    }
    changes.join(", ")
}

/// A default record, or one that is being applied, must not be deleted.
async fn check_unused(tx: &mut Tx, found: &Firmware) -> Result<()> {
    let id = &found.id;
    if found.is_default {
        let message =
            format!("the firmware {id} is the default of hardware type {}", found.hardware_type);
        return Err(Refusal::new(Reason::FirmwareIsDefault, message)
            .next("farrier firmware set-default ANOTHER")
            .into());
    }
    match applying(tx, found).await? {
        None => Ok(()),
        Some(user) => {
            let message = format!("the firmware {id} is being applied by {user}");
            Err(Refusal::new(Reason::FirmwareInUse, message)
                .next(format!("farrier why {user}"))
                .into())
        }
    }
}

/// The user of a record: an operation that applies it, or the machine of a host that requested it.
async fn applying(tx: &mut Tx, firmware: &Firmware) -> Result<Option<String>> {
    let mut after = String::new();
    loop {
        let runs = tx.active_runs_of(&APPLYING, &after, PAGE).await?;
        if let Some(run) = runs.iter().find(|run| firmware.installed_by(&run.spec.steps)) {
            return Ok(Some(run.spec.id.to_string()));
        }
        match runs.last() {
            Some(last) if runs.len() as i64 == PAGE => after = last.spec.id.to_string(),
            Some(_) | None => break,
        }
    }
    let filter = Filter::in_states(&HostState::UNDER_WAY);
    let mut after = None;
    loop {
        let page = tx.records::<Host>(&filter, after.as_deref(), PAGE as usize).await?;
        // An unreadable host may use the record.
        let page = page.complete()?;
        let requests = |host: &&Host| {
            let request = host.request.as_ref();
            request.is_some_and(|request| request.firmware.as_ref() == Some(&firmware.id))
        };
        if let Some(host) = page.records.iter().find(requests) {
            return Ok(Some(host.head().id.clone()));
        }
        match page.next {
            Some(next) => after = Some(next),
            None => return Ok(None),
        }
    }
}
