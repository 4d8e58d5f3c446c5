//! The events of switches and power shelves: ends of their own runs, requests, and operations on
//! their rack.

use super::{AT_ONCE, Explore, Happening, OWN, RACK, run_in};
use model::device::Device;
use model::effect::PowerTo;
use model::id::RunId;
use model::lifecycle::{DeviceContext, DeviceSpec, Head};
use model::machine::Labels;
use model::plan::RunType;
use model::power_shelf::{MaintenanceRequest, PowerShelf, PowerShelfState};
use model::run::{Run, Workflow};
use model::switch::{Switch, SwitchState};
use model::time::Timestamp;

fn around(run: Option<Run>) -> DeviceContext {
    DeviceContext { fresh: RunId::trusted(OWN), run, against: None }
}

/// The input of a turn in which the run of the device is unchanged.
fn as_it_stands<D: Device>(device: &D, run: Option<&RunId>) -> DeviceContext {
    let workflow = match device.trouble() {
        None => Workflow::Running,
        Some(_) if device.head().active_run.as_ref() == run => Workflow::Running,
        Some(_) => Workflow::FailedRetryable,
    };
    around(run.map(|id| run_in(id, RunType::Intake, workflow)))
}

/// The device with another holder.
fn held<D: Device>(device: &D, holder: Option<&RunId>) -> D {
    let mut device = device.clone();
    device.head_mut().active_run = holder.cloned();
    device
}

/// The events of its run: the one that it waits for, or the failed one that an operator resumes.
fn of_its_run<D: Device<Seen = DeviceContext>>(
    device: &D,
    id: &RunId,
    kind: RunType,
) -> Vec<Happening<D>> {
    let happening = |what, holder, workflow| Happening {
        what,
        record: held(device, holder),
        seen: around(Some(run_in(id, kind, workflow))),
    };
    match device.trouble() {
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
fn of_devices<D: Device<Seen = DeviceContext>>(
    device: &D,
    waits_for: Option<&RunId>,
    kinds: &[RunType],
) -> Vec<Happening<D>> {
    let mut all = vec![Happening {
        what: AT_ONCE,
        record: device.clone(),
        seen: as_it_stands(device, waits_for),
    }];
    if let Some(id) = waits_for {
        all.extend(kinds.iter().flat_map(|kind| of_its_run(device, id, *kind)));
    }
    let mut deleted = device.clone();
    deleted.head_mut().deleted = true;
    let mut asked = vec![("it is deleted", deleted)];
    if device.trouble().is_some() {
        let mut again = device.clone();
        again.want_retry();
        asked.push(("a retry is requested", again));
    }
    let rack = RunId::trusted(RACK);
    match &device.head().active_run {
        None => asked.push(("an operation on the rack claims it", held(device, Some(&rack)))),
        // The end of the run that it waits for is covered above.
        Some(holder) if waits_for == Some(holder) => {}
        Some(_) => asked.push(("the operation that holds it ends", held(device, None))),
    }
    all.extend(asked.into_iter().map(|(what, record)| {
        let seen = as_it_stands(&record, waits_for);
        Happening { what, record, seen }
    }));
    all
}

impl Explore for PowerShelf {
    const TITLE: &'static str = "The states of a power shelf";
    const ABOUT: &'static str = "A shelf is read and configured once, then waits for requests to switch its power. What touches it is an \
         operation on the shelf; the state waits for that operation. A failure clears the request in the same commit: \
         nothing is tried again on hope.";

    fn fresh() -> Self {
        let head = Head::new("ps-1", Labels::new(), Timestamp::default());
        Self::new(head, DeviceSpec::default())
    }

    fn happens(&self) -> Vec<Happening<Self>> {
        let mut all = of_devices(self, self.waits_for(), &[RunType::Intake, RunType::Power]);
        let asked =
            [("PowerOn is requested", PowerTo::On), ("PowerOff is requested", PowerTo::Off)];
        // The API refuses a second request, and a request in any other state.
        if self.is_watched() && self.maintenance_requested.is_none() {
            all.extend(asked.map(|(what, operation)| {
                let request = MaintenanceRequest {
                    requested_at: Timestamp::default(),
                    initiator: "somebody".into(),
                    operation,
                    forced: None,
                    request_id: None,
                };
                let record = Self { maintenance_requested: Some(request), ..self.clone() };
                Happening { what, record, seen: as_it_stands(self, self.waits_for()) }
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
            S::Deleting => "wait until nobody holds it, or cancel the operation that does",
        }
    }
}

impl Explore for Switch {
    const TITLE: &'static str = "The states of a switch";
    const ABOUT: &'static str = "A switch is read, configured and validated, each by an operation on it. While an operation on its \
         rack holds it, it is being reprovisioned; afterwards it is validated again.";

    fn fresh() -> Self {
        let head = Head::new("sw-1", Labels::new(), Timestamp::default());
        Self::new(head, DeviceSpec::default())
    }

    fn happens(&self) -> Vec<Happening<Self>> {
        of_devices(self, self.waits_for(), &[RunType::Intake])
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
            S::Deleting => "wait until nobody holds it, or cancel the operation that does",
        }
    }
}
