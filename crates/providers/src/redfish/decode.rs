//! Lenient reading of the JSON that BMCs send.
//!
//! Vendors omit fields, send null for a list, a number as text, a link as an object or as text,
//! absolute or relative, with or without a final slash. So nothing here is required or fails: an
//! unusable field counts as missing. The caller that needs a field names it in its fault.

use super::address::ROOT;
use crate::http_client::text::one_line;
use model::time::Timestamp;
use serde_json::Value;

/// The longest message of a device that is passed on.
const MAX_MESSAGE_CHARS: usize = 400;
const NOTHING: &Value = &Value::Null;

/// A resource as it was read.
#[derive(Debug, Clone)]
pub(super) struct Resource {
    pub path: String,
    /// The tag that a change must name in If-Match, if the device sends one.
    pub etag: Option<String>,
    pub value: Value,
}

impl Resource {
    pub const fn root(&self) -> JsonNode<'_> {
        JsonNode(&self.value)
    }

    /// The last segment of its path.
    pub fn name(&self) -> &str {
        last_piece(&self.path)
    }
}

/// A JSON value inside a resource.
#[derive(Debug, Clone, Copy)]
pub(super) struct JsonNode<'a>(pub &'a Value);

impl<'a> JsonNode<'a> {
    pub fn get(self, name: &str) -> Self {
        JsonNode(self.0.get(name).unwrap_or(NOTHING))
    }

    /// The field as trimmed text; None if that is empty.
    pub fn text(self, name: &str) -> Option<String> {
        self.get(name).as_text()
    }

    pub fn as_text(self) -> Option<String> {
        let text = match self.0 {
            Value::String(text) => text.trim().to_owned(),
            Value::Number(number) => number.to_string(),
            Value::Bool(flag) => flag.to_string(),
            Value::Null | Value::Array(_) | Value::Object(_) => return None,
        };
        (!text.is_empty()).then_some(text)
    }

    pub fn number(self, name: &str) -> Option<f64> {
        match self.get(name).0 {
            Value::Number(number) => number.as_f64(),
            Value::String(text) => text.trim().parse().ok(),
            Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
        }
        .filter(|number: &f64| number.is_finite())
    }

    /// A count: a fraction is truncated, a negative number is missing.
    pub fn count(self, name: &str) -> Option<u64> {
        self.number(name).filter(|number| *number >= 0.0).map(|number| number as u64)
    }

    pub fn flag(self, name: &str) -> Option<bool> {
        match self.get(name).0 {
            Value::Bool(flag) => Some(*flag),
            Value::String(text) if text.eq_ignore_ascii_case("true") => Some(true),
            Value::String(text) if text.eq_ignore_ascii_case("false") => Some(false),
            Value::Null
            | Value::String(_)
            | Value::Number(_)
            | Value::Array(_)
            | Value::Object(_) => None,
        }
    }

    /// The field's entries. A single value counts as a list of one, null as an empty list.
    pub fn list(self, name: &str) -> impl Iterator<Item = JsonNode<'a>> + use<'a> {
        let entries: &'a [Value] = match self.get(name).0 {
            Value::Null => &[],
            Value::Array(entries) => entries,
            one @ (Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Object(_)) => {
                std::slice::from_ref(one)
            }
        };
        entries.iter().map(JsonNode)
    }

    pub fn texts(self, name: &str) -> Vec<String> {
        self.list(name).filter_map(JsonNode::as_text).collect()
    }

    /// The target of a link, as a path on the same device.
    pub fn link(self, name: &str) -> Option<String> {
        self.get(name).as_link()
    }

    pub fn as_link(self) -> Option<String> {
        let target = match self.0 {
            Value::String(target) => target,
            Value::Object(_) => self.get("@odata.id").0.as_str()?,
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) => return None,
        };
        local_path(target)
    }

    /// True if a member of a collection is the resource itself and not only a link to it.
    pub fn is_expanded(self) -> bool {
        self.0.as_object().is_some_and(|fields| fields.keys().any(|key| !key.starts_with("@odata")))
    }

    pub fn time(self, name: &str) -> Option<Timestamp> {
        let text = self.text(name)?;
        let instant: jiff::Timestamp = text.parse().ok()?;
        Some(Timestamp::from_micros(instant.as_microsecond()))
    }
}

/// A member of a collection.
#[derive(Debug)]
pub(super) enum Entry {
    Link(String),
    Expanded(Resource),
}

impl Entry {
    pub fn path(&self) -> &str {
        match self {
            Self::Link(path) => path,
            Self::Expanded(doc) => &doc.path,
        }
    }
}

pub(super) fn entry(part: JsonNode<'_>) -> Option<Entry> {
    let link = part.as_link();
    if part.is_expanded() {
        let path = link.unwrap_or_default();
        let etag = part.text("@odata.etag");
        return Some(Entry::Expanded(Resource { path, etag, value: part.0.clone() }));
    }
    link.map(Entry::Link)
}

/// A link as a path on this device, whatever host it names: a device behind NAT links to an address
/// that is not reachable from outside.
pub(super) fn local_path(link: &str) -> Option<String> {
    let path = exact_path(link)?;
    let short = path.trim_end_matches('/');
    (!short.is_empty()).then(|| short.to_owned())
}

/// Like [`local_path`], but keeps a slash at the end: a redirect may only add it.
pub(super) fn exact_path(link: &str) -> Option<String> {
    let link = link.trim();
    let path = match link.split_once("://") {
        Some((_, rest)) => rest.find('/').map_or("/", |at| &rest[at..]),
        None => link,
    };
    let path = path.split('#').next().unwrap_or_default();
    let clean = !path.is_empty() && path.chars().all(|c| c.is_ascii_graphic());
    match path {
        _ if !clean => None,
        _ if path.starts_with('/') => Some(path.to_owned()),
        _ if path.starts_with("redfish/") => Some(format!("/{path}")),
        _ => Some(format!("{ROOT}/{path}")),
    }
}

pub(super) fn last_piece(path: &str) -> &str {
    path.trim_end_matches('/').rsplit('/').next().unwrap_or(path)
}

/// A device's message, in one line and of bounded length.
pub(super) fn shown(words: &str) -> String {
    one_line(words, MAX_MESSAGE_CHARS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn fields_are_read_however_they_are_sent() {
        let value = json!({
            "Number": 7, "Text": " 7.5 ", "Blank": "  ", "Flag": "True", "Null": null,
            "Less": -1, "Odd": {"a": 1}, "List": [1, null, "b"], "One": {"@odata.id": "/x/"},
        });
        let part = JsonNode(&value);
        assert_eq!(part.text("Number").as_deref(), Some("7"));
        assert_eq!(part.text("Text").as_deref(), Some("7.5"));
        assert_eq!((part.count("Number"), part.count("Text")), (Some(7), Some(7)));
        assert_eq!((part.text("Blank"), part.text("Null"), part.text("Odd")), (None, None, None));
        assert_eq!((part.count("Less"), part.count("Odd"), part.count("Gone")), (None, None, None));
        assert_eq!(part.flag("Flag"), Some(true));
        assert_eq!(part.texts("List"), ["1", "b"]);
        assert_eq!((part.list("Null").count(), part.list("Gone").count()), (0, 0));
        assert_eq!(part.list("One").count(), 1);
        assert_eq!(part.link("One").as_deref(), Some("/x"));
        assert!(!part.get("One").is_expanded() && part.get("Odd").is_expanded());
    }

    #[test]
    fn links_lead_to_the_same_device() {
        for (link, path) in [
            ("/redfish/v1/Systems/1/", Some("/redfish/v1/Systems/1")),
            ("https://other:444/redfish/v1/Systems/1", Some("/redfish/v1/Systems/1")),
            ("redfish/v1/Chassis", Some("/redfish/v1/Chassis")),
            ("Chassis/1", Some("/redfish/v1/Chassis/1")),
            ("/redfish/v1/Chassis/1/Thermal#/Fans/0", Some("/redfish/v1/Chassis/1/Thermal")),
            ("", None),
            ("/a b", None),
            ("/a\r\nX: y", None),
            ("https://other", None),
        ] {
            assert_eq!(local_path(link).as_deref(), path, "{link}");
        }
    }

    #[test]
    fn times_are_read_with_their_offset() {
        let value = json!({"At": "2024-06-11T00:14:47-05:00", "No": "N/A"});
        let at = JsonNode(&value).time("At").map(Timestamp::as_millis);
        assert_eq!(at, Some(1_718_082_887_000));
        assert_eq!(JsonNode(&value).time("No"), None);
    }
}
