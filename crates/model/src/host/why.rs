//! Explains the firmware state of a host.

use super::{GATE_PAUSE, Host, HostState, RACK_PATIENCE, Seen, UPGRADE_PATIENCE};
use crate::fault::Code;
use crate::lifecycle::{Lifecycle, Next, Why};
use crate::time::{Timestamp, spoken};
use crate::why::Explanation;

impl Host {
    /// None when nothing is requested.
    pub fn explain(&self, seen: &Seen, now: Timestamp) -> Option<Explanation> {
        let id = &self.head.id;
        let named = self.request.as_ref().and_then(|request| request.firmware.as_ref());
        let named = named.map(|firmware| format!(" --firmware {firmware}")).unwrap_or_default();
        let again = format!("farrier machine reprovision {id}{named}");
        // Only the rack's operation can be canceled while it drives the upgrade.
        let stop = match seen.operation.as_ref().filter(|run| !run.ended()) {
            Some(run) => format!("farrier cancel {}", run.spec.id),
            None => format!("farrier machine reprovision {id} --cancel"),
        };
        let (waiting_for, due) = match self.next(seen, now) {
            Next::Rest(Why(why)) => (why, None),
            Next::Until(at, Why(why)) => (why, Some(at)),
            Next::Become(_) | Next::Remove(_) => ("a worker to move it on".into(), None),
        };
        let (patience, failed, next_commands) = match &self.state {
            HostState::Ready => {
                self.request.as_ref()?;
                (GATE_PAUSE, None, vec![stop])
            }
            HostState::CheckingFirmwareV2 { .. } => {
                let open = seen.gate.as_ref().err().and_then(|refusal| refusal.next.clone());
                (UPGRADE_PATIENCE, None, open.into_iter().chain([stop]).collect())
            }
            HostState::WaitingForRackFirmwareUpgrade => {
                let whose = self.rack_operation().map(|run| format!("farrier why {run}"));
                (RACK_PATIENCE, None, whose.into_iter().chain([stop]).collect())
            }
            HostState::FailedFirmwareUpgrade { cause, .. } => {
                let look = cause.run.as_ref().map(|run| format!("farrier why {run}"));
                let commands = look.into_iter().chain([again, stop]).collect();
                (seen.retry_interval, Some(cause), commands)
            }
        };
        let since = self.head.since;
        let waits_for_person = failed.is_some() && due.is_none();
        Some(Explanation {
            headline: format!("the firmware of {id} is in state {}", self.state.word()),
            waiting_for,
            since: Some(since),
            normal: match waits_for_person {
                true => "it stays so until somebody decides".into(),
                false => format!("up to {}", spoken(patience)),
            },
            overdue: !waits_for_person && now.since(since) > patience,
            failed: failed.map(|cause| cause.said.clone()).unwrap_or_default(),
            fault: failed.and_then(|cause| Code::parse(&cause.code)),
            next_commands,
            ..Explanation::default()
        })
    }
}
