//! The engine: the shared context, and one service for each kind.

use crate::access::Caller;
use crate::approval::Approvals;
use crate::clock::Clock;
use crate::cluster::Clusters;
use crate::component::Components;
use crate::device::Devices;
use crate::fan_out::FanOut;
use crate::firmware::FirmwareCatalog;
use crate::health::HealthReports;
use crate::host::Hosts;
use crate::image::Images;
use crate::machine::Machines;
use crate::machine::probe::Observer;
use crate::node::Nodes;
use crate::node::watch::NodeWatch;
use crate::notify::Notifiers;
use crate::plan::Plans;
use crate::power_shelf::PowerShelves;
use crate::rack::Racks;
use crate::random::Random;
use crate::run::Runs;
use crate::scheduler::{Scheduler, SchedulerState};
use crate::settings::Settings;
use crate::side_facts::SideFacts;
use crate::site::Sites;
use crate::watch::WatchHub;
use model::plan::Defaults;
use model::run::Policy;
use model::time::Timestamp;
use providers::Providers;
use std::sync::Arc;
use std::time::Duration;
use store::{AuditDraft, Replica, Result, Store};
use tokio::sync::watch;

/// Cheap to clone: all clones share one context.
#[derive(Clone)]
pub struct Engine {
    context: Arc<Context>,
    store: Store,
    /// On whose behalf this handle acts.
    caller: Caller,
}

struct Context {
    providers: Providers,
    settings: Settings,
    clock: Clock,
    random: Random,
    stopping: watch::Sender<bool>,
    scheduler: SchedulerState,
    hub: Arc<WatchHub>,
    observer: Observer,
    nodes: NodeWatch,
    side_facts: SideFacts,
    internal: Caller,
}

impl Engine {
    /// Registers this replica and starts its workers. Returns when it is ready for requests.
    pub async fn start_up(
        store: Store,
        providers: Providers,
        settings: Settings,
        clock: Clock,
        random: Random,
    ) -> Result<Self> {
        let incarnation = format!("{}#{:016x}", settings.replica, random());
        let replica = Replica { name: settings.replica.clone(), incarnation };
        let (side_facts, side_fact_receiver) = SideFacts::new();
        let context = Arc::new(Context {
            hub: Arc::new(WatchHub::new(store.clone())),
            providers,
            settings,
            clock,
            random,
            stopping: watch::Sender::new(false),
            scheduler: SchedulerState::new(replica),
            observer: Observer::default(),
            nodes: NodeWatch::default(),
            side_facts,
            internal: Caller::internal(),
        });
        let caller = context.internal.clone();
        let engine = Self { context, store, caller };
        engine.scheduler().start_up().await?;
        tokio::spawn(engine.machines().run_probes());
        tokio::spawn(engine.devices().run_polling());
        tokio::spawn(engine.nodes().run_watch());
        tokio::spawn(engine.runs().run_event_reader());
        tokio::spawn(engine.runs().run_retention());
        tokio::spawn(engine.clone().run_side_facts(side_fact_receiver));
        Ok(engine)
    }

    /// The same engine for a request that may be a dry run: its transaction is executed and rolled
    /// back, so each gate is the real one and the result is what would have been written. Only for
    /// requests of one transaction: a second one would not see the writes of the first.
    #[must_use]
    pub fn with_dry_run(&self, dry_run: bool) -> Self {
        Self { store: self.store.with_dry_run(dry_run), ..self.clone() }
    }

    /// The same engine for the requests of a caller. Admission checks its permissions.
    #[must_use]
    pub fn for_caller(&self, caller: &Caller) -> Self {
        Self { caller: caller.clone(), ..self.clone() }
    }

    /// The same engine for a request whose first commit writes this entry of the audit log.
    #[must_use]
    pub fn with_audit(&self, audit: Option<Arc<AuditDraft>>) -> Self {
        Self { store: self.store.with_audit(audit), ..self.clone() }
    }

    /// The same engine for its own work, which no caller has asked for.
    pub(crate) fn as_internal(&self) -> Self {
        self.for_caller(&self.context.internal).with_audit(None)
    }

    pub fn caller(&self) -> &Caller {
        &self.caller
    }

    /// Stops claiming, waits for short effects, and releases the other claims.
    pub async fn shut_down(&self) {
        self.scheduler().shut_down().await;
    }

    pub fn machines(&self) -> Machines {
        Machines(self.clone())
    }

    pub fn runs(&self) -> Runs {
        Runs(self.clone())
    }

    pub fn approvals(&self) -> Approvals {
        Approvals(self.clone())
    }

    pub fn notifiers(&self) -> Notifiers {
        Notifiers(self.clone())
    }

    pub fn plans(&self) -> Plans {
        Plans(self.clone())
    }

    pub fn racks(&self) -> Racks {
        Racks(self.clone())
    }

    /// Switches and power shelves.
    pub fn devices(&self) -> Devices {
        Devices(self.clone())
    }

    pub fn power_shelves(&self) -> PowerShelves {
        PowerShelves(self.clone())
    }

    pub fn nodes(&self) -> Nodes {
        Nodes(self.clone())
    }

    pub fn clusters(&self) -> Clusters {
        Clusters(self.clone())
    }

    pub fn sites(&self) -> Sites {
        Sites(self.clone())
    }

    pub fn firmware(&self) -> FirmwareCatalog {
        FirmwareCatalog(self.clone())
    }

    pub fn components(&self) -> Components {
        Components(self.clone())
    }

    pub fn images(&self) -> Images {
        Images(self.clone())
    }

    pub fn hosts(&self) -> Hosts {
        Hosts(self.clone())
    }

    pub fn health(&self) -> HealthReports {
        HealthReports(self.clone())
    }

    /// Turns run on behalf of the engine, also the first turn of a run that a caller has started.
    pub fn scheduler(&self) -> Scheduler {
        Scheduler(self.as_internal())
    }

    pub(crate) fn fan_out(&self) -> FanOut {
        FanOut(self.as_internal())
    }

    pub fn store(&self) -> &Store {
        &self.store
    }

    pub fn providers(&self) -> &Providers {
        &self.context.providers
    }

    pub fn settings(&self) -> &Settings {
        &self.context.settings
    }

    pub fn hub(&self) -> &Arc<WatchHub> {
        &self.context.hub
    }

    pub fn now(&self) -> Timestamp {
        (self.context.clock)()
    }

    /// A request id for a request that has none.
    pub fn new_request_id(&self) -> String {
        format!("req-{:016x}", self.random())
    }

    pub(crate) fn random(&self) -> u64 {
        (self.context.random)()
    }

    pub(crate) fn scheduler_state(&self) -> &SchedulerState {
        &self.context.scheduler
    }

    pub(crate) fn node_watch(&self) -> &NodeWatch {
        &self.context.nodes
    }

    pub(crate) fn observer(&self) -> &Observer {
        &self.context.observer
    }

    pub(crate) fn side_facts(&self) -> &SideFacts {
        &self.context.side_facts
    }

    pub(crate) fn defaults(&self) -> &Defaults {
        &self.context.settings.defaults
    }

    pub(crate) fn policy(&self) -> Policy {
        self.context.settings.policy
    }

    pub(crate) fn grace(&self) -> Duration {
        self.context.settings.grace_period
    }

    pub(crate) fn stop(&self) {
        self.context.stopping.send_replace(true);
    }

    /// Resolves when the process stops.
    pub(crate) async fn stopped(&self) {
        let mut stopping = self.context.stopping.subscribe();
        // A dropped sender means that the engine is gone: that is a stop too.
        let _ = stopping.wait_for(|stop| *stop).await;
    }

    pub(crate) fn is_stopping(&self) -> bool {
        *self.context.stopping.borrow()
    }
}
