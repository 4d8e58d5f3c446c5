//! Connects hop by hop and verifies each server's key before it sends a secret.
//!
//! Every hop has a time limit for connection and login. A failure here never reached the host's
//! shell, so every fault of this file means that nothing has happened.

use super::hostkey::{HostKey, Trust};
use super::{Endpoint, Settings};
use crate::connect::{ConnectError, connect};
use crate::fault::LocalShortage;
use model::credential::AllowedAddresses;
use model::fault::{Fault, FaultCode, Result};
use russh::client::{self, AuthResult, DisconnectReason, Handle, KeyboardInteractiveAuthResponse};
use russh::keys::{PrivateKey, PrivateKeyWithHashAlg, PublicKeyOrCertificate};
use russh::{MethodKind, Preferred};
use secrecy::{ExposeSecret, SecretString};
use std::borrow::Cow;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;

/// The most rounds of a keyboard-interactive login.
const MAX_QUESTIONS: usize = 4;
/// The number of messages that a channel buffers.
const CHANNEL_MESSAGES: usize = 16;
const WINDOW_BYTES: u32 = 1 << 20;

#[derive(Debug, Clone)]
pub struct Login {
    pub user: String,
    pub proof: LoginSecret,
    /// The addresses that the host's name may resolve to.
    pub allowed: AllowedAddresses,
}

#[derive(Debug, Clone)]
pub enum LoginSecret {
    Password(SecretString),
    /// A private key in OpenSSH or PKCS#8 format: Ed25519 or ECDSA.
    Key {
        pem: SecretString,
        passphrase: Option<SecretString>,
    },
}

#[derive(Debug, Clone)]
pub struct Hop {
    pub endpoint: Endpoint,
    pub login: Login,
    pub trust: Trust,
}

/// The jump hosts in order, then the host.
#[derive(Debug, Clone)]
pub struct Route {
    pub hops: Vec<Hop>,
    pub last: Hop,
}

impl Route {
    pub const MAX_HOPS: usize = 8;

    pub fn direct(last: Hop) -> Self {
        Self { hops: Vec::new(), last }
    }
}

/// A connected host. Dropping it ends the connection; jobs continue.
pub struct Host {
    /// In order; each is reached through the one before.
    links: Vec<HopConnection>,
    pub(super) settings: Settings,
}

pub(super) struct HopConnection {
    pub(super) handle: Handle<ConnectionHandler>,
    endpoint: Endpoint,
    key: HostKey,
}

impl Host {
    pub async fn connect(route: Route, settings: Settings) -> Result<Self> {
        Self::try_connect(route, settings).await.map_err(|(_, fault)| fault)
    }

    /// Like `connect`; a failure has the index of the hop, counted from the first jump host.
    pub async fn try_connect(route: Route, settings: Settings) -> Result<Self, (usize, Fault)> {
        if route.hops.len() > Route::MAX_HOPS {
            let message = format!(
                "the way to {} has more than {} jump hosts",
                route.last.endpoint,
                Route::MAX_HOPS
            );
            return Err((0, Fault::new(FaultCode::NotSupported, message)));
        }
        let mut links: Vec<HopConnection> = Vec::new();
        for hop in route.hops.iter().chain([&route.last]) {
            let made =
                timeout(settings.connect_timeout, connect_hop(links.last(), hop, &settings)).await;
            let made =
                made.unwrap_or_else(|_| Err(too_slow(&hop.endpoint, settings.connect_timeout)));
            links.push(made.map_err(|fault| (links.len(), fault))?);
        }
        Ok(Self { links, settings })
    }

    /// The key of each hop, from the first jump host to the host, for the caller to pin.
    pub fn host_keys(&self) -> Vec<(Endpoint, HostKey)> {
        self.links.iter().map(|link| (link.endpoint.clone(), link.key.clone())).collect()
    }

    /// False once the connection is known to be closed. True proves nothing.
    pub fn is_open(&self) -> bool {
        self.links.iter().all(|link| !link.handle.is_closed())
    }

    /// The connection to the host itself, and its address for faults.
    pub(super) fn last_hop(&self) -> Result<(&Handle<ConnectionHandler>, String)> {
        let none = || Fault::new(FaultCode::HostUnreachable, "there is no connection to any host");
        let link = self.links.last().ok_or_else(none)?;
        Ok((&link.handle, link.endpoint.to_string()))
    }
}

fn too_slow(endpoint: &Endpoint, limit: Duration) -> Fault {
    let message = format!("{endpoint} did not let us in within {} s", limit.as_secs_f32());
    Fault::new(FaultCode::HostUnreachable, message)
}

/// Connects to one server, through the hop before if there is one, and logs in.
async fn connect_hop(
    before: Option<&HopConnection>,
    hop: &Hop,
    settings: &Settings,
) -> Result<HopConnection> {
    let Endpoint { host, port, .. } = &hop.endpoint;
    match before {
        None => {
            let socket = connect(&hop.endpoint.peer(), &hop.login.allowed).await;
            let socket = socket.map_err(|error| match error {
                ConnectError::Io(error) => LocalShortage::of(&error)
                    .map_or_else(|| unreachable(hop, &error), |found| found.fault(&hop.endpoint)),
                ConnectError::NotAllowed(fault) => fault,
            })?;
            // Requests are small; without TCP_NODELAY they are only slower.
            let _ = socket.set_nodelay(true);
            handshake(socket, hop, settings).await
        }
        // The jump host resolves the name, so its address cannot be checked here.
        Some(_) if hop.login.allowed != AllowedAddresses::Any => {
            Err(AllowedAddresses::fault(&hop.endpoint.peer()))
        }
        Some(jump) => {
            let opened =
                jump.handle.channel_open_direct_tcpip(host, u32::from(*port), "127.0.0.1", 0).await;
            let channel = opened.map_err(|error| {
                let message = format!(
                    "{} could not be reached through {}: {error}",
                    hop.endpoint, jump.endpoint
                );
                Fault::new(FaultCode::HostUnreachable, message)
            })?;
            handshake(channel.into_stream(), hop, settings).await
        }
    }
}

/// Exchanges keys over a stream, verifies the host key, and logs in.
async fn handshake<S>(stream: S, hop: &Hop, settings: &Settings) -> Result<HopConnection>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let watch = ConnectionHandler { trust: hop.trust.clone(), notes: Arc::default() };
    let notes = watch.notes.clone();
    let config = Arc::new(config(&hop.trust, settings));
    let met = client::connect_stream(config, stream, watch).await;
    let mut handle = met.map_err(|error| handshake_fault(hop, &notes, &error))?;
    let key = notes.key.get().cloned();
    let key = key.ok_or_else(|| unreachable(hop, &"it showed no host key"))?;
    log_in(&mut handle, hop, &notes).await?;
    Ok(HopConnection { handle, endpoint: hop.endpoint.clone(), key })
}

fn config(trust: &Trust, settings: &Settings) -> client::Config {
    client::Config {
        window_size: WINDOW_BYTES,
        channel_buffer_size: CHANNEL_MESSAGES,
        preferred: Preferred { key: Cow::Owned(trust.algorithms()), ..Preferred::DEFAULT },
        keepalive_interval: Some(settings.keepalive_interval),
        keepalive_max: Settings::KEEPALIVES,
        ..client::Config::default()
    }
}

fn unreachable(hop: &Hop, why: &dyn std::fmt::Display) -> Fault {
    Fault::new(
        FaultCode::HostUnreachable,
        format!("{} could not be reached over SSH: {why}", hop.endpoint),
    )
}

/// The fault of a failed handshake: the key, the algorithms or the connection.
fn handshake_fault(hop: &Hop, notes: &ServerMessages, error: &russh::Error) -> Fault {
    if let Some(key) = notes.key.get().filter(|key| !hop.trust.accepts(key)) {
        return hop.trust.fault(&hop.endpoint.to_string(), key);
    }
    if let russh::Error::NoCommonAlgo { kind, theirs, .. } = error {
        let theirs = theirs.join(", ");
        let message = format!(
            "{} and we have no {kind:?} algorithm in common, it offers {theirs}",
            hop.endpoint
        );
        return Fault::new(FaultCode::NotSupported, message);
    }
    unreachable(hop, error)
}

/// The messages that a server sent outside of channels.
#[derive(Default)]
struct ServerMessages {
    key: OnceLock<HostKey>,
    disconnect_message: OnceLock<String>,
}

/// Records the host key and the disconnect message of a connection.
pub(super) struct ConnectionHandler {
    trust: Trust,
    notes: Arc<ServerMessages>,
}

impl client::Handler for ConnectionHandler {
    type Error = russh::Error;

    async fn check_server_key(
        &mut self,
        key: &PublicKeyOrCertificate,
    ) -> Result<bool, russh::Error> {
        let shown = HostKey::of(&key.public_key());
        let accepted = self.trust.accepts(&shown);
        // A rekeying on the same connection must show the same key.
        Ok(*self.notes.key.get_or_init(|| shown.clone()) == shown && accepted)
    }

    async fn disconnected(
        &mut self,
        reason: DisconnectReason<russh::Error>,
    ) -> Result<(), russh::Error> {
        match reason {
            DisconnectReason::ReceivedDisconnect(info) => {
                // Only the first message counts.
                let _ = self.notes.disconnect_message.set(info.message);
                Ok(())
            }
            DisconnectReason::Error(error) => Err(error),
        }
    }
}

async fn log_in(
    handle: &mut Handle<ConnectionHandler>,
    hop: &Hop,
    notes: &ServerMessages,
) -> Result<()> {
    let user = hop.endpoint.user.as_ref().unwrap_or(&hop.login.user).clone();
    let (means, answer) = match &hop.login.proof {
        LoginSecret::Password(password) => {
            ("a password", log_in_with_password(handle, &user, password).await)
        }
        LoginSecret::Key { pem, passphrase } => {
            let key = private_key(hop, pem, passphrase.as_ref())?;
            // Only an RSA key has a choice of hash.
            let key = PrivateKeyWithHashAlg::new(Arc::new(key), None);
            ("a key", handle.authenticate_publickey(user.clone(), key).await)
        }
    };
    let refused = |why: String| {
        let message = format!("{} refused the login of {user} with {means}: {why}", hop.endpoint);
        Fault::new(FaultCode::LoginRefused, message)
    };
    match answer {
        Ok(AuthResult::Success) => Ok(()),
        Ok(AuthResult::Failure { partial_success: true, .. }) => {
            Err(refused("it is right, but not enough; a second proof is asked for".to_string()))
        }
        Ok(AuthResult::Failure { remaining_methods, .. }) => {
            let ways: Vec<&str> = remaining_methods.iter().map(Into::into).collect();
            Err(refused(format!("it takes {}", ways.join(", "))))
        }
        // A disconnect during a login is a refusal, and the server counts it as a failed attempt.
        Err(error) => Err(match notes.disconnect_message.get() {
            Some(goodbye) => refused(goodbye.clone()),
            None => unreachable(hop, &error),
        }),
    }
}

fn private_key(
    hop: &Hop,
    pem: &SecretString,
    passphrase: Option<&SecretString>,
) -> Result<PrivateKey> {
    usable_key(pem, passphrase).map_err(|why| {
        let message = format!("the private key for {} cannot be used: {why}", hop.endpoint);
        Fault::new(FaultCode::CredentialMissing, message)
    })
}

fn usable_key(pem: &SecretString, passphrase: Option<&SecretString>) -> Result<PrivateKey, String> {
    let passphrase = passphrase.map(|secret| secret.expose_secret());
    let key = russh::keys::decode_secret_key(pem.expose_secret(), passphrase)
        .map_err(|error| error.to_string())?;
    match key.algorithm().is_rsa() {
        true => Err("it is an RSA key; make an Ed25519 or ECDSA key".into()),
        false => Ok(key),
    }
}

/// The public half of a private key, as a line for `authorized_keys`.
pub fn public_key(pem: &SecretString, passphrase: Option<&SecretString>) -> Result<String, String> {
    let key = usable_key(pem, passphrase)?;
    Ok(HostKey::of(key.public_key()).to_string())
}

/// Logs in with a password, if necessary by keyboard-interactive authentication.
async fn log_in_with_password(
    handle: &mut Handle<ConnectionHandler>,
    user: &str,
    password: &SecretString,
) -> Result<AuthResult, russh::Error> {
    let answer = handle.authenticate_password(user, password.expose_secret()).await?;
    let AuthResult::Failure { remaining_methods, .. } = &answer else { return Ok(answer) };
    // If the server checked the password, a second try would count as a second failure.
    if remaining_methods.contains(&MethodKind::Password)
        || !remaining_methods.contains(&MethodKind::KeyboardInteractive)
    {
        return Ok(answer);
    }
    let mut requested = handle.authenticate_keyboard_interactive_start(user, None).await?;
    for _ in 0..MAX_QUESTIONS {
        let prompts = match requested {
            KeyboardInteractiveAuthResponse::Success => return Ok(AuthResult::Success),
            KeyboardInteractiveAuthResponse::Failure { remaining_methods, partial_success } => {
                return Ok(AuthResult::Failure { remaining_methods, partial_success });
            }
            KeyboardInteractiveAuthResponse::InfoRequest { prompts, .. } => prompts,
        };
        // A prompt that echoes its input does not ask for the password.
        let name =
            |echo: bool| if echo { String::new() } else { password.expose_secret().to_string() };
        let words = prompts.iter().map(|prompt| name(prompt.echo)).collect();
        requested = handle.authenticate_keyboard_interactive_respond(words).await?;
    }
    Ok(answer)
}
