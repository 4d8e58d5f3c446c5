//! The formats of notices: CloudEvents, Slack and PagerDuty.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use model::notify::{Notice, NoticeEvent, NotifierSpec, NotifyFormat, Severity};
use model::time::Timestamp;
use ring::hmac;
use secrecy::{ExposeSecret, SecretString};
use serde_json::{Value, json};

/// The prefix of a key that is written in base64, as Standard Webhooks names it.
const ENCODED_KEY: &str = "whsec_";

/// A request without its address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rendered {
    pub headers: Vec<(&'static str, String)>,
    pub body: String,
}

/// The request for a notice. The error says why the secret cannot be used.
pub fn render(
    spec: &NotifierSpec,
    notice: &Notice,
    secret: &SecretString,
    now: Timestamp,
) -> Result<Rendered, String> {
    match spec.format {
        NotifyFormat::CloudEvents => {
            let body = cloud_event(notice, &spec.source).to_string();
            let mut headers =
                vec![("content-type", "application/cloudevents+json; charset=UTF-8".into())];
            headers.extend(signature(&key(secret)?, &notice.id, &body, now));
            Ok(Rendered { headers, body })
        }
        NotifyFormat::Slack => {
            let part = secret.expose_secret();
            let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"/-_.~%".contains(&byte);
            if part.is_empty() || !part.bytes().all(fits) {
                return Err("it is no part of a URL".into());
            }
            Ok(json_request(&slack(notice)))
        }
        NotifyFormat::PagerDuty => {
            Ok(json_request(&pager_duty(notice, &spec.source, secret.expose_secret())))
        }
    }
}

fn json_request(body: &Value) -> Rendered {
    let headers = vec![("content-type", "application/json".to_string())];
    Rendered { headers, body: body.to_string() }
}

/// CloudEvents 1.0, structured mode.
fn cloud_event(notice: &Notice, source: &str) -> Value {
    json!({
        "specversion": "1.0",
        "id": notice.id,
        "source": source,
        "type": notice.event.as_str(),
        "subject": notice.object,
        "time": rfc3339(notice.at),
        "datacontenttype": "application/json",
        "data": data(notice),
    })
}

/// The facts of a notice. Empty ones are left out.
fn data(notice: &Notice) -> Value {
    let mut data = json!({
        "kind": notice.kind,
        "id": notice.object,
        "severity": notice.severity.as_str(),
        "summary": notice.summary,
        "command": notice.command,
    });
    for (name, value) in [
        ("state", &notice.state),
        ("fault", &notice.fault),
        ("target_id", &notice.target),
        ("rack_id", &notice.rack),
    ] {
        if !value.is_empty() {
            data[name] = value.as_str().into();
        }
    }
    if !notice.labels.is_empty() {
        data["labels"] = json!(notice.labels);
    }
    data
}

fn slack(notice: &Notice) -> Value {
    let mark = match (notice.event, notice.severity) {
        (NoticeEvent::PersonNoLongerNeeded, _) => ":white_check_mark:",
        (_, Severity::Critical) => ":rotating_light:",
        (_, Severity::Error) => ":x:",
        (_, Severity::Warning) => ":warning:",
        (_, Severity::Info) => ":information_source:",
    };
    let (summary, command) = (slack_text(&notice.summary), slack_text(&notice.command));
    json!({ "text": format!("{mark} {summary}\n`{command}`") })
}

/// The three characters that Slack's markup needs escaped.
fn slack_text(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// The Events API v2. The begin and the end of one need have the same key, so that PagerDuty closes
/// the incident.
fn pager_duty(notice: &Notice, source: &str, routing_key: &str) -> Value {
    let action = match notice.event {
        NoticeEvent::PersonNoLongerNeeded => "resolve",
        NoticeEvent::OperationFailed | NoticeEvent::PersonNeeded | NoticeEvent::Test => "trigger",
    };
    let topic = match notice.event {
        NoticeEvent::PersonNeeded | NoticeEvent::PersonNoLongerNeeded => "person",
        NoticeEvent::OperationFailed => "failed",
        NoticeEvent::Test => "test",
    };
    json!({
        "routing_key": routing_key,
        "event_action": action,
        "dedup_key": format!("{source}:{}:{topic}", notice.object),
        "payload": {
            "summary": notice.summary,
            "source": notice.object,
            "severity": notice.severity.as_str(),
            "timestamp": rfc3339(notice.at),
            "class": notice.event.as_str(),
            "custom_details": data(notice),
        },
    })
}

fn rfc3339(at: Timestamp) -> String {
    jiff::Timestamp::from_microsecond(at.as_micros()).unwrap_or_default().to_string()
}

fn key(secret: &SecretString) -> Result<hmac::Key, String> {
    let text = secret.expose_secret();
    let bytes = match text.strip_prefix(ENCODED_KEY) {
        Some(encoded) => STANDARD
            .decode(encoded)
            .map_err(|_| format!("what follows {ENCODED_KEY} is not base64"))?,
        None => text.as_bytes().to_vec(),
    };
    Ok(hmac::Key::new(hmac::HMAC_SHA256, &bytes))
}

/// The headers of Standard Webhooks: HMAC-SHA256 over `ID.TIMESTAMP.BODY`.
fn signature(key: &hmac::Key, id: &str, body: &str, now: Timestamp) -> [(&'static str, String); 3] {
    let seconds = (now.as_millis() / 1_000).to_string();
    let signed = hmac::sign(key, format!("{id}.{seconds}.{body}").as_bytes());
    [
        ("webhook-id", id.to_string()),
        ("webhook-timestamp", seconds),
        ("webhook-signature", format!("v1,{}", STANDARD.encode(signed.as_ref()))),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::machine::Labels;
    use model::notify::NoticeKind;
    use std::collections::BTreeSet;

    fn notice(event: NoticeEvent) -> Notice {
        Notice {
            id: "m:1:4:person-needed".into(),
            event,
            at: Timestamp::from_millis(1_780_000_000_500),
            kind: "machine".into(),
            object: "m.1".into(),
            severity: Severity::Error,
            summary: "m.1 needs a person: <disk> & fan".into(),
            state: "Attention".into(),
            fault: String::new(),
            target: String::new(),
            command: "farrier why m.1".into(),
            rack: "rack-1".into(),
            labels: Labels::from([("env".to_string(), "prod".to_string())]),
        }
    }

    fn rendered(
        format: NotifyFormat,
        event: NoticeEvent,
        secret: &str,
    ) -> Result<Rendered, String> {
        let spec = NotifierSpec {
            url: "https://h/in".into(),
            credential: "hook".into(),
            format,
            kinds: BTreeSet::from(NoticeKind::ALL),
            filter: String::new(),
            source: "/site-a".into(),
            max_attempts: 3,
        };
        render(&spec, &notice(event), &secret.into(), Timestamp::from_millis(1_780_000_009_000))
    }

    fn body(format: NotifyFormat, event: NoticeEvent, secret: &str) -> Value {
        serde_json::from_str(&rendered(format, event, secret).unwrap().body).unwrap()
    }

    #[test]
    fn a_cloud_event_has_the_attributes_of_the_specification() {
        let event = body(NotifyFormat::CloudEvents, NoticeEvent::PersonNeeded, "key");
        let expected = json!({
            "specversion": "1.0",
            "id": "m:1:4:person-needed",
            "source": "/site-a",
            "type": "farrier.person.needed",
            "subject": "m.1",
            "time": "2026-05-28T20:26:40.5Z",
            "datacontenttype": "application/json",
            "data": {
                "kind": "machine",
                "id": "m.1",
                "severity": "error",
                "summary": "m.1 needs a person: <disk> & fan",
                "command": "farrier why m.1",
                "state": "Attention",
                "rack_id": "rack-1",
                "labels": {"env": "prod"},
            },
        });
        assert_eq!(event, expected);
        for event in NoticeEvent::ALL {
            let event = body(NotifyFormat::CloudEvents, event, "key");
            // CloudEvents 1.0: REQUIRED, and no empty strings.
            for required in ["id", "source", "specversion", "type"] {
                let value = event[required].as_str().unwrap();
                assert!(!value.is_empty(), "{required}");
            }
            // Names of attributes: lower-case letters and digits.
            let names = event.as_object().unwrap().keys();
            let fits = |name: &String| name.bytes().all(|c| c.is_ascii_lowercase());
            assert!(names.into_iter().all(fits));
        }
        let headers =
            rendered(NotifyFormat::CloudEvents, NoticeEvent::Test, "key").unwrap().headers;
        assert_eq!(headers[0].1, "application/cloudevents+json; charset=UTF-8");
    }

    #[test]
    fn slack_gets_escaped_text() {
        for (event, mark) in [
            (NoticeEvent::PersonNeeded, ":x:"),
            (NoticeEvent::PersonNoLongerNeeded, ":white_check_mark:"),
        ] {
            let text = "m.1 needs a person: &lt;disk&gt; &amp; fan\n`farrier why m.1`";
            let expected = json!({ "text": format!("{mark} {text}") });
            assert_eq!(body(NotifyFormat::Slack, event, "T0/B0/x"), expected);
        }
        for wrong in ["", "T0/B0/x y", "T0?x", "T0#x", "T0\r\nHost: h"] {
            assert!(rendered(NotifyFormat::Slack, NoticeEvent::Test, wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn pager_duty_closes_the_incident_that_it_opened() {
        let begun = body(NotifyFormat::PagerDuty, NoticeEvent::PersonNeeded, "R0UT1NG");
        let expected = json!({
            "routing_key": "R0UT1NG",
            "event_action": "trigger",
            "dedup_key": "/site-a:m.1:person",
            "payload": {
                "summary": "m.1 needs a person: <disk> & fan",
                "source": "m.1",
                "severity": "error",
                "timestamp": "2026-05-28T20:26:40.5Z",
                "class": "farrier.person.needed",
                "custom_details": begun["payload"]["custom_details"],
            },
        });
        assert_eq!(begun, expected);
        let ended = body(NotifyFormat::PagerDuty, NoticeEvent::PersonNoLongerNeeded, "R0UT1NG");
        assert_eq!(ended["event_action"], "resolve");
        assert_eq!(ended["dedup_key"], begun["dedup_key"]);
        let failed = body(NotifyFormat::PagerDuty, NoticeEvent::OperationFailed, "R0UT1NG");
        assert_ne!(failed["dedup_key"], begun["dedup_key"]);
    }

    /// The vectors were computed with another implementation (Python's hmac); the first is the one
    /// that the libraries of Standard Webhooks are tested with.
    #[test]
    fn a_signature_is_that_of_standard_webhooks() {
        let (id, body) = ("msg_p5jXN8AQM9LWM0D4loKWxJek", r#"{"test": 2432232314}"#);
        let at = Timestamp::from_millis(1_614_265_330_999);
        for (secret, expected) in [
            (
                "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
                "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
            ),
            ("plain key", "v1,vQ53RP0YRVgSL9lqoC8JYqZgGgUNoiI2U57oSRpilIo="),
        ] {
            let [given, seconds, signed] = signature(&key(&secret.into()).unwrap(), id, body, at);
            assert_eq!(given, ("webhook-id", id.to_string()));
            assert_eq!(seconds, ("webhook-timestamp", "1614265330".to_string()));
            assert_eq!(signed, ("webhook-signature", expected.to_string()));
        }
        assert!(key(&"whsec_no base64".into()).is_err());
    }
}
