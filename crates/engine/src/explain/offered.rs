//! The commands that an explanation offers: only those that would be accepted now.

use crate::Engine;
use crate::admission::StartRequest;
use crate::rack::MaintenanceStart;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use model::blast_radius::AffectedMachine;
use model::effect::Capability;
use model::fault::Repair;
use model::gate::{Gate, Overrides};
use model::id::{MachineId, PlanId, RackId, RunId};
use model::machine::Machine;
use model::plan::{IMAGE_REF, Maintenance, Params, RunType};
use model::rack::RackPowerOn;
use model::rack::maintenance::{MaintenanceTrigger, RackMaintenanceRequest, request_from_params};
use model::refusal::{Reason, Refusal};
use model::run::Run;
use model::run::actions::{Action, Requester, RestartMode};
use model::why::Explanation;
use providers::Provider;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use store::StoreError;
use tokio::sync::OnceCell;

/// The command that reads the hardware of a machine.
const INSPECT: &str = "farrier machine inspect ";

/// Which commands of an explanation are asked about, and what was asked for this answer so far.
#[derive(Clone, Copy)]
pub(super) struct Offer<'a> {
    /// Only the one command that is shown is asked about; the others are left out.
    only_shown: bool,
    trials: &'a Trials,
}

impl<'a> Offer<'a> {
    pub const fn all(trials: &'a Trials) -> Self {
        Self { only_shown: false, trials }
    }

    pub const fn shown(trials: &'a Trials) -> Self {
        Self { only_shown: true, trials }
    }

    /// The commands in the order in which they are tried. Of those that may be the one to type, the
    /// first that is accepted is shown; any other only if there is none.
    fn order(self, commands: Vec<String>) -> VecDeque<String> {
        let (next, others): (Vec<String>, Vec<String>) = commands
            .into_iter()
            .partition(|command| !self.only_shown || Explanation::is_next_command(command));
        next.into_iter().chain(others).collect()
    }
}

/// The commands that were tried for one answer. Several objects may offer the same command; it is
/// tried once.
#[derive(Default)]
pub(super) struct Trials(Mutex<HashMap<String, Arc<OnceCell<Trial>>>>);

impl Trials {
    async fn once(&self, command: &str, trial: impl Future<Output = Trial>) -> Trial {
        let cell = {
            let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(known.entry(command.to_string()).or_default())
        };
        cell.get_or_init(|| trial).await.clone()
    }
}

/// The answer of the gates to a command.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Trial {
    Accepted,
    /// Refused until this machine is in maintenance.
    NeedsMaintenance(MachineId),
    /// Refused, or it would fail unchanged.
    Refused,
}

/// A command about which the gates can be asked.
enum Question<'a> {
    Act(&'a Run, Action),
    Restart(&'a Run, RestartMode),
    Maintain(RackId, RackMaintenanceRequest),
    Start(ParsedStart),
}

impl<'a> Question<'a> {
    /// `ended`: the runs that the command may act on. None: the command asks no gate.
    fn of(command: &str, ended: &[&'a Run]) -> Option<Self> {
        for run in ended {
            if let Some(action) = asked_action(run, command) {
                return Some(Self::Act(run, action));
            }
            if let Some(mode) = asked_restart(run, command) {
                return Some(Self::Restart(run, mode));
            }
        }
        if let Some((rack, request)) = parse_maintenance(command) {
            return Some(Self::Maintain(rack, request));
        }
        ParsedStart::parse(command).map(Self::Start)
    }
}

/// A command of an explanation that starts an operation on a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ParsedStart {
    machine_id: MachineId,
    run_type: RunType,
    plan_id: Option<PlanId>,
    params: Params,
}

impl ParsedStart {
    /// None: the command starts none, or has a part that only a person knows.
    fn parse(command: &str) -> Option<Self> {
        let words: Vec<&str> = command.split(' ').collect();
        let plain = |id: &str, run_type| {
            let machine_id = MachineId::parse(id).ok()?;
            Some(Self { machine_id, run_type, plan_id: None, params: Params::new() })
        };
        match words.as_slice() {
            ["farrier", "enter-maintenance", id] => plain(id, RunType::EnterMaintenance),
            ["farrier", "exit-maintenance", id] => plain(id, RunType::ExitMaintenance),
            ["farrier", "reboot", id] => plain(id, RunType::Reboot),
            ["farrier", "machine", "power", id, "on"] => plain(id, RunType::Power),
            ["farrier", "reimage", id] => plain(id, RunType::Reimage),
            ["farrier", "reimage", id, "--image", image] => {
                let start = plain(id, RunType::Reimage)?;
                let params = Params::from([(IMAGE_REF.to_string(), (*image).to_string())]);
                Some(Self { params, ..start })
            }
            ["farrier", "enter-maintenance", id, "--drain", ..] => {
                let start = plain(id, RunType::EnterMaintenance)?;
                Some(Self { plan_id: Some(Maintenance::EnterDraining.plan_id()), ..start })
            }
            ["farrier", "operation", "start", id, "--type", kind] => {
                plain(id, RunType::parse(kind)?)
            }
            ["farrier", "operation", "start", id, "--type", kind, "--plan", plan, more @ ..] => {
                let start = plain(id, RunType::parse(kind)?)?;
                let params = parse_params(more)?;
                Some(Self { plan_id: Some(PlanId::trusted(*plan)), params, ..start })
            }
            _ => None,
        }
    }
}

/// The parameters of `--param NAME=VALUE` words. None: there are other words, or a quoted value.
fn parse_params(words: &[&str]) -> Option<Params> {
    let pairs = words.chunks(2).map(|pair| match pair {
        ["--param", param] if !param.contains('\'') => {
            param.split_once('=').map(|(name, value)| (name.to_string(), value.to_string()))
        }
        _ => None,
    });
    pairs.collect()
}

impl Engine {
    /// Removes the commands that would be refused now, those that would fail unchanged, and the
    /// one that asks for this explanation. The actions on `runs` are asked as dry runs, so that
    /// every gate is the real one.
    pub(super) async fn drop_refused<const N: usize>(
        &self,
        (id, offer): (&str, Offer<'_>),
        runs: [Option<&Run>; N],
        why: &mut Explanation,
    ) {
        let own = format!("farrier why {id}");
        let ended: Vec<&Run> = runs.into_iter().flatten().filter(|run| run.ended()).collect();
        let mut offered: Vec<String> = Vec::new();
        let mut plain = std::mem::take(why).with_plain_commands();
        let mut asked = offer.order(std::mem::take(&mut plain.next_commands));
        asked.retain(|command| *command != own);
        let mut past_gate = false;
        while let Some(command) = asked.pop_front() {
            if Box::pin(self.is_accepted(&command, offer, &ended, &offered)).await {
                offered.push(command);
                if offer.only_shown {
                    break;
                }
                continue;
            }
            // Where nothing else repairs a rack, the ways past its machines in service are asked
            // about in the place of the command that the gate refuses.
            if past_gate || offered.iter().any(|one| Question::of(one, &ended).is_some()) {
                continue;
            }
            let Some((start, again)) = requested_maintenance(&ended, &command) else { continue };
            if let Some(needed) = Box::pin(self.find_needed_machines(start)).await {
                let commands = plain.add_needed_machines(&needed, &again);
                commands.into_iter().rev().for_each(|command| asked.push_front(command));
                past_gate = true;
            }
        }
        *why = Explanation { next_commands: offered, ..plain };
    }

    /// True if the gates accept the command, after those that were `offered` before it. A command
    /// that asks no gate is accepted.
    async fn is_accepted(
        &self,
        command: &str,
        offer: Offer<'_>,
        ended: &[&Run],
        offered: &[String],
    ) -> bool {
        let Some(question) = Question::of(command, ended) else { return true };
        match offer.trials.once(command, self.ask(question)).await {
            Trial::Accepted => true,
            Trial::NeedsMaintenance(machine) => {
                offered.contains(&format!("farrier enter-maintenance {machine}"))
            }
            Trial::Refused => false,
        }
    }

    /// The machines in service, if they alone keep a maintenance of a rack from being accepted.
    async fn find_needed_machines(&self, start: MaintenanceStart) -> Option<Vec<AffectedMachine>> {
        let preview = self.racks().maintain(start).await.ok()?.preview?;
        let of_service = |refusal: &Refusal| refusal.gate == Some(Gate::InService);
        let alone = !preview.refusals.is_empty() && preview.refusals.iter().all(of_service);
        let affected = preview.planned.affected.into_iter().filter(AffectedMachine::is_needed);
        alone.then(|| affected.collect())
    }

    /// Each trial is a request of its own, and deep: on the heap, it does not add to the stack of
    /// the explanation around it.
    fn ask<'a>(&'a self, question: Question<'a>) -> BoxFuture<'a, Trial> {
        let accepted = |accepted| if accepted { Trial::Accepted } else { Trial::Refused };
        match question {
            Question::Act(run, action) => Box::pin(self.would_act(run, action).map(accepted)),
            Question::Restart(run, mode) => Box::pin(self.try_restart(run, mode)),
            Question::Maintain(rack, request) => {
                let start = rack_dry_run(rack, request);
                Box::pin(self.would_maintain(start).map(accepted))
            }
            Question::Start(start) => Box::pin(self.try_start(start)),
        }
    }

    async fn would_maintain(&self, start: MaintenanceStart) -> bool {
        match self.racks().maintain(start).await {
            Ok(answer) => answer.preview.is_none_or(|preview| preview.refusals.is_empty()),
            Err(error) => !matches!(error, StoreError::Refused(_)),
        }
    }

    /// Removes the commands that this server or the machine has not the means for.
    pub(super) fn drop_incapable(&self, machine: Option<&Machine>, why: &mut Explanation) {
        let providers = self.providers();
        let finds_bmcs = |one: &Arc<dyn Provider>| one.bmc_discovery().is_some();
        let means = Means {
            tests_bmcs: providers
                .names()
                .into_iter()
                .filter_map(|name| providers.get(name))
                .any(finds_bmcs),
            netboots: self.settings().serves_netboot,
            inspects: machine.is_none_or(|machine| self.can_inspect(machine)),
        };
        why.next_commands.retain(|command| means.suffice_for(command));
    }

    /// A provider that finds BMCs reads the hardware through them.
    fn can_inspect(&self, machine: &Machine) -> bool {
        let provider = self.providers().get(&machine.spec.provider);
        provider.is_some_and(|one| {
            let needs_bmc = one.bmc_discovery().is_some();
            one.capabilities().contains(&Capability::Inspect)
                && !(needs_bmc && machine.spec.bmc_endpoint.is_empty())
        })
    }

    /// An adoption that would fail at once, because the goal of the step does not hold, is not
    /// offered either.
    async fn would_act(&self, run: &Run, action: Action) -> bool {
        let dry = self.with_dry_run(true);
        match dry.runs().act(run.spec.id.clone(), action, asker()).await {
            Ok(acted) if action == Action::Adopt => {
                // The call of a provider is deep: on the heap, it does not add to the stack of the
                // explanation around it.
                let preview = Box::pin(dry.runs().preview(&acted)).await;
                !preview.is_ok_and(|preview| preview.would_fail.is_some())
            }
            Err(StoreError::Refused(_)) => false,
            // The gates could not be asked: the command stays.
            Ok(_) | Err(_) => true,
        }
    }

    async fn try_start(&self, start: ParsedStart) -> Trial {
        let ParsedStart { machine_id, run_type, plan_id, params } = start;
        let start = StartRequest {
            machine_id: machine_id.clone(),
            request_id: RunId::new(self.now(), self.random()).to_string(),
            run_type,
            plan_id,
            params,
            overrides: Overrides::default(),
            initiator: asker().by,
        };
        match self.with_dry_run(true).runs().start(start).await {
            Err(StoreError::Refused(refusal)) => refused(&refusal, Some(machine_id)),
            // The gates could not be asked: the command stays.
            Ok(_) | Err(_) => Trial::Accepted,
        }
    }

    /// A restart that would be created as failed is not offered either.
    async fn try_restart(&self, run: &Run, mode: RestartMode) -> Trial {
        let dry = self.with_dry_run(true);
        let request_id = RunId::new(self.now(), self.random()).to_string();
        match dry.runs().restart(run.spec.id.clone(), mode, request_id, asker()).await {
            Ok(started) if started.run.ended() => Trial::Refused,
            Err(StoreError::Refused(refusal)) => refused(&refusal, run.spec.target.machine()),
            // The gates could not be asked: the command stays.
            Ok(_) | Err(_) => Trial::Accepted,
        }
    }
}

fn refused(refusal: &Refusal, machine: Option<MachineId>) -> Trial {
    let needs_entry = matches!(refusal.reason, Reason::WrongPhase | Reason::MachinesInService);
    machine.filter(|_| needs_entry).map_or(Trial::Refused, Trial::NeedsMaintenance)
}

fn asked_action(run: &Run, command: &str) -> Option<Action> {
    Action::ALL.into_iter().find(|one| run.command(one.as_str()) == command)
}

fn asked_restart(run: &Run, command: &str) -> Option<RestartMode> {
    RestartMode::ALL.into_iter().find(|one| run.command(one.as_str()) == command)
}

/// True if the command executes steps of the run again.
fn is_repetition(run: &Run, command: &str) -> bool {
    let acts = asked_action(run, command);
    matches!(acts, Some(Action::RetryStep | Action::Resume))
        || asked_restart(run, command).is_some()
}

/// The maintenance of a rack that a command requests: only its power sequence, or all of it.
fn parse_maintenance(command: &str) -> Option<(RackId, RackMaintenanceRequest)> {
    if let Some(on) = RackPowerOn::parse(command) {
        return Some((on.rack.clone(), on.request()));
    }
    let rack = command.strip_prefix(Repair::DefaultFirmware.words())?.strip_prefix(' ')?;
    Some((RackId::parse(rack).ok()?, RackMaintenanceRequest::default()))
}

/// The maintenance of a rack that a command requests or repeats, and the command that takes an
/// override for it.
fn requested_maintenance(ended: &[&Run], command: &str) -> Option<(MaintenanceStart, String)> {
    if let Some((rack, request)) = parse_maintenance(command) {
        return Some((rack_dry_run(rack, request), command.to_string()));
    }
    let run = ended.iter().find(|run| is_repetition(run, command))?;
    let start = rack_dry_run(run.spec.target.rack()?, request_from_params(&run.spec.params));
    Some((start, run.command(RestartMode::Rerun.as_str())))
}

fn rack_dry_run(rack_id: RackId, request: RackMaintenanceRequest) -> MaintenanceStart {
    MaintenanceStart {
        rack_id,
        request,
        trigger: MaintenanceTrigger::OnDemand,
        request_id: String::new(),
        by: asker().by,
        reference: String::new(),
        overrides: Overrides::default(),
        dry_run: true,
    }
}

fn asker() -> Requester {
    Requester { by: "why".into(), reason: String::new() }
}

/// The means that some commands need: services of this server, and abilities of a provider.
#[derive(Debug, Clone, Copy)]
struct Means {
    /// A provider of this server tests BMCs.
    tests_bmcs: bool,
    /// This server has a netboot service.
    netboots: bool,
    /// The provider of the machine reads its hardware and its event log.
    inspects: bool,
}

impl Means {
    fn suffice_for(self, command: &str) -> bool {
        let is = |repair: Repair| command.starts_with(repair.words());
        if is(Repair::TestBmc) || is(Repair::UnlockBmc) {
            return self.tests_bmcs;
        }
        if is(Repair::NetbootConfig) {
            return self.netboots;
        }
        let reads = is(Repair::ReadConsole) || command.starts_with(INSPECT);
        !reads || self.inspects
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::future::join_all;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// Several objects offer the same command at once: it is tried once, and all get the answer.
    #[tokio::test]
    async fn a_command_is_tried_once_for_an_answer() {
        let (trials, tried) = (Trials::default(), AtomicUsize::new(0));
        let answers = join_all(["a", "b", "a", "a"].map(|command| {
            let tried = &tried;
            trials.once(command, async move {
                tried.fetch_add(1, Ordering::Relaxed);
                tokio::task::yield_now().await;
                if command == "a" { Trial::Refused } else { Trial::Accepted }
            })
        }));
        let (no, yes) = (Trial::Refused, Trial::Accepted);
        assert_eq!(answers.await, [no.clone(), yes, no.clone(), no]);
        assert_eq!(tried.into_inner(), 2);
    }

    /// For a list, what is never shown is tried only if nothing else is left.
    #[test]
    fn what_is_shown_is_tried_first() {
        let commands = ["farrier logs op-1", "farrier cancel op-1", "farrier why op-1"];
        let [logs, cancel, why] = commands;
        let commands = || commands.map(String::from).to_vec();
        let trials = Trials::default();
        assert_eq!(Offer::all(&trials).order(commands()), [logs, cancel, why]);
        assert_eq!(Offer::shown(&trials).order(commands()), [why, logs, cancel]);
    }

    /// Rows: a command, and which one of the means it needs.
    #[test]
    fn a_command_is_offered_where_its_means_are_there() {
        for (command, needs) in [
            ("farrier bmc test https://10.1.0.7", Some(0)),
            ("farrier bmc unlock https://10.1.0.7", Some(0)),
            ("farrier netboot config", Some(1)),
            ("farrier machine inspect m-1", Some(2)),
            ("farrier machine console-log m-1", Some(2)),
            ("farrier machine power m-1 on", None),
            ("farrier operation retry-step op-1", None),
        ] {
            for missing in 0..3 {
                let has = |one: usize| one != missing;
                let means = Means { tests_bmcs: has(0), netboots: has(1), inspects: has(2) };
                assert_eq!(means.suffice_for(command), needs != Some(missing), "{command}");
            }
        }
    }
}
