//! Load generation: many clients for a span of time, each with one request in flight, and their
//! results.

use crate::Outcome;
use crate::client::BenchClient;
use std::time::{Duration, Instant};

/// The time for connections, caches and statements to warm up before samples count.
pub const WARM_UP: Duration = Duration::from_millis(300);
/// A request that takes this long has failed.
const TIMEOUT: Duration = Duration::from_secs(60);
/// A client stops after this many errors.
const MAX_ERRORS: usize = 20;

/// The results of a load: every sample, so that percentiles are exact, and the errors.
#[derive(Default)]
pub struct Tally {
    pub samples: Vec<Duration>,
    pub errors: usize,
    pub first_error: Option<String>,
    pub span: Duration,
}

/// The number of a client and of its request.
#[derive(Clone, Copy)]
pub struct Turn {
    pub client: usize,
    pub turn: usize,
}

impl Tally {
    pub fn per_second(&self) -> f64 {
        self.samples.len() as f64 / self.span.as_secs_f64().max(f64::EPSILON)
    }

    /// The sample below which this percentage of samples lies.
    pub fn percentile_ms(&self, percent: f64) -> f64 {
        percentile_ms(&self.samples, percent)
    }

    pub fn error(&mut self, error: impl ToString) {
        self.errors += 1;
        self.first_error.get_or_insert_with(|| error.to_string());
    }

    fn merge(&mut self, other: Self) {
        self.samples.extend(other.samples);
        self.errors += other.errors;
        self.first_error = self.first_error.take().or(other.first_error);
    }
}

/// Nearest rank: always a measured value, never an interpolated one. Not a number without samples.
pub fn percentile_ms(samples: &[Duration], percent: f64) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_unstable();
    let rank = (percent / 100.0 * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).map_or(f64::NAN, |found| found.as_secs_f64() * 1e3)
}

/// Lets each client repeat the work. Requests that end within the span count.
pub async fn press<W, F>(clients: &[BenchClient], span: Duration, work: W) -> Tally
where
    W: Fn(BenchClient, Turn) -> F + Clone + Send + 'static,
    F: Future<Output = Outcome<()>> + Send + 'static,
{
    let each = clients.iter().cloned().enumerate().map(|(client, call)| {
        let work = work.clone();
        move |turn| work(call.clone(), Turn { client, turn })
    });
    press_each(each, span).await
}

/// Like `press`, for clients of any kind.
pub async fn press_each<C, F>(clients: impl Iterator<Item = C>, span: Duration) -> Tally
where
    C: Fn(usize) -> F + Send + 'static,
    F: Future<Output = Outcome<()>> + Send + 'static,
{
    let open = Instant::now() + WARM_UP;
    let tasks: Vec<_> = clients.map(|client| tokio::spawn(one(client, open, span))).collect();
    let mut total = Tally { span, ..Tally::default() };
    for task in tasks {
        match task.await {
            Ok(tally) => total.merge(tally),
            Err(error) => total.error(error),
        }
    }
    total
}

async fn one<C, F>(client: C, open: Instant, span: Duration) -> Tally
where
    C: Fn(usize) -> F,
    F: Future<Output = Outcome<()>>,
{
    let end = open + span;
    let mut tally = Tally::default();
    for turn in 0.. {
        let begun = Instant::now();
        if begun >= end || tally.errors == MAX_ERRORS {
            break;
        }
        match tokio::time::timeout(TIMEOUT, client(turn)).await {
            Ok(Ok(())) => {
                let done = Instant::now();
                if done >= open && done <= end {
                    tally.samples.push(done - begun);
                }
            }
            Ok(Err(error)) => tally.error(error),
            Err(_) => tally.error("no answer in a minute"),
        }
    }
    tally
}
