//! The GPUs of the node, as nvidia-smi shows them: who computes on them, ending that, and resetting them.
//!
//! nvidia-smi hangs when a driver does, so it has a limit of its own. Where there is no such program there are no GPUs, which is said in the
//! log: a node whose driver is missing must not look clean without a word.

use super::log::Log;
use super::patience::{Halt, Patience};
use super::program::{self, Stray};
use super::work::Fail;
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

const QUERY: [&str; 2] = ["--query-compute-apps=pid", "--format=csv,noheader"];
const RESET: [&str; 1] = ["--gpu-reset"];
const QUERY_LIMIT: Duration = Duration::from_secs(60);
const RESET_LIMIT: Duration = Duration::from_secs(300);
/// What some versions say in place of an empty list.
const NOBODY: &str = "no running processes found";
/// How many processes are named in a sentence.
const MAX_NAMED: usize = 8;
/// The first process is never a job.
const INIT: i32 = 1;

pub struct Gpus<'a> {
    pub program: &'a Path,
    pub mark: &'a str,
    /// Between two looks.
    pub look: Duration,
}

impl Gpus<'_> {
    pub fn exist(&self, log: &Log) -> bool {
        let exist = self.program.exists();
        if !exist {
            log.line(&format!("no GPUs: there is no {}", self.program.display()));
        }
        exist
    }

    /// Who computes on them now.
    pub fn processes(&self, patience: Patience) -> Result<Vec<Pid>, Fail> {
        let said = self.ask(&QUERY, QUERY_LIMIT, patience)?;
        parse(&said)
    }

    pub fn reset(&self, patience: Patience, log: &Log) -> Result<(), Fail> {
        let said = self.ask(&RESET, RESET_LIMIT, patience)?;
        log.add(&said);
        Ok(())
    }

    /// Waits until nobody computes on them.
    pub fn wait(&self, patience: Patience, log: &Log) -> Result<(), Fail> {
        let mut told = String::new();
        loop {
            let left = self.processes(patience)?;
            if left.is_empty() {
                return Ok(());
            }
            tell(&mut told, format!("waiting for {}", named(&left)), log);
            patience.sleep(self.look).map_err(|halt| still(halt, &left))?;
        }
    }

    /// Ends whoever computes on them: asked first, and made to after a while.
    pub fn release(&self, grace: Duration, patience: Patience, log: &Log) -> Result<(), Fail> {
        let mut asked: BTreeMap<i32, Instant> = BTreeMap::new();
        loop {
            let left = self.processes(patience)?;
            if left.is_empty() {
                return Ok(());
            }
            // A number that is not listed any more may be somebody else's by the next look.
            asked.retain(|number, _| left.iter().any(|pid| number_of(*pid) == *number));
            for pid in &left {
                let since = asked.get(&number_of(*pid)).map(Instant::elapsed);
                if let Some(signal) = due(since, grace) {
                    log.line(&format!("{} to process {}", word(signal), number_of(*pid)));
                    // One that has just ended is what is wanted; the next look says so.
                    let _ = kill_process(*pid, signal);
                }
                asked.entry(number_of(*pid)).or_insert_with(Instant::now);
            }
            patience.sleep(self.look).map_err(|halt| still(halt, &left))?;
        }
    }

    fn ask(&self, arguments: &[&str], limit: Duration, patience: Patience) -> Result<String, Fail> {
        let mut command = Command::new(self.program);
        command.args(arguments);
        let name = self.program.display();
        let said = Arc::new(Log::default());
        match program::run(command, self.mark, patience.at_most(limit), &said) {
            Ok(status) if status.success() => Ok(said.text()),
            Ok(status) => {
                let arguments = arguments.join(" ");
                Err(Fail::Said(format!("{name} {arguments} ended with {status}: {}", said.last())))
            }
            Err(Stray::Halt(Halt::Late)) if patience.check().is_ok() => Err(Fail::Said(format!(
                "{name} did not answer within {} s; is the driver well?",
                limit.as_secs()
            ))),
            Err(Stray::Halt(halt)) => Err(Fail::Halt(halt)),
            Err(Stray::Lost(error)) => Err(Fail::Said(format!("{name} does not run: {error}"))),
        }
    }
}

fn number_of(pid: Pid) -> i32 {
    pid.as_raw_nonzero().get()
}

fn parse(said: &str) -> Result<Vec<Pid>, Fail> {
    let lines = said.lines().map(str::trim);
    let mut found = Vec::new();
    for line in lines.filter(|line| !line.is_empty() && !line.eq_ignore_ascii_case(NOBODY)) {
        match line.parse().ok().filter(|number| *number > INIT).and_then(Pid::from_raw) {
            Some(pid) => found.push(pid),
            None => {
                return Err(Fail::Said(format!("nvidia-smi lists {line:?}, which is no process")));
            }
        }
    }
    found.sort_by_key(|pid| number_of(*pid));
    found.dedup();
    Ok(found)
}

/// What a process is sent, by how long ago it was asked to end.
fn due(asked: Option<Duration>, grace: Duration) -> Option<Signal> {
    match asked {
        None => Some(Signal::TERM),
        Some(since) if since >= grace => Some(Signal::KILL),
        Some(_) => None,
    }
}

fn word(signal: Signal) -> &'static str {
    if signal == Signal::KILL { "SIGKILL" } else { "SIGTERM" }
}

/// What stands in the way when the time is over.
fn still(halt: Halt, left: &[Pid]) -> Fail {
    match halt {
        Halt::Stopped => Fail::Halt(Halt::Stopped),
        Halt::Late => Fail::Said(format!("the time is over, and there is still {}", named(left))),
    }
}

pub fn named(pids: &[Pid]) -> String {
    let some: Vec<String> =
        pids.iter().take(MAX_NAMED).map(|pid| number_of(*pid).to_string()).collect();
    let more = match pids.len().saturating_sub(MAX_NAMED) {
        0 => String::new(),
        count => format!(" and {count} more"),
    };
    format!("work on the GPUs: process {}{more}", some.join(", "))
}

/// Says what is new.
fn tell(told: &mut String, line: String, log: &Log) {
    if *told != line {
        log.line(&line);
        *told = line;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_read_whole_or_refused() {
        let numbers = |said: &str| {
            parse(said).map(|pids| pids.into_iter().map(number_of).collect::<Vec<_>>()).ok()
        };
        for (said, found) in [
            ("", Some(vec![])),
            ("\n", Some(vec![])),
            ("No running processes found\n", Some(vec![])),
            ("12\n7\n12\n", Some(vec![7, 12])),
            ("12\n[N/A]\n", None),
            ("0", None),
            ("1", None),
            ("-5", None),
        ] {
            assert_eq!(numbers(said), found, "{said:?}");
        }
    }

    #[test]
    fn a_process_is_asked_first() {
        let grace = Duration::from_secs(10);
        for (asked, signal) in
            [(None, Some(Signal::TERM)), (Some(9), None), (Some(10), Some(Signal::KILL))]
        {
            assert_eq!(due(asked.map(Duration::from_secs), grace), signal);
        }
        assert_eq!(due(Some(Duration::ZERO), Duration::ZERO), Some(Signal::KILL));
    }

    #[test]
    fn many_processes_are_counted() {
        let pids: Vec<Pid> = (2..12).filter_map(Pid::from_raw).collect();
        assert_eq!(named(&pids), "work on the GPUs: process 2, 3, 4, 5, 6, 7, 8, 9 and 2 more");
    }
}
