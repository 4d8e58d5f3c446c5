//! The commands that an explanation offers: only those that would be accepted now.

use crate::Engine;
use crate::admission::StartRequest;
use crate::rack::MaintenanceStart;
use model::effect::Capability;
use model::fault::Repair;
use model::gate::Overrides;
use model::id::{MachineId, PlanId, RunId};
use model::machine::Machine;
use model::plan::{IMAGE_REF, Maintenance, Params, RunType};
use model::rack::RackPowerOn;
use model::rack::maintenance::MaintenanceTrigger;
use model::refusal::{Reason, Refusal};
use model::run::Run;
use model::run::actions::{Action, Requester, RestartMode};
use model::why::Explanation;
use providers::Provider;
use std::sync::Arc;
use store::StoreError;

/// The command that reads the hardware of a machine.
const INSPECT: &str = "farrier machine inspect ";

/// The commands of an explanation that are checked with a dry run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Offer {
    All,
    /// Only those up to the first that is offered as the one command; the others are left out.
    First,
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
    /// one that asks for this explanation. The actions on a run are asked as dry runs, so that
    /// every gate is the real one.
    pub(super) async fn drop_refused(
        &self,
        (id, offer): (&str, Offer),
        run: Option<&Run>,
        why: &mut Explanation,
    ) {
        let own = format!("farrier why {id}");
        let ended = run.filter(|run| run.ended());
        let mut offered: Vec<String> = Vec::new();
        let plain = std::mem::take(why).with_plain_commands();
        for command in plain.next_commands.iter().filter(|command| **command != own) {
            if !self.would_be_accepted(command, &offered, ended).await {
                continue;
            }
            offered.push(command.clone());
            if offer == Offer::First && Explanation::is_next_command(command) {
                break;
            }
        }
        *why = Explanation { next_commands: offered, ..plain };
    }

    /// Asks the gates about a command that starts an operation, or acts on the run that has
    /// `ended`. `before`: the commands that come before it. Any other command is accepted.
    async fn would_be_accepted(
        &self,
        command: &str,
        before: &[String],
        ended: Option<&Run>,
    ) -> bool {
        if let Some(run) = ended {
            let asks_for = |word: &str| run.command(word) == command;
            if let Some(action) = Action::ALL.into_iter().find(|one| asks_for(one.as_str())) {
                return self.would_act(run, action).await;
            }
            if let Some(mode) = RestartMode::ALL.into_iter().find(|one| asks_for(one.as_str())) {
                return self.would_restart(run, mode).await;
            }
        }
        if let Some(on) = RackPowerOn::parse(command) {
            return self.would_power_on(&on).await;
        }
        let Some(start) = ParsedStart::parse(command) else { return true };
        let enters = format!("farrier enter-maintenance {}", start.machine_id);
        match self.would_start(&start).await {
            // It follows the command that leads into maintenance.
            Some(refusal) if refusal.reason == Reason::WrongPhase => before.contains(&enters),
            Some(_) => false,
            None => true,
        }
    }

    async fn would_power_on(&self, on: &RackPowerOn) -> bool {
        let start = MaintenanceStart {
            rack_id: on.rack.clone(),
            request: on.request(),
            trigger: MaintenanceTrigger::OnDemand,
            request_id: String::new(),
            by: asker().by,
            reference: String::new(),
            overrides: Overrides::default(),
            dry_run: true,
        };
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

    async fn would_act(&self, run: &Run, action: Action) -> bool {
        let dry = self.with_dry_run(true);
        let acted = dry.runs().act(run.spec.id.clone(), action, asker()).await;
        !matches!(acted, Err(StoreError::Refused(_)))
    }

    /// The refusal of a start. None: it would be accepted, or the gates could not be asked.
    async fn would_start(&self, start: &ParsedStart) -> Option<Refusal> {
        let ParsedStart { machine_id, run_type, plan_id, params } = start.clone();
        let start = StartRequest {
            machine_id,
            request_id: RunId::new(self.now(), self.random()).to_string(),
            run_type,
            plan_id,
            params,
            overrides: Overrides::default(),
            initiator: asker().by,
        };
        match self.with_dry_run(true).runs().start(start).await {
            Err(StoreError::Refused(refusal)) => Some(refusal),
            Ok(_) | Err(_) => None,
        }
    }

    /// A restart that would be created as failed is not offered either.
    async fn would_restart(&self, run: &Run, mode: RestartMode) -> bool {
        let dry = self.with_dry_run(true);
        let request_id = RunId::new(self.now(), self.random()).to_string();
        match dry.runs().restart(run.spec.id.clone(), mode, request_id, asker()).await {
            Ok(started) => !started.run.ended(),
            Err(StoreError::Refused(_)) => false,
            // The gates could not be asked: the command stays.
            Err(_) => true,
        }
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
