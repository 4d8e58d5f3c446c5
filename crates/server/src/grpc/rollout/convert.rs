//! Rollouts on the wire and in the model.

use crate::grpc::convert::{time, time_from, watch_change};
use engine::rollout::CreatedRollout;
use engine::watch::{WatchChange, WatchUpdate};
use model::condition::ConditionType;
use model::id::PlanId;
use model::lifecycle::Lifecycle;
use model::plan::{RunType, checked_params};
use model::refusal::Refusal;
use model::rollout::{
    BatchSize, ConditionGate, FailureLimit, OnConflict, Pace, Rollout, RolloutOperation,
    RolloutSpec, RolloutStage, RolloutTarget, TargetStage,
};
use model::window::WeeklyWindows;
use proto::{v1, words};
use std::time::Duration;

fn wire_count(count: u32) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

fn wire_seconds(seconds: u64) -> i64 {
    i64::try_from(seconds).unwrap_or(i64::MAX)
}

fn count(field: &str, given: i32) -> Result<u32, Refusal> {
    let problem = || Refusal::invalid(field, format!("is {given}"), "use 0 or more");
    u32::try_from(given).map_err(|_| problem())
}

fn seconds(field: &str, given: i64) -> Result<u64, Refusal> {
    let problem = || Refusal::invalid(field, format!("is {given}"), "use 0 or more seconds");
    u64::try_from(given).map_err(|_| problem())
}

/// The spec without its pace.
pub(in crate::grpc) fn spec_from(requested: v1::RolloutSpec) -> Result<RolloutSpec, Refusal> {
    let field = |name: &str| format!("rollout.spec.{name}");
    if requested.filter.trim().is_empty() {
        return Err(Refusal::missing(&field("filter")));
    }
    let plan_id = match requested.plan_id.as_str() {
        "" => None,
        id => Some(PlanId::parse_field(id, &field("plan_id"))?),
    };
    let operation = RolloutOperation {
        run_type: RunType::parse_field(&field("type"), &requested.r#type)?,
        plan_id,
        params: checked_params(requested.params.into_iter().collect())?,
    };
    Ok(RolloutSpec {
        operation,
        filter: requested.filter,
        pace: Pace::default(),
        gate: requested.gate.map(gate_from).transpose()?,
        start_at: requested.start_at.as_ref().map(time_from),
        order_label: Some(requested.order_label).filter(|label| !label.is_empty()),
        on_conflict: OnConflict::parse_field(&field("on_conflict"), &requested.on_conflict)?,
    })
}

fn gate_from(requested: v1::RolloutGate) -> Result<ConditionGate, Refusal> {
    let name = &requested.condition;
    let known = || {
        let all = ConditionType::ALL.iter().map(|one| one.as_str()).collect::<Vec<_>>();
        let shown: String = name.chars().take(40).collect();
        let instead = format!("use one of {}", all.join(", "));
        Refusal::invalid("rollout.spec.gate.condition", format!("is {shown:?}"), instead)
    };
    Ok(ConditionGate {
        condition: ConditionType::parse(name).ok_or_else(known)?,
        status: requested.status,
        hold_seconds: seconds("rollout.spec.gate.hold_seconds", requested.hold_seconds)?,
    })
}

/// An empty field means its default.
pub(super) fn pace_from(requested: v1::RolloutPace) -> Result<Pace, Refusal> {
    let field = |name: &str| format!("rollout.pace.{name}");
    let default = Pace::default();
    let batch = match requested.batch.as_str() {
        "" => default.batch,
        text => BatchSize::parse(&field("batch"), text)?,
    };
    let stop_after = match requested.stop_after.as_str() {
        "" => default.stop_after,
        text => FailureLimit::parse(&field("stop_after"), text)?,
    };
    let max_in_flight = count(&field("max_in_flight"), requested.max_in_flight)?;
    let deadline = &field("target_deadline_seconds");
    Ok(Pace {
        canary: count(&field("canary"), requested.canary)?,
        batch,
        max_in_flight: Some(max_in_flight).filter(|count| *count > 0),
        stop_after,
        soak_seconds: seconds(&field("soak_seconds"), requested.soak_seconds)?,
        wave_approval: requested.wave_approval,
        target_deadline_seconds: match seconds(deadline, requested.target_deadline_seconds)? {
            0 => default.target_deadline_seconds,
            seconds => seconds,
        },
        window: match requested.window.as_str() {
            "" => None,
            text => Some(WeeklyWindows::parse(&field("window"), text)?),
        },
    })
}

pub(super) fn rollout(rollout: &Rollout) -> v1::Rollout {
    v1::Rollout {
        rollout_id: rollout.head.id.clone(),
        spec: Some(spec(&rollout.spec)),
        pace: Some(pace(&rollout.spec.pace)),
        status: Some(status(rollout)),
        version: rollout.head.version,
    }
}

fn spec(spec: &RolloutSpec) -> v1::RolloutSpec {
    let operation = &spec.operation;
    v1::RolloutSpec {
        r#type: operation.run_type.as_str().into(),
        plan_id: operation.plan_id.as_ref().map(ToString::to_string).unwrap_or_default(),
        params: operation.params.clone().into_iter().collect(),
        filter: spec.filter.clone(),
        gate: spec.gate.as_ref().map(|gate| v1::RolloutGate {
            condition: gate.condition.as_str().into(),
            status: gate.status,
            hold_seconds: wire_seconds(gate.hold_seconds),
        }),
        start_at: spec.start_at.map(time),
        order_label: spec.order_label.clone().unwrap_or_default(),
        on_conflict: spec.on_conflict.as_str().into(),
    }
}

fn pace(pace: &Pace) -> v1::RolloutPace {
    v1::RolloutPace {
        canary: wire_count(pace.canary),
        batch: pace.batch.to_string(),
        max_in_flight: pace.max_in_flight.map(wire_count).unwrap_or_default(),
        stop_after: pace.stop_after.to_string(),
        soak_seconds: wire_seconds(pace.soak_seconds),
        wave_approval: pace.wave_approval,
        target_deadline_seconds: wire_seconds(pace.target_deadline_seconds),
        window: pace.window.as_ref().map(ToString::to_string).unwrap_or_default(),
    }
}

fn status(rollout: &Rollout) -> v1::RolloutStatus {
    let counts = &rollout.counts;
    let soaks_until = match rollout.stage {
        RolloutStage::Soaking { until } => Some(time(until)),
        RolloutStage::Waiting
        | RolloutStage::Running
        | RolloutStage::AwaitingApproval
        | RolloutStage::Aborting
        | RolloutStage::Done
        | RolloutStage::Aborted => None,
    };
    let left = rollout.spec.pace.waves_left(rollout.wave, rollout.wave_end, rollout.total);
    let pause = rollout.pause.as_ref();
    v1::RolloutStatus {
        state: words::value::<v1::RolloutState>(rollout.state_name()),
        since: Some(time(rollout.head.since)),
        pause_reason: pause.map(|pause| pause.reason.clone()).unwrap_or_default(),
        paused_by: pause.map(|pause| pause.by.clone()).unwrap_or_default(),
        wave: wire_count(rollout.wave),
        waves: wire_count(rollout.wave.saturating_add(left)),
        soaks_until,
        counts: Some(v1::RolloutCounts {
            total: wire_count(rollout.total),
            pending: wire_count(counts.pending),
            waiting: wire_count(counts.waiting),
            active: wire_count(counts.active),
            done: wire_count(counts.done),
            passed_over: wire_count(counts.passed_over),
            failed: wire_count(counts.failed),
            skipped: wire_count(counts.skipped),
            gone: wire_count(counts.gone),
        }),
        editor: rollout.editor.user.clone(),
        created_at: Some(time(rollout.head.created_at)),
        succeeded: rollout.has_succeeded(),
    }
}

pub(super) fn target(target: &RolloutTarget) -> v1::RolloutTarget {
    v1::RolloutTarget {
        machine_id: target.machine.to_string(),
        position: wire_count(target.position),
        wave: wire_count(target.wave),
        state: words::value::<v1::RolloutTargetState>(target.state.as_str()),
        stage: target.stage.map(TargetStage::as_str).unwrap_or_default().into(),
        operation_id: target.run.as_ref().map(ToString::to_string).unwrap_or_default(),
        reason: target.reason.clone(),
        fault_code: target.fault.clone(),
        since: Some(time(target.since)),
        attempt: wire_count(target.attempt),
        was_in_maintenance: target.was_in_maintenance.unwrap_or_default(),
    }
}

pub(super) fn created(created: &CreatedRollout) -> v1::CreateRolloutResponse {
    let CreatedRollout { rollout: record, preview, approval, windows } = created;
    let mut ids = preview.targets.iter().map(ToString::to_string);
    let waves = preview.waves.iter().map(|size| {
        let size = usize::try_from(*size).unwrap_or(usize::MAX);
        v1::RolloutWave { machine_ids: ids.by_ref().take(size).collect() }
    });
    let waves = waves.collect();
    let excluded = preview.excluded.iter().map(|one| v1::ExcludedMachine {
        machine_id: one.machine.to_string(),
        reason: one.reason.clone(),
    });
    let gate = record.spec.gate.as_ref().map_or(0, |gate| gate.hold_seconds);
    let usual = preview.usual_total(&record.spec.pace, Duration::from_secs(gate));
    let plan = v1::RolloutPlan {
        waves,
        excluded: excluded.collect(),
        usual_seconds: usual.map(|usual| wire_seconds(usual.as_secs())),
        approval: approval.clone(),
        windows: windows.clone(),
    };
    v1::CreateRolloutResponse { rollout: Some(rollout(record)), plan: Some(plan) }
}

pub(super) fn event(observed: WatchUpdate<Rollout>) -> v1::RolloutEvent {
    v1::RolloutEvent {
        ts: Some(time(observed.ts)),
        snapshot: Some(rollout(&observed.object)),
        message: observed.message,
        cursor: observed.position.to_cursor_text(),
        initial: observed.change == WatchChange::Snapshot,
        deleted: observed.change == WatchChange::Deleted,
        change: watch_change(observed.change).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_fields_use_defaults_and_paces_round_trip() {
        assert_eq!(pace_from(v1::RolloutPace::default()).unwrap(), Pace::default());
        let other = Pace {
            canary: 2,
            batch: BatchSize::Linear { first: 1, more: 2 },
            max_in_flight: Some(9),
            stop_after: FailureLimit::Percent(3),
            soak_seconds: 60,
            wave_approval: true,
            target_deadline_seconds: 7,
            window: WeeklyWindows::parse("window", "daily 02:00-05:00 UTC").ok(),
        };
        for one in [Pace::default(), other] {
            assert_eq!(pace_from(pace(&one)).unwrap(), one);
        }
    }

    #[test]
    fn specs_round_trip() {
        let requested = v1::RolloutSpec {
            r#type: "REIMAGE".into(),
            plan_id: "plan-own".into(),
            params: [("image_ref".to_string(), "debian-12".to_string())].into(),
            filter: "labels.role=gpu".into(),
            gate: Some(v1::RolloutGate {
                condition: "InCustomerCluster".into(),
                status: true,
                hold_seconds: 60,
            }),
            start_at: Some(proto::Timestamp { seconds: 5, nanos: 0 }),
            order_label: "zone".into(),
            on_conflict: "refuse".into(),
        };
        assert_eq!(spec(&spec_from(requested.clone()).unwrap()), requested);
    }

    #[test]
    fn invalid_fields_are_refused_by_name() {
        let sound = v1::RolloutSpec {
            r#type: "REBOOT".into(),
            filter: "provider=sim".into(),
            ..v1::RolloutSpec::default()
        };
        let gate = |condition: &str, hold_seconds| {
            Some(v1::RolloutGate { condition: condition.into(), status: true, hold_seconds })
        };
        for (requested, field) in [
            (v1::RolloutSpec { filter: " ".into(), ..sound.clone() }, "filter"),
            (v1::RolloutSpec { r#type: String::new(), ..sound.clone() }, "type"),
            (v1::RolloutSpec { r#type: "FLY".into(), ..sound.clone() }, "type"),
            (v1::RolloutSpec { plan_id: "op-1".into(), ..sound.clone() }, "plan_id"),
            (v1::RolloutSpec { on_conflict: "fight".into(), ..sound.clone() }, "on_conflict"),
            (v1::RolloutSpec { gate: gate("Happy", 0), ..sound.clone() }, "gate.condition"),
            (v1::RolloutSpec { gate: gate("Degraded", -1), ..sound.clone() }, "gate.hold_seconds"),
        ] {
            let refusal = spec_from(requested).unwrap_err();
            assert_eq!(refusal.field, Some(format!("rollout.spec.{field}")));
        }
        for (requested, field) in [
            (v1::RolloutPace { canary: -1, ..Default::default() }, "canary"),
            (v1::RolloutPace { batch: "some".into(), ..Default::default() }, "batch"),
            (v1::RolloutPace { max_in_flight: -1, ..Default::default() }, "max_in_flight"),
            (v1::RolloutPace { stop_after: "0".into(), ..Default::default() }, "stop_after"),
            (v1::RolloutPace { soak_seconds: -1, ..Default::default() }, "soak_seconds"),
            (
                v1::RolloutPace { target_deadline_seconds: -1, ..Default::default() },
                "target_deadline_seconds",
            ),
        ] {
            let refusal = pace_from(requested).unwrap_err();
            assert_eq!(refusal.field, Some(format!("rollout.pace.{field}")));
        }
    }
}
