//! The identity of a client certificate: exactly one, by a SPIFFE ID or by the subject.

use super::{AuthMethod, Principal, check_foreign_name};

const SPIFFE: &str = "spiffe://";
/// The longest name of a trust domain in a SPIFFE ID.
const MAX_TRUST_DOMAIN: usize = 255;

/// The names in a certificate that was verified.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CertificateNames {
    /// The URIs among the alternative names of the subject.
    pub uris: Vec<String>,
    pub common_names: Vec<String>,
    pub organizations: Vec<String>,
}

impl CertificateNames {
    /// The user of the certificate. A certificate with a URI is known by that SPIFFE ID alone; any
    /// other by its common name, with its organizations as groups. The error says what is wrong
    /// with the certificate.
    pub fn principal(&self) -> Result<Principal, String> {
        let (user, groups) = match (self.uris.as_slice(), self.common_names.as_slice()) {
            ([uri], _) => {
                check_spiffe_id(uri)?;
                (uri, [].as_slice())
            }
            ([], [name]) => {
                check_subject("common name", name)?;
                (name, self.organizations.as_slice())
            }
            ([], []) => {
                return Err("has neither a SPIFFE ID nor a common name; issue one with a URI \
                            spiffe://… or a common name"
                    .into());
            }
            ([], names) => {
                let count = names.len();
                return Err(format!("has {count} common names; issue one with exactly one"));
            }
            (uris, _) => {
                let count = uris.len();
                return Err(format!("has {count} URIs; issue one with exactly one"));
            }
        };
        groups.iter().try_for_each(|group| check_subject("organization", group))?;
        Ok(Principal {
            user: user.clone(),
            groups: groups.to_vec(),
            method: AuthMethod::Certificate,
            token_id: None,
        })
    }
}

/// A name with a colon could be taken for a SPIFFE ID or for a user of the identity provider.
fn check_subject(part: &str, name: &str) -> Result<(), String> {
    check_foreign_name(name).map_err(|problem| format!("has a {part} that {problem}"))?;
    match name.contains(':') {
        false => Ok(()),
        true => Err(format!("has a colon in its {part}, which only other kinds of users have")),
    }
}

/// Checks a SPIFFE ID by the rules of its specification, so that one identity has one spelling.
fn check_spiffe_id(uri: &str) -> Result<(), String> {
    let wrong = |why: &str| Err(format!("has a URI that is no SPIFFE ID: {why}"));
    let Some(rest) = uri.strip_prefix(SPIFFE) else {
        return wrong("it does not begin with spiffe://");
    };
    check_foreign_name(uri).map_err(|problem| format!("has a SPIFFE ID that {problem}"))?;
    let (domain, path) = rest.split_once('/').map_or((rest, None), |(d, p)| (d, Some(p)));
    let small = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-._".contains(c);
    if domain.is_empty() || domain.len() > MAX_TRUST_DOMAIN || !domain.chars().all(small) {
        return wrong("its trust domain has other characters than a-z, 0-9, '.', '-' and '_'");
    }
    let plain = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
    let segment = |one: &str| !["", ".", ".."].contains(&one) && one.chars().all(plain);
    if path.is_some_and(|path| !path.split('/').all(segment)) {
        return wrong("its path has an empty segment, '.', '..' or a reserved character");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(uris: &[&str], common_names: &[&str], organizations: &[&str]) -> CertificateNames {
        let all = |texts: &[&str]| texts.iter().map(|text| text.to_string()).collect();
        CertificateNames {
            uris: all(uris),
            common_names: all(common_names),
            organizations: all(organizations),
        }
    }

    #[test]
    fn a_certificate_has_exactly_one_identity() {
        let long = format!("spiffe://example.org/{}", "a".repeat(200));
        let spiffe = "spiffe://example.org/ns/ops/sa/farrier";
        for (names, user, groups) in [
            (names(&[spiffe], &[], &[]), spiffe, vec![]),
            // The subject beside a SPIFFE ID is no second identity.
            (names(&[spiffe], &["root"], &["admins"]), spiffe, vec![]),
            (names(&["spiffe://example.org"], &[], &[]), "spiffe://example.org", vec![]),
            (names(&[], &["ada"], &["ops", "night"]), "ada", vec!["ops", "night"]),
            (names(&[], &["Ada Löv"], &[]), "Ada Löv", vec![]),
        ] {
            let found = names.principal().unwrap();
            assert_eq!((found.user.as_str(), found.method), (user, AuthMethod::Certificate));
            assert_eq!(
                (found.groups, found.token_id),
                (groups.iter().map(|g| g.to_string()).collect(), None)
            );
        }
        for (names, words) in [
            (names(&[], &[], &["ops"]), "neither a SPIFFE ID nor a common name"),
            (names(&[spiffe, "spiffe://example.org/b"], &["ada"], &[]), "2 URIs"),
            (names(&[], &["ada", "bob"], &[]), "2 common names"),
            (names(&["https://example.org/a"], &["ada"], &[]), "no SPIFFE ID"),
            (names(&["SPIFFE://example.org/a"], &[], &[]), "no SPIFFE ID"),
            (names(&["spiffe://"], &[], &[]), "trust domain"),
            (names(&["spiffe://Example.org/a"], &[], &[]), "trust domain"),
            (names(&["spiffe://example.org:80/a"], &[], &[]), "trust domain"),
            (names(&["spiffe://u@example.org/a"], &[], &[]), "trust domain"),
            (names(&["spiffe://example.org/"], &[], &[]), "path"),
            (names(&["spiffe://example.org/a/../b"], &[], &[]), "path"),
            (names(&["spiffe://example.org/a//b"], &[], &[]), "path"),
            (names(&["spiffe://example.org/a?b"], &[], &[]), "path"),
            (names(&["spiffe://example.org/a%2f"], &[], &[]), "path"),
            (names(&[&long], &[], &[]), "bytes long"),
            (names(&[], &["oidc:ada"], &[]), "colon in its common name"),
            (names(&[], &["spiffe://example.org/a"], &[]), "colon in its common name"),
            (names(&[], &["ada"], &["oidc:ops"]), "colon in its organization"),
            (names(&[], &[""], &[]), "common name that is empty"),
            (names(&[], &["a\nb"], &[]), "control character"),
            (names(&[], &[" ada"], &[]), "blank"),
            (names(&[], &["ada"], &[""]), "organization that is empty"),
        ] {
            let problem = names.principal().unwrap_err();
            assert!(problem.contains(words), "{names:?}: {problem}");
        }
    }
}
