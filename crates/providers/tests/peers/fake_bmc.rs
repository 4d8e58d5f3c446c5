//! A BMC made of data: resources by path, and the few changes that a BMC makes itself. Tests use it
//! as it is, change a resource, or answer some requests themselves.

use crate::http::{Call, Peer, Response};
use model::credential::AllowedAddresses;
use providers::http_client::{Timeouts, Trust};
use providers::redfish::{Auth, Bmc, BmcAddress, Login, Settings, System, SystemSelector};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub const SYSTEM: &str = "/redfish/v1/Systems/1";
pub const RESET: &str = "/redfish/v1/Systems/1/Actions/ComputerSystem.Reset";
pub const PASSWORD: &str = "s3cret-of-the-bmc";

/// The resources of one BMC. Clones share them.
#[derive(Clone)]
pub struct FakeBmc(Arc<Mutex<BTreeMap<String, Value>>>);

impl FakeBmc {
    /// A BMC with one System that is off.
    pub fn new() -> Self {
        let env = Self(Arc::default());
        env.put(
            "/redfish/v1",
            json!({
            "@odata.id": "/redfish/v1/", "Vendor": "Acme", "RedfishVersion": "1.6.0",
            "Systems": {"@odata.id": "/redfish/v1/Systems"}}),
        );
        env.put_list("/redfish/v1/Systems", &[SYSTEM]);
        env.put(
            SYSTEM,
            json!({
            "@odata.id": SYSTEM, "Id": "1", "PowerState": "Off", "SerialNumber": "S1",
            "LastResetTime": "1970-01-01T00:00:00Z",
            "Boot": {
                "BootSourceOverrideTarget": "None", "BootSourceOverrideEnabled": "Disabled",
                "BootSourceOverrideTarget@Redfish.AllowableValues": ["None", "Pxe", "Hdd"]},
            "Actions": {"#ComputerSystem.Reset": {
                "target": RESET, "ResetType@Redfish.AllowableValues": ["On", "ForceOff"]}}}),
        );
        env
    }

    pub fn put(&self, path: &str, value: Value) {
        self.0.lock().unwrap().insert(path.to_owned(), value);
    }

    pub fn put_list(&self, path: &str, members: &[&str]) {
        let members: Vec<Value> = members.iter().map(|path| json!({"@odata.id": path})).collect();
        self.put(path, json!({"@odata.id": path, "Members": members}));
    }

    /// Sets one field of a resource, by JSON pointer. A missing field is created.
    pub fn set(&self, path: &str, field: &str, value: Value) {
        let mut resources = self.0.lock().unwrap();
        let resource = resources.get_mut(path).unwrap();
        let (parent, name) = field.rsplit_once('/').unwrap();
        resource.pointer_mut(parent).unwrap()[name] = value;
    }

    pub fn remove(&self, path: &str) {
        self.0.lock().unwrap().remove(path);
    }

    pub fn get(&self, path: &str) -> Value {
        self.0.lock().unwrap()[path].clone()
    }

    /// Answers like a well-behaved BMC. A reset takes effect at once.
    pub fn answer(&self, call: &Call) -> Response {
        let path = call.path.trim_end_matches('/');
        let mut resources = self.0.lock().unwrap();
        match call.method.as_str() {
            "GET" => match resources.get(path) {
                Some(resource) => Response::json(resource),
                None => Response::status(404, "{}"),
            },
            "PATCH" => match resources.get_mut(path) {
                Some(resource) => {
                    merge(resource, &serde_json::from_str(&call.body).unwrap());
                    Response::status(200, &*resource)
                }
                None => Response::status(404, "{}"),
            },
            "POST" if path == RESET => {
                let body: Value = serde_json::from_str(&call.body).unwrap();
                let power = if body["ResetType"] == "On" { "On" } else { "Off" };
                resources.get_mut(SYSTEM).unwrap()["PowerState"] = json!(power);
                Response::status(204, "")
            }
            _ => Response::status(405, "{}"),
        }
    }

    pub async fn serve(&self) -> Peer {
        let env = self.clone();
        Peer::start(move |call| env.answer(call)).await
    }

    /// Serves it, except for the requests that the test answers itself.
    pub async fn serve_except(
        &self,
        except: impl Fn(&Call) -> Option<Response> + Send + Sync + 'static,
    ) -> Peer {
        let env = self.clone();
        Peer::start(move |call| except(call).unwrap_or_else(|| env.answer(call))).await
    }
}

fn merge(into: &mut Value, from: &Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                merge(into.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from.clone(),
    }
}

pub fn login() -> Login {
    Login { user: "root".into(), password: PASSWORD.into(), allowed: AllowedAddresses::Any }
}

pub fn settings(auth: Auth) -> Settings {
    let timeouts = Timeouts { connect: Duration::from_secs(10), answer: Duration::from_secs(3) };
    Settings { timeouts, poll_interval: Duration::from_millis(20), auth }
}

pub async fn connect_as(peer: &Peer, auth: Auth) -> Result<Bmc, model::fault::Fault> {
    let endpoint = BmcAddress::parse(&peer.url()).unwrap();
    Bmc::connect(endpoint, login(), Trust::FirstUse(None), settings(auth)).await
}

pub async fn connect(peer: &Peer) -> Bmc {
    connect_as(peer, Auth::Auto).await.unwrap()
}

pub async fn system(peer: &Peer) -> System {
    connect(peer).await.system(&SystemSelector::default()).await.unwrap()
}
