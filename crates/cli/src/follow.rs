//! Following one run: its events and its log, told as one story.
//!
//! Two feeds arrive at once and in any order. The teller holds back the log of a step until its
//! beginning was told, and waits a moment for the log before it tells the end, so that mostly the
//! lines of a step stand together. A server that dies and comes back costs one dim line.

pub mod boxes;
pub mod feed;
pub mod log;
pub mod progress;

use crate::client::{Client, filter_by};
use crate::exit::{Exit, Failure};
use crate::output::Screen;
use crate::table::Tone;
use crate::text::one_line;
use feed::{News, Patience, RunEvents, RunLog, is_over};
use log::LogLines;
use model::time::spoken;
use progress::{Line, Place, Progress};
use proto::v1::{LogChunk, Run, RunEvent, StreamRunLogsRequest, WatchRunsRequest};
use std::time::Duration;
use tokio::sync::mpsc::Receiver;
use tokio::time::{Instant, timeout_at};

/// How long the end of a step waits for the rest of its log.
const STEP_GRACE: Duration = Duration::from_millis(150);
/// The same when the log's connection is broken: longer than the longest pause between two tries.
const LOST_GRACE: Duration = Duration::from_secs(8);
/// How long the end of a run does.
const RUN_GRACE: Duration = Duration::from_secs(5);
/// Log lines held back for a step that has not begun.
const MAX_HELD: usize = 10_000;

/// What is said when the connection breaks.
pub const LOST: &str = "connection lost; waiting for the server…";

/// Where to begin.
pub struct Start {
    pub run_id: String,
    /// What has been told already; none of it for the whole story.
    pub progress: Progress,
    pub log_offset: i64,
}

/// Tells what happens until the run has ended, and returns it as it then is.
pub async fn follow(
    client: &Client,
    screen: &mut Screen,
    start: Start,
    timeout: Duration,
) -> Result<Run, Failure> {
    let Start { run_id, progress, log_offset } = start;
    let filter = filter_by("run_id", &run_id, "")?;
    let request = WatchRunsRequest { filter, ..Default::default() };
    let events = RunEvents { client: client.clone(), request };
    let log =
        RunLog { client: client.clone(), run_id: run_id.clone(), offset: log_offset, follow: true };
    let mut teller = Teller {
        client,
        screen,
        events: feed::spawn(events, Patience::Always),
        log: Some(feed::spawn(log, Patience::Always)),
        progress,
        lines: LogLines::default(),
        held: Vec::new(),
        beginning: Vec::new(),
        events_lost: false,
        log_lost: false,
    };
    let goes_on = format!("the operation goes on\nnext: farrier run watch {run_id}");
    tokio::select! {
        told = teller.tell() => told,
        () = tokio::time::sleep(timeout) => {
            let message = format!("{run_id} has not ended after {}; {goes_on}", spoken(timeout));
            Err(Failure::new(Exit::TimedOut, message))
        }
        _ = tokio::signal::ctrl_c() => {
            let message = format!("interrupted; {goes_on}\nnext: farrier cancel {run_id}");
            Err(Failure::new(Exit::Interrupted, message))
        }
    }
}

/// The byte behind the last one of a run's log.
pub async fn log_end(client: &Client, run_id: &str) -> Result<i64, Failure> {
    let request = StreamRunLogsRequest { run_id: run_id.to_string(), offset: 0, no_follow: true };
    let mut stream = client.call(client.runs().stream_run_logs(request)).await?;
    let mut end = 0;
    while let Some(chunk) = stream.message().await.map_err(|status| client.failure(status))? {
        end = chunk.offset.saturating_add(chunk.data.len() as i64);
    }
    Ok(end)
}

struct Teller<'a> {
    client: &'a Client,
    screen: &'a mut Screen,
    events: Receiver<News<RunEvent>>,
    /// None once it has ended.
    log: Option<Receiver<News<LogChunk>>>,
    progress: Progress,
    lines: LogLines,
    /// Log lines of steps that have not begun, with the step's name.
    held: Vec<(String, String)>,
    /// The steps whose beginning is known but not told yet.
    beginning: Vec<String>,
    events_lost: bool,
    log_lost: bool,
}

impl Teller<'_> {
    async fn tell(&mut self) -> Result<Run, Failure> {
        loop {
            tokio::select! {
                biased;
                event = self.events.recv() => {
                    if let Some(run) = self.hear_event(event).await? {
                        return self.finish(run).await;
                    }
                }
                news = next_of(&mut self.log) => self.hear_log(news)?,
            }
        }
    }

    /// The run, when it has ended.
    async fn hear_event(&mut self, news: Option<News<RunEvent>>) -> Result<Option<Run>, Failure> {
        let run = match news {
            Some(News::Item(event)) => event.snapshot,
            Some(News::Lost) => {
                self.say_lost()?;
                self.events_lost = true;
                return Ok(None);
            }
            Some(News::Back) => {
                self.events_lost = false;
                return Ok(None);
            }
            Some(News::Failed(status)) => return Err(self.client.failure(status)),
            Some(News::Ended) | None => return Err(Failure::bug("the watch ended by itself")),
        };
        let Some(run) = run else { return Ok(None) };
        let over = is_over(run.phase());
        let lines = self.progress.snapshot(&run);
        let begins = lines.iter().filter(|line| line.place == Place::Begins);
        self.beginning = begins.map(|line| line.step.clone()).collect();
        if lines.iter().any(|line| line.place == Place::Ends) {
            self.gather_log(if over { RUN_GRACE } else { STEP_GRACE }).await?;
        }
        for line in lines {
            self.say_step(&line)?;
        }
        self.beginning.clear();
        self.release(|progress, step| !progress.awaits(step))?;
        Ok(over.then_some(run))
    }

    /// The log of a step stands between its beginning and its end.
    fn say_step(&mut self, line: &Line) -> Result<(), Failure> {
        self.screen.say_toned(line.tone, &line.text)?;
        match line.place {
            Place::Begins => self.release(|_, step| step == line.step),
            Place::Amid => Ok(()),
            Place::Ends => self.screen.say(""),
        }
    }

    fn hear_log(&mut self, news: Option<News<LogChunk>>) -> Result<(), Failure> {
        match news {
            Some(News::Item(chunk)) => {
                for line in self.lines.push(&chunk) {
                    self.say_log(&chunk.step, line)?;
                }
            }
            Some(News::Lost) => {
                self.say_lost()?;
                self.log_lost = true;
            }
            Some(News::Back) => self.log_lost = false,
            Some(News::Ended) | None => self.log = None,
            Some(News::Failed(status)) => {
                self.log = None;
                let line = format!("the log cannot be read: {}", one_line(status.message()));
                self.screen.say_toned(Tone::Dim, &line)?;
            }
        }
        Ok(())
    }

    fn say_log(&mut self, step: &str, line: String) -> Result<(), Failure> {
        let untold = self.progress.awaits(step) || self.beginning.iter().any(|name| name == step);
        if untold && self.held.len() < MAX_HELD {
            self.held.push((step.to_string(), line));
            return Ok(());
        }
        self.screen.say(&line)
    }

    /// Tells what was held back and is ripe now, by the name of its step.
    fn release(&mut self, is_ripe: impl Fn(&Progress, &str) -> bool) -> Result<(), Failure> {
        let held = std::mem::take(&mut self.held);
        let (ripe, held): (Vec<_>, Vec<_>) =
            held.into_iter().partition(|(step, _)| is_ripe(&self.progress, step));
        self.held = held;
        ripe.iter().try_for_each(|(_, line)| self.screen.say(line))
    }

    /// Once, though two feeds break at a time.
    fn say_lost(&mut self) -> Result<(), Failure> {
        if self.events_lost || self.log_lost {
            return Ok(());
        }
        self.screen.say_toned(Tone::Dim, LOST)
    }

    /// Reads the log until it ends or the grace is over, which begins anew after a broken connection.
    async fn gather_log(&mut self, grace: Duration) -> Result<(), Failure> {
        let started = Instant::now();
        let mut until = started + grace;
        while self.log.is_some() {
            let patience = if self.log_lost { started + LOST_GRACE } else { until };
            let was_lost = self.log_lost;
            match timeout_at(patience, next_of(&mut self.log)).await {
                Ok(news) => self.hear_log(news)?,
                Err(_) => break,
            }
            if was_lost && !self.log_lost {
                until = Instant::now() + grace;
            }
        }
        Ok(())
    }

    async fn finish(&mut self, run: Run) -> Result<Run, Failure> {
        self.gather_log(RUN_GRACE).await?;
        self.release(|_, _| true)?;
        for line in self.lines.finish() {
            self.screen.say(&line)?;
        }
        Ok(run)
    }
}

/// The next news; never, once the feed has ended.
async fn next_of<T>(feed: &mut Option<Receiver<News<T>>>) -> Option<News<T>> {
    match feed {
        Some(feed) => feed.recv().await,
        None => std::future::pending().await,
    }
}
