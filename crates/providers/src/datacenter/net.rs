//! Changes the host's network so that a mistake is reverted automatically.
//!
//! A job on the host writes the netplan document, applies it, and waits. Farrier reconnects through
//! the new network and confirms. Without a confirmation the host restores its former network by
//! itself, even if Farrier is down.

use super::exec::{follow_job, stop, stopped_before_start};
use super::provider_calls::done;
use super::{Datacenter, TargetCall};
use crate::fault::possibly_happened;
use crate::port::Target;
use crate::ssh::{Host, JobExit, JobStatus, LostReason, StartResult};
use model::effect::{CallResult, CallVerb, EffectKey, ProviderAnswer};
use model::fault::{Fault, FaultCode, Result};
use model::retry::fnv1a;
use std::time::Duration;

/// The interval between two attempts to reconnect.
const RECONNECT_INTERVAL: Duration = Duration::from_secs(1);
/// The time that a revert has after a stop.
const STOP_GRACE: Duration = Duration::from_secs(60);
const RUN_TIMEOUT: Duration = Duration::from_secs(10);
/// Sorts after the files of the distribution and of cloud-init, so that ours takes precedence.
const FILE: &str = "90-farrier.yaml";
/// The exit codes of the job, besides 0.
const REFUSED: u8 = 65;
const UNCONFIRMED: u8 = 66;
const REVERTED: u8 = 67;
const NO_NETPLAN: u8 = 68;

/// The netplan settings of hosts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Netplan {
    /// The folder of the documents.
    pub folder: String,
    /// The time that a host waits for the confirmation before it reverts.
    pub confirm_seconds: u32,
}

impl Default for Netplan {
    fn default() -> Self {
        Self { folder: "/etc/netplan".into(), confirm_seconds: 90 }
    }
}

impl Datacenter {
    pub(super) async fn reconfigure_network(
        &self,
        request: TargetCall<'_>,
        document: &str,
    ) -> CallResult {
        let TargetCall { target, call, .. } = request;
        let key = call.key.as_str();
        match call.verb {
            CallVerb::Perform => {
                let host = self.hosts.connect(target).await?;
                let script = script(&self.settings.netplan, document);
                match host.start(key, &script).await? {
                    StartResult::Started | StartResult::AlreadyStarted => {
                        self.confirm(request).await
                    }
                    StartResult::StoppedBeforeStart => Err(stopped_before_start(&call.key)),
                }
            }
            CallVerb::Follow => self.confirm(request).await,
            CallVerb::GetStatus => {
                let host = self.hosts.connect(target).await?;
                Ok(match host.status(key).await? {
                    JobStatus::NeverStarted
                    | JobStatus::StoppedBeforeStart
                    | JobStatus::Lost(LostReason::NotLaunched) => ProviderAnswer::NeverStarted,
                    JobStatus::Ended(JobExit::Code(0)) => {
                        ProviderAnswer::Done(done(CONFIRMED.into()))
                    }
                    JobStatus::Running { .. } | JobStatus::Ended(_) => ProviderAnswer::UnderWay,
                    JobStatus::Lost(LostReason::Rebooted | LostReason::Gone) => {
                        ProviderAnswer::Unknown(
                            "the host started again while its network was changed".into(),
                        )
                    }
                })
            }
            CallVerb::Observe => self.observe_network(target, document).await,
            CallVerb::Stop => {
                let host = self.hosts.connect(target).await?;
                stop(&host, key, STOP_GRACE, CONFIRMED).await
            }
        }
    }

    /// Reconnects until the job is confirmed or has ended, then returns the result.
    async fn confirm(&self, request: TargetCall<'_>) -> CallResult {
        let TargetCall { target, call, journal } = request;
        let key = call.key.as_str();
        let mut away = 0;
        let host = loop {
            // A new connection each time: an old one proves nothing about the new network.
            match self.reconnect_and_confirm(target, &call.key).await {
                Ok(Some(host)) => break host,
                Ok(None) => {}
                Err(fault)
                    if fault.code.peer_unreachable() || fault.code == FaultCode::AnswerLost =>
                {
                    away += 1;
                    if away > self.settings.netplan.confirm_seconds * 2 {
                        return Err(possibly_happened(fault));
                    }
                }
                Err(fault) => return Err(fault),
            }
            tokio::time::sleep(RECONNECT_INTERVAL).await;
        };
        let ended = follow_job(&host, key, call.log_offset_bytes, journal).await;
        let code = match host.status(key).await.map_err(possibly_happened)? {
            JobStatus::Ended(JobExit::Code(code)) => code,
            JobStatus::NeverStarted
            | JobStatus::StoppedBeforeStart
            | JobStatus::Running { .. }
            | JobStatus::Ended(JobExit::Signal(_))
            | JobStatus::Lost(_) => return ended,
        };
        match (code, ended) {
            (0, _) => Ok(ProviderAnswer::Done(done(CONFIRMED.into()))),
            (code, Err(fault)) => Err(job_fault(code).unwrap_or(fault)),
            (_, Ok(answer)) => Ok(answer),
        }
    }

    /// Sends the confirmation. Returns the host once the job no longer waits.
    async fn reconnect_and_confirm(
        &self,
        target: &Target,
        key: &EffectKey,
    ) -> Result<Option<Host>> {
        let host = self.hosts.connect(target).await?;
        match host.confirm(key.as_str(), &earlier_marks(key)).await? {
            JobStatus::Running { .. } => Ok(None),
            JobStatus::NeverStarted
            | JobStatus::StoppedBeforeStart
            | JobStatus::Ended(_)
            | JobStatus::Lost(_) => Ok(Some(host)),
        }
    }

    async fn observe_network(&self, target: &Target, document: &str) -> CallResult {
        let host = self.hosts.connect(target).await?;
        let folder = &self.settings.netplan.folder;
        let observed = host.run(&format!("cat {folder}/{FILE}"), &[], RUN_TIMEOUT).await?;
        let same = String::from_utf8_lossy(&observed.stdout).trim_end() == document.trim_end();
        Ok(match same {
            true => ProviderAnswer::Done(done("the host has this document".into())),
            false => ProviderAnswer::Differs("the host has another document, or none".into()),
        })
    }
}

const CONFIRMED: &str = "applied, and confirmed over a new connection";

fn job_fault(code: u8) -> Option<Fault> {
    let (code, message) = match code {
        REFUSED => (FaultCode::CommandFailed, "netplan refused the document; nothing was changed"),
        UNCONFIRMED => (
            FaultCode::EffectFailed,
            "the host could not be reached over its new network and went back to the old one",
        ),
        REVERTED => {
            (FaultCode::EffectFailed, "it was stopped, and the host went back to its old network")
        }
        NO_NETPLAN => (FaultCode::NotSupported, "the host has no netplan"),
        _ => return None,
    };
    Some(Fault::new(code, message))
}

/// The path prefix of the marks of a job that an earlier version started: a change that was under
/// way during an upgrade is still confirmed. Such a job lives for `confirm_seconds` at most.
fn earlier_marks(key: &EffectKey) -> String {
    format!("/var/tmp/farrier-net-{:016x}", fnv1a(key.as_str(), 0))
}

/// The script of the job. The document is a here-document whose end marker it does not contain.
///
/// The job and Farrier communicate by one file in the job's folder, where no other user can write:
/// `pending`, `applied` once the network is changed, and `confirmed` by Farrier.
fn script(netplan: &Netplan, document: &str) -> String {
    let Netplan { folder, confirm_seconds } = netplan;
    let mut end = String::from("END_OF_DOCUMENT");
    while document.lines().any(|line| line == end) {
        end.push('_');
    }
    format!(
        r#"PATH=$PATH:/usr/sbin:/sbin
file={folder}/{FILE}
command -v netplan >/dev/null || {{ echo "no netplan on this host"; exit {NO_NETPLAN}; }}
cd "${{FARRIER_JOB_FOLDER:?}}" || exit 1
: >pending || exit 1
if [ -e $file ]; then cp -p $file before || exit 1; fi
back() {{
    if [ -e before ]; then mv -f before $file; else rm -f $file; fi
    netplan apply
}}
trap 'echo "stopped: going back"; back; exit {REVERTED}' TERM INT HUP
(umask 077; cat >$file.new) <<'{end}' || exit 1
{document}
{end}
mv -f $file.new $file || exit 1
if ! netplan generate; then echo "netplan refused it: going back"; back; exit {REFUSED}; fi
echo "applying"
netplan apply || {{ echo "netplan could not apply it: going back"; back; exit {REFUSED}; }}
mv -f pending applied
left={confirm_seconds}
while [ $left -gt 0 ]; do
    if [ -e confirmed ]; then
        rm -f before
        echo "confirmed"
        exit 0
    fi
    sleep 1
    left=$((left - 1))
done
echo "no new connection came: restoring the old configuration"
back
exit {UNCONFIRMED}
"#
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_cannot_end_itself() {
        let script = script(&Netplan::default(), "a\nEND_OF_DOCUMENT\nrm -rf /");
        let lines: Vec<&str> = script.lines().collect();
        let opened = lines.iter().position(|line| line.contains("<<'END_OF_DOCUMENT_'")).unwrap();
        let closed = lines.iter().position(|line| *line == "END_OF_DOCUMENT_").unwrap();
        assert_eq!(&lines[opened + 1..closed], ["a", "END_OF_DOCUMENT", "rm -rf /"]);
    }
}
