//! The disk in the record, from the intent of a write to the observation of its end.

use super::admit::{admit, admit_with_override};
use crate::support::{at, join, netboot, note, power_off, spec, who, wipe};
use model::condition::{ConditionObservation, ConditionType, imaged};
use model::effect::{CallOutcome, CallVerb, DiskContent, Effect, EffectKey, ProviderAnswer};
use model::fault::{Fault, FaultCode};
use model::gate::{Gate, Overrides};
use model::health::{BlockingAlert, HealthSummary};
use model::id::{MachineId, NodeId, RunId, SiteId};
use model::machine::admit::{RunCase, admit_again};
use model::machine::delete::{MachineReferences, admit_deletion};
use model::machine::{DiskReport, DiskWrite, Labels, Machine, MachineSpec, Phase};
use model::node::{MaasState, NodeStage};
use model::plan::{RunStep, RunType};
use model::run::actions::{Action, ActionResult, apply_action};
use model::run::{AfterCommit, CallResult, Policy, Run, RunSpec, apply_to_machine, decide};
use model::why::{RunContext, explain_machine};

const PROVISIONED: ConditionType = ConditionType::Provisioned;

fn machine(phase: Phase) -> Machine {
    let id = MachineId::trusted("m-1");
    let mut machine = Machine::new(id, MachineSpec::default(), Labels::new(), at(0));
    machine.phase = phase;
    machine
}

/// A machine in maintenance whose last write stopped.
pub fn half_written(percent: Option<u8>) -> Machine {
    let key = EffectKey::trusted("op-7/repave-os/1");
    let write = DiskWrite {
        key,
        content: "ubuntu-2204".into(),
        percent,
        outcome_unknown: false,
        before: None,
    };
    Machine { open_disk_write: Some(write), ..machine(Phase::Maintenance) }
}

/// A run and its machine, changed together as the engine commits them.
struct Commits {
    run: Run,
    machine: Machine,
    now: i64,
}

impl Commits {
    /// The machine has an image, and the run has made its first commit.
    fn begin(steps: Vec<RunStep>) -> Self {
        let mut machine = machine(Phase::Maintenance);
        machine.learn(&[imaged("old")], at(0));
        let mut both = Self { run: Run::new(spec(steps)), machine, now: 1 };
        both.commit(None, None);
        both
    }

    fn commit(&mut self, given: Option<CallResult>, percent: Option<u8>) {
        self.commit_report(given, percent.map(DiskReport::Written));
    }

    fn commit_report(&mut self, given: Option<CallResult>, report: Option<DiskReport>) {
        self.now += 600;
        let now = at(self.now);
        let decided = decide(&self.run, 1, given.as_ref(), Policy::default(), now);
        self.run = decided.run;
        apply_to_machine(&mut self.machine, &self.run, &decided.evidence, now);
        self.machine.record_disk_write(&self.run, &decided.evidence, report, now);
        if let AfterCommit::CallProvider(call, _) = decided.then
            && call.verb == CallVerb::Perform
            && call.effect.facts().disk.is_some()
        {
            assert!(!self.machine.is(PROVISIONED), "{} is written", call.key);
            assert!(self.machine.open_disk_write.is_some(), "{}", call.key);
        }
    }

    fn answer(&mut self, answer: Result<ProviderAnswer, Fault>, percent: Option<u8>) {
        let verb = self.run.open_call().expect("a call is open").1;
        self.commit(Some(CallResult::Answered(verb, answer)), percent);
    }

    /// An answer of a provider that has written nothing under the key.
    fn answer_untouched(&mut self, answer: Result<ProviderAnswer, Fault>) {
        let verb = self.run.open_call().expect("a call is open").1;
        let given = CallResult::Answered(verb, answer);
        self.commit_report(Some(given), Some(DiskReport::Untouched));
    }

    fn done(&mut self, evidence: Vec<ConditionObservation>) {
        let outcome = CallOutcome { evidence, ..CallOutcome::default() };
        self.answer(Ok(ProviderAnswer::Done(outcome)), None);
    }

    fn cancel(&mut self) {
        let action = apply_action(&self.run, Action::Cancel, &who(), at(self.now)).unwrap();
        let ActionResult::Recorded(progress, _) = action else { panic!("{action:?}") };
        self.run.progress = progress;
    }

    /// The status and the reason of Provisioned.
    fn provisioned(&self) -> (bool, &str) {
        let known = self.machine.conditions.get(PROVISIONED).unwrap();
        (known.status, known.reason.as_str())
    }
}

#[test]
fn the_intent_clears_it_and_the_new_system_sets_it() {
    let mut both = Commits::begin(vec![netboot(0), wipe(0), note(0)]);
    assert_eq!(both.provisioned(), (true, "Image:old"));
    both.done(Vec::new());
    assert_eq!(both.provisioned(), (false, "Writing:ubuntu-2204:op-1"));
    both.done(vec![imaged("ubuntu-2204")]);
    assert_eq!(both.provisioned(), (true, "Image:ubuntu-2204"));
    assert_eq!(both.machine.open_disk_write, None);
    both.done(Vec::new());
    assert!(both.run.ended());
    assert_eq!(both.provisioned(), (true, "Image:ubuntu-2204"));
}

#[test]
fn an_interrupted_write_keeps_its_percentage() {
    for (abandoned, stopped, reason) in [
        (Some(60), None, "Unfinished:ubuntu-2204:60%:op-1"),
        (Some(60), Some(61), "Unfinished:ubuntu-2204:61%:op-1"),
        (None, Some(0), "Unfinished:ubuntu-2204:0%:op-1"),
        (None, None, "Unfinished:ubuntu-2204:op-1"),
    ] {
        let mut both = Commits::begin(vec![wipe(0)]);
        both.cancel();
        both.commit(Some(CallResult::Abandoned), abandoned);
        assert_eq!(both.provisioned(), (false, "Writing:ubuntu-2204:op-1"));
        both.answer(Ok(ProviderAnswer::Stopped), stopped);
        assert!(both.run.ended());
        assert_eq!(both.provisioned(), (false, reason));
    }
}

#[test]
fn a_failed_write_keeps_its_percentage_and_a_new_attempt_begins_anew() {
    let broken = || Err(Fault::new(FaultCode::EffectFailed, "the disk is broken"));
    let mut both = Commits::begin(vec![wipe(1)]);
    both.answer(broken(), Some(30));
    assert_eq!(both.machine.open_disk_write.as_ref().unwrap().percent, Some(30));
    both.commit(None, None);
    let open = both.machine.open_disk_write.clone().unwrap();
    assert_eq!((open.key.as_str(), open.percent), ("op-1/wipe/2", None));
    both.answer(broken(), Some(70));
    assert!(both.run.ended());
    assert_eq!(both.provisioned(), (false, "Unfinished:ubuntu-2204:70%:op-1"));

    // An operator continues it: a status call only asks, and the record stays open until its end.
    let action = apply_action(&both.run, Action::Resume, &who(), at(9_000)).unwrap();
    let ActionResult::Reopened(progress, _) = action else { panic!("{action:?}") };
    both.run.progress = progress;
    both.commit(None, None);
    both.done(vec![imaged("ubuntu-2204")]);
    assert_eq!(both.provisioned(), (true, "Image:ubuntu-2204"));
}

fn failed() -> Result<ProviderAnswer, Fault> {
    Err(Fault::new(FaultCode::MaasUnreachable, "connection refused"))
}

/// The request was refused or not sent: what was true before is true again, gate included.
#[test]
fn a_write_that_never_began_leaves_what_was_there() {
    for imaged_before in [true, false] {
        let mut both = Commits::begin(vec![note(0), wipe(1)]);
        if !imaged_before {
            both.machine.conditions.restore(PROVISIONED, None);
        }
        let before = both.machine.conditions.get(PROVISIONED).cloned();
        both.done(Vec::new());
        assert_eq!(both.provisioned(), (false, "Writing:ubuntu-2204:op-1"));
        // Each attempt is proven by itself.
        both.answer_untouched(failed());
        assert_eq!(both.machine.conditions.get(PROVISIONED).cloned(), before);
        both.commit(None, None);
        assert_eq!(both.provisioned(), (false, "Writing:ubuntu-2204:op-1"));
        both.answer_untouched(failed());
        assert!(both.run.ended());
        assert_eq!(both.machine.conditions.get(PROVISIONED).cloned(), before);
        assert_eq!(both.machine.open_disk_write, None);
    }
    let mut stopped = Commits::begin(vec![wipe(0)]);
    stopped.cancel();
    stopped.commit(Some(CallResult::Abandoned), None);
    stopped.answer_untouched(Ok(ProviderAnswer::Stopped));
    assert!(stopped.run.ended());
    assert_eq!(stopped.provisioned(), (true, "Image:old"));
}

/// A write of which it is not proven that it never began stays open.
#[test]
fn an_unknown_outcome_stays_gated() {
    // The answer was lost, whatever the call reported.
    let mut lost = Commits::begin(vec![wipe(0)]);
    lost.answer_untouched(Err(Fault::new(FaultCode::AnswerLost, "timeout")));
    assert!(lost.machine.open_disk_write.is_some());
    lost.answer(Ok(ProviderAnswer::Unknown("no trace".into())), None);
    assert!(lost.run.ended());
    assert_eq!(lost.provisioned(), (false, "OutcomeUnknown:ubuntu-2204:op-1"));
    // A percentage that was seen does not make it a known outcome.
    let mut seen = Commits::begin(vec![wipe(0)]);
    seen.answer(Err(Fault::new(FaultCode::AnswerLost, "timeout")), Some(64));
    seen.answer(Ok(ProviderAnswer::Unknown("no trace".into())), None);
    assert_eq!(seen.provisioned(), (false, "OutcomeUnknown:ubuntu-2204:64%:op-1"));
    let told = explain_machine(&seen.machine, Some(&seen.run), RunContext::default(), at(9999));
    let disk = "its disk may be half written: whether op-1 finished writing ubuntu-2204 is not \
                known; the last progress seen was 64 %";
    assert!(told.headline.contains(disk), "{}", told.headline);
    let refusal = admit(&seen.machine, RunType::ExitMaintenance, &[]).unwrap_err();
    let refused = "whether op-1 finished writing ubuntu-2204 to the disk of m-1 is not known; \
                   the last progress seen was 64 %";
    assert!(refusal.message.contains(refused), "{}", refusal.message);
    // A later report does not take back that the device has begun.
    let mut begun = Commits::begin(vec![wipe(0)]);
    begun.cancel();
    begun.commit(Some(CallResult::Abandoned), Some(60));
    begun.answer_untouched(Ok(ProviderAnswer::Stopped));
    assert_eq!(begun.provisioned(), (false, "Unfinished:ubuntu-2204:60%:op-1"));
    // A second attempt that never began does not excuse the first.
    let mut second = Commits::begin(vec![wipe(1)]);
    second.answer(Err(Fault::new(FaultCode::EffectFailed, "broken")), Some(30));
    second.commit(None, None);
    second.answer_untouched(failed());
    assert!(second.run.ended());
    let open = second.machine.open_disk_write.as_ref().unwrap();
    assert_eq!((open.key.as_str(), open.percent), ("op-1/wipe/1", Some(30)));
    // Nor does it excuse the write of another run.
    let mut other = Commits::begin(vec![note(0), wipe(0)]);
    other.machine.open_disk_write = half_written(Some(60)).open_disk_write;
    other.done(Vec::new());
    other.answer_untouched(failed());
    assert_eq!(other.machine.open_disk_write, half_written(Some(60)).open_disk_write);
}

/// A run that was started by a version without this record opens it with its next call.
#[test]
fn a_write_in_progress_is_recorded_after_an_upgrade() {
    let mut both = Commits::begin(vec![wipe(0)]);
    both.machine.open_disk_write = None;
    both.machine.learn(&[imaged("old")], at(700));
    both.commit(None, None);
    assert_eq!(both.run.open_call().unwrap().1, CallVerb::GetStatus);
    assert_eq!(both.provisioned(), (false, "Writing:ubuntu-2204:op-1"));
}

#[test]
fn only_its_own_run_and_an_observation_change_an_open_write() {
    let mut both = Commits::begin(vec![power_off(0), note(0)]);
    both.machine = half_written(Some(60));
    both.done(Vec::new());
    both.done(Vec::new());
    assert!(both.run.ended());
    assert_eq!(both.machine.open_disk_write, half_written(Some(60)).open_disk_write);
    both.machine.record_disk_write(&both.run, &[imaged("x")], None, at(1));
    assert_eq!(both.machine.open_disk_write, None);
    // A look at what is there writes nothing.
    let mut run = Run::new(spec(vec![wipe(0)]));
    run.progress.steps[0].next_verb = CallVerb::Observe;
    let run = decide(&run, 1, None, Policy::default(), at(1)).run;
    assert_eq!(run.open_call().unwrap().1, CallVerb::Observe);
    assert_eq!(DiskWrite::of(&run), None);
}

fn stage(stage: NodeStage, undo: bool) -> Effect {
    let (node, site) = (NodeId::trusted("node-1"), Some(SiteId::trusted("site-a")));
    Effect::Stage { stage, node, site, provider: "maas".into(), undo }
}

/// MAAS takes the order at one stage, and the next one sees its end.
#[test]
fn an_installation_by_maas_ends_when_maas_has_it_as_deployed() {
    let step = |of| RunStep {
        name: NodeStage::as_str(of).into(),
        timeout_seconds: 60,
        max_retries: 0,
        effect: stage(of, false),
    };
    let stages = [NodeStage::ReleaseMaasNode, NodeStage::DeployViaMaas, NodeStage::WaitForDeployed];
    let mut both = Commits::begin(stages.map(step).to_vec());
    assert_eq!(both.provisioned(), (false, "Writing:the release:op-1"));
    both.done(NodeStage::ReleaseMaasNode.released(false, MaasState::Ready).into_iter().collect());
    assert_eq!(both.provisioned(), (false, "Writing:the image of site-a:op-1"));
    both.done(Vec::new());
    assert!(both.machine.open_disk_write.is_some(), "MAAS is still at work");
    both.done(vec![imaged("ubuntu/jammy")]);
    assert!(both.run.ended());
    assert_eq!(both.provisioned(), (true, "Image:ubuntu/jammy"));
    assert_eq!(both.machine.open_disk_write, None);
}

#[test]
fn the_table_of_effects_says_what_writes_the_disk() {
    let site = SiteId::trusted("site-a");
    for one in NodeStage::ALL {
        let expected = match one {
            NodeStage::DeployViaMaas | NodeStage::RecoverForDatasourceRetry => {
                Some(DiskContent::SiteImage(Some(&site)))
            }
            NodeStage::ReleaseMaasNode => Some(DiskContent::Nothing),
            _ => None,
        };
        let effect = stage(*one, false);
        assert_eq!(effect.facts().disk, expected, "{one}");
        assert!(expected.is_none() || effect.harmful_to_repeat(), "{one}");
        assert_eq!(stage(*one, true).facts().disk, None, "undo of {one}");
    }
    for (step, image) in [
        (wipe(0), Some("ubuntu-2204")),
        (netboot(0), None),
        (note(0), None),
        (join(0), None),
        (power_off(0), None),
    ] {
        assert_eq!(step.effect.facts().disk, image.map(DiskContent::Image), "{}", step.name);
    }
}

#[test]
fn a_release_is_over_when_maas_has_the_machine_back() {
    for state in MaasState::ALL {
        let back = matches!(state, MaasState::Ready | MaasState::New | MaasState::Absent);
        for one in NodeStage::ALL {
            let releases = *one == NodeStage::ReleaseMaasNode;
            assert_eq!(one.released(false, state).is_some(), back && releases, "{one} in {state}");
        }
        let undone = NodeStage::DeployViaMaas.released(true, state);
        assert_eq!(undone.is_some(), back, "{state}");
        assert!(undone.is_none_or(|one| !one.status));
    }
}

/// Rows: the request. Columns: never imaged here, imaged, half written.
#[test]
fn a_half_written_disk_does_not_leave_maintenance() {
    let mut provisioned = machine(Phase::Maintenance);
    provisioned.learn(&[imaged("ubuntu-2204")], at(0));
    let machines = [machine(Phase::Maintenance), provisioned, half_written(Some(60))];
    for run_type in RunType::PLANNED.into_iter().filter(|one| *one != RunType::ExitRma) {
        let leaves = run_type == RunType::ExitMaintenance;
        for (machine, open) in machines.iter().zip([true, true, !leaves]) {
            assert_eq!(admit(machine, run_type, &[]).is_ok(), open, "{run_type:?} {machine:?}");
        }
    }
    let leave = |machine: &Machine, overrides: &Overrides| {
        admit_with_override(machine, RunType::ExitMaintenance, &[], overrides)
    };
    for (percent, how_far) in
        [(Some(60), "it stopped at 60 %"), (None, "how far it came is not known")]
    {
        let refusal = leave(&half_written(percent), &Overrides::default()).unwrap_err();
        assert_eq!(refusal.reason.as_str(), "UNFINISHED_DISK");
        assert_eq!(
            refusal.message,
            format!(
                "EXIT_MAINTENANCE is refused: op-7 did not finish writing ubuntu-2204 to the disk of m-1; {how_far} (gate unfinished-disk)"
            )
        );
        assert_eq!(
            refusal.next_command.as_deref(),
            Some(
                "farrier operation rerun op-7   # or repeat it with --override unfinished-disk --reason …"
            )
        );
    }
    // A system that was removed: the machine is empty, and may still be deleted.
    let mut removed = machine(Phase::Maintenance);
    removed.learn(&[ConditionObservation::new(PROVISIONED, false, "Released")], at(1));
    let refusal = leave(&removed, &Overrides::default()).unwrap_err();
    assert_eq!(refusal.reason.as_str(), "UNFINISHED_DISK");
    assert_eq!(
        refusal.message,
        "EXIT_MAINTENANCE is refused: m-1 has no system; it was removed, and Provisioned is false: Released (gate unfinished-disk)"
    );
    assert_eq!(
        refusal.next_command.as_deref(),
        Some("farrier reimage m-1   # or repeat it with --override unfinished-disk --reason …")
    );
    let rig = Overrides::of(&[Gate::UnfinishedDisk], "a test rig");
    assert_eq!(leave(&removed, &rig), Ok(()));
    let deletion = admit_deletion(&removed, MachineReferences::default(), &Overrides::default());
    assert_eq!(deletion, Ok(()));
    for run_type in RunType::PLANNED.into_iter().filter(|one| *one != RunType::ExitRma) {
        let open = run_type != RunType::ExitMaintenance;
        assert_eq!(admit(&removed, run_type, &[]).is_ok(), open, "{run_type:?}");
    }
    // Both gates refuse: the command names both.
    let mut ill = half_written(None);
    let bar = BlockingAlert { source: "dcim".into(), alert: "leak".into(), message: "wet".into() };
    ill.health = HealthSummary { state_changes: Some(bar), ..HealthSummary::default() };
    let refusal = leave(&ill, &Overrides::default()).unwrap_err();
    let next = refusal.next_command.unwrap();
    assert!(next.ends_with("--override health,unfinished-disk --reason …"), "{next}");
    assert!(refusal.message.contains("leak: wet (gate health)"), "{}", refusal.message);
    let both = Overrides::of(&[Gate::Health, Gate::UnfinishedDisk], "a test rig");
    assert_eq!(leave(&ill, &both), Ok(()));
    let run_type = RunType::ExitMaintenance;
    let case = RunCase { machine: &ill, node: None, run_type, steps: &[] };
    let refusing = case.refusals(&Overrides::default());
    assert_eq!(model::gate::gates_of(&refusing), [Gate::UnfinishedDisk, Gate::Health]);
}

/// A run that is continued takes no override: the command starts another one.
#[test]
fn a_continued_exit_is_checked_again() {
    let run = Run::new(RunSpec { run_type: RunType::ExitMaintenance, ..spec(vec![note(0)]) });
    let refusal = admit_again(&half_written(None), None, &run).unwrap_err();
    assert_eq!(
        refusal.next_command.as_deref(),
        Some(
            "farrier operation rerun op-7   # or: farrier operation start m-1 --type EXIT_MAINTENANCE --plan plan-x --override unfinished-disk --reason …"
        )
    );
}

#[test]
fn why_says_what_is_on_the_disk() {
    let explain = |machine: &Machine| explain_machine(machine, None, RunContext::default(), at(9));
    for (phase, first) in [
        (Phase::Maintenance, "farrier operation rerun op-7"),
        (Phase::Ready, "farrier enter-maintenance m-1"),
        (Phase::FactoryReady, "farrier enter-maintenance m-1"),
    ] {
        let mut written = Machine { phase, ..half_written(Some(60)) };
        written.learn(
            &[ConditionObservation::new(ConditionType::OperationCanceled, true, "op-7")],
            at(1),
        );
        let reported = explain(&written);
        assert_eq!(
            reported.headline,
            format!(
                "m-1 is in phase {}, and its disk is half written: op-7 did not finish writing ubuntu-2204; it stopped at 60 %",
                phase.as_str()
            )
        );
        assert_eq!(reported.next_commands[0], first);
        assert!(!reported.next_commands.iter().any(|one| one.contains("exit-maintenance")));
    }
    // It is not known whether it has begun.
    for percent in [None, Some(0)] {
        let reported = explain(&half_written(percent));
        assert!(reported.headline.contains("its disk may be half written"), "{reported:?}");
    }
    let mut failed = half_written(None);
    failed.learn(
        &[ConditionObservation::new(ConditionType::NeedsIntervention, true, "effect-failed:op-7")],
        at(1),
    );
    let reported = explain(&failed);
    let cause = "m-1 needs attention: its disk may be half written: op-7 did not finish writing";
    assert!(reported.headline.starts_with(cause), "{reported:?}");

    for phase in [Phase::Maintenance, Phase::Ready] {
        let note = "no image was installed on it here: it has the system that it came with";
        let mut machine = machine(phase);
        assert_eq!(explain(&machine).notes, [note]);
        machine.learn(&[imaged("ubuntu-2204")], at(1));
        assert!(explain(&machine).notes.is_empty());
    }
    let mut busy = half_written(None);
    busy.active_run = Some(RunId::trusted("op-8"));
    assert!(explain(&busy).notes.is_empty());
}

#[test]
fn a_record_of_an_older_version_is_read() {
    let written = half_written(Some(60));
    let mut stored = serde_json::to_value(&written).unwrap();
    assert_eq!(serde_json::from_value::<Machine>(stored.clone()).unwrap(), written);
    stored.as_object_mut().unwrap().remove("open_disk_write");
    let old: Machine = serde_json::from_value(stored).unwrap();
    assert_eq!(old.open_disk_write, None);
}
