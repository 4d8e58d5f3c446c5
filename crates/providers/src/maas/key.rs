//! The API key of a region: three parts, sent as OAuth 1.0a with the signature method PLAINTEXT.
//! The signature is the secret itself, so the header must never be logged.

use crate::http_client::form::encode;
use hyper::header::HeaderValue;
use model::refusal::Refusal;
use secrecy::{ExposeSecret, SecretString};
use std::fmt;

const FIELD: &str = "api_key";
const INSTEAD: &str =
    "give the three parts that `maas apikey --username=USER` prints, CONSUMER:TOKEN:SECRET";

#[derive(Clone)]
pub struct ApiKey {
    consumer: String,
    token: SecretString,
    secret: SecretString,
}

impl ApiKey {
    /// Reads `consumer:token:secret`. A refusal quotes no part of it.
    pub fn parse(text: &str) -> Result<Self, Refusal> {
        let parts: Vec<&str> = text.trim().split(':').collect();
        let [consumer, token, secret] = parts[..] else {
            let problem = format!("has {} parts between its colons, and not three", parts.len());
            return Err(Refusal::invalid(FIELD, problem, INSTEAD));
        };
        let fit = |part: &str| !part.is_empty() && part.chars().all(|c| c.is_ascii_graphic());
        if ![consumer, token, secret].into_iter().all(fit) {
            let problem =
                "has a part that is empty or holds something else than letters and digits";
            return Err(Refusal::invalid(FIELD, problem, INSTEAD));
        }
        Ok(Self { consumer: consumer.into(), token: token.into(), secret: secret.into() })
    }

    /// The parts that must not be shown.
    pub(super) fn secrets(&self) -> impl Iterator<Item = &SecretString> {
        [&self.token, &self.secret].into_iter()
    }

    /// The header `Authorization`. A nonce is valid for one request, a timestamp for some minutes.
    pub(super) fn header(&self, nonce: &str, timestamp_s: u64) -> Option<HeaderValue> {
        // The secret is encoded twice: within the signature, and the signature as a header value.
        let signature = format!("&{}", encode(self.secret.expose_secret()));
        let value = format!(
            "OAuth oauth_version=\"1.0\", oauth_signature_method=\"PLAINTEXT\", \
             oauth_consumer_key=\"{}\", oauth_token=\"{}\", oauth_signature=\"{}\", \
             oauth_nonce=\"{}\", oauth_timestamp=\"{timestamp_s}\"",
            encode(&self.consumer),
            encode(self.token.expose_secret()),
            encode(&signature),
            encode(nonce),
        );
        let mut header = HeaderValue::from_str(&value).ok()?;
        header.set_sensitive(true);
        Some(header)
    }
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ApiKey").field("consumer", &self.consumer).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_is_the_key_written_out() {
        for (key, nonce, at, consumer, token, signature) in [
            ("abc:def:ghi", "n1", 0, "abc", "def", "%26ghi"),
            (" abc:def:ghi\n", "n2", 1_700_000_000, "abc", "def", "%26ghi"),
            // Encoded twice: within the signature, and as a header value.
            ("a+:b/:c\"%", "n\"", 1, "a%2B", "b%2F", "%26c%2522%2525"),
        ] {
            let read = ApiKey::parse(key).unwrap();
            let expected = format!(
                "OAuth oauth_version=\"1.0\", oauth_signature_method=\"PLAINTEXT\", \
                 oauth_consumer_key=\"{consumer}\", oauth_token=\"{token}\", oauth_signature=\"{signature}\", \
                 oauth_nonce=\"{}\", oauth_timestamp=\"{at}\"",
                encode(nonce)
            );
            let header = read.header(nonce, at).unwrap();
            assert_eq!(header.to_str().unwrap(), expected);
            assert!(header.is_sensitive());
        }
    }

    #[test]
    fn invalid_keys_are_refused_without_quoting_them() {
        for text in
            ["", "topsecret", "topsecret:b", "a:topsecret:c:d", "a::topsecret", "a:b c:topsecret"]
        {
            let refusal = ApiKey::parse(text).unwrap_err();
            assert_eq!(refusal.field.as_deref(), Some(FIELD), "{text}");
            assert!(refusal.message.contains("CONSUMER:TOKEN:SECRET"), "{refusal}");
            assert!(!refusal.message.contains("topsecret"), "{refusal}");
        }
    }

    #[test]
    fn a_key_does_not_show_its_secrets() {
        let shown = format!("{:?}", ApiKey::parse("me:hidden1:hidden2").unwrap());
        assert!(shown.contains("me") && !shown.contains("hidden"), "{shown}");
    }
}
