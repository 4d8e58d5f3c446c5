//! Reads the notices of an event: the object before and after the change, and its labels.

use crate::watch::RingEvent;
use model::id::MachineId;
use model::lifecycle::{Lifecycle, SubjectKind};
use model::machine::Machine;
use model::notify::{
    Before, Change, Notice, NoticeKind, ObjectFacts, Snapshot, needs_before, notices,
};
use model::power_shelf::PowerShelf;
use model::site::Site;
use model::switch::Switch;
use store::{Event, EventObject, ObjectBefore, Result, Store, Tx};

/// The notices of an event, of every kind, in order.
pub(super) async fn notices_of(
    store: &Store,
    one: &RingEvent,
) -> Result<Vec<(NoticeKind, Notice)>> {
    let event = &one.event;
    if event.kind.is_none() && event.record_kind.is_none() {
        return Ok(Vec::new());
    }
    let last = snapshot(event);
    let after = last.filter(|_| !event.is_deletion());
    let before = match needs_before(after) {
        true => one.before(store).await?,
        false => &ObjectBefore::Unknown,
    };
    let before = match (before, event.record_kind) {
        (ObjectBefore::Absent, _) => Before::Absent,
        (ObjectBefore::Known(object), _) => Before::Known(snapshot_of(object)),
        (ObjectBefore::State(state), Some(kind)) => Before::Known(Snapshot::Record(kind, state)),
        (ObjectBefore::State(_), None) | (ObjectBefore::Unknown, _) => Before::Unknown,
    };
    let change =
        Change { object: &event.object_id, version: event.version, at: event.ts, before, after };
    // Most changes have no notice: only those that have one need the facts.
    if notices(&change, &ObjectFacts::default()).is_empty() {
        return Ok(Vec::new());
    }
    let input = event.clone();
    let facts = store.scan(input, |event, tx| Box::pin(facts(tx, event))).await?;
    Ok(notices(&change, &facts))
}

fn snapshot(event: &Event) -> Option<Snapshot<'_>> {
    match (&event.object, event.kind, event.record_kind) {
        (Some(object), _, _) => Some(snapshot_of(object)),
        (None, None, Some(kind)) => Some(Snapshot::Record(kind, &event.state)),
        // An event without a readable object.
        (None, Some(_), _) | (None, None, None) => None,
    }
}

fn snapshot_of(object: &EventObject) -> Snapshot<'_> {
    match object {
        EventObject::Run(run) => Snapshot::Run(run),
        EventObject::Machine(machine) => Snapshot::Machine(machine),
        EventObject::Rack(rack) => Snapshot::Rack(rack),
        EventObject::Node(node) => Snapshot::Node(node),
    }
}

async fn facts(tx: &mut Tx, event: &Event) -> Result<ObjectFacts> {
    let of_machine = |machine: &Machine| ObjectFacts {
        rack: machine.spec.rack.as_ref().map(ToString::to_string).unwrap_or_default(),
        labels: machine.labels.clone(),
    };
    Ok(match (&event.object, event.record_kind) {
        (Some(EventObject::Machine(machine)), _) => of_machine(machine),
        (Some(EventObject::Run(run)), _) => match run.spec.target.machine() {
            Some(id) => tx.machine(&id).await?.as_ref().map(of_machine).unwrap_or_default(),
            None => ObjectFacts::default(),
        },
        (Some(EventObject::Node(node)), _) => {
            let id: &MachineId = &node.machine;
            tx.machine(id).await?.as_ref().map(of_machine).unwrap_or_default()
        }
        (Some(EventObject::Rack(rack)), _) => {
            ObjectFacts { rack: rack.head.id.clone(), labels: rack.head.labels.clone() }
        }
        (None, Some(SubjectKind::Switch)) => of_record::<Switch>(tx, event).await?,
        (None, Some(SubjectKind::PowerShelf)) => of_record::<PowerShelf>(tx, event).await?,
        (None, Some(SubjectKind::Site)) => of_record::<Site>(tx, event).await?,
        (None, Some(SubjectKind::Rack | SubjectKind::Node | SubjectKind::Host) | None) => {
            ObjectFacts::default()
        }
    })
}

async fn of_record<R: Lifecycle>(tx: &mut Tx, event: &Event) -> Result<ObjectFacts> {
    let record = tx.record::<R>(&event.object_id).await?;
    Ok(record.map_or_else(ObjectFacts::default, |record| ObjectFacts {
        rack: record.head().rack.as_ref().map(ToString::to_string).unwrap_or_default(),
        labels: record.head().labels.clone(),
    }))
}
