//! The events of a host's firmware reprovisioning.

use super::{AT_ONCE, Explore, LifecycleEvent, OWN, RACK, run_in};
use model::firmware::{Firmware, FirmwareComponent, FirmwareResolution};
use model::host::{
    Host, HostState, HostTurnInput, RETRY_INTERVAL, ReprovisionOwner, ReprovisionRequest,
};
use model::id::{FirmwareId, MachineId, RunId};
use model::plan::RunType;
use model::refusal::{Reason, Refusal};
use model::run::{Run, Workflow};
use model::target::TargetKind;
use model::time::Timestamp;
use std::collections::BTreeMap;

/// A firmware that the host does not have.
fn other_firmware() -> FirmwareResolution {
    let component = FirmwareComponent {
        name: "BMC".into(),
        version: "2".into(),
        url: "http://10.0.0.2/bmc".into(),
        sha256: "0".repeat(64),
    };
    FirmwareResolution::Use(Box::new(Firmware {
        id: FirmwareId::trusted("fw-2"),
        hardware_type: "type".into(),
        description: String::new(),
        components: BTreeMap::from([(TargetKind::Machine, vec![component])]),
        is_default: true,
        available: true,
        created_at: Timestamp::default(),
        version: 1,
    }))
}

fn run(id: &str, workflow: Workflow) -> Option<Run> {
    Some(run_in(&RunId::trusted(id), RunType::Firmware, workflow))
}

/// Functions of a host that the exploration needs beside its lifecycle.
trait HostWalk: Sized {
    fn current_context(&self) -> HostTurnInput;
    fn requests(&self) -> Vec<(&'static str, Self)>;
    fn contexts(&self) -> Vec<(&'static str, HostTurnInput)>;
}

impl HostWalk for Host {
    fn current_context(&self) -> HostTurnInput {
        HostTurnInput {
            fresh: RunId::trusted(OWN),
            run: self.run.as_ref().and_then(|id| run(id.as_str(), Workflow::Running)),
            firmware: other_firmware(),
            gate: Ok(()),
            operation: self.rack_operation().and_then(|id| run(id.as_str(), Workflow::Running)),
            child_run: None,
            retry_interval: RETRY_INTERVAL,
        }
    }

    /// The requests that the API admits.
    fn requests(&self) -> Vec<(&'static str, Self)> {
        let request = |owner| ReprovisionRequest {
            owner,
            firmware: None,
            requested_at: Timestamp::default(),
            started_at: None,
        };
        let with = |request| Self { request, ..self.clone() };
        let mut requested = Vec::new();
        if self.admit().is_ok() {
            let operator = ReprovisionOwner::Operator { name: "somebody".into() };
            requested.push(("an operator requests it", with(Some(request(operator)))));
        }
        let fresh = self.request.as_ref().is_some_and(|request| request.started_at.is_none());
        if !fresh {
            let rack = ReprovisionOwner::Rack { operation: RunId::trusted(RACK) };
            requested.push(("an operation on its rack requests it", with(Some(request(rack)))));
        }
        if self.request.is_some() {
            requested.push(("the request is withdrawn", with(None)));
        }
        requested
    }

    fn contexts(&self) -> Vec<(&'static str, HostTurnInput)> {
        let now = self.current_context();
        let mut all = vec![(AT_ONCE, now.clone())];
        if let Some(id) = &self.run {
            for (what, workflow) in [
                ("its operation succeeds", Workflow::Completed),
                ("its operation fails, and trying again is safe", Workflow::FailedRetryable),
                ("its operation stops for a person", Workflow::FailedManualIntervention),
                ("its operation is canceled", Workflow::Cancelled),
            ] {
                all.push((what, HostTurnInput { run: run(id.as_str(), workflow), ..now.clone() }));
            }
        }
        if matches!(self.state, HostState::CheckingFirmwareV2 { .. }) && self.run.is_none() {
            let none = FirmwareResolution::Skip("there is none".into());
            let unknown = FirmwareResolution::Unknown(FirmwareId::trusted("fw-9"));
            let shut = Err(Refusal::new(Reason::MachineBusy, "something holds the machine"));
            all.push((
                "no firmware is to be applied",
                HostTurnInput { firmware: none, ..now.clone() },
            ));
            all.push((
                "its firmware is not in the catalogue",
                HostTurnInput { firmware: unknown, ..now.clone() },
            ));
            all.push((
                "its machine may not be upgraded now",
                HostTurnInput { gate: shut, ..now.clone() },
            ));
        }
        let waits = matches!(self.state, HostState::WaitingForRackFirmwareUpgrade);
        let failed = matches!(self.state, HostState::FailedFirmwareUpgrade { .. });
        if self.rack_operation().is_some() && (waits || failed) {
            for (what, workflow) in [
                ("the part of its rack's operation begins", Workflow::Running),
                ("the part of its rack's operation succeeds", Workflow::Completed),
                ("the part of its rack's operation fails", Workflow::FailedManualIntervention),
            ] {
                all.push((
                    what,
                    HostTurnInput { child_run: run("op-other", workflow), ..now.clone() },
                ));
            }
        }
        if self.rack_operation().is_some() && waits {
            for (what, workflow) in [
                ("its rack's operation succeeds without it", Workflow::Completed),
                ("its rack's operation fails before it", Workflow::FailedManualIntervention),
                ("its rack's operation is canceled before it", Workflow::Cancelled),
            ] {
                all.push((what, HostTurnInput { operation: run(RACK, workflow), ..now.clone() }));
            }
        }
        all
    }
}

impl Explore for Host {
    const TITLE: &'static str = "The states of a host that is being reprovisioned";
    const ABOUT: &'static str = "The firmware of a machine is seen to by the host itself, for an operator, or by an operation on its rack. What failed is tried \
         again by itself where that is safe, at most three times; then a person is waited for. A fresh request starts over.";

    fn fresh() -> Self {
        Self::new(&MachineId::trusted("m-1"), Timestamp::default())
    }

    fn events(&self) -> Vec<LifecycleEvent<Self>> {
        let observed = self.contexts().into_iter();
        let mut all: Vec<LifecycleEvent<Self>> = observed
            .map(|(what, observed)| LifecycleEvent {
                name: what,
                record: self.clone(),
                context: observed,
            })
            .collect();
        all.extend(self.requests().into_iter().map(|(what, record)| {
            let observed = record.current_context();
            LifecycleEvent { name: what, record, context: observed }
        }));
        all
    }

    fn advice(&self) -> &'static str {
        match &self.state {
            HostState::Ready => "ask for it: `farrier machine reprovision <machine>`",
            HostState::CheckingFirmwareV2 { .. } => "wait, or withdraw the request",
            HostState::WaitingForRackFirmwareUpgrade => {
                "wait, withdraw the request, or cancel the operation on the rack"
            }
            HostState::FailedFirmwareUpgrade { .. } => {
                "`farrier why <operation>`, then ask for it anew, or withdraw the request"
            }
        }
    }
}
