//! API tokens, and the short-lived tokens of browsers that derive from them. Farrier stores the
//! hash of a token; the token itself is shown once.

use super::{AuthMethod, Principal};
use crate::refusal::Refusal;
use crate::time::Timestamp;
use std::time::Duration;

/// Every API token begins with it, so that secret scanners recognise one.
pub const TOKEN_PREFIX: &str = "farrier_pat_";

/// The longest lifetime of a token that has one.
const MAX_LIFETIME: Duration = Duration::from_secs(10 * 366 * 24 * 3600);
const MIN_LIFETIME: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenKind {
    /// A token for the API.
    Api,
    /// The code of a sign-in link. It opens one session and nothing else.
    SignIn,
    /// The cookie of a signed-in browser.
    Session,
}

impl TokenKind {
    pub const ALL: [Self; 3] = [Self::Api, Self::SignIn, Self::Session];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Api => "api",
            Self::SignIn => "sign-in",
            Self::Session => "session",
        }
    }

    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == word)
    }
}

/// A token as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenRecord {
    pub id: String,
    pub kind: TokenKind,
    /// The API token that a sign-in code or a session derives from. It has the same rights, and
    /// ends with it.
    pub parent: Option<String>,
    /// The user that the token stands for.
    pub user: String,
    /// The groups of that user. Only a session that the identity provider has opened has some.
    pub groups: Vec<String>,
    pub description: String,
    pub created_at: Timestamp,
    pub created_by: String,
    /// None: it does not expire.
    pub expires_at: Option<Timestamp>,
    pub revoked_at: Option<Timestamp>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenState {
    Valid,
    Expired,
    Revoked,
}

impl TokenState {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Valid => "valid",
            Self::Expired => "expired",
            Self::Revoked => "revoked",
        }
    }
}

impl TokenRecord {
    /// The principal that the token authenticates. A session acts as the token it derives from.
    pub fn principal(&self) -> Principal {
        let method = match self.kind {
            TokenKind::Api => AuthMethod::Token,
            TokenKind::SignIn | TokenKind::Session => AuthMethod::Session,
        };
        let token_id = self.parent.clone().unwrap_or_else(|| self.id.clone());
        Principal {
            user: self.user.clone(),
            groups: self.groups.clone(),
            method,
            token_id: Some(token_id),
        }
    }

    pub fn state(&self, now: Timestamp) -> TokenState {
        match (self.revoked_at, self.expires_at) {
            (Some(_), _) => TokenState::Revoked,
            (None, Some(end)) if end <= now => TokenState::Expired,
            (None, Some(_) | None) => TokenState::Valid,
        }
    }
}

/// Checks the lifetime of a new token.
pub fn check_lifetime(field: &str, lifetime: Duration) -> Result<(), Refusal> {
    if (MIN_LIFETIME..=MAX_LIFETIME).contains(&lifetime) {
        return Ok(());
    }
    let problem = format!("is {} s", lifetime.as_secs());
    Err(Refusal::invalid(field, problem, "give 1 minute to 10 years, or leave it out"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_valid_until_it_expires_or_is_revoked() {
        let at = Timestamp::from_micros;
        let token = |expires_at: Option<i64>, revoked_at: Option<i64>| TokenRecord {
            id: "tok-1".into(),
            kind: TokenKind::Api,
            parent: None,
            user: "ada".into(),
            groups: Vec::new(),
            description: String::new(),
            created_at: at(0),
            created_by: "root".into(),
            expires_at: expires_at.map(at),
            revoked_at: revoked_at.map(at),
        };
        for (token, state) in [
            (token(None, None), TokenState::Valid),
            (token(Some(11), None), TokenState::Valid),
            (token(Some(10), None), TokenState::Expired),
            (token(None, Some(3)), TokenState::Revoked),
            (token(Some(5), Some(3)), TokenState::Revoked),
        ] {
            assert_eq!(token.state(at(10)), state, "{token:?}");
        }
    }

    #[test]
    fn a_lifetime_has_limits() {
        let minutes = |count: u64| Duration::from_secs(count * 60);
        assert!(check_lifetime("lifetime", minutes(1)).is_ok());
        assert!(check_lifetime("lifetime", Duration::ZERO).is_err());
        assert!(check_lifetime("lifetime", minutes(60 * 24 * 366 * 20)).is_err());
    }
}
