//! The cookies of browsers.
//!
//! Browsers do not keep cookies of the ports of a host apart. So the names have a part that belongs
//! to the installation: two servers on one host do not end each other's sessions, and the replicas
//! of one installation, at whatever ports, know the same session.

use axum::http::header::{self, HeaderMap};
use std::sync::Arc;

/// The names and attributes of the cookies of one installation.
#[derive(Debug, Clone)]
pub(crate) struct Cookies {
    session: Arc<str>,
    flow: Arc<str>,
    /// Browsers send them only over TLS.
    secure: bool,
}

impl Cookies {
    /// `installation` is text that may be a part of a name.
    pub fn new(installation: &str, secure: bool) -> Self {
        // The prefix tells browsers that no other host and no page without TLS may set it.
        let prefix = if secure { "__Host-" } else { "" };
        let name = |what: &str| format!("{prefix}farrier_{what}_{installation}").into();
        Self { session: name("session"), flow: name("sign_in"), secure }
    }

    /// The session of a browser.
    pub(super) fn session<'a>(&self, headers: &'a HeaderMap) -> Option<&'a str> {
        find(headers, &self.session)
    }

    /// A page of another site cannot make a browser send it, and no script can read it.
    pub(super) fn set_session(&self, value: &str, seconds: u64) -> String {
        self.set(&self.session, "Strict", (value, seconds))
    }

    /// The sign-in with the identity provider that a browser has begun.
    pub(super) fn flow<'a>(&self, headers: &'a HeaderMap) -> Option<&'a str> {
        find(headers, &self.flow)
    }

    /// Other than the session it comes back with the browser from the provider's site.
    pub(super) fn set_flow(&self, value: &str, seconds: u64) -> String {
        self.set(&self.flow, "Lax", (value, seconds))
    }

    fn set(&self, name: &str, same_site: &str, (value, seconds): (&str, u64)) -> String {
        let secure = if self.secure { "; Secure" } else { "" };
        format!("{name}={value}; Path=/; HttpOnly; SameSite={same_site}; Max-Age={seconds}{secure}")
    }
}

fn find<'a>(headers: &'a HeaderMap, wanted: &str) -> Option<&'a str> {
    let cookies = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut pairs =
        cookies.flat_map(|value| value.split(';')).filter_map(|one| one.split_once('='));
    pairs.find(|(name, _)| name.trim() == wanted).map(|(_, value)| value.trim())
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    #[test]
    fn a_session_is_one_cookie_among_others() {
        let cookies = Cookies::new("ab12", false);
        for (values, found) in [
            (vec!["farrier_session_ab12=abc"], Some("abc")),
            (vec!["a=b; farrier_session_ab12=abc; c=d"], Some("abc")),
            (vec!["a=b", "farrier_session_ab12=x"], Some("x")),
            (vec!["xfarrier_session_ab12=abc"], None),
            (vec!["farrier_session_ab12"], None),
            // Of another server on this host.
            (vec!["farrier_session_cd34=abc; farrier_session=abc"], None),
        ] {
            let mut headers = HeaderMap::new();
            for value in &values {
                headers.append("cookie", HeaderValue::from_static(value));
            }
            assert_eq!(cookies.session(&headers), found, "{values:?}");
        }
    }

    #[test]
    fn under_tls_no_other_host_can_set_them() {
        let cookies = Cookies::new("ab12", true);
        for set in [cookies.set_session("x", 60), cookies.set_flow("x", 60)] {
            assert!(set.starts_with("__Host-farrier_"), "{set}");
            // A browser takes the prefix only with these, and without a domain.
            assert!(set.ends_with("; Secure") && set.contains("; Path=/;"), "{set}");
            assert!(!set.contains("Domain"), "{set}");
        }
        let plain = Cookies::new("ab12", false).set_session("x", 60);
        assert_eq!(plain, "farrier_session_ab12=x; Path=/; HttpOnly; SameSite=Strict; Max-Age=60");
    }
}
