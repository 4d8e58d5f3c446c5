//! Rollouts in tests: the machines, the requests, and the invariant that holds after every commit.

use crate::test_env::TestEnv;
use engine::rollout::NewRollout;
use model::filter::Filter;
use model::id::{MachineId, RolloutId};
use model::machine::Phase;
use model::plan::{Params, RunType};
use model::rollout::{
    BatchSize, FailureLimit, OnConflict, Pace, Rollout, RolloutOperation, RolloutSpec,
    RolloutTarget, TargetState,
};
use model::target::TargetId;
use std::collections::BTreeSet;
use store::{Cause, NewEvent, Result, Tx};

const MANY: i64 = 1_000;

/// Reboots machines, one in each wave; two failures pause it.
pub fn reboots(filter: &str) -> RolloutSpec {
    let operation =
        RolloutOperation { run_type: RunType::Reboot, plan_id: None, params: Params::new() };
    RolloutSpec {
        operation,
        filter: filter.into(),
        pace: Pace {
            batch: BatchSize::Count(1),
            stop_after: FailureLimit::Count(2),
            ..Pace::default()
        },
        gate: None,
        start_at: None,
        order_label: None,
        on_conflict: OnConflict::Wait,
    }
}

pub fn request(spec: RolloutSpec, request_id: &str) -> NewRollout {
    NewRollout { spec, request_id: request_id.into(), by: "ada".into() }
}

impl TestEnv {
    /// Puts a machine into a phase, as if it had been used before.
    pub async fn set_phase(&self, id: &str, phase: Phase) {
        let input = (MachineId::trusted(id), phase, self.now());
        let written = self.store.write("set_phase", input, |(id, phase, now), tx| {
            Box::pin(async move {
                let mut machine = tx.machine_locked(id).await?.expect("a machine");
                machine.phase = *phase;
                let event = NewEvent {
                    cause: Cause::Admin,
                    actor: "test".into(),
                    message: "set".into(),
                    decided_by: String::new(),
                    at: *now,
                };
                tx.update_machine(&mut machine, &event)
            })
        });
        written.await.expect("written");
    }

    pub async fn rollouts(&self) -> Vec<Rollout> {
        let read = self.store.read((), |(), tx| {
            Box::pin(async move {
                let page = tx.records::<Rollout>(&Filter::default(), None, MANY as usize).await?;
                Ok(page.records)
            })
        });
        read.await.expect("the in-memory database answers")
    }

    pub async fn rollout_targets(&self, id: &RolloutId) -> Vec<RolloutTarget> {
        let read = self
            .store
            .read(id.clone(), |id, tx| Box::pin(tx.rollout_targets(id, None, None, MANY)));
        read.await.expect("the in-memory database answers")
    }

    /// True if no rollout changes by itself.
    pub async fn rollouts_are_idle(&self) -> bool {
        let idle = |one: &Rollout| {
            one.stage.has_ended() || (one.pause.is_some() && one.counts.active == 0)
        };
        self.rollouts().await.iter().all(idle)
    }
}

/// No target is started twice, and none is forgotten. Holds after every commit.
pub async fn check_rollouts(tx: &mut Tx) -> Result<Vec<String>> {
    let rollouts = tx.records::<Rollout>(&Filter::default(), None, MANY as usize).await?.records;
    let mut wrong = Vec::new();
    for rollout in &rollouts {
        let id = rollout.id();
        let targets = tx.rollout_targets(&id, None, None, MANY).await?;
        if targets.len() != rollout.total as usize {
            wrong.push(format!("{id} has {} of {} targets", targets.len(), rollout.total));
        }
        for state in TargetState::ALL {
            let found = targets.iter().filter(|one| one.state == state).count();
            let counted = rollout.counts.of(state);
            if found != counted as usize {
                wrong.push(format!("{id} counts {counted} {}, not {found}", state.as_str()));
            }
        }
        if let Some(most) = rollout.spec.pace.max_in_flight
            && rollout.counts.active > most
        {
            wrong.push(format!("{id} has {} active targets", rollout.counts.active));
        }
        for target in &targets {
            check_target(tx, rollout, target, &mut wrong).await?;
        }
    }
    Ok(wrong)
}

async fn check_target(
    tx: &mut Tx,
    rollout: &Rollout,
    target: &RolloutTarget,
    wrong: &mut Vec<String>,
) -> Result<()> {
    let (id, machine) = (rollout.id(), &target.machine);
    let runs = tx.latest_runs(&TargetId::from(machine), MANY).await?;
    let own: Vec<_> = runs.iter().filter(|run| run.spec.initiator == id.as_str()).collect();
    let requests: BTreeSet<_> = own.iter().map(|run| &run.spec.request_id).collect();
    // One run of each stage in each attempt.
    if requests.len() != own.len() || own.len() > 3 * target.attempt as usize {
        wrong.push(format!("{id} has started {machine} {} times", own.len()));
    }
    for run in own.iter().filter(|run| !run.ended()) {
        if target.run.as_ref() != Some(&run.spec.id) || target.state != TargetState::Active {
            wrong.push(format!("{id} has forgotten {} on {machine}", run.spec.id));
        }
    }
    if target.position >= rollout.wave_end && !own.is_empty() {
        wrong.push(format!("{machine} of {id} was started before its wave"));
    }
    Ok(())
}
