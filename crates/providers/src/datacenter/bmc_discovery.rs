//! Discovers what is at an address: nothing, a BMC and its systems, or a BMC with another login.

use super::Datacenter;
use super::bmcs::{ConnectedBmc, peer_of_endpoint};
use crate::bmc_discovery::{
    BmcAccess, BmcDiscovery, BmcProbeResult, BmcTestReport, DiscoveredSystem,
};
use crate::fault::LocalShortage;
use crate::governor::Priority;
use crate::http_client::Endpoint;
use crate::ipmi;
use crate::ipmi::is_ipmi;
use crate::peer_login::{BMC_WANTS, wrong_kind};
use crate::power::PowerState;
use crate::redfish::{self, Bmc, BmcAddress, System, SystemIdentity};
use async_trait::async_trait;
use model::fault::{Fault, FaultCode, Result};
use model::machine::matcher::DiscoveredMachine;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// The time that an address has to accept a connection. A BMC takes milliseconds.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

#[async_trait]
impl BmcDiscovery for Datacenter {
    fn peer(&self, endpoint: &str) -> Result<String> {
        peer_of_endpoint(endpoint)
    }

    async fn credential(&self, name: &str) -> Result<String> {
        let named = [name, &self.settings.bmc_credential];
        let name = named.into_iter().find(|name| !name.is_empty());
        let name = name.ok_or_else(|| {
            let message =
                "no credential is named: give --credential NAME, or set datacenter.bmc_credential";
            Fault::new(FaultCode::CredentialMissing, message)
        })?;
        match self.store.credential_facts(name).await?.is_password() {
            true => Ok(name.to_string()),
            false => Err(wrong_kind(name, BMC_WANTS)),
        }
    }

    async fn test_bmc(&self, approach: &BmcAccess) -> BmcTestReport {
        self.run_bmc_test(approach).await
    }

    async fn discover(&self, endpoint: &str, credential: &str) -> BmcProbeResult {
        let peer = match peer_of_endpoint(endpoint) {
            Ok(peer) => peer,
            Err(fault) => return BmcProbeResult::Failed(fault),
        };
        // Without a listener there is no BMC to protect, and no failure for the governor to count.
        if let Ok(position) = BmcAddress::parse(endpoint)
            && !is_ipmi(endpoint)
            && let Err(fault) = check_port(&position.endpoint, CONNECT_TIMEOUT).await
        {
            return match fault.code.is_local() {
                true => BmcProbeResult::Failed(fault),
                false => BmcProbeResult::NoAnswer(fault.message),
            };
        }
        let probe = self.list_systems(&peer, endpoint, credential);
        let limit = self.settings.call_timeout;
        match self.bmcs.governor.call(&peer, Priority::Operator, limit, probe).await {
            Ok(found) => BmcProbeResult::Found(found),
            Err(fault) if fault.code == FaultCode::BmcUnreachable => {
                BmcProbeResult::NoAnswer(fault.message)
            }
            Err(fault) => BmcProbeResult::Failed(fault),
        }
    }
}

impl Datacenter {
    async fn list_systems(
        &self,
        peer: &str,
        endpoint: &str,
        credential: &str,
    ) -> Result<Vec<DiscoveredSystem>> {
        match self.bmcs.connect_unregistered(peer, endpoint, credential, None).await? {
            ConnectedBmc::Ipmi(bmc) => Ok(vec![describe_ipmi_system(endpoint, &bmc).await?]),
            ConnectedBmc::Redfish(bmc) => {
                let found = redfish_systems(&bmc).await;
                // BMCs allow few sessions.
                bmc.close().await;
                found
            }
        }
    }
}

async fn redfish_systems(bmc: &Bmc) -> Result<Vec<DiscoveredSystem>> {
    let hosts = bmc.hosts().await?;
    let alone = hosts.len() == 1;
    let mut found = Vec::new();
    for host in &hosts {
        found.push(describe_system(bmc, host, alone).await?);
    }
    Ok(found)
}

/// A system behind a Redfish BMC. Its endpoint contains its path if there are several.
pub(super) async fn describe_system(
    bmc: &Bmc,
    system: &System,
    alone: bool,
) -> Result<DiscoveredSystem> {
    let SystemIdentity { path, vendor, model, serial, power, nics, .. } = system.identity().await?;
    let named = !alone || bmc.names_system();
    let endpoint =
        if named { format!("{}{path}", bmc.endpoint()) } else { bmc.endpoint().to_string() };
    let discovered = DiscoveredMachine {
        endpoint,
        vendor: vendor.or(bmc.about().vendor).unwrap_or_default(),
        model: model.unwrap_or_default(),
        serial: serial.unwrap_or_default(),
        macs: nics.into_iter().map(|nic| nic.mac).collect(),
    };
    Ok(DiscoveredSystem { system: discovered, power: power.map(power_state) })
}

pub(super) async fn describe_ipmi_system(
    endpoint: &str,
    bmc: &ipmi::Bmc,
) -> Result<DiscoveredSystem> {
    let identity = bmc.identity().await?;
    let power = match bmc.power().await? {
        ipmi::Power::On => PowerState::On,
        ipmi::Power::Off => PowerState::Off,
    };
    let discovered = DiscoveredMachine {
        endpoint: endpoint.to_string(),
        vendor: format!("manufacturer {} (IANA)", identity.manufacturer),
        model: format!("product {}", identity.product),
        ..DiscoveredMachine::default()
    };
    Ok(DiscoveredSystem { system: discovered, power: Some(power) })
}

const fn power_state(power: redfish::Power) -> PowerState {
    match power {
        redfish::Power::On => PowerState::On,
        redfish::Power::Off => PowerState::Off,
        redfish::Power::PoweringOn | redfish::Power::PoweringOff => PowerState::Changing,
    }
}

/// Checks that the address accepts a TCP connection. The error text says why not.
pub(super) async fn check_port(position: &Endpoint, limit: Duration) -> Result<()> {
    let address = (position.host(), position.port());
    let message = match timeout(limit, TcpStream::connect(address)).await {
        Ok(Ok(_)) => return Ok(()),
        Ok(Err(error)) => match LocalShortage::of(&error) {
            Some(shortage) => return Err(shortage.fault(position)),
            None => format!("{position} could not be connected to: {error}"),
        },
        Err(_) => format!("{position} took no connection within {} s", limit.as_secs()),
    };
    Err(Fault::new(FaultCode::BmcUnreachable, message))
}
