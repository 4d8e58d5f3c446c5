//! Decides the next request of a release, from its progress and the present status.
//!
//! A release destroys an installation, so it must not hit a later user of the machine. Before the
//! request a machine we own is annotated; MAAS removes the annotation with the release.

use super::hand::{Hand, Owner, disagrees, has, unlocked};
use super::marks::{self, Whose};
use crate::maas::{Machine, Release, Status};
use model::fault::{Code, Fault};
use model::id::NodeId;
use model::time::Timestamp;
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Letting {
    Begun,
    #[serde(rename = "asked")]
    Asked {
        /// The machine was annotated before; false when another MAAS user owns it.
        marked: bool,
        at: Timestamp,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Move {
    /// It is released.
    Free,
    Wait,
    Ask,
    /// It is installed, and it may have been released and installed again in between.
    Lost(String),
    Fail(Fault),
}

/// For failed tests: MAAS neither commissions nor releases such a machine.
pub(super) const TESTS_FAILED: &str =
    "override the failed tests in MAAS, or have it tested again there, then retry";

/// `there`: the machine has the release annotation of this key.
pub(super) fn next(machine: &Machine, letting: Letting, there: bool) -> Move {
    let asked = letting != Letting::Begun;
    match machine.status {
        // It is installed, and MAAS refuses to release it.
        Status::FailedTesting if machine.is_taken() => Move::Fail(disagrees(machine, TESTS_FAILED)),
        // A machine that failed commissioning was never allocated.
        Status::New | Status::Ready | Status::FailedCommissioning | Status::FailedTesting => {
            Move::Free
        }
        Status::Releasing | Status::DiskErasing => Move::Wait,
        Status::FailedReleasing | Status::FailedDiskErasing if asked => {
            Move::Fail(Fault::new(Code::EffectFailed, has(machine)))
        }
        Status::Allocated
        | Status::Deploying
        | Status::Deployed
        | Status::FailedDeployment
        | Status::FailedReleasing
        | Status::FailedDiskErasing
        | Status::Reserved
        | Status::Broken => match (unlocked(machine), letting) {
            (Err(fault), _) => Move::Fail(fault),
            (Ok(()), Letting::Asked { .. }) if !there => Move::Lost(format!(
                "{}, and it was asked to be let go before: it may have been, and taken since",
                has(machine)
            )),
            (Ok(()), Letting::Begun | Letting::Asked { .. }) => Move::Ask,
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
            Move::Fail(disagrees(machine, instead))
        }
    }
}

/// Why a machine must not be powered off or deleted; `None` if it is unused. Another MAAS user's
/// machine is in use in every status, and MAAS is not interrupted.
fn used(machine: &Machine, whose: &Whose, owner: &Owner) -> Option<String> {
    if let Some(why) = others(whose, owner) {
        return Some(why);
    }
    match machine.status {
        Status::Allocated | Status::Deploying | Status::Deployed | Status::RescueMode => {
            Some("somebody uses it: release it in MAAS, then retry".into())
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

/// Why another owner's machine must not be released, powered off or deleted; `None` otherwise.
fn others(whose: &Whose, owner: &Owner) -> Option<String> {
    match (whose, owner) {
        (Whose::Other(node), _) => Some(format!("it is {node}'s: decommission that first")),
        (Whose::ThisRun | Whose::ThisNode, _) | (Whose::Nobody, Owner::Us) => None,
        // A machine marked broken has no owner in MAAS.
        (Whose::Nobody, Owner::Nobody) => None,
        (Whose::Nobody, Owner::Other(owner)) => Some(format!(
            "{owner} owns it there, and no mark says that it was installed for the node: release it in MAAS"
        )),
    }
}

impl Hand<'_> {
    /// Refuses to release a machine of another owner.
    pub async fn may_let_go(&self, machine: &Machine, node: &NodeId) -> Result<(), Fault> {
        let whose = self.whose(machine, Some(node)).await?;
        match others(&whose, &self.owner(machine).await?) {
            None => Ok(()),
            Some(why) => {
                let then = format!("{why}, then `farrier workflow adopt {}`", self.key().run());
                Err(disagrees(machine, &then))
            }
        }
    }

    /// Refuses to touch a machine in use.
    pub async fn unused(&self, machine: &Machine, node: &NodeId) -> Result<(), Fault> {
        let whose = self.whose(machine, Some(node)).await?;
        match used(machine, &whose, &self.owner(machine).await?) {
            None => Ok(()),
            Some(why) => Err(disagrees(machine, &why)),
        }
    }

    /// An installation of this node may be powered off by it.
    pub async fn may_switch_off(&self, machine: &Machine, node: &NodeId) -> Result<(), Fault> {
        match self.whose(machine, Some(node)).await? {
            Whose::ThisRun | Whose::ThisNode => Ok(()),
            Whose::Other(_) | Whose::Nobody => self.unused(machine, node).await,
        }
    }

    /// Annotates a machine before its release. False: we do not own it.
    pub async fn mark_letting(&self, machine: &Machine) -> Result<bool, Fault> {
        if marks::being_let_go(machine, self.key()) {
            return Ok(true);
        }
        if self.owner(machine).await? != Owner::Us {
            return Ok(false);
        }
        let mark = marks::letting_go(self.key());
        self.maas().set_workload_annotations(&machine.system_id, &mark).await?;
        Ok(true)
    }

    pub async fn ask_to_let_go(&self, machine: &Machine, erase: bool) -> Result<Machine, Fault> {
        let with = if erase { ", and its disks erased" } else { "" };
        self.journal.line(format!("maas: {} is released{with}", machine.system_id)).await;
        let release =
            Release { comment: Some(self.key().to_string()), erase, ..Release::default() };
        self.maas().release(&machine.system_id, &release).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_failed_its_tests_in_service_is_not_free() {
        let failed = machine(Status::FailedTesting, false);
        let owned = Machine { owner: Some("admin".into()), ..failed.clone() };
        let installed = Machine { osystem: "ubuntu".into(), ..failed.clone() };
        assert_eq!(next(&failed, Letting::Begun, false), Move::Free);
        for machine in [owned, installed] {
            let Move::Fail(fault) = next(&machine, Letting::Begun, true) else { panic!() };
            assert_eq!(fault.code, Code::StateDisagrees);
            assert!(fault.said.contains("override the failed tests"), "{fault}");
        }
    }

    fn machine(status: Status, locked: bool) -> Machine {
        let told = json!({"system_id": "a", "status": status.number(), "locked": locked});
        serde_json::from_value(told).unwrap()
    }

    /// One letter for each step, over all statuses by number.
    fn row(letting: Letting, there: bool, locked: bool) -> String {
        let letter = |status: &Status| match next(&machine(*status, locked), letting, there) {
            Move::Free => 'f',
            Move::Wait => 'w',
            Move::Ask => 'a',
            Move::Lost(_) => '?',
            Move::Fail(fault) if fault.code == Code::EffectFailed => 'x',
            Move::Fail(fault) => {
                assert_eq!(fault.code, Code::StateDisagrees, "{fault}");
                '-'
            }
        };
        Status::ALL.iter().map(letter).collect()
    }

    #[test]
    fn only_what_is_the_nodes_or_nobodys_is_let_go() {
        let eve = || Owner::Other("eve".into());
        let other = || Whose::Other(NodeId::trusted("node-2"));
        for (whose, owner, said) in [
            (Whose::ThisRun, Owner::Us, None),
            (Whose::ThisRun, eve(), None),
            (Whose::ThisNode, Owner::Us, None),
            (Whose::ThisNode, eve(), None),
            (Whose::Nobody, Owner::Us, None),
            (Whose::Nobody, Owner::Nobody, None),
            (Whose::Nobody, eve(), Some("eve owns it")),
            (other(), Owner::Us, Some("node-2")),
            (other(), Owner::Nobody, Some("node-2")),
            (other(), eve(), Some("node-2")),
        ] {
            match (others(&whose, &owner), said) {
                (None, None) => {}
                (Some(why), Some(word)) => assert!(why.contains(word), "{why}"),
                (why, said) => panic!("{whose:?} {owner:?}: {why:?}, not {said:?}"),
            }
        }
    }

    #[test]
    fn what_somebody_uses_is_neither_switched_off_nor_forgotten() {
        let row = |whose: Whose, owner: Owner, told: &Machine| -> String {
            let letter = |status: &Status| {
                let machine = Machine { status: *status, ..told.clone() };
                if used(&machine, &whose, &owner).is_some() { 'u' } else { '-' }
            };
            Status::ALL.iter().map(letter).collect()
        };
        let free = machine(Status::New, false);
        let taken = Machine { osystem: "ubuntu".into(), ..free.clone() };
        let other = Whose::Other(NodeId::trusted("node-2"));
        for (whose, owner, told, expected) in [
            (Whose::Nobody, Owner::Nobody, &free, "------u--uu-u-u-uu-u---"),
            (Whose::Nobody, Owner::Us, &free, "------u--uu-u-u-uu-u---"),
            (Whose::Nobody, Owner::Us, &taken, "------u--uu-u-u-uu-u--u"),
            (Whose::ThisNode, Owner::Other("eve".into()), &free, "------u--uu-u-u-uu-u---"),
            (Whose::Nobody, Owner::Other("eve".into()), &free, "uuuuuuuuuuuuuuuuuuuuuuu"),
            (other, Owner::Nobody, &free, "uuuuuuuuuuuuuuuuuuuuuuu"),
        ] {
            let said = format!("{whose:?} {owner:?}");
            assert_eq!(row(whose, owner, told), expected, "{said}");
        }
    }

    #[test]
    fn every_status_has_its_move() {
        let asked = |marked| Letting::Asked { marked, at: Timestamp::default() };
        for (letting, there, locked, expected) in [
            (Letting::Begun, false, false, "f-f-faa-aaaawawa------f"),
            (asked(true), true, false, "f-f-faa-aaaawxwx------f"),
            (asked(true), false, false, "f-f-f??-????wxwx------f"),
            (asked(false), false, false, "f-f-f??-????wxwx------f"),
            (Letting::Begun, false, true, "f-f-f-------w-w-------f"),
        ] {
            assert_eq!(row(letting, there, locked), expected, "{letting:?} {there} {locked}");
        }
    }
}
