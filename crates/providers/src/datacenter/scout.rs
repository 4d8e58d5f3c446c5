//! Discovers what is at an address: nothing, a BMC and its systems, or a BMC with another login.

use super::Datacenter;
use super::bmcs::{Visited, peer_at};
use crate::governor::Priority;
use crate::http_client::Endpoint;
use crate::ipmi;
use crate::ipmi::is_ipmi;
use crate::peer_login::Login;
use crate::power::PowerState;
use crate::redfish::{self, Bmc, BmcAddress, Glance, System};
use crate::scout::{Approach, Found, Report, Scout, Survey};
use async_trait::async_trait;
use model::fault::{Code, Fault};
use model::machine::roster::Sighting;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// How long an address may take to accept a connection. A BMC takes milliseconds.
const KNOCK: Duration = Duration::from_secs(3);

#[async_trait]
impl Scout for Datacenter {
    fn peer(&self, endpoint: &str) -> Result<String, Fault> {
        peer_at(endpoint)
    }

    async fn credential(&self, name: &str) -> Result<String, Fault> {
        let named = [name, &self.settings.bmc_credential];
        let name = named.into_iter().find(|name| !name.is_empty());
        let name = name.ok_or_else(|| {
            let said =
                "no credential is named: give --credential NAME, or set datacenter.bmc_credential";
            Fault::new(Code::CredentialMissing, said)
        })?;
        Login::of(&self.store.credential(name).await?)?;
        Ok(name.to_string())
    }

    async fn test(&self, approach: &Approach) -> Report {
        self.try_out(approach).await
    }

    async fn survey(&self, endpoint: &str, credential: &str) -> Survey {
        let peer = match peer_at(endpoint) {
            Ok(peer) => peer,
            Err(fault) => return Survey::Failed(fault),
        };
        // Without a listener there is no BMC to protect, and no failure for the governor to count.
        if let Ok(place) = BmcAddress::parse(endpoint)
            && !is_ipmi(endpoint)
            && let Err(said) = knock(&place.endpoint, KNOCK).await
        {
            return Survey::Nobody(said);
        }
        let look = self.look_behind(&peer, endpoint, credential);
        let limit = self.settings.call;
        match self.bmcs.governor.call(&peer, Priority::Operator, limit, look).await {
            Ok(found) => Survey::Found(found),
            Err(fault) if fault.code == Code::BmcUnreachable => Survey::Nobody(fault.said),
            Err(fault) => Survey::Failed(fault),
        }
    }
}

impl Datacenter {
    async fn look_behind(
        &self,
        peer: &str,
        endpoint: &str,
        credential: &str,
    ) -> Result<Vec<Found>, Fault> {
        match self.bmcs.visit(peer, endpoint, credential, None).await? {
            Visited::Ipmi(bmc) => Ok(vec![ipmi_found(endpoint, &bmc).await?]),
            Visited::Redfish(bmc) => {
                let found = behind(&bmc).await;
                // BMCs allow few sessions.
                bmc.close().await;
                found
            }
        }
    }
}

async fn behind(bmc: &Bmc) -> Result<Vec<Found>, Fault> {
    let hosts = bmc.hosts().await?;
    let alone = hosts.len() == 1;
    let mut found = Vec::new();
    for host in &hosts {
        found.push(glanced(bmc, host, alone).await?);
    }
    Ok(found)
}

/// A system behind a Redfish BMC. Its endpoint contains its path if there are several.
pub(super) async fn glanced(bmc: &Bmc, system: &System, alone: bool) -> Result<Found, Fault> {
    let Glance { path, vendor, model, serial, power, nics, .. } = system.glance().await?;
    let named = !alone || bmc.names_system();
    let endpoint =
        if named { format!("{}{path}", bmc.endpoint()) } else { bmc.endpoint().to_string() };
    let sighting = Sighting {
        endpoint,
        vendor: vendor.or(bmc.about().vendor).unwrap_or_default(),
        model: model.unwrap_or_default(),
        serial: serial.unwrap_or_default(),
        macs: nics.into_iter().map(|nic| nic.mac).collect(),
    };
    Ok(Found { sighting, power: power.map(simple) })
}

pub(super) async fn ipmi_found(endpoint: &str, bmc: &ipmi::Bmc) -> Result<Found, Fault> {
    let identity = bmc.identity().await?;
    let power = match bmc.power().await? {
        ipmi::Power::On => PowerState::On,
        ipmi::Power::Off => PowerState::Off,
    };
    let sighting = Sighting {
        endpoint: endpoint.to_string(),
        vendor: format!("manufacturer {} (IANA)", identity.manufacturer),
        model: format!("product {}", identity.product),
        ..Sighting::default()
    };
    Ok(Found { sighting, power: Some(power) })
}

const fn simple(power: redfish::Power) -> PowerState {
    match power {
        redfish::Power::On => PowerState::On,
        redfish::Power::Off => PowerState::Off,
        redfish::Power::PoweringOn | redfish::Power::PoweringOff => PowerState::Changing,
    }
}

/// Whether a TCP connection is accepted. The error text says why not.
pub(super) async fn knock(place: &Endpoint, limit: Duration) -> Result<(), String> {
    let address = (place.host(), place.port());
    match timeout(limit, TcpStream::connect(address)).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) => Err(format!("{place} could not be connected to: {error}")),
        Err(_) => Err(format!("{place} took no connection within {} s", limit.as_secs())),
    }
}
