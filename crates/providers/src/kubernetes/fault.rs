//! Classifies why a request has no answer: unreachable, not the cluster of the kubeconfig, refused,
//! cut off, or answered with something else. Only a change whose answer was lost may have happened.

use super::client::RequestError;
use super::object::Status;
use crate::fault::{LocalShortage, causes};
use crate::http_client::text::one_line;
use http_body_util::LengthLimitError;
use model::fault::{Fault, FaultCode};
use rustls::AlertDescription;
use std::error::Error;
use std::time::Duration;

/// The longest server message that a fault quotes.
const MAX_MESSAGE_CHARS: usize = 300;

/// One request, in the terms of Kubernetes RBAC.
pub struct ApiCall<'a> {
    pub verb: &'static str,
    pub resource: &'static str,
    pub name: &'a str,
}

impl<'a> ApiCall<'a> {
    pub const fn new(verb: &'static str, resource: &'static str, name: &'a str) -> Self {
        Self { verb, resource, name }
    }

    fn changes(&self) -> bool {
        !matches!(self.verb, "get" | "list")
    }

    fn describe(&self, address: &str) -> String {
        let Self { verb, resource, name } = self;
        match *name {
            "" => format!("{address} was asked to {verb} {resource}"),
            name => format!("{address} was asked to {verb} {resource} `{name}`"),
        }
    }
}

pub fn late(address: &str, call: &ApiCall<'_>, deadline: Duration) -> Fault {
    let message = format!("{}, and had not answered after {deadline:?}", call.describe(address));
    Fault::new(lost(call), message)
}

/// A well-formed answer about something else.
pub fn garbled(address: &str, call: &ApiCall<'_>, what: &str) -> Fault {
    Fault::new(
        FaultCode::AnswerGarbled,
        format!("{}; it answered with {what}", call.describe(address)),
    )
}

/// A refused login of a server that is not ready: it has just started, and does not know its users.
pub fn not_ready(address: &str, call: &ApiCall<'_>, status: &Status, readiness: &str) -> Fault {
    let (what, message) = (call.describe(address), short(&status.message));
    let message = format!(
        "{what}; it answered {}: {message}, which does not count yet: {readiness}",
        status.code
    );
    Fault::new(FaultCode::ClusterUnreachable, message)
}

pub fn classify(address: &str, call: &ApiCall<'_>, error: &RequestError) -> Fault {
    let (code, rest) = match error {
        RequestError::Refused(status) => refusal(call, status),
        RequestError::NotJson(error) => (
            FaultCode::AnswerGarbled,
            format!("answered something else than JSON of that kind ({error})"),
        ),
        RequestError::NotText => {
            (FaultCode::AnswerGarbled, "answered something that is no text".to_owned())
        }
        RequestError::Unbuildable(error) => (
            FaultCode::NotSupported,
            format!("was not asked, as the request cannot be made ({error})"),
        ),
        RequestError::NoToken(why) => (
            FaultCode::CredentialMissing,
            format!("was not asked, as the token of the kubeconfig cannot be used: {why}"),
        ),
        RequestError::NoResources(shortage) => return shortage.fault(&address),
        RequestError::Broken(error) => broken(call, error.as_ref()),
    };
    let fault = Fault::new(code, format!("{}; it {rest}", call.describe(address)));
    match error {
        RequestError::Refused(status) if is_missing_right(status) => fault.with(|facts| {
            facts.missing_right = Some(format!("{} {}", call.verb, call.resource));
        }),
        RequestError::Refused(_)
        | RequestError::NotJson(_)
        | RequestError::NotText
        | RequestError::Unbuildable(_)
        | RequestError::NoToken(_)
        | RequestError::NoResources(_)
        | RequestError::Broken(_) => fault,
    }
}

/// The user of a request whose login the server does not see, such as behind a proxy that ends TLS
/// and with it the client certificate.
const ANONYMOUS: &str = "\"system:anonymous\"";

/// True if the server knows our user and refuses this request. Otherwise it refuses the login.
fn is_missing_right(status: &Status) -> bool {
    status.code == 403 && !status.message.contains(ANONYMOUS)
}

fn refusal(call: &ApiCall<'_>, status: &Status) -> (FaultCode, String) {
    let message = format!("answered {}: {}", status.code, short(&status.message));
    let code = match status.code {
        401 | 403 => FaultCode::LoginRefused,
        404 if status.is_not_found() => FaultCode::NotInCluster,
        404 | 405 => FaultCode::AnswerGarbled,
        // The change may have been made before the failure.
        500 | 502 | 504 => lost(call),
        429 | 503 => FaultCode::ClusterUnreachable,
        409 | 410 => FaultCode::EffectFailed,
        400..=499 => FaultCode::NotSupported,
        _ => lost(call),
    };
    let hint = match status.code {
        401 | 403 if !is_missing_right(status) => {
            "; the kubeconfig's user is not known there, or its token or certificate has run out"
        }
        403 => {
            "; give the kubeconfig's user that permission (`farrier cluster check` lists all that it lacks)"
        }
        _ => "",
    };
    (code, format!("{message}{hint}"))
}

/// An error below HTTP.
fn broken(call: &ApiCall<'_>, error: &(dyn Error + Send + Sync + 'static)) -> (FaultCode, String) {
    let error: &(dyn Error + 'static) = error;
    for cause in causes(error) {
        if let Some(error) = cause.downcast_ref::<rustls::Error>() {
            return tls(call, error);
        }
        if cause.is::<LengthLimitError>() {
            return (FaultCode::AnswerGarbled, "answered without end".to_owned());
        }
    }
    let connected = !causes(error).any(|cause| {
        cause
            .downcast_ref::<hyper_util::client::legacy::Error>()
            .is_some_and(|error| error.is_connect())
    });
    if let Some(shortage) = LocalShortage::among(error).filter(|_| !connected) {
        return (FaultCode::LocalResources, format!("was not asked: {shortage}"));
    }
    let deepest = causes(error).last().map_or_else(String::new, ToString::to_string);
    if connected {
        return (lost(call), format!("broke off before it had answered ({})", short(&deepest)));
    }
    (FaultCode::ClusterUnreachable, format!("could not be reached ({})", short(&deepest)))
}

fn tls(call: &ApiCall<'_>, error: &rustls::Error) -> (FaultCode, String) {
    use AlertDescription as Alert;
    #[expect(clippy::wildcard_enum_match_arm, reason = "rustls may add errors")]
    match error {
        rustls::Error::InvalidCertificate(_) => {
            let message = format!("did not prove to be the cluster of the kubeconfig ({error})");
            (FaultCode::IdentityUntrusted, message)
        }
        rustls::Error::AlertReceived(
            Alert::BadCertificate
            | Alert::UnsupportedCertificate
            | Alert::CertificateRevoked
            | Alert::CertificateExpired
            | Alert::CertificateUnknown
            | Alert::CertificateRequired
            | Alert::UnknownCA
            | Alert::AccessDenied
            | Alert::DecryptError,
        ) => (
            FaultCode::LoginRefused,
            format!("did not take the kubeconfig's client certificate ({error})"),
        ),
        _ => (lost(call), format!("broke off the encrypted connection ({error})")),
    }
}

/// The code for a missing answer.
fn lost(call: &ApiCall<'_>) -> FaultCode {
    if call.changes() { FaultCode::AnswerLost } else { FaultCode::ClusterUnreachable }
}

fn short(text: &str) -> String {
    one_line(text, MAX_MESSAGE_CHARS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::fault::EffectOutcome;

    const READ: ApiCall<'static> = ApiCall::new("get", "nodes", "n");
    const CHANGE: ApiCall<'static> = ApiCall::new("patch", "nodes", "n");

    fn status(code: u16, reason: &str) -> RequestError {
        let (message, reason) = ("said so".to_owned(), reason.to_owned());
        RequestError::Refused(Status { code, message, reason, ..Status::default() })
    }

    #[test]
    fn a_read_changes_nothing() {
        for code in (400..=599).filter(|code| *code != 404 && *code != 405) {
            let fault = classify("https://k", &READ, &status(code, "R"));
            assert_eq!(fault.code.effect_outcome(), EffectOutcome::NotApplied, "{fault}");
            assert!(
                fault.message.contains("https://k") && fault.message.contains(&code.to_string())
            );
        }
        assert_eq!(
            late("https://k", &READ, Duration::from_secs(1)).code,
            FaultCode::ClusterUnreachable
        );
        assert_eq!(late("https://k", &CHANGE, Duration::from_secs(1)).code, FaultCode::AnswerLost);
    }

    #[test]
    fn every_refusal_has_a_code() {
        let cases = [
            (401, "Unauthorized", FaultCode::LoginRefused),
            (403, "Forbidden", FaultCode::LoginRefused),
            (404, "NotFound", FaultCode::NotInCluster),
            (404, "", FaultCode::AnswerGarbled),
            (409, "Conflict", FaultCode::EffectFailed),
            (422, "Invalid", FaultCode::NotSupported),
            (500, "InternalError", FaultCode::AnswerLost),
            (503, "ServiceUnavailable", FaultCode::ClusterUnreachable),
        ];
        for (number, reason, code) in cases {
            assert_eq!(
                classify("https://k", &CHANGE, &status(number, reason)).code,
                code,
                "{number}"
            );
        }
        let forbidden = classify("https://k", &CHANGE, &status(403, "Forbidden"));
        for words in ["patch nodes `n`", "`farrier cluster check`"] {
            assert!(forbidden.message.contains(words), "{forbidden}");
        }
        assert_eq!(forbidden.facts().missing_right.as_deref(), Some("patch nodes"));
    }

    /// A 403 for a user that the server knows is a missing right, any other is a refused login.
    #[test]
    fn a_refused_login_is_told_from_a_missing_right() {
        let refused = |code: u16, user: &str| {
            let message = format!("nodes \"n\" is forbidden: User {user:?} cannot patch resource");
            let status = Status { code, message, ..Status::default() };
            classify("https://k", &CHANGE, &RequestError::Refused(status))
        };
        for (code, user, missing) in
            [(401, "farrier", false), (403, "farrier", true), (403, "system:anonymous", false)]
        {
            let fault = refused(code, user);
            assert_eq!(fault.code, FaultCode::LoginRefused, "{fault}");
            assert_eq!(fault.facts().missing_right.is_some(), missing, "{code} {user}");
            assert_eq!(fault.message.contains("is not known there"), !missing, "{fault}");
        }
    }
}
