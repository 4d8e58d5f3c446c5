//! The transactions of claiming and leases, each of one call.

use model::id::ObjectId;
use model::time::Timestamp;
use store::{Pulse, Replica, Result, Tx, Work};

/// A transaction of one call.
macro_rules! work {
    ($name:ident { $($field:ident : $type:ty),* } -> $out:ty, |$this:ident, $tx:ident| $body:expr) => {
        pub(super) struct $name { $(pub $field: $type),* }
        impl Work for $name {
            type Out = $out;
            async fn run(&self, $tx: &mut Tx) -> Result<$out> {
                let $this = self;
                $body
            }
        }
    };
}

work!(Enlist { replica: Replica, now: Timestamp, expires: Timestamp } -> u64,
    |work, tx| tx.enlist(&work.replica, work.now, work.expires).await);
work!(Renew { replica: Replica, expires: Timestamp } -> (), |work, tx| tx.renew(&work.replica, work.expires).await);
work!(Bury { pulse: Pulse, now: Timestamp } -> bool, |work, tx| tx.bury(&work.pulse, work.now).await);
work!(Resign { replica: Replica, now: Timestamp } -> u64, |work, tx| tx.resign(&work.replica, work.now).await);
work!(PutBack { id: ObjectId, epoch: i64, due: Timestamp } -> (),
    |work, tx| tx.put_back(&work.id, work.epoch, work.due));
work!(Woken { owner: String } -> Vec<ObjectId>, |work, tx| tx.woken(&work.owner).await);
work!(HeldBy { owner: String } -> Vec<(ObjectId, i64)>, |work, tx| tx.held_by(&work.owner).await);

work!(Pulses {} -> Vec<Pulse>, |_work, tx| tx.pulses().await);
work!(NextDue {} -> Option<Timestamp>, |_work, tx| tx.next_due().await);
