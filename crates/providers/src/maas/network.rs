//! Interfaces and their links to subnets. MAAS changes those of machines that are Ready, Allocated
//! or Broken.

use super::Maas;
use super::call::Call;
use super::classify::CallTarget;
use super::hardware::{Interface, LinkMode, Subnet};
use crate::http_client::form::{Form, encode};
use model::fault::Result;

/// A change of an interface. Unset fields stay.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InterfaceChange {
    pub name: Option<String>,
    pub mtu: Option<u32>,
    /// The id of a VLAN in MAAS, not its VLAN number.
    pub vlan: Option<i64>,
    pub tags: Option<Vec<String>>,
}

/// A link to create between an interface and a subnet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkRequest {
    pub subnet: i64,
    pub mode: LinkMode,
    /// Only for static links; `None`: MAAS chooses.
    pub ip_address: Option<String>,
    pub default_gateway: bool,
}

impl Maas {
    pub async fn interfaces(&self, system_id: &str) -> Result<Vec<Interface>> {
        self.read(Call::get(all(system_id)).about(CallTarget::Machine)).await
    }

    pub async fn update_interface(
        &self,
        system_id: &str,
        interface: i64,
        change: &InterfaceChange,
    ) -> Result<Interface> {
        let form = Form::default()
            .with_optional("name", change.name.as_ref())
            .with_optional("mtu", change.mtu)
            .with_optional("vlan", change.vlan)
            .with_optional("tags", change.tags.as_ref().map(|tags| tags.join(",")));
        self.read(Call::put(one(system_id, interface)).about(CallTarget::Component).form(form))
            .await
    }

    /// Adds a link. Not idempotent: a second request adds a second link.
    pub async fn link_subnet(
        &self,
        system_id: &str,
        interface: i64,
        desired: &LinkRequest,
    ) -> Result<Interface> {
        let form = Form::default()
            .with("mode", desired.mode.as_str())
            .with("subnet", desired.subnet)
            .with_optional("ip_address", desired.ip_address.as_ref())
            .with_optional("default_gateway", desired.default_gateway.then_some(true));
        let call =
            Call::post(one(system_id, interface)).op("link_subnet").about(CallTarget::Component);
        self.read(call.form(form)).await
    }

    pub async fn unlink_subnet(
        &self,
        system_id: &str,
        interface: i64,
        link: i64,
    ) -> Result<Interface> {
        let call =
            Call::post(one(system_id, interface)).op("unlink_subnet").about(CallTarget::Component);
        self.read(call.form(Form::default().with("id", link))).await
    }

    pub async fn subnets(&self) -> Result<Vec<Subnet>> {
        self.read(Call::get("subnets/")).await
    }
}

fn all(system_id: &str) -> String {
    format!("nodes/{}/interfaces/", encode(system_id))
}

fn one(system_id: &str, interface: i64) -> String {
    format!("{}{interface}/", all(system_id))
}
