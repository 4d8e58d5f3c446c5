//! A device that accepts firmware, made of data: it installs what it receives, in a few polls, well
//! or badly. It plays what no emulator does: a failed task, a forgotten task, a controller that
//! restarts, a wrong version.

use crate::http::{Call, Peer, Said};
use crate::world::World;
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
const LOOKS: usize = 3;

/// How it accepts a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Takes {
    Form,
    Plain,
    Fetch,
}

/// The outcome of an update.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
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
    pub world: World,
    fate: Fate,
    state: Arc<Mutex<State>>,
}

impl Updater {
    pub fn new(takes: Takes, fate: Fate) -> Self {
        let world = World::new();
        world.set("/redfish/v1", "/UpdateService", json!({"@odata.id": SERVICE}));
        world.set("/redfish/v1", "/Tasks", json!({"@odata.id": "/redfish/v1/TaskService"}));
        world.put("/redfish/v1/TaskService", json!({"Tasks": {"@odata.id": TASKS}}));
        world.put_list(TASKS, &[]);
        let list = "/redfish/v1/UpdateService/FirmwareInventory";
        world.put_list(list, &[COMPONENT]);
        world.put(
            COMPONENT,
            json!({"@odata.id": COMPONENT, "Id": "BMC_0", "Version": OLD, "SoftwareId": "0x1B", "Updateable": true}),
        );
        let mut service = json!({"@odata.id": SERVICE, "ServiceEnabled": true,
            "FirmwareInventory": {"@odata.id": list}, "MaxImageSizeBytes": 1_000_000});
        match takes {
            Takes::Form => {
                service["MultipartHttpPushUri"] = json!(FORM);
                service["HttpPushUri"] = json!(PLAIN);
            }
            Takes::Plain => {
                service["HttpPushUri"] = json!(PLAIN);
                service["HttpPushUriTargets"] = json!([]);
            }
            Takes::Fetch => {
                service["Actions"] = json!({"#UpdateService.SimpleUpdate": {"target": FETCH}});
            }
        }
        world.put(SERVICE, service);
        Self { world, fate, state: Arc::default() }
    }

    /// The files that it received.
    pub fn files(&self) -> Vec<String> {
        self.state.lock().unwrap().files.clone()
    }

    pub fn version(&self) -> String {
        self.world.get(COMPONENT)["Version"].as_str().unwrap().to_owned()
    }

    pub async fn serve(&self) -> Peer {
        let device = self.clone();
        Peer::start(move |call| device.answer(call)).await
    }

    pub fn answer(&self, call: &Call) -> Said {
        let mut state = self.state.lock().unwrap();
        if state.away > 0 {
            state.away -= 1;
            return Said::HangUp;
        }
        if call.method == "POST" && [FORM, PLAIN, FETCH].contains(&call.path.as_str()) {
            state.files.push(call.body.clone());
            return self.take(state.files.len());
        }
        if call.method == "GET" && call.path.starts_with(&format!("{TASKS}/")) {
            state.looks += 1;
            if state.looks >= LOOKS {
                self.end(&mut state, &call.path);
            }
        }
        drop(state);
        self.world.answer(call)
    }

    fn take(&self, number: usize) -> Said {
        if self.fate == Fate::Silent {
            self.world.set(COMPONENT, "/Version", json!(NEW));
            return Said::status(204, "");
        }
        let path = format!("{TASKS}/{number}");
        let task = json!({"@odata.id": path, "@odata.type": "#Task.v1_4_3.Task", "TaskState": "Running",
            "PercentComplete": 10, "Payload": {"TargetUri": SERVICE}});
        self.world.put(&path, task.clone());
        self.world.put_list(TASKS, &[&path]);
        Said::status(202, task).with("location", format!("{path}/Monitor"))
    }

    fn end(&self, state: &mut State, task: &str) {
        let version = |version: &str| self.world.set(COMPONENT, "/Version", json!(version));
        let ended = |word: &str| {
            self.world.set(task, "/TaskState", json!(word));
            self.world.set(task, "/PercentComplete", json!(100));
        };
        let forget = || {
            self.world.remove(task);
            self.world.put_list(TASKS, &[]);
        };
        match self.fate {
            Fate::Well => {
                ended("Completed");
                version(NEW);
            }
            Fate::Wrong => {
                ended("Completed");
                version("1.9");
            }
            Fate::Fails => {
                self.world.set(
                    task,
                    "/Messages",
                    json!([{"Message": "The signature is not valid."}]),
                );
                ended("Exception");
            }
            Fate::Forgotten => {
                forget();
                version(NEW);
            }
            Fate::Lost => forget(),
            Fate::Restarts(questions) => {
                state.away = questions;
                forget();
                version(NEW);
            }
            Fate::Slow => {}
            Fate::Silent => {}
        }
    }
}

/// A server that has the file, and its address.
pub async fn file_server() -> (Peer, String) {
    let peer = Peer::start(|call| match call.path.as_str() {
        "/bmc-2.0.bin" => Said::status(200, FILE),
        "/moved.bin" => Said::status(302, "").with("location", "/bmc-2.0.bin"),
        _ => Said::status(404, "no such file"),
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
