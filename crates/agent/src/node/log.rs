//! What is said while a task goes on, until it has been sent. Whoever speaks never waits for whoever listens.
//!
//! A part is looked at, sent, and only then dropped: a log may be said twice after a lost answer, and not be lost. When too much waits, the
//! newest is left out and counted, because a controller that is away must not fill the memory of a node.

use super::wire::{MAX_LOG_BYTES, beginning};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// How much of the newest line is remembered.
const MAX_LAST_BYTES: usize = 512;
/// The most that waits to be sent.
const MAX_WAITING_BYTES: usize = 1024 * 1024;

#[derive(Default)]
pub struct Log(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    text: String,
    left_out: usize,
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
        waiting.catch_up();
        if let Some(line) = text.lines().map(str::trim).rfind(|line| !line.is_empty()) {
            waiting.last = beginning(line, MAX_LAST_BYTES).to_owned();
        }
        let room = MAX_WAITING_BYTES.saturating_sub(waiting.text.len());
        if waiting.left_out > 0 || text.len() > room {
            waiting.left_out += text.len();
            return;
        }
        waiting.text.extend(text.chars().filter(|c| !c.is_control() || matches!(c, '\n' | '\t')));
    }

    pub fn line(&self, line: &str) {
        self.add(&format!("{line}\n"));
    }

    /// The oldest part of it, as much as goes with one request, cut after a line where there is one.
    pub fn part(&self) -> String {
        let waiting = self.waiting();
        let most = beginning(&waiting.text, MAX_LOG_BYTES);
        match most.rfind('\n') {
            Some(at) if most.len() < waiting.text.len() => most[..=at].to_owned(),
            Some(_) | None => most.to_owned(),
        }
    }

    /// That part has been sent.
    pub fn sent(&self, part: &str) {
        let mut waiting = self.waiting();
        waiting.text.drain(..part.len());
        waiting.catch_up();
    }

    /// True when there is more than goes with one request.
    pub fn overflows(&self) -> bool {
        self.waiting().text.len() > MAX_LOG_BYTES
    }

    /// The end of all that waits, as much as goes with one request: what was said last explains how it ended.
    pub fn rest(&self) -> String {
        const NOTE_BYTES: usize = 64;
        let waiting = self.waiting();
        let from = waiting.text.len().saturating_sub(MAX_LOG_BYTES - NOTE_BYTES);
        let from = (from..waiting.text.len())
            .find(|at| waiting.text.is_char_boundary(*at))
            .unwrap_or(waiting.text.len());
        match from + waiting.left_out {
            0 => waiting.text.clone(),
            bytes => format!("[{bytes} bytes left out]\n{}", &waiting.text[from..]),
        }
    }

    pub fn last(&self) -> String {
        self.waiting().last.clone()
    }

    pub fn text(&self) -> String {
        self.waiting().text.clone()
    }
}

impl Waiting {
    /// Once there is room again, says how much is missing here.
    fn catch_up(&mut self) {
        if self.left_out > 0 && self.text.len() < MAX_WAITING_BYTES / 2 {
            self.text += &format!("[{} bytes left out]\n", self.left_out);
            self.left_out = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_whole_lines_and_nothing_is_lost() {
        let log = Log::default();
        let line = "é".repeat(500);
        (0..200).for_each(|_| log.line(&line));
        let mut whole = String::new();
        for _ in 0..8 {
            let part = log.part();
            assert!(part.len() <= MAX_LOG_BYTES);
            assert!(part.is_empty() || part.ends_with('\n'));
            assert_eq!(log.part(), part, "looking changes nothing");
            log.sent(&part);
            whole += &part;
        }
        assert_eq!(whole, format!("{line}\n").repeat(200));
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
        assert_eq!(log.part(), "[1m", "nothing that moves a cursor is passed on");
    }

    #[test]
    fn what_is_too_much_is_counted() {
        let log = Log::default();
        let line = "x".repeat(1023);
        (0..1100).for_each(|_| log.line(&line));
        assert!(log.overflows());
        let rest = log.rest();
        assert!(rest.len() <= MAX_LOG_BYTES && rest.contains("bytes left out]"), "{}", rest.len());
        for _ in 0..20 {
            log.sent(&log.part());
        }
        assert!(log.text().is_empty() && !log.overflows());
        let log = Log::default();
        (0..1100).for_each(|_| log.line(&line));
        for _ in 0..10 {
            log.sent(&log.part());
        }
        log.line("after");
        let text = log.text();
        assert_eq!(log.last(), "after");
        assert!(text.ends_with(&format!("[{} bytes left out]\nafter\n", 76 * 1024)), "{text}");
    }
}
