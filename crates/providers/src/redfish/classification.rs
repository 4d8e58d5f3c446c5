//! Classification of responses.
//!
//! Maps a request and its response to a fault code. A device that refused has done nothing; a
//! device that failed during a change may have made it. The fault includes the vendor's message,
//! which is often the only hint.

use super::decode::{JsonNode, shown};
use crate::http_client::Endpoint;
use crate::http_client::{HttpRequest, HttpResponse};
use hyper::StatusCode;
use hyper::header::RETRY_AFTER;
use model::fault::{EffectOutcome, Fault, FaultCode, Result};
use serde_json::Value;

/// Suffixes of Redfish message ids which mean that a retry cannot succeed.
const PERMANENT_REFUSALS: [&str; 9] = [
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

/// The most messages of one response that are passed on.
const MAX_MESSAGES: usize = 3;

/// Returns a successful response and makes a fault of any other.
pub(super) fn check_response(
    endpoint: &Endpoint,
    request: &HttpRequest,
    response: HttpResponse,
) -> Result<HttpResponse> {
    if response.status.is_success() {
        return Ok(response);
    }
    Err(classify_response(endpoint, request, &response))
}

/// The fault for a response that is not a success.
pub(super) fn classify_response(
    endpoint: &Endpoint,
    request: &HttpRequest,
    response: &HttpResponse,
) -> Fault {
    let words = RefusalMessages::of(response);
    let code = code(request, response.status, &words);
    let mut message =
        format!("{endpoint} answered {} to {} {}", response.status, request.method, request.path);
    if let Some(wait) = response.headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()) {
        let unit = if wait.parse::<u32>().is_ok() { " s" } else { "" };
        message.push_str(&format!(" and wants to be asked again after {}{unit}", shown(wait)));
    }
    if !words.text.is_empty() {
        message.push_str(&format!(": {}", shown(&words.text)));
    }
    Fault::new(code, message)
}

/// A fault of the read after a change that was accepted. It must not say that nothing happened,
/// unless the read showed that the goal does not hold.
pub(super) fn unconfirmed(fault: Fault) -> Fault {
    match (fault.code, fault.code.effect_outcome()) {
        (FaultCode::ReadBackDiffers, _) | (_, EffectOutcome::Unknown) => fault,
        (_, EffectOutcome::NotApplied) => {
            let message = format!("The change was taken, but not seen: {}", fault.message);
            Fault::new(FaultCode::AnswerLost, message)
        }
    }
}

fn code(request: &HttpRequest, status: StatusCode, words: &RefusalMessages) -> FaultCode {
    match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => FaultCode::LoginRefused,
        StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS => FaultCode::BmcBusy,
        StatusCode::NOT_FOUND
        | StatusCode::GONE
        | StatusCode::METHOD_NOT_ALLOWED
        | StatusCode::NOT_IMPLEMENTED => FaultCode::NotSupported,
        _ if words.permanent => FaultCode::NotSupported,
        status if status.is_client_error() => FaultCode::EffectFailed,
        // The device failed at an unknown point of the change.
        status if status.is_server_error() && !request.only_reads() => FaultCode::AnswerLost,
        status if status.is_server_error() => FaultCode::EffectFailed,
        _ => FaultCode::AnswerGarbled,
    }
}

/// The device's messages about a refusal.
#[derive(Debug, Default, PartialEq, Eq)]
struct RefusalMessages {
    text: String,
    permanent: bool,
}

impl RefusalMessages {
    fn of(response: &HttpResponse) -> Self {
        let body = response.body.as_deref().unwrap_or_default();
        let value: Value = serde_json::from_slice(body).unwrap_or_default();
        let error = JsonNode(&value).get("error");
        let messages: Vec<JsonNode<'_>> = error.list("@Message.ExtendedInfo").collect();
        let permanent = messages.iter().chain([&error]).any(|message| {
            let id = message.text("MessageId").or_else(|| message.text("code")).unwrap_or_default();
            PERMANENT_REFUSALS.iter().any(|end| id.ends_with(end))
        });
        let mut said: Vec<String> =
            messages.iter().filter_map(|message| message.text("Message")).collect();
        said.dedup();
        said.truncate(MAX_MESSAGES);
        if said.is_empty() {
            said.extend(error.text("message"));
        }
        Self { text: said.join(" "), permanent }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::Method;
    use hyper::body::Bytes;
    use hyper::header::HeaderMap;

    fn fault_for(method: Method, status: u16, body: &str) -> Fault {
        let (endpoint, _) = Endpoint::parse("10.0.0.5").unwrap();
        let path = "/redfish/v1/Systems/1".to_owned();
        let request = HttpRequest { method, path, headers: Vec::new(), body: None };
        let mut headers = HeaderMap::new();
        headers.insert(RETRY_AFTER, "30".parse().unwrap());
        let status = StatusCode::from_u16(status).unwrap();
        let response =
            HttpResponse { status, headers, body: Ok(Bytes::copy_from_slice(body.as_bytes())) };
        check_response(&endpoint, &request, response).unwrap_err()
    }

    #[test]
    fn every_refusal_has_its_code() {
        for (status, read, change) in [
            (302, FaultCode::AnswerGarbled, FaultCode::AnswerGarbled),
            (400, FaultCode::EffectFailed, FaultCode::EffectFailed),
            (401, FaultCode::LoginRefused, FaultCode::LoginRefused),
            (403, FaultCode::LoginRefused, FaultCode::LoginRefused),
            (404, FaultCode::NotSupported, FaultCode::NotSupported),
            (405, FaultCode::NotSupported, FaultCode::NotSupported),
            (409, FaultCode::EffectFailed, FaultCode::EffectFailed),
            (412, FaultCode::EffectFailed, FaultCode::EffectFailed),
            (429, FaultCode::BmcBusy, FaultCode::BmcBusy),
            (500, FaultCode::EffectFailed, FaultCode::AnswerLost),
            (501, FaultCode::NotSupported, FaultCode::NotSupported),
            (502, FaultCode::EffectFailed, FaultCode::AnswerLost),
            (503, FaultCode::BmcBusy, FaultCode::BmcBusy),
        ] {
            assert_eq!(fault_for(Method::GET, status, "").code, read, "GET {status}");
            assert_eq!(fault_for(Method::POST, status, "<html>").code, change, "POST {status}");
        }
    }

    #[test]
    fn the_vendors_messages_are_passed_on() {
        let body = r#"{"error": {"code": "Base.1.8.GeneralError", "message": "See below.",
            "@Message.ExtendedInfo": [
                {"MessageId": "IDRAC.2.8.SYS428", "Message": "The lid\nis open."},
                {"MessageId": "Base.1.8.ActionParameterNotSupported", "Message": "No such word."}]}}"#;
        let fault = fault_for(Method::POST, 400, body);
        assert_eq!(fault.code, FaultCode::NotSupported);
        assert!(fault.message.ends_with(": The lid is open. No such word."), "{fault}");
        assert!(fault.message.contains("https://10.0.0.5") && fault.message.contains("after 30 s"));
        let short = fault_for(Method::POST, 500, r#"{"error": {"message": "Out of luck."}}"#);
        assert!(short.message.ends_with(": Out of luck."), "{short}");
    }
}
