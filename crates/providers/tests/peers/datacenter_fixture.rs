//! A caller of the datacenter provider for tests. It keeps the state store, so that each call can
//! go to a new replica.

use crate::fake_bmc::{PASSWORD, settings as redfish_settings};
use crate::http::Peer;
use model::effect::{
    CallResult, CallVerb, DeviceWork, Effect, EffectKey, ProviderAnswer, ProviderCall,
};
use model::id::RunId;
use model::machine::MachineSpec;
use model::target::{TargetId, TargetKind};
use providers::datacenter::{Datacenter, FabricTimeouts, FirmwareTimeouts, Settings};
use providers::power::PowerTimeouts;
use providers::redfish::Auth;
use providers::state_store::{InMemoryStateStore, ProviderStateStore, Secret};
use providers::{Journal, Provider, Target};
use std::sync::Arc;
use std::time::Duration;

pub struct DatacenterFixture {
    pub store: Arc<InMemoryStateStore>,
    pub settings: Settings,
}

impl DatacenterFixture {
    pub fn new() -> Self {
        let store = Arc::new(InMemoryStateStore::default());
        let password = PASSWORD.to_string().into();
        store.set_credential("bmc", Secret::Password { user: "root".into(), password });
        let power_timeouts = PowerTimeouts {
            graceful: Duration::ZERO,
            force: true,
            change: Duration::from_secs(20),
            repeat_after: Duration::from_secs(1),
        };
        let settings = Settings {
            bmc_credential: "bmc".into(),
            ssh_credential: "host".into(),
            power_timeouts,
            call_timeout: Duration::from_secs(15),
            redfish: redfish_settings(Auth::Basic),
            firmware: FirmwareTimeouts {
                poll_interval: Duration::from_millis(20),
                settle: Duration::from_secs(2),
                max_unreachable: Duration::from_secs(20),
            },
            fabric: FabricTimeouts {
                poll_interval: Duration::from_millis(50),
                repeat_after: Duration::from_secs(20),
                limit: Duration::from_secs(3),
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
    pub async fn call_with_log(
        &self,
        target: &Target,
        verb: CallVerb,
        effect: &Effect,
    ) -> (CallResult, String) {
        let call =
            ProviderCall { key: key(effect), verb, effect: effect.clone(), log_offset_bytes: 0 };
        let (journal, mut lines) = Journal::new();
        let reader = tokio::spawn(async move {
            let mut log = String::new();
            while let Some(line) = lines.recv().await {
                log.push_str(&String::from_utf8(line.data).unwrap());
            }
            log
        });
        let answer = self.replica().call(target, &call, &journal).await;
        drop(journal);
        (answer, reader.await.unwrap())
    }

    pub async fn call_provider(
        &self,
        target: &Target,
        verb: CallVerb,
        effect: &Effect,
    ) -> CallResult {
        self.call_with_log(target, verb, effect).await.0
    }
}

pub fn key(effect: &Effect) -> EffectKey {
    EffectKey::new(&RunId::trusted("op-1"), effect.name(), 1)
}

pub fn target(kind: TargetKind, spec: MachineSpec) -> Target {
    Target { id: TargetId::new(kind, "device-1"), spec }
}

pub fn target_behind(kind: TargetKind, peer: &Peer) -> Target {
    target(kind, MachineSpec { bmc_endpoint: peer.url(), ..MachineSpec::default() })
}

pub fn work(work: DeviceWork) -> Effect {
    Effect::Device { work }
}

/// The message of the outcome. Panics unless the effect is done.
pub fn done_message(answer: CallResult) -> String {
    match answer {
        Ok(ProviderAnswer::Done(outcome)) => outcome.message,
        other => panic!("{other:?}"),
    }
}
