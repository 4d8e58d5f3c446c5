//! `[oidc]`: the OpenID Connect provider whose users may use this server.

use crate::oidc::JwsAlgorithm;
use engine::access::SESSION_LIFE;
use model::access::check_foreign_name;
use providers::identity_provider::check_url;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// The path that the provider leads browsers back to.
pub(crate) const CALLBACK: &str = "/sign-in/callback";
const MAX_SKEW_SECONDS: u64 = 300;
const REFRESH_SECONDS: std::ops::RangeInclusive<u64> = 10..=86_400;
const MIN_SESSION_SECONDS: u64 = 60;
/// Leaves room for a name in the longest name of a user.
const MAX_PREFIX: usize = 32;

/// An OpenID Connect provider. Its users need a role before they may do anything.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Oidc {
    /// The issuer, exactly as its tokens name it. Empty: there is no provider.
    pub issuer: String,
    /// The audience that a bearer token must have. Empty: bearer tokens of the provider are
    /// refused.
    pub audience: String,
    /// The URL of the provider's keys. Empty: the one that the issuer's discovery document names.
    pub jwks_url: String,
    /// A file with the provider's keys, in place of the URL.
    pub jwks_file: PathBuf,
    /// The authorities of the provider's TLS certificate, as PEM. Empty: those of the host.
    pub ca_file: PathBuf,
    /// The claim that names the user.
    pub user_claim: String,
    /// The claim that lists the groups of the user.
    pub groups_claim: String,
    /// In front of the names of users and groups; ends with a colon. Bind roles to
    /// `user:oidc:NAME` and `group:oidc:NAME`.
    pub prefix: String,
    /// The signature algorithms that are accepted, of `RS256`, `ES256` and `EdDSA`.
    pub algorithms: Vec<String>,
    /// How far the clock of the provider may be off.
    pub clock_skew_seconds: u64,
    /// How often the keys are read again; a token with an unknown key does so too, at most every 10
    /// seconds.
    pub refresh_seconds: u64,
    /// The client that signs browsers in. Empty: no browser signs in with the provider.
    pub client_id: String,
    /// The file with the client's secret. Empty: the client is public.
    pub client_secret_file: PathBuf,
    /// The URL that the provider leads browsers back to, `https://HOST/sign-in/callback`, exactly
    /// as the provider knows it.
    pub redirect_url: String,
    /// What the sign-in asks the provider for.
    pub scopes: Vec<String>,
    /// The name of the provider on the sign-in page.
    pub display_name: String,
    /// How long a session lasts that was opened with the provider, at most 12 hours.
    pub session_seconds: u64,
}

impl Default for Oidc {
    fn default() -> Self {
        Self {
            issuer: String::new(),
            audience: String::new(),
            jwks_url: String::new(),
            jwks_file: PathBuf::new(),
            ca_file: PathBuf::new(),
            user_claim: "sub".into(),
            groups_claim: "groups".into(),
            prefix: "oidc:".into(),
            algorithms: JwsAlgorithm::ALL.map(|one| one.as_str().to_string()).to_vec(),
            clock_skew_seconds: 60,
            refresh_seconds: 600,
            client_id: String::new(),
            client_secret_file: PathBuf::new(),
            redirect_url: String::new(),
            scopes: vec!["openid".into()],
            display_name: "single sign-on".into(),
            session_seconds: SESSION_LIFE.as_secs(),
        }
    }
}

fn is_set(path: &Path) -> bool {
    !path.as_os_str().is_empty()
}

impl Oidc {
    pub fn is_on(&self) -> bool {
        !self.issuer.is_empty()
    }

    pub fn signs_browsers_in(&self) -> bool {
        self.is_on() && !self.client_id.is_empty()
    }

    pub(crate) fn allowed_algorithms(&self) -> Vec<JwsAlgorithm> {
        self.algorithms.iter().filter_map(|word| JwsAlgorithm::parse(word)).collect()
    }

    pub fn check(&self) -> Result<(), String> {
        if !self.is_on() {
            let parts = [
                ("audience", !self.audience.is_empty()),
                ("jwks_url", !self.jwks_url.is_empty()),
                ("jwks_file", is_set(&self.jwks_file)),
                ("client_id", !self.client_id.is_empty()),
            ];
            return match parts.iter().find(|(_, set)| *set) {
                None => Ok(()),
                Some((field, _)) => Err(format!(
                    "oidc.{field} is set and oidc.issuer is empty; write the issuer of the provider"
                )),
            };
        }
        check_url(&self.issuer).map_err(|error| format!("oidc.issuer {error}"))?;
        if self.issuer.contains('?') {
            return Err("oidc.issuer has a query; write it as the tokens of the provider do".into());
        }
        if self.audience.is_empty() && self.client_id.is_empty() {
            return Err("oidc.audience and oidc.client_id are empty; set the audience of bearer \
                        tokens, the client of the browser sign-in, or both"
                .into());
        }
        match (self.jwks_url.is_empty(), is_set(&self.jwks_file)) {
            (true, _) => {}
            (false, false) => {
                check_url(&self.jwks_url).map_err(|error| format!("oidc.jwks_url {error}"))?;
            }
            (false, true) => {
                return Err("oidc.jwks_url and oidc.jwks_file are set; keep one".into());
            }
        }
        self.check_names()?;
        self.check_times()?;
        self.check_client()
    }

    fn check_names(&self) -> Result<(), String> {
        for (field, claim) in
            [("user_claim", &self.user_claim), ("groups_claim", &self.groups_claim)]
        {
            if claim.is_empty() {
                return Err(format!("oidc.{field} is empty; name a claim of the tokens"));
            }
        }
        let fits = self.prefix.ends_with(':') && self.prefix.len() <= MAX_PREFIX;
        // Names that begin like that are workloads with a certificate.
        if !fits || self.prefix.starts_with("spiffe:") || check_foreign_name(&self.prefix).is_err()
        {
            return Err(format!(
                "oidc.prefix is {:?}; use at most {MAX_PREFIX} characters that end with a colon, \
                 such as \"oidc:\"",
                self.prefix
            ));
        }
        let unknown = self.algorithms.iter().find(|word| JwsAlgorithm::parse(word).is_none());
        if self.algorithms.is_empty() || unknown.is_some() {
            let known = JwsAlgorithm::ALL.map(JwsAlgorithm::as_str).join(", ");
            let found = unknown.map_or("none", String::as_str);
            return Err(format!("oidc.algorithms has {found:?}; use one or more of {known}"));
        }
        Ok(())
    }

    fn check_times(&self) -> Result<(), String> {
        if self.clock_skew_seconds > MAX_SKEW_SECONDS {
            return Err(format!(
                "oidc.clock_skew_seconds is {}; use at most {MAX_SKEW_SECONDS}",
                self.clock_skew_seconds
            ));
        }
        if !REFRESH_SECONDS.contains(&self.refresh_seconds) {
            let (least, most) = (REFRESH_SECONDS.start(), REFRESH_SECONDS.end());
            return Err(format!(
                "oidc.refresh_seconds is {}; use {least} to {most}",
                self.refresh_seconds
            ));
        }
        let most = SESSION_LIFE.as_secs();
        if !(MIN_SESSION_SECONDS..=most).contains(&self.session_seconds) {
            return Err(format!(
                "oidc.session_seconds is {}; use {MIN_SESSION_SECONDS} to {most}",
                self.session_seconds
            ));
        }
        Ok(())
    }

    fn check_client(&self) -> Result<(), String> {
        if self.client_id.is_empty() {
            return match (is_set(&self.client_secret_file), self.redirect_url.is_empty()) {
                (false, true) => Ok(()),
                (secret, _) => {
                    let field = if secret { "client_secret_file" } else { "redirect_url" };
                    Err(format!(
                        "oidc.{field} is set and oidc.client_id is empty; name the client of the \
                         browser sign-in"
                    ))
                }
            };
        }
        let wrong = |why: &str| {
            format!(
                "oidc.redirect_url {why}; write https://HOST{CALLBACK} as the provider knows it"
            )
        };
        check_url(&self.redirect_url).map_err(|_| wrong("is no https:// URL"))?;
        let rest = self.redirect_url.split_once("://").map_or("", |(_, rest)| rest);
        if rest.find('/').map(|at| &rest[at..]) != Some(CALLBACK) {
            return Err(wrong("leads to another page"));
        }
        if !self.scopes.iter().any(|scope| scope == "openid") {
            return Err("oidc.scopes lacks \"openid\", without which no user is named".into());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full() -> Oidc {
        Oidc {
            issuer: "https://id.example.com".into(),
            audience: "farrier".into(),
            client_id: "farrier-console".into(),
            redirect_url: "https://farrier.example.com/sign-in/callback".into(),
            ..Oidc::default()
        }
    }

    #[test]
    fn a_wrong_field_is_named() {
        full().check().unwrap();
        Oidc::default().check().unwrap();
        let changed = |change: fn(&mut Oidc)| {
            let mut oidc = full();
            change(&mut oidc);
            oidc.check().unwrap_err()
        };
        for (message, words) in [
            (changed(|one| one.issuer.clear()), "oidc.audience is set and oidc.issuer is empty"),
            (changed(|one| one.issuer = "http://id.example.com".into()), "oidc.issuer"),
            (changed(|one| one.issuer += "/?x=1"), "oidc.issuer has a query"),
            (changed(|one| (one.audience, one.client_id) = Default::default()), "are empty"),
            (changed(|one| one.jwks_url = "http://id.example.com/k".into()), "oidc.jwks_url"),
            (
                changed(|one| {
                    one.jwks_url = "https://id.example.com/k".into();
                    one.jwks_file = "keys.json".into();
                }),
                "keep one",
            ),
            (changed(|one| one.user_claim.clear()), "oidc.user_claim"),
            (changed(|one| one.prefix = "oidc".into()), "oidc.prefix"),
            (changed(|one| one.prefix = "spiffe:".into()), "oidc.prefix"),
            (changed(|one| one.prefix.clear()), "oidc.prefix"),
            (changed(|one| one.algorithms.clear()), "oidc.algorithms"),
            (changed(|one| one.algorithms = vec!["HS256".into()]), "HS256"),
            (changed(|one| one.algorithms = vec!["none".into()]), "none"),
            (changed(|one| one.clock_skew_seconds = 3_600), "oidc.clock_skew_seconds"),
            (changed(|one| one.refresh_seconds = 1), "oidc.refresh_seconds"),
            (changed(|one| one.session_seconds = 86_400), "oidc.session_seconds"),
            (changed(|one| one.client_id.clear()), "oidc.redirect_url is set"),
            (changed(|one| one.redirect_url.clear()), "oidc.redirect_url"),
            (changed(|one| one.redirect_url += "/more"), "leads to another page"),
            (changed(|one| one.redirect_url = "http://f.example/sign-in/callback".into()), "https"),
            (changed(|one| one.scopes.clear()), "oidc.scopes"),
        ] {
            assert!(message.contains(words), "{words}: {message}");
        }
    }
}
