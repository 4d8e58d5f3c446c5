//! Follows one run: merges its events and its log into one output.
//!
//! Events and log arrive on two streams, in any order. The log lines of a step are held until its
//! start line is printed, and its end line waits briefly for the rest of the log, so that the lines
//! of a step usually stay together. A server restart adds two dim lines to the output.

pub mod feed;
pub mod log;
pub mod notice;
pub mod progress;
pub mod summary;

use crate::client::{Client, build_id_filter};
use crate::exit::{Exit, Failure, Result};
use crate::output::Screen;
use crate::table::Tone;
use crate::text::one_line;
use feed::{FeedMessage, ReconnectPolicy, RunEventSource, RunLogSource, is_terminal};
use log::LogLineBuffer;
use model::time::format_duration;
use notice::ConnectionNotice;
use progress::{LinePosition, Progress, ProgressLine};
use proto::v1::{LogChunk, Run, RunEvent, StreamRunLogsRequest, WatchRunsRequest};
use std::time::Duration;
use tokio::sync::mpsc::Receiver;
use tokio::time::{Instant, timeout_at};

/// The time that the end line of a step waits for the rest of its log.
const STEP_GRACE: Duration = Duration::from_millis(150);
/// The same while the log stream is disconnected: longer than the longest pause between reconnects.
const LOST_GRACE: Duration = Duration::from_secs(8);
/// The time that the end of a run waits for the rest of the log.
const RUN_GRACE: Duration = Duration::from_secs(5);
/// The maximum number of log lines that are held for steps without a start line.
const MAX_HELD_LINES: usize = 10_000;

/// The position at which a follower starts.
pub struct FollowStart {
    pub run_id: String,
    /// The changes that are already printed; empty to print all from the start.
    pub progress: Progress,
    pub log_offset: i64,
}

/// Prints events and log until the run has ended, and returns its last snapshot.
pub async fn follow(
    client: &Client,
    screen: &mut Screen,
    start: FollowStart,
    timeout: Duration,
) -> Result<Run> {
    let FollowStart { run_id, progress, log_offset } = start;
    let filter = build_id_filter("run_id", &run_id, "")?;
    let request = WatchRunsRequest { filter, ..Default::default() };
    let events = RunEventSource { client: client.clone(), request };
    let log = RunLogSource {
        client: client.clone(),
        run_id: run_id.clone(),
        offset: log_offset,
        follow: true,
    };
    let mut follower = RunFollower {
        client,
        screen,
        events: feed::spawn(events, ReconnectPolicy::Always),
        log: Some(feed::spawn(log, ReconnectPolicy::Always)),
        progress,
        lines: LogLineBuffer::default(),
        held_lines: Vec::new(),
        unprinted_starts: Vec::new(),
        notice: ConnectionNotice::default(),
        log_lost: false,
    };
    let goes_on = format!("the operation goes on\nnext: farrier operation watch {run_id}");
    tokio::select! {
        ended = follower.run() => ended,
        () = tokio::time::sleep(timeout) => {
            let message = format!("{run_id} has not ended after {}; {goes_on}", format_duration(timeout));
            Err(Failure::new(Exit::TimedOut, message))
        }
        _ = tokio::signal::ctrl_c() => {
            let message = format!("interrupted; {goes_on}\nnext: farrier cancel {run_id}");
            Err(Failure::new(Exit::Interrupted, message))
        }
    }
}

/// Returns the size of a run's log in bytes, which is the offset of its end.
pub async fn log_end(client: &Client, run_id: &str) -> Result<i64> {
    let request = StreamRunLogsRequest { run_id: run_id.to_string(), offset: 0, no_follow: true };
    let mut stream = client.call(client.runs().stream_run_logs(request)).await?;
    let mut end = 0;
    while let Some(chunk) = stream.message().await.map_err(|status| client.failure(status))? {
        end = chunk.offset.saturating_add(chunk.data.len() as i64);
    }
    Ok(end)
}

struct RunFollower<'a> {
    client: &'a Client,
    screen: &'a mut Screen,
    events: Receiver<FeedMessage<RunEvent>>,
    /// None once the log has ended.
    log: Option<Receiver<FeedMessage<LogChunk>>>,
    progress: Progress,
    lines: LogLineBuffer,
    /// Held log lines: the step's name and the line.
    held_lines: Vec<(String, String)>,
    /// Steps whose start line is known but not printed yet.
    unprinted_starts: Vec<String>,
    notice: ConnectionNotice,
    log_lost: bool,
}

impl RunFollower<'_> {
    async fn run(&mut self) -> Result<Run> {
        loop {
            tokio::select! {
                biased;
                event = self.events.recv() => {
                    if let Some(run) = self.handle_event(event).await? {
                        return self.finish(run).await;
                    }
                }
                message = next_message(&mut self.log) => self.handle_log(message)?,
            }
        }
    }

    /// Prints the changes of an event. Returns the run if it has ended.
    async fn handle_event(
        &mut self,
        message: Option<FeedMessage<RunEvent>>,
    ) -> Result<Option<Run>> {
        let run = match message {
            Some(FeedMessage::Item(event)) => event.snapshot,
            Some(FeedMessage::Disconnected) => {
                self.notice.lost(self.screen)?;
                return Ok(None);
            }
            Some(FeedMessage::Reconnected) => {
                self.notice.back(self.screen)?;
                return Ok(None);
            }
            Some(FeedMessage::Failed(status)) => return Err(self.client.failure(status)),
            Some(FeedMessage::Ended) | None => {
                return Err(Failure::bug("the watch ended by itself"));
            }
        };
        let Some(run) = run else { return Ok(None) };
        let over = is_terminal(run.phase());
        let lines = self.progress.lines_for(&run);
        let begins = lines.iter().filter(|line| line.position == LinePosition::Start);
        self.unprinted_starts = begins.map(|line| line.step.clone()).collect();
        if lines.iter().any(|line| line.position == LinePosition::End) {
            self.drain_log(if over { RUN_GRACE } else { STEP_GRACE }).await?;
        }
        for line in lines {
            self.print_step(&line)?;
        }
        self.unprinted_starts.clear();
        self.print_buffered_lines(|progress, step| !progress.is_start_unprinted(step))?;
        Ok(over.then_some(run))
    }

    /// Prints a line of a step. The held log follows the start line; an empty line follows the end
    /// line.
    fn print_step(&mut self, line: &ProgressLine) -> Result<()> {
        self.screen.print_toned_line(line.tone, &line.text)?;
        match line.position {
            LinePosition::Start => self.print_buffered_lines(|_, step| step == line.step),
            LinePosition::Middle => Ok(()),
            LinePosition::End => self.screen.print_line(""),
        }
    }

    fn handle_log(&mut self, message: Option<FeedMessage<LogChunk>>) -> Result<()> {
        match message {
            Some(FeedMessage::Item(chunk)) => {
                for line in self.lines.push(&chunk) {
                    self.print_log_line(&chunk.step, line)?;
                }
            }
            Some(FeedMessage::Disconnected) => {
                self.notice.lost(self.screen)?;
                self.log_lost = true;
            }
            Some(FeedMessage::Reconnected) => {
                self.notice.back(self.screen)?;
                self.log_lost = false;
            }
            Some(FeedMessage::Ended) | None => self.log = None,
            Some(FeedMessage::Failed(status)) => {
                self.log = None;
                let line = format!("the log cannot be read: {}", one_line(status.message()));
                self.screen.print_toned_line(Tone::Dim, &line)?;
            }
        }
        Ok(())
    }

    fn print_log_line(&mut self, step: &str, line: String) -> Result<()> {
        let unprinted = self.progress.is_start_unprinted(step)
            || self.unprinted_starts.iter().any(|name| name == step);
        if unprinted && self.held_lines.len() < MAX_HELD_LINES {
            self.held_lines.push((step.to_string(), line));
            return Ok(());
        }
        self.screen.print_line(&line)
    }

    /// Prints the held lines of the steps that `is_due` selects.
    fn print_buffered_lines(&mut self, is_due: impl Fn(&Progress, &str) -> bool) -> Result<()> {
        let buffered = std::mem::take(&mut self.held_lines);
        let (due, buffered): (Vec<_>, Vec<_>) =
            buffered.into_iter().partition(|(step, _)| is_due(&self.progress, step));
        self.held_lines = buffered;
        due.iter().try_for_each(|(_, line)| self.screen.print_line(line))
    }

    /// Reads the log until it ends or `grace` has passed. A reconnect restarts the grace period.
    async fn drain_log(&mut self, grace: Duration) -> Result<()> {
        let started = Instant::now();
        let mut until = started + grace;
        while self.log.is_some() {
            let deadline = if self.log_lost { started + LOST_GRACE } else { until };
            let was_lost = self.log_lost;
            match timeout_at(deadline, next_message(&mut self.log)).await {
                Ok(message) => self.handle_log(message)?,
                Err(_) => break,
            }
            if was_lost && !self.log_lost {
                until = Instant::now() + grace;
            }
        }
        Ok(())
    }

    async fn finish(&mut self, run: Run) -> Result<Run> {
        self.drain_log(RUN_GRACE).await?;
        self.print_buffered_lines(|_, _| true)?;
        for line in self.lines.finish() {
            self.screen.print_line(&line)?;
        }
        Ok(run)
    }
}

/// The next message of a feed; pending forever once the feed has ended.
async fn next_message<T>(feed: &mut Option<Receiver<FeedMessage<T>>>) -> Option<FeedMessage<T>> {
    match feed {
        Some(feed) => feed.recv().await,
        None => std::future::pending().await,
    }
}
