//! Virtual media: an image on a server that the machine sees as a drive.
//!
//! The drives are at the System on newer devices and at its manager on older ones; both are read.
//! An image that is already inserted is success. A drive with another image is not ejected, because
//! that image may be in use.

use super::classification::unconfirmed;
use super::client::MAX_MEMBERS;
use super::decode::Resource;
use super::system::System;
use model::fault::{Fault, FaultCode, Result};
use serde_json::{Value, json};

const INSERT: &str = "#VirtualMedia.InsertMedia";
const EJECT: &str = "#VirtualMedia.EjectMedia";
/// The number of times that a drive is read after a change. Some devices fetch the image first.
const MAX_READS: usize = 30;
/// The most managers of one System whose drives are read.
const MAX_MANAGERS: usize = 8;

/// A virtual drive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Media {
    pub id: String,
    pub path: String,
    pub kinds: Vec<String>,
    pub inserted: bool,
    pub image: Option<String>,
}

impl Media {
    fn of(doc: &Resource) -> Self {
        let part = doc.root();
        let image = part.text("Image");
        Self {
            id: part.text("Id").unwrap_or_else(|| doc.name().to_owned()),
            path: doc.path.clone(),
            kinds: part.texts("MediaTypes"),
            // Some devices show only the image.
            inserted: part.flag("Inserted").unwrap_or(image.is_some()),
            image,
        }
    }

    fn takes_cds(&self) -> bool {
        self.kinds.iter().any(|kind| matches!(kind.as_str(), "CD" | "DVD"))
    }

    fn has(&self, url: &str) -> bool {
        self.inserted && self.image.as_deref() == Some(url)
    }
}

impl System {
    pub async fn media(&self) -> Result<Vec<Media>> {
        Ok(self.drives().await?.iter().map(Media::of).collect())
    }

    /// Inserts a CD image into a free drive and reads it back.
    pub async fn insert_media(&self, url: &str) -> Result<Media> {
        let drives = self.drives().await?;
        let observed: Vec<Media> = drives.iter().map(Media::of).collect();
        if let Some(media) = observed.iter().find(|media| media.has(url)) {
            return Ok(media.clone());
        }
        let fitting: Vec<_> =
            drives.iter().zip(&observed).filter(|(_, media)| media.takes_cds()).collect();
        if fitting.is_empty() {
            return Err(self.lacks("virtual CD drive"));
        }
        let Some((drive, media)) = fitting.into_iter().find(|(_, media)| !media.inserted) else {
            let message = format!("Every virtual CD drive of {} is in use", self.link.endpoint());
            return Err(Fault::new(FaultCode::EffectFailed, message));
        };
        match drive.root().get("Actions").get(INSERT).link("target") {
            Some(target) => self.link.post(&target, &json!({ "Image": url })).await?,
            // Older devices have no action; there the image is a writable property.
            None => self.link.patch(drive, &json!({ "Image": url, "Inserted": true })).await?,
        };
        self.confirm_media(&media.path, true).await.map_err(unconfirmed)
    }

    /// Ejects the drive at this path. An empty drive is success.
    pub async fn eject_media(&self, path: &str) -> Result<Media> {
        let drive = self.link.get(path).await?;
        let media = Media::of(&drive);
        if !media.inserted {
            return Ok(media);
        }
        match drive.root().get("Actions").get(EJECT).link("target") {
            Some(target) => self.link.post(&target, &json!({})).await?,
            None => {
                self.link.patch(&drive, &json!({ "Image": Value::Null, "Inserted": false })).await?
            }
        };
        self.confirm_media(path, false).await.map_err(unconfirmed)
    }

    async fn confirm_media(&self, path: &str, inserted: bool) -> Result<Media> {
        for _ in 0..MAX_READS {
            let media = Media::of(&self.link.get(path).await?);
            if media.inserted == inserted {
                return Ok(media);
            }
            tokio::time::sleep(self.poll_interval).await;
        }
        let state = if inserted { "empty" } else { "full" };
        let message = format!("{} still shows {path} as {state}", self.link.endpoint());
        Err(Fault::new(FaultCode::ReadBackDiffers, message))
    }

    async fn drives(&self) -> Result<Vec<Resource>> {
        let system = self.read().await?;
        let mut skipped = Vec::new();
        let mut places: Vec<String> = system.root().link("VirtualMedia").into_iter().collect();
        let managers: Vec<String> = system
            .root()
            .get("Links")
            .list("ManagedBy")
            .filter_map(super::decode::JsonNode::as_link)
            .take(MAX_MANAGERS)
            .collect();
        for manager in managers {
            if let Some(manager) = self.link.find_or_skip(&manager, &mut skipped).await? {
                places.extend(manager.root().link("VirtualMedia"));
            }
        }
        for position in places {
            let drives = self.link.members(&position, MAX_MEMBERS, &mut skipped).await?;
            if !drives.is_empty() {
                return Ok(drives);
            }
        }
        Err(self.lacks("virtual media"))
    }
}
