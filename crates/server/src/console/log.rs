//! The log of an operation as lines of a page: first the last ones, then those of the stream. Both
//! are rendered here, so they look the same.

use super::clock::{format_utc, time_of_day};
use super::frame::command;
use super::queries;
use super::text;
use engine::Engine;
use maud::{Markup, html};
use model::id::RunId;
use std::collections::VecDeque;
use store::{LogLine, Result};

/// The number of lines that a page shows at first.
const MAX_LINES: usize = 500;
/// The number of bytes at the end of a log that are read for them.
const TAIL_BYTES: i64 = 256 * 1_024;

/// The end of a log.
pub(super) struct LogTail {
    lines: VecDeque<Markup>,
    /// The log has lines before these.
    cut: bool,
    /// The offset at which the shown lines end.
    pub end: i64,
}

pub(super) async fn read_tail(engine: &Engine, id: &RunId) -> Result<LogTail> {
    let from = (queries::read_log_end(engine, id).await? - TAIL_BYTES).max(0);
    let mut tail = LogTail { lines: VecDeque::new(), cut: from > 0, end: from };
    let mut log = engine.runs().follow_log(id, from, false).await?;
    loop {
        let pieces = log.next().await?;
        if pieces.is_empty() {
            return Ok(tail);
        }
        for piece in &pieces {
            tail.end = piece.start + piece.data.len() as i64;
            tail.lines.extend(rows(piece));
        }
        let excess = tail.lines.len().saturating_sub(MAX_LINES);
        tail.cut |= excess > 0;
        tail.lines.drain(..excess);
        // The stream delivers what was logged since.
        if tail.end >= from + 2 * TAIL_BYTES {
            return Ok(tail);
        }
    }
}

/// The lines of one chunk.
pub(super) fn rows(piece: &LogLine) -> Vec<Markup> {
    text::clean_lines(&piece.data).iter().map(|line| row(piece, line)).collect()
}

fn row(piece: &LogLine, line: &str) -> Markup {
    let error = piece.stream == "stderr";
    html! {
        div.line.err[error] {
            time title=(format_utc(piece.ts)) { (time_of_day(piece.ts)) } " "
            b { (piece.step) } " "
            @if error { i { "stderr " } }
            span { (line) }
        }
    }
}

impl LogTail {
    pub fn draw(&self, id: &RunId, ended: bool) -> Markup {
        html! {
            section #log-section aria-labelledby="log-title" {
                h2 #log-title {
                    "Log" span.dim { @if ended { " complete" } @else { " goes on while the operation runs" } }
                }
                p.dim {
                    @if self.cut { "The last lines; all of it: " } @else { "In your terminal: " }
                    (command(&format!("farrier logs {}{id}", if ended { "" } else { "-f " })))
                }
                div #log .log role="log" aria-live="off" tabindex="0" aria-labelledby="log-title" {
                    @for line in &self.lines { (line) }
                }
                @if self.lines.is_empty() { p.dim #log-empty { "Nothing has been logged." } }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::time::Timestamp;

    #[test]
    fn a_line_is_escaped_and_says_when_it_is_an_error() {
        let piece = LogLine {
            start: 0,
            ts: Timestamp::default(),
            step: "repave".into(),
            stream: "stderr".into(),
            data: b"\x1b[31m<script>\x1b[0m\nnext\n".to_vec(),
        };
        let rows = rows(&piece);
        assert_eq!(rows.len(), 2);
        let first = rows[0].clone().into_string();
        assert!(first.contains("&lt;script&gt;") && first.contains("stderr"), "{first}");
        assert!(!first.contains('\u{1b}'));
    }
}
