//! Failures between Farrier and a BMC, and the fault of each.

use crate::fake_bmc::{
    FakeBmc, PASSWORD, RESET, SYSTEM, connect, connect_as, login, settings, system,
};
use crate::http::{Call, Peer, Response};
use crate::{DEADLINE, until};
use model::fault::{Fault, FaultCode};
use providers::http_client::Trust;
use providers::redfish::{Auth, Bmc, BmcAddress, Power, Reset, SystemSelector, TaskRef, TaskState};
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

const SESSIONS: &str = "/redfish/v1/SessionService/Sessions";

/// Checks a fault: its code, these words, and that it never contains the password.
fn assert_fault(fault: &Fault, code: FaultCode, words: &[&str]) {
    assert_eq!(fault.code, code, "{fault}");
    for name in words {
        assert!(fault.message.contains(name), "{fault} does not say {name:?}");
    }
    assert!(!fault.message.contains(PASSWORD), "{fault}");
}

#[tokio::test]
async fn a_closed_port_is_unreachable() {
    let url = FakeBmc::new().serve().await.url();
    // The server is gone, and its port is closed.
    let endpoint = BmcAddress::parse(&url).unwrap();
    let refused =
        Bmc::connect(endpoint, login(), Trust::FirstUse(None), settings(Auth::Auto)).await;
    assert_fault(&refused.err().unwrap(), FaultCode::BmcUnreachable, &[&url]);
}

#[tokio::test]
async fn a_password_that_changed_is_tried_once() {
    let changed = Arc::new(AtomicBool::new(false));
    let (now, env) = (changed.clone(), FakeBmc::new());
    let peer = env
        .serve_except(move |call| {
            let refused = now.load(Ordering::Relaxed) && call.header("authorization").is_some();
            refused.then(|| Response::status(401, "{}"))
        })
        .await;
    let system = system(&peer).await;
    assert_eq!(system.power().await, Ok(Power::Off));
    changed.store(true, Ordering::Relaxed);
    let before = peer.calls().len();
    assert_fault(&system.power().await.unwrap_err(), FaultCode::LoginRefused, &["401", SYSTEM]);
    assert_eq!(peer.calls().len(), before + 1, "a wrong password is not tried twice");
}

/// A BMC with sessions. Each login gets a new token; only the newest is valid.
struct Sessions {
    logins: AtomicUsize,
    refuse: AtomicBool,
    expired: AtomicBool,
}

impl Sessions {
    fn answer(&self, call: &Call) -> Option<Response> {
        if call.is("GET", "/redfish/v1") {
            return None;
        }
        if call.is("POST", SESSIONS) {
            if self.refuse.load(Ordering::Relaxed) {
                let body = json!({"error": {"message": format!("not {}", call.body)}});
                return Some(Response::status(401, body));
            }
            self.expired.store(false, Ordering::Relaxed);
            let number = self.logins.fetch_add(1, Ordering::Relaxed) + 1;
            let message =
                Response::status(201, "{}").with("x-auth-token", format!("token-{number}"));
            return Some(message.with("location", format!("{SESSIONS}/{number}")));
        }
        let number = self.logins.load(Ordering::Relaxed);
        let good = call.header("x-auth-token") == Some(&format!("token-{number}"));
        if !good || self.expired.load(Ordering::Relaxed) {
            return Some(Response::status(401, "{}"));
        }
        (call.method == "DELETE").then(|| Response::status(204, ""))
    }

    async fn serve() -> (Arc<Self>, Peer) {
        let env = FakeBmc::new();
        env.set("/redfish/v1", "/Links", json!({"Sessions": {"@odata.id": SESSIONS}}));
        let sessions = Arc::new(Self {
            logins: AtomicUsize::new(0),
            refuse: AtomicBool::new(false),
            expired: AtomicBool::new(false),
        });
        let script = sessions.clone();
        let peer = env.serve_except(move |call| script.answer(call)).await;
        (sessions, peer)
    }
}

#[tokio::test]
async fn a_session_that_ran_out_is_renewed_once() {
    let (sessions, peer) = Sessions::serve().await;
    let system = system(&peer).await;
    assert_eq!(sessions.logins.load(Ordering::Relaxed), 1);
    sessions.expired.store(true, Ordering::Relaxed);
    assert_eq!(system.power().await, Ok(Power::Off));
    assert_eq!(sessions.logins.load(Ordering::Relaxed), 2);
    // From now on the password is wrong: one more login is tried, and no second one.
    sessions.expired.store(true, Ordering::Relaxed);
    sessions.refuse.store(true, Ordering::Relaxed);
    let before = peer.count("POST", SESSIONS);
    assert_fault(&system.power().await.unwrap_err(), FaultCode::LoginRefused, &["401", "root"]);
    assert_eq!(peer.count("POST", SESSIONS), before + 1);
}

#[tokio::test]
async fn a_session_ends_when_it_is_closed_and_when_it_is_dropped() {
    let (_, peer) = Sessions::serve().await;
    connect(&peer).await.close().await;
    assert_eq!(peer.count("DELETE", &format!("{SESSIONS}/1")), 1);
    drop(connect(&peer).await);
    let deleted = || peer.count("DELETE", &format!("{SESSIONS}/2")) == 1;
    until("the session is deleted", async || deleted()).await;
}

#[tokio::test]
async fn without_sessions_there_is_basic_unless_a_session_was_asked_for() {
    let env = FakeBmc::new();
    env.set("/redfish/v1", "/Links", json!({"Sessions": {"@odata.id": SESSIONS}}));
    // The session collection is linked and does not exist, as on some emulators.
    let peer = env.serve().await;
    let bmc = connect(&peer).await;
    assert!(bmc.system(&SystemSelector::default()).await.is_ok());
    assert!(peer.calls().last().unwrap().header("authorization").is_some());
    let refused = connect_as(&peer, Auth::Session).await.err().unwrap();
    assert_fault(&refused, FaultCode::NotSupported, &["405"]);
}

#[tokio::test]
async fn a_busy_bmc_says_when_to_come_back() {
    let left = AtomicUsize::new(2);
    let peer = FakeBmc::new()
        .serve_except(move |call| {
            let busy = call.is("POST", RESET)
                && left
                    .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1))
                    .is_ok();
            busy.then(|| Response::status(503, "{}").with("retry-after", 120))
        })
        .await;
    let system = system(&peer).await;
    for _ in 0..2 {
        let busy = system.reset(Reset::On).await.unwrap_err();
        assert_fault(&busy, FaultCode::BmcBusy, &["503", "120 s", RESET]);
    }
    assert_eq!(system.reset(Reset::On).await, Ok(()));
    assert_eq!(peer.count("POST", RESET), 3, "the client does not retry by itself");
}

#[tokio::test]
async fn answers_that_are_no_resources_are_garbled() {
    let complete = FakeBmc::new().get(SYSTEM).to_string();
    let long = format!("{{\"Id\": \"{}\"}}", "x".repeat(5 * 1024 * 1024));
    for (message, words) in [
        (Response::json("<html><body>It works!</body></html>"), "<html>"),
        (Response::json("[1, 2]"), "no JSON object"),
        (Response::json(""), "EOF"),
        (Response::json(&complete[..complete.len() / 2]), "EOF"),
        (Response::CutOff(complete.clone()), SYSTEM),
        (Response::json(long), "longer than"),
    ] {
        let broken = Arc::new(AtomicBool::new(false));
        let now = broken.clone();
        let peer = FakeBmc::new()
            .serve_except(move |_| now.load(Ordering::Relaxed).then(|| message.clone()))
            .await;
        let system = system(&peer).await;
        broken.store(true, Ordering::Relaxed);
        assert_fault(&system.power().await.unwrap_err(), FaultCode::AnswerGarbled, &[words]);
    }
}

#[tokio::test]
async fn redirects_are_followed_on_the_device_only() {
    let peer = FakeBmc::new()
        .serve_except(|call| {
            let to = match call.path.as_str() {
                "/redfish/v1/Systems/alias" => SYSTEM,
                "/redfish/v1/Systems/circle" => "/redfish/v1/Systems/circle/",
                "/redfish/v1/Systems/circle/" => "/redfish/v1/Systems/circle",
                "/redfish/v1/Systems/elsewhere" => "http://127.0.0.1:9/redfish/v1/Systems/1",
                _ => return None,
            };
            Some(Response::status(307, "").with("location", to))
        })
        .await;
    let bmc = connect(&peer).await;
    let named = |id: &str| SystemSelector { id: Some(id.into()), ..SystemSelector::default() };
    assert_eq!(bmc.system(&named("alias")).await.unwrap().id(), "1");
    let circle = bmc.system(&named("circle")).await.err().unwrap();
    assert_fault(&circle, FaultCode::AnswerGarbled, &["circle"]);
    let calls = peer.calls().iter().filter(|call| call.path.contains("circle")).count();
    assert_eq!(calls, 6, "one request and five redirects");
    let elsewhere = bmc.system(&named("elsewhere")).await.err().unwrap();
    assert_fault(&elsewhere, FaultCode::AnswerGarbled, &["127.0.0.1:9"]);
}

#[tokio::test]
async fn a_change_whose_answer_is_missing_may_have_happened() {
    for (message, words) in [
        (Response::Hang, "within 3 s"),
        (Response::HangUp, RESET),
        (Response::status(500, "{}"), "500"),
    ] {
        let peer = FakeBmc::new()
            .serve_except(move |call| call.is("POST", RESET).then(|| message.clone()))
            .await;
        let system = system(&peer).await;
        let lost = system.reset(Reset::On).await.unwrap_err();
        assert_fault(&lost, FaultCode::AnswerLost, &[words]);
        assert_eq!(peer.count("POST", RESET), 1, "a change is sent once: {lost}");
    }
}

#[tokio::test]
async fn a_read_whose_answer_is_missing_changed_nothing() {
    for message in [Response::Hang, Response::HangUp] {
        let silent = Arc::new(AtomicBool::new(false));
        let now = silent.clone();
        let peer = FakeBmc::new()
            .serve_except(move |_| now.load(Ordering::Relaxed).then(|| message.clone()))
            .await;
        let system = system(&peer).await;
        silent.store(true, Ordering::Relaxed);
        assert_fault(&system.power().await.unwrap_err(), FaultCode::BmcUnreachable, &[SYSTEM]);
    }
}

#[tokio::test]
async fn a_connection_that_was_closed_in_silence_is_made_again() {
    let env = FakeBmc::new();
    let peer = env
        .clone()
        .serve_except(move |call| {
            call.is("GET", SYSTEM).then(|| Response::ReplyThenClose(env.get(SYSTEM).to_string()))
        })
        .await;
    let system = system(&peer).await;
    for _ in 0..5 {
        assert_eq!(system.power().await, Ok(Power::Off));
        // The server closed the connection, and the change must not be lost on it.
        assert_eq!(system.reset(Reset::ForceOff).await, Ok(()));
    }
    assert_eq!(peer.count("POST", RESET), 5);
}

#[tokio::test]
async fn unchanged_power_is_detected() {
    let peer = FakeBmc::new()
        .serve_except(|call| call.is("POST", RESET).then(|| Response::status(204, "")))
        .await;
    let system = system(&peer).await;
    assert_eq!(system.reset(Reset::On).await, Ok(()));
    let still = system.wait_for_power(Power::On, Duration::from_millis(200)).await.unwrap_err();
    assert_fault(&still, FaultCode::ReadBackDiffers, &["Off", "not On", SYSTEM]);
}

#[tokio::test]
async fn a_bmc_that_is_away_for_a_while_is_waited_for() {
    let probes = AtomicUsize::new(0);
    let peer = FakeBmc::new()
        .serve_except(move |call| {
            if !call.is("GET", SYSTEM) {
                return None;
            }
            // The first read is the choice of the System.
            match probes.fetch_add(1, Ordering::Relaxed) {
                1 => Some(Response::status(503, "{}")),
                2 => Some(Response::status(500, "<html>")),
                3 => Some(Response::json("<html>")),
                4 => Some(Response::Hang),
                _ => None,
            }
        })
        .await;
    let system = system(&peer).await;
    assert_eq!(system.wait_for_power(Power::Off, DEADLINE).await, Ok(()));
    assert_eq!(peer.count("GET", SYSTEM), 6);
}

#[tokio::test]
async fn tasks_are_followed_until_they_end_or_are_lost() {
    let task = "/redfish/v1/TaskService/Tasks/7";
    let env = FakeBmc::new();
    env.put(
        task,
        json!({"@odata.id": task, "TaskState": "Running", "PercentComplete": "40",
        "Messages": [{"Message": "Verifying"}]}),
    );
    let peer = env.serve_except(|call| match call.path.as_str() {
        "/monitor/1" => Some(Response::status(202, "")),
        "/monitor/2" => Some(Response::status(204, "")),
        "/monitor/3" => Some(Response::status(400, r#"{"error": {"message": "Bad image."}}"#)),
        "/monitor/4" => Some(Response::status(503, "")),
        _ => None,
    });
    let peer = peer.await;
    let bmc = connect(&peer).await;
    let observed = bmc.task(&TaskRef::parse(task).unwrap()).await.unwrap();
    assert_eq!((observed.state, observed.percent), (TaskState::Running, Some(40)));
    assert_eq!(observed.messages, ["Verifying"]);
    env.set(task, "/TaskState", json!("Exception"));
    let ended = bmc.task(&TaskRef::parse(task).unwrap()).await.unwrap();
    assert_eq!(ended.state.ended(), Some(false));
    env.set(task, "/TaskState", json!("Dreaming"));
    let odd = bmc.task(&TaskRef::parse(task).unwrap()).await.unwrap_err();
    assert_fault(&odd, FaultCode::AnswerGarbled, &["Dreaming"]);
    for (monitor, state) in [
        ("/monitor/1", TaskState::Running),
        ("/monitor/2", TaskState::Completed),
        ("/monitor/3", TaskState::Exception),
    ] {
        let observed = bmc.task(&TaskRef::parse(monitor).unwrap()).await.unwrap();
        assert_eq!(observed.state, state, "{monitor}: {observed:?}");
    }
    let busy = bmc.task(&TaskRef::parse("/monitor/4").unwrap()).await.unwrap_err();
    assert_fault(&busy, FaultCode::BmcBusy, &[]);
    let gone = bmc.task(&TaskRef::parse("/redfish/v1/TaskService/Tasks/8").unwrap()).await;
    assert_fault(&gone.unwrap_err(), FaultCode::TaskLost, &["Tasks/8"]);
}
