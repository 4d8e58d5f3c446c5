//! Requests about the region itself: version, user, pools, zones, images and tags.

use super::Maas;
use super::call::Call;
use super::hardware::{NamedResource, nullable};
use crate::http_client::form::{Form, encode};
use model::fault::Result;
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

/// The user of our API key.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Whoami {
    pub username: String,
    /// Most requests need this.
    #[serde(default, deserialize_with = "nullable")]
    pub is_superuser: bool,
}

impl Whoami {
    /// The problem with the site's key, unless it is an administrator's.
    pub fn administrator_problem(&self) -> Option<String> {
        let user = &self.username;
        (!self.is_superuser).then(|| {
            format!(
                "site.spec.maas_credential is the key of {user}, who is no administrator of MAAS; give one of an administrator"
            )
        })
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Tag {
    pub name: String,
    #[serde(default, deserialize_with = "nullable")]
    pub comment: String,
    /// MAAS itself assigns a tag that has a definition.
    #[serde(default, deserialize_with = "nullable")]
    pub definition: String,
}

/// System ids of the machines that get a tag and of those that lose it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TagChange {
    pub add: Vec<String>,
    pub remove: Vec<String>,
}

/// A deployable image, or a boot resource for one.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct BootResource {
    pub id: i64,
    /// `ubuntu/jammy`. An uploaded image has no system: see [`BootResource::image`].
    pub name: String,
    #[serde(default, deserialize_with = "nullable")]
    pub architecture: String,
    /// `Synced` or `Uploaded`.
    #[serde(rename = "type", default, deserialize_with = "nullable")]
    pub kind: String,
}

/// The system of an uploaded image, which MAAS leaves out of its list.
const UPLOADED: &str = "custom";

impl BootResource {
    /// The image as a deployment names it: `ubuntu/jammy`, `custom/NAME`.
    pub fn image(&self) -> String {
        match self.name.contains('/') {
            true => self.name.clone(),
            false => format!("{UPLOADED}/{}", self.name),
        }
    }
}

impl Maas {
    /// Needs no login: it shows that MAAS is there, not that the key is valid.
    pub async fn version(&self) -> Result<Version> {
        self.read(Call::get("version/").open()).await
    }

    pub async fn whoami(&self) -> Result<Whoami> {
        self.read(Call::get("users/").op("whoami")).await
    }

    pub async fn pools(&self) -> Result<Vec<NamedResource>> {
        self.read(Call::get("resourcepools/")).await
    }

    pub async fn zones(&self) -> Result<Vec<NamedResource>> {
        self.read(Call::get("zones/")).await
    }

    pub async fn boot_resources(&self) -> Result<Vec<BootResource>> {
        self.read(Call::get("boot-resources/")).await
    }

    /// The images of the region, each once: MAAS has a resource for each kernel and architecture.
    pub async fn images(&self) -> Result<Vec<String>> {
        let resources = self.boot_resources().await?;
        let mut images: Vec<String> = Vec::new();
        for image in resources.iter().map(BootResource::image) {
            if !images.contains(&image) {
                images.push(image);
            }
        }
        Ok(images)
    }

    pub async fn tags(&self) -> Result<Vec<Tag>> {
        self.read(Call::get("tags/")).await
    }

    pub async fn create_tag(&self, name: &str, comment: &str) -> Result<Tag> {
        let form = Form::default().with("name", name).with("comment", comment);
        self.read(Call::post("tags/").form(form)).await
    }

    pub async fn tag_machines(&self, tag: &str, change: &TagChange) -> Result<()> {
        let form = Form::default().each("add", &change.add).each("remove", &change.remove);
        let call = Call::post(format!("tags/{}/", encode(tag))).op("update_nodes").idempotent();
        self.send(call.form(form)).await
    }
}
