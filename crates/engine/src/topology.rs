//! What a rack is told when a device was added to it, moved, or taken out.

use model::id::RackId;
use model::rack::Rack;
use store::{NewEvent, Result, Tx};

/// Tells the racks between which a device was moved; for one that was added or removed, one of them is none.
pub(crate) async fn moved(
    tx: &mut Tx,
    from: Option<&RackId>,
    to: Option<&RackId>,
    event: &NewEvent,
) -> Result<()> {
    if from == to {
        return Ok(());
    }
    for rack in [from, to].into_iter().flatten() {
        if let Some(mut rack) = tx.record_locked::<Rack>(rack.as_str()).await? {
            rack.topology_changed = true;
            tx.tell_record(&mut rack, event)?;
        }
    }
    Ok(())
}
