//! Disks, interfaces and their links to subnets, as MAAS reports them. A missing or null field is
//! the default; unknown fields are ignored.

use serde::{Deserialize, Deserializer};

/// Reads null as the default.
pub(super) fn nullable<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Option::<T>::deserialize(deserializer).map(Option::unwrap_or_default)
}

/// A pool or a zone.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(default)]
pub struct NamedResource {
    pub id: i64,
    #[serde(deserialize_with = "nullable")]
    pub name: String,
    #[serde(deserialize_with = "nullable")]
    pub description: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(default)]
pub struct BlockDevice {
    pub id: i64,
    /// The kernel's name for it, `sda` or `nvme0n1`.
    #[serde(deserialize_with = "nullable")]
    pub name: String,
    /// `physical`, or the kind of a virtual device.
    #[serde(rename = "type", deserialize_with = "nullable")]
    pub kind: String,
    #[serde(deserialize_with = "nullable")]
    pub model: String,
    #[serde(deserialize_with = "nullable")]
    pub serial: String,
    /// A stable path under /dev.
    #[serde(deserialize_with = "nullable")]
    pub id_path: String,
    #[serde(deserialize_with = "nullable")]
    pub path: String,
    #[serde(rename = "size", deserialize_with = "nullable")]
    pub size_bytes: u64,
    #[serde(deserialize_with = "nullable")]
    pub used_for: String,
    #[serde(deserialize_with = "nullable")]
    pub firmware_version: String,
    #[serde(deserialize_with = "nullable")]
    pub tags: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(default)]
pub struct Vlan {
    pub id: i64,
    pub vid: i64,
    #[serde(deserialize_with = "nullable")]
    pub name: String,
    #[serde(deserialize_with = "nullable")]
    pub fabric: String,
    #[serde(deserialize_with = "nullable")]
    pub mtu: u32,
    #[serde(deserialize_with = "nullable")]
    pub dhcp_on: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(default)]
pub struct Subnet {
    pub id: i64,
    #[serde(deserialize_with = "nullable")]
    pub name: String,
    #[serde(deserialize_with = "nullable")]
    pub cidr: String,
    pub gateway_ip: Option<String>,
    pub vlan: Option<Vlan>,
    #[serde(deserialize_with = "nullable")]
    pub managed: bool,
}

/// The method by which an interface gets its address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkMode {
    /// MAAS chooses an address when the machine is deployed.
    Auto,
    Dhcp,
    Static,
    /// Up, and without an address.
    LinkUp,
}

impl LinkMode {
    pub const ALL: [Self; 4] = [Self::Auto, Self::Dhcp, Self::Static, Self::LinkUp];

    /// As MAAS accepts it; MAAS reports it in lower case.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "AUTO",
            Self::Dhcp => "DHCP",
            Self::Static => "STATIC",
            Self::LinkUp => "LINK_UP",
        }
    }
}

/// An unknown mode is `None`, so that one machine cannot make the whole list unreadable.
fn mode<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<LinkMode>, D::Error> {
    let name: String = nullable(deserializer)?;
    Ok(LinkMode::ALL.into_iter().find(|mode| mode.as_str().eq_ignore_ascii_case(&name)))
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(default)]
pub struct Link {
    pub id: i64,
    #[serde(deserialize_with = "mode")]
    pub mode: Option<LinkMode>,
    pub subnet: Option<Subnet>,
    pub ip_address: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(default)]
pub struct Interface {
    pub id: i64,
    #[serde(deserialize_with = "nullable")]
    pub name: String,
    /// `physical`, `bond`, `vlan`, `bridge`.
    #[serde(rename = "type", deserialize_with = "nullable")]
    pub kind: String,
    #[serde(deserialize_with = "nullable")]
    pub mac_address: String,
    #[serde(deserialize_with = "nullable")]
    pub enabled: bool,
    #[serde(deserialize_with = "nullable")]
    pub link_connected: bool,
    /// In Mbit/s; zero when unknown.
    #[serde(deserialize_with = "nullable")]
    pub link_speed: u64,
    #[serde(deserialize_with = "nullable")]
    pub effective_mtu: u32,
    #[serde(deserialize_with = "nullable")]
    pub vendor: String,
    #[serde(deserialize_with = "nullable")]
    pub product: String,
    pub vlan: Option<Vlan>,
    #[serde(deserialize_with = "nullable")]
    pub links: Vec<Link>,
    #[serde(deserialize_with = "nullable")]
    pub tags: Vec<String>,
}
