//! Classifies the answers of MAAS: a pure mapping from request and answer to a fault, and whether
//! the request may be repeated.
//!
//! MAAS runs a request in one transaction. A database conflict is a 409 with `Retry-After` and has
//! changed nothing; a 409 without it is a wrong state. A 500 takes the transaction back. Power
//! requests follow the transaction, so their 500 and every 503 may come after a change that was
//! made, unless the 503 says that no rack reaches the BMC: then MAAS has given it up. Only a 404 of
//! MAAS itself proves absence. The text of a 401 may hold the secret of the key, so it is
//! not passed on.

use super::address::Address;
use crate::http_client::text::one_line;
use crate::secret_mask::SecretMask;
use hyper::{Method, StatusCode};
use model::fault::{Fault, FaultCode};
use model::retry::Backoff;
use serde_json::Value;
use std::time::Duration;

/// The object of a request. A 404 is classified by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CallTarget {
    /// One machine, by a system id from MAAS.
    Machine,
    /// A disk or an interface of such a machine.
    Component,
    /// Anything else in the region.
    Region,
}

/// An idempotent request may be repeated without harm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Idempotency {
    Idempotent,
    NotIdempotent,
}

pub(super) struct RequestContext<'a> {
    pub address: &'a Address,
    pub method: &'a Method,
    pub path: &'a str,
    pub target: CallTarget,
    pub idempotency: Idempotency,
    /// MAAS switches the machine's power after the transaction.
    pub powers: bool,
}

#[derive(Clone, Copy)]
pub(super) struct ApiAnswer<'a> {
    pub status: StatusCode,
    pub retry_after: Option<&'a str>,
    pub body: &'a [u8],
}

impl RequestContext<'_> {
    fn changes(&self) -> bool {
        self.method != Method::GET
    }

    fn describe(&self) -> String {
        format!("{} was asked to {} {}", self.address, self.method, self.path)
    }

    /// The request was sent and the answer never came.
    pub fn lost(&self, why: &str) -> Fault {
        let (code, end) = match self.changes() {
            true => (FaultCode::AnswerLost, ", so it may have been done"),
            false => (FaultCode::MaasUnreachable, ""),
        };
        Fault::new(code, format!("{}: {why}{end}", self.describe()))
    }

    /// A success whose body cannot be decoded.
    pub fn garbled(&self, why: &str) -> Fault {
        let code =
            if self.changes() { FaultCode::AnswerGarbled } else { FaultCode::MaasUnreachable };
        Fault::new(code, format!("{}; it answered with something else: {why}", self.describe()))
    }

    /// The fault of a refusal. MAAS may quote what it was sent: `mask` hides it.
    pub fn refused(&self, answer: ApiAnswer<'_>, mask: &SecretMask) -> Fault {
        let words = ErrorText::of(answer.body);
        let Self { address, method, path, .. } = self;
        let mut message = format!("{address} answered {} to {method} {path}", answer.status);
        if let Some(wait) = answer.retry_after_s() {
            message.push_str(&format!(" and wants to be asked again after {wait} s"));
        }
        let code = self.code(answer, &words);
        if code == FaultCode::LoginRefused {
            message.push_str(login_hint(&words.message));
            return Fault::new(code, message);
        }
        let hint = hint(answer.status, code);
        // Masked as it was said, before it is cut.
        let shown = one_line(&mask.text(&words.message), MAX_SAID_CHARS);
        if !shown.is_empty() {
            let shown = if hint.is_empty() { &*shown } else { shown.trim_end_matches('.') };
            message.push_str(&format!(": {shown}"));
        }
        message.push_str(hint);
        Fault::new(code, message)
    }

    fn code(&self, answer: ApiAnswer<'_>, words: &ErrorText) -> FaultCode {
        match answer.status.as_u16() {
            401 => FaultCode::LoginRefused,
            400 if words.wrong_state() => FaultCode::EffectFailed,
            400 if words.unavailable() => FaultCode::MaasBusy,
            400 if words.message.starts_with(UNKNOWN_CALL) => FaultCode::NotSupported,
            410 => FaultCode::NotSupported,
            404 => self.not_found_code(words),
            409 if answer.is_conflict(words) => FaultCode::MaasBusy,
            409 => FaultCode::EffectFailed,
            429 => FaultCode::MaasBusy,
            300..=499 => FaultCode::MaasRefused,
            503 if words.bmc_unreachable() => FaultCode::MaasFailed,
            503 if self.idempotency == Idempotency::Idempotent => FaultCode::MaasBusy,
            500 if self.changes() && !words.is_html => match self.powers {
                true => FaultCode::AnswerGarbled,
                false => FaultCode::MaasFailed,
            },
            500.. if self.changes() => FaultCode::AnswerLost,
            500.. => FaultCode::MaasUnreachable,
            _ => self.garbled("").code,
        }
    }

    fn not_found_code(&self, words: &ErrorText) -> FaultCode {
        let NotFoundOrigin::Maas = words.not_found_origin() else {
            // From a proxy or another program that does not know the path.
            return FaultCode::MaasUnreachable;
        };
        match self.target {
            CallTarget::Machine => FaultCode::MaasMachineGone,
            // The machine or only the component is gone: the next read of the machine shows which.
            CallTarget::Component => FaultCode::EffectFailed,
            CallTarget::Region => FaultCode::MaasRefused,
        }
    }

    /// True if the request is to be sent again: nothing was changed, or it is idempotent.
    pub fn may_repeat(&self, answer: ApiAnswer<'_>) -> bool {
        let words = ErrorText::of(answer.body);
        match answer.status.as_u16() {
            409 => answer.is_conflict(&words),
            429 => true,
            503 => self.idempotency == Idempotency::Idempotent && !words.bmc_unreachable(),
            _ => false,
        }
    }
}

/// The answer of MAAS to an unknown operation.
const UNKNOWN_CALL: &str = "Unrecognised signature";
/// The words with which its forms report a wrong state, where other requests answer 409.
const WRONG_STATE: &str = "because of the current state";
/// The refusal of MAAS to start a machine while it cannot use an image: in front and behind (in the
/// middle from 3.5 on).
const UNAVAILABLE: (&str, &str) = (" operating system ", " is unavailable");
/// The answer of MAAS when it cannot switch a machine's power, before the machine's name.
const BMC_UNREACHABLE: &str = "No rack controllers can access the BMC";
/// The answer of MAAS about an absent object, around the name of the kind.
const ABSENT: (&str, &str) = ("No ", " matches the given query.");
const ABSENT_SHORT: &str = "Not Found";
/// The most fields of a refusal that a fault quotes.
const MAX_FIELDS: usize = 8;
/// The longest message that a fault quotes.
const MAX_SAID_CHARS: usize = 400;

enum NotFoundOrigin {
    Maas,
    Other,
}

/// The message of a refusal.
struct ErrorText {
    message: String,
    /// An HTML page, so not from the API.
    is_html: bool,
}

impl ErrorText {
    fn of(body: &[u8]) -> Self {
        let text = String::from_utf8_lossy(body);
        let text = text.trim();
        if text.starts_with('<') {
            return Self { message: String::new(), is_html: true };
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
        Self { message: said, is_html: false }
    }

    fn wrong_state(&self) -> bool {
        self.message.contains(WRONG_STATE)
    }

    /// No rack is connected, or the image is being synced.
    fn unavailable(&self) -> bool {
        let (before, after) = UNAVAILABLE;
        self.message.contains(before) && self.message.contains(after)
    }

    /// No rack reaches the BMC. MAAS has given up the operation before it answers.
    fn bmc_unreachable(&self) -> bool {
        self.message.starts_with(BMC_UNREACHABLE)
    }

    fn not_found_origin(&self) -> NotFoundOrigin {
        let (before, after) = ABSENT;
        let named = self.message.strip_prefix(before).and_then(|rest| rest.strip_suffix(after));
        match named.is_some() || self.message == ABSENT_SHORT {
            true if !self.is_html => NotFoundOrigin::Maas,
            true | false => NotFoundOrigin::Other,
        }
    }
}

impl ApiAnswer<'_> {
    fn retry_after_s(&self) -> Option<u64> {
        self.retry_after?.trim().parse().ok()
    }

    /// A database conflict, which MAAS rolled back. Before 3.4 only its HTML page shows it.
    fn is_conflict(&self, words: &ErrorText) -> bool {
        self.retry_after.is_some() || words.is_html
    }

    /// The delay before a retry. `None`: MAAS asks for more than the client waits.
    pub fn retry_delay(&self, pauses: Backoff, failures: u32, seed: &str) -> Option<Duration> {
        let Some(desired) = self.retry_after_s().map(Duration::from_secs) else {
            return Some(pauses.delay(failures, seed));
        };
        // Jitter, so that the replicas do not retry at the same moment.
        let spread = Backoff { max: pauses.initial, ..pauses }.delay(1, seed);
        (desired <= pauses.max).then(|| desired + spread)
    }
}

fn flat(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(several) => several.iter().map(flat).collect::<Vec<_>>().join(" "),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => value.to_string(),
    }
}

/// The reason of a 401, in our own words.
fn login_hint(words: &str) -> &'static str {
    let reasons = [
        ("Invalid API key", ": it does not know the consumer of the API key"),
        ("Invalid access token", ": the token of the API key was deleted, or is wrong"),
        ("Invalid signature", ": the secret of the API key is wrong"),
        ("timestamp", ": the clocks of the two computers are minutes apart"),
        ("Nonce", ": it got the request twice"),
    ];
    let reason = reasons.into_iter().find(|(said, _)| words.contains(said));
    reason.map_or(
        ": the API key was deleted, or the clocks of the two computers are minutes apart",
        |(_, reason)| reason,
    )
}

const fn hint(status: StatusCode, code: FaultCode) -> &'static str {
    match status.as_u16() {
        500 if matches!(code, FaultCode::MaasFailed) => {
            "; MAAS failed inside and has changed nothing: its regiond.log has the place"
        }
        500 if matches!(code, FaultCode::AnswerGarbled) => "; it may have been done",
        503 if matches!(code, FaultCode::MaasFailed) => {
            "; MAAS has given it up: check the address and the login of the BMC, and the rack"
        }
        400 if matches!(code, FaultCode::MaasBusy) => {
            "; no rack controller is connected, or the image is being synced"
        }
        403 => "; the key's user may not do this, and most of it is for administrators of MAAS",
        300..=399 => "; it leads elsewhere: correct the address",
        404 if matches!(code, FaultCode::MaasUnreachable) => {
            "; that is not how MAAS says it: correct the address"
        }
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::fault::EffectOutcome;

    fn address() -> Address {
        Address::parse("http://maas:5240/MAAS").unwrap()
    }

    fn classify_answer(
        method: Method,
        about: CallTarget,
        again: Idempotency,
        answer: ApiAnswer<'_>,
    ) -> (Fault, bool) {
        let address = address();
        let path = "machines/abc/";
        let requested = RequestContext {
            address: &address,
            method: &method,
            path,
            target: about,
            idempotency: again,
            powers: false,
        };
        (requested.refused(answer, &SecretMask::default()), requested.may_repeat(answer))
    }

    fn answer<'a>(status: u16, retry_after: Option<&'a str>, body: &'a str) -> ApiAnswer<'a> {
        let status = StatusCode::from_u16(status).unwrap();
        ApiAnswer { status, retry_after, body: body.as_bytes() }
    }

    const GONE: &str = "No Machine matches the given query.";
    const STATE: &str = "Can't deploy a machine that is in the 'Commissioning' state";
    const FORM: &str =
        r#"{"__all__": ["Commission is not available because of the current state of the node."]}"#;
    const NO_RACK: &str = "No rack controllers can access the BMC of node gpu-7";
    const PAGE: &str = "<!DOCTYPE html><p>Conflict error.";

    /// The answer; then code and retry for a read, an idempotent change and another change.
    type Row = (u16, Option<&'static str>, &'static str, [(FaultCode, bool); 3]);

    #[test]
    fn every_status_code_is_classified() {
        use FaultCode::*;
        let all = |code, again| [(code, again); 3];
        let rows: [Row; 24] = [
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
                400,
                None,
                "Deployment operating system ubuntu jammy is unavailable.",
                all(MaasBusy, false),
            ),
            (
                500,
                None,
                "oops",
                [(MaasUnreachable, false), (MaasFailed, false), (MaasFailed, false)],
            ),
            (500, None, PAGE, [(MaasUnreachable, false), (AnswerLost, false), (AnswerLost, false)]),
            (502, None, PAGE, [(MaasUnreachable, false), (AnswerLost, false), (AnswerLost, false)]),
            (503, Some("10"), "", [(MaasBusy, true), (MaasBusy, true), (AnswerLost, false)]),
            (503, None, NO_RACK, all(MaasFailed, false)),
            (504, None, "", [(MaasUnreachable, false), (AnswerLost, false), (AnswerLost, false)]),
        ];
        for (status, retry_after, body, expected) in rows {
            let requested = [
                (Method::GET, Idempotency::Idempotent),
                (Method::PUT, Idempotency::Idempotent),
                (Method::POST, Idempotency::NotIdempotent),
            ];
            for ((method, again), (code, repeat)) in requested.into_iter().zip(expected) {
                let answer = answer(status, retry_after, body);
                let (fault, repeats) =
                    classify_answer(method.clone(), CallTarget::Machine, again, answer);
                assert_eq!((fault.code, repeats), (code, repeat), "{method} {fault}");
                assert!(fault.message.contains(&status.to_string()), "{fault}");
                assert!(fault.message.contains("http://maas:5240/MAAS"), "{fault}");
                let probe = method == Method::GET;
                assert!(
                    !probe || fault.code.effect_outcome() == EffectOutcome::NotApplied,
                    "{fault}"
                );
                assert!(!body.starts_with('<') || !fault.message.contains("html"), "{fault}");
            }
        }
    }

    #[test]
    fn a_404_is_classified_by_its_target() {
        for (about, code) in [
            (CallTarget::Machine, FaultCode::MaasMachineGone),
            (CallTarget::Component, FaultCode::EffectFailed),
            (CallTarget::Region, FaultCode::MaasRefused),
        ] {
            let interface = answer(404, None, "No Interface matches the given query.");
            assert_eq!(
                classify_answer(Method::GET, about, Idempotency::Idempotent, interface).0.code,
                code
            );
        }
    }

    #[test]
    fn messages_of_maas_are_passed_on() {
        let message = |body: &str| {
            let answer = answer(400, None, body);
            classify_answer(Method::POST, CallTarget::Region, Idempotency::NotIdempotent, answer)
                .0
                .message
        };
        let fields =
            message(r#"{"pool": ["No such pool."], "mac_addresses": ["Taken.", "Twice."]}"#);
        assert!(fields.ends_with("mac_addresses: Taken. Twice.; pool: No such pool."), "{fields}");
        let complete = message(FORM);
        assert!(
            complete.ends_with(
                ": Commission is not available because of the current state of the node."
            ),
            "{complete}"
        );
        assert!(message("Failed to\nrender preseed").ends_with(": Failed to render preseed"));
        let wait = answer(503, Some("10"), "Unable to connect");
        let (fault, _) =
            classify_answer(Method::GET, CallTarget::Region, Idempotency::Idempotent, wait);
        assert!(fault.message.contains("after 10 s: Unable to connect"), "{fault}");
        let busy = message("Ephemeral operating system ubuntu focal is unavailable.");
        assert!(busy.contains("focal is unavailable; no rack controller is connected"), "{busy}");
    }

    #[test]
    fn only_a_change_with_a_lost_answer_may_have_happened() {
        let address = address();
        for (method, lost, garbled) in [
            (Method::GET, FaultCode::MaasUnreachable, FaultCode::MaasUnreachable),
            (Method::POST, FaultCode::AnswerLost, FaultCode::AnswerGarbled),
            (Method::DELETE, FaultCode::AnswerLost, FaultCode::AnswerGarbled),
        ] {
            let (about, again) = (CallTarget::Machine, Idempotency::NotIdempotent);
            let requested = RequestContext {
                address: &address,
                method: &method,
                path: "x",
                target: about,
                idempotency: again,
                powers: false,
            };
            assert_eq!(
                (requested.lost("y").code, requested.garbled("y").code),
                (lost, garbled),
                "{method}"
            );
        }
    }

    /// The power follows the transaction, so the change may have been made.
    #[test]
    fn a_500_to_a_request_that_switches_power_is_uncertain() {
        let address = address();
        let requested = RequestContext {
            address: &address,
            method: &Method::POST,
            path: "machines/abc/?op=commission",
            target: CallTarget::Machine,
            idempotency: Idempotency::NotIdempotent,
            powers: true,
        };
        let fault = requested.refused(answer(500, None, "no such thing"), &SecretMask::default());
        assert_eq!(fault.code, FaultCode::AnswerGarbled);
        assert!(fault.message.ends_with("no such thing; it may have been done"), "{fault}");
    }

    /// A short password hides whole words. They still decide what the refusal means.
    #[test]
    fn secrets_are_masked_and_the_refusal_is_understood() {
        let address = address();
        let requested = RequestContext {
            address: &address,
            method: &Method::PUT,
            path: "machines/abc/",
            target: CallTarget::Machine,
            idempotency: Idempotency::Idempotent,
            powers: false,
        };
        let mask = SecretMask::of(&["state".into(), "p\"1".into()]);
        let state = requested.refused(answer(400, None, FORM), &mask);
        assert_eq!(state.code, FaultCode::EffectFailed);
        assert!(state.message.ends_with("because of the current *** of the node."), "{state}");
        let body = r#"{"power_pass": ["It is p\"1, not long enough."]}"#;
        let quoted = requested.refused(answer(400, None, body), &mask);
        assert!(quoted.message.ends_with("power_pass: It is ***, not long enough."), "{quoted}");
    }

    #[test]
    fn the_text_of_a_401_is_not_passed_on() {
        for (said, words) in [
            (
                "'Invalid signature. Expected signature base string: &hidden'",
                "secret of the API key",
            ),
            ("'Invalid access token: hidden'", "token of the API key"),
            ("Invalid API key.", "consumer of the API key"),
            ("'Expired timestamp: given 1 and now hidden'", "clocks"),
            ("'Nonce already used: hidden'", "twice"),
            ("hidden", "was deleted, or the clocks"),
        ] {
            let body = format!("Authorization Error: {said}");
            let refused = answer(401, None, &body);
            let again = Idempotency::Idempotent;
            let (fault, _) = classify_answer(Method::GET, CallTarget::Region, again, refused);
            assert_eq!(fault.code, FaultCode::LoginRefused);
            assert!(fault.message.contains(words) && !fault.message.contains("hidden"), "{fault}");
        }
    }

    #[test]
    fn retry_after_sets_the_delay_up_to_a_limit() {
        let s = Duration::from_secs;
        let pauses = Backoff { initial: s(1), max: s(15) };
        let pause = |requests| answer(503, requests, "").retry_delay(pauses, 3, "seed");
        let own = pause(None).unwrap();
        assert!(own >= s(2) && own <= s(4), "{own:?}");
        for (requests, at_least) in [("0", s(0)), ("10", s(10)), ("15", s(15))] {
            let pause = pause(Some(requests)).unwrap();
            assert!(pause >= at_least && pause <= at_least + s(1), "{requests}: {pause:?}");
        }
        assert_eq!(pause(Some("16")), None);
        // A date or an invalid value is ignored.
        assert_eq!(pause(Some("Wed, 21 Oct 2026 07:28:00 GMT")), Some(own));
    }
}
