//! The inventory of switches and power shelves: register, update, delete, retry. Each change is one
//! transaction with its event, which also updates the rack when a device moves.

mod polling;
mod predict;

use crate::admission::event;
use crate::change::Expected;
use crate::explain::load_dead_feeds;
use crate::holds::unknown;
use crate::scheduler::lifecycle::LoadContext;
use crate::topology::{self, DeviceLocation, check_feeding_shelves, check_slots};
use crate::{Change, Engine};
use model::device::{Device, retry};
use model::filter::Filter;
use model::here;
use model::id::{PowerShelfId, RackId, RunId, SwitchId};
use model::lifecycle::{DeviceContext, DeviceFailure, DeviceSpec, RecordHeader};
use model::machine::{Labels, MachineSpec};
use model::order::Selection;
use model::placement::DevicePlacement;
use model::power_shelf::PowerShelf;
use model::rack::Rack;
use model::refusal::Refusal;
use model::run::Run;
use model::run::actions::Requester;
use model::switch::Switch;
use model::target::{TargetId, TargetKind};
use model::time::Timestamp;
use model::version::check_version;
use model::why::{Explanation, explain_device, record_overdue};
use predict::follows;
use std::sync::Arc;
use store::{Cause, NewEvent, RecordPage, Result, StoreError, Tx};

/// The most devices of a kind that are counted for the metric of overdue ones.
const MAX_OVERDUE: usize = 1_000;

/// The desired spec and labels of a device.
#[derive(Debug, Clone)]
pub struct DescribedDevice {
    /// Empty: Farrier generates one.
    pub id: String,
    /// None: unchanged.
    pub spec: Option<PlacedSpec>,
    pub labels: Labels,
}

/// The addresses of a device, and its rack and slot.
#[derive(Debug, Clone, Default)]
pub struct PlacedSpec {
    pub spec: DeviceSpec,
    pub rack: Option<RackId>,
    pub slot: Option<u32>,
}

impl PlacedSpec {
    fn of<D: Device>(device: &D) -> Self {
        let head = device.head();
        Self { spec: device.spec().clone(), rack: head.rack.clone(), slot: head.slot }
    }

    /// True if the device takes other slots than before.
    fn is_moved_from<D: Device>(&self, device: &D) -> bool {
        let before = Self::of(device);
        (&before.rack, before.slot, before.spec.height_u)
            != (&self.rack, self.slot, self.spec.height_u)
    }
}

/// The explanation of a device, and the run that it is about.
pub(crate) struct ExplainedDevice {
    pub explanation: Explanation,
    pub run: Option<Run>,
    pub claimed_by: Option<String>,
}

/// The number of devices of a kind whose state lasts longer than is normal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OverdueDevices {
    pub kind: &'static str,
    pub count: usize,
}

/// Switches and power shelves: inventory and lifecycles.
#[derive(Clone)]
pub struct Devices(pub(crate) Engine);

impl Devices {
    /// Registers a device. A known one gets the described spec and labels.
    pub async fn register<D: Device>(&self, device: DescribedDevice, actor: String) -> Result<D> {
        let id = device.id.clone();
        self.register_changed(id, Arc::new(move |_: &D| Ok(device.clone())), actor).await
    }

    /// Registers a device, which the change makes from an empty one, or changes a known one. An
    /// empty id is generated.
    pub async fn register_changed<D: Device>(
        &self,
        id: String,
        change: Change<D, DescribedDevice>,
        actor: String,
    ) -> Result<D> {
        let id = match id.is_empty() {
            true => D::name(self.0.now(), self.0.random()),
            false => id,
        };
        self.put(id, change, Expected::Any, actor).await
    }

    /// Changes the spec and labels of a known device, at this version if one is named.
    pub async fn update<D: Device>(
        &self,
        id: &str,
        change: Change<D, DescribedDevice>,
        version: Option<i64>,
        actor: String,
    ) -> Result<D> {
        let by = actor.clone();
        let done = self.put(id.to_string(), change, Expected::Known { version }, actor).await;
        self.0.trace_refusal(id, (&by, "update"), done).await
    }

    async fn put<D: Device>(
        &self,
        id: String,
        change: Change<D, DescribedDevice>,
        expected: Expected,
        actor: String,
    ) -> Result<D> {
        let devices = self.clone();
        let change: DeviceChange<D> = Arc::new(move |stored| {
            let DescribedDevice { spec, labels, .. } = change(stored)?;
            let placed = spec.unwrap_or_else(|| PlacedSpec::of(stored));
            Ok((devices.with_provider::<D>(placed)?, labels))
        });
        let put = PutDevice { id, change, expected, actor, now: self.0.now() };
        self.0.store().retry_write("put_device", put, |put, tx| Box::pin(put.run(tx))).await
    }

    /// Checks the provider, as for machines. A refusal names the device's field.
    fn with_provider<D: Device>(&self, placed: PlacedSpec) -> Result<PlacedSpec> {
        let checked = self.0.machines().with_provider(MachineSpec::from(placed.spec.clone()));
        let renamed = |text: String| text.replace("machine.spec", &format!("{}.spec", D::FIELD));
        let provider = checked.map_err(|error| {
            let StoreError::Refused(refusal) = error else { return error };
            let (field, message) = (refusal.field.map(renamed), renamed(refusal.message));
            StoreError::Refused(Refusal { field, message, ..refusal })
        })?;
        Ok(PlacedSpec { spec: DeviceSpec { provider: provider.provider, ..placed.spec }, ..placed })
    }

    pub async fn get<D: Device>(&self, id: &str) -> Result<D> {
        let found = self.0.store().read_one(id.to_string(), |id, tx| Box::pin(tx.record::<D>(id)));
        Ok(found.await?.ok_or_else(|| no_device::<D>(id))?)
    }

    /// Devices by id, after `after`.
    pub async fn list<D: Device>(
        &self,
        selection: impl Into<Selection>,
        after: Option<String>,
        limit: usize,
    ) -> Result<RecordPage<D>> {
        let input = (self.0.caller().visible(selection), after, limit);
        let found = self.0.store().scan(input, |(selection, after, limit), tx| {
            Box::pin(tx.selected_records(selection, after.as_deref(), *limit))
        });
        let page = found.await?;
        self.0.store().unreadable().record(&page.unreadable);
        Ok(page)
    }

    /// Marks a device for deletion, at this version if one is named. It is deleted when no run
    /// holds it.
    pub async fn delete<D: Device>(
        &self,
        id: &str,
        version: Option<i64>,
        who: Requester,
    ) -> Result<D> {
        self.change(id, DeviceAction::Delete { version }, who).await
    }

    /// Retries the failed transition.
    pub async fn retry<D: Device>(&self, id: &str, who: Requester) -> Result<D> {
        self.change(id, DeviceAction::Retry, who).await
    }

    async fn change<D: Device>(
        &self,
        id: &str,
        requested: DeviceAction,
        who: Requester,
    ) -> Result<D> {
        let (by, request) = (who.by.clone(), requested.as_str());
        let input = (id.to_string(), requested, who, self.0.now());
        let done =
            self.0.store().retry_write("change_device", input, |(id, requested, who, now), tx| {
                Box::pin(change_device::<D>(tx, id, *requested, who, *now))
            });
        self.0.trace_refusal(id, (&by, request), done.await).await
    }

    /// Explains a switch or a power shelf; none for an id of another kind.
    pub(crate) async fn explain(&self, id: &str) -> Result<Option<ExplainedDevice>> {
        if SwitchId::parse(id).is_ok() {
            return self.explain_one::<Switch>(id).await.map(Some);
        }
        if PowerShelfId::parse(id).is_ok() {
            return self.explain_one::<PowerShelf>(id).await.map(Some);
        }
        Ok(None)
    }

    async fn explain_one<D>(&self, id: &str) -> Result<ExplainedDevice>
    where
        D: Device<TurnInput = DeviceContext> + LoadContext,
    {
        let input = (id.to_string(), RunId::new(self.0.now(), self.0.random()), self.0.now());
        let found = self
            .0
            .store()
            .read(input, |(id, fresh, now), tx| Box::pin(explain_one::<D>(tx, id, fresh, *now)));
        Ok(found.await?.ok_or_else(|| no_device::<D>(id))?)
    }

    /// The next transitions of a device, if all goes well. The device need not be stored.
    pub async fn preview_switch(&self, switch: &Switch) -> Result<Vec<String>> {
        self.preview_transitions(switch).await
    }

    pub async fn preview_shelf(&self, shelf: &PowerShelf) -> Result<Vec<String>> {
        self.preview_transitions(shelf).await
    }

    async fn preview_transitions<D: Device<TurnInput = DeviceContext> + LoadContext>(
        &self,
        device: &D,
    ) -> Result<Vec<String>> {
        let input = (device.clone(), RunId::new(self.0.now(), self.0.random()), self.0.now());
        self.0
            .store()
            .read(input, |(device, fresh, now), tx| Box::pin(follows(tx, device, fresh, *now)))
            .await
    }

    /// Counts the overdue devices of each kind.
    pub async fn overdue(&self) -> Result<Vec<OverdueDevices>> {
        Ok(vec![self.overdue_of::<Switch>().await?, self.overdue_of::<PowerShelf>().await?])
    }

    async fn overdue_of<D: Device>(&self) -> Result<OverdueDevices> {
        let page = self.list::<D>(Filter::in_states(D::WAITING), None, MAX_OVERDUE).await?;
        let now = self.0.now();
        let count = page.records.iter().filter(|one| record_overdue(*one, now)).count();
        Ok(OverdueDevices { kind: D::KIND.as_str(), count })
    }
}

pub(crate) fn no_device<D: Device>(id: &str) -> Refusal {
    unknown(&TargetId::new(D::TARGET, id))
}

/// Makes the desired spec, place and labels from the stored device.
type DeviceChange<D> = Arc<dyn Fn(&D) -> Result<(PlacedSpec, Labels)> + Send + Sync>;

struct PutDevice<D> {
    id: String,
    change: DeviceChange<D>,
    expected: Expected,
    actor: String,
    now: Timestamp,
}

impl<D: Device> PutDevice<D> {
    async fn run(&self, tx: &mut Tx) -> Result<D> {
        // Lock order: the rack before the device.
        let before = tx.record::<D>(&self.id).await?;
        let (checked, _) = self.desired(before.as_ref())?;
        // Slots are checked only when they change: a stored placement stays valid.
        if before.is_none_or(|device| checked.is_moved_from(&device)) {
            check_rack_slot::<D>(tx, &self.id, &checked).await?;
        }
        let locked = tx.record_locked::<D>(&self.id).await?;
        let (placed, labels) = self.desired(locked.as_ref())?;
        // Another transaction has moved the device: these slots were not checked.
        if (&checked.rack, checked.slot) != (&placed.rack, placed.slot) {
            return Err(StoreError::Conflict);
        }
        match locked {
            Some(device) => self.change(tx, device, placed, labels).await,
            None => self.create(tx, placed, labels).await,
        }
    }

    /// The spec, place and labels that the device gets.
    fn desired(&self, stored: Option<&D>) -> Result<(PlacedSpec, Labels)> {
        match (stored, self.expected) {
            (Some(device), Expected::Any) => (self.change)(device),
            (Some(device), Expected::Known { version }) => {
                check_device_version(device, version)?;
                (self.change)(device)
            }
            (None, Expected::Any) => {
                let head = RecordHeader::new(self.id.as_str(), Labels::new(), self.now);
                (self.change)(&D::create(head, DeviceSpec::default()))
            }
            (None, Expected::Known { .. }) => Err(no_device::<D>(&self.id).into()),
        }
    }

    fn event(&self, message: &str, line: &str) -> NewEvent {
        event(Cause::Request, &self.actor, message.into(), line, self.now)
    }

    async fn create(&self, tx: &mut Tx, placed: PlacedSpec, labels: Labels) -> Result<D> {
        let PlacedSpec { spec, rack, slot } = placed;
        let head = RecordHeader::new(self.id.as_str(), labels, self.now);
        let mut device = D::create(RecordHeader { rack, slot, ..head }, spec);
        check_feeds(tx, &device).await?;
        let event = self.event("registered", here!());
        tx.insert_record(&mut device, &event).await?;
        if !device.spec().feeds.is_empty() {
            tx.write_feeds(&device.target(), &device.spec().feeds)?;
        }
        let event = self.event(&format!("{} was added", self.id), here!());
        topology::mark_racks_changed(
            tx,
            &DeviceLocation::NOWHERE,
            &DeviceLocation::of(device.head()),
            &event,
        )
        .await?;
        Ok(device)
    }

    async fn change(
        &self,
        tx: &mut Tx,
        mut device: D,
        placed: PlacedSpec,
        labels: Labels,
    ) -> Result<D> {
        let before = device.clone();
        *device.spec_mut() = placed.spec;
        device.head_mut().rack = placed.rack;
        device.head_mut().slot = placed.slot;
        device.head_mut().labels = labels;
        if device == before {
            return Ok(device);
        }
        let (from, to) = (DeviceLocation::of(before.head()), DeviceLocation::of(device.head()));
        let (target, holder) = (before.target(), before.head().active_run.as_ref());
        topology::check_may_move(&target, holder, &from, &to)?;
        check_holder(tx, &before, &device).await?;
        if from.rack() != to.rack() || before.spec().feeds != device.spec().feeds {
            check_feeds(tx, &device).await?;
        }
        let event = self.event("spec, place or labels changed", here!());
        tx.update_and_enqueue(&mut device, &event)?;
        if before.spec().feeds != device.spec().feeds {
            tx.write_feeds(&device.target(), &device.spec().feeds)?;
        }
        let event = self.event(&format!("{} was moved", self.id), here!());
        topology::mark_racks_changed(tx, &from, &to, &event).await?;
        Ok(device)
    }
}

/// Refuses a change of what the operation that holds the device depends on. A routine run refuses
/// nothing: with a wrong address it would hold the device again and again.
async fn check_holder<D: Device>(tx: &mut Tx, before: &D, after: &D) -> Result<()> {
    let Some(holder) = &before.head().active_run else { return Ok(()) };
    let run = tx.run(holder).await?;
    if run.is_some_and(|run| run.spec.run_type.is_routine()) {
        return Ok(());
    }
    let spec = |device: &D| MachineSpec::from(device.spec().clone());
    Ok(spec(before).check_change(&spec(after), &before.target(), Some(holder))?)
}

fn check_device_version<D: Device>(device: &D, expected: Option<i64>) -> Result<()> {
    let (head, next) = (device.head(), device.target().show_command());
    Ok(check_version(&head.id, head.version, expected, next)?)
}

/// Checks that the rack exists and the slots are free. The rack stays locked until the commit.
async fn check_rack_slot<D: Device>(tx: &mut Tx, id: &str, placed: &PlacedSpec) -> Result<()> {
    let Some(rack_id) = &placed.rack else { return Ok(()) };
    let rack = tx.record_locked::<Rack>(rack_id.as_str()).await?;
    if rack.is_none_or(|rack| rack.head.deleted) {
        let problem = format!("names {rack_id}, and no such rack is known");
        let instead = "list them with `farrier rack list`, or create it first";
        let field = format!("{}.spec.rack_id", D::FIELD);
        return Err(Refusal::invalid(&field, problem, instead).into());
    }
    let target = TargetId::new(D::TARGET, id);
    let height_u = placed.spec.height_u;
    let placement = DevicePlacement { target, slot: placed.slot, height_u };
    check_slots(tx, &format!("{}.spec", D::FIELD), &placement, rack_id).await
}

async fn check_feeds<D: Device>(tx: &mut Tx, device: &D) -> Result<()> {
    let (field, rack) = (format!("{}.spec", D::FIELD), device.head().rack.as_ref());
    check_feeding_shelves(tx, &field, rack, &device.spec().feeds).await
}

/// A request to a device's lifecycle.
#[derive(Debug, Clone, Copy)]
enum DeviceAction {
    /// At this version if one is named.
    Delete {
        version: Option<i64>,
    },
    Retry,
}

impl DeviceAction {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Delete { .. } => "delete",
            Self::Retry => "retry",
        }
    }
}

async fn change_device<D: Device>(
    tx: &mut Tx,
    id: &str,
    requested: DeviceAction,
    who: &Requester,
    now: Timestamp,
) -> Result<D> {
    let found = tx.record_locked::<D>(id).await?;
    let mut device = found.ok_or_else(|| no_device::<D>(id))?;
    let before = device.clone();
    let message = match requested {
        DeviceAction::Delete { version } => {
            check_device_version(&device, version)?;
            device.head_mut().deleted = true;
            "marked for deletion"
        }
        DeviceAction::Retry => {
            retry(&mut device)?;
            "to be tried again"
        }
    };
    if device != before {
        let event = event(Cause::Request, &who.by, message.into(), here!(), now);
        tx.update_and_enqueue(&mut device, &event)?;
    }
    Ok(device)
}

async fn explain_one<D: Device<TurnInput = DeviceContext> + LoadContext>(
    tx: &mut Tx,
    id: &str,
    fresh: &RunId,
    now: Timestamp,
) -> Result<Option<ExplainedDevice>> {
    let Some(device) = tx.record::<D>(id).await? else { return Ok(None) };
    let observed = device.load_context(tx, fresh.clone(), now).await?;
    let next = device.next(&observed, now);
    let mut reported = explain_device(&device, &next, now);
    let silent = device.observed().is_some_and(|observed| !observed.reachable);
    let rack = device.head().rack.as_ref().filter(|_| silent && D::TARGET == TargetKind::Switch);
    if let Some(rack) = rack {
        let dead = load_dead_feeds(tx, rack, &device.spec().feeds).await?;
        reported.blame_feeds(id, &dead);
    }
    let id = device.head().active_run.clone();
    let id = id.or_else(|| device.failure().and_then(|one: &DeviceFailure| one.run.clone()));
    let run = match &id {
        Some(id) => tx.run(id).await?,
        None => None,
    };
    let held_by = match &run {
        Some(run) => tx.claiming_replica(&run.spec.id).await?,
        None => None,
    };
    Ok(Some(ExplainedDevice { explanation: reported, run, claimed_by: held_by }))
}
