//! Crashes at a chosen call. Every call of a provider to its state store and to its peers is
//! counted here. At one of them, before or after its effect, the caller never gets an answer, and
//! the test drops the caller as a crash would.

use async_trait::async_trait;
use model::credential::Peer;
use model::deploy::{Deployment, DeploymentCommand};
use model::effect::EffectKey;
use model::fault::{Fault, FaultCode};
use model::id::{NodeId, SiteId};
use model::image::Image;
use model::node::Node;
use model::site::Site;
use providers::state_store::{
    Checkpoint, Credential, CredentialFacts, InMemoryStateStore, Lockout, ProviderStateStore,
};
use secrecy::SecretString;
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use tokio::sync::Notify;

/// The component that is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum CallTarget {
    ProviderStateStore,
    Bmc,
    Api,
    /// Commands on the host, counted there by its command wrapper.
    Host,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CrashTiming {
    /// The call arrives and has no effect.
    Before,
    /// The call has its effect and is not answered.
    After,
}

/// One of the calls, counted from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CrashPoint {
    pub target: CallTarget,
    pub call: usize,
    pub timing: CrashTiming,
}

#[derive(Default)]
pub struct CrashInjector {
    at: Option<CrashPoint>,
    calls: Mutex<BTreeMap<CallTarget, usize>>,
    crashed: AtomicBool,
    notify: Notify,
    /// The credential or the peer for which the state store fails.
    failing: Mutex<Option<String>>,
}

impl CrashInjector {
    pub fn new(at: Option<CrashPoint>) -> Arc<Self> {
        Arc::new(Self { at, ..Self::default() })
    }

    /// The number of calls of each component.
    pub fn calls(&self) -> BTreeMap<CallTarget, usize> {
        self.calls.lock().unwrap().clone()
    }

    /// Counts a call. Returns when the crash happens, if this is the call to crash at.
    pub fn count_call(&self, requester: CallTarget) -> Option<CrashTiming> {
        let mut calls = self.calls.lock().unwrap();
        let call = calls.entry(requester).or_default();
        *call += 1;
        let is_here = |at: &CrashPoint| at.target == requester && at.call == *call;
        self.at.filter(is_here).map(|at| at.timing)
    }

    /// Lets the state store fail for one credential or for the pin of one peer.
    pub fn fail_store_for(&self, name: &str) {
        *self.failing.lock().unwrap() = Some(name.into());
    }

    fn check_store(&self, name: &str) -> Result<(), Fault> {
        match self.failing.lock().unwrap().as_deref() == Some(name) {
            true => Err(Fault::new(FaultCode::DatabaseUnreachable, "no database")),
            false => Ok(()),
        }
    }

    pub fn crash(&self) {
        self.crashed.store(true, Ordering::SeqCst);
        self.notify.notify_one();
    }

    pub fn has_crashed(&self) -> bool {
        self.crashed.load(Ordering::SeqCst)
    }

    /// Ends when the crash has happened.
    pub async fn wait_for_crash(&self) {
        self.notify.notified().await;
    }

    /// Makes a call, unless the crash happens before it.
    pub async fn call_or_crash<T>(
        &self,
        requester: CallTarget,
        call: impl Future<Output = T>,
    ) -> T {
        match self.count_call(requester) {
            None => call.await,
            Some(CrashTiming::Before) => self.crash_without_answer().await,
            Some(CrashTiming::After) => {
                call.await;
                self.crash_without_answer().await
            }
        }
    }

    async fn crash_without_answer<T>(&self) -> T {
        self.crash();
        std::future::pending().await
    }
}

/// A state store that counts its calls. What it stores outlives the replicas that use it.
pub struct CountingStateStore {
    pub inner: Arc<InMemoryStateStore>,
    pub crash_injector: Arc<CrashInjector>,
}

#[async_trait]
impl ProviderStateStore for CountingStateStore {
    async fn credential(&self, name: &str, peer: &Peer) -> Result<Credential, Fault> {
        self.crash_injector.check_store(name)?;
        self.crash_injector
            .call_or_crash(CallTarget::ProviderStateStore, self.inner.credential(name, peer))
            .await
    }

    async fn kubeconfig(&self, name: &str) -> Result<SecretString, Fault> {
        self.crash_injector.check_store(name)?;
        self.crash_injector
            .call_or_crash(CallTarget::ProviderStateStore, self.inner.kubeconfig(name))
            .await
    }

    async fn credential_facts(&self, name: &str) -> Result<CredentialFacts, Fault> {
        self.crash_injector.check_store(name)?;
        self.crash_injector
            .call_or_crash(CallTarget::ProviderStateStore, self.inner.credential_facts(name))
            .await
    }

    async fn identity(&self, peer: &str) -> Result<Option<String>, Fault> {
        self.crash_injector
            .call_or_crash(CallTarget::ProviderStateStore, self.inner.identity(peer))
            .await
    }

    async fn trust_on_first_use(&self, peer: &str, identity: &str) -> Result<String, Fault> {
        self.crash_injector
            .call_or_crash(
                CallTarget::ProviderStateStore,
                self.inner.trust_on_first_use(peer, identity),
            )
            .await
    }

    async fn lockout(&self, peer: &str) -> Result<Option<Lockout>, Fault> {
        self.crash_injector
            .call_or_crash(CallTarget::ProviderStateStore, self.inner.lockout(peer))
            .await
    }

    async fn lock_out(&self, peer: &str, lockout: &Lockout) -> Result<(), Fault> {
        self.crash_injector
            .call_or_crash(CallTarget::ProviderStateStore, self.inner.lock_out(peer, lockout))
            .await
    }

    async fn checkpoint(&self, key: &EffectKey) -> Result<Option<Checkpoint>, Fault> {
        self.crash_injector
            .call_or_crash(CallTarget::ProviderStateStore, self.inner.checkpoint(key))
            .await
    }

    async fn begin(&self, key: &EffectKey, note: &Checkpoint) -> Result<Option<Checkpoint>, Fault> {
        self.crash_injector
            .call_or_crash(CallTarget::ProviderStateStore, self.inner.begin(key, note))
            .await
    }

    async fn compare_and_swap(
        &self,
        key: &EffectKey,
        before: &Value,
        after: &Value,
    ) -> Result<bool, Fault> {
        self.crash_injector
            .call_or_crash(
                CallTarget::ProviderStateStore,
                self.inner.compare_and_swap(key, before, after),
            )
            .await
    }

    async fn pin(&self, peer: &str, identity: Option<&str>) -> Result<(), Fault> {
        self.crash_injector.check_store(peer)?;
        self.crash_injector
            .call_or_crash(CallTarget::ProviderStateStore, self.inner.pin(peer, identity))
            .await
    }

    async fn image(&self, name: &str) -> Result<Image, Fault> {
        self.crash_injector
            .call_or_crash(CallTarget::ProviderStateStore, self.inner.image(name))
            .await
    }

    async fn create_deployment(
        &self,
        one: &Deployment,
        note: &Value,
    ) -> Result<Option<Deployment>, Fault> {
        self.crash_injector
            .call_or_crash(CallTarget::ProviderStateStore, self.inner.create_deployment(one, note))
            .await
    }

    async fn deployment(&self, key: &EffectKey) -> Result<Option<Deployment>, Fault> {
        self.crash_injector
            .call_or_crash(CallTarget::ProviderStateStore, self.inner.deployment(key))
            .await
    }

    async fn command_deployment(
        &self,
        key: &EffectKey,
        to: DeploymentCommand,
    ) -> Result<Option<Deployment>, Fault> {
        self.crash_injector
            .call_or_crash(CallTarget::ProviderStateStore, self.inner.command_deployment(key, to))
            .await
    }

    async fn deployment_token(&self, key: &EffectKey) -> Result<SecretString, Fault> {
        self.crash_injector
            .call_or_crash(CallTarget::ProviderStateStore, self.inner.deployment_token(key))
            .await
    }

    async fn site(&self, id: &SiteId) -> Result<Site, Fault> {
        self.crash_injector.call_or_crash(CallTarget::ProviderStateStore, self.inner.site(id)).await
    }

    async fn node(&self, id: &NodeId) -> Result<Node, Fault> {
        self.crash_injector.call_or_crash(CallTarget::ProviderStateStore, self.inner.node(id)).await
    }

    async fn enrollment_token(&self, id: &NodeId) -> Result<SecretString, Fault> {
        self.crash_injector
            .call_or_crash(CallTarget::ProviderStateStore, self.inner.enrollment_token(id))
            .await
    }
}
