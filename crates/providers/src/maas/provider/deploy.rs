//! Starts the installation of a node through MAAS; the next stage waits for it.
//!
//! The annotation on the machine tells our deployment from others. One of this run counts as
//! started; one from before the run is adopted; any other is left alone.

use super::checkpoint::{OrderCheckpoint, Stopping, two_effects};
use super::hand::{Owner, Work, disagrees, done, has, state};
use super::marks::{self, Whose};
use crate::clock::now;
use crate::maas::{Deploy, Machine, Status};
use model::effect::{Answer, Verb};
use model::fault::{Code, Fault};
use model::node::{NodeState, Stage, Upstream, adopts};

#[derive(Debug, Clone, PartialEq, Eq)]
enum Move {
    /// This run started it.
    Begun,
    /// MAAS had it deployed before the run.
    Adopt(String),
    Install,
    Disagree(String),
}

/// `before` is the state when this run first read the machine, `owner` its present MAAS user.
fn next(upstream: Upstream, whose: &Whose, before: Upstream, owner: &Owner) -> Move {
    let no = |why: &str| Move::Disagree(why.to_owned());
    match (upstream, whose) {
        (Upstream::Ready, _) => Move::Install,
        (Upstream::Deploying | Upstream::Deployed | Upstream::FailedDeployment, Whose::ThisRun) => {
            Move::Begun
        }
        (
            Upstream::Allocated
            | Upstream::Deploying
            | Upstream::Deployed
            | Upstream::FailedDeployment,
            Whose::Other(node),
        ) => Move::Disagree(format!("it is {node}'s: decommission that first")),
        (Upstream::Deploying | Upstream::Deployed, Whose::ThisNode | Whose::Nobody) => {
            match adopts(Stage::DeployViaMaas, NodeState::Enrolling, before) {
                Some(_) => {
                    Move::Adopt(format!("MAAS has the machine as {upstream}, and had before"))
                }
                None => no("somebody else has deployed it since this operation began"),
            }
        }
        (Upstream::FailedDeployment, Whose::ThisNode | Whose::Nobody) => {
            no("`farrier workflow restart-clean` releases it first")
        }
        (Upstream::Allocated, Whose::ThisRun | Whose::ThisNode) => Move::Install,
        (Upstream::Allocated, Whose::Nobody) => match owner {
            Owner::Us if before != Upstream::Allocated => Move::Install,
            Owner::Us => {
                no("it was allocated before, and no mark says for what: release it in MAAS")
            }
            Owner::Nobody => no("nobody owns it: release it in MAAS"),
            Owner::Other(owner) => {
                Move::Disagree(format!("{owner} has allocated it: release it in MAAS"))
            }
        },
        (
            Upstream::New
            | Upstream::Commissioning
            | Upstream::FailedCommissioning
            | Upstream::Missing
            | Upstream::Reserved
            | Upstream::Retired
            | Upstream::Broken
            | Upstream::Releasing
            | Upstream::FailedReleasing
            | Upstream::DiskErasing
            | Upstream::FailedDiskErasing
            | Upstream::RescueMode
            | Upstream::EnteringRescueMode
            | Upstream::FailedEnteringRescueMode
            | Upstream::ExitingRescueMode
            | Upstream::FailedExitingRescueMode
            | Upstream::Testing
            | Upstream::FailedTesting
            | Upstream::Unknown
            | Upstream::Absent,
            _,
        ) => no("it is installed from Ready"),
    }
}

impl Work<'_> {
    pub async fn deploy(&self) -> Result<Answer, Fault> {
        let notes = self.hand.notes();
        match self.hand.verb() {
            Verb::Perform => {
                let machine = self.locate().await?;
                let before = self.hand.first_seen().await?.unwrap_or(Upstream::Unknown);
                self.hand.see_first(before).await?;
                let memo = notes.begin(OrderCheckpoint::Deploy { asked: None }).await?;
                self.deploy_now(machine, memo).await
            }
            Verb::Follow => match notes.recall().await? {
                None => Ok(Answer::NeverStarted),
                Some(memo) => self.deploy_now(self.locate().await?, memo).await,
            },
            Verb::GetStatus => match notes.recall().await? {
                None => Ok(Answer::NeverStarted),
                Some(_) => self.became().await,
            },
            Verb::Observe => {
                let machine = self.locate().await?;
                Ok(match adopts(self.stage, self.node.state, state(&machine)) {
                    Some(why) => done(&machine, why),
                    None => Answer::Differs(has(&machine)),
                })
            }
            Verb::Stop => self.stop_deploying().await,
        }
    }

    /// The status of a recorded deployment: on the machine, or never started.
    async fn became(&self) -> Result<Answer, Fault> {
        let machine = match self.locate().await {
            // The next follow reports that it is gone.
            Err(fault) if fault.code == Code::MaasMachineGone => return Ok(Answer::UnderWay),
            other => other?,
        };
        let begun = matches!(
            machine.status,
            Status::Deploying | Status::Deployed | Status::FailedDeployment
        );
        Ok(match begun && self.mark(&machine) == Whose::ThisRun {
            true => done(&machine, has(&machine)),
            false => Answer::NeverStarted,
        })
    }

    pub(super) fn mark(&self, machine: &Machine) -> Whose {
        marks::whose(machine, self.hand.key().run(), Some(&self.node.id()))
    }

    async fn deploy_now(&self, machine: Machine, memo: OrderCheckpoint) -> Result<Answer, Fault> {
        let OrderCheckpoint::Deploy { .. } = memo else { return Err(two_effects()) };
        let whose = self.hand.whose(&machine, Some(&self.node.id())).await?;
        let before = self.hand.first_seen().await?.unwrap_or(Upstream::Unknown);
        let owner = self.hand.owner(&machine).await?;
        match next(state(&machine), &whose, before, &owner) {
            Move::Begun => Ok(done(&machine, has(&machine))),
            Move::Adopt(why) => Ok(done(&machine, why)),
            Move::Disagree(why) => Err(disagrees(&machine, &why)),
            Move::Install => {
                super::hand::unlocked(&machine)?;
                let deploy = self.installation().await?;
                self.hand
                    .notes()
                    .compare_and_swap(&memo, &OrderCheckpoint::Deploy { asked: Some(now()) })
                    .await?;
                let now = self.hand.install(&machine, Some(&self.node.id()), &deploy).await?;
                match matches!(now.status, Status::Deploying | Status::Deployed) {
                    true => Ok(done(&now, has(&now))),
                    false => Err(Fault::new(Code::ReadBackDiffers, has(&now))),
                }
            }
        }
    }

    /// The image and the cloud-init of the node.
    pub async fn installation(&self) -> Result<Deploy, Fault> {
        let (osystem, release) = self.site.spec.system_and_release();
        Ok(Deploy {
            osystem: Some(osystem.to_owned()),
            distro_series: Some(release.to_owned()),
            user_data: Some(self.cloud_init().await?),
            enable_hw_sync: true,
            comment: Some(self.hand.key().to_string()),
        })
    }

    /// Aborts an installation that this key started. A finished one stays.
    async fn stop_deploying(&self) -> Result<Answer, Fault> {
        let notes = self.hand.notes();
        let memo = match notes.stop().await? {
            Stopping::Barred => return Ok(Answer::Stopped),
            Stopping::Begun(memo) => memo,
        };
        let machine = self.there().await?;
        if let (OrderCheckpoint::Deploy { asked: Some(_) }, Some(machine)) = (&memo, &machine) {
            let young = self.hand.in_flight(&memo);
            let of_this_run = self.mark(machine) == Whose::ThisRun;
            if of_this_run && machine.status == Status::Deployed {
                return Ok(done(machine, has(machine)));
            }
            if of_this_run && machine.status == Status::Deploying {
                self.hand.maas().abort(&machine.system_id, self.hand.key().as_str()).await?;
            }
            // The request may still reach MAAS.
            if young && matches!(machine.status, Status::Ready | Status::Allocated) {
                return Ok(Answer::UnderWay);
            }
        }
        notes.compare_and_swap(&memo, &OrderCheckpoint::Stopped).await?;
        Ok(Answer::Stopped)
    }

    pub async fn wait_for_deployed(&self) -> Result<Answer, Fault> {
        let is = |machine: &Machine| machine.status == Status::Deployed;
        match self.hand.verb() {
            Verb::Stop => return Ok(Answer::Stopped),
            Verb::Observe => return self.waited(is).await,
            Verb::GetStatus => {
                let failed = |machine: &Machine| machine.status == Status::FailedDeployment;
                return self.waited(|machine| is(machine) || failed(machine)).await;
            }
            Verb::Perform | Verb::Follow => {}
        }
        let id = self.locate().await?.system_id;
        let ended = |machine: &Machine| installed(machine).map(|end| end.map(|_| machine.clone()));
        let machine = self.hand.wait(&id, ended).await?;
        Ok(done(&machine, has(&machine)))
    }
}

/// The result of the wait for an installation: true when installed, `None` while it continues.
pub(super) fn installed(machine: &Machine) -> Option<Result<bool, Fault>> {
    match machine.status {
        Status::Deploying => None,
        Status::Deployed => Some(Ok(true)),
        Status::FailedDeployment => Some(Ok(false)),
        Status::New
        | Status::Commissioning
        | Status::FailedCommissioning
        | Status::Missing
        | Status::Ready
        | Status::Reserved
        | Status::Retired
        | Status::Broken
        | Status::Allocated
        | Status::Releasing
        | Status::FailedReleasing
        | Status::DiskErasing
        | Status::FailedDiskErasing
        | Status::RescueMode
        | Status::EnteringRescueMode
        | Status::FailedEnteringRescueMode
        | Status::ExitingRescueMode
        | Status::FailedExitingRescueMode
        | Status::Testing
        | Status::FailedTesting
        | Status::Unknown(_) => {
            Some(Err(disagrees(machine, "nothing installs it: somebody has broken that off")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::id::NodeId;

    #[test]
    fn every_state_has_its_move() {
        let other = Whose::Other(NodeId::trusted("node-2"));
        let row = |whose: &Whose, before, owner: &Owner| -> String {
            let letter = |upstream: &Upstream| match next(*upstream, whose, before, owner) {
                Move::Begun => 'b',
                Move::Adopt(_) => 'a',
                Move::Install => 'i',
                Move::Disagree(_) => '-',
            };
            Upstream::ALL.iter().map(letter).collect()
        };
        let (us, them) = (Owner::Us, Owner::Other("eve".into()));
        for (whose, before, owner, expected) in [
            (Whose::ThisRun, Upstream::Ready, &us, "----i-b--bib-------------"),
            (Whose::ThisNode, Upstream::Ready, &us, "----i-----i--------------"),
            (Whose::ThisNode, Upstream::Deployed, &us, "----i-a--ai--------------"),
            (Whose::Nobody, Upstream::Deployed, &them, "----i-a--a---------------"),
            (Whose::Nobody, Upstream::Unknown, &them, "----i--------------------"),
            (Whose::Nobody, Upstream::Ready, &us, "----i-----i--------------"),
            (Whose::Nobody, Upstream::Allocated, &us, "----i--------------------"),
            (other, Upstream::Deployed, &us, "----i--------------------"),
        ] {
            assert_eq!(row(&whose, before, owner), expected, "{whose:?} {before} {owner:?}");
        }
    }
}
