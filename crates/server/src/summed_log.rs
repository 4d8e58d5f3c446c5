//! Log lines about denied requests: the first at once, those after it as one sum per minute. Many
//! requests must not become many lines.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

const INTERVAL: Duration = Duration::from_secs(60);

/// The reason why a request of a machine or an agent was denied. A closed set, because it labels a
/// metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum DeniedRequest {
    /// Its token or session was refused.
    Identity,
    /// Its sender has sent too many.
    TooMany,
}

impl DeniedRequest {
    pub(crate) const ALL: [Self; 2] = [Self::Identity, Self::TooMany];

    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Identity => "identity",
            Self::TooMany => "too-many",
        }
    }
}

type Sums = BTreeMap<DeniedRequest, u64>;

/// Counts the denied requests of one listener.
#[derive(Clone)]
pub(crate) struct SummedLog {
    listener: &'static str,
    /// The sums since the last line; None: there was no request for an interval.
    sums: Arc<Mutex<Option<Sums>>>,
    write: fn(&'static str, DeniedRequest, u64),
}

impl SummedLog {
    pub(crate) fn new(listener: &'static str) -> Self {
        Self { listener, sums: Arc::default(), write: write_line }
    }

    pub(crate) fn count(&self, why: DeniedRequest) {
        metrics::counter!(
            "farrier_denied_requests_total", "listener" => self.listener, "why" => why.as_str()
        )
        .increment(1);
        {
            let mut sums = self.sums.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(sums) = &mut *sums {
                *sums.entry(why).or_default() += 1;
                return;
            }
            *sums = Some(Sums::new());
        }
        (self.write)(self.listener, why, 1);
        tokio::spawn(self.clone().run());
    }

    /// Writes a line per interval, until there was nothing in one.
    async fn run(self) {
        loop {
            tokio::time::sleep(INTERVAL).await;
            let summed = {
                let mut sums = self.sums.lock().unwrap_or_else(PoisonError::into_inner);
                let summed = sums.take().unwrap_or_default();
                if summed.is_empty() {
                    return;
                }
                *sums = Some(Sums::new());
                summed
            };
            for (why, count) in summed {
                (self.write)(self.listener, why, count);
            }
        }
    }
}

fn write_line(listener: &'static str, why: DeniedRequest, count: u64) {
    tracing::warn!(listener, why = why.as_str(), count, "requests denied");
}

#[cfg(test)]
mod tests {
    use super::*;

    static LINES: Mutex<Vec<(DeniedRequest, u64)>> = Mutex::new(Vec::new());

    fn lines() -> Vec<(DeniedRequest, u64)> {
        std::mem::take(&mut *LINES.lock().unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn many_requests_are_one_line_and_one_sum_per_minute() {
        let write = |_, why, count| LINES.lock().unwrap().push((why, count));
        let log = SummedLog { write, ..SummedLog::new("test") };
        for _ in 0..1_000 {
            log.count(DeniedRequest::Identity);
        }
        log.count(DeniedRequest::TooMany);
        assert_eq!(lines(), [(DeniedRequest::Identity, 1)]);
        tokio::time::sleep(INTERVAL + Duration::from_secs(1)).await;
        assert_eq!(lines(), [(DeniedRequest::Identity, 999), (DeniedRequest::TooMany, 1)]);
        log.count(DeniedRequest::Identity);
        assert_eq!(lines(), [], "it is summed");
        tokio::time::sleep(3 * INTERVAL).await;
        assert_eq!(lines(), [(DeniedRequest::Identity, 1)]);
        // After a quiet interval the next one is written at once.
        log.count(DeniedRequest::TooMany);
        assert_eq!(lines(), [(DeniedRequest::TooMany, 1)]);
    }
}
