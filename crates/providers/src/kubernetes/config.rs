//! Reads a kubeconfig: the address of a cluster, its certificate authority, and our user there.
//!
//! Only data in the text itself is used, with one exception: a token that is renewed by other means
//! may be in a file of the folder that the configuration of the server names for them. A user
//! who may set a credential must not be able to read other files of the server, nor to start a
//! program on it. A kubeconfig that disables certificate checks is refused as well. Errors never
//! quote the text: it holds keys.

use super::kubeconfig::{ClusterEntry, Context, Kubeconfig, UserEntry};
use crate::fault::LocalShortage;
use crate::http_client::{Certificate, Endpoint};
use base64::Engine;
use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD};
use http::Uri;
use model::credential::Peer;
use model::fault::{Fault, FaultCode, Result};
use model::time::Timestamp;
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;
use std::fmt;
use std::path::{Path, PathBuf};

/// More than any kubeconfig needs.
const MAX_KUBECONFIG_BYTES: usize = 1024 * 1024;

pub struct Access {
    /// As written in the kubeconfig, for messages.
    pub address: String,
    pub uri: Uri,
    pub roots: RootCertStore,
    pub server_name: Option<String>,
    pub token: Option<Token>,
    pub identity: Option<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)>,
    /// The time when the token or the client certificate expires, whichever is first.
    pub expires_at: Option<Timestamp>,
}

/// A bearer token.
#[derive(Clone)]
pub enum Token {
    Fixed(SecretString),
    /// Renewed by other means, and so read for every request.
    File {
        folder: PathBuf,
        path: PathBuf,
    },
}

/// More than any token needs.
const MAX_TOKEN_BYTES: u64 = 64 * 1024;

/// The reason why a token cannot be read.
#[derive(Debug)]
pub enum TokenError {
    Unusable(String),
    NoResources(LocalShortage),
}

impl fmt::Display for TokenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unusable(why) => f.write_str(why),
            Self::NoResources(shortage) => shortage.fmt(f),
        }
    }
}

impl Token {
    pub fn read(&self) -> Result<SecretString, TokenError> {
        match self {
            Self::Fixed(token) => Ok(token.clone()),
            Self::File { folder, path } => read_token_file(folder, path),
        }
    }
}

/// The links in the path are followed first: only files inside of the folder are read.
fn read_token_file(folder: &Path, path: &Path) -> Result<SecretString, TokenError> {
    use std::io::Read;
    let failed = |what: &Path, error: std::io::Error| match LocalShortage::of(&error) {
        Some(shortage) => TokenError::NoResources(shortage),
        None => TokenError::Unusable(format!("{}: {error}", what.display())),
    };
    let folder = folder.canonicalize().map_err(|error| failed(folder, error))?;
    let real = path.canonicalize().map_err(|error| failed(path, error))?;
    if !real.starts_with(&folder) {
        let message = format!("{} is not in the folder {}", path.display(), folder.display());
        return Err(TokenError::Unusable(message));
    }
    let mut text = String::new();
    let file = std::fs::File::open(&real).map_err(|error| failed(path, error))?;
    file.take(MAX_TOKEN_BYTES).read_to_string(&mut text).map_err(|error| failed(path, error))?;
    match text.trim() {
        "" => Err(TokenError::Unusable(format!("{} is empty", path.display()))),
        token => Ok(token.to_owned().into()),
    }
}

/// `token_folder` is the folder of the server for tokens that are renewed, if it has one.
pub fn read(text: &SecretString, token_folder: Option<&Path>) -> Result<Access> {
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
        token: token_of(user, token_folder)?,
        identity: identity(user)?,
        expires_at: expiry_of(user),
        address,
        uri,
    };
    if access.token.is_none() && access.identity.is_none() {
        return Err(unusable("has neither a token nor a client certificate for its user"));
    }
    Ok(access)
}

/// The server of a kubeconfig. None: it cannot be read.
pub fn server(text: &SecretString) -> Option<Peer> {
    let config = parse(text.expose_secret()).ok()?;
    let address = current_cluster(&config).ok()?.server.as_deref()?;
    Endpoint::parse(address).ok().map(|(endpoint, _)| endpoint.peer())
}

/// The time when a kubeconfig expires. None: it does not say, or cannot be read.
pub fn expiry(text: &SecretString) -> Option<Timestamp> {
    let config = parse(text.expose_secret()).ok()?;
    expiry_of(current_user(&config).ok()?)
}

fn expiry_of(user: &UserEntry) -> Option<Timestamp> {
    let chain = identity(user).ok().flatten().map(|(chain, _)| chain);
    let certificate = chain.and_then(|chain| Certificate::read(chain.first()?).expires_at);
    let token = user.token.as_ref().and_then(|token| token_expiry(token.expose_secret()));
    certificate.into_iter().chain(token).min()
}

/// A token in the text wins over one in a file, as `kubectl` has it.
fn token_of(user: &UserEntry, folder: Option<&Path>) -> Result<Option<Token>> {
    if let Some(token) = &user.token {
        return Ok(Some(Token::Fixed(token.clone())));
    }
    let Some(path) = &user.token_file else { return Ok(None) };
    let Some(folder) = folder else {
        let message = "the kubeconfig has its token in a file (tokenFile), and this server reads none; \
                       name their folder in the configuration (datacenter.token_folder), or put the \
                       token into the kubeconfig: kubectl create token farrier -n farrier";
        return Err(Fault::new(FaultCode::NotSupported, message));
    };
    let token = Token::File { folder: folder.into(), path: path.into() };
    token.read().map_err(|why| unusable(&format!("has a tokenFile that cannot be read: {why}")))?;
    Ok(Some(token))
}

/// The time when a token says that it expires. Those of service accounts are JSON Web Tokens.
fn token_expiry(token: &str) -> Option<Timestamp> {
    #[derive(Deserialize)]
    struct Claims {
        exp: i64,
    }
    let claims = token.split('.').nth(1)?;
    let claims = BASE64_URL_SAFE_NO_PAD.decode(claims).ok()?;
    let Claims { exp } = serde_json::from_slice(&claims).ok()?;
    Some(Timestamp::from_micros(exp.checked_mul(1_000_000)?))
}

fn parse(text: &str) -> Result<Kubeconfig> {
    if text.trim().is_empty() {
        return Err(unusable("is empty"));
    }
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

/// The advice in place of a program that fetches a token.
const INSTEAD_OF_PROGRAM: &str = "Farrier starts no programs for a login. Give it a user of its own: \
    kubectl apply -f deploy/kubernetes-rbac.yaml, then put the token of \
    `kubectl create token farrier -n farrier` or a client certificate into the kubeconfig";

/// Refuses fields that refer to files, programs, other servers or other users.
fn refuse_foreign(cluster: &ClusterEntry, user: &UserEntry) -> Result<()> {
    let program = [(user.exec.is_some(), "exec"), (user.auth_provider.is_some(), "auth-provider")];
    if let Some((_, field)) = program.iter().find(|(present, _)| *present) {
        let message =
            format!("the kubeconfig logs in with a program (`{field}`). {INSTEAD_OF_PROGRAM}");
        return Err(Fault::new(FaultCode::NotSupported, message));
    }
    let foreign = [
        (cluster.certificate_authority.is_some(), "certificate-authority"),
        (cluster.proxy_url.is_some(), "proxy-url"),
        (user.client_certificate.is_some(), "client-certificate"),
        (user.client_key.is_some(), "client-key"),
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
    Fault::new(FaultCode::CredentialMissing, format!("the kubeconfig {why}"))
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
        match read(&config(cluster, user), None) {
            Ok(_) => panic!("{cluster} with {user} was accepted"),
            Err(fault) => fault,
        }
    }

    #[test]
    fn a_complete_kubeconfig_is_accepted() {
        let cluster =
            format!("server: 'https://k:6443', certificate-authority-data: {}", authority());
        let access =
            read(&config(&cluster, "token: hush"), None).unwrap_or_else(|fault| panic!("{fault}"));
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
    fn a_program_is_refused_with_what_to_do_instead() {
        let cluster = format!("server: 'https://k', certificate-authority-data: {}", authority());
        let fault = refused(&cluster, "exec: {command: aws, args: [eks, get-token]}");
        for words in ["`exec`", "kubectl create token farrier", "kubernetes-rbac.yaml"] {
            assert!(fault.message.contains(words), "{words}: {fault}");
        }
        assert!(!fault.message.contains("aws"), "{fault}");
    }

    #[test]
    fn a_token_file_is_read_in_its_folder_only() {
        let folder = tempfile::tempdir().unwrap();
        let secret = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(secret.path(), "hush").unwrap();
        let inside = folder.path().join("token");
        let cluster = format!("server: 'https://k', certificate-authority-data: {}", authority());
        let text = |path: &Path| config(&cluster, &format!("tokenFile: '{}'", path.display()));
        assert!(read(&text(&inside), Some(folder.path())).is_err(), "there is no file yet");
        std::fs::write(&inside, "one\n").unwrap();
        let access = read(&text(&inside), Some(folder.path())).unwrap_or_else(|f| panic!("{f}"));
        let token = access.token.unwrap();
        assert_eq!(token.read().unwrap().expose_secret(), "one");
        // It is renewed.
        std::fs::write(&inside, "two\n").unwrap();
        assert_eq!(token.read().unwrap().expose_secret(), "two");
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(secret.path(), &link).unwrap();
        for path in [secret.path(), &link, &folder.path().join("../../etc/passwd")] {
            let Err(fault) = read(&text(path), Some(folder.path())) else {
                panic!("{} was read", path.display())
            };
            assert_eq!(fault.code, FaultCode::CredentialMissing, "{fault}");
            assert!(!fault.message.contains("hush"), "{fault}");
        }
        let Err(fault) = read(&text(&inside), None) else { panic!("there is no folder") };
        assert!(fault.message.contains("datacenter.token_folder"), "{fault}");
    }

    #[test]
    fn the_first_expiry_is_known() {
        let cluster = format!("server: 'https://k', certificate-authority-data: {}", authority());
        let expiry = |user: &str| {
            read(&config(&cluster, user), None).unwrap_or_else(|f| panic!("{f}")).expires_at
        };
        let claims = BASE64_URL_SAFE_NO_PAD.encode(r#"{"exp":1900000000,"sub":"farrier"}"#);
        let token = format!("token: aGVhZA.{claims}.c2ln");
        assert_eq!(expiry(&token), Some(Timestamp::from_micros(1_900_000_000_000_000)));
        assert_eq!(expiry("token: opaque"), None);
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::default();
        params.not_after = rcgen::date_time_ymd(2030, 1, 1);
        let certificate = params.self_signed(&key).unwrap();
        let user = format!(
            "client-certificate-data: {}, client-key-data: {}",
            BASE64_STANDARD.encode(certificate.pem()),
            BASE64_STANDARD.encode(key.serialize_pem())
        );
        assert_eq!(expiry(&user), Some(Timestamp::from_micros(1_893_456_000_000_000)));
        assert_eq!(expiry(&format!("{user}, {token}")), expiry(&user));
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
            let Err(fault) = read(&text.to_owned().into(), None) else {
                panic!("{text} was accepted")
            };
            assert_eq!(fault.code, FaultCode::CredentialMissing, "{text}");
            assert!(!fault.message.contains("hush"), "{fault}");
        }
    }
}
