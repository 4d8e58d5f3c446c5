//! Executes commands on the host, and reboots from within.
//!
//! A command is a job under the effect key: the host starts each key once, keeps the job running
//! without a connection, and finds it again. An in-band reboot is proved by a boot id that differs
//! from the stored one.

use super::Datacenter;
use super::orders::{OrderCheckpoint, Remembered, done, two_effects};
use crate::fault::possibly_happened;
use crate::port::{Journal, Target};
use crate::ssh::{End, Host, JobStatus, Lost, Started, Stopped};
use crate::state_store::Checkpoint;
use model::effect::{Answer, Key, Order, Verb};
use model::fault::{Code, Fault};
use std::time::Duration;

/// How long a command may take to end after it is told to stop.
const STOP_GRACE: Duration = Duration::from_secs(10);
/// How many days a host keeps the output of a command.
const KEPT_DAYS: u32 = 7;
/// Between two checks whether a host is back.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// Delayed, so that the answer is sent before the host goes down.
const REBOOT: &str = "sleep 1; PATH=$PATH:/sbin:/usr/sbin; reboot || shutdown -r now";

impl Datacenter {
    pub(super) async fn command(
        &self,
        target: &Target,
        order: &Order,
        command: &str,
        journal: &Journal,
    ) -> Result<Answer, Fault> {
        let host = match order.verb {
            Verb::Follow => self.hosts.connect(target).await.map_err(possibly_happened)?,
            Verb::Perform | Verb::GetStatus | Verb::Observe | Verb::Stop => {
                self.hosts.connect(target).await?
            }
        };
        let key = order.key.as_str();
        match order.verb {
            Verb::Perform => match host.start(key, command).await? {
                Started::Now => {
                    // A failed cleanup of old jobs must not fail this call.
                    let _ = host.prune(KEPT_DAYS).await;
                    see_through(&host, key, 0, journal).await
                }
                Started::Before => see_through(&host, key, order.logged, journal).await,
                Started::Barred => Err(barred(&order.key)),
            },
            Verb::Follow => see_through(&host, key, order.logged, journal).await,
            Verb::GetStatus => Ok(match host.status(key).await? {
                JobStatus::Never | JobStatus::Barred => Answer::NeverStarted,
                JobStatus::Ended(End::Code(0)) => {
                    Answer::Done(done("the command ended well".into()))
                }
                // `Follow` reports how it failed.
                JobStatus::Running { .. } | JobStatus::Ended(_) => Answer::UnderWay,
                JobStatus::Lost(Lost::Unmade) => Answer::NeverStarted,
                JobStatus::Lost(lost) => Answer::Unknown(lost_words(lost).into()),
            }),
            Verb::Observe => Ok(Answer::Differs("a command leaves nothing to see".into())),
            Verb::Stop => stop(&host, key).await,
        }
    }

    /// Stops the job of a key, or bars it.
    pub(super) async fn stop_job(&self, target: &Target, order: &Order) -> Result<Answer, Fault> {
        let host = self.hosts.connect(target).await?;
        stop(&host, order.key.as_str()).await
    }

    pub(super) async fn reboot_from_within(
        &self,
        target: &Target,
        order: &Order,
        journal: &Journal,
    ) -> Result<Answer, Fault> {
        match (order.verb, self.recall(&order.key).await?) {
            (Verb::Perform, None) => {
                let host = self.hosts.connect(target).await?;
                let memo = OrderCheckpoint::InBand { boot: host.boot_id().await? };
                match self.begin(&order.key, memo.clone()).await? {
                    None => {
                        journal.line("reboot: asking the host to start again").await;
                        host.start(order.key.as_str(), REBOOT).await.map_err(possibly_happened)?;
                        self.until_back(target, &memo, journal).await
                    }
                    Some(Remembered::Checkpoint(memo)) => {
                        self.until_back(target, &memo, journal).await
                    }
                    Some(Remembered::Barred) => Err(barred(&order.key)),
                }
            }
            (Verb::Perform, Some(Remembered::Barred)) => Err(barred(&order.key)),
            (Verb::Perform | Verb::Follow, Some(Remembered::Checkpoint(memo))) => {
                if let Ok(host) = self.hosts.connect(target).await
                    && let Ok(false) = self.is_newer(&host, &memo).await
                {
                    // The checkpoint exists, but the command may never have been sent. The host
                    // starts each key once, and may go down during the call.
                    match host.start(order.key.as_str(), REBOOT).await {
                        Err(fault) if !is_away(&fault) => return Err(fault),
                        Ok(_) | Err(_) => {}
                    }
                }
                self.until_back(target, &memo, journal).await
            }
            (Verb::Follow, None | Some(Remembered::Barred)) => Ok(Answer::NeverStarted),
            (Verb::GetStatus, None | Some(Remembered::Barred)) => Ok(Answer::NeverStarted),
            (Verb::GetStatus, Some(Remembered::Checkpoint(memo))) => {
                let host = self.hosts.connect(target).await?;
                Ok(match self.is_newer(&host, &memo).await? {
                    true => Answer::Done(done("the host has started again".into())),
                    false => Answer::UnderWay,
                })
            }
            (Verb::Observe, _) => Ok(Answer::Differs("a reboot leaves nothing to see".into())),
            (Verb::Stop, Some(Remembered::Checkpoint(memo))) => {
                // A reboot cannot be undone: wait for its end.
                self.until_back(target, &memo, journal).await
            }
            (Verb::Stop, None | Some(Remembered::Barred)) => {
                match self.store.begin(&order.key, &Checkpoint::Barred).await? {
                    None | Some(Checkpoint::Barred) => Ok(Answer::Stopped),
                    Some(Checkpoint::Begun(_)) => Err(Fault::new(
                        Code::AnswerLost,
                        "the host was told to start again at this very moment",
                    )),
                }
            }
        }
    }

    /// Waits until the boot id differs. The timeout of the step limits the wait.
    async fn until_back(
        &self,
        target: &Target,
        memo: &OrderCheckpoint,
        journal: &Journal,
    ) -> Result<Answer, Fault> {
        loop {
            match self.hosts.connect(target).await {
                Ok(host) => match self.is_newer(&host, memo).await {
                    Ok(true) => {
                        journal.line("reboot: the host is back, with another boot id").await;
                        return Ok(Answer::Done(done("the host has started again".into())));
                    }
                    Ok(false) => {}
                    Err(fault) if is_away(&fault) => {}
                    Err(fault) => return Err(fault),
                },
                Err(fault) if is_away(&fault) => {}
                Err(fault) => return Err(fault),
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    async fn is_newer(&self, host: &Host, memo: &OrderCheckpoint) -> Result<bool, Fault> {
        match memo {
            OrderCheckpoint::InBand { boot } => Ok(host.boot_id().await? != *boot),
            OrderCheckpoint::Power { .. }
            | OrderCheckpoint::Netboot { .. }
            | OrderCheckpoint::Join { .. }
            | OrderCheckpoint::Image { .. }
            | OrderCheckpoint::Drain { .. }
            | OrderCheckpoint::Uncordon
            | OrderCheckpoint::Firmware { .. }
            | OrderCheckpoint::Fabric { .. } => Err(two_effects()),
        }
    }
}

/// A rebooting host is unreachable or drops the connection.
fn is_away(fault: &Fault) -> bool {
    matches!(fault.code, Code::HostUnreachable | Code::AnswerLost | Code::AnswerGarbled)
}

async fn stop(host: &Host, key: &str) -> Result<Answer, Fault> {
    Ok(match host.stop(key, STOP_GRACE).await? {
        Stopped::Before(End::Code(0)) => {
            Answer::Done(done("the command had ended well before".into()))
        }
        Stopped::Barred
        | Stopped::Before(_)
        | Stopped::Asked(_)
        | Stopped::Forced(_)
        | Stopped::Lost(_) => Answer::Stopped,
    })
}

/// Copies the output of the job to the log until it ends, and returns the result.
pub(super) async fn see_through(
    host: &Host,
    key: &str,
    from: u64,
    journal: &Journal,
) -> Result<Answer, Fault> {
    host.read(key, from, journal).await.map_err(possibly_happened)?;
    match host.status(key).await.map_err(possibly_happened)? {
        JobStatus::Ended(End::Code(0)) => Ok(Answer::Done(done("the command ended well".into()))),
        JobStatus::Ended(End::Code(code)) => {
            Err(Fault::new(Code::CommandFailed, format!("the command ended with the code {code}")))
        }
        JobStatus::Ended(End::Signal(signal)) => {
            let said = format!("the command was ended by the signal {signal}");
            Err(Fault::new(Code::CommandFailed, said))
        }
        JobStatus::Never | JobStatus::Barred | JobStatus::Lost(Lost::Unmade) => {
            Ok(Answer::NeverStarted)
        }
        JobStatus::Running { .. } => {
            Err(Fault::new(Code::AnswerLost, "the command runs on, and its log ended"))
        }
        JobStatus::Lost(lost) => Err(Fault::new(Code::AnswerLost, lost_words(lost))),
    }
}

fn lost_words(lost: Lost) -> &'static str {
    match lost {
        Lost::Rebooted => {
            "the host was started again while the command ran; nobody knows how far it came"
        }
        Lost::Gone => "the command's process is gone and left no exit code",
        Lost::Unmade => "the command was about to begin and did not",
    }
}

pub(super) fn barred(key: &Key) -> Fault {
    Fault::new(Code::EffectFailed, format!("{key} was stopped before it began"))
}
