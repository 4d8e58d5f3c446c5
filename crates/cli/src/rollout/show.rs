//! Rollouts as text.

use crate::table::{Cell, Table, Tone, format_pairs};
use crate::text::{join_names, join_pairs, one_line};
use crate::time::Clock;
use model::time::format_duration;
use proto::v1::{
    CreateRolloutResponse, Rollout, RolloutCounts, RolloutPlan, RolloutState, RolloutStatus,
    RolloutTarget, RolloutTargetState,
};
use proto::words::WireEnum;
use std::time::Duration;

/// The machines of a wave that a plan names; the rest is shown as a count.
const NAMED: usize = 8;
/// The waves of a plan that are shown.
const MAX_WAVES: usize = 20;

const fn state_tone(state: RolloutState) -> Tone {
    match state {
        RolloutState::Done => Tone::Good,
        RolloutState::Paused | RolloutState::Aborting | RolloutState::Aborted => Tone::Warn,
        RolloutState::Waiting
        | RolloutState::Running
        | RolloutState::Soaking
        | RolloutState::AwaitingApproval
        | RolloutState::Unspecified => Tone::Plain,
    }
}

const fn target_tone(state: RolloutTargetState) -> Tone {
    match state {
        RolloutTargetState::Done | RolloutTargetState::PassedOver => Tone::Good,
        RolloutTargetState::Failed => Tone::Bad,
        RolloutTargetState::Waiting | RolloutTargetState::Skipped | RolloutTargetState::Gone => {
            Tone::Warn
        }
        RolloutTargetState::Pending
        | RolloutTargetState::Active
        | RolloutTargetState::Unspecified => Tone::Plain,
    }
}

/// The number of targets that the rollout has left behind.
pub(super) const fn settled(counts: &RolloutCounts) -> i32 {
    counts.done + counts.passed_over + counts.failed + counts.skipped + counts.gone
}

fn operation(rollout: &Rollout) -> String {
    let spec = rollout.spec.clone().unwrap_or_default();
    let params = join_pairs(&spec.params, " ");
    [spec.r#type, spec.plan_id, params]
        .into_iter()
        .filter(|word| !word.is_empty())
        .collect::<Vec<_>>()
        .join(" ")
}

/// Such as `2 done, 1 failed, 7 pending`.
pub(super) fn counted(counts: &RolloutCounts) -> String {
    let all = [
        (counts.done, "done"),
        (counts.passed_over, "passed over"),
        (counts.failed, "failed"),
        (counts.skipped, "skipped"),
        (counts.gone, "gone"),
        (counts.active, "active"),
        (counts.waiting, "waiting"),
        (counts.pending, "pending"),
    ];
    let shown = all.into_iter().filter(|(count, _)| *count > 0);
    shown.map(|(count, word)| format!("{count} {word}")).collect::<Vec<_>>().join(", ")
}

/// Such as `Running, wave 2 of 4, 3 done, 7 pending`.
pub(super) fn progress(rollout: &Rollout) -> String {
    let status = rollout.status.clone().unwrap_or_default();
    let counts = status.counts.unwrap_or_default();
    let RolloutStatus { wave, waves, .. } = status;
    format!("{}, wave {wave} of {waves}, {}", status.state().word(), counted(&counts))
}

pub(super) fn table(rollouts: &[Rollout], wide: bool, clock: &Clock) -> Table {
    let names = ["ROLLOUT", "OPERATION", "STATE", "SINCE", "WAVE", "SETTLED", "FAILED"];
    let more = ["EDITOR", "FILTER", "VERSION"];
    let mut table =
        Table::new(&if wide { [&names[..], &more[..]].concat() } else { names.to_vec() });
    for rollout in rollouts {
        let status = rollout.status.clone().unwrap_or_default();
        let counts = status.counts.unwrap_or_default();
        let mut row: Vec<Cell> = vec![
            (&rollout.rollout_id).into(),
            operation(rollout).into(),
            Cell::with_tone(status.state().word(), state_tone(status.state())),
            clock.ago(status.since.as_ref()).into(),
            format!("{}/{}", status.wave, status.waves).into(),
            format!("{}/{}", settled(&counts), counts.total).into(),
            counts.failed.to_string().into(),
        ];
        if wide {
            let filter = rollout.spec.clone().unwrap_or_default().filter;
            row.extend([status.editor.into(), filter.into(), rollout.version.to_string().into()]);
        }
        table.add_row(row);
    }
    table
}

pub(super) fn targets(targets: &[RolloutTarget], wide: bool, clock: &Clock) -> Table {
    let names = ["MACHINE", "WAVE", "STATE", "STAGE", "SINCE", "OPERATION", "REASON"];
    let more = ["POSITION", "ATTEMPT", "FAULT"];
    let mut table =
        Table::new(&if wide { [&names[..], &more[..]].concat() } else { names.to_vec() });
    for target in targets {
        let wave = if target.wave == 0 { String::new() } else { target.wave.to_string() };
        let mut row: Vec<Cell> = vec![
            (&target.machine_id).into(),
            wave.into(),
            Cell::with_tone(target.state().word(), target_tone(target.state())),
            (&target.stage).into(),
            clock.ago(target.since.as_ref()).into(),
            (&target.operation_id).into(),
            (&target.reason).into(),
        ];
        if wide {
            row.extend([
                target.position.to_string().into(),
                target.attempt.to_string().into(),
                (&target.fault_code).into(),
            ]);
        }
        table.add_row(row);
    }
    table
}

/// Formats all details of one rollout.
pub(super) fn describe(rollout: &Rollout, clock: &Clock) -> String {
    let spec = rollout.spec.clone().unwrap_or_default();
    let pace = rollout.pace.clone().unwrap_or_default();
    let status = rollout.status.clone().unwrap_or_default();
    let counts = status.counts.unwrap_or_default();
    let seconds = |seconds: i64| match u64::try_from(seconds) {
        Ok(seconds) if seconds > 0 => format_duration(Duration::from_secs(seconds)),
        Ok(_) | Err(_) => String::new(),
    };
    let number = |count: i32| if count == 0 { String::new() } else { count.to_string() };
    let gate = spec.gate.clone().map(|gate| {
        let hold = seconds(gate.hold_seconds);
        let hold = if hold.is_empty() { hold } else { format!(" for {hold}") };
        format!("condition.{}={}{hold}", gate.condition, gate.status)
    });
    let paused = match status.pause_reason.as_str() {
        "" => String::new(),
        reason => format!("by {}: {reason}", status.paused_by),
    };
    let since = clock.ago(status.since.as_ref());
    let mut facts = vec![
        ("Rollout:", rollout.rollout_id.clone()),
        ("Operation:", operation(rollout)),
        ("State:", format!("{}, since {since}", status.state().word())),
        ("Paused:", paused),
        (
            "Soaks until:",
            status.soaks_until.as_ref().map(|at| clock.absolute(Some(at))).unwrap_or_default(),
        ),
        ("Wave:", format!("{} of {}", status.wave, status.waves)),
        ("Targets:", format!("{}: {}", counts.total, counted(&counts))),
        ("Filter:", spec.filter.clone()),
        (
            "Starts at:",
            spec.start_at.as_ref().map(|at| clock.absolute(Some(at))).unwrap_or_default(),
        ),
        ("Gate:", gate.unwrap_or_default()),
        ("Ordered by:", spec.order_label.clone()),
        ("On conflict:", spec.on_conflict.clone()),
        ("Canary:", number(pace.canary)),
        ("Batch:", pace.batch.clone()),
        ("Max in flight:", number(pace.max_in_flight)),
        ("Stop after:", pace.stop_after.clone()),
        ("Soak:", seconds(pace.soak_seconds)),
        ("Window:", pace.window.clone()),
        ("Wave approval:", if pace.wave_approval { "true".into() } else { String::new() }),
        ("Target deadline:", seconds(pace.target_deadline_seconds)),
        ("Editor:", status.editor.clone()),
        ("Created:", clock.ago(status.created_at.as_ref())),
        ("Version:", rollout.version.to_string()),
    ];
    facts.retain(|(_, value)| !value.is_empty());
    format_pairs(&facts)
}

/// The answer to a creation, or the plan of a dry run.
pub(super) fn created(
    created: &CreateRolloutResponse,
    dry_run: bool,
    wide: bool,
    clock: &Clock,
) -> String {
    let rollout = created.rollout.clone().unwrap_or_default();
    let plan = created.plan.clone().unwrap_or_default();
    let total = rollout.status.clone().unwrap_or_default().counts.unwrap_or_default().total;
    let what = operation(&rollout);
    if dry_run {
        let mut text =
            format!("{} of {total} machines, in {} waves\n\n", one_line(&what), plan.waves.len());
        text.push_str(&waves(&plan, wide));
        text.push_str(&notes(&plan));
        return text;
    }
    let id = one_line(&rollout.rollout_id);
    if plan.waves.is_empty() {
        return format!("{id} exists already\n\n{}", describe(&rollout, clock));
    }
    let count = plan.waves.len();
    let left_out = match plan.excluded.len() {
        0 => String::new(),
        count => format!("; {count} that match are excluded (--dry-run names them)"),
    };
    format!(
        "{id} created: {} of {total} machines, in {count} waves{left_out}\n\n\
         Next: farrier rollout watch {id}\n",
        one_line(&what)
    )
}

fn waves(plan: &RolloutPlan, wide: bool) -> String {
    let (most_waves, most_names) = if wide { (usize::MAX, usize::MAX) } else { (MAX_WAVES, NAMED) };
    let mut text = String::new();
    for (number, wave) in (1..).zip(plan.waves.iter().take(most_waves)) {
        let names = join_names(wave.machine_ids.iter().map(String::as_str), most_names);
        text.push_str(&format!(
            "Wave {number}: {} machines: {}\n",
            wave.machine_ids.len(),
            one_line(&names)
        ));
    }
    if plan.waves.len() > most_waves {
        let more = plan.waves.len() - most_waves;
        text.push_str(&format!("and {more} more waves (-o wide shows all)\n"));
    }
    text
}

fn notes(plan: &RolloutPlan) -> String {
    let mut text = String::new();
    if !plan.excluded.is_empty() {
        text.push_str("\nExcluded:\n");
    }
    for one in &plan.excluded {
        text.push_str(&format!("  {}: {}\n", one_line(&one.machine_id), one_line(&one.reason)));
    }
    let usual = plan.usual_seconds.and_then(|seconds| u64::try_from(seconds).ok());
    text.push_str(&match usual {
        Some(seconds) => {
            format!("\nUsual time: {}\n", format_duration(Duration::from_secs(seconds)))
        }
        None => "\nUsual time: not enough such steps were timed yet\n".to_string(),
    });
    for window in &plan.windows {
        text.push_str(&format!("Window: {}\n", one_line(window)));
    }
    if !plan.approval.is_empty() {
        text.push_str(&format!("Approval: {}\n", one_line(&plan.approval)));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::ColorMode;
    use proto::Timestamp;
    use proto::v1::{ExcludedMachine, RolloutPace, RolloutSpec, RolloutWave};

    fn rollout() -> Rollout {
        Rollout {
            rollout_id: "ro-1".into(),
            spec: Some(RolloutSpec {
                r#type: "REIMAGE".into(),
                params: [("image_ref".to_string(), "debian-12".to_string())].into(),
                filter: "labels.role=gpu".into(),
                ..RolloutSpec::default()
            }),
            pace: Some(RolloutPace {
                batch: "5%".into(),
                stop_after: "2".into(),
                soak_seconds: 600,
                target_deadline_seconds: 3_600,
                ..RolloutPace::default()
            }),
            status: Some(RolloutStatus {
                state: RolloutState::Paused.into(),
                since: Some(Timestamp { seconds: 40, nanos: 0 }),
                pause_reason: "2 of 9 targets failed".into(),
                paused_by: "engine".into(),
                wave: 2,
                waves: 4,
                counts: Some(RolloutCounts {
                    total: 9,
                    pending: 4,
                    active: 1,
                    done: 2,
                    failed: 2,
                    ..RolloutCounts::default()
                }),
                editor: "ada".into(),
                created_at: Some(Timestamp { seconds: 10, nanos: 0 }),
                ..RolloutStatus::default()
            }),
            version: 7,
        }
    }

    #[test]
    fn a_rollout_in_a_list_and_in_full() {
        let clock = Clock::fixed(100);
        assert_eq!(
            table(&[rollout()], false, &clock).render(ColorMode { enabled: false }),
            "\
ROLLOUT  OPERATION                    STATE   SINCE      WAVE  SETTLED  FAILED
ro-1     REIMAGE image_ref=debian-12  Paused  1m 0s ago  2/4   4/9      2
"
        );
        assert_eq!(
            describe(&rollout(), &clock),
            "\
Rollout:          ro-1
Operation:        REIMAGE image_ref=debian-12
State:            Paused, since 1m 0s ago
Paused:           by engine: 2 of 9 targets failed
Wave:             2 of 4
Targets:          9: 2 done, 2 failed, 1 active, 4 pending
Filter:           labels.role=gpu
Batch:            5%
Stop after:       2
Soak:             10m 0s
Target deadline:  1h 0m
Editor:           ada
Created:          1m 30s ago
Version:          7
"
        );
    }

    #[test]
    fn a_plan_names_waves_exclusions_and_the_time() {
        let wave = |ids: &[&str]| RolloutWave {
            machine_ids: ids.iter().map(ToString::to_string).collect(),
        };
        let plan = RolloutPlan {
            waves: vec![wave(&["m-1"]), wave(&["m-2", "m-3"])],
            excluded: vec![ExcludedMachine {
                machine_id: "m-4".into(),
                reason: "it is flagged RMA".into(),
            }],
            usual_seconds: Some(660),
            approval: "it needs a second person".into(),
            windows: vec!["window night (daily 02:00-05:00 UTC) is open at all times".into()],
        };
        let answer = CreateRolloutResponse { rollout: Some(rollout()), plan: Some(plan.clone()) };
        let clock = Clock::fixed(100);
        assert_eq!(
            created(&answer, true, false, &clock),
            "\
REIMAGE image_ref=debian-12 of 9 machines, in 2 waves

Wave 1: 1 machines: m-1
Wave 2: 2 machines: m-2, m-3

Excluded:
  m-4: it is flagged RMA

Usual time: 11m 0s
Window: window night (daily 02:00-05:00 UTC) is open at all times
Approval: it needs a second person
"
        );
        let text = created(&answer, false, false, &clock);
        assert!(text.ends_with("Next: farrier rollout watch ro-1\n"), "{text}");
        assert!(text.contains("1 that match are excluded"), "{text}");
        let many = RolloutPlan { waves: vec![wave(&["m-1"]); 25], ..plan };
        assert!(waves(&many, false).ends_with("and 5 more waves (-o wide shows all)\n"));
        assert_eq!(waves(&many, true).lines().count(), 25);
    }
}
