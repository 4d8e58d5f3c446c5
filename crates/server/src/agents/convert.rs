//! From the messages of the agents to the model's values, and back.
//!
//! A request that cannot be read is refused with the name of the field that is wrong. Fields that
//! are not known here are a newer agent's and are ignored. Text that is kept is bounded and
//! stripped of control characters.

use engine::node::{DispatchedTask, TaskReport};
use model::machine::MAX_MACS;
use model::node::enroll::EnrollingAgent;
use model::refusal::Refusal;
use model::text;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use wire::node::{EnrollRequest, HeartbeatRequest, RenewRequest, ReportRequest, TakeReply, Task};

/// The shortest session: 16 random bytes in hexadecimal.
const LEAST_SESSION: usize = 32;
/// The longest token, session or name of a task.
const MAX_TEXT_BYTES: usize = 512;
/// The number of problems that are read, and the characters of them that are stored.
const MAX_PROBLEMS: usize = 64;
const MAX_MESSAGE: usize = 4_096;
/// The stored problem of an unhealthy agent that reports none.
const NO_REASON: &str = "it does not say why";

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
    let complete = serde_json::from_value(Value::Object(fields.clone()));
    complete.map_err(|_| {
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
pub fn enrollment(request: EnrollRequest) -> Result<(String, EnrollingAgent), Refusal> {
    let token = required_text("token", request.token)?;
    let session = required_text("session", request.session)?;
    if session.len() < LEAST_SESSION {
        let instead = "choose 32 random bytes, in hexadecimal";
        return Err(Refusal::invalid("session", "is too short", instead));
    }
    // A card of another kind, for example InfiniBand, has an address of another form. The machine
    // is recognized by its other cards.
    let macs = request.macs.iter().filter_map(|mac| text::normalize_mac("macs", mac).ok());
    let applicant = EnrollingAgent {
        session,
        hostname: single_line(&request.hostname, text::MAX_SHORT),
        serial: single_line(&request.serial, text::MAX_SHORT),
        macs: macs.take(MAX_MACS).collect(),
        version: single_line(&request.version, text::MAX_SHORT),
    };
    Ok((token, applicant))
}

/// The problems of a node in one text; empty: it is healthy.
pub fn problems(beat: &HeartbeatRequest) -> Result<String, Refusal> {
    let healthy = beat.healthy.ok_or_else(|| Refusal::missing("healthy"))?;
    let message = beat.problems.iter().take(MAX_PROBLEMS).map(|one| one.trim());
    let message: Vec<&str> = message.filter(|one| !one.is_empty()).collect();
    Ok(match (healthy, message.is_empty()) {
        (false, true) => NO_REASON.into(),
        (true, _) | (false, false) => single_line(&message.join("; "), MAX_MESSAGE),
    })
}

/// The task whose lease is renewed, and the new part of its log.
pub fn renewal(request: RenewRequest) -> Result<(String, String), Refusal> {
    Ok((required_text("id", request.id)?, request.log))
}

pub fn report(request: ReportRequest) -> Result<TaskReport, Refusal> {
    Ok(TaskReport {
        key: required_text("id", request.id)?,
        ok: request.ok.ok_or_else(|| Refusal::missing("ok"))?,
        message: single_line(&request.message, MAX_MESSAGE),
        log: request.log,
    })
}

/// A text that must not be empty.
fn required_text(field: &str, name: String) -> Result<String, Refusal> {
    match name.len() {
        0 => Err(Refusal::missing(field)),
        1..=MAX_TEXT_BYTES => Ok(name),
        long => {
            let problem = format!("is {long} bytes long");
            Err(Refusal::invalid(field, problem, format!("use at most {MAX_TEXT_BYTES} bytes")))
        }
    }
}

/// The text on one line, cut to the stored length.
fn single_line(message: &str, most: usize) -> String {
    let line = message.chars().map(|c| if c.is_whitespace() { ' ' } else { c });
    line.filter(|c| !c.is_control()).take(most).collect()
}

pub fn take_reply(taken: Option<DispatchedTask>) -> TakeReply {
    let task = taken.map(|taken| Task {
        deadline_seconds: taken.left.as_secs(),
        id: taken.task.key.to_string(),
        kind: taken.task.kind.as_str().to_string(),
        lease_seconds: taken.lease.as_secs(),
        params: taken.task.params,
    });
    TakeReply { task }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::node::enroll::EnrollmentRefusal;
    use wire::node::{self, TakeRequest};

    /// Reads a request and converts it.
    fn read_and_convert<T: DeserializeOwned, U>(
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
        let (token, applicant) = read_and_convert(&all, enrollment).unwrap();
        assert_eq!((token.as_str(), applicant.hostname.as_str()), ("t", "h x"));
        assert_eq!(applicant.macs, ["52:54:00:00:00:aa"]);
        for (name, value) in [
            ("token", json!("")),
            ("token", json!(7)),
            ("token", json!("x".repeat(MAX_TEXT_BYTES + 1))),
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
            assert_eq!(field(read_and_convert(&one, enrollment)), name, "{one}");
        }
        assert_eq!(field(read_and_convert(&json!({ "id": "k", "log": 1 }), renewal)), "log");
        assert_eq!(field(read_and_convert(&json!({ "id": "k", "ok": "yes" }), report)), "ok");
        assert_eq!(field(read_and_convert(&json!({ "id": "k" }), report)), "ok");
        assert_eq!(field(read_and_convert(&json!({ "ok": true }), report)), "id");
        for wait in [json!(-1), json!(1.5), json!("1")] {
            let take = read::<TakeRequest>(json!({ "wait_seconds": wait }).to_string().as_bytes());
            assert_eq!(field(take), "wait_seconds");
        }
        for bad in ["", "{", "[]", "7"] {
            assert_eq!(field(read::<TakeRequest>(bad.as_bytes())), "body", "{bad}");
        }
    }

    #[test]
    fn a_wrong_type_names_the_expected_one() {
        for (value, message) in [
            (json!({ "boot_id": 7 }), "boot_id is a number; send a text"),
            (json!({ "problems": "hot" }), "problems is a text; send a list of texts"),
            (json!({ "tasks": [1] }), "tasks is a list; send a list of texts"),
            (json!({ "healthy": {} }), "healthy is an object; send true or false"),
        ] {
            let refusal = read_and_convert(&value, |beat| problems(&beat)).unwrap_err();
            assert_eq!(refusal.message, message);
        }
        let take = read::<TakeRequest>(br#"{"wait_seconds":"1"}"#).unwrap_err();
        assert_eq!(take.message, "wait_seconds is a text; send a whole number of seconds");
    }

    #[test]
    fn complaints_are_joined_and_bounded() {
        let reported = |value: &Value| read_and_convert(value, |beat| problems(&beat));
        for (message, problems) in [
            (json!({ "healthy": true }), ""),
            (json!({ "healthy": true, "problems": [] }), ""),
            (json!({ "healthy": false }), NO_REASON),
            (json!({ "healthy": false, "problems": [" "] }), NO_REASON),
            (
                json!({ "healthy": false, "problems": ["disk\u{1b}[2J full", "hot"] }),
                "disk[2J full; hot",
            ),
            (json!({ "healthy": true, "problems": ["hot"] }), "hot"),
        ] {
            assert_eq!(reported(&message).unwrap(), problems, "{message}");
        }
        let many = json!({ "healthy": false, "problems": vec!["x".repeat(100); 100] });
        assert_eq!(reported(&many).unwrap().len(), MAX_MESSAGE);
        assert_eq!(field(reported(&json!({ "problems": [] }))), "healthy");
        assert_eq!(field(reported(&json!({ "healthy": true, "tasks": [7] }))), "tasks");
    }

    #[test]
    fn agents_know_the_words_of_the_model() {
        for (denied, code) in [
            (EnrollmentRefusal::SessionUnknown, node::SESSION_UNKNOWN),
            (EnrollmentRefusal::NodeDeleted, node::NODE_DELETED),
            (EnrollmentRefusal::TaskOver, node::TASK_OVER),
        ] {
            assert_eq!(denied.as_str(), code);
        }
    }
}
