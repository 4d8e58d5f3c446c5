//! Runs: what an operator does with one.

mod act;

use crate::Engine;
use act::Act;
use model::id::RunId;
use model::run::Run;
use model::run::act::{Action, Who};
use store::Result;

impl Engine {
    /// Cancel, retry, resume, adopt, mark manual.
    pub async fn act(&self, id: RunId, action: Action, who: Who) -> Result<Run> {
        let act = Act { id, action, who, now: self.now() };
        self.store().retry_write("act_on_run", act, |act, tx| Box::pin(act.run(tx))).await
    }
}
