//! Interfaces and their links to subnets. They can be changed while Ready, Allocated or Broken.

use super::Maas;
use super::call::Call;
use super::parts::{Interface, LinkMode, Subnet};
use super::verdict::About;
use crate::http_client::form::{Form, encode};
use model::fault::Fault;

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
pub struct LinkWanted {
    pub subnet: i64,
    pub mode: LinkMode,
    /// Only for static links; `None`: MAAS chooses.
    pub ip_address: Option<String>,
    pub default_gateway: bool,
}

impl Maas {
    pub async fn interfaces(&self, system_id: &str) -> Result<Vec<Interface>, Fault> {
        self.read(Call::get(all(system_id)).about(About::Machine)).await
    }

    pub async fn update_interface(
        &self,
        system_id: &str,
        interface: i64,
        change: &InterfaceChange,
    ) -> Result<Interface, Fault> {
        let form = Form::default()
            .maybe("name", change.name.as_ref())
            .maybe("mtu", change.mtu)
            .maybe("vlan", change.vlan)
            .maybe("tags", change.tags.as_ref().map(|tags| tags.join(",")));
        self.read(Call::put(one(system_id, interface)).about(About::Part).form(form)).await
    }

    /// Adds a link. Not idempotent: a second request adds a second link.
    pub async fn link_subnet(
        &self,
        system_id: &str,
        interface: i64,
        wanted: &LinkWanted,
    ) -> Result<Interface, Fault> {
        let form = Form::default()
            .with("mode", wanted.mode.as_str())
            .with("subnet", wanted.subnet)
            .maybe("ip_address", wanted.ip_address.as_ref())
            .maybe("default_gateway", wanted.default_gateway.then_some(true));
        let call = Call::post(one(system_id, interface)).op("link_subnet").about(About::Part);
        self.read(call.form(form)).await
    }

    pub async fn unlink_subnet(
        &self,
        system_id: &str,
        interface: i64,
        link: i64,
    ) -> Result<Interface, Fault> {
        let call = Call::post(one(system_id, interface)).op("unlink_subnet").about(About::Part);
        self.read(call.form(Form::default().with("id", link))).await
    }

    pub async fn subnets(&self) -> Result<Vec<Subnet>, Fault> {
        self.read(Call::get("subnets/")).await
    }
}

fn all(system_id: &str) -> String {
    format!("nodes/{}/interfaces/", encode(system_id))
}

fn one(system_id: &str, interface: i64) -> String {
    format!("{}{interface}/", all(system_id))
}
