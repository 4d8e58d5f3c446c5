//! The provider for machines with IPMI only: power and boot device, no host. It wraps the
//! datacenter provider with fewer capabilities, so that a plan that needs more is refused.

use super::Datacenter;
use crate::inspect::{Inspection, Inspector};
use crate::port::{Journal, Provider, Target};
use crate::power::PowerState;
use crate::redfish::LogEntry;
use async_trait::async_trait;
use model::condition::ConditionObservation;
use model::effect::{CallResult, Capability, ProviderCall};
use model::fault::Result;
use model::machine::MachineSpec;
use model::refusal::Refusal;
use std::sync::Arc;

const SCHEME: &str = "ipmi://";
const FIELD: &str = "machine.spec.bmc_endpoint";

pub struct IpmiOnly(pub Arc<Datacenter>);

impl IpmiOnly {
    pub const NAME: &'static str = "ipmi";
}

#[async_trait]
impl Provider for IpmiOnly {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn capabilities(&self) -> &'static [Capability] {
        &[Capability::Inspect, Capability::PowerControl, Capability::Netboot]
    }

    fn check(&self, spec: &MachineSpec) -> Result<(), Refusal> {
        match spec.bmc_endpoint.split_once("://") {
            Some(("ipmi", _)) | None => Ok(()),
            Some((scheme, _)) => {
                let problem = format!("begins with {scheme}://, and the provider is ipmi");
                let instead = "write ipmi://HOST, or choose the provider datacenter";
                Err(Refusal::invalid(FIELD, problem, instead))
            }
        }
    }

    fn peers(&self, spec: &MachineSpec) -> Vec<String> {
        self.0.peers(&spec_by_ipmi(spec))
    }

    async fn call(&self, target: &Target, call: &ProviderCall, journal: &Journal) -> CallResult {
        self.0.call(&by_ipmi(target), call, journal).await
    }

    async fn probe(&self, target: &Target) -> Result<Vec<ConditionObservation>> {
        self.0.probe(&by_ipmi(target)).await
    }

    async fn boots_from_disk(&self, target: &Target) -> Result<Option<bool>> {
        self.0.boots_from_disk(&by_ipmi(target)).await
    }

    async fn probe_hardware(&self, target: &Target) -> Result<Option<ConditionObservation>> {
        self.0.probe_hardware(&by_ipmi(target)).await
    }

    fn degraded_reason(&self, target: &Target) -> Option<String> {
        self.0.degraded_reason(&by_ipmi(target))
    }

    fn inspector(&self) -> Option<&dyn Inspector> {
        Some(self)
    }
}

#[async_trait]
impl Inspector for IpmiOnly {
    async fn inspect(&self, target: &Target) -> Result<Inspection> {
        self.0.inspect(&by_ipmi(target)).await
    }

    async fn event_log(&self, target: &Target, count: usize) -> Result<Vec<LogEntry>> {
        self.0.event_log(&by_ipmi(target), count).await
    }

    async fn power_now(&self, target: &Target) -> Result<PowerState> {
        self.0.power_now(&by_ipmi(target)).await
    }
}

/// Here an address without a scheme means IPMI.
fn by_ipmi(target: &Target) -> Target {
    Target { id: target.id.clone(), spec: spec_by_ipmi(&target.spec) }
}

fn spec_by_ipmi(spec: &MachineSpec) -> MachineSpec {
    let mut spec = spec.clone();
    let endpoint = &mut spec.bmc_endpoint;
    if !endpoint.is_empty() && !endpoint.contains("://") {
        endpoint.insert_str(0, SCHEME);
    }
    spec
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::datacenter::Settings;
    use crate::state_store::InMemoryStateStore;
    use model::id::MachineId;

    #[test]
    fn only_ipmi_addresses_are_accepted() {
        let ipmi = IpmiOnly(Arc::new(Datacenter::new(
            Arc::new(InMemoryStateStore::default()),
            Settings::default(),
        )));
        for (endpoint, expected) in [
            ("", Some("")),
            ("10.0.0.7", Some("ipmi://10.0.0.7")),
            ("10.0.0.7:6230", Some("ipmi://10.0.0.7:6230")),
            ("ipmi://10.0.0.7", Some("ipmi://10.0.0.7")),
            ("https://10.0.0.7", None),
        ] {
            let spec = MachineSpec { bmc_endpoint: endpoint.into(), ..MachineSpec::default() };
            assert_eq!(ipmi.check(&spec).is_ok(), expected.is_some(), "{endpoint}");
            let target =
                Target { id: model::target::TargetId::from(&MachineId::trusted("m-1")), spec };
            if let Some(expected) = expected {
                assert_eq!(by_ipmi(&target).spec.bmc_endpoint, expected);
                let peers = Some(expected).filter(|one| !one.is_empty());
                assert_eq!(ipmi.peers(&target.spec), Vec::from_iter(peers));
            }
        }
    }
}
