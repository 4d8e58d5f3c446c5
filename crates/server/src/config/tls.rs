//! `[tls]` and `[agent_tls]`: the certificates of listeners and of their clients.

use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// Certificates of a listener, as PEM files. They are read again when they change, without a
/// restart. `farrier tls init` makes a first set.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Tls {
    /// The certificate of this server, followed by those of the authorities between it and the
    /// root. Empty: no TLS; in `agent_tls`: that of `tls`.
    pub certificate: PathBuf,
    /// The private key of the certificate. Empty in `agent_tls`: that of `tls`.
    pub key: PathBuf,
    /// The authorities whose client certificates are accepted. Empty: none are asked for.
    pub client_ca: PathBuf,
    /// The revocation lists of those authorities. An authority without a list has no valid client
    /// certificate. Empty: nothing is revoked.
    pub crl: PathBuf,
    /// Whether a client without a certificate is refused.
    pub require_client_certificate: bool,
}

fn is_set(path: &Path) -> bool {
    !path.as_os_str().is_empty()
}

impl Tls {
    pub fn is_on(&self) -> bool {
        is_set(&self.certificate)
    }

    /// The files of the agents' listener: its own, or the certificate of the API. Agents identify
    /// themselves by their sessions, so the API's rules for client certificates do not apply.
    #[must_use]
    pub fn or_certificate_of(&self, shared: &Self) -> Self {
        if self.is_on() {
            return self.clone();
        }
        let (certificate, key) = (shared.certificate.clone(), shared.key.clone());
        Self { certificate, key, ..self.clone() }
    }

    /// Refuses a key without its certificate, which `or_certificate_of` would leave unused.
    pub fn check_own_key(&self, section: &str) -> Result<(), String> {
        match is_set(&self.key) && !self.is_on() {
            false => Ok(()),
            true => Err(format!(
                "{section}.key is set and {section}.certificate is empty; name both or neither"
            )),
        }
    }

    pub fn check(&self, section: &str) -> Result<(), String> {
        let parts = [
            ("key", is_set(&self.key)),
            ("client_ca", is_set(&self.client_ca)),
            ("crl", is_set(&self.crl)),
            ("require_client_certificate", self.require_client_certificate),
        ];
        if !self.is_on()
            && let Some((field, _)) = parts.iter().find(|(_, set)| *set)
        {
            return Err(format!(
                "{section}.{field} is set and {section}.certificate is empty; name the file with \
                 the server's certificate"
            ));
        }
        if self.is_on() && !is_set(&self.key) {
            return Err(format!(
                "{section}.key is empty and {section}.certificate is set; name the file with its \
                 private key"
            ));
        }
        if !is_set(&self.client_ca) {
            let (crl, required) = (is_set(&self.crl), self.require_client_certificate);
            if crl || required {
                let field = if crl { "crl" } else { "require_client_certificate" };
                return Err(format!(
                    "{section}.{field} is set and {section}.client_ca is empty; name the file with \
                     the authorities of the clients"
                ));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_belongs_together_is_asked_for() {
        let full = Tls {
            certificate: "c".into(),
            key: "k".into(),
            client_ca: "a".into(),
            crl: "r".into(),
            require_client_certificate: true,
        };
        full.check("tls").unwrap();
        Tls::default().check("tls").unwrap();
        for (wrong, words) in [
            (Tls { key: PathBuf::new(), ..full.clone() }, "tls.key is empty"),
            (Tls { certificate: PathBuf::new(), ..full.clone() }, "tls.certificate is empty"),
            (Tls { client_ca: PathBuf::new(), ..full.clone() }, "tls.client_ca is empty"),
        ] {
            let message = wrong.check("tls").unwrap_err();
            assert!(message.contains(words), "{message}");
        }
        let agents = Tls::default().or_certificate_of(&full);
        assert_eq!(agents, Tls { certificate: "c".into(), key: "k".into(), ..Tls::default() });
        assert_eq!(full.or_certificate_of(&agents), full);
        let alone = Tls { key: "k".into(), ..Tls::default() };
        let message = alone.check_own_key("agent_tls").unwrap_err();
        assert!(message.contains("agent_tls.certificate is empty"), "{message}");
    }
}
