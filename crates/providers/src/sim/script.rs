//! The log of simulated work.
//!
//! The log of a job is a function of the job and the time, and only grows. So a follower can
//! continue from any byte.

use super::hardware::boot_source;
use super::job::{Job, JobEnd};
use crate::port::Stream;
use model::effect::{
    DesiredPower, DeviceWork, Effect, NetbootMode, PowerOffPolicy, RebootMode, RmaAction,
};
use model::fault::Fault;
use model::id::MachineId;
use model::retry::fnv1a;
use model::time::Timestamp;
use std::time::Duration;

/// The most characters of a command that are echoed.
const MAX_ECHO: usize = 200;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogText {
    pub stream: Stream,
    /// With its line end.
    pub text: String,
}

impl LogText {
    fn out(text: &str) -> Self {
        Self { stream: Stream::Stdout, text: format!("{text}\n") }
    }

    fn err(text: &str) -> Self {
        Self { stream: Stream::Stderr, text: format!("{text}\n") }
    }
}

/// The log so far.
pub fn log_so_far(machine: &MachineId, job: &Job, now: Timestamp) -> Vec<LogText> {
    let last_words = match &job.ending {
        None => None,
        Some(JobEnd::Done { message: text, .. }) => Some(LogText::out(text)),
        Some(JobEnd::Failed { fault }) => Some(LogText::err(&fault.message)),
        Some(JobEnd::Refused { fault: Fault { message: text, .. } }) => {
            return vec![LogText::err(text)];
        }
        Some(JobEnd::Stopped { .. }) => Some(LogText::err("Stopped on request")),
        Some(JobEnd::StoppedBeforeStart) => {
            return vec![LogText::err("Stopped on request before it began")];
        }
    };
    let elapsed_ms = job.elapsed_ms(now);
    let spoken = lines(machine, &job.effect)
        .into_iter()
        .filter(|(percent, _)| *percent <= job.max_percent())
        .filter(|(percent, _)| at_ms(job, *percent) <= elapsed_ms)
        .map(|(_, text)| text);
    spoken.chain(last_words).collect()
}

/// The time at which the next line appears, or the end of the job if that is earlier.
pub fn next_log_at(machine: &MachineId, job: &Job, now: Timestamp) -> Timestamp {
    let elapsed_ms = job.elapsed_ms(now);
    lines(machine, &job.effect)
        .iter()
        .map(|(percent, _)| at_ms(job, *percent))
        .find(|at_ms| *at_ms > elapsed_ms)
        .map_or(job.due(), |at_ms| job.started_at + Duration::from_millis(at_ms))
        .min(job.due())
}

fn at_ms(job: &Job, percent: u64) -> u64 {
    job.takes_ms.saturating_mul(percent) / 100
}

/// The lines with the percentage of the work at which they appear.
fn lines(machine: &MachineId, effect: &Effect) -> Vec<(u64, LogText)> {
    let out = |percent: u64, text: &str| (percent, LogText::out(text));
    match effect {
        Effect::Ssh { command, .. } => vec![
            out(0, &format!("$ {}", echo(command))),
            (20, LogText::err("simulated host: the command is not really run")),
            out(60, &format!("{machine}: ok")),
        ],
        Effect::Reboot { mode, .. } => {
            let how = match mode {
                RebootMode::Bmc => "Sending power cycle",
                RebootMode::InBand => "Running systemctl reboot",
            };
            vec![out(0, how), out(10, "Waiting for the machine to come back")]
        }
        Effect::Netboot { mode } => match mode {
            NetbootMode::Pxe => {
                vec![out(0, &format!("Configuring PXE for {machine}")), out(50, "DHCP updated")]
            }
            NetbootMode::Disk => {
                let source = boot_source(*mode);
                vec![out(0, &format!("Setting {machine} to boot from {source}"))]
            }
        },
        Effect::Repave { image } => {
            let first = [out(0, "Booting from PXE"), out(5, &format!("Writing image {image}"))];
            let progress = (1..=10).map(|tenth| tenth * 10);
            let progress = progress.map(|done| out(done, &format!("Progress: {done}%")));
            first.into_iter().chain(progress).collect()
        }
        Effect::Join { cluster_ref, .. } => vec![
            out(0, &format!("Joining cluster {cluster_ref}")),
            out(30, "Running kubeadm join"),
            out(80, "Waiting for the node to become Ready"),
        ],
        Effect::Leave { cluster_ref, .. } => vec![
            out(0, &format!("Leaving cluster {cluster_ref}")),
            out(50, "Running kubeadm reset"),
        ],
        Effect::Verify { cluster_ref, .. } if cluster_ref.is_empty() => {
            vec![out(0, &format!("Looking for {machine} in any cluster"))]
        }
        Effect::Verify { cluster_ref, .. } => {
            vec![out(0, &format!("Looking for {machine} in cluster {cluster_ref}"))]
        }
        Effect::Net { document } => vec![
            out(0, &format!("Writing the network configuration ({} bytes)", document.len())),
            out(50, "Applying it"),
        ],
        Effect::Rma { action, .. } => match action {
            RmaAction::Record => record(machine),
            RmaAction::PowerOff => vec![out(0, "Sending power off")],
            RmaAction::Mark => vec![out(0, "Marking the machine for return")],
        },
        Effect::Drain { cluster_ref, .. } if cluster_ref.is_empty() => {
            vec![out(0, &format!("Looking for {machine} in any cluster"))]
        }
        Effect::Drain { cluster_ref, .. } => vec![
            out(0, &format!("Cordoning {machine} in cluster {cluster_ref}")),
            out(20, "Evicting its pods, as their budgets allow"),
            out(70, "Waiting for the last of them"),
        ],
        Effect::Uncordon { .. } => vec![out(0, &format!("Uncordoning {machine}"))],
        Effect::Power { to, power_off } => vec![out(0, switching(*to, *power_off))],
        Effect::Device { work } => at_device(machine, work),
        Effect::Stage { stage, undo, .. } => at_stage(machine, stage.as_str(), *undo),
        Effect::ChildRuns { .. } => Vec::new(),
    }
}

fn at_stage(machine: &MachineId, stage: &str, undo: bool) -> Vec<(u64, LogText)> {
    let back = if undo { "taking back " } else { "" };
    vec![(0, LogText::out(&format!("{machine}: {back}{stage}")))]
}

fn at_device(machine: &MachineId, work: &DeviceWork) -> Vec<(u64, LogText)> {
    let out = |percent: u64, text: String| (percent, LogText::out(&text));
    match work {
        DeviceWork::Firmware { component, version, .. } => {
            let first = [out(0, format!("Installing {component} {version}"))];
            let progress = (1..=4).map(|fifth| fifth * 20);
            let progress = progress.map(|done| out(done, format!("Progress: {done}%")));
            let last = [out(90, "Restarting the BMC".into())];
            first.into_iter().chain(progress).chain(last).collect()
        }
        DeviceWork::Read => vec![out(0, format!("Reading {machine}"))],
        DeviceWork::Configure => vec![out(0, format!("Trying the credentials of {machine}"))],
        DeviceWork::Check { .. } => vec![out(0, format!("Checking {machine}"))],
        DeviceWork::Fabric { to } => {
            vec![out(0, format!("Bringing the fabric to {}", to.as_str()))]
        }
    }
}

const fn switching(to: DesiredPower, power_off: PowerOffPolicy) -> &'static str {
    match (to, power_off.graceful_seconds) {
        (DesiredPower::On, _) => "Switching on",
        (DesiredPower::Off, Some(0)) => "Cutting the power",
        (DesiredPower::Off, Some(_) | None) => "Asking the operating system to shut down",
    }
}

/// The inventory lines: invented, but constant for each machine.
fn record(machine: &MachineId) -> Vec<(u64, LogText)> {
    let serial = fnv1a(machine.as_str(), 0) % 1_000_000;
    [
        "Reading the inventory".to_string(),
        format!("Vendor Farrier, model Simulated, serial SIM{serial:06}"),
        "Firmware BIOS 1.0, BMC 1.0".to_string(),
        format!("Disk nvme0 960 GB, serial NV{serial:06}"),
        "Log: nothing was written down".to_string(),
    ]
    .iter()
    .map(|line| (0, LogText::out(line)))
    .collect()
}

/// The first line of a command, truncated.
fn echo(command: &str) -> String {
    let line = command.trim().lines().next().unwrap_or_default();
    let shown: String = line.chars().take(MAX_ECHO).collect();
    if shown.len() < command.trim().len() { format!("{shown} …") } else { shown }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::effect::CallOutcome;

    fn text(job: &Job, ms: i64) -> String {
        let machine = MachineId::trusted("m-1");
        let message = log_so_far(&machine, job, Timestamp::from_millis(ms));
        message.into_iter().map(|one| one.text).collect()
    }

    #[test]
    fn the_log_only_grows() {
        let effect = Effect::Repave { image: "ubuntu-2204".into() };
        let mut job = Job::begun(effect, Timestamp::from_millis(0), 1_000);
        let mut before = String::new();
        for ms in (0..1_000).step_by(37) {
            let now = text(&job, ms);
            assert!(now.starts_with(&before), "{before:?} then {now:?}");
            before = now;
        }
        assert!(before.ends_with("Progress: 90%\n"), "{before}");
        let done = CallOutcome { message: "written".into(), ..CallOutcome::default() };
        job.ending = Some(JobEnd::of(Ok(done)));
        assert_eq!(text(&job, 2_000), before + "Progress: 100%\nwritten\n");
    }

    #[test]
    fn the_next_line_is_always_later() {
        let effect = Effect::Repave { image: "a".into() };
        let job = Job::begun(effect, Timestamp::from_millis(0), 1_000);
        let machine = MachineId::trusted("m-1");
        for (now, next) in [(0, 50), (50, 100), (99, 100), (901, 1_000)] {
            let at = next_log_at(&machine, &job, Timestamp::from_millis(now));
            assert_eq!(at, Timestamp::from_millis(next), "at {now}");
        }
    }

    #[test]
    fn commands_are_echoed_in_one_line() {
        assert_eq!(echo("true"), "true");
        assert_eq!(echo("set -e\nrm x"), "set -e …");
        assert!(echo(&"x".repeat(1_000)).len() < 210);
    }
}
