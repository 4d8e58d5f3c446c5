//! Faults of a BMC: it refuses, hangs, sends garbage or disappears. Through the real server, each
//! run ends by itself with the documented fault code, and `why` names the code and the next
//! command.

#[path = "../../../providers/tests/peers/http.rs"]
#[allow(dead_code)]
mod http;

use crate::api::{plan, reboot};
use crate::fleet::{Server, Setup};
use crate::hardware::{password, register_as, set};
use http::{Call, Peer, Response};
use proto::v1;
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const SYSTEM: &str = "/redfish/v1/Systems/1";
const RESET: &str = "/redfish/v1/Systems/1/Actions/ComputerSystem.Reset";
const HASTY: &str = "[datacenter]\ngraceful_seconds = 0\npower_seconds = 2\ncall_ms = 3000\n\
                     bmc_credential = \"bmc\"\n[engine]\nbackoff_first_ms = 50\nbackoff_most_ms = 200";

/// A correct BMC whose machine never switches off.
fn correct_bmc(call: &Call) -> Response {
    match call.path.trim_end_matches('/') {
        "/redfish/v1" => Response::json(json!({
            "@odata.id": "/redfish/v1/", "Systems": {"@odata.id": "/redfish/v1/Systems"}})),
        "/redfish/v1/Systems" => Response::json(json!({"Members": [{"@odata.id": SYSTEM}]})),
        SYSTEM => Response::json(json!({
            "@odata.id": SYSTEM, "Id": "1", "PowerState": "On",
            "Actions": {"#ComputerSystem.Reset": {
                "target": RESET, "ResetType@Redfish.AllowableValues": ["On", "ForceOff"]}}})),
        RESET => Response::status(204, ""),
        _ => Response::status(404, "{}"),
    }
}

struct BmcFaultCase {
    name: &'static str,
    /// The fault codes that the run may end with.
    codes: &'static [&'static str],
    /// A text that the message must contain.
    words: &'static str,
    says: Box<dyn Fn(&Call) -> Response + Send + Sync>,
}

fn case(
    name: &'static str,
    codes: &'static [&'static str],
    words: &'static str,
    says: impl Fn(&Call) -> Response + Send + Sync + 'static,
) -> BmcFaultCase {
    BmcFaultCase { name, codes, words, says: Box::new(says) }
}

fn cases() -> Vec<BmcFaultCase> {
    let gone = Arc::new(AtomicBool::new(false));
    vec![
        // The single connection to the BMC may be in use by a probe.
        case("hangs", &["bmc-unreachable", "bmc-busy"], "127.0.0.1", |_| Response::Hang),
        case("hangs-up", &["bmc-unreachable"], "127.0.0.1", |_| Response::HangUp),
        case("password-changed", &["login-refused"], "401", |_| Response::status(401, "{}")),
        case("busy", &["bmc-busy"], "503", |_| Response::status(503, "{}")),
        case("html", &["bmc-garbled"], "<html>", |_| {
            Response::json("<html><body>Please enable scripts</body></html>")
        }),
        case("truncated", &["bmc-garbled"], "end of file", |call| match correct_bmc(call) {
            Response::Reply { body, .. } => Response::CutOff(body),
            other => other,
        }),
        case("redirects", &["bmc-garbled"], "in a circle", |call| {
            Response::status(307, "").with("location", &call.path)
        }),
        case("power-stays", &["read-back-differs"], "switch off", correct_bmc),
        case("reboots-in-a-call", &["outcome-unknown", "step-timeout"], "", move |call| {
            if call.is("POST", RESET) {
                gone.store(true, Ordering::SeqCst);
            }
            if gone.load(Ordering::SeqCst) { Response::HangUp } else { correct_bmc(call) }
        }),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_a_bmc_does_a_run_ends_and_why_names_it() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(Setup { config: HASTY.into(), ..Setup::new(dir.path(), "zero") });
    set(&server, "bmc", password("x")).await;
    let mut api = server.clients().await;
    let once = v1::Step {
        name: "reboot".into(),
        timeout_seconds: Some(20),
        max_retries: Some(0),
        kind: Some(reboot()),
    };
    api.try_plan(plan("once", vec![once])).await.unwrap();
    let mut playing = Vec::new();
    for BmcFaultCase { name, codes, words, says } in cases() {
        let peer = Peer::start(says).await;
        let spec = v1::MachineSpec { bmc_endpoint: peer.url(), ..Default::default() };
        register_as(&mut api, name, spec).await;
        api.done(name, "ENTER_MAINTENANCE", "enter").await;
        let run = api.start_plan(name, "once", "r").await.run_id;
        playing.push((name, codes, words, run, peer));
    }
    let mut wrong = Vec::new();
    for (name, codes, words, run, peer) in playing {
        let ended = api.finished(&run).await;
        let why = api.why(&run).await;
        let message = ended.error.as_ref().map(|error| error.message.clone()).unwrap_or_default();
        let named = codes.contains(&why.fault.as_str()) && message.contains(words);
        if ended.phase() != v1::run::Phase::Failed || !named || why.next_commands.is_empty() {
            wrong.push(format!("{name}: {} {message:?} {:?}", why.fault, why.next_commands));
        }
        drop(peer);
    }
    assert!(wrong.is_empty(), "{}\n{}", wrong.join("\n"), server.log());
}
