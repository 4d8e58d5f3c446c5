//! Explains the firmware state of a host.

use super::{GATE_PAUSE, Host, HostState, HostTurnInput, RACK_TIMEOUT, UPGRADE_NORMAL};
use crate::fault::FaultCode;
use crate::lifecycle::{IdleReason, Lifecycle, LifecycleDecision};
use crate::time::{Timestamp, format_duration};
use crate::why::Explanation;

impl Host {
    /// None when nothing is requested.
    pub fn explain(&self, observed: &HostTurnInput, now: Timestamp) -> Option<Explanation> {
        let id = &self.head.id;
        let named = self.request.as_ref().and_then(|request| request.firmware.as_ref());
        let named = named.map(|firmware| format!(" --firmware {firmware}")).unwrap_or_default();
        let again = format!("farrier machine reprovision {id}{named}");
        // Only the rack's operation can be canceled while it drives the upgrade.
        let stop = match observed.operation.as_ref().filter(|run| !run.ended()) {
            Some(run) => format!("farrier cancel {}", run.spec.id),
            None => format!("farrier machine reprovision {id} --cancel"),
        };
        let (waiting_for, due) = match self.next(observed, now) {
            LifecycleDecision::Idle(IdleReason(why)) => (why, None),
            LifecycleDecision::IdleUntil(at, IdleReason(why)) => (why, Some(at)),
            LifecycleDecision::Transition(_) | LifecycleDecision::Remove(_) => {
                ("a worker to move it on".into(), None)
            }
        };
        let (timeout, failed, next_commands) = match &self.state {
            HostState::Ready => {
                self.request.as_ref()?;
                (GATE_PAUSE, None, vec![stop])
            }
            HostState::CheckingFirmwareV2 { .. } => {
                let open =
                    observed.gate.as_ref().err().and_then(|refusal| refusal.next_command.clone());
                (UPGRADE_NORMAL, None, open.into_iter().chain([stop]).collect())
            }
            HostState::WaitingForRackFirmwareUpgrade => {
                let owner = self.rack_operation().map(|run| format!("farrier why {run}"));
                (RACK_TIMEOUT, None, owner.into_iter().chain([stop]).collect())
            }
            HostState::FailedFirmwareUpgrade { cause, .. } => {
                let probe = cause.run.as_ref().map(|run| format!("farrier why {run}"));
                let commands = probe.into_iter().chain([again, stop]).collect();
                (observed.retry_interval, Some(cause), commands)
            }
        };
        let since = self.head.since;
        let waits_for_person = failed.is_some() && due.is_none();
        Some(Explanation {
            headline: format!("the firmware of {id} is in state {}", self.state.name()),
            // The message of the last attempt is told as the failure.
            waiting_for: match due.filter(|_| failed.is_some()) {
                Some(at) => format!("the next attempt, in {}", format_duration(at.since(now))),
                None => waiting_for,
            },
            since: Some(since),
            normal: match waits_for_person {
                true => "it stays so until an operator decides".into(),
                false => format!("up to {}", format_duration(timeout)),
            },
            overdue: !waits_for_person && now.since(since) > timeout,
            failed: failed.map(|cause| cause.message.clone()).unwrap_or_default(),
            fault: failed.and_then(|cause| FaultCode::parse(&cause.code)),
            next_commands,
            ..Explanation::default()
        })
    }
}
