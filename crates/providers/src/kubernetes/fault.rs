//! What went wrong, from what the client reports: nobody there, a stranger there, a no to us, a no to the request, a
//! line that broke, or an answer that is none. Only a change whose answer is missing may have happened.

use http_body_util::LengthLimitError;
use kube::core::Status;
use model::fault::{Code, Fault};
use rustls::AlertDescription;
use std::error::Error;
use std::io;
use std::time::Duration;

/// How deep an error is looked into.
const MAX_CAUSES: usize = 16;
/// How much of what a server said is passed on.
const MAX_SAID_CHARS: usize = 300;

/// One request, in the words that the API server's own permissions use.
pub struct Ask<'a> {
    pub verb: &'static str,
    pub resource: &'static str,
    pub name: &'a str,
}

impl<'a> Ask<'a> {
    pub const fn new(verb: &'static str, resource: &'static str, name: &'a str) -> Self {
        Self { verb, resource, name }
    }

    fn changes(&self) -> bool {
        !matches!(self.verb, "get" | "list")
    }

    fn words(&self, address: &str) -> String {
        let Self { verb, resource, name } = self;
        match *name {
            "" => format!("{address} was asked to {verb} {resource}"),
            name => format!("{address} was asked to {verb} {resource} `{name}`"),
        }
    }
}

pub fn late(address: &str, ask: &Ask<'_>, deadline: Duration) -> Fault {
    let said = format!("{}, and had not answered after {deadline:?}", ask.words(address));
    Fault::new(lost(ask), said)
}

/// An answer that is well-formed and about something else.
pub fn garbled(address: &str, ask: &Ask<'_>, what: &str) -> Fault {
    Fault::new(Code::AnswerGarbled, format!("{}; it answered with {what}", ask.words(address)))
}

pub fn read(address: &str, ask: &Ask<'_>, error: &kube::Error) -> Fault {
    let (code, rest) = match error {
        kube::Error::Api(status) => refusal(ask, status),
        kube::Error::SerdeError(error) => (
            Code::AnswerGarbled,
            format!("answered something else than JSON of that kind ({error})"),
        ),
        kube::Error::FromUtf8(_) => {
            (Code::AnswerGarbled, "answered something that is no text".to_owned())
        }
        kube::Error::BuildRequest(error) => {
            (Code::NotSupported, format!("was not asked, as the request cannot be made ({error})"))
        }
        other => broken(ask, other),
    };
    Fault::new(code, format!("{}; it {rest}", ask.words(address)))
}

/// Whether the API server said that there is no such object. A page of a proxy in between that says 404 does not
/// count: nothing may be taken for deleted because somebody else did not know the path.
pub fn is_absent(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 404 && status.reason == "NotFound")
}

fn refusal(ask: &Ask<'_>, status: &Status) -> (Code, String) {
    let said = format!("answered {}: {}", status.code, short(&status.message));
    let code = match status.code {
        401 | 403 => Code::LoginRefused,
        404 if status.reason == "NotFound" => Code::NotInCluster,
        404 | 405 => Code::AnswerGarbled,
        // What went on behind it before it failed is not known.
        500 | 502 | 504 => lost(ask),
        429 | 503 => Code::ClusterUnreachable,
        409 | 410 => Code::EffectFailed,
        400..=499 => Code::NotSupported,
        _ => lost(ask),
    };
    let hint = match status.code {
        401 => {
            "; the kubeconfig's user is not known there, or its token or certificate has run out"
        }
        403 => "; give the kubeconfig's user that permission",
        _ => "",
    };
    (code, format!("{said}{hint}"))
}

/// Something below HTTP.
fn broken(ask: &Ask<'_>, error: &kube::Error) -> (Code, String) {
    for cause in causes(error) {
        if let Some(error) = cause.downcast_ref::<rustls::Error>() {
            return tls(ask, error);
        }
        if cause.is::<LengthLimitError>() {
            return (Code::AnswerGarbled, "answered without end".to_owned());
        }
    }
    let connected = !causes(error).any(|cause| {
        cause
            .downcast_ref::<hyper_util::client::legacy::Error>()
            .is_some_and(|error| error.is_connect())
    });
    let deepest = causes(error).last().map_or_else(String::new, ToString::to_string);
    if connected {
        return (lost(ask), format!("broke off before it had answered ({})", short(&deepest)));
    }
    (Code::ClusterUnreachable, format!("could not be reached ({})", short(&deepest)))
}

fn tls(ask: &Ask<'_>, error: &rustls::Error) -> (Code, String) {
    use AlertDescription as Alert;
    match error {
        rustls::Error::InvalidCertificate(_) => {
            let said = format!("did not prove to be the cluster of the kubeconfig ({error})");
            (Code::IdentityUntrusted, said)
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
            Code::LoginRefused,
            format!("did not take the kubeconfig's client certificate ({error})"),
        ),
        _ => (lost(ask), format!("broke off the encrypted connection ({error})")),
    }
}

/// What it means that no answer came.
fn lost(ask: &Ask<'_>) -> Code {
    if ask.changes() { Code::AnswerLost } else { Code::ClusterUnreachable }
}

/// The error and what is behind it, each wrapped in the one before.
fn causes<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |error| behind(*error)).take(MAX_CAUSES)
}

/// An I/O error passes over the error it was made from when asked for its source.
fn behind<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a (dyn Error + 'static)> {
    match error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
        Some(inner) => Some(inner),
        None => error.source(),
    }
}

fn short(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(MAX_SAID_CHARS) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::fault::Happened;

    const LOOK: Ask<'static> = Ask::new("get", "nodes", "n");
    const CHANGE: Ask<'static> = Ask::new("patch", "nodes", "n");

    fn status(code: u16, reason: &str) -> kube::Error {
        kube::Error::Api(Status::failure("said so", reason).with_code(code).boxed())
    }

    #[test]
    fn a_look_has_never_happened() {
        for code in (400..=599).filter(|code| *code != 404 && *code != 405) {
            let fault = read("https://k", &LOOK, &status(code, "R"));
            assert_eq!(fault.code.happened(), Happened::No, "{fault}");
            assert!(fault.said.contains("https://k") && fault.said.contains(&code.to_string()));
        }
        assert_eq!(late("https://k", &LOOK, Duration::from_secs(1)).code, Code::ClusterUnreachable);
        assert_eq!(late("https://k", &CHANGE, Duration::from_secs(1)).code, Code::AnswerLost);
    }

    #[test]
    fn every_no_has_its_code() {
        let cases = [
            (401, "Unauthorized", Code::LoginRefused),
            (403, "Forbidden", Code::LoginRefused),
            (404, "NotFound", Code::NotInCluster),
            (404, "Failed to parse error data", Code::AnswerGarbled),
            (409, "Conflict", Code::EffectFailed),
            (422, "Invalid", Code::NotSupported),
            (500, "InternalError", Code::AnswerLost),
            (503, "ServiceUnavailable", Code::ClusterUnreachable),
        ];
        for (number, reason, code) in cases {
            assert_eq!(read("https://k", &CHANGE, &status(number, reason)).code, code, "{number}");
        }
        let forbidden = read("https://k", &CHANGE, &status(403, "Forbidden"));
        assert!(forbidden.said.contains("patch nodes `n`"), "{forbidden}");
    }

    #[test]
    fn only_the_api_server_can_say_that_something_is_not_there() {
        assert!(is_absent(&status(404, "NotFound")));
        assert!(!is_absent(&status(404, "Failed to parse error data")));
        assert!(!is_absent(&status(403, "Forbidden")));
    }

    #[test]
    fn long_words_are_cut() {
        assert_eq!(short("a\n b"), "a b");
        assert_eq!(short(&"ä".repeat(1000)).chars().count(), MAX_SAID_CHARS + 1);
    }
}
