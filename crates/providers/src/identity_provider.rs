//! The HTTP requests to an OpenID Connect provider: its documents, and the exchange of a code.
//!
//! Redirects are not followed and answers are bounded. The provider is verified with the
//! authorities of the host, or with those that the operator names.

use crate::http_client::form::{Form, encode};
use crate::http_client::{
    Endpoint, HttpClient, HttpClientSettings, HttpRequest, HttpResponse, SendError, Timeouts,
    Trust, system_authorities,
};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::{Method, StatusCode};
use model::credential::AllowedAddresses;
use rustls::pki_types::CertificateDer;
use secrecy::{ExposeSecret, SecretString};
use std::net::IpAddr;
use std::time::Duration;

/// The largest document that is read.
const MAX_ANSWER_BYTES: usize = 512 * 1024;
const SETTINGS: HttpClientSettings = HttpClientSettings {
    timeouts: Timeouts { connect: Duration::from_secs(5), answer: Duration::from_secs(10) },
    headers: &[],
    max_answer_bytes: MAX_ANSWER_BYTES,
    keeps_connection: false,
};

/// Sends requests to one identity provider.
#[derive(Debug, Clone)]
pub struct IdentityProviderClient {
    authorities: Vec<CertificateDer<'static>>,
}

/// The exchange of the code of a sign-in. Has no `Debug`: code and secret are in it.
pub struct CodeExchange<'a> {
    pub client_id: &'a str,
    /// None: the client is public, and only the verifier proves that it began the sign-in.
    pub client_secret: Option<&'a SecretString>,
    pub code: &'a str,
    pub redirect_url: &'a str,
    /// The verifier of PKCE (RFC 7636).
    pub verifier: &'a str,
}

impl IdentityProviderClient {
    /// `ca_pem` has the authorities of the provider; None: those of the host.
    pub fn new(ca_pem: Option<&[u8]>) -> Result<Self, String> {
        let authorities = match ca_pem {
            None => system_authorities(),
            Some(pem) => match Trust::ca_from_pem(pem).map_err(|fault| fault.message)? {
                Trust::Ca(authorities) => authorities,
                Trust::Pinned(_) | Trust::FirstUse(_) => Vec::new(),
            },
        };
        Ok(Self { authorities })
    }

    /// The document at a URL.
    pub async fn get(&self, url: &str) -> Result<Vec<u8>, String> {
        let (client, path) = self.client(url)?;
        let request = HttpRequest { method: Method::GET, path, headers: Vec::new(), body: None };
        let answer = send(&client, &request).await?;
        match answer.status {
            StatusCode::OK => Ok(body(answer)?),
            status => Err(format!("{} answered {status}", client.endpoint())),
        }
    }

    /// Exchanges the code at the provider's token endpoint; returns its answer. The error has
    /// neither the code nor a secret.
    pub async fn exchange(&self, url: &str, with: &CodeExchange<'_>) -> Result<Vec<u8>, String> {
        let (client, path) = self.client(url)?;
        let form = Form::default()
            .with("grant_type", "authorization_code")
            .with("code", with.code)
            .with("redirect_uri", with.redirect_url)
            .with("client_id", with.client_id)
            .with("code_verifier", with.verifier);
        let mut headers: Vec<(HeaderName, HeaderValue)> = Vec::new();
        let form_type = HeaderValue::from_static("application/x-www-form-urlencoded");
        headers.push((CONTENT_TYPE, form_type));
        if let Some(secret) = with.client_secret {
            headers.push((AUTHORIZATION, basic_login(with.client_id, secret)?));
        }
        let body_bytes = Some(form.encoded().into());
        let request = HttpRequest { method: Method::POST, path, headers, body: body_bytes };
        let answer = send(&client, &request).await?;
        match answer.status {
            StatusCode::OK => Ok(body(answer)?),
            status => {
                let why = body(answer).ok().and_then(|body| error_word(&body)).unwrap_or_default();
                Err(format!("{} refused the code: {status} {why}", client.endpoint()))
            }
        }
    }

    fn client(&self, url: &str) -> Result<(HttpClient, String), String> {
        let (endpoint, path) = parse_url(url)?;
        let trust = Trust::Ca(self.authorities.clone());
        let client = HttpClient::new(endpoint, AllowedAddresses::Any, trust, SETTINGS);
        Ok((client.map_err(|fault| fault.message)?, path))
    }
}

/// Checks the URL of a provider: encrypted, or on this host.
pub fn check_url(url: &str) -> Result<(), String> {
    parse_url(url).map(drop)
}

fn parse_url(url: &str) -> Result<(Endpoint, String), String> {
    let wrong = || format!("{url:?} is no URL; write https://HOST/PATH");
    let graphic = url.bytes().all(|byte| byte.is_ascii_graphic());
    if !url.contains("://") || url.contains('#') || !graphic {
        return Err(wrong());
    }
    let (endpoint, path) = Endpoint::parse(url).map_err(|_| wrong())?;
    let host = endpoint.host();
    let local = host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback());
    match endpoint.tls() || local {
        true => Ok((endpoint, format!("/{path}"))),
        false => Err(format!("{url:?} is not encrypted; write https://")),
    }
}

/// RFC 6749 encodes both as forms do before they are joined.
fn basic_login(client_id: &str, secret: &SecretString) -> Result<HeaderValue, String> {
    let pair = format!("{}:{}", encode(client_id), encode(secret.expose_secret()));
    let value = HeaderValue::from_str(&format!("Basic {}", STANDARD.encode(pair)));
    let mut value = value.map_err(|_| "the client secret cannot be sent".to_string())?;
    value.set_sensitive(true);
    Ok(value)
}

async fn send(client: &HttpClient, request: &HttpRequest) -> Result<HttpResponse, String> {
    client.send(request).await.map_err(|error| match error {
        SendError::Unsent(fault) => fault.message,
        SendError::Lost(why) => format!("{} did not answer: {why}", client.endpoint()),
    })
}

fn body(answer: HttpResponse) -> Result<Vec<u8>, String> {
    answer.body.map(|body| body.to_vec())
}

/// The word of an OAuth error, such as `invalid_grant`. Its description may quote the request.
fn error_word(body: &[u8]) -> Option<String> {
    let answer: serde_json::Value = serde_json::from_slice(body).ok()?;
    let word = answer.get("error")?.as_str()?;
    let plain = word.len() <= 64 && word.bytes().all(|c| c.is_ascii_lowercase() || c == b'_');
    plain.then(|| word.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_provider_is_asked_with_tls_or_on_this_host() {
        for url in [
            "https://id.example.com",
            "https://id.example.com/realms/one?x=1",
            "http://127.0.0.1:3000/jwks",
            "http://localhost:3000/jwks",
            "http://[::1]:3000",
        ] {
            check_url(url).unwrap();
        }
        for url in [
            "http://id.example.com",
            "http://localhost.example.com",
            "id.example.com",
            "ftp://id.example.com",
            "https://user:word@id.example.com",
            "https://id.example.com/#x",
            "https://id.example.com/a b",
            "https://",
            "",
        ] {
            assert!(check_url(url).is_err(), "{url}");
        }
    }

    #[test]
    fn only_the_word_of_an_error_is_shown() {
        assert_eq!(error_word(br#"{"error":"invalid_grant"}"#).as_deref(), Some("invalid_grant"));
        for body in ["", "{}", r#"{"error":"a code: s3cret"}"#, r#"{"error":1}"#] {
            assert_eq!(error_word(body.as_bytes()), None, "{body}");
        }
    }

    #[test]
    fn a_login_is_encoded_before_it_is_joined() {
        let header = basic_login("a:b", &"s/1".into()).unwrap();
        assert_eq!(header.to_str().unwrap(), format!("Basic {}", STANDARD.encode("a%3Ab:s%2F1")));
    }
}
