//! Two small reads that only the console needs: where the events end, and where a log ends. A page
//! remembers the first, so that its stream goes on exactly where the page was drawn.

use engine::Engine;
use model::id::RunId;
use store::{Cursor, Result};

pub(super) async fn horizon(engine: &Engine) -> Result<Cursor> {
    engine.store().read((), |(), tx| Box::pin(tx.horizon())).await
}

pub(super) async fn log_end(engine: &Engine, id: &RunId) -> Result<i64> {
    engine.store().read(id.clone(), |id, tx| Box::pin(tx.log_end(id))).await
}
