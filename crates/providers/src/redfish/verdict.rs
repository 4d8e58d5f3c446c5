//! Classification of responses.
//!
//! Maps a request and its response to a fault code. A device that refused has done nothing; a
//! device that failed during a change may have made it. The fault includes the vendor's message,
//! which is often the only hint.

use super::decode::{Part, shown};
use crate::http_client::Endpoint;
use crate::http_client::{HttpRequest, HttpResponse};
use hyper::StatusCode;
use hyper::header::RETRY_AFTER;
use model::fault::{Code, Fault, Happened};
use serde_json::Value;

/// Suffixes of Redfish message ids which mean that a retry cannot succeed.
const NEVER: [&str; 9] = [
    "ActionNotSupported",
    "ActionParameterNotSupported",
    "ActionParameterValueNotInList",
    "ActionParameterUnknown",
    "PropertyNotWritable",
    "PropertyUnknown",
    "PropertyValueNotInList",
    "OperationNotAllowed",
    "NotSupportedOnSystem",
];

/// How many of the messages in one response are passed on.
const MAX_MESSAGES: usize = 3;

/// Returns a successful response and makes a fault of any other.
pub(super) fn judge(
    endpoint: &Endpoint,
    request: &HttpRequest,
    response: HttpResponse,
) -> Result<HttpResponse, Fault> {
    if response.status.is_success() {
        return Ok(response);
    }
    Err(fault(endpoint, request, &response))
}

/// The fault for a response that is not a success.
pub(super) fn fault(endpoint: &Endpoint, request: &HttpRequest, response: &HttpResponse) -> Fault {
    let words = Words::of(response);
    let code = code(request, response.status, &words);
    let mut said =
        format!("{endpoint} answered {} to {} {}", response.status, request.method, request.path);
    if let Some(wait) = response.headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()) {
        let unit = if wait.parse::<u32>().is_ok() { " s" } else { "" };
        said.push_str(&format!(" and wants to be asked again after {}{unit}", shown(wait)));
    }
    if !words.said.is_empty() {
        said.push_str(&format!(": {}", shown(&words.said)));
    }
    Fault::new(code, said)
}

/// A fault of the read after a change that was accepted. It must not say that nothing happened,
/// unless the read showed that the goal does not hold.
pub(super) fn unconfirmed(fault: Fault) -> Fault {
    match (fault.code, fault.code.happened()) {
        (Code::ReadBackDiffers, _) | (_, Happened::Maybe) => fault,
        (_, Happened::No) => {
            let said = format!("The change was taken, but not seen: {}", fault.said);
            Fault::new(Code::AnswerLost, said)
        }
    }
}

fn code(request: &HttpRequest, status: StatusCode, words: &Words) -> Code {
    match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Code::LoginRefused,
        StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS => Code::BmcBusy,
        StatusCode::NOT_FOUND
        | StatusCode::GONE
        | StatusCode::METHOD_NOT_ALLOWED
        | StatusCode::NOT_IMPLEMENTED => Code::NotSupported,
        _ if words.never => Code::NotSupported,
        status if status.is_client_error() => Code::EffectFailed,
        // The device failed at an unknown point of the change.
        status if status.is_server_error() && !request.only_reads() => Code::AnswerLost,
        status if status.is_server_error() => Code::EffectFailed,
        _ => Code::AnswerGarbled,
    }
}

/// The device's messages about a refusal.
#[derive(Debug, Default, PartialEq, Eq)]
struct Words {
    said: String,
    never: bool,
}

impl Words {
    fn of(response: &HttpResponse) -> Self {
        let body = response.body.as_deref().unwrap_or_default();
        let value: Value = serde_json::from_slice(body).unwrap_or_default();
        let error = Part(&value).get("error");
        let messages: Vec<Part<'_>> = error.list("@Message.ExtendedInfo").collect();
        let never = messages.iter().chain([&error]).any(|message| {
            let id = message.text("MessageId").or_else(|| message.text("code")).unwrap_or_default();
            NEVER.iter().any(|end| id.ends_with(end))
        });
        let mut said: Vec<String> =
            messages.iter().filter_map(|message| message.text("Message")).collect();
        said.dedup();
        said.truncate(MAX_MESSAGES);
        if said.is_empty() {
            said.extend(error.text("message"));
        }
        Self { said: said.join(" "), never }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::Method;
    use hyper::body::Bytes;
    use hyper::header::HeaderMap;

    fn asked(method: Method, status: u16, body: &str) -> Fault {
        let (endpoint, _) = Endpoint::parse("10.0.0.5").unwrap();
        let path = "/redfish/v1/Systems/1".to_owned();
        let request = HttpRequest { method, path, headers: Vec::new(), body: None };
        let mut headers = HeaderMap::new();
        headers.insert(RETRY_AFTER, "30".parse().unwrap());
        let status = StatusCode::from_u16(status).unwrap();
        let response =
            HttpResponse { status, headers, body: Ok(Bytes::copy_from_slice(body.as_bytes())) };
        judge(&endpoint, &request, response).unwrap_err()
    }

    #[test]
    fn every_refusal_has_its_code() {
        for (status, read, change) in [
            (302, Code::AnswerGarbled, Code::AnswerGarbled),
            (400, Code::EffectFailed, Code::EffectFailed),
            (401, Code::LoginRefused, Code::LoginRefused),
            (403, Code::LoginRefused, Code::LoginRefused),
            (404, Code::NotSupported, Code::NotSupported),
            (405, Code::NotSupported, Code::NotSupported),
            (409, Code::EffectFailed, Code::EffectFailed),
            (412, Code::EffectFailed, Code::EffectFailed),
            (429, Code::BmcBusy, Code::BmcBusy),
            (500, Code::EffectFailed, Code::AnswerLost),
            (501, Code::NotSupported, Code::NotSupported),
            (502, Code::EffectFailed, Code::AnswerLost),
            (503, Code::BmcBusy, Code::BmcBusy),
        ] {
            assert_eq!(asked(Method::GET, status, "").code, read, "GET {status}");
            assert_eq!(asked(Method::POST, status, "<html>").code, change, "POST {status}");
        }
    }

    #[test]
    fn the_vendors_words_are_passed_on() {
        let body = r#"{"error": {"code": "Base.1.8.GeneralError", "message": "See below.",
            "@Message.ExtendedInfo": [
                {"MessageId": "IDRAC.2.8.SYS428", "Message": "The lid\nis open."},
                {"MessageId": "Base.1.8.ActionParameterNotSupported", "Message": "No such word."}]}}"#;
        let fault = asked(Method::POST, 400, body);
        assert_eq!(fault.code, Code::NotSupported);
        assert!(fault.said.ends_with(": The lid is open. No such word."), "{fault}");
        assert!(fault.said.contains("https://10.0.0.5") && fault.said.contains("after 30 s"));
        let short = asked(Method::POST, 500, r#"{"error": {"message": "Out of luck."}}"#);
        assert!(short.said.ends_with(": Out of luck."), "{short}");
    }
}
