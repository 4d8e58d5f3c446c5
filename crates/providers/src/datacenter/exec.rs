//! Executes commands on the host, and reboots from within.
//!
//! A command is a job under the effect key: the host starts each key once, keeps the job running
//! without a connection, and finds it again. An in-band reboot is proved by a boot id that differs
//! from the stored one.

use super::provider_calls::{CallCheckpoint, StoredCheckpoint, done, key_conflict};
use super::{Datacenter, TargetCall};
use crate::fault::possibly_happened;
use crate::port::{Journal, Target};
use crate::ssh::{Host, JobExit, JobStatus, LostReason, StartResult, StopResult};
use crate::state_store::Checkpoint;
use model::effect::{CallResult, CallVerb, EffectKey, ProviderAnswer, ProviderCall};
use model::fault::{Fault, FaultCode, Result};
use std::time::Duration;

/// The time that a command has to end after it is told to stop.
const STOP_GRACE: Duration = Duration::from_secs(10);
const ENDED: &str = "the command had ended well before";
/// The days for which a host keeps the output of a command.
const JOB_RETENTION_DAYS: u32 = 7;
/// The interval between two checks whether a host is back.
const POLL_INTERVAL: Duration = Duration::from_secs(2);
/// Delayed, so that the answer is sent before the host goes down.
const REBOOT: &str = "sleep 1; PATH=$PATH:/sbin:/usr/sbin; reboot || shutdown -r now";

impl Datacenter {
    pub(super) async fn command(&self, request: TargetCall<'_>, command: &str) -> CallResult {
        let TargetCall { target, call, journal } = request;
        let host = match call.verb {
            CallVerb::Follow => self.hosts.connect(target).await.map_err(possibly_happened)?,
            CallVerb::Perform | CallVerb::GetStatus | CallVerb::Observe | CallVerb::Stop => {
                self.hosts.connect(target).await?
            }
        };
        let key = call.key.as_str();
        match call.verb {
            CallVerb::Perform => match host.start(key, command).await? {
                StartResult::Started => {
                    // A failed cleanup of old jobs must not fail this call.
                    let _ = host.prune(JOB_RETENTION_DAYS).await;
                    follow_job(&host, key, 0, journal).await
                }
                StartResult::AlreadyStarted => {
                    follow_job(&host, key, call.log_offset_bytes, journal).await
                }
                StartResult::StoppedBeforeStart => Err(stopped_before_start(&call.key)),
            },
            CallVerb::Follow => follow_job(&host, key, call.log_offset_bytes, journal).await,
            CallVerb::GetStatus => Ok(match host.status(key).await? {
                JobStatus::NeverStarted | JobStatus::StoppedBeforeStart => {
                    ProviderAnswer::NeverStarted
                }
                JobStatus::Ended(JobExit::Code(0)) => {
                    ProviderAnswer::Done(done("the command ended well".into()))
                }
                // `Follow` reports how it failed.
                JobStatus::Running { .. } | JobStatus::Ended(_) => ProviderAnswer::UnderWay,
                JobStatus::Lost(LostReason::NotLaunched) => ProviderAnswer::NeverStarted,
                JobStatus::Lost(lost) => ProviderAnswer::Unknown(describe_lost(lost).into()),
            }),
            CallVerb::Observe => {
                Ok(ProviderAnswer::Differs("a command leaves nothing to see".into()))
            }
            CallVerb::Stop => stop(&host, key, STOP_GRACE, ENDED).await,
        }
    }

    /// Stops the job of a key, or bars it.
    pub(super) async fn stop_job(&self, target: &Target, call: &ProviderCall) -> CallResult {
        let host = self.hosts.connect(target).await?;
        stop(&host, call.key.as_str(), STOP_GRACE, ENDED).await
    }

    pub(super) async fn reboot_from_within(&self, request: TargetCall<'_>) -> CallResult {
        let TargetCall { target, call, journal } = request;
        match (call.verb, self.checkpoint(&call.key).await?) {
            (CallVerb::Perform, None) => {
                let host = self.hosts.connect(target).await?;
                let checkpoint = CallCheckpoint::InBand { boot: host.boot_id().await? };
                match self.begin(&call.key, checkpoint.clone()).await? {
                    None => {
                        journal.write_line("reboot: asking the host to start again").await;
                        host.start(call.key.as_str(), REBOOT).await.map_err(possibly_happened)?;
                        self.wait_for_reboot(target, &checkpoint, journal).await
                    }
                    Some(StoredCheckpoint::Checkpoint(checkpoint)) => {
                        self.wait_for_reboot(target, &checkpoint, journal).await
                    }
                    Some(StoredCheckpoint::StoppedBeforeStart) => {
                        Err(stopped_before_start(&call.key))
                    }
                }
            }
            (CallVerb::Perform, Some(StoredCheckpoint::StoppedBeforeStart)) => {
                Err(stopped_before_start(&call.key))
            }
            (
                CallVerb::Perform | CallVerb::Follow,
                Some(StoredCheckpoint::Checkpoint(checkpoint)),
            ) => {
                if let Ok(host) = self.hosts.connect(target).await
                    && let Ok(false) = self.has_rebooted(&host, &checkpoint).await
                {
                    // The checkpoint exists, but the command may never have been sent. The host
                    // starts each key once, and may go down during the call.
                    match host.start(call.key.as_str(), REBOOT).await {
                        Err(fault) if !is_away(&fault) => return Err(fault),
                        Ok(_) | Err(_) => {}
                    }
                }
                self.wait_for_reboot(target, &checkpoint, journal).await
            }
            (
                CallVerb::Follow | CallVerb::GetStatus,
                None | Some(StoredCheckpoint::StoppedBeforeStart),
            ) => Ok(ProviderAnswer::NeverStarted),
            (CallVerb::GetStatus, Some(StoredCheckpoint::Checkpoint(checkpoint))) => {
                let host = self.hosts.connect(target).await?;
                Ok(match self.has_rebooted(&host, &checkpoint).await? {
                    true => ProviderAnswer::Done(done("the host has started again".into())),
                    false => ProviderAnswer::UnderWay,
                })
            }
            (CallVerb::Observe, _) => {
                Ok(ProviderAnswer::Differs("a reboot leaves nothing to see".into()))
            }
            (CallVerb::Stop, Some(StoredCheckpoint::Checkpoint(checkpoint))) => {
                // A reboot cannot be undone: wait for its end.
                self.wait_for_reboot(target, &checkpoint, journal).await
            }
            (CallVerb::Stop, None | Some(StoredCheckpoint::StoppedBeforeStart)) => {
                match self.store.begin(&call.key, &Checkpoint::StoppedBeforeStart).await? {
                    None | Some(Checkpoint::StoppedBeforeStart) => Ok(ProviderAnswer::Stopped),
                    Some(Checkpoint::Begun(_)) => Err(Fault::new(
                        FaultCode::AnswerLost,
                        "the host was told to start again at this very moment",
                    )),
                }
            }
        }
    }

    /// Waits until the boot id differs. The timeout of the step limits the wait.
    async fn wait_for_reboot(
        &self,
        target: &Target,
        checkpoint: &CallCheckpoint,
        journal: &Journal,
    ) -> CallResult {
        loop {
            match self.hosts.connect(target).await {
                Ok(host) => match self.has_rebooted(&host, checkpoint).await {
                    Ok(true) => {
                        journal.write_line("reboot: the host is back, with another boot id").await;
                        return Ok(ProviderAnswer::Done(done("the host has started again".into())));
                    }
                    Ok(false) => {}
                    Err(fault) if is_away(&fault) => {}
                    Err(fault) => return Err(fault),
                },
                Err(fault) if is_away(&fault) => {}
                Err(fault) => return Err(fault),
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    async fn has_rebooted(&self, host: &Host, checkpoint: &CallCheckpoint) -> Result<bool> {
        let CallCheckpoint::InBand { boot } = checkpoint else { return Err(key_conflict()) };
        Ok(host.boot_id().await? != *boot)
    }
}

/// A rebooting host is unreachable or drops the connection.
fn is_away(fault: &Fault) -> bool {
    matches!(
        fault.code,
        FaultCode::HostUnreachable | FaultCode::AnswerLost | FaultCode::AnswerGarbled
    )
}

/// Stops the job of a key; `ended` describes one that has succeeded before.
pub(super) async fn stop(host: &Host, key: &str, grace: Duration, ended: &str) -> CallResult {
    Ok(match host.stop(key, grace).await? {
        StopResult::AlreadyEnded(JobExit::Code(0)) => ProviderAnswer::Done(done(ended.into())),
        StopResult::StoppedBeforeStart
        | StopResult::AlreadyEnded(_)
        | StopResult::Terminated(_)
        | StopResult::Killed(_)
        | StopResult::Lost(_) => ProviderAnswer::Stopped,
    })
}

/// Copies the output of the job to the log until it ends, and returns the result.
pub(super) async fn follow_job(host: &Host, key: &str, from: u64, journal: &Journal) -> CallResult {
    host.follow_output(key, from, journal).await.map_err(possibly_happened)?;
    match host.status(key).await.map_err(possibly_happened)? {
        JobStatus::Ended(JobExit::Code(0)) => {
            Ok(ProviderAnswer::Done(done("the command ended well".into())))
        }
        JobStatus::Ended(JobExit::Code(code)) => Err(Fault::new(
            FaultCode::CommandFailed,
            format!("the command ended with the code {code}"),
        )),
        JobStatus::Ended(JobExit::Signal(signal)) => {
            let message = format!("the command was ended by the signal {signal}");
            Err(Fault::new(FaultCode::CommandFailed, message))
        }
        JobStatus::NeverStarted
        | JobStatus::StoppedBeforeStart
        | JobStatus::Lost(LostReason::NotLaunched) => Ok(ProviderAnswer::NeverStarted),
        JobStatus::Running { .. } => {
            Err(Fault::new(FaultCode::AnswerLost, "the command runs on, and its log ended"))
        }
        JobStatus::Lost(lost) => Err(Fault::new(FaultCode::AnswerLost, describe_lost(lost))),
    }
}

fn describe_lost(lost: LostReason) -> &'static str {
    match lost {
        LostReason::Rebooted => {
            "the host was restarted while the command ran; how far the command came is unknown"
        }
        LostReason::Gone => "the command's process is gone and left no exit code",
        LostReason::NotLaunched => "the command was about to begin and did not",
    }
}

pub(super) fn stopped_before_start(key: &EffectKey) -> Fault {
    Fault::new(FaultCode::EffectFailed, format!("{key} was stopped before it began"))
}
