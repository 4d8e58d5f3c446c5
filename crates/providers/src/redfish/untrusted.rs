//! Reads arbitrary bytes as an answer of a BMC, as the client does. The fuzz target and the replay
//! of its corpus call it.

use super::classification::classify_response;
use super::decode::{Entry, JsonNode, entry, exact_path, last_piece, local_path, shown};
use super::quirks::Quirks;
use super::system::plain_mac;
use super::{Power, TaskRef};
use crate::http_client::{Endpoint, HttpRequest, HttpResponse};
use hyper::body::Bytes;
use hyper::header::{HeaderMap, HeaderValue, RETRY_AFTER};
use hyper::{Method, StatusCode};
use serde_json::Value;

/// The first two bytes are the status, the rest is the body. Panics if what is read breaks a
/// promise of the client.
pub fn read_redfish_answer(bytes: &[u8]) {
    let Some((head, body)) = bytes.split_at_checked(2) else { return };
    let value: Value = serde_json::from_slice(body).unwrap_or_default();
    read_node(JsonNode(&value));
    let number = 100 + u16::from(head[0]) * 2 + u16::from(head[1] % 2);
    let Ok(status) = StatusCode::from_u16(number) else { return };
    let Ok((endpoint, _)) = Endpoint::parse("10.0.0.5") else { return };
    let mut headers = HeaderMap::new();
    if let Ok(wait) = HeaderValue::from_bytes(&body[..body.len().min(40)]) {
        headers.insert(RETRY_AFTER, wait);
    }
    let method = if head[1] > 127 { Method::POST } else { Method::GET };
    let request = HttpRequest { method, path: "/x".into(), headers: Vec::new(), body: None };
    let response = HttpResponse { status, headers, body: Ok(Bytes::copy_from_slice(body)) };
    let fault = classify_response(&endpoint, &request, &response);
    assert!(!fault.message.contains(['\n', '\x1b']), "{:?}", fault.message);
}

/// Reads every field in every way that the client knows. The depth is bounded by the JSON parser.
fn read_node(node: JsonNode<'_>) {
    if let Some(text) = node.as_text() {
        read_text(&text);
    }
    if let Some(Entry::Expanded(resource)) = entry(node) {
        assert!(!resource.name().contains('/'), "{:?}", resource.path);
    }
    if let Value::Array(values) = node.0 {
        values.iter().for_each(|value| read_node(JsonNode(value)));
    }
    let Value::Object(fields) = node.0 else { return };
    for (name, value) in fields {
        let makers = node.texts(name);
        let quirks = Quirks::of(&makers, makers.first().map_or("", String::as_str));
        let numbers = (node.number(name), node.count(name), node.flag(name), node.time(name));
        assert!(numbers.0.is_none_or(f64::is_finite), "{numbers:?}");
        if let Some(path) = node.link(name) {
            assert!(path.starts_with('/') && path.bytes().all(|byte| byte.is_ascii_graphic()));
        }
        for one in node.list(name) {
            let mac = one.as_text().and_then(|text| quirks.mac(&text));
            assert!(mac.is_none_or(|mac| mac.len() == 17));
        }
        read_node(JsonNode(value));
    }
}

fn read_text(text: &str) {
    if let Some(path) = exact_path(text) {
        assert!(path.starts_with('/') && !path.contains(['#', '\r', '\n', ' ']), "{path:?}");
        assert!(!last_piece(&path).contains('/'));
    }
    let task = TaskRef::parse(text).map(|task| task.to_string());
    assert_eq!(task, local_path(text));
    let known = (plain_mac(text), Power::parse(text));
    assert!(known.0.is_none_or(|mac| mac.len() == 17));
    assert!(!shown(text).contains(['\n', '\x1b', '\0']), "{text:?}");
}
