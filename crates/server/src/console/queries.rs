//! Two reads that only the console needs: the end of the events, and the end of a log. A page
//! records the first, so that its stream continues exactly where the page was rendered.

use engine::Engine;
use model::id::RunId;
use store::{Cursor, Result};

pub(super) async fn read_horizon(engine: &Engine) -> Result<Cursor> {
    engine.store().read((), |(), tx| Box::pin(tx.horizon())).await
}

pub(super) async fn read_log_end(engine: &Engine, id: &RunId) -> Result<i64> {
    engine.store().read(id.clone(), |id, tx| Box::pin(tx.log_end(id))).await
}
