//! Crashes at a chosen call. Every call of a provider to its state store and to its peers is
//! counted here. At one of them, before or after its effect, the caller never gets an answer, and
//! the test drops the caller as a crash would.

use async_trait::async_trait;
use model::deploy::{Deployment, Steer};
use model::effect::Key;
use model::fault::Fault;
use model::id::{NodeId, SiteId};
use model::image::Image;
use model::node::Node;
use model::site::Site;
use providers::state_store::{
    Checkpoint, Credential, InMemoryStateStore, Lockout, ProviderStateStore,
};
use secrecy::SecretString;
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use tokio::sync::Notify;

/// The component that is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Who {
    ProviderStateStore,
    Bmc,
    Api,
    /// Commands on the host, counted there by its command wrapper.
    Host,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// The call arrives and has no effect.
    Before,
    /// The call has its effect and is not answered.
    After,
}

/// One of the calls, counted from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Point {
    pub who: Who,
    pub call: usize,
    pub when: When,
}

#[derive(Default)]
pub struct Reaper {
    at: Option<Point>,
    calls: Mutex<BTreeMap<Who, usize>>,
    struck: AtomicBool,
    news: Notify,
}

impl Reaper {
    pub fn new(at: Option<Point>) -> Arc<Self> {
        Arc::new(Self { at, ..Self::default() })
    }

    /// How often each component was called.
    pub fn calls(&self) -> BTreeMap<Who, usize> {
        self.calls.lock().unwrap().clone()
    }

    /// Counts a call. Returns when the crash happens, if this is the call to crash at.
    pub fn arrive(&self, who: Who) -> Option<When> {
        let mut calls = self.calls.lock().unwrap();
        let call = calls.entry(who).or_default();
        *call += 1;
        let is_here = |at: &Point| at.who == who && at.call == *call;
        self.at.filter(is_here).map(|at| at.when)
    }

    pub fn strike(&self) {
        self.struck.store(true, Ordering::SeqCst);
        self.news.notify_one();
    }

    pub fn has_struck(&self) -> bool {
        self.struck.load(Ordering::SeqCst)
    }

    /// Ends when the crash has happened.
    pub async fn wait(&self) {
        self.news.notified().await;
    }

    /// Makes a call, unless the crash happens before it.
    pub async fn guard<T>(&self, who: Who, call: impl Future<Output = T>) -> T {
        match self.arrive(who) {
            None => call.await,
            Some(When::Before) => self.fall().await,
            Some(When::After) => {
                call.await;
                self.fall().await
            }
        }
    }

    async fn fall<T>(&self) -> T {
        self.strike();
        std::future::pending().await
    }
}

/// A state store that counts its calls. What it stores outlives the replicas that use it.
pub struct Watched {
    pub kept: Arc<InMemoryStateStore>,
    pub reaper: Arc<Reaper>,
}

#[async_trait]
impl ProviderStateStore for Watched {
    async fn credential(&self, name: &str) -> Result<Credential, Fault> {
        self.reaper.guard(Who::ProviderStateStore, self.kept.credential(name)).await
    }

    async fn identity(&self, peer: &str) -> Result<Option<String>, Fault> {
        self.reaper.guard(Who::ProviderStateStore, self.kept.identity(peer)).await
    }

    async fn trust_on_first_use(&self, peer: &str, identity: &str) -> Result<String, Fault> {
        self.reaper
            .guard(Who::ProviderStateStore, self.kept.trust_on_first_use(peer, identity))
            .await
    }

    async fn lockout(&self, peer: &str) -> Result<Option<Lockout>, Fault> {
        self.reaper.guard(Who::ProviderStateStore, self.kept.lockout(peer)).await
    }

    async fn lock_out(&self, peer: &str, lockout: &Lockout) -> Result<(), Fault> {
        self.reaper.guard(Who::ProviderStateStore, self.kept.lock_out(peer, lockout)).await
    }

    async fn recall(&self, key: &Key) -> Result<Option<Checkpoint>, Fault> {
        self.reaper.guard(Who::ProviderStateStore, self.kept.recall(key)).await
    }

    async fn begin(&self, key: &Key, note: &Checkpoint) -> Result<Option<Checkpoint>, Fault> {
        self.reaper.guard(Who::ProviderStateStore, self.kept.begin(key, note)).await
    }

    async fn compare_and_swap(
        &self,
        key: &Key,
        before: &Value,
        after: &Value,
    ) -> Result<bool, Fault> {
        self.reaper
            .guard(Who::ProviderStateStore, self.kept.compare_and_swap(key, before, after))
            .await
    }

    async fn pin(&self, peer: &str, identity: Option<&str>) -> Result<(), Fault> {
        self.reaper.guard(Who::ProviderStateStore, self.kept.pin(peer, identity)).await
    }

    async fn image(&self, name: &str) -> Result<Image, Fault> {
        self.reaper.guard(Who::ProviderStateStore, self.kept.image(name)).await
    }

    async fn want(&self, one: &Deployment, note: &Value) -> Result<Option<Deployment>, Fault> {
        self.reaper.guard(Who::ProviderStateStore, self.kept.want(one, note)).await
    }

    async fn deployment(&self, key: &Key) -> Result<Option<Deployment>, Fault> {
        self.reaper.guard(Who::ProviderStateStore, self.kept.deployment(key)).await
    }

    async fn steer(&self, key: &Key, to: Steer) -> Result<Option<Deployment>, Fault> {
        self.reaper.guard(Who::ProviderStateStore, self.kept.steer(key, to)).await
    }

    async fn token(&self, key: &Key) -> Result<SecretString, Fault> {
        self.reaper.guard(Who::ProviderStateStore, self.kept.token(key)).await
    }

    async fn site(&self, id: &SiteId) -> Result<Site, Fault> {
        self.reaper.guard(Who::ProviderStateStore, self.kept.site(id)).await
    }

    async fn node(&self, id: &NodeId) -> Result<Node, Fault> {
        self.reaper.guard(Who::ProviderStateStore, self.kept.node(id)).await
    }

    async fn enrollment(&self, id: &NodeId) -> Result<SecretString, Fault> {
        self.reaper.guard(Who::ProviderStateStore, self.kept.enrollment(id)).await
    }
}
