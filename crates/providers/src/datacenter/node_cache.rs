//! The nodes of each cluster, for probes: one list per cluster and poll round serves all its
//! machines.
//!
//! Single-flight: concurrent callers share one request. A failed request is not repeated before the
//! next round either; the known state of the machines stays unchanged.

use crate::kubernetes::Node;
use model::fault::{Code, Fault};
use model::time::spoken;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::{Instant, timeout};

/// How many clusters are cached.
const MAX_CLUSTERS: usize = 1_024;

pub type Nodes = BTreeMap<String, Node>;

pub struct NodeCaches {
    /// The maximum age of a list.
    every: Duration,
    clusters: Mutex<HashMap<String, Arc<NodeCache>>>,
}

#[derive(Default)]
struct NodeCache {
    listed: tokio::sync::Mutex<Option<Listed>>,
    /// The error of the last request, for callers that must not wait.
    trouble: Mutex<Option<String>>,
}

struct Listed {
    at: Instant,
    nodes: Result<Arc<Nodes>, Fault>,
}

impl NodeCaches {
    pub fn new(every: Duration) -> Self {
        Self { every, clusters: Mutex::default() }
    }

    fn clusters(&self) -> MutexGuard<'_, HashMap<String, Arc<NodeCache>>> {
        self.clusters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn roster(&self, cluster: &str) -> Arc<NodeCache> {
        let mut clusters = self.clusters();
        if clusters.len() >= MAX_CLUSTERS && !clusters.contains_key(cluster) {
            // Lists can be fetched again; entries with waiters are kept.
            clusters.retain(|_, roster| Arc::strong_count(roster) > 1);
        }
        Arc::clone(clusters.entry(cluster.to_string()).or_default())
    }

    /// The nodes of a cluster: the cached list, or the result of `list` within the limit.
    pub async fn nodes(
        &self,
        cluster: &str,
        limit: Duration,
        list: impl Future<Output = Result<Nodes, Fault>>,
    ) -> Result<Arc<Nodes>, Fault> {
        let roster = self.roster(cluster);
        let mut listed = roster.listed.lock().await;
        if let Some(known) = listed.as_ref().filter(|known| known.at.elapsed() < self.every) {
            return known.nodes.clone();
        }
        let nodes = timeout(limit, list).await.unwrap_or_else(|_| {
            let said = format!("{cluster} did not list its nodes within {}", spoken(limit));
            Err(Fault::new(Code::ClusterUnreachable, said))
        });
        let nodes = nodes.map(Arc::new);
        let trouble = nodes.as_ref().err().map(|fault| fault.said.clone());
        *roster.trouble.lock().unwrap_or_else(PoisonError::into_inner) = trouble;
        *listed = Some(Listed { at: Instant::now(), nodes: nodes.clone() });
        nodes
    }

    /// Why the nodes of a cluster are unknown.
    pub fn hindrance(&self, cluster: &str) -> Option<String> {
        let roster = Arc::clone(self.clusters().get(cluster)?);
        roster.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    const EVERY: Duration = Duration::from_secs(50);
    const LIMIT: Duration = Duration::from_secs(5);

    #[tokio::test(start_paused = true)]
    async fn a_cluster_is_asked_once_in_a_round_however_many_want_to_know() {
        let (node_caches, asked) =
            (Arc::new(NodeCaches::new(EVERY)), Arc::new(AtomicUsize::new(0)));
        for round in 1..=3 {
            let mut looks = Vec::new();
            for machine in 0..200 {
                let (node_caches, asked) = (Arc::clone(&node_caches), Arc::clone(&asked));
                looks.push(tokio::spawn(async move {
                    let list = async {
                        asked.fetch_add(1, Ordering::SeqCst);
                        tokio::time::sleep(Duration::from_secs(1)).await;
                        Ok(Nodes::new())
                    };
                    let cluster = format!("cluster-{}", machine % 2);
                    node_caches.nodes(&cluster, LIMIT, list).await
                }));
            }
            for look in looks {
                assert_eq!(look.await.unwrap().unwrap().len(), 0);
            }
            assert_eq!(asked.load(Ordering::SeqCst), 2 * round);
            tokio::time::advance(EVERY).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_does_not_answer_is_left_alone_until_the_next_round() {
        let node_caches = NodeCaches::new(EVERY);
        let fault = node_caches.nodes("a", LIMIT, std::future::pending()).await.unwrap_err();
        assert_eq!(fault.code, Code::ClusterUnreachable);
        let begun = Instant::now();
        let again = node_caches.nodes("a", LIMIT, std::future::pending()).await.unwrap_err();
        assert_eq!((again, begun.elapsed()), (fault.clone(), Duration::ZERO));
        assert_eq!(node_caches.hindrance("a"), Some(fault.said));
        tokio::time::advance(EVERY).await;
        node_caches.nodes("a", LIMIT, async { Ok(Nodes::new()) }).await.unwrap();
        assert_eq!((node_caches.hindrance("a"), node_caches.hindrance("b")), (None, None));
    }
}
