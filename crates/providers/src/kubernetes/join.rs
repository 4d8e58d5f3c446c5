//! The means by which a machine joins a kubeadm cluster: the address of the API, a token that
//! expires, and the fingerprint of the cluster's certificate authority.
//!
//! The token is a secret in `kube-system` that the cluster removes when it expires. It is generated
//! first, so that the caller can store its id, and created last, after everything else that can
//! fail.

use super::client::ApiRequest;
use super::fault::ApiCall;
use super::kubeconfig::Kubeconfig;
use super::object::{ConfigMap, Object};
use super::{Cluster, check_name, config, fault};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use http::Uri;
use jiff::{SignedDuration, Timestamp};
use model::fault::{Fault, FaultCode, Result};
use ring::rand::{SecureRandom, SystemRandom};
use secrecy::{ExposeSecret, SecretString};
use serde_json::{Value, json};
use std::time::Duration;

const INFO_NAMESPACE: &str = "kube-public";
const INFO: &str = "cluster-info";
const TOKEN_NAMESPACE: &str = "kube-system";
const TOKEN_SECRETS: &str = "/api/v1/namespaces/kube-system/secrets";
const TOKEN_PREFIX: &str = "bootstrap-token-";
const TOKEN_TYPE: &str = "bootstrap.kubernetes.io/token";
/// The group that kubeadm allows to ask for a node's certificate.
const TOKEN_GROUP: &str = "system:bootstrappers:kubeadm:default-node-token";
const ID_CHARS: usize = 6;
const SECRET_CHARS: usize = 16;
const ALPHABET: &[u8; 36] = b"abcdefghijklmnopqrstuvwxyz0123456789";
/// The largest multiple of the alphabet's length in a byte; larger values would bias the choice.
const FAIR_BYTES: u8 = 252;
/// Upper limit of random bytes per word. One in 64 is discarded, so it is never reached.
const MAX_DRAWS: usize = 1024;
/// A join takes minutes: a token valid for more than a day is an unneeded risk.
const MAX_TTL: Duration = Duration::from_secs(24 * 60 * 60);
const HTTPS_PORT: u16 = 443;

/// All that `kubeadm join` needs.
#[derive(Debug, Clone)]
pub struct JoinMaterial {
    /// `HOST:PORT` of the API.
    pub server: String,
    /// The public half; the token is deleted by it.
    pub token_id: String,
    pub token: SecretString,
    /// The authority's public keys, as `sha256:…`.
    pub ca_hashes: Vec<String>,
    /// The authority's certificates, PEM in base64.
    pub ca_data: String,
    pub expires_at: Timestamp,
}

/// A generated token that does not exist in the cluster yet.
#[derive(Debug, Clone)]
pub struct Token {
    /// The public half.
    pub id: String,
    secret: SecretString,
}

/// The content of the ConfigMap `cluster-info`.
struct Info {
    server: String,
    ca_hashes: Vec<String>,
    ca_data: String,
}

impl Cluster {
    /// Generates a token and sends nothing: the caller stores its id before it is created.
    pub fn draw_token(&self) -> Result<Token> {
        let (id, secret) = (self.random(ID_CHARS)?, self.random(SECRET_CHARS)?);
        Ok(Token { id, secret: secret.into() })
    }

    /// Reads the cluster's data and creates the token with the lifetime `ttl`.
    pub async fn join_material(&self, token: &Token, ttl: Duration) -> Result<JoinMaterial> {
        let lifetime =
            SignedDuration::try_from(ttl).ok().filter(|_| !ttl.is_zero() && ttl <= MAX_TTL);
        let Some(lifetime) = lifetime else {
            let message =
                format!("a join token lives for up to {MAX_TTL:?}, and cannot for {ttl:?}");
            return Err(Fault::new(FaultCode::NotSupported, message));
        };
        let Info { server, ca_hashes, ca_data } = self.cluster_info().await?;
        // Kubernetes reads whole seconds.
        let now = Timestamp::from_second(Timestamp::now().as_second()).unwrap_or_default();
        let expires_at = now.saturating_add(lifetime).unwrap_or(now);
        let (id, secret) = (&token.id, token.secret.expose_secret());
        if !self.create_token(id, secret, expires_at).await? {
            let message = format!("{} has a token of the id {id} that was drawn", self.address);
            return Err(Fault::new(FaultCode::EffectFailed, message));
        }
        let token = SecretString::from(format!("{id}.{secret}"));
        let token_id = id.clone();
        Ok(JoinMaterial { server, token_id, token, ca_hashes, ca_data, expires_at })
    }

    /// Removes a token. An absent one counts as removed.
    pub async fn delete_token(&self, token_id: &str) -> Result<()> {
        let name = format!("{TOKEN_PREFIX}{token_id}");
        check_name("token", &name)?;
        self.delete(TOKEN_SECRETS, &ApiCall::new("delete", "secrets in kube-system", &name)).await
    }

    /// `HOST:PORT` of the API, as the hosts of the cluster know it.
    pub async fn join_address(&self) -> Result<String> {
        Ok(self.cluster_info().await?.server)
    }

    async fn cluster_info(&self) -> Result<Info> {
        let call = ApiCall::new("get", "configmaps in kube-public", INFO);
        let path = format!("/api/v1/namespaces/{INFO_NAMESPACE}/configmaps/{INFO}");
        let odd = |why: &str| {
            let message = format!("{} has a {INFO} in {INFO_NAMESPACE} that {why}", self.address);
            Fault::new(FaultCode::NotSupported, message)
        };
        let found = self.send_opt::<ConfigMap>(&call, &ApiRequest::get(path)).await?;
        let Some(map) = found else {
            let message = format!(
                "{} has no {INFO} in {INFO_NAMESPACE}; only a cluster made with kubeadm can be joined this way",
                self.address
            );
            return Err(Fault::new(FaultCode::NotSupported, message));
        };
        let text = map.data.and_then(|mut data| data.remove("kubeconfig"));
        let text = text.ok_or_else(|| odd("holds no kubeconfig"))?;
        let config = Kubeconfig::parse(&text).map_err(|_| odd("cannot be read"))?;
        let cluster = config.first_cluster().ok_or_else(|| odd("names no cluster"))?;
        let server = cluster.server.as_deref().and_then(host_and_port);
        let server = server.ok_or_else(|| odd("names no server as https://HOST:PORT"))?;
        let pem = cluster.certificate_authority_data.as_deref().and_then(|data| {
            BASE64_STANDARD.decode(data.split_whitespace().collect::<String>()).ok()
        });
        let unreadable = || odd("has no readable authority");
        let pem = pem.ok_or_else(unreadable)?;
        let ca_hashes = ca_hashes(&pem).ok_or_else(unreadable)?;
        Ok(Info { server, ca_hashes, ca_data: BASE64_STANDARD.encode(pem) })
    }

    /// Creates the token's secret. False when the id exists already.
    async fn create_token(&self, id: &str, secret: &str, expires_at: Timestamp) -> Result<bool> {
        let name = format!("{TOKEN_PREFIX}{id}");
        let call = ApiCall::new("create", "secrets in kube-system", &name);
        let body = token_secret(&name, id, secret, expires_at);
        match self.exchange(&call, &ApiRequest::create(TOKEN_SECRETS, &body)).await? {
            Err(status) if status.is_already_exists() => Ok(false),
            Err(status) => Err(self.refused(&call, status)),
            // The text is not quoted: it has the secret in it.
            Ok(answer) if is_secret(&answer, &name) => Ok(true),
            Ok(_) => Err(fault::garbled(&self.address, &call, "something else than that secret")),
        }
    }

    fn random(&self, chars: usize) -> Result<String> {
        random(chars).ok_or_else(|| {
            let message = format!(
                "no token could be made for {}: this computer gave no random numbers",
                self.address
            );
            Fault::new(FaultCode::EffectFailed, message)
        })
    }
}

fn is_secret(answer: &str, name: &str) -> bool {
    serde_json::from_str::<Object>(answer)
        .is_ok_and(|object| object.metadata.name.as_deref() == Some(name))
}

fn token_secret(name: &str, id: &str, secret: &str, expires_at: Timestamp) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": { "name": name, "namespace": TOKEN_NAMESPACE },
        "type": TOKEN_TYPE,
        "stringData": {
            "token-id": id,
            "token-secret": secret,
            "expiration": expires_at.to_string(),
            "usage-bootstrap-authentication": "true",
            "usage-bootstrap-signing": "true",
            "auth-extra-groups": TOKEN_GROUP,
            "description": "Made by Farrier for one machine to join.",
        },
    })
}

fn random(chars: usize) -> Option<String> {
    let source = SystemRandom::new();
    let mut name = String::new();
    for _ in 0..MAX_DRAWS {
        if name.len() == chars {
            return Some(name);
        }
        let mut byte = [0];
        source.fill(&mut byte).ok()?;
        let [byte] = byte;
        if byte < FAIR_BYTES {
            name.push(char::from(ALPHABET[usize::from(byte) % ALPHABET.len()]));
        }
    }
    None
}

/// `HOST:PORT` of an address. It goes into a shell command, so other characters are refused.
fn host_and_port(server: &str) -> Option<String> {
    let uri: Uri = server.parse().ok()?;
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | ':' | '[' | ']');
    let bare = uri.scheme_str() == Some("https") && uri.path().trim_end_matches('/').is_empty();
    let host =
        uri.host().filter(|host| bare && !host.starts_with('-') && host.chars().all(plain))?;
    Some(format!("{host}:{}", uri.port_u16().unwrap_or(HTTPS_PORT)))
}

/// The fingerprints of the public keys of all authorities in a PEM text.
fn ca_hashes(pem: &[u8]) -> Option<Vec<String>> {
    let roots = config::roots(pem)?;
    Some(roots.roots.iter().map(|root| key_hash(&root.subject_public_key_info)).collect())
}

/// The hash of a SubjectPublicKeyInfo, whose outer DER sequence header the parser strips.
fn key_hash(content: &[u8]) -> String {
    let mut hash = ring::digest::Context::new(&ring::digest::SHA256);
    hash.update(&der_sequence_header(content.len()));
    hash.update(content);
    let digits: String = hash.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{digits}")
}

fn der_sequence_header(length: usize) -> Vec<u8> {
    const SEQUENCE: u8 = 0x30;
    match u8::try_from(length) {
        Ok(short) if short < 0x80 => vec![SEQUENCE, short],
        _ => {
            let bytes: Vec<u8> =
                length.to_be_bytes().into_iter().skip_while(|byte| *byte == 0).collect();
            // A length has at most eight bytes, so their count fits seven bits.
            let count = 0x80 | u8::try_from(bytes.len()).unwrap_or_default();
            [vec![SEQUENCE, count], bytes].concat()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::PublicKeyData;
    use std::collections::BTreeSet;

    #[test]
    fn a_token_is_drawn_evenly_from_its_alphabet() {
        let drawn: Vec<String> = (0..200).map(|_| random(SECRET_CHARS).unwrap()).collect();
        assert!(drawn.iter().all(|name| name.len() == SECRET_CHARS));
        let letters: BTreeSet<char> = drawn.iter().flat_map(|name| name.chars()).collect();
        assert_eq!(letters.len(), ALPHABET.len());
        assert_eq!(drawn.iter().collect::<BTreeSet<_>>().len(), drawn.len());
        assert_eq!(usize::from(FAIR_BYTES) % ALPHABET.len(), 0);
        assert_eq!(random(MAX_DRAWS + 1), None);
    }

    #[test]
    fn the_fingerprint_is_over_the_whole_key() {
        for algorithm in [&rcgen::PKCS_ECDSA_P256_SHA256, &rcgen::PKCS_ED25519] {
            let key = rcgen::KeyPair::generate_for(algorithm).unwrap();
            let certificate = rcgen::CertificateParams::default().self_signed(&key).unwrap();
            let digest =
                ring::digest::digest(&ring::digest::SHA256, &key.subject_public_key_info());
            let desired: String =
                digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
            let hashes = ca_hashes(certificate.pem().as_bytes()).unwrap();
            assert_eq!(hashes, [format!("sha256:{desired}")]);
        }
        assert_eq!(ca_hashes(b"no certificate"), None);
    }

    #[test]
    fn a_long_key_has_a_long_header() {
        assert_eq!(der_sequence_header(0x7f), [0x30, 0x7f]);
        assert_eq!(der_sequence_header(0x80), [0x30, 0x81, 0x80]);
        assert_eq!(der_sequence_header(290), [0x30, 0x82, 0x01, 0x22]);
    }

    #[test]
    fn a_server_is_a_host_and_a_port() {
        let good = [
            ("https://10.0.0.1:6443", "10.0.0.1:6443"),
            ("https://k8s.example/", "k8s.example:443"),
            ("https://[fd00::1]:6443", "[fd00::1]:6443"),
        ];
        for (server, desired) in good {
            assert_eq!(host_and_port(server).as_deref(), Some(desired));
        }
        for bad in ["http://k", "k:6443", "https://k/path", "https://$(id)", "https://-k", ""] {
            assert_eq!(host_and_port(bad), None, "{bad}");
        }
    }

    #[test]
    fn the_token_is_not_shown() {
        let material = JoinMaterial {
            server: "k:6443".into(),
            token_id: "abcdef".into(),
            token: "abcdef.hush".into(),
            ca_hashes: vec!["sha256:00".into(), "sha256:01".into()],
            ca_data: "Q0E=".into(),
            expires_at: Timestamp::UNIX_EPOCH,
        };
        assert!(!format!("{material:?}").contains("hush"));
    }
}
