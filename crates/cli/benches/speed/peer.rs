//! BMCs that answer at once, in their own process so that they cost the server nothing: a few
//! resources of realistic size, a login, and TLS. All of 127.0.0.0/8 is loopback, so each BMC has
//! its own address on one port.

use crate::{Outcome, Wrong, fleet};
use clap::ValueEnum;
use rcgen::{CertificateParams, KeyPair};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// The option that starts the benchmark program as these BMCs.
const OPTION: &str = "--serve-bmcs";
pub const SYSTEM: &str = "/redfish/v1/Systems/1";
const CHASSIS: &str = "/redfish/v1/Chassis/1";
const SESSIONS: &str = "/redfish/v1/SessionService/Sessions";
const LOOPBACK: &[u8] = b"lo";
const NAME: &str = "bmc.bench";
const BACKLOG: u32 = 4_096;
const MAX_HEAD_BYTES: usize = 16 * 1024;
/// A real System resource has about this many bytes, most of them unused.
const FILLING: usize = 2_500;
const FANS: usize = 12;

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Scheme {
    Http,
    Https,
}

impl Scheme {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
        }
    }
}

/// The BMCs as a child process.
pub struct Peer {
    child: Child,
    scheme: Scheme,
    port: u16,
    certificate: PathBuf,
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Peer {
    pub fn start(scheme: Scheme, folder: &Path) -> Outcome<Self> {
        let key = KeyPair::generate()?;
        let signed = CertificateParams::new(vec![NAME.into()])?.self_signed(&key)?;
        let certificate = folder.join("bmc.der");
        std::fs::write(&certificate, signed.der())?;
        std::fs::write(certificate.with_extension("key"), key.serialize_der())?;
        let mut command = Command::new(std::env::current_exe()?);
        command.args([OPTION, scheme.as_str(), "--certificate"]).arg(&certificate);
        let (child, url) = fleet::first_line(command)?.ok_or("the BMCs did not start")?;
        let port = url.rsplit(':').next().unwrap_or_default().parse()?;
        Ok(Self { child, scheme, port, certificate })
    }

    /// The address of a BMC, counted from zero.
    pub fn address(&self, index: usize) -> SocketAddr {
        let [_, _, high, low] = u32::try_from(index).unwrap_or(u32::MAX).to_be_bytes();
        SocketAddr::from((Ipv4Addr::new(127, 1, high, low), self.port))
    }

    pub fn url(&self, index: usize) -> String {
        format!("{}://{}", self.scheme.as_str(), self.address(index))
    }

    /// A minimal client for the comparison.
    pub fn caller(&self) -> Outcome<Caller> {
        let tls = match self.scheme {
            Scheme::Http => None,
            Scheme::Https => {
                let mut roots = RootCertStore::empty();
                roots.add(CertificateDer::from(std::fs::read(&self.certificate)?))?;
                let builder = ClientConfig::builder_with_provider(crypto());
                let builder = builder.with_safe_default_protocol_versions()?;
                let config = builder.with_root_certificates(roots).with_no_client_auth();
                Some(TlsConnector::from(Arc::new(config)))
            }
        };
        Ok(Caller { tls })
    }
}

fn crypto() -> Arc<tokio_rustls::rustls::crypto::CryptoProvider> {
    Arc::new(tokio_rustls::rustls::crypto::ring::default_provider())
}

#[derive(Clone)]
pub struct Caller {
    tls: Option<TlsConnector>,
}

impl Caller {
    /// Sends one request over a new connection.
    pub async fn get(&self, address: &SocketAddr, path: &str) -> Outcome<()> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        match &self.tls {
            None => send_request(stream, path).await,
            Some(tls) => {
                send_request(tls.connect(ServerName::try_from(NAME)?, stream).await?, path).await
            }
        }
    }
}

async fn send_request(stream: impl AsyncRead + AsyncWrite + Unpin, path: &str) -> Outcome<()> {
    let mut stream = BufReader::new(stream);
    let request = format!("GET {path} HTTP/1.1\r\nHost: b\r\nX-Auth-Token: t\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let head = read_head(&mut stream).await?.ok_or("no answer")?;
    let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: "));
    let mut body = vec![0; length.ok_or("no length")?.trim().parse()?];
    stream.read_exact(&mut body).await?;
    serde_json::from_slice::<serde_json::Value>(&body)?;
    Ok(())
}

/// Serves until killed.
pub async fn serve(scheme: Scheme, certificate: Option<PathBuf>) -> Outcome<()> {
    let socket = TcpSocket::new_v4()?;
    // Listens on every address, but only on the loopback device.
    socket.bind_device(Some(LOOPBACK))?;
    socket.bind(SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)))?;
    let listener = socket.listen(BACKLOG)?;
    println!("http://127.0.0.1:{}", listener.local_addr()?.port());
    let tls = match scheme {
        Scheme::Http => None,
        Scheme::Https => Some(acceptor(&certificate.ok_or("no certificate")?)?),
    };
    run_accepts(listener, tls).await
}

fn acceptor(certificate: &Path) -> Outcome<TlsAcceptor> {
    let chain = vec![CertificateDer::from(std::fs::read(certificate)?)];
    let key = PrivatePkcs8KeyDer::from(std::fs::read(certificate.with_extension("key"))?);
    let config = ServerConfig::builder_with_provider(crypto())
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, key.into())?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}

async fn run_accepts(listener: TcpListener, tls: Option<TlsAcceptor>) -> Outcome<()> {
    let resources = Arc::new(Resources::new());
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let (tls, resources) = (tls.clone(), Arc::clone(&resources));
        tokio::spawn(async move {
            // A broken connection is noticed by the server that is measured.
            let _ended = match tls {
                None => converse(stream, &resources).await,
                Some(tls) => match tls.accept(stream).await {
                    Ok(stream) => converse(stream, &resources).await,
                    Err(error) => Err(error.into()),
                },
            };
        });
    }
}

async fn converse(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    resources: &Resources,
) -> Outcome<()> {
    let mut stream = BufReader::new(stream);
    while let Some(head) = read_head(&mut stream).await? {
        let lower = head.to_ascii_lowercase();
        let length = lower.lines().find_map(|line| line.strip_prefix("content-length:"));
        let mut body = vec![0; length.map_or(Ok(0), |length| length.trim().parse())?];
        stream.read_exact(&mut body).await?;
        let mut words = head.split(' ');
        let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        stream.write_all(&resources.answer(method, path.trim_end_matches('/'))).await?;
    }
    Ok(())
}

/// Reads the lines up to the empty one; none at the end of the stream.
async fn read_head(stream: &mut (impl AsyncRead + Unpin)) -> Outcome<Option<String>> {
    let mut head = Vec::with_capacity(1_024);
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        if head.len() > MAX_HEAD_BYTES {
            return Err(Wrong::from("too long"));
        }
        if stream.read(&mut byte).await? == 0 {
            return Ok(None);
        }
        head.extend(byte);
    }
    Ok(Some(String::from_utf8(head)?))
}

/// The responses, built once.
struct Resources {
    all: Vec<(&'static str, String, Vec<u8>)>,
}

impl Resources {
    fn new() -> Self {
        let link = |path: &str| format!(r#"{{"@odata.id": "{path}"}}"#);
        let list = |path: &str, member: &str| {
            format!(r#"{{"@odata.id": "{path}", "Members": [{}]}}"#, link(member))
        };
        let fine = r#"{"State": "Enabled", "Health": "OK"}"#;
        let fan = format!(r#"{{"Name": "Fan", "Reading": 7200, "Status": {fine}}}"#);
        let fans = vec![fan; FANS].join(", ");
        let filling = "x".repeat(FILLING);
        let (thermal, power) = (format!("{CHASSIS}/Thermal"), format!("{CHASSIS}/Power"));
        let gets = [
            (
                "/redfish/v1".to_string(),
                format!(
                    r#"{{"RedfishVersion": "1.6.0", "Systems": {}, "Links": {{"Sessions": {}}}}}"#,
                    link("/redfish/v1/Systems"),
                    link(SESSIONS)
                ),
            ),
            ("/redfish/v1/Systems".to_string(), list("/redfish/v1/Systems", SYSTEM)),
            (
                SYSTEM.to_string(),
                format!(
                    r#"{{"@odata.id": "{SYSTEM}", "Id": "1", "PowerState": "On", "Status": {fine},
                    "Links": {{"Chassis": [{}]}}, "Oem": {{"Filling": "{filling}"}}}}"#,
                    link(CHASSIS)
                ),
            ),
            (
                CHASSIS.to_string(),
                format!(
                    r#"{{"@odata.id": "{CHASSIS}", "Thermal": {}, "Power": {}}}"#,
                    link(&thermal),
                    link(&power)
                ),
            ),
            (thermal, format!(r#"{{"Fans": [{fans}]}}"#)),
            (power, format!(r#"{{"PowerSupplies": [{fans}]}}"#)),
        ];
        let mut all: Vec<(&str, String, Vec<u8>)> = gets
            .into_iter()
            .map(|(path, body)| ("GET", path, response("200 OK", "", &body)))
            .collect();
        let opened = format!("X-Auth-Token: t\r\nLocation: {SESSIONS}/1\r\n");
        all.push(("POST", SESSIONS.into(), response("201 Created", &opened, "{}")));
        all.push(("DELETE", format!("{SESSIONS}/1"), response("204 No Content", "", "")));
        Self { all }
    }

    fn answer(&self, method: &str, path: &str) -> Vec<u8> {
        let desired = |one: &&(&'static str, String, Vec<u8>)| one.0 == method && one.1 == path;
        let found = self.all.iter().find(desired).map(|(_, _, answer)| answer.clone());
        found.unwrap_or_else(|| response("404 Not Found", "", "{}"))
    }
}

fn response(status: &str, headers: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!("HTTP/1.1 {status}\r\n{headers}Content-Length: {length}\r\n\r\n{body}").into_bytes()
}
