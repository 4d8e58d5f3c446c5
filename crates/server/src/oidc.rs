//! Users of an OpenID Connect provider.
//!
//! `jws` parses a token and verifies its signature, `keys` holds the provider's keys, `claims`
//! checks what the token says. The keys are read again at an interval, and when a token names an
//! unknown one; while the provider does not answer, the known keys stay. A client learns only that
//! a token is not accepted; the log says why.

mod claims;
mod jws;
mod keys;
#[cfg(test)]
mod tests;
mod untrusted;

pub(crate) use jws::JwsAlgorithm;
pub(crate) use untrusted::read_web_token;

use crate::config::Oidc;
use crate::serve::ServeError;
use claims::{ClaimRules, Expected};
use engine::access::ForeignIdentity;
use jws::{ParsedToken, UniqueObject};
use keys::KeySet;
use model::access::unauthenticated;
use model::refusal::Refusal;
use model::time::Timestamp;
use providers::identity_provider::{CodeExchange, IdentityProviderClient, check_url};
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;
use sha2::{Digest, Sha256};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;
use tokio::sync::Mutex as AsyncMutex;
use tokio::time::Instant;

/// Unknown keys lead to one request to the provider in this time.
const UNKNOWN_KEY_INTERVAL: Duration = Duration::from_secs(10);
/// The wait after a failed read of the keys.
const RETRY_INTERVAL: Duration = Duration::from_secs(15);
/// Refused tokens are logged once in this time, with their number.
const LOG_INTERVAL: Duration = Duration::from_secs(10);
/// The longest error of the provider in the log.
const MAX_ERROR_CHARS: usize = 300;
const DISCOVERY: &str = "/.well-known/openid-configuration";

/// The reason why a token is not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OidcError {
    Malformed(&'static str),
    /// The algorithm is not allowed, or not that of the key.
    Algorithm,
    UnknownKey,
    Signature,
    Issuer,
    Audience,
    Expired,
    NotYetValid,
    Nonce,
    /// This claim is missing or cannot be used.
    Claim(&'static str),
    /// No audience is configured for bearer tokens.
    NotConfigured,
}

impl fmt::Display for OidcError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Self::Malformed(why) => why,
            Self::Algorithm => "its algorithm is not in oidc.algorithms, or not that of its key",
            Self::UnknownKey => "the provider has no key with its key id",
            Self::Signature => "its signature is wrong",
            Self::Issuer => "its issuer is not oidc.issuer",
            Self::Audience => "it is for another audience",
            Self::Expired => "it has expired",
            Self::NotYetValid => "it is not valid yet; compare the clocks",
            Self::Nonce => "it belongs to another sign-in",
            Self::Claim(name) => return write!(f, "a claim is missing or unusable: {name}"),
            Self::NotConfigured => "oidc.audience is empty",
        };
        f.write_str(text)
    }
}

/// Compares two texts in a time that does not depend on where they differ.
fn equal_secrets(one: &str, other: &str) -> bool {
    Sha256::digest(one.as_bytes()) == Sha256::digest(other.as_bytes())
}

/// The source of the keys.
#[derive(Debug, Clone, PartialEq, Eq)]
enum KeySource {
    File(PathBuf),
    Url(String),
    /// The document of the issuer names the URL.
    Discovery,
}

/// The addresses of the provider for the sign-in of browsers.
#[derive(Debug, Clone, PartialEq, Eq)]
struct SignInEndpoints {
    authorization: String,
    token: String,
}

/// The part of the discovery document that is used.
#[derive(Deserialize)]
struct DiscoveryDocument {
    issuer: String,
    jwks_uri: String,
    authorization_endpoint: Option<String>,
    token_endpoint: Option<String>,
}

#[derive(Deserialize)]
struct TokenAnswer {
    id_token: String,
}

/// The client that signs browsers in.
struct SignInClient {
    id: String,
    secret: Option<SecretString>,
    redirect_url: String,
    scopes: String,
}

/// Verifies the tokens of one provider.
pub(crate) struct OidcProvider {
    rules: ClaimRules,
    audience: String,
    algorithms: Vec<JwsAlgorithm>,
    source: KeySource,
    refresh: Duration,
    client: IdentityProviderClient,
    sign_in: Option<SignInClient>,
    pub display_name: String,
    pub session_life: Duration,
    keys: RwLock<Arc<KeySet>>,
    endpoints: RwLock<Option<SignInEndpoints>>,
    /// The time when the provider was last asked. Held while it is asked, so that concurrent
    /// callers share the answer.
    asked: AsyncMutex<Option<Instant>>,
    log: DenialLog,
}

/// The request that begins the sign-in of a browser.
pub(crate) struct AuthorizationRequest<'a> {
    pub state: &'a str,
    pub nonce: &'a str,
    /// The SHA-256 of the verifier (PKCE).
    pub challenge: &'a str,
}

impl OidcProvider {
    /// None: no provider is configured. Reads the files that are named; asks the provider nothing.
    pub fn open(config: &Oidc) -> Result<Option<Arc<Self>>, ServeError> {
        if !config.is_on() {
            return Ok(None);
        }
        let refused = |error: String| ServeError::Refused(error);
        let ca = optional_file("oidc.ca_file", &config.ca_file).map_err(refused)?;
        let client = IdentityProviderClient::new(ca.as_deref().map(str::as_bytes))
            .map_err(|error| refused(format!("oidc.ca_file: {error}")))?;
        let source = match (config.jwks_file.as_os_str().is_empty(), config.jwks_url.as_str()) {
            (false, _) => KeySource::File(config.jwks_file.clone()),
            (true, "") => KeySource::Discovery,
            (true, url) => KeySource::Url(url.to_string()),
        };
        let seconds = Duration::from_secs;
        let provider = Self {
            rules: ClaimRules {
                issuer: config.issuer.clone(),
                user_claim: config.user_claim.clone(),
                groups_claim: config.groups_claim.clone(),
                prefix: config.prefix.clone(),
                clock_skew: seconds(config.clock_skew_seconds),
            },
            audience: config.audience.clone(),
            algorithms: config.allowed_algorithms(),
            source,
            refresh: seconds(config.refresh_seconds),
            client,
            sign_in: SignInClient::open(config).map_err(refused)?,
            display_name: config.display_name.clone(),
            session_life: seconds(config.session_seconds),
            keys: RwLock::default(),
            endpoints: RwLock::default(),
            asked: AsyncMutex::default(),
            log: DenialLog::default(),
        };
        if let KeySource::File(path) = &provider.source {
            // A wrong file is the operator's, who is here now.
            let keys = read_keys(path).map_err(refused)?;
            provider.set_keys(keys);
        }
        Ok(Some(Arc::new(provider)))
    }

    /// Keeps the keys current until the process ends.
    pub async fn run_refresh(self: Arc<Self>) {
        loop {
            let refreshed = {
                let mut asked = self.asked.lock().await;
                *asked = Some(Instant::now());
                self.refresh().await
            };
            let pause = match refreshed {
                Ok(()) => self.refresh,
                Err(error) => {
                    let known = self.keys().len();
                    tracing::warn!(error, known, "the keys of the identity provider were not read");
                    RETRY_INTERVAL.min(self.refresh)
                }
            };
            tokio::time::sleep(pause).await;
        }
    }

    /// Reads the keys and, for the sign-in of browsers, the addresses of the provider.
    async fn refresh(&self) -> Result<(), String> {
        let read = async {
            let keys = match &self.source {
                KeySource::File(path) => read_keys(path)?,
                KeySource::Url(url) => KeySet::parse(&self.client.get(url).await?)?,
                KeySource::Discovery => {
                    let url = self.discover().await?;
                    KeySet::parse(&self.client.get(&url).await?)?
                }
            };
            self.set_keys(keys);
            if self.sign_in.is_some() && self.source != KeySource::Discovery {
                self.discover().await?;
            }
            Ok(())
        };
        // An error may quote what the provider has sent.
        let shorten = |error: String| error.chars().take(MAX_ERROR_CHARS).collect();
        read.await.map_err(shorten)
    }

    /// Reads the discovery document. Returns the URL of the keys.
    async fn discover(&self) -> Result<String, String> {
        let url = format!("{}{DISCOVERY}", self.rules.issuer.trim_end_matches('/'));
        let document: DiscoveryDocument = serde_json::from_slice(&self.client.get(&url).await?)
            .map_err(|error| format!("{url}: {error}"))?;
        if document.issuer != self.rules.issuer {
            return Err(format!("{url} is the document of another issuer"));
        }
        let named = [Some(&document.jwks_uri), document.token_endpoint.as_ref()];
        let encrypted = |url: &&String| url.starts_with("https://");
        if self.rules.issuer.starts_with("https://") && !named.iter().flatten().all(encrypted) {
            return Err(format!("{url} names an address that is not encrypted"));
        }
        if let (Some(authorization), Some(token)) =
            (document.authorization_endpoint, document.token_endpoint)
        {
            check_url(&authorization).and_then(|()| check_url(&token))?;
            let found = SignInEndpoints { authorization, token };
            *self.endpoints.write().unwrap_or_else(PoisonError::into_inner) = Some(found);
        }
        Ok(document.jwks_uri)
    }

    fn keys(&self) -> Arc<KeySet> {
        Arc::clone(&self.keys.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn set_keys(&self, keys: KeySet) {
        let mut known = self.keys.write().unwrap_or_else(PoisonError::into_inner);
        if **known != keys {
            tracing::info!(keys = keys.len(), "new keys of the identity provider");
            *known = Arc::new(keys);
        }
    }

    /// Asks the provider again, unless that was done a moment ago.
    async fn refresh_unless_recent(&self) {
        let mut asked = self.asked.lock().await;
        if asked.is_some_and(|at| at.elapsed() < UNKNOWN_KEY_INTERVAL) {
            return;
        }
        *asked = Some(Instant::now());
        if let Err(error) = self.refresh().await {
            tracing::warn!(error, "the keys of the identity provider were not read");
        }
    }

    /// The user of a bearer token.
    pub async fn authenticate(
        &self,
        token: &str,
        now: Timestamp,
    ) -> Result<ForeignIdentity, Refusal> {
        let expected = Expected { audience: &self.audience, nonce: None };
        let verified = match self.audience.is_empty() {
            true => Err(OidcError::NotConfigured),
            false => self.verify(token, expected, now).await,
        };
        verified.map_err(|error| {
            self.log.denied(error);
            match error {
                // The signature was right: the client may know.
                OidcError::Expired => unauthenticated("the token of the identity provider expired"),
                OidcError::Malformed(_)
                | OidcError::Algorithm
                | OidcError::UnknownKey
                | OidcError::Signature
                | OidcError::Issuer
                | OidcError::Audience
                | OidcError::NotYetValid
                | OidcError::Nonce
                | OidcError::Claim(_)
                | OidcError::NotConfigured => {
                    unauthenticated("the token of the identity provider is not accepted")
                }
            }
        })
    }

    async fn verify(
        &self,
        token: &str,
        expected: Expected<'_>,
        now: Timestamp,
    ) -> Result<ForeignIdentity, OidcError> {
        let parsed = ParsedToken::parse(token, &self.algorithms)?;
        let claims = self.verified_claims(&parsed).await?;
        self.rules.check(&claims, expected, now)
    }

    async fn verified_claims(&self, parsed: &ParsedToken<'_>) -> Result<UniqueObject, OidcError> {
        let keys = self.keys();
        if let Ok(key) = parsed.key(&keys) {
            return parsed.verify(key);
        }
        // The provider may have new keys.
        self.refresh_unless_recent().await;
        parsed.verify(parsed.key(&self.keys())?)
    }
}

/// The sign-in of browsers: authorization code with PKCE.
impl OidcProvider {
    pub fn signs_browsers_in(&self) -> bool {
        self.sign_in.is_some()
    }

    /// The URL of the provider that a browser is led to. None: the provider does not answer, or no
    /// client is configured.
    pub async fn authorization_url(&self, request: &AuthorizationRequest<'_>) -> Option<String> {
        let client = self.sign_in.as_ref()?;
        let SignInEndpoints { authorization, .. } = self.endpoints().await?;
        let pairs = [
            ("response_type", "code"),
            ("client_id", client.id.as_str()),
            ("redirect_uri", client.redirect_url.as_str()),
            ("scope", client.scopes.as_str()),
            ("state", request.state),
            ("nonce", request.nonce),
            ("code_challenge", request.challenge),
            ("code_challenge_method", "S256"),
        ];
        let encode = |text: &str| {
            percent_encoding::utf8_percent_encode(text, percent_encoding::NON_ALPHANUMERIC)
                .to_string()
        };
        let pairs = pairs.map(|(name, value)| format!("{name}={}", encode(value)));
        let joint = if authorization.contains('?') { '&' } else { '?' };
        Some(format!("{authorization}{joint}{}", pairs.join("&")))
    }

    /// Exchanges the code of a sign-in, and verifies the user's token. The error is for the log.
    pub async fn exchange(
        &self,
        code: &str,
        verifier: &str,
        nonce: &str,
        now: Timestamp,
    ) -> Result<ForeignIdentity, String> {
        let client = self.sign_in.as_ref().ok_or("no client is configured")?;
        let endpoints = self.endpoints().await.ok_or("its addresses are not known")?;
        let exchange = CodeExchange {
            client_id: &client.id,
            client_secret: client.secret.as_ref(),
            code,
            redirect_url: &client.redirect_url,
            verifier,
        };
        let answer = self.client.exchange(&endpoints.token, &exchange).await?;
        let answer: TokenAnswer = serde_json::from_slice(&answer)
            .map_err(|_| "its answer has no ID token".to_string())?;
        let expected = Expected { audience: &client.id, nonce: Some(nonce) };
        let verified = self.verify(&answer.id_token, expected, now).await;
        verified.map_err(|error| format!("its ID token is not accepted: {error}"))
    }

    /// True if the provider that leads a browser back is this one (RFC 9207).
    pub fn is_issuer(&self, issuer: &str) -> bool {
        issuer == self.rules.issuer
    }

    /// The addresses of the provider, which is asked for them if they are not known yet.
    async fn endpoints(&self) -> Option<SignInEndpoints> {
        let known = || self.endpoints.read().unwrap_or_else(PoisonError::into_inner).clone();
        if known().is_none() {
            self.refresh_unless_recent().await;
        }
        known()
    }
}

impl SignInClient {
    fn open(config: &Oidc) -> Result<Option<Self>, String> {
        if !config.signs_browsers_in() {
            return Ok(None);
        }
        let secret = optional_file("oidc.client_secret_file", &config.client_secret_file)?;
        let secret = secret.map(|text| SecretString::from(text.trim().to_string()));
        if secret.as_ref().is_some_and(|secret| secret.expose_secret().is_empty()) {
            return Err(
                "oidc.client_secret_file is empty; write the client's secret into it".into()
            );
        }
        Ok(Some(Self {
            id: config.client_id.clone(),
            secret,
            redirect_url: config.redirect_url.clone(),
            scopes: config.scopes.join(" "),
        }))
    }
}

/// The text of a file that need not be named.
fn optional_file(field: &str, path: &Path) -> Result<Option<String>, String> {
    if path.as_os_str().is_empty() {
        return Ok(None);
    }
    let text = std::fs::read_to_string(path);
    text.map(Some).map_err(|error| format!("{field} {}: {error}", path.display()))
}

fn read_keys(path: &Path) -> Result<KeySet, String> {
    let wrong = |error: String| format!("oidc.jwks_file {}: {error}", path.display());
    let text = std::fs::read(path).map_err(|error| wrong(error.to_string()))?;
    KeySet::parse(&text).map_err(wrong)
}

/// Log lines about refused tokens, limited: any client that reaches the port can send many.
#[derive(Default)]
struct DenialLog(Mutex<(Option<Instant>, u64)>);

impl DenialLog {
    fn denied(&self, error: OidcError) {
        let others = {
            let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let (logged_at, unlogged) = &mut *state;
            if logged_at.is_some_and(|at| at.elapsed() < LOG_INTERVAL) {
                *unlogged += 1;
                return;
            }
            *logged_at = Some(Instant::now());
            std::mem::take(unlogged)
        };
        tracing::warn!(why = %error, others, "a token of the identity provider was refused");
    }
}
