//! Commissioning: MAAS boots the machine to read its hardware and optionally tests it.

use super::checkpoint::{OrderCheckpoint, checkpoint_mismatch};
use super::executor::{
    MaasOwner, StageExecutor, check_unlocked, describe_state, done, state_disagrees, status_answer,
    upstream_state,
};
use super::failure::COMMISSIONING_EVENT;
use super::masking::masked;
use super::release_decision::TESTS_FAILED;
use crate::clock::now;
use crate::maas::{CommissionRequest, Machine, ResultKind, ScriptResult, Status};
use model::effect::{CallResult, CallVerb, ProviderAnswer};
use model::fault::{Fault, FaultCode, Result};
use model::node::{MaasState, adoption_reason};
use model::site::Commissioning;

/// The number of the last lines of a failed script that are copied.
const LAST_LINES: usize = 20;

/// The next step for a status.
#[derive(Debug, Clone, PartialEq, Eq)]
enum CommissionStep {
    /// In progress, or done before.
    Done,
    Commission,
    Disagree(&'static str),
}

/// `before` is the state when the call started, if it has.
fn next_step(machine: &Machine, before: Option<MaasState>) -> CommissionStep {
    let begun = before.is_some_and(|before| before != upstream_state(machine));
    match machine.status {
        Status::Commissioning
        | Status::Testing
        | Status::Ready
        | Status::Allocated
        | Status::Deploying
        | Status::Deployed => CommissionStep::Done,
        // It ran and failed at once; the stage that waits reports it.
        Status::FailedCommissioning if begun => CommissionStep::Done,
        Status::FailedTesting if begun && machine.osystem.is_empty() => CommissionStep::Done,
        Status::New | Status::FailedCommissioning => CommissionStep::Commission,
        // MAAS refuses to commission it, and it may be in service.
        Status::FailedTesting => CommissionStep::Disagree(TESTS_FAILED),
        Status::Broken => {
            CommissionStep::Disagree("it was marked broken: repair it, and mark it fixed in MAAS")
        }
        Status::FailedDeployment => {
            CommissionStep::Disagree("`farrier operation restart-clean` releases it first")
        }
        Status::Missing
        | Status::Reserved
        | Status::Retired
        | Status::Releasing
        | Status::FailedReleasing
        | Status::DiskErasing
        | Status::FailedDiskErasing
        | Status::RescueMode
        | Status::EnteringRescueMode
        | Status::FailedEnteringRescueMode
        | Status::ExitingRescueMode
        | Status::FailedExitingRescueMode
        | Status::Unknown(_) => {
            CommissionStep::Disagree("finish in MAAS what was begun there, or take it back")
        }
    }
}

impl StageExecutor<'_> {
    pub async fn commission(&self) -> CallResult {
        let notes = self.call.checkpoints();
        match self.call.verb() {
            CallVerb::Perform => {
                let machine = self.locate().await?;
                let before = upstream_state(&machine);
                if let Some(why) = adoption_reason(self.stage, self.node.state, before) {
                    return Ok(done(&machine, why));
                }
                let checkpoint =
                    notes.begin(OrderCheckpoint::Commission { before, requested_at: None }).await?;
                self.commission_now(machine, &checkpoint).await
            }
            CallVerb::Follow => match notes.recall().await? {
                None => Ok(ProviderAnswer::NeverStarted),
                Some(checkpoint) => self.commission_now(self.locate().await?, &checkpoint).await,
            },
            CallVerb::GetStatus => match notes.recall().await? {
                None => Ok(ProviderAnswer::NeverStarted),
                Some(checkpoint) => {
                    status_answer(self.observe_commissioning(found(&checkpoint)).await)
                }
            },
            CallVerb::Observe => self.observe_commissioning(None).await,
            CallVerb::Stop => self.stop_commissioning().await,
        }
    }

    async fn observe_commissioning(&self, before: Option<MaasState>) -> CallResult {
        let machine = self.locate().await?;
        Ok(match next_step(&machine, before) {
            CommissionStep::Done => done(&machine, describe_state(&machine)),
            CommissionStep::Commission | CommissionStep::Disagree(_) => {
                ProviderAnswer::Differs(describe_state(&machine))
            }
        })
    }

    async fn commission_now(&self, machine: Machine, checkpoint: &OrderCheckpoint) -> CallResult {
        check_unlocked(&machine)?;
        match next_step(&machine, found(checkpoint)) {
            CommissionStep::Done => Ok(done(&machine, describe_state(&machine))),
            CommissionStep::Disagree(instead) => Err(state_disagrees(&machine, instead)),
            CommissionStep::Commission => {
                let id = &machine.system_id;
                let OrderCheckpoint::Commission { before, .. } = checkpoint else {
                    return Err(checkpoint_mismatch());
                };
                let requested =
                    OrderCheckpoint::Commission { before: *before, requested_at: Some(now()) };
                self.call.checkpoints().compare_and_swap(checkpoint, &requested).await?;
                self.call.journal.write_line(format!("maas: {id} is to be commissioned")).await;
                let Commissioning { skip_bmc_config, scripts, tests } =
                    self.site.spec.commissioning.clone();
                let how = CommissionRequest { skip_bmc_config, scripts, tests };
                let asked = self.call.maas().commission(id, &how).await;
                let machine = self.call.confirm(&machine, asked).await?;
                match next_step(&machine, found(checkpoint)) {
                    CommissionStep::Done => Ok(done(&machine, describe_state(&machine))),
                    CommissionStep::Commission | CommissionStep::Disagree(_) => {
                        Err(Fault::new(FaultCode::ReadBackDiffers, describe_state(&machine)))
                    }
                }
            }
        }
    }

    /// Aborts what this key started. The stop is recorded last, so a crash repeats the abort.
    async fn stop_commissioning(&self) -> CallResult {
        let notes = self.call.checkpoints();
        let Some(checkpoint) = notes.stop().await? else {
            return Ok(ProviderAnswer::Stopped);
        };
        if let (Some(machine), Some(_)) = (self.try_locate().await?, checkpoint.requested_at()) {
            if next_step(&machine, found(&checkpoint)) == CommissionStep::Commission
                && self.call.is_in_flight(&checkpoint)
            {
                return Ok(ProviderAnswer::UnderWay);
            }
            if self.is_being_commissioned(&machine).await? {
                self.call.maas().abort(&machine.system_id, self.call.key().as_str()).await?;
            }
        }
        notes.compare_and_swap(&checkpoint, &OrderCheckpoint::Stopped).await?;
        Ok(ProviderAnswer::Stopped)
    }

    /// True if MAAS commissions it for us. Tests of an installed machine are not ours.
    pub(super) async fn is_being_commissioned(&self, machine: &Machine) -> Result<bool> {
        Ok(matches!(machine.status, Status::Commissioning | Status::Testing)
            && machine.osystem.is_empty()
            && self.call.maas_owner(machine).await? == MaasOwner::Farrier)
    }

    pub async fn wait_for_ready(&self) -> CallResult {
        match self.call.verb() {
            CallVerb::Perform | CallVerb::Follow => {}
            CallVerb::Stop => return Ok(ProviderAnswer::Stopped),
            CallVerb::GetStatus | CallVerb::Observe => {
                return self
                    .wait_status(|machine| matches!(ready_result(machine), Some(Ok(()))))
                    .await;
            }
        }
        let id = self.locate().await?.system_id;
        let ended =
            |machine: &Machine| ready_result(machine).map(|end| end.map(|()| machine.clone()));
        match self.call.wait_until(&id, ended).await {
            Ok(machine) => Ok(done(&machine, describe_state(&machine))),
            Err(fault) if fault.code == FaultCode::CommissioningFailed => {
                self.call.log_events(&id, COMMISSIONING_EVENT).await?;
                Err(self.name_failed_scripts(&id, fault).await?)
            }
            Err(fault) => Err(fault),
        }
    }

    /// Adds the scripts and tests that failed last, and copies the end of their output.
    async fn name_failed_scripts(&self, id: &str, fault: Fault) -> Result<Fault> {
        let mut failed = Vec::new();
        for kind in [ResultKind::Commissioning, ResultKind::Testing] {
            let newest = self.call.maas().results(id, kind).await?.pop();
            let results = newest.map(|set| set.results).unwrap_or_default();
            failed.extend(results.into_iter().filter(ScriptResult::failed));
        }
        for script in &failed {
            let lines: Vec<&str> = script.output.lines().collect();
            for line in &lines[lines.len().saturating_sub(LAST_LINES)..] {
                let line = format!("{}: {}", script.name, masked(line));
                self.call.journal.write_line(line).await;
            }
        }
        if failed.is_empty() {
            return Ok(fault);
        }
        let names: Vec<String> = failed.iter().map(describe_script).collect();
        let message = format!("{}; failed: {}", fault.message, names.join(", "));
        Ok(fault.restated(FaultCode::CommissioningFailed, message))
    }
}

fn describe_script(script: &ScriptResult) -> String {
    match script.exit_status {
        Some(code) => format!("{} ({}, exit status {code})", script.name, script.status_name),
        None => format!("{} ({})", script.name, script.status_name),
    }
}

/// The state before the call, from its checkpoint.
fn found(checkpoint: &OrderCheckpoint) -> Option<MaasState> {
    let OrderCheckpoint::Commission { before, .. } = checkpoint else { return None };
    Some(*before)
}

/// The result of the wait for Ready; `None` while it continues.
fn ready_result(machine: &Machine) -> Option<Result<()>> {
    match machine.status {
        Status::Ready | Status::Allocated | Status::Deploying | Status::Deployed => Some(Ok(())),
        Status::Commissioning | Status::Testing | Status::Releasing | Status::DiskErasing => None,
        Status::FailedCommissioning => {
            Some(Err(Fault::new(FaultCode::CommissioningFailed, describe_state(machine))))
        }
        Status::FailedTesting if !machine.osystem.is_empty() => {
            Some(Err(state_disagrees(machine, TESTS_FAILED)))
        }
        Status::FailedTesting => {
            let message = format!("{}; {TESTS_FAILED}", describe_state(machine));
            Some(Err(Fault::new(FaultCode::CommissioningFailed, message)))
        }
        Status::New => {
            let message = format!(
                "{}: nothing commissions it, or it was aborted; commission it in MAAS, then retry",
                describe_state(machine)
            );
            Some(Err(Fault::new(FaultCode::CommissioningFailed, message)))
        }
        Status::Missing
        | Status::Reserved
        | Status::Retired
        | Status::Broken
        | Status::FailedDeployment
        | Status::FailedReleasing
        | Status::FailedDiskErasing
        | Status::RescueMode
        | Status::EnteringRescueMode
        | Status::FailedEnteringRescueMode
        | Status::ExitingRescueMode
        | Status::FailedExitingRescueMode
        | Status::Unknown(_) => {
            Some(Err(state_disagrees(machine, "it will not be Ready by itself: see to it in MAAS")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn test_machine(status: Status, osystem: &str) -> Machine {
        let reported = json!({"system_id": "a", "status": status.number(), "osystem": osystem});
        serde_json::from_value(reported).unwrap()
    }

    #[test]
    fn every_status_has_a_step() {
        let row = |before: Option<MaasState>| -> String {
            let letter = |status: &Status| match next_step(&test_machine(*status, ""), before) {
                CommissionStep::Done => 'd',
                CommissionStep::Commission => 'c',
                CommissionStep::Disagree(_) => '-',
            };
            Status::ALL.iter().map(letter).collect()
        };
        assert_eq!(row(None), "cdc-d-d--dd----------d-");
        assert_eq!(row(Some(MaasState::New)), "cdd-d-d--dd----------dd");
        assert_eq!(row(Some(MaasState::FailedTesting)), "cdd-d-d--dd----------d-");
        let in_service = test_machine(Status::FailedTesting, "ubuntu");
        assert_eq!(
            next_step(&in_service, Some(MaasState::New)),
            CommissionStep::Disagree(TESTS_FAILED)
        );
        let fault = ready_result(&in_service).unwrap().unwrap_err();
        assert_eq!(fault.code, FaultCode::StateDisagrees);
    }

    #[test]
    fn every_status_ends_the_wait_or_not() {
        let letter = |status: &Status| match ready_result(&test_machine(*status, "")) {
            None => 'w',
            Some(Ok(())) => 'r',
            Some(Err(fault)) if fault.code == FaultCode::CommissioningFailed => 'f',
            Some(Err(_)) => '-',
        };
        let row: String = Status::ALL.iter().map(letter).collect();
        assert_eq!(row, "fwf-r-r--rr-w-w------wf");
    }
}
