//! Jobs on a host: started at most once under a key, read, stopped, forgotten.
//!
//! A start or a stop that was sent may have been executed, and its fault reports that. A read has
//! no effect, so a lost read only means that the host is unreachable.

use super::call::{CallError, Output};
use super::connect::Host;
use super::script::{JobRequest, MAX_COMMAND, SHELL, script};
use model::fault::{Fault, FaultCode, Result};
use std::time::Duration;

/// Marks a response line, because a profile on the host may print text too.
const MARK: &str = "@farrier ";
/// The wait for a killed process group to exit and for its status to be written.
const AFTER_KILL: Duration = Duration::from_secs(10);
/// The longest grace period before KILL.
const MAX_GRACE: Duration = Duration::from_secs(24 * 60 * 60);
/// The most characters of a host's output that a fault repeats.
const MAX_REPEATED: usize = 200;
const BOOT_ID: &str = "cat /proc/sys/kernel/random/boot_id";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StartResult {
    Started,
    /// The key was started before; its status is a separate request.
    AlreadyStarted,
    /// The key was stopped before it started and can never start.
    StoppedBeforeStart,
}

/// The exit of a job's command. Like a shell, 128 plus a number stands for a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobExit {
    Code(u8),
    Signal(u8),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobStatus {
    NeverStarted,
    StoppedBeforeStart,
    Running { pid: u32 },
    Ended(JobExit),
    Lost(LostReason),
}

/// The reason why the exit of a job is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LostReason {
    /// The host was rebooted.
    Rebooted,
    /// Its processes are gone and left no status.
    Gone,
    /// It was marked as started, but starting was interrupted. The command did not run.
    NotLaunched,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopResult {
    /// It had not started and never can.
    StoppedBeforeStart,
    /// It had ended before.
    AlreadyEnded(JobExit),
    /// It ended after TERM.
    Terminated(JobExit),
    /// It was killed.
    Killed(JobExit),
    /// It does not run, and its exit is unknown.
    Lost(LostReason),
}

impl Host {
    /// Starts a command in the background, at most once for each key, with `sh` in the user's home.
    pub async fn start(&self, key: &str, command: &str) -> Result<StartResult> {
        if command.len() > MAX_COMMAND || command.contains('\0') {
            let message =
                format!("a command is text of at most {MAX_COMMAND} bytes, and {key} has another");
            return Err(Fault::new(FaultCode::NotSupported, message));
        }
        let limit = self.settings.call_timeout;
        let answer = self
            .run_script(key, JobRequest::Start { command }, limit)
            .await
            .map_err(into_start_fault)?;
        match answer.fields().as_slice() {
            ["began"] => Ok(StartResult::Started),
            ["before"] => Ok(StartResult::AlreadyStarted),
            ["stopped-before-start"] => Ok(StartResult::StoppedBeforeStart),
            words => Err(self.failure("start", key, &answer, words)),
        }
    }

    pub async fn status(&self, key: &str) -> Result<JobStatus> {
        let probe = JobRequest::Status { skip: 0, most: 0, tenths: 0 };
        let answer = self
            .run_script(key, probe, self.settings.call_timeout)
            .await
            .map_err(CallError::into_read_fault)?;
        self.state(key, &answer).map(|state| state.status())
    }

    /// Confirms a running job that waits for it, and returns the job's state. The job waits with
    /// the file `applied` in its folder, and the confirmation renames it to `confirmed`.
    pub async fn confirm(&self, key: &str, earlier: &str) -> Result<JobStatus> {
        let answer = self
            .run_script(key, JobRequest::Confirm { earlier }, self.settings.call_timeout)
            .await
            .map_err(into_start_fault)?;
        self.state(key, &answer).map(|state| state.status())
    }

    /// Ends the job's process group: TERM, and KILL after the grace period. A key that has not
    /// started can never start: a late start is refused.
    pub async fn stop(&self, key: &str, grace: Duration) -> Result<StopResult> {
        let grace = grace.min(MAX_GRACE);
        let limit = grace * 2 + AFTER_KILL * 2 + self.settings.call_timeout;
        let request =
            JobRequest::Stop { tenths: tenths(grace), kill_wait_tenths: tenths(AFTER_KILL) };
        let answer = self.run_script(key, request, limit).await.map_err(into_start_fault)?;
        let words = answer.fields();
        let (stopped, state): (fn(JobExit) -> StopResult, &[&str]) = match words.as_slice() {
            ["stopped", "asked", state @ ..] => (StopResult::Terminated, state),
            ["stopped", "forced", state @ ..] => (StopResult::Killed, state),
            state => (StopResult::AlreadyEnded, state),
        };
        match JobState::read(state) {
            Some(JobState::StoppedBeforeStart) => Ok(StopResult::StoppedBeforeStart),
            Some(JobState::Ended { end, .. }) => Ok(stopped(end)),
            Some(JobState::Lost { lost, .. }) => Ok(StopResult::Lost(lost)),
            Some(JobState::Running { pid }) => {
                let message = format!(
                    "{} runs on as process {pid} although it was told to stop",
                    self.describe_job(key)
                );
                Err(Fault::new(FaultCode::ReadBackDiffers, message))
            }
            Some(JobState::NeverStarted) | None => Err(self.failure("stop", key, &answer, &words)),
        }
    }

    /// Deletes a job that does not run. Its key could start again, so the caller must be sure that
    /// no start is on its way.
    pub async fn forget(&self, key: &str) -> Result<()> {
        let limit = self.settings.call_timeout;
        let answer =
            self.run_script(key, JobRequest::Forget, limit).await.map_err(into_start_fault)?;
        match answer.fields().as_slice() {
            ["forgotten"] => Ok(()),
            ["running", pid] => {
                let message = format!(
                    "{} still runs as process {pid} and cannot be forgotten",
                    self.describe_job(key)
                );
                Err(Fault::new(FaultCode::EffectFailed, message))
            }
            words => Err(self.failure("forget", key, &answer, words)),
        }
    }

    /// Deletes jobs that ended more than `days` ago.
    pub async fn prune(&self, days: u32) -> Result<()> {
        let limit = self.settings.call_timeout;
        let answer = self
            .run_script("", JobRequest::Prune { days }, limit)
            .await
            .map_err(into_start_fault)?;
        match answer.fields().as_slice() {
            ["pruned"] => Ok(()),
            words => Err(self.failure("prune", "old jobs", &answer, words)),
        }
    }

    /// The boot id of the host; it changes with every reboot.
    pub async fn boot_id(&self) -> Result<String> {
        let limit = self.settings.call_timeout;
        let output =
            self.call(BOOT_ID, Vec::new(), limit).await.map_err(CallError::into_read_fault)?;
        let message = String::from_utf8_lossy(&output.stdout);
        let id = |line: &&str| {
            line.len() == 36 && line.chars().all(|c| c.is_ascii_hexdigit() || c == '-')
        };
        // A profile may have printed something before.
        message.lines().map(str::trim).rfind(id).map(str::to_string).ok_or_else(|| {
            let heartbeat = last_output_line(&output.stderr, &output.stdout);
            Fault::new(
                FaultCode::NotSupported,
                format!("{} does not tell it: {heartbeat}", self.describe_job("the boot id")),
            )
        })
    }

    pub(super) async fn run_script(
        &self,
        key: &str,
        request: JobRequest<'_>,
        limit: Duration,
    ) -> Result<ScriptOutput, CallError> {
        let text = script(&self.settings, key, request);
        self.call(SHELL, text.into_bytes(), limit).await.map(ScriptOutput::of)
    }

    pub(super) fn state(&self, key: &str, answer: &ScriptOutput) -> Result<JobState> {
        let words = answer.fields();
        JobState::read(&words).ok_or_else(|| self.failure("look at", key, answer, &words))
    }

    /// The job's name for faults.
    fn describe_job(&self, key: &str) -> String {
        self.last_hop()
            .map_or_else(|_| key.to_string(), |(_, position)| format!("{key} on {position}"))
    }

    /// The fault for a response that is not a success.
    pub(super) fn failure(
        &self,
        verb: &str,
        key: &str,
        answer: &ScriptOutput,
        words: &[&str],
    ) -> Fault {
        let heartbeat = last_output_line(&answer.stderr, &answer.stdout);
        let job = self.describe_job(key);
        let (code, why) = match words {
            ["failed"] if is_full(&answer.stderr) => (FaultCode::HostDiskFull, heartbeat),
            ["failed"] => (FaultCode::EffectFailed, heartbeat),
            ["foreign"] => (
                FaultCode::EffectFailed,
                "the folder for jobs is a link, belongs to another user, or can be written by \
                 others; look at what is in it, then remove it from the host"
                    .to_string(),
            ),
            ["groupless"] => (
                FaultCode::NotSupported,
                "the host has no setsid, and its SSH server shares process groups".to_string(),
            ),
            _ => {
                (FaultCode::AnswerGarbled, format!("the host answered something else: {heartbeat}"))
            }
        };
        Fault::new(code, format!("could not {verb} {job}: {why}"))
    }
}

/// A start or a stop that was sent may have been executed.
fn into_start_fault(broken: CallError) -> Fault {
    match broken {
        CallError::TimedOut(message) => Fault::new(FaultCode::AnswerLost, message),
        CallError::Unsent(_)
        | CallError::Lost(_)
        | CallError::Refused(_)
        | CallError::TooLong(_) => broken.into_change_fault(),
    }
}

fn tenths(time: Duration) -> u64 {
    u64::try_from(time.as_millis().div_ceil(100)).unwrap_or(u64::MAX)
}

fn is_full(stderr: &[u8]) -> bool {
    let message = String::from_utf8_lossy(stderr).to_lowercase();
    message.contains("no space left") || message.contains("quota exceeded")
}

/// The last line of output, truncated.
fn last_output_line(first: &[u8], second: &[u8]) -> String {
    let last = |message: &[u8]| {
        let message = String::from_utf8_lossy(message);
        let line = message
            .lines()
            .map(str::trim)
            .rfind(|line| !line.is_empty() && !line.starts_with(MARK));
        line.map(|line| {
            line.chars().filter(|c| !c.is_control()).take(MAX_REPEATED).collect::<String>()
        })
    };
    last(first).or_else(|| last(second)).unwrap_or_else(|| "nothing".to_string())
}

/// The output of a script: its marked line and the bytes after that.
pub(super) struct ScriptOutput {
    line: String,
    stdout: Vec<u8>,
    payload_after: usize,
    stderr: Vec<u8>,
}

impl ScriptOutput {
    fn of(output: Output) -> Self {
        let Output { stdout, stderr, .. } = output;
        let found = find(&stdout, MARK.as_bytes(), 0);
        let begin = found.map_or(stdout.len(), |at| at + MARK.len());
        let end = find(&stdout, b"\n", begin).unwrap_or(stdout.len());
        let line = String::from_utf8_lossy(&stdout[begin..end]).into_owned();
        let payload_after = (end + 1).min(stdout.len());
        Self { line, stdout, payload_after, stderr }
    }

    pub(super) fn fields(&self) -> Vec<&str> {
        self.line.split_whitespace().collect()
    }

    /// The bytes after the marked line, or after a second marked line.
    pub(super) fn behind(&self, line: Option<&str>) -> &[u8] {
        let rest = &self.stdout[self.payload_after..];
        let Some(line) = line else { return rest };
        let mark = format!("{MARK}{line}\n");
        rest.strip_prefix(mark.as_bytes()).unwrap_or_default()
    }
}

fn find(text: &[u8], desired: &[u8], from: usize) -> Option<usize> {
    text.get(from..)?
        .windows(desired.len())
        .position(|window| window == desired)
        .map(|at| at + from)
}

/// The state of a job as the host reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum JobState {
    NeverStarted,
    StoppedBeforeStart,
    Running { pid: u32 },
    Ended { end: JobExit, sizes: Sizes, cut: (bool, bool) },
    Lost { lost: LostReason, sizes: Option<Sizes> },
}

/// The bytes of standard output and standard error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Sizes {
    pub(super) out: u64,
    pub(super) err: u64,
}

impl JobState {
    fn read(words: &[&str]) -> Option<Self> {
        let sizes =
            |out: &str, err: &str| Some(Sizes { out: out.parse().ok()?, err: err.parse().ok()? });
        Some(match words {
            ["never"] => Self::NeverStarted,
            ["stopped-before-start"] => Self::StoppedBeforeStart,
            ["running", pid] => Self::Running { pid: pid.parse().ok()? },
            ["ended", code, out, err, cut_out, cut_err] => Self::Ended {
                end: JobExit::of(code.parse().ok()?),
                sizes: sizes(out, err)?,
                cut: (*cut_out == "1", *cut_err == "1"),
            },
            ["lost", "reboot", out, err] => {
                Self::Lost { lost: LostReason::Rebooted, sizes: sizes(out, err) }
            }
            ["lost", "gone"] => Self::Lost { lost: LostReason::Gone, sizes: None },
            ["lost", "unmade"] => Self::Lost { lost: LostReason::NotLaunched, sizes: None },
            _ => return None,
        })
    }

    pub(super) fn status(self) -> JobStatus {
        match self {
            Self::NeverStarted => JobStatus::NeverStarted,
            Self::StoppedBeforeStart => JobStatus::StoppedBeforeStart,
            Self::Running { pid } => JobStatus::Running { pid },
            Self::Ended { end, .. } => JobStatus::Ended(end),
            Self::Lost { lost, .. } => JobStatus::Lost(lost),
        }
    }
}

impl JobExit {
    const SIGNALS: u8 = 64;

    fn of(code: u8) -> Self {
        match code.checked_sub(128) {
            Some(signal) if (1..=Self::SIGNALS).contains(&signal) => Self::Signal(signal),
            Some(_) | None => Self::Code(code),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(stdout: &str) -> ScriptOutput {
        ScriptOutput::of(Output { stdout: stdout.as_bytes().to_vec(), ..Output::default() })
    }

    #[test]
    fn a_response_is_found_after_profile_output() {
        let heartbeat = answer("Welcome!\n@farrier running 12\n@farrier samples\n\n1 2 .");
        assert_eq!(heartbeat.fields(), ["running", "12"]);
        assert_eq!(heartbeat.behind(Some("samples")), b"\n1 2 .");
        assert!(answer("Welcome!\n").fields().is_empty());
        assert_eq!(answer("@farrier data\n\0x\n").behind(None), b"\0x\n");
        assert!(answer("@farrier data").behind(None).is_empty());
    }

    #[test]
    fn every_state_is_read_and_nothing_else() {
        for (line, status) in [
            ("never", Some(JobStatus::NeverStarted)),
            ("stopped-before-start", Some(JobStatus::StoppedBeforeStart)),
            ("running 77", Some(JobStatus::Running { pid: 77 })),
            ("ended 0 1 2 0 0", Some(JobStatus::Ended(JobExit::Code(0)))),
            ("ended 128 1 2 0 0", Some(JobStatus::Ended(JobExit::Code(128)))),
            ("ended 137 1 2 0 0", Some(JobStatus::Ended(JobExit::Signal(9)))),
            ("ended 255 1 2 0 0", Some(JobStatus::Ended(JobExit::Code(255)))),
            ("lost gone", Some(JobStatus::Lost(LostReason::Gone))),
            ("lost unmade", Some(JobStatus::Lost(LostReason::NotLaunched))),
            ("lost reboot 5 6", Some(JobStatus::Lost(LostReason::Rebooted))),
            ("ended 0 1 2 0", None),
            ("ended x 1 2 0 0", None),
            ("running", None),
            ("", None),
        ] {
            let words: Vec<_> = line.split_whitespace().collect();
            assert_eq!(JobState::read(&words).map(JobState::status), status, "{line}");
        }
    }

    #[test]
    fn a_full_disk_is_recognised_by_its_message() {
        assert!(is_full(b"cat: write error: No space left on device\n"));
        assert!(is_full(b"mkdir: cannot create directory: Disk quota exceeded\n"));
        assert!(!is_full(b"mkdir: cannot create directory: Permission denied\n"));
    }
}
