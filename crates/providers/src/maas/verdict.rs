//! Classifies the answers of MAAS: a pure mapping from request and answer to a fault, and whether
//! the request may be repeated.
//!
//! MAAS runs a request in one transaction. A database conflict is a 409 with `Retry-After` and has
//! changed nothing; a 409 without it is a wrong state. Power requests follow the transaction, so a
//! 503 may come after a change that was made. Only a 404 of MAAS itself proves absence.

use super::address::Address;
use crate::http_client::text::one_line;
use hyper::{Method, StatusCode};
use model::fault::{Code, Fault};
use model::retry::Backoff;
use serde_json::Value;
use std::time::Duration;

/// What a request is about. A 404 is classified by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum About {
    /// One machine, by a system id from MAAS.
    Machine,
    /// A disk or an interface of such a machine.
    Part,
    /// Anything else in the region.
    Region,
}

/// Whether a request may be repeated without harm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Again {
    Harmless,
    Harmful,
}

pub(super) struct Asked<'a> {
    pub address: &'a Address,
    pub method: &'a Method,
    pub path: &'a str,
    pub about: About,
    pub again: Again,
}

#[derive(Clone, Copy)]
pub(super) struct Answer<'a> {
    pub status: StatusCode,
    pub retry_after: Option<&'a str>,
    pub body: &'a [u8],
}

impl Asked<'_> {
    fn changes(&self) -> bool {
        self.method != Method::GET
    }

    fn words(&self) -> String {
        format!("{} was asked to {} {}", self.address, self.method, self.path)
    }

    /// The request was sent and the answer never came.
    pub fn lost(&self, why: &str) -> Fault {
        let (code, end) = match self.changes() {
            true => (Code::AnswerLost, ", so it may have been done"),
            false => (Code::MaasUnreachable, ""),
        };
        Fault::new(code, format!("{}: {why}{end}", self.words()))
    }

    /// A success whose body cannot be decoded.
    pub fn garbled(&self, why: &str) -> Fault {
        let code = if self.changes() { Code::AnswerGarbled } else { Code::MaasUnreachable };
        Fault::new(code, format!("{}; it answered with something else: {why}", self.words()))
    }

    /// The fault of a refusal.
    pub fn refused(&self, answer: Answer<'_>) -> Fault {
        let words = Words::of(answer.body);
        let Self { address, method, path, .. } = self;
        let mut said = format!("{address} answered {} to {method} {path}", answer.status);
        if let Some(wait) = answer.wants_s() {
            said.push_str(&format!(" and wants to be asked again after {wait} s"));
        }
        if !words.said.is_empty() {
            said.push_str(&format!(": {}", words.said));
        }
        let code = self.code(answer, &words);
        said.push_str(hint(answer.status, code));
        Fault::new(code, said)
    }

    fn code(&self, answer: Answer<'_>, words: &Words) -> Code {
        match answer.status.as_u16() {
            401 => Code::LoginRefused,
            400 if words.wrong_state() => Code::EffectFailed,
            400 if words.said.starts_with(UNKNOWN_CALL) => Code::NotSupported,
            410 => Code::NotSupported,
            404 => self.absent(words),
            409 if answer.is_conflict(words) => Code::MaasBusy,
            409 => Code::EffectFailed,
            429 => Code::MaasBusy,
            300..=499 => Code::MaasRefused,
            503 if self.again == Again::Harmless => Code::MaasBusy,
            500.. if self.changes() => Code::AnswerLost,
            500.. => Code::MaasUnreachable,
            _ => self.garbled("").code,
        }
    }

    fn absent(&self, words: &Words) -> Code {
        let MaasSays::NotThere = words.absence() else {
            // From a proxy or another program that does not know the path.
            return Code::MaasUnreachable;
        };
        match self.about {
            About::Machine => Code::MaasMachineGone,
            // The machine or only the component is gone: the next read of the machine shows which.
            About::Part => Code::EffectFailed,
            About::Region => Code::MaasRefused,
        }
    }

    /// Whether to retry: nothing was changed, or the request is idempotent.
    pub fn may_repeat(&self, answer: Answer<'_>) -> bool {
        let words = Words::of(answer.body);
        match answer.status.as_u16() {
            409 => answer.is_conflict(&words),
            429 => true,
            503 => self.again == Again::Harmless,
            _ => false,
        }
    }
}

/// How MAAS refuses an unknown operation.
const UNKNOWN_CALL: &str = "Unrecognised signature";
/// How its forms report a wrong state, where other requests answer 409.
const WRONG_STATE: &str = "because of the current state";
/// How MAAS reports absence, around the name of the kind.
const ABSENT: (&str, &str) = ("No ", " matches the given query.");
const ABSENT_SHORT: &str = "Not Found";
/// How many fields of a refusal a fault quotes.
const MAX_FIELDS: usize = 8;
/// The longest message that a fault quotes.
const MAX_SAID_CHARS: usize = 400;

enum MaasSays {
    NotThere,
    SomethingElse,
}

/// The message of a refusal.
struct Words {
    said: String,
    /// An HTML page, so not from the API.
    page: bool,
}

impl Words {
    fn of(body: &[u8]) -> Self {
        let text = String::from_utf8_lossy(body);
        let text = text.trim();
        if text.starts_with('<') {
            return Self { said: String::new(), page: true };
        }
        let said = match serde_json::from_str(text) {
            Ok(Value::Object(fields)) => {
                let field = |(name, value): (&String, &Value)| match name.as_str() {
                    // About the whole form, not one field.
                    "__all__" => flat(value),
                    name => format!("{name}: {}", flat(value)),
                };
                fields.iter().take(MAX_FIELDS).map(field).collect::<Vec<_>>().join("; ")
            }
            Ok(value @ (Value::Array(_) | Value::String(_))) => flat(&value),
            Ok(Value::Null | Value::Bool(_) | Value::Number(_)) | Err(_) => text.to_owned(),
        };
        Self { said: one_line(&said, MAX_SAID_CHARS), page: false }
    }

    fn wrong_state(&self) -> bool {
        self.said.contains(WRONG_STATE)
    }

    fn absence(&self) -> MaasSays {
        let (before, after) = ABSENT;
        let named = self.said.strip_prefix(before).and_then(|rest| rest.strip_suffix(after));
        match named.is_some() || self.said == ABSENT_SHORT {
            true if !self.page => MaasSays::NotThere,
            true | false => MaasSays::SomethingElse,
        }
    }
}

impl Answer<'_> {
    fn wants_s(&self) -> Option<u64> {
        self.retry_after?.trim().parse().ok()
    }

    /// A database conflict, which MAAS rolled back. Before 3.4 only its HTML page shows it.
    fn is_conflict(&self, words: &Words) -> bool {
        self.retry_after.is_some() || words.page
    }

    /// The delay before a retry. `None`: MAAS asks for more than the client waits.
    pub fn pause(&self, pauses: Backoff, failures: u32, seed: &str) -> Option<Duration> {
        let Some(wanted) = self.wants_s().map(Duration::from_secs) else {
            return Some(pauses.delay(failures, seed));
        };
        // Jitter, so that the replicas do not retry at the same moment.
        let spread = Backoff { most: pauses.first, ..pauses }.delay(1, seed);
        (wanted <= pauses.most).then(|| wanted + spread)
    }
}

fn flat(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(several) => several.iter().map(flat).collect::<Vec<_>>().join(" "),
        other => other.to_string(),
    }
}

const fn hint(status: StatusCode, code: Code) -> &'static str {
    match (status.as_u16(), code) {
        (401, _) => "; the key was deleted, or the clocks of the two computers are minutes apart",
        (403, _) => {
            "; the key's user may not do this, and most of it is for administrators of MAAS"
        }
        (300..=399, _) => "; it leads elsewhere: correct the address",
        (404, Code::MaasUnreachable) => "; that is not how MAAS says it: correct the address",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::fault::Happened;

    fn address() -> Address {
        Address::parse("http://maas:5240/MAAS").unwrap()
    }

    fn told(method: Method, about: About, again: Again, answer: Answer<'_>) -> (Fault, bool) {
        let address = address();
        let path = "machines/abc/";
        let asked = Asked { address: &address, method: &method, path, about, again };
        (asked.refused(answer), asked.may_repeat(answer))
    }

    fn answer<'a>(status: u16, retry_after: Option<&'a str>, body: &'a str) -> Answer<'a> {
        let status = StatusCode::from_u16(status).unwrap();
        Answer { status, retry_after, body: body.as_bytes() }
    }

    const GONE: &str = "No Machine matches the given query.";
    const STATE: &str = "Can't deploy a machine that is in the 'Commissioning' state";
    const FORM: &str =
        r#"{"__all__": ["Commission is not available because of the current state of the node."]}"#;
    const PAGE: &str = "<!DOCTYPE html><p>Conflict error.";

    /// The answer; then code and retry for a read, an idempotent change and another change.
    type Row = (u16, Option<&'static str>, &'static str, [(Code, bool); 3]);

    #[test]
    fn every_answer_has_its_meaning() {
        use Code::*;
        let all = |code, again| [(code, again); 3];
        let rows: [Row; 21] = [
            (400, None, r#"{"pool": ["No such pool."]}"#, all(MaasRefused, false)),
            (400, None, FORM, all(EffectFailed, false)),
            (400, None, "Unrecognised signature: method=POST op=x", all(NotSupported, false)),
            (401, None, "Authorization Error: Invalid API key.", all(LoginRefused, false)),
            (403, None, "", all(MaasRefused, false)),
            (404, None, GONE, all(MaasMachineGone, false)),
            (404, None, "Not Found", all(MaasMachineGone, false)),
            (404, None, PAGE, all(MaasUnreachable, false)),
            (404, None, "default backend - 404", all(MaasUnreachable, false)),
            (405, None, "", all(MaasRefused, false)),
            (409, None, STATE, all(EffectFailed, false)),
            (409, Some("5"), PAGE, all(MaasBusy, true)),
            (409, None, PAGE, all(MaasBusy, true)),
            (409, Some("5"), "", all(MaasBusy, true)),
            (410, None, "The 1.0 API is no longer available.", all(NotSupported, false)),
            (429, None, "", all(MaasBusy, true)),
            (301, None, "", all(MaasRefused, false)),
            (
                500,
                None,
                "oops",
                [(MaasUnreachable, false), (AnswerLost, false), (AnswerLost, false)],
            ),
            (502, None, PAGE, [(MaasUnreachable, false), (AnswerLost, false), (AnswerLost, false)]),
            (503, Some("10"), "", [(MaasBusy, true), (MaasBusy, true), (AnswerLost, false)]),
            (504, None, "", [(MaasUnreachable, false), (AnswerLost, false), (AnswerLost, false)]),
        ];
        for (status, retry_after, body, expected) in rows {
            let asked = [
                (Method::GET, Again::Harmless),
                (Method::PUT, Again::Harmless),
                (Method::POST, Again::Harmful),
            ];
            for ((method, again), (code, repeat)) in asked.into_iter().zip(expected) {
                let answer = answer(status, retry_after, body);
                let (fault, repeats) = told(method.clone(), About::Machine, again, answer);
                assert_eq!((fault.code, repeats), (code, repeat), "{method} {fault}");
                assert!(fault.said.contains(&status.to_string()), "{fault}");
                assert!(fault.said.contains("http://maas:5240/MAAS"), "{fault}");
                let look = method == Method::GET;
                assert!(!look || fault.code.happened() == Happened::No, "{fault}");
                assert!(!body.starts_with('<') || !fault.said.contains("html"), "{fault}");
            }
        }
    }

    #[test]
    fn what_is_not_there_depends_on_what_was_asked_for() {
        for (about, code) in [
            (About::Machine, Code::MaasMachineGone),
            (About::Part, Code::EffectFailed),
            (About::Region, Code::MaasRefused),
        ] {
            let interface = answer(404, None, "No Interface matches the given query.");
            assert_eq!(told(Method::GET, about, Again::Harmless, interface).0.code, code);
        }
    }

    #[test]
    fn the_words_of_maas_are_passed_on() {
        let said = |body: &str| {
            let answer = answer(400, None, body);
            told(Method::POST, About::Region, Again::Harmful, answer).0.said
        };
        let fields = said(r#"{"pool": ["No such pool."], "mac_addresses": ["Taken.", "Twice."]}"#);
        assert!(fields.ends_with("mac_addresses: Taken. Twice.; pool: No such pool."), "{fields}");
        let whole = said(FORM);
        assert!(
            whole.ends_with(
                ": Commission is not available because of the current state of the node."
            ),
            "{whole}"
        );
        assert!(said("Failed to\nrender preseed").ends_with(": Failed to render preseed"));
        let wait = answer(503, Some("10"), "Unable to connect");
        let (fault, _) = told(Method::GET, About::Region, Again::Harmless, wait);
        assert!(fault.said.contains("after 10 s: Unable to connect"), "{fault}");
    }

    #[test]
    fn a_lost_or_unreadable_answer_is_in_doubt_only_for_a_change() {
        let address = address();
        for (method, lost, garbled) in [
            (Method::GET, Code::MaasUnreachable, Code::MaasUnreachable),
            (Method::POST, Code::AnswerLost, Code::AnswerGarbled),
            (Method::DELETE, Code::AnswerLost, Code::AnswerGarbled),
        ] {
            let (about, again) = (About::Machine, Again::Harmful);
            let asked = Asked { address: &address, method: &method, path: "x", about, again };
            assert_eq!(
                (asked.lost("y").code, asked.garbled("y").code),
                (lost, garbled),
                "{method}"
            );
        }
    }

    #[test]
    fn a_pause_is_as_long_as_maas_wants_or_none() {
        let s = Duration::from_secs;
        let pauses = Backoff { first: s(1), most: s(15) };
        let pause = |wants| answer(503, wants, "").pause(pauses, 3, "seed");
        let own = pause(None).unwrap();
        assert!(own >= s(2) && own <= s(4), "{own:?}");
        for (wants, at_least) in [("0", s(0)), ("10", s(10)), ("15", s(15))] {
            let pause = pause(Some(wants)).unwrap();
            assert!(pause >= at_least && pause <= at_least + s(1), "{wants}: {pause:?}");
        }
        assert_eq!(pause(Some("16")), None);
        // A date or an invalid value is ignored.
        assert_eq!(pause(Some("Wed, 21 Oct 2026 07:28:00 GMT")), Some(own));
    }
}
