//! A caller of the datacenter provider for tests. It keeps the state store, so that each call can
//! go to a new replica.

use crate::http::Peer;
use crate::world::{PASSWORD, settings as redfish_settings};
use model::effect::{Answer, DeviceWork, Effect, Key, Order, Verb};
use model::fault::Fault;
use model::id::RunId;
use model::machine::MachineSpec;
use model::target::{TargetId, TargetKind};
use providers::datacenter::{Datacenter, FabricPatience, FirmwarePatience, Settings};
use providers::power::PowerTimeouts;
use providers::redfish::Auth;
use providers::state_store::{InMemoryStateStore, ProviderStateStore, Secret};
use providers::{Journal, Provider, Target};
use std::sync::Arc;
use std::time::Duration;

pub struct Desk {
    pub store: Arc<InMemoryStateStore>,
    pub settings: Settings,
}

impl Desk {
    pub fn new() -> Self {
        let store = Arc::new(InMemoryStateStore::default());
        let password = PASSWORD.to_string().into();
        store.set("bmc", Secret::Password { user: "root".into(), password });
        let power_timeouts = PowerTimeouts {
            graceful: Duration::ZERO,
            force: true,
            change: Duration::from_secs(20),
            again: Duration::from_secs(1),
        };
        let settings = Settings {
            bmc_credential: "bmc".into(),
            ssh_credential: "host".into(),
            power_timeouts,
            call: Duration::from_secs(15),
            redfish: redfish_settings(Auth::Basic),
            firmware: FirmwarePatience {
                look_every: Duration::from_millis(20),
                settle: Duration::from_secs(2),
                away: Duration::from_secs(20),
            },
            fabric: FabricPatience {
                look_every: Duration::from_millis(50),
                again: Duration::from_secs(20),
                within: Duration::from_secs(3),
            },
            ..Settings::default()
        };
        Self { store, settings }
    }

    /// A replica without memory.
    pub fn replica(&self) -> Datacenter {
        Datacenter::new(
            Arc::clone(&self.store) as Arc<dyn ProviderStateStore>,
            self.settings.clone(),
        )
    }

    /// Calls a new replica and returns its answer and its log.
    pub async fn ask_and_read(
        &self,
        target: &Target,
        verb: Verb,
        effect: &Effect,
    ) -> (Result<Answer, Fault>, String) {
        let order = Order { key: key(effect), verb, effect: effect.clone(), logged: 0 };
        let (journal, mut lines) = Journal::new();
        let reader = tokio::spawn(async move {
            let mut log = String::new();
            while let Some(line) = lines.recv().await {
                log.push_str(&String::from_utf8(line.data).unwrap());
            }
            log
        });
        let answer = self.replica().ask(target, &order, &journal).await;
        drop(journal);
        (answer, reader.await.unwrap())
    }

    pub async fn ask(&self, target: &Target, verb: Verb, effect: &Effect) -> Result<Answer, Fault> {
        self.ask_and_read(target, verb, effect).await.0
    }
}

pub fn key(effect: &Effect) -> Key {
    Key::new(&RunId::trusted("op-1"), effect.word(), 1)
}

pub fn target(kind: TargetKind, spec: MachineSpec) -> Target {
    Target { id: TargetId::new(kind, "device-1"), spec }
}

pub fn behind(kind: TargetKind, peer: &Peer) -> Target {
    target(kind, MachineSpec { bmc_endpoint: peer.url(), ..MachineSpec::default() })
}

pub fn work(work: DeviceWork) -> Effect {
    Effect::Device { work }
}

/// The message of the outcome. Panics unless the effect is done.
pub fn said(answer: Result<Answer, Fault>) -> String {
    match answer {
        Ok(Answer::Done(outcome)) => outcome.said,
        other => panic!("{other:?}"),
    }
}
