//! Follows a rollout until it ends.

use super::show;
use crate::args::RolloutWatchArgs;
use crate::client::{Client, build_id_filter};
use crate::exit::{Exit, Failure, Result};
use crate::follow::feed::{self, FeedMessage, ReconnectPolicy, RolloutEventSource};
use crate::follow::notice::ConnectionNotice;
use crate::output::Screen;
use crate::table::Tone;
use crate::text::one_line;
use crate::time::Clock;
use model::time::format_duration;
use proto::v1::{Rollout, RolloutEvent, RolloutState, RolloutStatus, WatchRolloutsRequest};
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// The characters of the progress bar.
const BAR: i32 = 20;

pub(super) async fn follow(
    client: &Client,
    screen: &mut Screen,
    args: RolloutWatchArgs,
) -> Result<Exit> {
    // An unknown id would be watched forever without an event.
    let known = super::fetch(client, args.rollout_id.clone()).await?;
    let filter = build_id_filter("rollout_id", &args.rollout_id, "")?;
    let request = WatchRolloutsRequest { filter, ..Default::default() };
    let source = RolloutEventSource { client: client.clone(), request };
    let mut feed = feed::spawn(source, ReconnectPolicy::AfterFirstResponse);
    let mut notice = ConnectionNotice::default();
    let clock = Clock::system();
    let first = settled(&known);
    let begun = Instant::now();
    let deadline = args.timeout.map(|timeout| begun + timeout);
    loop {
        let message = match deadline {
            None => feed.recv().await,
            Some(deadline) => match timeout_at(deadline, feed.recv()).await {
                Ok(message) => message,
                Err(_) => {
                    let id = one_line(&args.rollout_id);
                    let message = format!(
                        "the wait is over, and {id} goes on\nnext: farrier rollout watch {id}"
                    );
                    return Err(Failure::new(Exit::TimedOut, message));
                }
            },
        };
        match message {
            None | Some(FeedMessage::Ended) => return Ok(Exit::Success),
            Some(FeedMessage::Item(event)) => {
                let left = time_left(&event, first, begun.elapsed());
                screen.print_event(&event, |event| line(event, left, &clock))?;
                if let Some(exit) = ended(&event) {
                    return conclude(screen, &event, exit);
                }
            }
            Some(FeedMessage::Disconnected) => notice.lost(screen)?,
            Some(FeedMessage::Reconnected) => notice.back(screen)?,
            Some(FeedMessage::Failed(status)) => return Err(client.failure(status)),
        }
    }
}

fn status_of(rollout: &Rollout) -> RolloutStatus {
    rollout.status.clone().unwrap_or_default()
}

fn settled(rollout: &Rollout) -> i32 {
    show::settled(&status_of(rollout).counts.unwrap_or_default())
}

/// The exit code once the rollout has ended.
fn ended(event: &RolloutEvent) -> Option<Exit> {
    let rollout = event.snapshot.clone().unwrap_or_default();
    let status = status_of(&rollout);
    match status.state() {
        _ if event.deleted => Some(Exit::Unsuccessful),
        RolloutState::Done if status.succeeded => Some(Exit::Success),
        RolloutState::Done | RolloutState::Aborted => Some(Exit::Unsuccessful),
        RolloutState::Waiting
        | RolloutState::Running
        | RolloutState::Soaking
        | RolloutState::AwaitingApproval
        | RolloutState::Paused
        | RolloutState::Aborting
        | RolloutState::Unspecified => None,
    }
}

fn conclude(screen: &mut Screen, event: &RolloutEvent, exit: Exit) -> Result<Exit> {
    let rollout = event.snapshot.clone().unwrap_or_default();
    if screen.is_human() {
        let tone = if exit == Exit::Success { Tone::Good } else { Tone::Warn };
        screen.print_toned_line(tone, &one_line(&show::progress(&rollout)))?;
        if exit != Exit::Success {
            let id = one_line(&rollout.rollout_id);
            screen.print_line(&format!("Next: farrier rollout targets {id} --state failed"))?;
        }
    }
    Ok(exit)
}

/// The time until every target is settled, at the rate since the watch began.
fn time_left(event: &RolloutEvent, first: i32, watched: Duration) -> Option<Duration> {
    let rollout = event.snapshot.as_ref()?;
    let counts = status_of(rollout).counts?;
    let done = u32::try_from(show::settled(&counts) - first).ok().filter(|done| *done > 0)?;
    let left =
        u32::try_from(counts.total - show::settled(&counts)).ok().filter(|left| *left > 0)?;
    Some(watched * left / done)
}

/// Such as `[10:00:01] wave 2/4 [#####...............] 3/12 25%, 1 failed, 4m 0s left  Running`.
fn line(event: &RolloutEvent, left: Option<Duration>, clock: &Clock) -> String {
    let rollout = event.snapshot.clone().unwrap_or_default();
    let status = status_of(&rollout);
    let counts = status.counts.unwrap_or_default();
    let (settled, total) = (show::settled(&counts), counts.total.max(1));
    let full = usize::try_from(settled * BAR / total).unwrap_or_default();
    let bar =
        format!("{:.<width$}", "#".repeat(full), width = usize::try_from(BAR).unwrap_or_default());
    let failed = match counts.failed {
        0 => String::new(),
        failed => format!(", {failed} failed"),
    };
    let left = left.map(|left| format!(", {} left", format_duration(left))).unwrap_or_default();
    let time = clock.time_of_day(event.ts.as_ref());
    let (wave, waves, percent) = (status.wave, status.waves, settled * 100 / total);
    let mut line =
        format!("[{time}] wave {wave}/{waves} [{bar}] {settled}/{total} {percent}%{failed}{left}");
    if !status.pause_reason.is_empty() {
        line.push_str(&format!(", paused: {}", one_line(&status.pause_reason)));
    }
    if !event.message.is_empty() {
        line.push_str(&format!("  {}", one_line(&event.message)));
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::Timestamp;
    use proto::v1::RolloutCounts;

    fn event(state: RolloutState, counts: RolloutCounts, succeeded: bool) -> RolloutEvent {
        let status = RolloutStatus {
            state: state.into(),
            wave: 2,
            waves: 4,
            counts: Some(counts),
            succeeded,
            ..RolloutStatus::default()
        };
        let rollout =
            Rollout { rollout_id: "ro-1".into(), status: Some(status), ..Rollout::default() };
        RolloutEvent {
            ts: Some(Timestamp { seconds: 36_001, nanos: 0 }),
            snapshot: Some(rollout),
            message: "wave 2: 3 done".into(),
            ..RolloutEvent::default()
        }
    }

    #[test]
    fn a_line_has_the_bar_the_failures_and_the_time_left() {
        let counts = RolloutCounts { total: 12, done: 2, failed: 1, ..RolloutCounts::default() };
        let event = event(RolloutState::Running, counts, false);
        let left = time_left(&event, 1, Duration::from_secs(60));
        assert_eq!(left, Some(Duration::from_secs(270)));
        assert_eq!(
            line(&event, left, &Clock::fixed(0)),
            "[10:00:01] wave 2/4 [#####...............] 3/12 25%, 1 failed, 4m 30s left  \
             wave 2: 3 done"
        );
        assert_eq!(time_left(&event, 3, Duration::from_secs(60)), None);
        let mut paused = event;
        if let Some(status) = paused.snapshot.as_mut().and_then(|one| one.status.as_mut()) {
            status.pause_reason = "lunch".into();
        }
        let text = line(&paused, None, &Clock::fixed(0));
        assert!(text.ends_with("1 failed, paused: lunch  wave 2: 3 done"), "{text}");
    }

    #[test]
    fn only_the_end_has_an_exit_code() {
        let counts = RolloutCounts { total: 1, ..RolloutCounts::default() };
        for (state, succeeded, exit) in [
            (RolloutState::Running, false, None),
            (RolloutState::Paused, false, None),
            (RolloutState::Aborting, false, None),
            (RolloutState::Aborted, false, Some(Exit::Unsuccessful)),
            (RolloutState::Done, false, Some(Exit::Unsuccessful)),
            (RolloutState::Done, true, Some(Exit::Success)),
        ] {
            assert_eq!(ended(&event(state, counts, succeeded)), exit, "{state:?}");
        }
    }
}
