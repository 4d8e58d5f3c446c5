//! From the messages of the agents to the model's values, and back.
//!
//! A request that cannot be read is refused with the name of the field that is wrong. Fields that are
//! not known here are a newer agent's and are ignored. Text that is kept is bounded and stripped of
//! control characters.

use engine::node::{Report, Taken};
use model::machine::MAX_MACS;
use model::node::enroll::Applicant;
use model::node::task;
use model::refusal::Refusal;
use model::text;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use wire::node::{
    EnrollRequest, HeartbeatRequest, RenewRequest, ReportRequest, TakeReply, Task, Then,
};

/// The shortest session: 16 random bytes in hexadecimal.
const LEAST_SESSION: usize = 32;
/// The longest token, session or name of a task.
const MAX_WORD: usize = 512;
/// The number of problems that are read, and the characters of them that are stored.
const MAX_PROBLEMS: usize = 64;
const MAX_SAID: usize = 4_096;
/// The stored problem of an unhealthy agent that reports none.
const UNSAID: &str = "it does not say why";

/// Reads a request. A field that is null counts as absent.
pub fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, Refusal> {
    let mut fields = match serde_json::from_slice(body) {
        Ok(Value::Object(fields)) => fields,
        Ok(_) => return Err(Refusal::invalid("body", "is not an object", "send a JSON object")),
        Err(error) => {
            let problem = format!("is not JSON: {error}");
            return Err(Refusal::invalid("body", problem, "send a JSON object"));
        }
    };
    fields.retain(|_, value| !value.is_null());
    let whole = serde_json::from_value(Value::Object(fields.clone()));
    whole.map_err(|_| {
        let wrong = fields.iter().find(|(field, value)| !accepts::<T>(field, value));
        wrong.map_or_else(
            || Refusal::invalid("body", "cannot be read", "send a JSON object"),
            |(field, value)| wrong_type::<T>(field, value),
        )
    })
}

/// True if a request with this field alone can be read. No field of a request is required by its
/// type, so this checks the type of the value.
fn accepts<T: DeserializeOwned>(field: &str, value: &Value) -> bool {
    let one = Map::from_iter([(field.to_string(), value.clone())]);
    serde_json::from_value::<T>(Value::Object(one)).is_ok()
}

/// Names a value by its type only: it may be a secret in the wrong field.
fn wrong_type<T: DeserializeOwned>(field: &str, value: &Value) -> Refusal {
    let is = match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    };
    let samples =
        [(json!(""), "a text"), (json!([]), "a list of texts"), (json!(true), "true or false")];
    let instead = samples.iter().find(|(sample, _)| accepts::<T>(field, sample));
    let instead = instead.map_or("a whole number of seconds", |(_, name)| name);
    Refusal::invalid(field, format!("is {is}"), format!("send {instead}"))
}

/// The token, and the agent that shows it.
pub fn enrollment(request: EnrollRequest) -> Result<(String, Applicant), Refusal> {
    let token = word("token", request.token)?;
    let session = word("session", request.session)?;
    if session.len() < LEAST_SESSION {
        let instead = "choose 32 random bytes, in hexadecimal";
        return Err(Refusal::invalid("session", "is too short", instead));
    }
    // A card of another kind, for example InfiniBand, has an address of another form. The machine is
    // recognized by its other cards.
    let macs = request.macs.iter().filter_map(|mac| text::mac("macs", mac).ok());
    let applicant = Applicant {
        session,
        hostname: kept(&request.hostname, text::MAX_SHORT),
        serial: kept(&request.serial, text::MAX_SHORT),
        macs: macs.take(MAX_MACS).collect(),
        version: kept(&request.version, text::MAX_SHORT),
    };
    Ok((token, applicant))
}

/// The problems of a node in one text; empty: it is healthy.
pub fn problems(beat: &HeartbeatRequest) -> Result<String, Refusal> {
    let healthy = beat.healthy.ok_or_else(|| Refusal::missing("healthy"))?;
    let said = beat.problems.iter().take(MAX_PROBLEMS).map(|one| one.trim());
    let said: Vec<&str> = said.filter(|one| !one.is_empty()).collect();
    Ok(match (healthy, said.is_empty()) {
        (false, true) => UNSAID.into(),
        (true, _) | (false, false) => kept(&said.join("; "), MAX_SAID),
    })
}

/// The task whose lease is renewed, and the new part of its log.
pub fn renewal(request: RenewRequest) -> Result<(String, String), Refusal> {
    Ok((word("id", request.id)?, request.log))
}

pub fn report(request: ReportRequest) -> Result<Report, Refusal> {
    Ok(Report {
        key: word("id", request.id)?,
        ok: request.ok.ok_or_else(|| Refusal::missing("ok"))?,
        said: kept(&request.said, MAX_SAID),
        log: request.log,
    })
}

/// A text that must not be empty.
fn word(field: &str, word: String) -> Result<String, Refusal> {
    match word.len() {
        0 => Err(Refusal::missing(field)),
        1..=MAX_WORD => Ok(word),
        long => {
            let problem = format!("is {long} bytes long");
            Err(Refusal::invalid(field, problem, format!("use at most {MAX_WORD} bytes")))
        }
    }
}

/// The text on one line, cut to the stored length.
fn kept(said: &str, most: usize) -> String {
    let line = said.chars().map(|c| if c.is_whitespace() { ' ' } else { c });
    line.filter(|c| !c.is_control()).take(most).collect()
}

pub fn take_reply(taken: Option<Taken>) -> TakeReply {
    let task = taken.map(|taken| Task {
        deadline_seconds: taken.left.as_secs(),
        id: taken.task.key.to_string(),
        kind: taken.task.kind.as_str().to_string(),
        lease_seconds: taken.lease.as_secs(),
        params: taken.task.params,
    });
    TakeReply { task }
}

pub const fn then(then: task::Then) -> Then {
    match then {
        task::Then::GoOn => Then::GoOn,
        task::Then::Stop => Then::Stop,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::node::TaskKind;
    use model::node::enroll::Denied;
    use wire::node::{self, TakeRequest};

    /// Reads a request and converts it.
    fn told<T: DeserializeOwned, U>(
        value: &Value,
        convert: impl Fn(T) -> Result<U, Refusal>,
    ) -> Result<U, Refusal> {
        read(value.to_string().as_bytes()).and_then(convert)
    }

    fn field<T>(answer: Result<T, Refusal>) -> String {
        answer.err().and_then(|refusal| refusal.field).unwrap_or_default()
    }

    #[test]
    fn what_is_missing_or_of_another_type_is_named() {
        let session = "5".repeat(64);
        let all = json!({
            "token": "t", "session": session, "hostname": "h\u{7}\nx", "serial": "S", "new": [1],
            "macs": ["52-54-00-00-00-AA", "80:00:02:08:fe:80:00:00:00:00:00:00:00:02:c9:03:00:00:00:01"],
        });
        let (token, applicant) = told(&all, enrollment).unwrap();
        assert_eq!((token.as_str(), applicant.hostname.as_str()), ("t", "h x"));
        assert_eq!(applicant.macs, ["52:54:00:00:00:aa"]);
        for (name, value) in [
            ("token", json!("")),
            ("token", json!(7)),
            ("token", json!("x".repeat(MAX_WORD + 1))),
            ("session", json!("short")),
            ("session", json!(null)),
            ("hostname", json!(["h"])),
            ("serial", json!(1)),
            ("macs", json!("one")),
            ("macs", json!([1])),
            ("boot_id", json!({})),
            ("version", json!(true)),
        ] {
            let mut one = all.clone();
            one[name] = value;
            assert_eq!(field(told(&one, enrollment)), name, "{one}");
        }
        assert_eq!(field(told(&json!({ "id": "k", "log": 1 }), renewal)), "log");
        assert_eq!(field(told(&json!({ "id": "k", "ok": "yes" }), report)), "ok");
        assert_eq!(field(told(&json!({ "id": "k" }), report)), "ok");
        assert_eq!(field(told(&json!({ "ok": true }), report)), "id");
        for wait in [json!(-1), json!(1.5), json!("1")] {
            let take = read::<TakeRequest>(json!({ "wait_seconds": wait }).to_string().as_bytes());
            assert_eq!(field(take), "wait_seconds");
        }
        for bad in ["", "{", "[]", "7"] {
            assert_eq!(field(read::<TakeRequest>(bad.as_bytes())), "body", "{bad}");
        }
    }

    #[test]
    fn a_value_of_the_wrong_type_is_told_what_to_send_instead() {
        for (value, said) in [
            (json!({ "boot_id": 7 }), "boot_id is a number; send a text"),
            (json!({ "problems": "hot" }), "problems is a text; send a list of texts"),
            (json!({ "tasks": [1] }), "tasks is a list; send a list of texts"),
            (json!({ "healthy": {} }), "healthy is an object; send true or false"),
        ] {
            let refusal = told(&value, |beat| problems(&beat)).unwrap_err();
            assert_eq!(refusal.said, said);
        }
        let take = read::<TakeRequest>(br#"{"wait_seconds":"1"}"#).unwrap_err();
        assert_eq!(take.said, "wait_seconds is a text; send a whole number of seconds");
    }

    #[test]
    fn complaints_are_joined_and_bounded() {
        let told = |value: &Value| told(value, |beat| problems(&beat));
        for (said, problems) in [
            (json!({ "healthy": true }), ""),
            (json!({ "healthy": true, "problems": [] }), ""),
            (json!({ "healthy": false }), UNSAID),
            (json!({ "healthy": false, "problems": [" "] }), UNSAID),
            (
                json!({ "healthy": false, "problems": ["disk\u{1b}[2J full", "hot"] }),
                "disk[2J full; hot",
            ),
            (json!({ "healthy": true, "problems": ["hot"] }), "hot"),
        ] {
            assert_eq!(told(&said).unwrap(), problems, "{said}");
        }
        let many = json!({ "healthy": false, "problems": vec!["x".repeat(100); 100] });
        assert_eq!(told(&many).unwrap().len(), MAX_SAID);
        assert_eq!(field(told(&json!({ "problems": [] }))), "healthy");
        assert_eq!(field(told(&json!({ "healthy": true, "tasks": [7] }))), "tasks");
    }

    #[test]
    fn agents_know_the_words_of_the_model() {
        for kind in TaskKind::ALL {
            assert!(node::TaskKind::parse(kind.as_str()).is_some(), "{kind:?}");
        }
        for (denied, code) in [
            (Denied::SessionUnknown, node::SESSION_UNKNOWN),
            (Denied::NodeDeleted, node::NODE_DELETED),
            (Denied::TaskOver, node::TASK_OVER),
        ] {
            assert_eq!(denied.as_str(), code);
        }
    }
}
