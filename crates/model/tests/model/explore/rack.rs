//! The events of a rack: its operations, its devices, and requests.

use super::{AT_ONCE, Explore, LifecycleEvent, OWN, RACK};
use model::firmware::FirmwareResolution;
use model::health::HealthSummary;
use model::id::RunId;
use model::lifecycle::{DeviceFailure, RecordHeader};
use model::machine::Labels;
use model::rack::maintenance::{RackLimits, RackStep};
use model::rack::{
    MaintenanceStage, Rack, RackDevice, RackDeviceState, RackFailure, RackFailurePhase,
    RackOperation, RackSpec, RackState, RackTurnInput,
};
use model::run::RunPhase;
use model::target::{TargetId, TargetKind};
use model::time::Timestamp;

/// Most operations that are active at once in the walk: one, and one that joins it.
const MAX_AT_WORK: usize = 2;

fn device(holder: Option<&str>) -> RackDevice {
    RackDevice {
        target: TargetId::new(TargetKind::Switch, "sw-1"),
        slot: None,
        height_u: None,
        feeds: Vec::new(),
        state: RackDeviceState::Device("Ready"),
        ready: true,
        active_run: holder.map(RunId::trusted),
        power: None,
        affected: None,
        stays_on: false,
        blocked: None,
        health: HealthSummary::default(),
    }
}

fn operation(id: &RunId, phase: RunPhase, rack_step: Option<RackStep>) -> RackOperation {
    let error = || RackFailure {
        phase: RackFailurePhase::FirmwareUpgrade,
        device: None,
        failure: DeviceFailure {
            message: "what the device said".into(),
            run: None,
            code: String::new(),
        },
        next_command: String::new(),
        canceled: false,
    };
    let failed = matches!(phase, RunPhase::Failed | RunPhase::Canceled);
    let error = failed.then(error);
    RackOperation {
        id: id.clone(),
        phase,
        step: rack_step,
        children_active: false,
        claims: vec![device(None).target],
        failure: error,
        rerun_of: None,
        brings_into_service: true,
        against: None,
    }
}

/// Functions of a rack that the exploration needs beside its lifecycle.
trait RackWalk: Sized {
    fn context(
        &self,
        devices: &[RackDevice],
        at_work: (RunPhase, Option<RackStep>),
        pending: RunPhase,
    ) -> RackTurnInput;
    fn current_step(&self) -> Option<RackStep>;
    fn current_context(&self) -> RackTurnInput;
    fn requests(&self) -> Vec<(&'static str, Self)>;
}

impl RackWalk for Rack {
    /// The input of a turn with the given phase and step of the active operations and the given
    /// phase of the pending ones.
    fn context(
        &self,
        devices: &[RackDevice],
        at_work: (RunPhase, Option<RackStep>),
        pending: RunPhase,
    ) -> RackTurnInput {
        let waiting = self.maintenance_requested.iter().chain(&self.reprovision_requested);
        let waiting = waiting.map(|id| operation(id, pending, None));
        let active = self.active.iter().map(|id| operation(id, at_work.0, at_work.1));
        RackTurnInput {
            fresh: RunId::trusted(OWN),
            devices: devices.to_vec(),
            operations: active.chain(waiting).collect(),
            firmware: FirmwareResolution::Skip("none is named".into()),
            limits: RackLimits::default(),
        }
    }

    /// The step of its operations in the current state.
    fn current_step(&self) -> Option<RackStep> {
        match &self.state {
            RackState::Maintenance { stage } => match stage {
                MaintenanceStage::FirmwareUpgrade => Some(RackStep::Firmware(TargetKind::Machine)),
                MaintenanceStage::ConfigureNmxCluster => Some(RackStep::FabricManager),
                MaintenanceStage::PowerSequence => Some(RackStep::PowerOn(TargetKind::Machine)),
                MaintenanceStage::Completed => Some(RackStep::Validate),
            },
            RackState::Validating => Some(RackStep::Validate),
            RackState::Created
            | RackState::Discovering
            | RackState::Ready
            | RackState::Error { .. }
            | RackState::Deleting => None,
        }
    }

    fn current_context(&self) -> RackTurnInput {
        let devices = match self.state {
            RackState::Created | RackState::Discovering => Vec::new(),
            RackState::Maintenance { .. }
            | RackState::Validating
            | RackState::Ready
            | RackState::Error { .. }
            | RackState::Deleting => vec![device(None)],
        };
        self.context(&devices, (RunPhase::Running, self.current_step()), RunPhase::Pending)
    }

    /// The requests that the API admits.
    fn requests(&self) -> Vec<(&'static str, Self)> {
        let mut requested = vec![
            (
                "it is deleted",
                Self { head: RecordHeader { deleted: true, ..self.head.clone() }, ..self.clone() },
            ),
            (
                "a device is added, moved or removed",
                Self { topology_changed: true, ..self.clone() },
            ),
        ];
        let idle = matches!(self.state, RackState::Ready | RackState::Error { .. });
        let at_work = matches!(self.state, RackState::Maintenance { .. } | RackState::Validating);
        let free = self.maintenance_requested.is_empty() && self.reprovision_requested.is_none();
        let room = self.active.len() < MAX_AT_WORK && !self.active.contains(&RunId::trusted(RACK));
        if free && room && (idle || at_work) {
            let maintenance_requested = vec![RunId::trusted(RACK)];
            requested.push((
                "a maintenance is requested",
                Self { maintenance_requested, ..self.clone() },
            ));
        }
        if free && idle {
            let reprovision_requested = Some(RunId::trusted(OWN));
            requested.push((
                "a reprovision is requested",
                Self { reprovision_requested, ..self.clone() },
            ));
        }
        if matches!(self.state, RackState::Error { .. }) && self.active.is_empty() {
            let active = vec![RunId::trusted(OWN)];
            requested
                .push(("the operation that failed is resumed", Self { active, ..self.clone() }));
        }
        requested
    }
}

impl Explore for Rack {
    const TITLE: &'static str = "The states of a rack";
    const ABOUT: &'static str = "A rack waits for its devices, has them brought into service, and is then Ready. A maintenance is an operation on the rack; \
         the state shows where it is, in the order FirmwareUpgrade, ConfigureNmxCluster, PowerSequence, Completed. Of what is asked for in Ready, a \
         changed topology comes first, then a reprovision, then a maintenance. A failure clears the requests in the same commit.";

    fn fresh() -> Self {
        let head = RecordHeader::new("rack-1", Labels::new(), Timestamp::default());
        Self::new(head, RackSpec::default())
    }

    fn events(&self) -> Vec<LifecycleEvent<Self>> {
        let see =
            |what, observed| LifecycleEvent { name: what, record: self.clone(), context: observed };
        let mut all = vec![see(AT_ONCE, self.current_context())];
        let there = [device(None)];
        if self.state == RackState::Discovering {
            let claimed = [device(Some(RACK))];
            let idle = (RunPhase::Running, None);
            all.push(see(
                "all its devices are there",
                self.context(&there, idle, RunPhase::Pending),
            ));
            all.push(see(
                "a device of it is held",
                self.context(&claimed, idle, RunPhase::Pending),
            ));
        }
        if !self.active.is_empty() {
            let rack_steps = [
                ("its operations come to ConfigureNmxCluster", RackStep::FabricManager),
                ("its operations come to PowerSequence", RackStep::PowerOn(TargetKind::Machine)),
                ("its operations come to their validation", RackStep::Validate),
            ];
            for (what, rack_step) in rack_steps {
                let at = (RunPhase::Running, Some(rack_step));
                all.push(see(what, self.context(&there, at, RunPhase::Pending)));
            }
            for (what, phase) in [
                ("its operations succeed", RunPhase::Succeeded),
                ("an operation fails", RunPhase::Failed),
                ("an operation is canceled", RunPhase::Canceled),
            ] {
                let at = (phase, Some(RackStep::Validate));
                all.push(see(what, self.context(&there, at, RunPhase::Pending)));
            }
        }
        let pending =
            !self.maintenance_requested.is_empty() || self.reprovision_requested.is_some();
        if pending && self.state != RackState::Discovering {
            let at = (RunPhase::Running, self.current_step());
            all.push(see(
                "what was requested is canceled",
                self.context(&there, at, RunPhase::Canceled),
            ));
            let claimed = [device(Some("op-other"))];
            all.push(see("a device of it is held", self.context(&claimed, at, RunPhase::Pending)));
        }
        all.extend(self.requests().into_iter().map(|(what, record)| {
            let observed = record.current_context();
            LifecycleEvent { name: what, record, context: observed }
        }));
        all
    }

    fn advice(&self) -> &'static str {
        match &self.state {
            RackState::Created => "wait",
            RackState::Discovering => {
                "register the devices that are missing, lower the expected counts, or delete it"
            }
            RackState::Maintenance { .. } | RackState::Validating => {
                "wait, cancel the operation, or ask for one on devices that it leaves alone"
            }
            RackState::Ready => "ask for a maintenance or a reprovision, or delete it",
            RackState::Error { .. } => {
                "resume the operation that failed, ask for a maintenance or a reprovision, or delete it"
            }
            RackState::Deleting => "wait until its operations have ended, or cancel them",
        }
    }
}
