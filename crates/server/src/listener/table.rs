//! The open connections of a listener, by peer.
//!
//! A connection without a request of a known sender is closed when a new one needs its place, first
//! those that have never sent a request. So peers that open many connections and prove nothing keep
//! no other peer out. Only a listener whose connections are all in use refuses new ones.

use super::activity::Activity;
use super::limits::ListenerLimits;
use super::{EndReason, ListenerName, count_end};
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;
use tokio::task::AbortHandle;

/// The bits of an IPv6 address that one customer shares.
const IPV6_NETWORK: u128 = u128::MAX << 64;

/// The most descriptors of evicted connections beside those of open ones.
const MAX_CLOSING: usize = 8;

/// The peer that a connection is counted for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct PeerKey(IpAddr);

impl PeerKey {
    /// An IPv4 address, or the network of an IPv6 address.
    fn of(address: IpAddr) -> Self {
        Self(match address.to_canonical() {
            IpAddr::V4(v4) => IpAddr::V4(v4),
            IpAddr::V6(v6) => IpAddr::V6((u128::from(v6) & IPV6_NETWORK).into()),
        })
    }
}

struct OpenConnection {
    peer: PeerKey,
    activity: Arc<Activity>,
    task: Option<AbortHandle>,
}

#[derive(Default)]
struct OpenConnections {
    by_id: HashMap<u64, OpenConnection>,
    by_peer: HashMap<PeerKey, usize>,
    last_id: u64,
}

pub(super) struct ConnectionTable {
    name: ListenerName,
    max: usize,
    max_per_peer: usize,
    open: Mutex<OpenConnections>,
    /// Connections that hold a descriptor: the open ones, and evicted ones whose task has not ended
    /// yet.
    held: AtomicUsize,
    freed: Notify,
}

/// The place of one connection; dropping it frees the place.
pub(super) struct Slot {
    table: Arc<ConnectionTable>,
    id: u64,
}

impl Slot {
    pub fn id(&self) -> u64 {
        self.id
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut open = self.table.open();
        open.remove(self.id);
        self.table.show(&open);
        self.table.held.fetch_sub(1, Ordering::Relaxed);
        self.table.freed.notify_one();
    }
}

impl ConnectionTable {
    pub fn new(name: ListenerName, limits: &ListenerLimits) -> Self {
        Self {
            name,
            max: limits.connections,
            max_per_peer: limits.per_peer,
            open: Mutex::default(),
            held: AtomicUsize::new(0),
            freed: Notify::new(),
        }
    }

    /// Waits while more evicted connections than `MAX_CLOSING` hold their descriptors: the accept
    /// loop must not be faster than their tasks end.
    pub async fn wait_for_descriptors(&self) {
        while self.held.load(Ordering::Relaxed) > self.max + MAX_CLOSING {
            self.freed.notified().await;
        }
    }

    /// Finds a place for a new connection, if need be that of a quiet one.
    pub fn admit(
        self: &Arc<Self>,
        peer: IpAddr,
        activity: Arc<Activity>,
    ) -> Result<Slot, EndReason> {
        let peer = PeerKey::of(peer);
        let mut open = self.open();
        if open.by_peer.get(&peer).is_some_and(|count| *count >= self.max_per_peer) {
            let quietest = open.quietest(|one| one == peer).ok_or(EndReason::PeerFull)?;
            self.evict(&mut open, quietest);
        } else if open.by_id.len() >= self.max {
            let quietest = open.quietest_of_the_largest().ok_or(EndReason::ListenerFull)?;
            self.evict(&mut open, quietest);
        }
        open.last_id += 1;
        let id = open.last_id;
        open.by_id.insert(id, OpenConnection { peer, activity, task: None });
        *open.by_peer.entry(peer).or_default() += 1;
        self.held.fetch_add(1, Ordering::Relaxed);
        self.show(&open);
        Ok(Slot { table: Arc::clone(self), id })
    }

    /// Names the task that serves a connection, which ends it when it is evicted.
    pub fn attach(&self, id: u64, task: AbortHandle) {
        if let Some(connection) = self.open().by_id.get_mut(&id) {
            connection.task = Some(task);
        }
    }

    /// Closes up to this many quiet connections.
    pub fn evict_quiet(&self, most: usize) {
        let mut open = self.open();
        for _ in 0..most {
            let Some(quietest) = open.quietest(|_| true) else { break };
            self.evict(&mut open, quietest);
        }
        self.show(&open);
    }

    fn evict(&self, open: &mut OpenConnections, id: u64) {
        if let Some(OpenConnection { task: Some(task), .. }) = open.remove(id) {
            task.abort();
            count_end(self.name, EndReason::Evicted);
        }
    }

    fn show(&self, open: &OpenConnections) {
        metrics::gauge!("farrier_connections_open", "listener" => self.name.as_str())
            .set(open.by_id.len() as f64);
    }

    fn open(&self) -> MutexGuard<'_, OpenConnections> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OpenConnections {
    fn remove(&mut self, id: u64) -> Option<OpenConnection> {
        let removed = self.by_id.remove(&id)?;
        if let Some(count) = self.by_peer.get_mut(&removed.peer) {
            *count -= 1;
            if *count == 0 {
                self.by_peer.remove(&removed.peer);
            }
        }
        Some(removed)
    }

    /// The connection without a request of a known sender that has been quiet for longest.
    fn quietest(&self, of: impl Fn(PeerKey) -> bool) -> Option<u64> {
        let candidates = self.by_id.iter().filter(|(_, one)| of(one.peer));
        let quiet = candidates.filter_map(|(id, one)| Some((one.activity.quiet()?, *id)));
        quiet.min().map(|(_, id)| id)
    }

    /// The quietest connection of the peer with the most connections. If all of those have a
    /// request, the quietest of any peer.
    fn quietest_of_the_largest(&self) -> Option<u64> {
        let largest =
            self.by_peer.iter().max_by_key(|(_, count)| **count).map(|(peer, _)| *peer)?;
        self.quietest(|peer| peer == largest).or_else(|| self.quietest(|_| true))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use std::time::Duration;

    fn table(connections: usize, per_peer: usize) -> Arc<ConnectionTable> {
        let second = Duration::from_secs(1);
        let limits = ListenerLimits {
            connections,
            per_peer,
            streams: 1,
            first_byte: second,
            header: second,
            stall: second,
            idle: second,
            handshake: second,
        };
        Arc::new(ConnectionTable::new(ListenerName::Api, &limits))
    }

    struct Peer {
        address: IpAddr,
    }

    impl Peer {
        fn new(address: &str) -> Self {
            Self { address: address.parse().unwrap() }
        }

        fn connect(
            &self,
            table: &Arc<ConnectionTable>,
        ) -> Result<(Slot, Arc<Activity>), EndReason> {
            let activity = Arc::new(Activity::new());
            let slot = table.admit(self.address, Arc::clone(&activity))?;
            let task = tokio::spawn(std::future::pending::<()>());
            table.attach(slot.id(), task.abort_handle());
            Ok((slot, activity))
        }
    }

    fn is_open(table: &ConnectionTable, slot: &Slot) -> bool {
        table.open().by_id.contains_key(&slot.id())
    }

    #[tokio::test]
    async fn a_quiet_connection_makes_room_and_a_busy_one_does_not() {
        let table = table(4, 2);
        let (near, far) = (Peer::new("10.0.0.1"), Peer::new("10.0.0.2"));
        let (first, _) = near.connect(&table).unwrap();
        let (second, activity) = near.connect(&table).unwrap();
        let busy = activity.begin_request();
        busy.sender().is_known();
        let (third, _) = near.connect(&table).unwrap();
        let open = [&first, &second, &third].map(|slot| is_open(&table, slot));
        assert_eq!(open, [false, true, true]);

        let third_busy = table.open().by_id[&third.id()].activity.clone().begin_request();
        third_busy.sender().is_known();
        assert_eq!(near.connect(&table).err(), Some(EndReason::PeerFull));
        let (_fourth, _) = far.connect(&table).unwrap();
        drop(busy);
        near.connect(&table).unwrap();
        assert!(!is_open(&table, &second), "it is quiet now");
    }

    /// Anyone can begin a request, and wait with the rest of it.
    #[tokio::test]
    async fn a_request_of_a_stranger_makes_room_until_its_sender_is_known() {
        let table = table(4, 2);
        let peer = Peer::new("10.0.0.1");
        let (first, activity) = peer.connect(&table).unwrap();
        let stranger = activity.begin_request();
        let (second, activity) = peer.connect(&table).unwrap();
        let (known, beside) = (activity.begin_request(), activity.begin_request());
        known.sender().is_known();
        // Saying it twice counts once.
        known.sender().is_known();
        drop(beside);
        let (third, _) = peer.connect(&table).unwrap();
        let open = [&first, &second, &third].map(|slot| is_open(&table, slot));
        assert_eq!(open, [false, true, true]);
        let gone = stranger.sender();
        drop((stranger, known));
        gone.is_known();
        drop(third);
        let (_fourth, activity) = peer.connect(&table).unwrap();
        let fourth = activity.begin_request();
        fourth.sender().is_known();
        peer.connect(&table).unwrap();
        assert!(!is_open(&table, &second), "its known request has ended");
    }

    #[tokio::test]
    async fn a_full_listener_closes_connections_of_the_largest_peer() {
        let table = table(4, 3);
        let (many, few) = (Peer::new("10.0.0.1"), Peer::new("10.0.0.2"));
        let old = few.connect(&table).unwrap().0;
        let others: Vec<_> = (0..3).map(|_| many.connect(&table).unwrap().0).collect();
        let new = Peer::new("10.0.0.3").connect(&table).unwrap().0;
        assert!(is_open(&table, &old) && is_open(&table, &new));
        let open: Vec<bool> = others.iter().map(|slot| is_open(&table, slot)).collect();
        assert_eq!(open, [false, true, true]);
    }

    #[tokio::test]
    async fn a_connection_that_never_sent_a_request_goes_first() {
        let table = table(8, 2);
        let peer = Peer::new("10.0.0.1");
        let (used, activity) = peer.connect(&table).unwrap();
        drop(activity.begin_request());
        let (unused, _) = peer.connect(&table).unwrap();
        let (_new, _) = peer.connect(&table).unwrap();
        assert_eq!((is_open(&table, &used), is_open(&table, &unused)), (true, false));
        table.evict_quiet(8);
        assert_eq!(table.open().by_id.len(), 0);
        assert!(table.open().by_peer.is_empty());
    }

    #[tokio::test]
    async fn evicted_connections_count_until_their_descriptors_are_free() {
        let table = table(4, 4);
        let peer = Peer::new("10.0.0.1");
        let mut slots: Vec<Slot> = Vec::new();
        for _ in 0..4 + MAX_CLOSING {
            slots.push(peer.connect(&table).unwrap().0);
            assert!(table.wait_for_descriptors().now_or_never().is_some());
        }
        slots.push(peer.connect(&table).unwrap().0);
        assert_eq!(table.open().by_id.len(), 4);
        assert!(table.wait_for_descriptors().now_or_never().is_none());
        slots.remove(0);
        assert!(table.wait_for_descriptors().now_or_never().is_some());
    }

    #[test]
    fn an_ipv6_network_is_one_peer() {
        let key = |text: &str| PeerKey::of(text.parse().unwrap());
        assert_eq!(key("2001:db8::1"), key("2001:db8::ffff:1"));
        assert_ne!(key("2001:db8::1"), key("2001:db8:0:1::1"));
        assert_eq!(key("::ffff:10.0.0.1"), key("10.0.0.1"));
        assert_ne!(key("10.0.0.1"), key("10.0.0.2"));
    }
}
