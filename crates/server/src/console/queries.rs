//! Two reads that only the console needs: the end of the events, and the end of a log. A page
//! records the first, so that its stream continues exactly where the page was rendered.

use engine::Engine;
use model::id::RunId;
use store::{Cursor, Result, Tx, Work};

pub(super) async fn read_horizon(engine: &Engine) -> Result<Cursor> {
    engine.store().read(Horizon).await
}

pub(super) async fn read_log_end(engine: &Engine, id: &RunId) -> Result<i64> {
    engine.store().read(LogEnd(id.clone())).await
}

struct Horizon;

impl Work for Horizon {
    type Out = Cursor;

    async fn run(&self, tx: &mut Tx) -> Result<Cursor> {
        tx.horizon().await
    }
}

struct LogEnd(RunId);

impl Work for LogEnd {
    type Out = i64;

    async fn run(&self, tx: &mut Tx) -> Result<i64> {
        tx.log_end(&self.0).await
    }
}
