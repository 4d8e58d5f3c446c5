//! The nodes of each cluster, for probes: one list per cluster and poll round serves all its
//! machines.
//!
//! Single-flight: concurrent callers share one request. A failed request is not repeated before the
//! next round either; the known state of the machines stays unchanged.
//!
//! A machine whose node the list of the round shows as cordoned or not at all is read anew. A few
//! such reads at a time are requests for one node each; further ones share a list that starts after
//! they were asked for.

use crate::kubernetes::Node;
use model::fault::{Fault, FaultCode, Result};
use model::time::format_duration;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::{Instant, timeout};

/// How many clusters are cached.
const MAX_CLUSTERS: usize = 1_024;
/// How many nodes of a cluster are read one by one at the same time. In a large cluster a list has
/// many pages; then it is as many as pages.
const FEW_READS: usize = 4;
/// The nodes in a page of a list.
const PAGE_NODES: usize = 500;

pub type Nodes = BTreeMap<String, Node>;

pub struct NodeCaches {
    /// The maximum age of a list.
    max_age: Duration,
    clusters: Mutex<HashMap<String, Arc<NodeCache>>>,
}

#[derive(Default)]
struct NodeCache {
    listed: tokio::sync::Mutex<Option<CachedNodes>>,
    /// The error of the last request, for callers that must not wait.
    last_error: Mutex<Option<String>>,
    /// The reads under way of nodes that are cordoned or absent in the list.
    reads: AtomicUsize,
}

/// One read under way. Dropping it ends the read.
struct ReadUnderWay<'a>(&'a AtomicUsize);

impl Drop for ReadUnderWay<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

struct CachedNodes {
    /// What the list shows is not older.
    started_at: Instant,
    at: Instant,
    nodes: Result<Arc<Nodes>>,
}

impl NodeCaches {
    pub fn new(max_age: Duration) -> Self {
        Self { max_age, clusters: Mutex::default() }
    }

    fn clusters(&self) -> MutexGuard<'_, HashMap<String, Arc<NodeCache>>> {
        self.clusters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn cache(&self, cluster: &str) -> Arc<NodeCache> {
        let mut clusters = self.clusters();
        if clusters.len() >= MAX_CLUSTERS && !clusters.contains_key(cluster) {
            // Lists can be fetched again; entries with waiters are kept.
            clusters.retain(|_, matcher| Arc::strong_count(matcher) > 1);
        }
        Arc::clone(clusters.entry(cluster.to_string()).or_default())
    }

    /// The nodes of a cluster: the list of this round, or the result of `list` within the limit.
    pub async fn nodes(
        &self,
        cluster: &str,
        limit: Duration,
        list: impl Future<Output = Result<Nodes>>,
    ) -> Result<Arc<Nodes>> {
        let of_this_round = |known: &CachedNodes| known.at.elapsed() < self.max_age;
        list_unless(&self.cache(cluster), cluster, limit, of_this_round, list).await
    }

    /// A node as it is after this call: by `read`, or where many are read at once by a shared
    /// list. `pick` finds the node in a list; `known` is the number of nodes of the cluster.
    pub async fn read_anew<T>(
        &self,
        (cluster, known): (&str, usize),
        limit: Duration,
        read: impl Future<Output = Result<T>>,
        list: impl Future<Output = Result<Nodes>>,
        pick: impl FnOnce(&Nodes) -> T,
    ) -> Result<T> {
        let (cache, called_at) = (self.cache(cluster), Instant::now());
        let before = cache.reads.fetch_add(1, Ordering::Relaxed);
        let _under_way = ReadUnderWay(&cache.reads);
        if before < FEW_READS.max(known.div_ceil(PAGE_NODES)) {
            return read.await;
        }
        let anew = |known: &CachedNodes| known.started_at >= called_at;
        let nodes = list_unless(&cache, cluster, limit, anew, list).await?;
        Ok(pick(&nodes))
    }

    /// Why the nodes of a cluster are unknown.
    pub fn last_error(&self, cluster: &str) -> Option<String> {
        let matcher = Arc::clone(self.clusters().get(cluster)?);
        matcher.last_error.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The cached list if it is good enough, or else the result of `list` within the limit.
async fn list_unless(
    cache: &NodeCache,
    cluster: &str,
    limit: Duration,
    good_enough: impl Fn(&CachedNodes) -> bool,
    list: impl Future<Output = Result<Nodes>>,
) -> Result<Arc<Nodes>> {
    let mut listed = cache.listed.lock().await;
    if let Some(known) = listed.as_ref().filter(|known| good_enough(known)) {
        return known.nodes.clone();
    }
    let started_at = Instant::now();
    let nodes = timeout(limit, list).await.unwrap_or_else(|_| {
        let message = format!("{cluster} did not list its nodes within {}", format_duration(limit));
        Err(Fault::new(FaultCode::ClusterUnreachable, message))
    });
    let nodes = nodes.map(Arc::new);
    let failure = nodes.as_ref().err().map(|fault| fault.message.clone());
    *cache.last_error.lock().unwrap_or_else(PoisonError::into_inner) = failure;
    *listed = Some(CachedNodes { started_at, at: Instant::now(), nodes: nodes.clone() });
    nodes
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX_AGE: Duration = Duration::from_secs(50);
    const LIMIT: Duration = Duration::from_secs(5);

    #[tokio::test(start_paused = true)]
    async fn concurrent_probes_share_one_request_per_round() {
        let (node_caches, requested) =
            (Arc::new(NodeCaches::new(MAX_AGE)), Arc::new(AtomicUsize::new(0)));
        for round in 1..=3 {
            let mut probes = Vec::new();
            for machine in 0..200 {
                let (node_caches, requested) = (Arc::clone(&node_caches), Arc::clone(&requested));
                probes.push(tokio::spawn(async move {
                    let list = async {
                        requested.fetch_add(1, Ordering::SeqCst);
                        tokio::time::sleep(Duration::from_secs(1)).await;
                        Ok(Nodes::new())
                    };
                    let cluster = format!("cluster-{}", machine % 2);
                    node_caches.nodes(&cluster, LIMIT, list).await
                }));
            }
            for probe in probes {
                assert_eq!(probe.await.unwrap().unwrap().len(), 0);
            }
            assert_eq!(requested.load(Ordering::SeqCst), 2 * round);
            tokio::time::advance(MAX_AGE).await;
        }
    }

    /// A few reads are requests of their own. The others share lists that start after their call.
    #[tokio::test(start_paused = true)]
    async fn many_reads_share_a_list() {
        let second = Duration::from_secs(1);
        let caches = Arc::new(NodeCaches::new(MAX_AGE));
        caches.nodes("a", LIMIT, async { Ok(Nodes::new()) }).await.unwrap();
        tokio::time::advance(second).await;
        let (reads, lists) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let mut probes = Vec::new();
        for n in 0..300 {
            let (caches, reads, lists) =
                (Arc::clone(&caches), Arc::clone(&reads), Arc::clone(&lists));
            probes.push(tokio::spawn(async move {
                // A third of them comes while the first list is under way.
                tokio::time::sleep(if n % 3 == 0 { second / 2 } else { Duration::ZERO }).await;
                let called_at = Instant::now();
                let read = async {
                    reads.fetch_add(1, Ordering::SeqCst);
                    tokio::time::sleep(second).await;
                    Ok(true)
                };
                let list = async {
                    lists.fetch_add(1, Ordering::SeqCst);
                    tokio::time::sleep(second).await;
                    Ok(Nodes::new())
                };
                let fresh = caches.read_anew(("a", 10), LIMIT, read, list, |_| true).await;
                assert_eq!(fresh, Ok(true));
                assert!(called_at.elapsed() <= second * 2, "it waits for two lists at most");
            }));
        }
        for probe in probes {
            probe.await.unwrap();
        }
        let (reads, lists) = (reads.load(Ordering::SeqCst), lists.load(Ordering::SeqCst));
        assert_eq!((reads, lists), (FEW_READS, 2));
    }

    #[tokio::test(start_paused = true)]
    async fn in_a_large_cluster_more_nodes_are_read_one_by_one() {
        let caches = NodeCaches::new(MAX_AGE);
        let reads = (0..20).map(|_| async {
            let read = async {
                tokio::time::sleep(LIMIT / 2).await;
                Ok("read")
            };
            caches
                .read_anew(("a", 5_000), LIMIT, read, async { Ok(Nodes::new()) }, |_| "listed")
                .await
                .unwrap()
        });
        let by = futures_util::future::join_all(reads).await;
        assert_eq!(by.iter().filter(|by| **by == "read").count(), 10, "{by:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_failed_request_is_not_repeated_before_the_next_round() {
        let node_caches = NodeCaches::new(MAX_AGE);
        let fault = node_caches.nodes("a", LIMIT, std::future::pending()).await.unwrap_err();
        assert_eq!(fault.code, FaultCode::ClusterUnreachable);
        let begun = Instant::now();
        let again = node_caches.nodes("a", LIMIT, std::future::pending()).await.unwrap_err();
        assert_eq!((again, begun.elapsed()), (fault.clone(), Duration::ZERO));
        assert_eq!(node_caches.last_error("a"), Some(fault.message));
        tokio::time::advance(MAX_AGE).await;
        node_caches.nodes("a", LIMIT, async { Ok(Nodes::new()) }).await.unwrap();
        assert_eq!((node_caches.last_error("a"), node_caches.last_error("b")), (None, None));
    }
}
