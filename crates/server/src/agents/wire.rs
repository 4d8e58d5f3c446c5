//! The words between agents and Farrier.
//!
//! What an agent says is read field by field, so that a wrong one is named. Fields that are not known here are a newer agent's and
//! are passed over. Text that is kept is bounded, and what steers a terminal is taken out of it.

use engine::nodes::{Report, Taken};
use model::machine::MAX_MACS;
use model::node::enroll::Applicant;
use model::node::task::Then;
use model::refusal::Refusal;
use model::text;
use serde_json::{Map, Value, json};
use std::time::Duration;

/// The least that a session is long: 16 random bytes in hexadecimal.
const LEAST_SESSION: usize = 32;
/// The longest token, session or name of a task.
const MAX_WORD: usize = 512;
/// How many complaints are read, and how much of them is kept.
const MAX_PROBLEMS: usize = 64;
const MAX_SAID: usize = 4_096;
/// What is kept of an agent that is not well and says no more.
const UNSAID: &str = "it does not say why";

/// What an agent said.
pub struct Told(Map<String, Value>);

impl Told {
    pub fn read(body: &[u8]) -> Result<Self, Refusal> {
        match serde_json::from_slice(body) {
            Ok(Value::Object(fields)) => Ok(Self(fields)),
            Ok(_) => Err(Refusal::invalid("body", "is not an object", "send a JSON object")),
            Err(error) => {
                Err(Refusal::invalid("body", format!("is not JSON: {error}"), "send a JSON object"))
            }
        }
    }

    /// Who shows a token, and the token.
    pub fn enrollment(&self) -> Result<(String, Applicant), Refusal> {
        let token = self.word("token")?;
        let session = self.word("session")?;
        if session.len() < LEAST_SESSION {
            let instead = "choose 32 random bytes, in hexadecimal";
            return Err(Refusal::invalid("session", "is too short", instead));
        }
        self.text("boot_id")?;
        // A card of another kind, InfiniBand say, has an address of another form; it is known by its others.
        let macs = self.texts("macs")?.into_iter();
        let macs = macs.filter_map(|mac| text::mac("macs", mac).ok()).take(MAX_MACS).collect();
        let kept = |field: &str| self.text(field).map(|said| kept(said, text::MAX_SHORT));
        let applicant = Applicant {
            session,
            hostname: kept("hostname")?,
            serial: kept("serial")?,
            macs,
            version: kept("version")?,
        };
        Ok((token, applicant))
    }

    /// What it complains of; empty: it is well.
    pub fn problems(&self) -> Result<String, Refusal> {
        let healthy = self.flag("healthy")?;
        self.text("boot_id")?;
        self.text("version")?;
        self.texts("tasks")?;
        let problems = self.texts("problems")?;
        let said = problems.iter().take(MAX_PROBLEMS).map(|one| one.trim());
        let said: Vec<&str> = said.filter(|one| !one.is_empty()).collect();
        Ok(match (healthy, said.is_empty()) {
            (false, true) => UNSAID.into(),
            (_, _) => kept(&said.join("; "), MAX_SAID),
        })
    }

    /// How long it waits for something to do. The engine knows the longest.
    pub fn wait(&self) -> Result<Duration, Refusal> {
        match self.0.get("wait_seconds") {
            None | Some(Value::Null) => Ok(Duration::ZERO),
            Some(value) => match value.as_u64() {
                Some(seconds) => Ok(Duration::from_secs(seconds)),
                None => Err(wrong("wait_seconds", value, "a whole number of seconds")),
            },
        }
    }

    /// The task that it is at work on, and what it says meanwhile.
    pub fn renewal(&self) -> Result<(String, String), Refusal> {
        Ok((self.word("id")?, self.text("log")?.to_string()))
    }

    pub fn report(&self) -> Result<Report, Refusal> {
        Ok(Report {
            key: self.word("id")?,
            ok: self.flag("ok")?,
            said: kept(self.text("said")?, MAX_SAID),
            log: self.text("log")?.to_string(),
        })
    }

    /// A text that must be there.
    fn word(&self, field: &str) -> Result<String, Refusal> {
        match self.text(field)? {
            "" => Err(Refusal::missing(field)),
            word if word.len() > MAX_WORD => {
                let problem = format!("is {} bytes long", word.len());
                Err(Refusal::invalid(field, problem, format!("use at most {MAX_WORD} bytes")))
            }
            word => Ok(word.to_string()),
        }
    }

    /// A text, empty where there is none.
    fn text(&self, field: &str) -> Result<&str, Refusal> {
        match self.0.get(field) {
            None | Some(Value::Null) => Ok(""),
            Some(Value::String(said)) => Ok(said),
            Some(other) => Err(wrong(field, other, "a text")),
        }
    }

    fn texts(&self, field: &str) -> Result<Vec<&str>, Refusal> {
        let Some(value) = self.0.get(field).filter(|value| !value.is_null()) else {
            return Ok(Vec::new());
        };
        let all = value.as_array().and_then(|all| all.iter().map(Value::as_str).collect());
        all.ok_or_else(|| wrong(field, value, "a list of texts"))
    }

    fn flag(&self, field: &str) -> Result<bool, Refusal> {
        match self.0.get(field) {
            None | Some(Value::Null) => Err(Refusal::missing(field)),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(other) => Err(wrong(field, other, "true or false")),
        }
    }
}

/// A value of the wrong type. It is named by its type only: it may be a secret in the wrong place.
fn wrong(field: &str, value: &Value, wanted: &str) -> Refusal {
    let is = match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    };
    Refusal::invalid(field, format!("is {is}"), format!("send {wanted}"))
}

/// As much of a text as is kept, on one line.
fn kept(said: &str, most: usize) -> String {
    let line = said.chars().map(|c| if c.is_whitespace() { ' ' } else { c });
    line.filter(|c| !c.is_control()).take(most).collect()
}

/// What an agent is to do.
pub fn task(taken: &Taken) -> Value {
    json!({
        "id": taken.task.key.to_string(),
        "kind": taken.task.kind.as_str(),
        "lease_seconds": taken.lease.as_secs(),
        "deadline_seconds": taken.left.as_secs(),
        "params": taken.task.params,
    })
}

pub const fn then(then: Then) -> &'static str {
    match then {
        Then::GoOn => "go-on",
        Then::Stop => "stop",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(value: &Value) -> Told {
        Told::read(value.to_string().as_bytes()).unwrap()
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
        let (token, applicant) = told(&all).enrollment().unwrap();
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
            assert_eq!(field(told(&one).enrollment()), name, "{one}");
        }
        assert_eq!(field(told(&json!({ "id": "k", "log": 1 })).renewal()), "log");
        assert_eq!(field(told(&json!({ "id": "k", "ok": "yes" })).report()), "ok");
        assert_eq!(field(told(&json!({ "ok": true })).report()), "id");
        for wait in [json!(-1), json!(1.5), json!("1")] {
            assert_eq!(field(told(&json!({ "wait_seconds": wait })).wait()), "wait_seconds");
        }
        for bad in ["", "{", "[]", "7"] {
            assert_eq!(field(Told::read(bad.as_bytes())), "body", "{bad}");
        }
    }

    #[test]
    fn complaints_are_joined_and_bounded() {
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
            assert_eq!(told(&said).problems().unwrap(), problems, "{said}");
        }
        let many = json!({ "healthy": false, "problems": vec!["x".repeat(100); 100] });
        assert_eq!(told(&many).problems().unwrap().len(), MAX_SAID);
        assert_eq!(field(told(&json!({ "problems": [] })).problems()), "healthy");
        assert_eq!(field(told(&json!({ "healthy": true, "tasks": [7] })).problems()), "tasks");
    }
}
