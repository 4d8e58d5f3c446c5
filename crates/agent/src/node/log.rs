//! The log of a task until it has been sent. Writers never wait for the network.
//!
//! A part is read, sent, and only then dropped: after a lost answer it may be sent twice, but it is
//! never lost. Of a long log the beginning and the end are kept, with a note of how much is missing
//! in between: a hook must fill neither the memory of the node nor Farrier's database.

use std::sync::{Mutex, MutexGuard, PoisonError};
use wire::node::MAX_LOG_BYTES;

/// The limit of the stored last line.
const MAX_LAST_BYTES: usize = 512;
/// The limit of the beginning that is sent during the task. Farrier keeps as much, and the end.
const MAX_HEAD_BYTES: usize = 2 * MAX_LOG_BYTES;
/// Space for the note of the missing bytes.
const NOTE_BYTES: usize = 64;
/// The limit of the stored end.
const MAX_TAIL_BYTES: usize = MAX_LOG_BYTES - NOTE_BYTES;

#[derive(Default)]
pub struct TaskLog(Mutex<LogBuffer>);

#[derive(Default)]
struct LogBuffer {
    /// The part of the beginning that has not been sent.
    head: String,
    /// The size of the beginning so far, sent or not.
    begun: usize,
    left_out: usize,
    /// The stored text after the beginning.
    tail: String,
    /// The last line with text, sent or not.
    last: String,
}

impl TaskLog {
    fn buffer(&self) -> MutexGuard<'_, LogBuffer> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a line or a part of one.
    pub fn add(&self, text: &str) {
        let mut waiting = self.buffer();
        if let Some(line) = text.lines().map(str::trim).rfind(|line| !line.is_empty()) {
            waiting.last = beginning(line, MAX_LAST_BYTES).to_owned();
        }
        let plain = |c: &char| !c.is_control() || matches!(c, '\n' | '\t');
        waiting.add(&text.chars().filter(plain).collect::<String>());
    }

    pub fn line(&self, line: &str) {
        self.add(&format!("{line}\n"));
    }

    /// The oldest part of the beginning that fits into one request, cut after a line if possible.
    pub fn next_part(&self) -> String {
        let waiting = self.buffer();
        let most = beginning(&waiting.head, MAX_LOG_BYTES);
        match most.rfind('\n') {
            Some(at) if most.len() < waiting.head.len() => most[..=at].to_owned(),
            Some(_) | None => most.to_owned(),
        }
    }

    /// Drops a part that has been sent.
    pub fn drop_part(&self, part: &str) {
        self.buffer().head.drain(..part.len());
    }

    /// More is left than fits into one request.
    pub fn exceeds_one_part(&self) -> bool {
        self.buffer().head.len() > MAX_LOG_BYTES
    }

    /// The rest does not fit into the last request, and a part can be sent before.
    pub fn exceeds_report(&self) -> bool {
        let waiting = self.buffer();
        !waiting.head.is_empty() && waiting.text().len() > MAX_LOG_BYTES
    }

    /// The end of the unsent log, as much as fits into one request: the last lines explain the
    /// result.
    pub fn final_part(&self) -> String {
        let waiting = self.buffer();
        let text = waiting.text();
        if text.len() <= MAX_LOG_BYTES {
            return text;
        }
        let (stored, missing) = match waiting.end() {
            (_, 0) => {
                let stored = end(&text, MAX_TAIL_BYTES);
                (stored, text.len() - stored.len())
            }
            // The kept end leaves no space for anything of the beginning.
            (stored, missing) => (stored, missing + waiting.head.len()),
        };
        format!("[{missing} bytes left out]\n{stored}")
    }

    pub fn last_line(&self) -> String {
        self.buffer().last.clone()
    }

    pub fn text(&self) -> String {
        self.buffer().text()
    }
}

impl LogBuffer {
    fn add(&mut self, text: &str) {
        let room = match self.tail.is_empty() {
            true => MAX_HEAD_BYTES - self.begun,
            false => 0,
        };
        let (first, rest) = text.split_at(beginning(text, room).len());
        self.begun += first.len();
        self.head += first;
        self.tail += rest;
        // Not for every line, because cutting copies.
        if self.tail.len() > 2 * MAX_TAIL_BYTES {
            self.trim_tail();
        }
    }

    /// Drops the oldest part of the tail.
    fn trim_tail(&mut self) {
        let stored = end(&self.tail, MAX_TAIL_BYTES).len();
        let from = self.tail.len() - stored;
        self.left_out += from;
        self.tail.drain(..from);
    }

    /// The end of the log, and how much is missing before it.
    fn end(&self) -> (&str, usize) {
        let stored = end(&self.tail, MAX_TAIL_BYTES);
        (stored, self.left_out + self.tail.len() - stored.len())
    }

    fn text(&self) -> String {
        let head = &self.head;
        match self.end() {
            (end, 0) => format!("{head}{end}"),
            (end, bytes) => format!("{head}[{bytes} bytes left out]\n{end}"),
        }
    }
}

/// The end of a text, at most so many bytes, cut between characters.
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
    fn parts_are_whole_lines() {
        let log = TaskLog::default();
        let line = "é".repeat(500);
        (0..120).for_each(|_| log.line(&line));
        assert!(log.exceeds_one_part() && log.exceeds_report());
        let mut complete = String::new();
        for _ in 0..8 {
            let part = log.next_part();
            assert!(part.len() <= MAX_LOG_BYTES);
            assert!(part.is_empty() || part.ends_with('\n'));
            assert_eq!(log.next_part(), part, "looking changes nothing");
            log.drop_part(&part);
            complete += &part;
        }
        assert_eq!(complete, format!("{line}\n").repeat(120));
        assert!(!log.exceeds_one_part() && !log.exceeds_report() && log.final_part().is_empty());
    }

    #[test]
    fn long_lines_are_cut_between_characters() {
        let log = TaskLog::default();
        log.add(&"é".repeat(MAX_LOG_BYTES));
        log.add("\u{1b}[1m");
        let part = log.next_part();
        assert_eq!(part.len(), MAX_LOG_BYTES);
        log.drop_part(&part);
        log.drop_part(&log.next_part());
        assert_eq!(log.final_part(), "[1m", "nothing that moves a cursor is passed on");
    }

    #[test]
    fn long_logs_keep_beginning_and_end() {
        let log = TaskLog::default();
        (0..1_000_000).for_each(|number| log.line(&format!("{number:09}")));
        log.line("the end");
        let waiting = log.buffer();
        assert!(waiting.head.len() + waiting.tail.capacity() < 6 * MAX_LOG_BYTES);
        drop(waiting);
        let (mut sent, mut parts) = (String::new(), 0);
        while log.exceeds_report() {
            let part = log.next_part();
            log.drop_part(&part);
            sent += &part;
            parts += 1;
        }
        let rest = log.final_part();
        assert!(parts <= 3 && rest.len() <= MAX_LOG_BYTES, "{parts} parts, {}", rest.len());
        assert!(sent.starts_with("000000000\n000000001\n") && rest.ends_with("999999\nthe end\n"));
        let complete = 10 * 1_000_000 + "the end\n".len();
        let (before, end) = rest.split_once(" bytes left out]\n").unwrap();
        let (first, missing) = before.rsplit_once('[').unwrap();
        let missing: usize = missing.parse().unwrap();
        assert_eq!(sent.len() + first.len() + missing + end.len(), complete);
        assert_eq!(log.last_line(), "the end");
    }

    #[test]
    fn missing_bytes_are_counted() {
        let log = TaskLog::default();
        (0..30_000).for_each(|number| log.line(&format!("{number:09}")));
        let rest = log.final_part();
        assert!(rest.len() <= MAX_LOG_BYTES && rest.ends_with("29999\n"), "{}", rest.len());
        let (missing, end) = rest.split_once(" bytes left out]\n").unwrap();
        let missing: usize = missing.trim_start_matches('[').parse().unwrap();
        assert_eq!(missing + end.len(), 300_000);
        let log = TaskLog::default();
        (0..10_000).for_each(|number| log.line(&format!("{number:09}")));
        let (missing, end) = log
            .final_part()
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
