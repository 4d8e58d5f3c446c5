//! What the region itself tells: who it is, who we are there, and what there is to choose from.

use super::Maas;
use super::call::Call;
use super::parts::{Named, nullable};
use crate::http_client::form::{Form, encode};
use model::fault::Fault;
use serde::Deserialize;

#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(default)]
pub struct Version {
    #[serde(deserialize_with = "nullable")]
    pub version: String,
    #[serde(deserialize_with = "nullable")]
    pub subversion: String,
    #[serde(deserialize_with = "nullable")]
    pub capabilities: Vec<String>,
}

/// The user whose key we have.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Whoami {
    pub username: String,
    /// Most of what is asked for here needs this.
    #[serde(default, deserialize_with = "nullable")]
    pub is_superuser: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Tag {
    pub name: String,
    #[serde(default, deserialize_with = "nullable")]
    pub comment: String,
    /// A tag with a definition is put on machines by MAAS itself.
    #[serde(default, deserialize_with = "nullable")]
    pub definition: String,
}

/// Which machines get a tag and which lose it, by their system ids.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TagChange {
    pub add: Vec<String>,
    pub remove: Vec<String>,
}

/// An image that can be deployed, or something to boot one with.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct BootResource {
    pub id: i64,
    /// `ubuntu/jammy`, or `custom/NAME`.
    pub name: String,
    #[serde(default, deserialize_with = "nullable")]
    pub architecture: String,
    /// `Synced` or `Uploaded`.
    #[serde(rename = "type", default, deserialize_with = "nullable")]
    pub kind: String,
}

impl Maas {
    /// MAAS tells its version to everybody, so this says whether it is there and not whether the key is right.
    pub async fn version(&self) -> Result<Version, Fault> {
        self.read(Call::get("version/").open()).await
    }

    pub async fn whoami(&self) -> Result<Whoami, Fault> {
        self.read(Call::get("users/").op("whoami")).await
    }

    pub async fn pools(&self) -> Result<Vec<Named>, Fault> {
        self.read(Call::get("resourcepools/")).await
    }

    pub async fn zones(&self) -> Result<Vec<Named>, Fault> {
        self.read(Call::get("zones/")).await
    }

    pub async fn boot_resources(&self) -> Result<Vec<BootResource>, Fault> {
        self.read(Call::get("boot-resources/")).await
    }

    pub async fn tags(&self) -> Result<Vec<Tag>, Fault> {
        self.read(Call::get("tags/")).await
    }

    pub async fn create_tag(&self, name: &str, comment: &str) -> Result<Tag, Fault> {
        let form = Form::default().with("name", name).with("comment", comment);
        self.read(Call::post("tags/").form(form)).await
    }

    /// Puts a tag on machines and takes it from others.
    pub async fn tag_machines(&self, tag: &str, change: &TagChange) -> Result<(), Fault> {
        let form = Form::default().each("add", &change.add).each("remove", &change.remove);
        let call = Call::post(format!("tags/{}/", encode(tag))).op("update_nodes").harmless();
        self.done(call.form(form)).await
    }
}
