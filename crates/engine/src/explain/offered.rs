//! Which commands are offered: only those that would be accepted now.

use crate::Engine;
use model::id::RunId;
use model::run::Run;
use model::run::actions::{Action, Requester, RestartMode};
use model::why::Explanation;
use store::StoreError;

impl Engine {
    /// Removes the commands that would be refused now, those that would fail unchanged, and the
    /// one that asks for this explanation. The actions on a run are asked as dry runs, so that
    /// every gate is the real one.
    pub(super) async fn drop_refused(&self, id: &str, run: Option<&Run>, why: &mut Explanation) {
        let own = format!("farrier why {id}");
        why.next_commands.retain(|command| *command != own);
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

    async fn would_act(&self, run: &Run, action: Action) -> bool {
        let dry = self.with_dry_run(true);
        let acted = dry.runs().act(run.spec.id.clone(), action, asker()).await;
        !matches!(acted, Err(StoreError::Refused(_)))
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
