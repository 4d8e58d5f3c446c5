//! Reads a kubeconfig: the address of a cluster, its certificate authority, and our user there.
//!
//! Only data in the text itself is used. A kubeconfig may also name files, or programs to run for a
//! token; ours comes out of a sealed credential and must neither read local files nor start a
//! program. One that disables certificate checks is refused as well. Errors never quote the text:
//! it holds keys.

use super::kubeconfig::{ClusterEntry, Context, Kubeconfig, UserEntry};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use http::Uri;
use model::fault::{Fault, FaultCode, Result};
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use secrecy::{ExposeSecret, SecretString};

/// More than any kubeconfig needs.
const MAX_KUBECONFIG_BYTES: usize = 1024 * 1024;

pub struct Access {
    /// As written in the kubeconfig, for messages.
    pub address: String,
    pub uri: Uri,
    pub roots: RootCertStore,
    pub server_name: Option<String>,
    pub token: Option<SecretString>,
    pub identity: Option<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)>,
}

pub fn read(text: &SecretString) -> Result<Access> {
    let config = parse(text.expose_secret())?;
    let cluster = current_cluster(&config)?;
    let user = current_user(&config)?;
    refuse_foreign(cluster, user)?;
    let address = cluster.server.clone().unwrap_or_default();
    let uri =
        address.parse::<Uri>().ok().filter(|uri| uri.scheme_str() == Some("https")).ok_or_else(
            || unusable(&format!("names the server `{address}`, which is no https:// address")),
        )?;
    let access = Access {
        roots: authorities(&address, cluster)?,
        server_name: cluster.tls_server_name.clone(),
        token: user.token.clone(),
        identity: identity(user)?,
        address,
        uri,
    };
    if access.token.is_none() && access.identity.is_none() {
        return Err(unusable("has neither a token nor a client certificate for its user"));
    }
    Ok(access)
}

fn parse(text: &str) -> Result<Kubeconfig> {
    if text.len() > MAX_KUBECONFIG_BYTES {
        return Err(unusable("is longer than any kubeconfig"));
    }
    Kubeconfig::parse(text).map_err(|_| unusable("is not a kubeconfig in YAML"))
}

fn current_context(config: &Kubeconfig) -> Result<&Context> {
    let name =
        config.current_context.as_deref().ok_or_else(|| unusable("has no current-context"))?;
    config
        .context(name)
        .ok_or_else(|| unusable(&format!("has no context `{name}`, which is its current-context")))
}

fn current_cluster(config: &Kubeconfig) -> Result<&ClusterEntry> {
    let name = &current_context(config)?.cluster;
    config.cluster(name).ok_or_else(|| unusable(&format!("has no cluster `{name}`")))
}

fn current_user(config: &Kubeconfig) -> Result<&UserEntry> {
    let name = current_context(config)?.user.clone().unwrap_or_default();
    config.user(&name).ok_or_else(|| unusable(&format!("has no user `{name}`")))
}

/// Refuses fields that refer to files, programs, other servers or other users.
fn refuse_foreign(cluster: &ClusterEntry, user: &UserEntry) -> Result<()> {
    let foreign = [
        (cluster.certificate_authority.is_some(), "certificate-authority"),
        (cluster.proxy_url.is_some(), "proxy-url"),
        (user.client_certificate.is_some(), "client-certificate"),
        (user.client_key.is_some(), "client-key"),
        (user.token_file.is_some(), "tokenFile"),
        (user.exec.is_some(), "exec"),
        (user.auth_provider.is_some(), "auth-provider"),
        (user.username.is_some() || user.password.is_some(), "username"),
        (user.impersonate.is_some() || user.impersonate_groups.is_some(), "as"),
    ];
    let Some((_, field)) = foreign.iter().find(|(present, _)| *present) else { return Ok(()) };
    let message = format!(
        "the kubeconfig uses `{field}`, which is not supported; \
         put tokens, keys and certificates into it as data (`kubectl config view --raw --flatten`)"
    );
    Err(Fault::new(FaultCode::NotSupported, message))
}

fn authorities(address: &str, cluster: &ClusterEntry) -> Result<RootCertStore> {
    if cluster.insecure_skip_tls_verify == Some(true) {
        let message = format!(
            "the kubeconfig says not to check who answers at {address} (insecure-skip-tls-verify); \
             give the cluster's certificate-authority-data instead"
        );
        return Err(Fault::new(FaultCode::IdentityUntrusted, message));
    }
    let Some(data) = &cluster.certificate_authority_data else {
        let message =
            format!("the kubeconfig has no certificate-authority-data to know {address} by");
        return Err(Fault::new(FaultCode::IdentityUntrusted, message));
    };
    let pem = decode("certificate-authority-data", data)?;
    roots(&pem).ok_or_else(|| unusable("has certificate-authority-data that is no certificate"))
}

/// The authorities in a PEM text; `None` when there is none or one is invalid.
pub fn roots(pem: &[u8]) -> Option<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem) {
        roots.add(certificate.ok()?).ok()?;
    }
    (!roots.is_empty()).then_some(roots)
}

type Identity = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

fn identity(user: &UserEntry) -> Result<Option<Identity>> {
    let (chain, key) = match (&user.client_certificate_data, &user.client_key_data) {
        (None, None) => return Ok(None),
        (Some(chain), Some(key)) => (chain, key),
        (Some(_), None) => return Err(unusable("has a client certificate without its key")),
        (None, Some(_)) => return Err(unusable("has a client key without its certificate")),
    };
    let chain = decode("client-certificate-data", chain)?;
    let key = decode("client-key-data", key.expose_secret())?;
    let chain: Option<Vec<_>> = CertificateDer::pem_slice_iter(&chain).map(Result::ok).collect();
    let chain = chain
        .filter(|chain| !chain.is_empty())
        .ok_or_else(|| unusable("has client-certificate-data that is no certificate"))?;
    let key = PrivateKeyDer::from_pem_slice(&key)
        .map_err(|_| unusable("has client-key-data that is no private key"))?;
    Ok(Some((chain, key)))
}

fn decode(field: &str, data: &str) -> Result<Vec<u8>> {
    let packed: String = data.split_whitespace().collect();
    BASE64_STANDARD
        .decode(packed)
        .map_err(|_| unusable(&format!("has {field} that is not in base64")))
}

fn unusable(why: &str) -> Fault {
    Fault::new(FaultCode::CredentialMissing, format!("the credential with the kubeconfig {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(cluster: &str, user: &str) -> SecretString {
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
             contexts: [{{name: c, context: {{cluster: k, user: u}}}}]\n\
             clusters: [{{name: k, cluster: {{{cluster}}}}}]\n\
             users: [{{name: u, user: {{{user}}}}}]\n"
        )
        .into()
    }

    fn authority() -> String {
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate = rcgen::CertificateParams::default().self_signed(&key).unwrap();
        BASE64_STANDARD.encode(certificate.pem())
    }

    fn refused(cluster: &str, user: &str) -> Fault {
        match read(&config(cluster, user)) {
            Ok(_) => panic!("{cluster} with {user} was accepted"),
            Err(fault) => fault,
        }
    }

    #[test]
    fn a_complete_kubeconfig_is_accepted() {
        let cluster =
            format!("server: 'https://k:6443', certificate-authority-data: {}", authority());
        let access =
            read(&config(&cluster, "token: hush")).unwrap_or_else(|fault| panic!("{fault}"));
        assert_eq!(access.address, "https://k:6443");
        assert_eq!(access.roots.len(), 1);
        assert!(access.token.is_some() && access.identity.is_none());
    }

    #[test]
    fn references_to_files_and_programs_are_refused() {
        let ca = authority();
        let cluster = format!("server: 'https://k', certificate-authority-data: {ca}");
        let users = [
            "tokenFile: /etc/shadow",
            "exec: {command: id, apiVersion: client.authentication.k8s.io/v1}",
            "auth-provider: {name: gcp, config: {}}",
            "client-key: /etc/key",
            "client-certificate: /etc/cert",
            "username: u, password: p",
            "token: t, as: root",
        ];
        for user in users {
            assert_eq!(refused(&cluster, user).code, FaultCode::NotSupported, "{user}");
        }
        for more in ["proxy-url: 'http://p'", "certificate-authority: /etc/ca"] {
            let fault = refused(&format!("{cluster}, {more}"), "token: t");
            assert_eq!(fault.code, FaultCode::NotSupported, "{more}");
        }
    }

    #[test]
    fn a_server_without_certificate_check_is_refused() {
        let bare = refused("server: 'https://k'", "token: t");
        assert_eq!(bare.code, FaultCode::IdentityUntrusted);
        let blind = refused("server: 'https://k', insecure-skip-tls-verify: true", "token: t");
        assert_eq!(blind.code, FaultCode::IdentityUntrusted);
    }

    #[test]
    fn errors_do_not_quote_the_kubeconfig() {
        let ca = authority();
        let cluster = format!("server: 'https://k', certificate-authority-data: {ca}");
        let cases = [
            (cluster.as_str(), "client-key-data: aHVzaA=="),
            (cluster.as_str(), "client-certificate-data: '%%', client-key-data: aHVzaA=="),
            (cluster.as_str(), "{}"),
            ("server: 'http://k', certificate-authority-data: x", "token: hush"),
            ("server: 'https://k', certificate-authority-data: aHVzaA==", "token: hush"),
        ];
        for (cluster, user) in cases {
            let fault = refused(cluster, if user == "{}" { "" } else { user });
            assert_eq!(fault.code, FaultCode::CredentialMissing, "{fault}");
            assert!(!fault.message.contains("hush") && !fault.message.contains("aHVz"), "{fault}");
        }
        for text in ["", "users: [hush", "hush: [", "current-context: nowhere"] {
            let Err(fault) = read(&text.to_owned().into()) else { panic!("{text} was accepted") };
            assert_eq!(fault.code, FaultCode::CredentialMissing, "{text}");
            assert!(!fault.message.contains("hush"), "{fault}");
        }
    }
}
