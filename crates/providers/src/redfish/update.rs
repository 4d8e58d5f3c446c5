//! Firmware updates through the Redfish update service.
//!
//! A device takes a file in a form ([`UpdateMethod::MultipartPush`]), downloads it from a server
//! ([`UpdateMethod::SimpleUpdate`]), or, if older, takes the raw file ([`UpdateMethod::HttpPush`]).
//! An installation takes minutes and often restarts the BMC. So these calls only show that the
//! request was accepted; the task and the versions afterwards show the result.

use super::Bmc;
use super::client::{Accepted, MAX_MEMBERS, RedfishClient};
use super::decode::Resource;
use super::system::System;
use super::task::{TaskRef, TaskStatus, read_task};
use crate::http_client::FileUpload;
use model::fault::{Fault, FaultCode, Result};
use serde_json::{Map, Value, json};
use std::fs::File;
use std::sync::Arc;

const ACTION: &str = "#UpdateService.SimpleUpdate";
/// The requested apply time, if the device supports one.
const NOW: &str = "Immediate";
const OCTETS: &str = "application/octet-stream";

/// The method by which a device takes an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UpdateMethod {
    /// A multipart form with the targets and the file.
    MultipartPush,
    /// The device downloads the file.
    SimpleUpdate,
    /// The raw file; the targets are set beforehand.
    HttpPush,
}

impl UpdateMethod {
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::MultipartPush => "MultipartHttpPush",
            Self::SimpleUpdate => "SimpleUpdate",
            Self::HttpPush => "HttpPush",
        }
    }
}

/// A file that was downloaded and verified.
pub struct FirmwareImage {
    pub file: Arc<File>,
    pub size: u64,
    /// In hexadecimal.
    pub sha256: String,
}

/// The update service and the task service of one BMC.
#[derive(Clone)]
pub struct UpdateService {
    link: Arc<RedfishClient>,
    service: Option<String>,
    tasks: Option<String>,
}

/// The update service as it was read.
pub struct UpdateServiceState {
    doc: Resource,
}

impl Bmc {
    pub fn updates(&self) -> UpdateService {
        let root = self.root.root();
        let (service, tasks) = (root.link("UpdateService"), root.link("Tasks"));
        UpdateService { link: self.link.clone(), service, tasks }
    }
}

impl UpdateServiceState {
    /// The supported methods, preferred first: a pushed file is the one that was verified.
    pub fn methods(&self) -> Vec<UpdateMethod> {
        let part = self.doc.root();
        let form = part.link("MultipartHttpPushUri").map(|_| UpdateMethod::MultipartPush);
        let fetch =
            part.get("Actions").get(ACTION).link("target").map(|_| UpdateMethod::SimpleUpdate);
        let plain = part.link("HttpPushUri").map(|_| UpdateMethod::HttpPush);
        form.into_iter().chain(fetch).chain(plain).collect()
    }

    /// The largest image that the device accepts.
    pub fn max_image_bytes(&self) -> Option<u64> {
        self.doc.root().count("MaxImageSizeBytes").filter(|most| *most > 0)
    }

    /// False if the update service is disabled.
    pub fn enabled(&self) -> bool {
        self.doc.root().flag("ServiceEnabled") != Some(false)
    }

    /// The `UpdateParameters` of a multipart form.
    fn parameters(&self, targets: &[String]) -> Value {
        let support = self.doc.root().get("MultipartHttpPushUri@Redfish.OperationApplyTimeSupport");
        let mut message = Map::new();
        if !targets.is_empty() {
            message.insert("Targets".into(), json!(targets));
        }
        if support.texts("SupportedValues").iter().any(|value| value == NOW) {
            message.insert("@Redfish.OperationApplyTime".into(), json!(NOW));
        }
        message.into()
    }
}

impl UpdateService {
    pub async fn read_state(&self) -> Result<UpdateServiceState> {
        let path = self.service.as_deref().ok_or_else(|| self.lacks("update service"))?;
        Ok(UpdateServiceState { doc: self.link.get(path).await? })
    }

    /// Requests that the BMC downloads and installs an image. Without a task, only the versions
    /// afterwards show the result. `targets` are the resources that the image is for; without any,
    /// the device derives them from the image.
    pub async fn fetch(
        &self,
        offer: &UpdateServiceState,
        image_url: &str,
        targets: &[String],
    ) -> Result<Option<TaskRef>> {
        let action = offer.doc.root().get("Actions").get(ACTION);
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
            let what = format!("update over {scheme:?}, only {}", protocols.join(", "));
            return Err(self.lacks(&what));
        }
        let accepted: Accepted = self.link.post(&target, &body.into()).await?;
        Ok(TaskRef::named_by(&accepted))
    }

    /// Sends a multipart form. `last` is awaited before the last chunk, the point of no return.
    pub async fn push_multipart(
        &self,
        offer: &UpdateServiceState,
        image: FirmwareImage,
        targets: &[String],
        last: impl AsyncFnOnce() -> Result<()>,
    ) -> Result<Option<TaskRef>> {
        let path = offer.doc.root().link("MultipartHttpPushUri");
        let path = path.ok_or_else(|| self.lacks("MultipartHttpPushUri"))?;
        // A file cannot contain its own checksum.
        let boundary = format!("farrier-{}", image.sha256.get(..32).unwrap_or(&image.sha256));
        let message = offer.parameters(targets).to_string();
        let upload = multipart_upload(image.file, image.size, &message, &boundary);
        let kind = format!("multipart/form-data; boundary={boundary}");
        let accepted = self.link.upload(&path, &kind, upload, last).await?;
        Ok(TaskRef::named_by(&accepted))
    }

    /// Sends the raw file. If the device has a list of targets, that is written first.
    pub async fn push_raw(
        &self,
        offer: &UpdateServiceState,
        image: FirmwareImage,
        targets: &[String],
        last: impl AsyncFnOnce() -> Result<()>,
    ) -> Result<Option<TaskRef>> {
        let part = offer.doc.root();
        let path = part.link("HttpPushUri").ok_or_else(|| self.lacks("HttpPushUri"))?;
        if part.flag("HttpPushUriTargetsBusy") == Some(true) {
            let message = format!("{} is being updated by another client", self.link.endpoint());
            return Err(Fault::new(FaultCode::BmcBusy, message));
        }
        if part.get("HttpPushUriTargets").0.is_array() {
            self.link.patch(&offer.doc, &json!({ "HttpPushUriTargets": targets })).await?;
        }
        let upload = FileUpload::plain(image.file, image.size);
        let accepted = self.link.upload(&path, OCTETS, upload, last).await?;
        Ok(TaskRef::named_by(&accepted))
    }

    pub async fn task(&self, task: &TaskRef) -> Result<TaskStatus> {
        read_task(&self.link, task).await
    }

    /// The tasks at the BMC, at most `MAX_MEMBERS`.
    pub async fn tasks(&self) -> Result<Vec<TaskRef>> {
        let lacks = || self.lacks("task service");
        let service = self.link.get(self.tasks.as_deref().ok_or_else(lacks)?).await?;
        let list = service.root().link("Tasks").ok_or_else(lacks)?;
        let entries = self.link.entries(&list, MAX_MEMBERS, &mut Vec::new()).await?;
        Ok(entries.iter().filter_map(|entry| TaskRef::parse(entry.path())).collect())
    }

    /// True if a task may be an update: its payload names the update service, or it has no payload.
    pub async fn is_update(&self, task: &TaskRef) -> Result<bool> {
        let doc = self.link.find(&task.to_string()).await?;
        let requested = doc.map(|doc| doc.root().get("Payload").text("TargetUri"));
        Ok(requested.is_some_and(|uri| uri.is_none_or(|uri| uri.contains("/UpdateService"))))
    }

    /// The members of a collection of the update service; empty if there is none.
    pub(super) async fn list(
        &self,
        name: &str,
        skipped: &mut Vec<String>,
    ) -> Result<Vec<Resource>> {
        let Some(path) = self.service.as_deref() else { return Ok(Vec::new()) };
        let Some(service) = self.link.find_or_skip(path, skipped).await? else {
            return Ok(Vec::new());
        };
        match service.root().link(name) {
            Some(path) => self.link.members(&path, MAX_MEMBERS, skipped).await,
            None => Ok(Vec::new()),
        }
    }

    fn lacks(&self, what: &str) -> Fault {
        let message = format!("{} has no {what}", self.link.endpoint());
        Fault::new(FaultCode::NotSupported, message)
    }
}

impl System {
    /// Requests that the BMC downloads and installs an image, as [`UpdateService::fetch`].
    pub async fn simple_update(
        &self,
        image_url: &str,
        targets: &[String],
    ) -> Result<Option<TaskRef>> {
        let offer = self.updates.read_state().await?;
        self.updates.fetch(&offer, image_url, targets).await
    }

    /// The protocols over which the BMC downloads images. Empty: it lists none.
    /// The methods by which its firmware can be updated, preferred first; a download with its
    /// protocols.
    pub async fn update_methods(&self) -> Result<Vec<String>> {
        let offer = self.updates.read_state().await?;
        let methods = offer.methods();
        if methods.is_empty() {
            return Err(self.lacks("way to update firmware"));
        }
        let action = offer.doc.root().get("Actions").get(ACTION);
        let protocols = action.texts("TransferProtocol@Redfish.AllowableValues").join(", ");
        let describe = |method: UpdateMethod| match method {
            UpdateMethod::SimpleUpdate if !protocols.is_empty() => {
                format!("{} ({protocols})", method.as_str())
            }
            UpdateMethod::SimpleUpdate | UpdateMethod::MultipartPush | UpdateMethod::HttpPush => {
                method.as_str().to_string()
            }
        };
        Ok(methods.into_iter().map(describe).collect())
    }

    pub const fn updates(&self) -> &UpdateService {
        &self.updates
    }
}

/// A multipart form with the update parameters and then the file.
fn multipart_upload(file: Arc<File>, size: u64, message: &str, boundary: &str) -> FileUpload {
    let part = "Content-Disposition: form-data; name=";
    let before = format!(
        "--{boundary}\r\n{part}\"UpdateParameters\"\r\nContent-Type: application/json\r\n\r\n{message}\r\n\
         --{boundary}\r\n{part}\"UpdateFile\"; filename=\"firmware.bin\"\r\n\
         Content-Type: application/octet-stream\r\n\r\n"
    );
    let after = format!("\r\n--{boundary}--\r\n");
    FileUpload { before: before.into(), file, size, after: after.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(value: Value) -> UpdateServiceState {
        UpdateServiceState {
            doc: Resource { path: "/redfish/v1/UpdateService".into(), etag: None, value },
        }
    }

    #[test]
    fn the_preferred_method_comes_first() {
        let simple = json!({ ACTION: {"target": "/simple"} });
        for (value, ways) in [
            (json!({}), vec![]),
            (json!({"HttpPushUri": "/push"}), vec![UpdateMethod::HttpPush]),
            (
                json!({"HttpPushUri": "/push", "Actions": simple}),
                vec![UpdateMethod::SimpleUpdate, UpdateMethod::HttpPush],
            ),
            (
                json!({"HttpPushUri": "/push", "MultipartHttpPushUri": "/form", "Actions": simple}),
                vec![
                    UpdateMethod::MultipartPush,
                    UpdateMethod::SimpleUpdate,
                    UpdateMethod::HttpPush,
                ],
            ),
        ] {
            assert_eq!(offer(value).methods(), ways);
        }
    }

    #[test]
    fn an_apply_time_is_sent_only_if_supported() {
        let targets = ["/redfish/v1/UpdateService/FirmwareInventory/BMC".to_owned()];
        let silent = offer(json!({}));
        assert_eq!(silent.parameters(&[]), json!({}));
        assert_eq!(silent.parameters(&targets), json!({ "Targets": targets }));
        let support = json!({"MultipartHttpPushUri@Redfish.OperationApplyTimeSupport":
            {"SupportedValues": ["OnReset", "Immediate"]}});
        let message = json!({ "Targets": targets, "@Redfish.OperationApplyTime": "Immediate" });
        assert_eq!(offer(support).parameters(&targets), message);
        let later = json!({"MultipartHttpPushUri@Redfish.OperationApplyTimeSupport":
            {"SupportedValues": ["OnReset"]}});
        assert_eq!(offer(later).parameters(&[]), json!({}));
    }
}
