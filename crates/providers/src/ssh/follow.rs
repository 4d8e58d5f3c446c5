//! Reads the log of a job from any byte on until the job has ended.
//!
//! The two outputs of a job are two files, and the host records their sizes from time to time. The
//! samples define the order of the log: up to a sample first the new standard output, then the new
//! standard error. Samples only grow, so a byte of the log never changes.

use super::call::CallError;
use super::connect::Host;
use super::job::{JobState, Sizes};
use super::script::JobRequest;
use crate::port::{Journal, Stream};
use model::fault::{Fault, FaultCode, Result};
use std::time::Duration;

/// The bytes of the samples that are read at once.
const SAMPLE_PAGE: usize = 64 << 10;
/// The time that the host waits for new output before it responds.
const POLL_WAIT: Duration = Duration::from_secs(5);
/// Output is read in pages of this many blocks and passed on in smaller chunks.
const BLOCK: u64 = 4096;
const PAGE_BLOCKS: u64 = 128;
const PIECE: usize = 32 << 10;

impl Host {
    /// Writes the log from byte `from` on to the journal until the job ended, was lost, or never
    /// started. Returns the length of the log. Dropping the future stops the reading.
    pub async fn follow_output(&self, key: &str, from: u64, journal: &Journal) -> Result<u64> {
        let mut log = Log { forwarded: from, ..Log::default() };
        let mut skip = 0;
        loop {
            let tenths = POLL_WAIT.as_secs() * 10;
            let probe = JobRequest::Status { skip, most: SAMPLE_PAGE, tenths };
            let limit = self.settings.call_timeout + POLL_WAIT * 2;
            let answer =
                self.run_script(key, probe, limit).await.map_err(CallError::into_read_fault)?;
            let state = self.state(key, &answer)?;
            let page = answer.behind(Some("samples"));
            let (samples, used) = samples(page);
            skip += used as u64;
            let bound = match state {
                JobState::Lost { sizes, .. } => sizes,
                JobState::NeverStarted
                | JobState::StoppedBeforeStart
                | JobState::Running { .. }
                | JobState::Ended { .. } => None,
            };
            for stretch in log.add_samples(samples.iter().map(|sizes| sizes.within(bound))) {
                self.forward_range(key, &stretch, journal).await?;
            }
            // The end may only be handled after all samples were read.
            if page.len() < SAMPLE_PAGE && self.forward_end(key, state, &mut log, journal).await? {
                return Ok(log.length.max(from));
            }
        }
    }

    /// Forwards the output after the last sample once the job has ended. False while it runs.
    async fn forward_end(
        &self,
        key: &str,
        state: JobState,
        log: &mut Log,
        journal: &Journal,
    ) -> Result<bool> {
        let (last, cut) = match state {
            JobState::Running { .. } => return Ok(false),
            JobState::NeverStarted | JobState::StoppedBeforeStart => return Ok(true),
            JobState::Ended { sizes, cut, .. } => (Some(sizes), cut),
            JobState::Lost { sizes, .. } => (sizes, (false, false)),
        };
        for stretch in log.add_samples(last) {
            self.forward_range(key, &stretch, journal).await?;
        }
        let message = cut_lines(last.unwrap_or_default(), cut);
        if let Some(rest) = log.add_notice(message.as_bytes()) {
            journal.write(Stream::Stderr, rest.to_vec()).await;
        }
        Ok(true)
    }

    /// Reads one range of an output and forwards it.
    async fn forward_range(
        &self,
        key: &str,
        stretch: &OutputRange,
        journal: &Journal,
    ) -> Result<()> {
        let mut at = stretch.begin;
        while at < stretch.end {
            let end = stretch.end.min((at / BLOCK + PAGE_BLOCKS) * BLOCK);
            let bytes = self.fetch(key, stretch.stream, at, end).await?;
            for piece in bytes.chunks(PIECE) {
                journal.write(stretch.stream, piece.to_vec()).await;
            }
            at = end;
        }
        Ok(())
    }

    /// The bytes of an output from `begin` to `end`, within one page of blocks.
    async fn fetch(&self, key: &str, stream: Stream, begin: u64, end: u64) -> Result<Vec<u8>> {
        let file = match stream {
            Stream::Stdout => "out",
            Stream::Stderr => "err",
        };
        let first = begin / BLOCK;
        let count = end.div_ceil(BLOCK) - first;
        let request = JobRequest::Fetch { file, block: BLOCK, first, count };
        let answer = self
            .run_script(key, request, self.settings.call_timeout)
            .await
            .map_err(CallError::into_read_fault)?;
        let words = answer.fields();
        if words != ["data"] {
            return Err(self.failure("read", key, &answer, &words));
        }
        let part = |offset: u64| usize::try_from(offset - first * BLOCK).unwrap_or(usize::MAX);
        let bytes = answer.behind(None).get(part(begin)..part(end)).map(<[u8]>::to_vec);
        bytes.ok_or_else(|| {
            let message = format!(
                "the {file}put of {key} is shorter than the host says, it ends before byte {end}"
            );
            Fault::new(FaultCode::AnswerGarbled, message)
        })
    }
}

/// The complete samples of a page and their size in bytes. A full disk may leave incomplete ones.
fn samples(page: &[u8]) -> (Vec<Sizes>, usize) {
    let mut found = Vec::new();
    let mut used = 0;
    let mut at = 0;
    for line in page.split(|byte| *byte == b'\n') {
        at += line.len();
        if let Some(sizes) = sample(line) {
            found.push(sizes);
            used = at;
        }
        at += 1;
    }
    // A full page without a complete sample must be skipped, not read again.
    if found.is_empty() && page.len() >= SAMPLE_PAGE { (found, page.len()) } else { (found, used) }
}

fn sample(line: &[u8]) -> Option<Sizes> {
    let mut words = std::str::from_utf8(line).ok()?.split(' ');
    let out = words.next()?.parse().ok()?;
    let err = words.next()?.parse().ok()?;
    (words.next() == Some(".") && words.next().is_none()).then_some(Sizes { out, err })
}

impl Sizes {
    fn within(self, bound: Option<Sizes>) -> Sizes {
        bound.map_or(self, |bound| Sizes {
            out: self.out.min(bound.out),
            err: self.err.min(bound.err),
        })
    }
}

/// A byte range of one output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct OutputRange {
    stream: Stream,
    begin: u64,
    end: u64,
}

/// The log so far: the sampled sizes, its length, and how much of it was forwarded.
#[derive(Debug, Default)]
struct Log {
    sampled: Sizes,
    length: u64,
    forwarded: u64,
}

impl Log {
    /// Adds samples and returns the ranges to forward. Adjacent ranges are merged.
    fn add_samples(&mut self, samples: impl IntoIterator<Item = Sizes>) -> Vec<OutputRange> {
        let mut stretches: Vec<OutputRange> = Vec::new();
        for Sizes { out, err } in samples {
            let before = self.sampled;
            self.sampled = Sizes { out: out.max(before.out), err: err.max(before.err) };
            for (stream, begin, end) in [
                (Stream::Stdout, before.out, self.sampled.out),
                (Stream::Stderr, before.err, self.sampled.err),
            ] {
                let known = self.forwarded.saturating_sub(self.length).min(end - begin);
                self.length += end - begin;
                let begin = begin + known;
                match stretches.last_mut() {
                    Some(last) if last.stream == stream && last.end == begin => last.end = end,
                    Some(_) | None if begin < end => {
                        stretches.push(OutputRange { stream, begin, end })
                    }
                    Some(_) | None => {}
                }
            }
        }
        stretches
    }

    /// Appends a message of Farrier to the log and returns the part that was not forwarded yet.
    fn add_notice<'a>(&mut self, message: &'a [u8]) -> Option<&'a [u8]> {
        let known =
            usize::try_from(self.forwarded.saturating_sub(self.length)).unwrap_or(usize::MAX);
        self.length += message.len() as u64;
        message.get(known..).filter(|rest| !rest.is_empty())
    }
}

fn cut_lines(sizes: Sizes, cut: (bool, bool)) -> String {
    let line = |name: &str, size: u64| {
        format!("farrier: {name} was cut after {size} bytes, the rest was not kept\n")
    };
    let out = if cut.0 { line("standard output", sizes.out) } else { String::new() };
    let err = if cut.1 { line("standard error", sizes.err) } else { String::new() };
    out + &err
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLES: [Sizes; 4] = [
        Sizes { out: 10, err: 0 },
        Sizes { out: 30, err: 5 },
        Sizes { out: 30, err: 9 },
        Sizes { out: 31, err: 9 },
    ];

    /// The log byte by byte, as a reader from this offset gets it.
    fn forwarded_bytes(from: u64, groups: &[&[Sizes]]) -> Vec<(Stream, u64)> {
        let mut log = Log { forwarded: from, ..Log::default() };
        let stretches = groups
            .iter()
            .flat_map(|group| log.add_samples(group.iter().copied()))
            .collect::<Vec<_>>();
        stretches.iter().flat_map(|s| (s.begin..s.end).map(|at| (s.stream, at))).collect()
    }

    #[test]
    fn the_log_resumes_from_any_byte() {
        let complete = forwarded_bytes(0, &[&SAMPLES]);
        assert_eq!(complete.len(), 40);
        assert_eq!(complete[30], (Stream::Stderr, 0));
        assert_eq!(complete[39], (Stream::Stdout, 30));
        for from in 0..=45 {
            let rest = complete.get(from..).unwrap_or_default();
            assert_eq!(forwarded_bytes(from as u64, &[&SAMPLES]), rest, "from {from}");
            assert_eq!(
                forwarded_bytes(from as u64, &[&SAMPLES[..1], &SAMPLES[1..3], &SAMPLES[3..]]),
                rest,
                "from {from}"
            );
        }
    }

    #[test]
    fn adjacent_ranges_are_merged() {
        let mut log = Log::default();
        let sizes = (1..=1000).map(|out| Sizes { out, err: 0 });
        assert_eq!(
            log.add_samples(sizes),
            [OutputRange { stream: Stream::Stdout, begin: 0, end: 1000 }]
        );
    }

    #[test]
    fn notices_are_part_of_the_log() {
        for (reported, rest) in
            [(0, Some("abc")), (10, Some("abc")), (11, Some("bc")), (13, None), (99, None)]
        {
            let mut log = Log { forwarded: reported, length: 10, ..Log::default() };
            assert_eq!(log.add_notice(b"abc"), rest.map(str::as_bytes), "{reported}");
            assert_eq!(log.length, 13);
        }
        assert!(
            cut_lines(Sizes { out: 7, err: 0 }, (true, false))
                .contains("standard output was cut after 7 bytes")
        );
        assert_eq!(cut_lines(Sizes::default(), (false, false)), "");
    }

    #[test]
    fn incomplete_samples_are_skipped() {
        let (found, used) = samples(b"\n1 0 .\n2\n3 1 .\n44 1");
        assert_eq!(found, [Sizes { out: 1, err: 0 }, Sizes { out: 3, err: 1 }]);
        assert_eq!(used, b"\n1 0 .\n2\n3 1 .".len());
        assert_eq!(samples(b""), (vec![], 0));
        assert_eq!(samples(b"\n5 "), (vec![], 0));
        assert_eq!(samples(&[b'x'; SAMPLE_PAGE]).1, SAMPLE_PAGE);
    }
}
