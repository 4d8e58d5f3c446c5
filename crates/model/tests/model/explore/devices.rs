//! The events of switches and power shelves: ends of their own runs, requests, and operations on
//! their rack.

use super::{AT_ONCE, Explore, LifecycleEvent, OWN, RACK, run_in};
use model::device::Device;
use model::effect::DesiredPower;
use model::id::RunId;
use model::lifecycle::{DeviceContext, DeviceSpec, RecordHeader};
use model::machine::Labels;
use model::plan::RunType;
use model::power_shelf::{PowerShelf, PowerShelfState, ShelfPowerRequest};
use model::run::{Run, Workflow};
use model::switch::{Switch, SwitchState};
use model::time::Timestamp;

fn context_with(run: Option<Run>) -> DeviceContext {
    DeviceContext { fresh: RunId::trusted(OWN), run, against: None }
}

/// The input of a turn in which the run of the device is unchanged.
fn current_context<D: Device>(device: &D, run: Option<&RunId>) -> DeviceContext {
    let workflow = match device.failure() {
        None => Workflow::Running,
        Some(_) if device.head().active_run.as_ref() == run => Workflow::Running,
        Some(_) => Workflow::FailedRetryable,
    };
    context_with(run.map(|id| run_in(id, RunType::Intake, workflow)))
}

/// The device with another holder.
fn with_holder<D: Device>(device: &D, holder: Option<&RunId>) -> D {
    let mut device = device.clone();
    device.head_mut().active_run = holder.cloned();
    device
}

/// The events of its run: the one that it waits for, or the failed one that an operator resumes.
fn run_events<D: Device<TurnInput = DeviceContext>>(
    device: &D,
    id: &RunId,
    kind: RunType,
) -> Vec<LifecycleEvent<D>> {
    let happening = |what, holder, workflow| LifecycleEvent {
        name: what,
        record: with_holder(device, holder),
        context: context_with(Some(run_in(id, kind, workflow))),
    };
    match device.failure() {
        None => vec![
            happening("its operation succeeds", None, Workflow::Completed),
            happening("its operation fails", None, Workflow::FailedRetryable),
            happening("its operation is canceled", None, Workflow::Cancelled),
        ],
        Some(_) if device.head().active_run.as_ref().is_none_or(|holder| holder == id) => vec![
            happening("its operation is resumed", Some(id), Workflow::Running),
            happening("its operation succeeds after all", None, Workflow::Completed),
            happening("its operation fails again", None, Workflow::FailedRetryable),
        ],
        Some(_) => Vec::new(),
    }
}

/// The events of all devices. `kinds` are the types that its run can have.
fn device_events<D: Device<TurnInput = DeviceContext>>(
    device: &D,
    waits_for: Option<&RunId>,
    kinds: &[RunType],
) -> Vec<LifecycleEvent<D>> {
    let mut all = vec![LifecycleEvent {
        name: AT_ONCE,
        record: device.clone(),
        context: current_context(device, waits_for),
    }];
    if let Some(id) = waits_for {
        all.extend(kinds.iter().flat_map(|kind| run_events(device, id, *kind)));
    }
    let mut deleted = device.clone();
    deleted.head_mut().deleted = true;
    let mut requested = vec![("it is deleted", deleted)];
    if device.failure().is_some() {
        let mut again = device.clone();
        again.request_retry();
        requested.push(("a retry is requested", again));
    }
    let rack = RunId::trusted(RACK);
    match &device.head().active_run {
        None => {
            requested.push(("an operation on the rack claims it", with_holder(device, Some(&rack))))
        }
        // The end of the run that it waits for is covered above.
        Some(holder) if waits_for == Some(holder) => {}
        Some(_) => requested.push(("the operation that holds it ends", with_holder(device, None))),
    }
    all.extend(requested.into_iter().map(|(what, record)| {
        let observed = current_context(&record, waits_for);
        LifecycleEvent { name: what, record, context: observed }
    }));
    all
}

impl Explore for PowerShelf {
    const TITLE: &'static str = "The states of a power shelf";
    const ABOUT: &'static str = "A shelf is read and configured once, then waits for requests to switch its power. What touches it is an \
         operation on the shelf; the state waits for that operation. A failure clears the request in the same commit: \
         nothing is tried again on hope.";

    fn fresh() -> Self {
        let head = RecordHeader::new("ps-1", Labels::new(), Timestamp::default());
        Self::new(head, DeviceSpec::default())
    }

    fn events(&self) -> Vec<LifecycleEvent<Self>> {
        let mut all = device_events(self, self.waits_for(), &[RunType::Intake, RunType::Power]);
        let requested = [
            ("PowerOn is requested", DesiredPower::On),
            ("PowerOff is requested", DesiredPower::Off),
        ];
        // The API refuses a second request, and a request in any other state.
        if self.is_polled() && self.maintenance_requested.is_none() {
            all.extend(requested.map(|(what, operation)| {
                let request = ShelfPowerRequest {
                    requested_at: Timestamp::default(),
                    initiator: "somebody".into(),
                    operation,
                    overrides: model::gate::Overrides::default(),
                    request_id: None,
                };
                let record = Self { maintenance_requested: Some(request), ..self.clone() };
                LifecycleEvent {
                    name: what,
                    record,
                    context: current_context(self, self.waits_for()),
                }
            }));
        }
        all
    }

    fn advice(&self) -> &'static str {
        use PowerShelfState as S;
        match &self.state {
            S::Initializing | S::FetchingData | S::Configuring => {
                "wait; `farrier why <operation>` says how far it is"
            }
            S::Ready => "ask for PowerOn or PowerOff, or delete it",
            S::Maintenance { .. } => "wait, or cancel its operation; it then becomes Error",
            S::Error { .. } => {
                "ask for PowerOn or PowerOff, ask for a retry, resume the operation that failed, or delete it"
            }
            S::Deleting => "wait until no operation holds it, or cancel the one that does",
        }
    }
}

impl Explore for Switch {
    const TITLE: &'static str = "The states of a switch";
    const ABOUT: &'static str = "A switch is read, configured and validated, each by an operation on it. While an operation on its \
         rack holds it, it is being reprovisioned; afterwards it is validated again.";

    fn fresh() -> Self {
        let head = RecordHeader::new("sw-1", Labels::new(), Timestamp::default());
        Self::new(head, DeviceSpec::default())
    }

    fn events(&self) -> Vec<LifecycleEvent<Self>> {
        device_events(self, self.waits_for(), &[RunType::Intake])
    }

    fn advice(&self) -> &'static str {
        use SwitchState as S;
        match &self.state {
            S::Created | S::Initializing | S::Configuring | S::Validating => {
                "wait; `farrier why <operation>` says how far it is"
            }
            S::Ready => "have its rack maintained, or delete it",
            S::ReProvisioning => "wait, or cancel the operation on the rack",
            S::Error { .. } => {
                "ask for a retry, resume the operation that failed, have its rack maintained, or delete it"
            }
            S::Deleting => "wait until no operation holds it, or cancel the one that does",
        }
    }
}
