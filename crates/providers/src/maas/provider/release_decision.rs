//! Decides the next request of a release, from its progress and the present status.
//!
//! A release destroys an installation, so it must not hit a later user of the machine. Before the
//! request a machine we own is annotated; MAAS removes the annotation with the release.

use super::annotations::{self, AnnotationOwner};
use super::executor::{CallContext, MaasOwner, check_unlocked, describe_state, state_disagrees};
use crate::maas::{Machine, ReleaseRequest, Status};
use model::fault::{Fault, FaultCode, Result};
use model::id::NodeId;
use model::site::EraseMethod;
use model::time::Timestamp;
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ReleaseProgress {
    Begun,
    #[serde(rename = "asked")]
    Requested {
        /// The machine was annotated before; false when another MAAS user owns it.
        marked: bool,
        at: Timestamp,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ReleaseStep {
    /// It is released.
    Released,
    Wait,
    Request,
    /// It is installed, and it may have been released and installed again in between.
    Unknown(String),
    Fail(Fault),
}

/// For failed tests: MAAS neither commissions nor releases such a machine.
pub(super) const TESTS_FAILED: &str =
    "override the failed tests in MAAS, or have it tested again there, then retry";

/// `there`: the machine has the release annotation of this key.
pub(super) fn next_release_step(
    machine: &Machine,
    letting: ReleaseProgress,
    there: bool,
) -> ReleaseStep {
    let requested = letting != ReleaseProgress::Begun;
    match machine.status {
        // It is installed, and MAAS refuses to release it.
        Status::FailedTesting if machine.is_taken() => {
            ReleaseStep::Fail(state_disagrees(machine, TESTS_FAILED))
        }
        // A machine that failed commissioning was never allocated.
        Status::New | Status::Ready | Status::FailedCommissioning | Status::FailedTesting => {
            ReleaseStep::Released
        }
        Status::Releasing | Status::DiskErasing => ReleaseStep::Wait,
        Status::FailedReleasing | Status::FailedDiskErasing if requested => {
            ReleaseStep::Fail(Fault::new(FaultCode::EffectFailed, describe_state(machine)))
        }
        Status::Allocated
        | Status::Deploying
        | Status::Deployed
        | Status::FailedDeployment
        | Status::FailedReleasing
        | Status::FailedDiskErasing
        | Status::Reserved
        | Status::Broken => match (check_unlocked(machine), letting) {
            (Err(fault), _) => ReleaseStep::Fail(fault),
            (Ok(()), ReleaseProgress::Requested { .. }) if !there => ReleaseStep::Unknown(format!(
                "{}, and it was asked to be let go before: it may have been, and taken since",
                describe_state(machine)
            )),
            (Ok(()), ReleaseProgress::Begun | ReleaseProgress::Requested { .. }) => {
                ReleaseStep::Request
            }
        },
        Status::Commissioning
        | Status::Missing
        | Status::Retired
        | Status::RescueMode
        | Status::EnteringRescueMode
        | Status::FailedEnteringRescueMode
        | Status::ExitingRescueMode
        | Status::FailedExitingRescueMode
        | Status::Testing
        | Status::Unknown(_) => {
            let instead = "finish in MAAS what was begun there, or take it back";
            ReleaseStep::Fail(state_disagrees(machine, instead))
        }
    }
}

/// The reason why a machine must not be powered off or deleted; `None` if it is unused. Another
/// MAAS user's machine is in use in every status, and MAAS is not interrupted.
fn in_use_reason(machine: &Machine, whose: &AnnotationOwner, owner: &MaasOwner) -> Option<String> {
    if let Some(why) = other_owner_reason(whose, owner) {
        return Some(why);
    }
    match machine.status {
        Status::Allocated | Status::Deploying | Status::Deployed | Status::RescueMode => {
            Some("it is in use: release it in MAAS, then retry".into())
        }
        Status::FailedTesting if machine.is_taken() => Some(TESTS_FAILED.into()),
        Status::Releasing
        | Status::DiskErasing
        | Status::EnteringRescueMode
        | Status::ExitingRescueMode => Some("MAAS is still at it: wait for its end".into()),
        Status::New
        | Status::Commissioning
        | Status::FailedCommissioning
        | Status::Missing
        | Status::Ready
        | Status::Reserved
        | Status::Retired
        | Status::Broken
        | Status::FailedDeployment
        | Status::FailedReleasing
        | Status::FailedDiskErasing
        | Status::FailedEnteringRescueMode
        | Status::FailedExitingRescueMode
        | Status::Testing
        | Status::FailedTesting
        | Status::Unknown(_) => None,
    }
}

/// The reason why another owner's machine must not be released, powered off or deleted; `None`
/// otherwise.
fn other_owner_reason(whose: &AnnotationOwner, owner: &MaasOwner) -> Option<String> {
    match (whose, owner) {
        (AnnotationOwner::OtherNode(node), _) => {
            Some(format!("it is {node}'s: decommission that first"))
        }
        (AnnotationOwner::ThisRun | AnnotationOwner::ThisNode, _)
        | (AnnotationOwner::Unmarked, MaasOwner::Farrier) => None,
        // A machine marked broken has no owner in MAAS.
        (AnnotationOwner::Unmarked, MaasOwner::Unowned) => None,
        (AnnotationOwner::Unmarked, MaasOwner::Other(owner)) => Some(format!(
            "{owner} owns it there, and no mark says that it was installed for the node: release it in MAAS"
        )),
    }
}

impl CallContext<'_> {
    /// Refuses to release a machine of another owner.
    pub async fn check_may_release(&self, machine: &Machine, node: &NodeId) -> Result<()> {
        let owner = self.annotation_owner(machine, Some(node)).await?;
        match other_owner_reason(&owner, &self.maas_owner(machine).await?) {
            None => Ok(()),
            Some(why) => {
                let then = format!("{why}, then `farrier operation adopt {}`", self.key().run());
                Err(state_disagrees(machine, &then))
            }
        }
    }

    /// Refuses to touch a machine in use.
    pub async fn check_unused(&self, machine: &Machine, node: &NodeId) -> Result<()> {
        let owner = self.annotation_owner(machine, Some(node)).await?;
        match in_use_reason(machine, &owner, &self.maas_owner(machine).await?) {
            None => Ok(()),
            Some(why) => Err(state_disagrees(machine, &why)),
        }
    }

    /// An installation of this node may be powered off by it.
    pub async fn check_may_power_off(&self, machine: &Machine, node: &NodeId) -> Result<()> {
        match self.annotation_owner(machine, Some(node)).await? {
            AnnotationOwner::ThisRun | AnnotationOwner::ThisNode => Ok(()),
            AnnotationOwner::OtherNode(_) | AnnotationOwner::Unmarked => {
                self.check_unused(machine, node).await
            }
        }
    }

    /// Annotates a machine before its release. False: we do not own it.
    pub async fn mark_for_release(&self, machine: &Machine) -> Result<bool> {
        if annotations::is_marked_for_release(machine, self.key()) {
            return Ok(true);
        }
        if self.maas_owner(machine).await? != MaasOwner::Farrier {
            return Ok(false);
        }
        let mark = annotations::release_annotations(self.key());
        self.maas().set_workload_annotations(&machine.system_id, &mark).await?;
        Ok(true)
    }

    /// `erase`: how its disks are erased; `None`: they are not.
    pub async fn request_release(
        &self,
        machine: &Machine,
        erase: Option<EraseMethod>,
    ) -> Result<Machine> {
        let with = erase.map(|how| format!(", and its disks erased ({})", how.as_str()));
        let with = with.unwrap_or_default();
        self.journal.write_line(format!("maas: {} is released{with}", machine.system_id)).await;
        let (secure_erase, quick_erase) = erase.map_or((None, None), erase_flags);
        let release = ReleaseRequest {
            comment: Some(self.key().to_string()),
            erase: erase.is_some(),
            secure_erase,
            quick_erase,
        };
        let asked = self.maas().release(&machine.system_id, &release).await;
        self.confirm(machine, asked).await
    }
}

/// The flags of MAAS: disks erase themselves, and only their ends are written.
const fn erase_flags(how: EraseMethod) -> (Option<bool>, Option<bool>) {
    match how {
        EraseMethod::Default => (None, None),
        EraseMethod::Secure => (Some(true), Some(false)),
        EraseMethod::SecureOrQuick => (Some(true), Some(true)),
        EraseMethod::Quick => (Some(false), Some(true)),
        EraseMethod::Zeroes => (Some(false), Some(false)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_machine_in_use_with_failed_tests_is_not_released() {
        let failed = machine(Status::FailedTesting, false);
        let owned = Machine { owner: Some("admin".into()), ..failed.clone() };
        let installed = Machine { osystem: "ubuntu".into(), ..failed.clone() };
        assert_eq!(
            next_release_step(&failed, ReleaseProgress::Begun, false),
            ReleaseStep::Released
        );
        for machine in [owned, installed] {
            let ReleaseStep::Fail(fault) =
                next_release_step(&machine, ReleaseProgress::Begun, true)
            else {
                panic!()
            };
            assert_eq!(fault.code, FaultCode::StateDisagrees);
            assert!(fault.message.contains("override the failed tests"), "{fault}");
        }
    }

    fn machine(status: Status, locked: bool) -> Machine {
        let reported = json!({"system_id": "a", "status": status.number(), "locked": locked});
        serde_json::from_value(reported).unwrap()
    }

    /// One letter for each step, over all statuses by number.
    fn row(letting: ReleaseProgress, there: bool, locked: bool) -> String {
        let letter =
            |status: &Status| match next_release_step(&machine(*status, locked), letting, there) {
                ReleaseStep::Released => 'f',
                ReleaseStep::Wait => 'w',
                ReleaseStep::Request => 'a',
                ReleaseStep::Unknown(_) => '?',
                ReleaseStep::Fail(fault) if fault.code == FaultCode::EffectFailed => 'x',
                ReleaseStep::Fail(fault) => {
                    assert_eq!(fault.code, FaultCode::StateDisagrees, "{fault}");
                    '-'
                }
            };
        Status::ALL.iter().map(letter).collect()
    }

    #[test]
    fn machines_of_other_owners_are_not_released() {
        let eve = || MaasOwner::Other("eve".into());
        let other = || AnnotationOwner::OtherNode(NodeId::trusted("node-2"));
        for (whose, owner, message) in [
            (AnnotationOwner::ThisRun, MaasOwner::Farrier, None),
            (AnnotationOwner::ThisRun, eve(), None),
            (AnnotationOwner::ThisNode, MaasOwner::Farrier, None),
            (AnnotationOwner::ThisNode, eve(), None),
            (AnnotationOwner::Unmarked, MaasOwner::Farrier, None),
            (AnnotationOwner::Unmarked, MaasOwner::Unowned, None),
            (AnnotationOwner::Unmarked, eve(), Some("eve owns it")),
            (other(), MaasOwner::Farrier, Some("node-2")),
            (other(), MaasOwner::Unowned, Some("node-2")),
            (other(), eve(), Some("node-2")),
        ] {
            match (other_owner_reason(&whose, &owner), message) {
                (None, None) => {}
                (Some(why), Some(name)) => assert!(why.contains(name), "{why}"),
                (why, message) => panic!("{whose:?} {owner:?}: {why:?}, not {message:?}"),
            }
        }
    }

    #[test]
    fn machines_in_use_are_neither_powered_off_nor_deleted() {
        let row = |whose: AnnotationOwner, owner: MaasOwner, reported: &Machine| -> String {
            let letter = |status: &Status| {
                let machine = Machine { status: *status, ..reported.clone() };
                if in_use_reason(&machine, &whose, &owner).is_some() { 'u' } else { '-' }
            };
            Status::ALL.iter().map(letter).collect()
        };
        let free = machine(Status::New, false);
        let taken = Machine { osystem: "ubuntu".into(), ..free.clone() };
        let other = AnnotationOwner::OtherNode(NodeId::trusted("node-2"));
        for (whose, owner, reported, expected) in [
            (AnnotationOwner::Unmarked, MaasOwner::Unowned, &free, "------u--uu-u-u-uu-u---"),
            (AnnotationOwner::Unmarked, MaasOwner::Farrier, &free, "------u--uu-u-u-uu-u---"),
            (AnnotationOwner::Unmarked, MaasOwner::Farrier, &taken, "------u--uu-u-u-uu-u--u"),
            (
                AnnotationOwner::ThisNode,
                MaasOwner::Other("eve".into()),
                &free,
                "------u--uu-u-u-uu-u---",
            ),
            (
                AnnotationOwner::Unmarked,
                MaasOwner::Other("eve".into()),
                &free,
                "uuuuuuuuuuuuuuuuuuuuuuu",
            ),
            (other, MaasOwner::Unowned, &free, "uuuuuuuuuuuuuuuuuuuuuuu"),
        ] {
            let message = format!("{whose:?} {owner:?}");
            assert_eq!(row(whose, owner, reported), expected, "{message}");
        }
    }

    #[test]
    fn every_status_has_a_step() {
        let requested = |marked| ReleaseProgress::Requested { marked, at: Timestamp::default() };
        for (letting, there, locked, expected) in [
            (ReleaseProgress::Begun, false, false, "f-f-faa-aaaawawa------f"),
            (requested(true), true, false, "f-f-faa-aaaawxwx------f"),
            (requested(true), false, false, "f-f-f??-????wxwx------f"),
            (requested(false), false, false, "f-f-f??-????wxwx------f"),
            (ReleaseProgress::Begun, false, true, "f-f-f-------w-w-------f"),
        ] {
            assert_eq!(row(letting, there, locked), expected, "{letting:?} {there} {locked}");
        }
    }
}
