//! The events of a rack: its operations, its devices, and requests.

use super::{AT_ONCE, Explore, Happening, OWN, RACK};
use model::firmware::Resolution;
use model::health::Standing;
use model::id::RunId;
use model::lifecycle::{Head, Trouble};
use model::machine::Labels;
use model::rack::maintenance::{Leg, Limits};
use model::rack::{Device, During, Operation, Rack, RackSpec, RackState, RackTrouble, Seen, Stage};
use model::run::RunPhase;
use model::target::{TargetId, TargetKind};
use model::time::Timestamp;

/// How many operations may be active at once in the walk: one, and one that joins it.
const MAX_AT_WORK: usize = 2;

fn device(holder: Option<&str>) -> Device {
    Device {
        target: TargetId::new(TargetKind::Switch, "sw-1"),
        slot: None,
        state: "Ready".into(),
        ready: true,
        active_run: holder.map(RunId::trusted),
        power: None,
        dark: None,
        blocked: None,
        health: Standing::default(),
    }
}

fn operation(id: &RunId, phase: RunPhase, leg: Option<Leg>) -> Operation {
    let trouble = || RackTrouble {
        during: During::FirmwareUpgrade,
        device: None,
        trouble: Trouble { said: "what the device said".into(), run: None, code: String::new() },
        next: String::new(),
    };
    let failed = matches!(phase, RunPhase::Failed | RunPhase::Canceled);
    let trouble = failed.then(trouble);
    Operation {
        id: id.clone(),
        phase,
        leg,
        parts_at_work: false,
        claims: vec![device(None).target],
        trouble,
        parent: None,
        against: None,
    }
}

/// What the exploration needs of a rack beside its lifecycle.
trait RackWalk: Sized {
    fn sees(&self, devices: &[Device], at_work: (RunPhase, Option<Leg>), pending: RunPhase)
    -> Seen;
    fn leg(&self) -> Option<Leg>;
    fn as_it_stands(&self) -> Seen;
    fn asked(&self) -> Vec<(&'static str, Self)>;
}

impl RackWalk for Rack {
    /// The input of a turn with the given phase and step of the active operations and the given
    /// phase of the pending ones.
    fn sees(
        &self,
        devices: &[Device],
        at_work: (RunPhase, Option<Leg>),
        pending: RunPhase,
    ) -> Seen {
        let waiting = self.maintenance_requested.iter().chain(&self.reprovision_requested);
        let waiting = waiting.map(|id| operation(id, pending, None));
        let active = self.active.iter().map(|id| operation(id, at_work.0, at_work.1));
        Seen {
            fresh: RunId::trusted(OWN),
            devices: devices.to_vec(),
            operations: active.chain(waiting).collect(),
            firmware: Resolution::Skip("none is named".into()),
            limits: Limits::default(),
        }
    }

    /// The step of its operations in the current state.
    fn leg(&self) -> Option<Leg> {
        match &self.state {
            RackState::Maintenance { stage } => match stage {
                Stage::FirmwareUpgrade => Some(Leg::Firmware(TargetKind::Machine)),
                Stage::ConfigureNmxCluster => Some(Leg::FabricManager),
                Stage::PowerSequence => Some(Leg::PowerOn(TargetKind::Machine)),
                Stage::Completed => Some(Leg::Validate),
            },
            RackState::Validating => Some(Leg::Validate),
            RackState::Created
            | RackState::Discovering
            | RackState::Ready
            | RackState::Error { .. }
            | RackState::Deleting => None,
        }
    }

    fn as_it_stands(&self) -> Seen {
        let devices = match self.state {
            RackState::Created | RackState::Discovering => Vec::new(),
            RackState::Maintenance { .. }
            | RackState::Validating
            | RackState::Ready
            | RackState::Error { .. }
            | RackState::Deleting => vec![device(None)],
        };
        self.sees(&devices, (RunPhase::Running, self.leg()), RunPhase::Pending)
    }

    /// The requests that the API admits.
    fn asked(&self) -> Vec<(&'static str, Self)> {
        let mut asked = vec![
            (
                "it is deleted",
                Self { head: Head { deleted: true, ..self.head.clone() }, ..self.clone() },
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
            asked.push((
                "a maintenance is requested",
                Self { maintenance_requested, ..self.clone() },
            ));
        }
        if free && idle {
            let reprovision_requested = Some(RunId::trusted(OWN));
            asked.push((
                "a reprovision is requested",
                Self { reprovision_requested, ..self.clone() },
            ));
        }
        if matches!(self.state, RackState::Error { .. }) && self.active.is_empty() {
            let active = vec![RunId::trusted(OWN)];
            asked.push(("the operation that failed is resumed", Self { active, ..self.clone() }));
        }
        asked
    }
}

impl Explore for Rack {
    const TITLE: &'static str = "The states of a rack";
    const ABOUT: &'static str = "A rack waits for its devices, has them brought into service, and is then Ready. A maintenance is an operation on the rack; \
         the state shows where it is, in the order FirmwareUpgrade, ConfigureNmxCluster, PowerSequence, Completed. Of what is asked for in Ready, a \
         changed topology comes first, then a reprovision, then a maintenance. A failure clears the requests in the same commit.";

    fn fresh() -> Self {
        let head = Head::new("rack-1", Labels::new(), Timestamp::default());
        Self::new(head, RackSpec::default())
    }

    fn happens(&self) -> Vec<Happening<Self>> {
        let see = |what, seen| Happening { what, record: self.clone(), seen };
        let mut all = vec![see(AT_ONCE, self.as_it_stands())];
        let there = [device(None)];
        if self.state == RackState::Discovering {
            let held = [device(Some(RACK))];
            let idle = (RunPhase::Running, None);
            all.push(see("all its devices are there", self.sees(&there, idle, RunPhase::Pending)));
            all.push(see("a device of it is held", self.sees(&held, idle, RunPhase::Pending)));
        }
        if !self.active.is_empty() {
            let legs = [
                ("its operations come to ConfigureNmxCluster", Leg::FabricManager),
                ("its operations come to PowerSequence", Leg::PowerOn(TargetKind::Machine)),
                ("its operations come to their validation", Leg::Validate),
            ];
            for (what, leg) in legs {
                let at = (RunPhase::Running, Some(leg));
                all.push(see(what, self.sees(&there, at, RunPhase::Pending)));
            }
            for (what, phase) in [
                ("its operations succeed", RunPhase::Succeeded),
                ("an operation fails", RunPhase::Failed),
                ("an operation is canceled", RunPhase::Canceled),
            ] {
                let at = (phase, Some(Leg::Validate));
                all.push(see(what, self.sees(&there, at, RunPhase::Pending)));
            }
        }
        let pending =
            !self.maintenance_requested.is_empty() || self.reprovision_requested.is_some();
        if pending && self.state != RackState::Discovering {
            let at = (RunPhase::Running, self.leg());
            all.push(see(
                "what was requested is canceled",
                self.sees(&there, at, RunPhase::Canceled),
            ));
            let held = [device(Some("op-other"))];
            all.push(see("a device of it is held", self.sees(&held, at, RunPhase::Pending)));
        }
        all.extend(self.asked().into_iter().map(|(what, record)| {
            let seen = record.as_it_stands();
            Happening { what, record, seen }
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
