//! A device that accepts firmware, made of data: it installs what it receives, in a few polls, well
//! or badly. It plays what no emulator does: a failed task, a forgotten task, a controller that
//! restarts, a wrong version.

use crate::fake_bmc::FakeBmc;
use crate::http::{Call, Peer, Response};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::sync::{Arc, Mutex};

pub const SERVICE: &str = "/redfish/v1/UpdateService";
pub const COMPONENT: &str = "/redfish/v1/UpdateService/FirmwareInventory/BMC_0";
pub const FORM: &str = "/redfish/v1/UpdateService/update-multipart";
pub const PLAIN: &str = "/redfish/v1/UpdateService/update";
pub const FETCH: &str = "/redfish/v1/UpdateService/Actions/UpdateService.SimpleUpdate";
const TASKS: &str = "/redfish/v1/TaskService/Tasks";
/// The initial version, and the version in the file.
pub const OLD: &str = "1.0";
pub const NEW: &str = "2.0";
pub const FILE: &str = "the firmware of a controller, version 2.0\n";
/// The number of polls until its task ends.
const POLLS_UNTIL_END: usize = 3;

/// The method by which it accepts a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UploadMethod {
    Form,
    Plain,
    Fetch,
}

/// The outcome of an update.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UpdateOutcome {
    Well,
    /// The task fails.
    Fails,
    /// The task is forgotten, and the version is installed.
    Forgotten,
    /// The task is forgotten, and nothing has changed.
    Lost,
    /// The controller is away for this many requests, comes back with the version, and has
    /// forgotten its tasks.
    Restarts(usize),
    /// The task succeeds, and another version is installed.
    Wrong,
    /// The task never ends.
    Slow,
    /// It names no task, and has the version at once.
    Silent,
}

#[derive(Default)]
struct State {
    files: Vec<String>,
    looks: usize,
    away: usize,
}

/// Clones share the device.
#[derive(Clone)]
pub struct Updater {
    pub bmc: FakeBmc,
    outcome: UpdateOutcome,
    state: Arc<Mutex<State>>,
}

impl Updater {
    pub fn new(takes: UploadMethod, outcome: UpdateOutcome) -> Self {
        let bmc = FakeBmc::new();
        bmc.set("/redfish/v1", "/UpdateService", json!({"@odata.id": SERVICE}));
        bmc.set("/redfish/v1", "/Tasks", json!({"@odata.id": "/redfish/v1/TaskService"}));
        bmc.put("/redfish/v1/TaskService", json!({"Tasks": {"@odata.id": TASKS}}));
        bmc.put_list(TASKS, &[]);
        let list = "/redfish/v1/UpdateService/FirmwareInventory";
        bmc.put_list(list, &[COMPONENT]);
        bmc.put(
            COMPONENT,
            json!({"@odata.id": COMPONENT, "Id": "BMC_0", "Version": OLD, "SoftwareId": "0x1B", "Updateable": true}),
        );
        let mut service = json!({"@odata.id": SERVICE, "ServiceEnabled": true,
            "FirmwareInventory": {"@odata.id": list}, "MaxImageSizeBytes": 1_000_000});
        match takes {
            UploadMethod::Form => {
                service["MultipartHttpPushUri"] = json!(FORM);
                service["HttpPushUri"] = json!(PLAIN);
            }
            UploadMethod::Plain => {
                service["HttpPushUri"] = json!(PLAIN);
                service["HttpPushUriTargets"] = json!([]);
            }
            UploadMethod::Fetch => {
                service["Actions"] = json!({"#UpdateService.SimpleUpdate": {"target": FETCH}});
            }
        }
        bmc.put(SERVICE, service);
        Self { bmc, outcome, state: Arc::default() }
    }

    /// The files that it received.
    pub fn files(&self) -> Vec<String> {
        self.state.lock().unwrap().files.clone()
    }

    pub fn version(&self) -> String {
        self.bmc.get(COMPONENT)["Version"].as_str().unwrap().to_owned()
    }

    pub async fn serve(&self) -> Peer {
        let device = self.clone();
        Peer::start(move |call| device.answer(call)).await
    }

    pub fn answer(&self, call: &Call) -> Response {
        let mut state = self.state.lock().unwrap();
        if state.away > 0 {
            state.away -= 1;
            return Response::HangUp;
        }
        if call.method == "POST" && [FORM, PLAIN, FETCH].contains(&call.path.as_str()) {
            state.files.push(call.body.clone());
            return self.take(state.files.len());
        }
        if call.method == "GET" && call.path.starts_with(&format!("{TASKS}/")) {
            state.looks += 1;
            if state.looks >= POLLS_UNTIL_END {
                self.end(&mut state, &call.path);
            }
        }
        drop(state);
        self.bmc.answer(call)
    }

    fn take(&self, number: usize) -> Response {
        if self.outcome == UpdateOutcome::Silent {
            self.bmc.set(COMPONENT, "/Version", json!(NEW));
            return Response::status(204, "");
        }
        let path = format!("{TASKS}/{number}");
        let task = json!({"@odata.id": path, "@odata.type": "#Task.v1_4_3.Task", "TaskState": "Running",
            "PercentComplete": 10, "Payload": {"TargetUri": SERVICE}});
        self.bmc.put(&path, task.clone());
        self.bmc.put_list(TASKS, &[&path]);
        Response::status(202, task).with("location", format!("{path}/Monitor"))
    }

    fn end(&self, state: &mut State, task: &str) {
        let version = |version: &str| self.bmc.set(COMPONENT, "/Version", json!(version));
        let ended = |name: &str| {
            self.bmc.set(task, "/TaskState", json!(name));
            self.bmc.set(task, "/PercentComplete", json!(100));
        };
        let forget = || {
            self.bmc.remove(task);
            self.bmc.put_list(TASKS, &[]);
        };
        match self.outcome {
            UpdateOutcome::Well => {
                ended("Completed");
                version(NEW);
            }
            UpdateOutcome::Wrong => {
                ended("Completed");
                version("1.9");
            }
            UpdateOutcome::Fails => {
                self.bmc.set(
                    task,
                    "/Messages",
                    json!([{"Message": "The signature is not valid."}]),
                );
                ended("Exception");
            }
            UpdateOutcome::Forgotten => {
                forget();
                version(NEW);
            }
            UpdateOutcome::Lost => forget(),
            UpdateOutcome::Restarts(questions) => {
                state.away = questions;
                forget();
                version(NEW);
            }
            UpdateOutcome::Slow => {}
            UpdateOutcome::Silent => {}
        }
    }
}

/// A server that has the file, and its address.
pub async fn file_server() -> (Peer, String) {
    let peer = Peer::start(|call| match call.path.as_str() {
        "/bmc-2.0.bin" => Response::status(200, FILE),
        "/moved.bin" => Response::status(302, "").with("location", "/bmc-2.0.bin"),
        _ => Response::status(404, "no such file"),
    })
    .await;
    let url = format!("{}/bmc-2.0.bin", peer.url());
    (peer, url)
}

pub fn sha256(text: &str) -> String {
    Sha256::digest(text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The parameters and the file of a multipart form.
pub fn parts(body: &str) -> (Value, String) {
    let boundary = body.lines().next().unwrap();
    let mut parts = body.split(boundary).filter_map(|part| part.split_once("\r\n\r\n"));
    let mut next = || parts.next().unwrap().1.strip_suffix("\r\n").unwrap().to_owned();
    let parameters = serde_json::from_str(&next()).unwrap();
    (parameters, next())
}
