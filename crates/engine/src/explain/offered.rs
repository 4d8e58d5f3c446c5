//! Which commands are offered: only those that would be accepted now.

use crate::Engine;
use crate::admission::StartRequest;
use model::effect::Capability;
use model::fault::Repair;
use model::gate::Overrides;
use model::id::{MachineId, RunId};
use model::machine::Machine;
use model::plan::{Params, RunType};
use model::run::Run;
use model::run::actions::{Action, Requester, RestartMode};
use model::why::Explanation;
use providers::Provider;
use std::sync::Arc;
use store::StoreError;

/// The command that reads the hardware of a machine.
const INSPECT: &str = "farrier machine inspect ";
/// The commands that start an operation without further parameters on a machine at rest.
const PHASE_CHANGES: [(&str, RunType); 3] = [
    ("farrier enter-maintenance", RunType::EnterMaintenance),
    ("farrier exit-maintenance", RunType::ExitMaintenance),
    ("farrier reboot", RunType::Reboot),
];

impl Engine {
    /// Removes the commands that would be refused now, those that would fail unchanged, and the
    /// one that asks for this explanation. The actions on a run are asked as dry runs, so that
    /// every gate is the real one.
    pub(super) async fn drop_refused(&self, id: &str, run: Option<&Run>, why: &mut Explanation) {
        let own = format!("farrier why {id}");
        why.next_commands.retain(|command| *command != own);
        if let Ok(machine) = MachineId::parse(id) {
            for (command, run_type) in PHASE_CHANGES {
                let command = format!("{command} {id}");
                if why.next_commands.contains(&command)
                    && !self.would_start(&machine, run_type).await
                {
                    why.next_commands.retain(|one| *one != command);
                }
            }
        }
        let Some(run) = run.filter(|run| run.ended()) else { return };
        for action in Action::ALL {
            let command = run.command(action.as_str());
            if why.next_commands.contains(&command) && !self.would_act(run, action).await {
                why.next_commands.retain(|one| *one != command);
            }
        }
        for mode in RestartMode::ALL {
            let command = run.command(mode.as_str());
            if why.next_commands.contains(&command) && !self.would_restart(run, mode).await {
                why.next_commands.retain(|one| *one != command);
            }
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

    async fn would_start(&self, machine_id: &MachineId, run_type: RunType) -> bool {
        let start = StartRequest {
            machine_id: machine_id.clone(),
            request_id: RunId::new(self.now(), self.random()).to_string(),
            run_type,
            plan_id: None,
            params: Params::new(),
            overrides: Overrides::default(),
            initiator: asker().by,
        };
        let started = self.with_dry_run(true).runs().start(start).await;
        !matches!(started, Err(StoreError::Refused(_)))
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
