//! The nodes of each cluster, for probes: one list per cluster and poll round serves all its
//! machines.
//!
//! Single-flight: concurrent callers share one request. A failed request is not repeated before the
//! next round either; the known state of the machines stays unchanged.

use crate::kubernetes::Node;
use model::fault::{Fault, FaultCode, Result};
use model::time::format_duration;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::{Instant, timeout};

/// The most clusters that are cached.
const MAX_CLUSTERS: usize = 1_024;

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
}

struct CachedNodes {
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

    /// The nodes of a cluster: the cached list, or the result of `list` within the limit.
    pub async fn nodes(
        &self,
        cluster: &str,
        limit: Duration,
        list: impl Future<Output = Result<Nodes>>,
    ) -> Result<Arc<Nodes>> {
        let matcher = self.cache(cluster);
        let mut listed = matcher.listed.lock().await;
        if let Some(known) = listed.as_ref().filter(|known| known.at.elapsed() < self.max_age) {
            return known.nodes.clone();
        }
        let nodes = timeout(limit, list).await.unwrap_or_else(|_| {
            let message =
                format!("{cluster} did not list its nodes within {}", format_duration(limit));
            Err(Fault::new(FaultCode::ClusterUnreachable, message))
        });
        let nodes = nodes.map(Arc::new);
        let failure = nodes.as_ref().err().map(|fault| fault.message.clone());
        *matcher.last_error.lock().unwrap_or_else(PoisonError::into_inner) = failure;
        *listed = Some(CachedNodes { at: Instant::now(), nodes: nodes.clone() });
        nodes
    }

    /// The reason why the nodes of a cluster are unknown.
    pub fn last_error(&self, cluster: &str) -> Option<String> {
        let matcher = Arc::clone(self.clusters().get(cluster)?);
        matcher.last_error.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

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
