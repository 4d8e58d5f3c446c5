//! What is said while a task goes on, until it has been sent. Whoever speaks never waits for whoever listens.
//!
//! A part is looked at, sent, and only then dropped: a log may be said twice after a lost answer, and not be lost. Of a task that says too
//! much its beginning and its end are kept, with a word of how much is missing between them: neither the memory of a node nor Farrier's
//! database is to be filled by a hook.

use std::sync::{Mutex, MutexGuard, PoisonError};
use wire::node::MAX_LOG_BYTES;

/// How much of the newest line is remembered.
const MAX_LAST_BYTES: usize = 512;
/// How much of the beginning is sent while the task goes on. Farrier keeps as much, and the end.
const MAX_HEAD_BYTES: usize = 2 * MAX_LOG_BYTES;
/// Room for the word of what is missing.
const NOTE_BYTES: usize = 64;
/// How much of the end is kept.
const MAX_TAIL_BYTES: usize = MAX_LOG_BYTES - NOTE_BYTES;

#[derive(Default)]
pub struct Log(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    /// What is left to be sent of the beginning.
    head: String,
    /// How much of the beginning there was.
    begun: usize,
    left_out: usize,
    /// What comes after the beginning, as far as it is kept.
    tail: String,
    /// The newest line that says something, whether it has been sent or not.
    last: String,
}

impl Log {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a line, or a piece of one.
    pub fn add(&self, text: &str) {
        let mut waiting = self.waiting();
        if let Some(line) = text.lines().map(str::trim).rfind(|line| !line.is_empty()) {
            waiting.last = beginning(line, MAX_LAST_BYTES).to_owned();
        }
        let plain = |c: &char| !c.is_control() || matches!(c, '\n' | '\t');
        waiting.add(&text.chars().filter(plain).collect::<String>());
    }

    pub fn line(&self, line: &str) {
        self.add(&format!("{line}\n"));
    }

    /// The oldest part of the beginning, as much as goes with one request, cut after a line where there is one.
    pub fn part(&self) -> String {
        let waiting = self.waiting();
        let most = beginning(&waiting.head, MAX_LOG_BYTES);
        match most.rfind('\n') {
            Some(at) if most.len() < waiting.head.len() => most[..=at].to_owned(),
            Some(_) | None => most.to_owned(),
        }
    }

    /// That part has been sent.
    pub fn sent(&self, part: &str) {
        self.waiting().head.drain(..part.len());
    }

    /// True when there is more to be sent than goes with one request.
    pub fn overflows(&self) -> bool {
        self.waiting().head.len() > MAX_LOG_BYTES
    }

    /// True when all that waits does not fit into the last request, and some of it can be sent before.
    pub fn spills(&self) -> bool {
        let waiting = self.waiting();
        !waiting.head.is_empty() && waiting.text().len() > MAX_LOG_BYTES
    }

    /// The end of all that waits, as much as goes with one request: what was said last explains how it ended.
    pub fn rest(&self) -> String {
        let waiting = self.waiting();
        let text = waiting.text();
        if text.len() <= MAX_LOG_BYTES {
            return text;
        }
        let (kept, missing) = match waiting.end() {
            (_, 0) => {
                let kept = end(&text, MAX_TAIL_BYTES);
                (kept, text.len() - kept.len())
            }
            // Beside such an end there is no room for anything of the beginning.
            (kept, missing) => (kept, missing + waiting.head.len()),
        };
        format!("[{missing} bytes left out]\n{kept}")
    }

    pub fn last(&self) -> String {
        self.waiting().last.clone()
    }

    pub fn text(&self) -> String {
        self.waiting().text()
    }
}

impl Waiting {
    fn add(&mut self, text: &str) {
        let room = match self.tail.is_empty() {
            true => MAX_HEAD_BYTES - self.begun,
            false => 0,
        };
        let (first, rest) = text.split_at(beginning(text, room).len());
        self.begun += first.len();
        self.head += first;
        self.tail += rest;
        // Not for each line: what is cut off is copied.
        if self.tail.len() > 2 * MAX_TAIL_BYTES {
            self.cut();
        }
    }

    /// Forgets the oldest of the end.
    fn cut(&mut self) {
        let kept = end(&self.tail, MAX_TAIL_BYTES).len();
        let from = self.tail.len() - kept;
        self.left_out += from;
        self.tail.drain(..from);
    }

    /// The end of it, and how much is missing before that.
    fn end(&self) -> (&str, usize) {
        let kept = end(&self.tail, MAX_TAIL_BYTES);
        (kept, self.left_out + self.tail.len() - kept.len())
    }

    fn text(&self) -> String {
        let head = &self.head;
        match self.end() {
            (end, 0) => format!("{head}{end}"),
            (end, bytes) => format!("{head}[{bytes} bytes left out]\n{end}"),
        }
    }
}

/// The end of a text, within so many bytes and without cutting a character.
fn end(text: &str, most: usize) -> &str {
    let from = text.len().saturating_sub(most);
    let from = (from..text.len()).find(|at| text.is_char_boundary(*at));
    &text[from.unwrap_or(text.len())..]
}

/// The beginning of a text, within so many bytes and without cutting a character.
pub fn beginning(text: &str, most: usize) -> &str {
    let most = most.min(text.len());
    let end = (0..=most).rev().find(|at| text.is_char_boundary(*at));
    &text[..end.unwrap_or(0)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_whole_lines_and_nothing_is_lost() {
        let log = Log::default();
        let line = "é".repeat(500);
        (0..120).for_each(|_| log.line(&line));
        assert!(log.overflows() && log.spills());
        let mut whole = String::new();
        for _ in 0..8 {
            let part = log.part();
            assert!(part.len() <= MAX_LOG_BYTES);
            assert!(part.is_empty() || part.ends_with('\n'));
            assert_eq!(log.part(), part, "looking changes nothing");
            log.sent(&part);
            whole += &part;
        }
        assert_eq!(whole, format!("{line}\n").repeat(120));
        assert!(!log.overflows() && !log.spills() && log.rest().is_empty());
    }

    #[test]
    fn a_line_without_end_is_cut_between_characters() {
        let log = Log::default();
        log.add(&"é".repeat(MAX_LOG_BYTES));
        log.add("\u{1b}[1m");
        let part = log.part();
        assert_eq!(part.len(), MAX_LOG_BYTES);
        log.sent(&part);
        log.sent(&log.part());
        assert_eq!(log.rest(), "[1m", "nothing that moves a cursor is passed on");
    }

    #[test]
    fn of_too_much_the_beginning_and_the_end_are_kept() {
        let log = Log::default();
        (0..1_000_000).for_each(|number| log.line(&format!("{number:09}")));
        log.line("the end");
        let waiting = log.waiting();
        assert!(waiting.head.len() + waiting.tail.capacity() < 6 * MAX_LOG_BYTES);
        drop(waiting);
        let (mut sent, mut parts) = (String::new(), 0);
        while log.spills() {
            let part = log.part();
            log.sent(&part);
            sent += &part;
            parts += 1;
        }
        let rest = log.rest();
        assert!(parts <= 3 && rest.len() <= MAX_LOG_BYTES, "{parts} parts, {}", rest.len());
        assert!(sent.starts_with("000000000\n000000001\n") && rest.ends_with("999999\nthe end\n"));
        let whole = 10 * 1_000_000 + "the end\n".len();
        let (before, end) = rest.split_once(" bytes left out]\n").unwrap();
        let (first, missing) = before.rsplit_once('[').unwrap();
        let missing: usize = missing.parse().unwrap();
        assert_eq!(sent.len() + first.len() + missing + end.len(), whole);
        assert_eq!(log.last(), "the end");
    }

    #[test]
    fn what_could_not_be_sent_is_counted() {
        let log = Log::default();
        (0..30_000).for_each(|number| log.line(&format!("{number:09}")));
        let rest = log.rest();
        assert!(rest.len() <= MAX_LOG_BYTES && rest.ends_with("29999\n"), "{}", rest.len());
        let (missing, end) = rest.split_once(" bytes left out]\n").unwrap();
        let missing: usize = missing.trim_start_matches('[').parse().unwrap();
        assert_eq!(missing + end.len(), 300_000);
        let log = Log::default();
        (0..10_000).for_each(|number| log.line(&format!("{number:09}")));
        let (missing, end) = log
            .rest()
            .split_once(" bytes left out]\n")
            .map(|(a, b)| (a.to_owned(), b.len()))
            .unwrap();
        assert_eq!(missing.trim_start_matches('[').parse::<usize>().unwrap() + end, 100_000);
    }

    #[test]
    fn a_text_is_cut_between_characters() {
        for (most, cut) in [(0, ""), (1, "a"), (2, "a"), (3, "aé"), (9, "aé")] {
            assert_eq!(beginning("aé", most), cut);
        }
    }
}
