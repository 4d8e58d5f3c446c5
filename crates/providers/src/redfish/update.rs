//! Firmware updates.
//!
//! The BMC fetches an image from a server by itself and installs it, which takes minutes and often ends
//! with a restart of the BMC. So all that can be said here is that it has taken the order on; the task
//! it names, and the versions it shows afterwards, tell the rest.

use super::client::Accepted;
use super::decode::Part;
use super::system::System;
use super::task::TaskRef;
use model::fault::Fault;
use serde_json::{Map, Value, json};

const ACTION: &str = "#UpdateService.SimpleUpdate";

impl System {
    /// Asks the BMC to fetch an image and install it. The task tells how it goes; a device that gives
    /// none has taken the image, and only the versions it shows afterwards tell more. `targets` are the
    /// resources that the image is for; without any, the device finds that out from the image.
    pub async fn simple_update(
        &self,
        image_url: &str,
        targets: &[String],
    ) -> Result<Option<TaskRef>, Fault> {
        let action = self.update_action().await?;
        let action = Part(&action);
        let target = action.link("target").ok_or_else(|| self.lacks("SimpleUpdate action"))?;
        let protocols = action.texts("TransferProtocol@Redfish.AllowableValues");
        let scheme = image_url.split("://").next().unwrap_or_default().to_ascii_uppercase();
        let mut body = Map::new();
        body.insert("ImageURI".into(), json!(image_url));
        if !targets.is_empty() {
            body.insert("Targets".into(), json!(targets));
        }
        if protocols.contains(&scheme) {
            body.insert("TransferProtocol".into(), json!(scheme));
        } else if !protocols.is_empty() {
            let what = format!("update over {scheme:?}, only {},", protocols.join(", "));
            return Err(self.lacks(&what));
        }
        let accepted: Accepted = self.link.post(&target, &body.into()).await?;
        Ok(TaskRef::named_by(&accepted))
    }

    /// The action by which an update is asked for.
    pub(super) async fn update_action(&self) -> Result<Value, Fault> {
        let path = self.update_service.as_deref().ok_or_else(|| self.lacks("update service"))?;
        let service = self.link.get(path).await?;
        let action = service.root().get("Actions").get(ACTION);
        match action.link("target") {
            Some(_) => Ok(action.0.clone()),
            None => Err(self.lacks("SimpleUpdate action")),
        }
    }
}
