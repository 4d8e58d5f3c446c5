//! A BMC that speaks IPMI 2.0 over the network: power, boot device, event log, identity.
//!
//! Requests go through `ipmitool`, one RMCP+ session for each, and only as `raw` requests: their
//! responses are bytes of the IPMI specification, not text that changes between versions. Existing
//! crates were rejected: one accepts unsigned packets in a signed session and drops encryption, the
//! other panics on bad packets and ignores sequence numbers; neither has cipher suite 17.
//!
//! A change is sent exactly once. `ipmitool` repeats a request without a response, and a slow BMC
//! then executes it twice; so a missing response to a change is reported as lost, never repeated.

mod classification;
mod event;
mod tool;

pub use event::{Event, EventKind, MAX_EVENTS};

use crate::connect::{ConnectError, resolve};
pub use crate::peer_login::Login;
use classification::IpmiError;
use model::credential::{AllowedAddresses, Peer, PeerProtocol};
use model::fault::{Fault, FaultCode, Result};
use secrecy::ExposeSecret;
use std::borrow::Cow;
use std::fmt;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;
use tool::{Tool, ToolResult};

const SCHEME: &str = "ipmi://";
const DEFAULT_PORT: u16 = 623;
/// The limits of the specification.
const MAX_USER_BYTES: usize = 16;
const MAX_PASSWORD_BYTES: usize = 20;

/// True if the address of a BMC is an IPMI address.
pub fn is_ipmi(endpoint: &str) -> bool {
    endpoint.starts_with(SCHEME)
}

/// The cipher suite of the session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cipher {
    /// HMAC-SHA1 and AES-128; every BMC has it.
    Suite3,
    /// HMAC-SHA256 and AES-128.
    Suite17,
    /// 17, and 3 only after the BMC itself has refused 17.
    Best,
}

/// The privilege of the session. Changes need `Operator`, but many BMCs have only administrators.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Privilege {
    /// Read only.
    User,
    Operator,
    Administrator,
}

impl Privilege {
    const fn as_str(self) -> &'static str {
        match self {
            Self::User => "USER",
            Self::Operator => "OPERATOR",
            Self::Administrator => "ADMINISTRATOR",
        }
    }
}

/// The machine's firmware, which the boot flags must name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Firmware {
    Bios,
    Efi,
}

/// The facts that a BMC reports about its boot override: all, or only the device and not that an
/// override is set and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BootReadback {
    Complete,
    DeviceOnly,
}

#[derive(Debug, Clone)]
pub struct Settings {
    /// The program, by path or by a name on `PATH`.
    pub program: PathBuf,
    pub cipher: Cipher,
    pub privilege: Privilege,
    pub firmware: Firmware,
    pub boot_readback: BootReadback,
    /// The time limit of one request, its session included.
    pub deadline: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            program: PathBuf::from("ipmitool"),
            cipher: Cipher::Best,
            privilege: Privilege::Administrator,
            firmware: Firmware::Efi,
            boot_readback: BootReadback::Complete,
            deadline: Duration::from_secs(20),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Power {
    On,
    Off,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChassisControl {
    On,
    Off,
    Cycle,
    Reset,
    /// Asks the operating system to shut down, which may be slow or ignored.
    Soft,
}

impl ChassisControl {
    const fn byte(self) -> u8 {
        match self {
            Self::Off => 0x00,
            Self::On => 0x01,
            Self::Cycle => 0x02,
            Self::Reset => 0x03,
            Self::Soft => 0x05,
        }
    }

    const fn description(self) -> &'static str {
        match self {
            Self::Off => "to power off",
            Self::On => "to power on",
            Self::Cycle => "for a power cycle",
            Self::Reset => "for a reset",
            Self::Soft => "for a soft shutdown",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BootDevice {
    /// No override: the firmware's own boot order.
    None,
    Pxe,
    Disk,
    Cdrom,
}

impl BootDevice {
    const ALL: [Self; 4] = [Self::None, Self::Pxe, Self::Disk, Self::Cdrom];

    const fn number(self) -> u8 {
        match self {
            Self::None => 0x0,
            Self::Pxe => 0x1,
            Self::Disk => 0x2,
            Self::Cdrom => 0x5,
        }
    }
}

/// The duration of an override.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BootDuration {
    Once,
    Always,
}

/// The boot device that a BMC reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BootFrom {
    Device(BootDevice),
    /// A device that Farrier never requests, by its number in the specification.
    Unlisted(u8),
}

/// The boot override as it was read back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Boot {
    pub from: BootFrom,
    /// None without an override, or if the BMC does not report it.
    pub lasts: Option<BootDuration>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The manufacturer's IANA number and its product number.
    pub manufacturer: u32,
    pub product: u16,
    pub firmware: String,
    pub ipmi_version: String,
    /// The machine's GUID, as 32 hexadecimal digits, if the BMC reports it.
    pub guid: Option<String>,
}

pub struct Bmc {
    host: String,
    port: u16,
    login: Login,
    settings: Settings,
    /// The cipher suite that the BMC accepted.
    suite: OnceLock<u8>,
}

impl fmt::Debug for Bmc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bmc({}, as {})", self.address(), self.login.user)
    }
}

/// A request: a description for faults, and its bytes.
struct IpmiRequest<'a> {
    description: &'a str,
    changes: bool,
    bytes: &'a [u8],
}

impl<'a> IpmiRequest<'a> {
    const fn read(description: &'a str, bytes: &'a [u8]) -> Self {
        Self { description, changes: false, bytes }
    }

    const fn change(description: &'a str, bytes: &'a [u8]) -> Self {
        Self { description, changes: true, bytes }
    }
}

impl Bmc {
    /// A BMC at `ipmi://HOST[:PORT]`. Nothing is sent yet.
    pub fn new(endpoint: &str, login: Login, settings: Settings) -> Result<Self> {
        let Peer { host, port, .. } = login_peer(endpoint)?;
        check_login(endpoint, &login)?;
        Ok(Self { host, port, login, settings, suite: OnceLock::new() })
    }

    pub fn address(&self) -> String {
        if self.host.contains(':') {
            return format!("[{}]:{}", self.host, self.port);
        }
        format!("{}:{}", self.host, self.port)
    }

    pub async fn power(&self) -> Result<Power> {
        let question = IpmiRequest::read("for its power state", &[0x00, 0x01]);
        let bytes = self.send(&question).await?;
        match bytes.first() {
            Some(state) if state & 0x01 != 0 => Ok(Power::On),
            Some(_) => Ok(Power::Off),
            None => Err(self.garbled(&question, &bytes)),
        }
    }

    /// The fault bits of the chassis status.
    pub async fn faults(&self) -> Result<Vec<&'static str>> {
        let question = IpmiRequest::read("for the state of its chassis", &[0x00, 0x01]);
        let bytes = self.send(&question).await?;
        match bytes.as_slice() {
            [power, _last, rest, ..] => Ok(read_faults(*power, *rest)),
            _ => Err(self.garbled(&question, &bytes)),
        }
    }

    /// Sent once. Success means accepted, not done: read [`Bmc::power`] afterwards.
    pub async fn set_power(&self, kind: ChassisControl) -> Result<()> {
        self.send(&IpmiRequest::change(kind.description(), &[0x00, 0x02, kind.byte()]))
            .await
            .map(drop)
    }

    pub async fn boot(&self) -> Result<Boot> {
        let question = IpmiRequest::read("for its boot device", &[0x00, 0x09, 0x05, 0x00, 0x00]);
        let bytes = self.send(&question).await?;
        match bytes.as_slice() {
            [_version, parameter, flags, device, ..] if parameter & 0x7f == 0x05 => {
                Ok(read_boot(*flags, *device, self.settings.boot_readback))
            }
            _ => Err(self.garbled(&question, &bytes)),
        }
    }

    /// Sets the boot device and returns what is read back.
    pub async fn set_boot(&self, device: BootDevice, lasts: BootDuration) -> Result<Boot> {
        // A BMC clears the override after a minute unless this is set. Some lack the setting.
        let keep = IpmiRequest::change("to keep the boot device", &[0x00, 0x08, 0x03, 0x08]);
        match self.send(&keep).await {
            Err(fault) if fault.code != FaultCode::NotSupported => return Err(fault),
            Ok(_) | Err(_) => {}
        }
        let flags = boot_flags(lasts, self.settings.firmware);
        let requested = [0x00, 0x08, 0x05, flags, device.number() << 2, 0x00, 0x00, 0x00];
        self.send(&IpmiRequest::change("to set its boot device", &requested)).await?;
        let observed = self.boot().await?;
        if matches_request(&observed, device, lasts) {
            return Ok(observed);
        }
        let message = format!(
            "{} was asked to boot from {device:?} ({lasts:?}) and took it, but now says {observed:?}",
            self.address()
        );
        Err(Fault::new(FaultCode::ReadBackDiffers, message))
    }

    /// The newest entries of the event log, newest first; at most [`MAX_EVENTS`].
    pub async fn events(&self, newest: usize) -> Result<Vec<Event>> {
        event::read(self, newest.min(MAX_EVENTS)).await
    }

    pub async fn identity(&self) -> Result<Identity> {
        let question = IpmiRequest::read("who it is", &[0x06, 0x01]);
        let bytes = self.send(&question).await?;
        let guid = match self.send(&IpmiRequest::read("for its GUID", &[0x06, 0x37])).await {
            Ok(guid) if guid.len() == 16 => Some(guid.iter().map(|b| format!("{b:02x}")).collect()),
            Ok(_) => None,
            Err(fault) if fault.code == FaultCode::NotSupported => None,
            Err(fault) => return Err(fault),
        };
        read_identity(&bytes, guid).ok_or_else(|| self.garbled(&question, &bytes))
    }

    /// Sends one request with the strongest cipher suite that the settings and the BMC allow.
    async fn send(&self, question: &IpmiRequest<'_>) -> Result<Vec<u8>> {
        match self.send_raw(question).await {
            Ok(bytes) => Ok(bytes),
            Err(failure) => Err(self.fault(question, &failure)),
        }
    }

    async fn send_raw(&self, question: &IpmiRequest<'_>) -> Result<Vec<u8>, IpmiError> {
        let command: Vec<String> = std::iter::once("raw".to_owned())
            .chain(question.bytes.iter().map(|byte| format!("{byte:#04x}")))
            .collect();
        let host = self.allowed_host().await.map_err(IpmiError::NotSent)?;
        let ending = self.run_tool(&host, &command, None, question.changes).await;
        classification::classify(ending).and_then(|out| classification::bytes(&out))
    }

    /// The host for `ipmitool`. A name that must resolve within networks is resolved here, so that
    /// the address that is checked is the address that is used.
    async fn allowed_host(&self) -> Result<Cow<'_, str>> {
        if self.login.allowed == AllowedAddresses::Any {
            return Ok(Cow::Borrowed(&self.host));
        }
        let peer = Peer { protocol: PeerProtocol::Ipmi, host: self.host.clone(), port: self.port };
        let found = resolve(&peer, &self.login.allowed).await.map_err(|error| match error {
            ConnectError::NotAllowed(fault) => fault,
            ConnectError::Io(error) => {
                let message = format!("{} has no address: {error}", self.host);
                Fault::new(FaultCode::BmcUnreachable, message)
            }
        })?;
        Ok(found.first().map_or(Cow::Borrowed(&self.host), |one| one.ip().to_string().into()))
    }

    /// Sends several reads in one session and returns the responses that came, concatenated.
    async fn send_batch(&self, requested: &str, questions: &[Vec<u8>]) -> Result<Vec<u8>> {
        let script: String =
            questions.iter().map(|bytes| classification::script_line(bytes)).collect();
        let command = ["exec".to_owned(), "/dev/stdin".to_owned()];
        let host = self.allowed_host().await?;
        let ending = self.run_tool(&host, &command, Some(&script), false).await;
        classification::classify_batch(ending)
            .and_then(|out| classification::bytes(&out))
            .map_err(|failure| self.fault(&IpmiRequest::read(requested, &[]), &failure))
    }

    async fn run_tool(
        &self,
        host: &str,
        command: &[String],
        script: Option<&str>,
        changes: bool,
    ) -> ToolResult {
        if let Some(suite) = self.known_suite() {
            return self.tool(host, suite, changes).run(command, script).await;
        }
        let ending = self.tool(host, 17, changes).run(command, script).await;
        if classification::lacks_suite(&ending) {
            let ending = self.tool(host, 3, changes).run(command, script).await;
            if classification::had_session(&ending) {
                let _ = self.suite.set(3);
            }
            return ending;
        }
        if classification::had_session(&ending) {
            let _ = self.suite.set(17);
        }
        ending
    }

    fn known_suite(&self) -> Option<u8> {
        match self.settings.cipher {
            Cipher::Suite3 => Some(3),
            Cipher::Suite17 => Some(17),
            Cipher::Best => self.suite.get().copied(),
        }
    }

    fn tool<'a>(&'a self, host: &'a str, suite: u8, changes: bool) -> Tool<'a> {
        Tool {
            program: &self.settings.program,
            host,
            port: self.port,
            login: &self.login,
            privilege: self.settings.privilege,
            suite,
            attempts: if changes { 1 } else { tool::READ_ATTEMPTS },
            deadline: self.settings.deadline,
        }
    }

    fn garbled(&self, question: &IpmiRequest<'_>, bytes: &[u8]) -> Fault {
        self.fault(question, &IpmiError::Garbled(format!("{bytes:02x?}")))
    }

    fn fault(&self, question: &IpmiRequest<'_>, failure: &IpmiError) -> Fault {
        let requested = format!("{} was asked {}", self.address(), question.description);
        let user = &self.login.user;
        let (code, rest) = match failure {
            IpmiError::NotSent(fault) => return fault.clone(),
            IpmiError::LoginRefused(message) => {
                (FaultCode::LoginRefused, format!("refused the login of `{user}`: {message}"))
            }
            IpmiError::CipherRefused(message) => (
                FaultCode::NotSupported,
                format!("has none of the cipher suites allowed for it: {message}"),
            ),
            IpmiError::NoSession(message) => {
                (FaultCode::BmcUnreachable, format!("opened no session: {message}"))
            }
            IpmiError::NoResponse if question.changes => {
                (FaultCode::AnswerLost, "did not say in time whether it will".to_owned())
            }
            IpmiError::NoResponse => {
                (FaultCode::BmcUnreachable, "did not answer in time".to_owned())
            }
            IpmiError::Refused(completion) => (
                classification::refusal(*completion, question.changes),
                classification::meaning(*completion),
            ),
            IpmiError::Garbled(message) => {
                (FaultCode::AnswerGarbled, format!("answered something else: {message}"))
            }
            IpmiError::NoResources(shortage) => return shortage.fault(&self.address()),
            IpmiError::ToolNotRun(message) => {
                let program = self.settings.program.display();
                (
                    FaultCode::NotSupported,
                    format!("`{program}` could not be run to ask it: {message}"),
                )
            }
        };
        Fault::new(code, format!("{requested}; it {rest}"))
    }
}

/// The BMC at `ipmi://HOST[:PORT]` as the peer of a login.
pub(crate) fn login_peer(endpoint: &str) -> Result<Peer> {
    let (host, port) = parse_endpoint(endpoint).ok_or_else(|| {
        let message =
            format!("`{endpoint}` is no IPMI address; write ipmi://HOST or ipmi://HOST:PORT");
        Fault::new(FaultCode::NotSupported, message)
    })?;
    Ok(Peer { protocol: PeerProtocol::Ipmi, host, port })
}

fn parse_endpoint(endpoint: &str) -> Option<(String, u16)> {
    let rest = endpoint.strip_prefix(SCHEME)?;
    let rest = rest.strip_suffix('/').unwrap_or(rest);
    let (host, port) = match rest.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((host, port)) => (host, port.strip_prefix(':').or(port.is_empty().then_some(""))?),
        None => rest.split_once(':').unwrap_or((rest, "")),
    };
    let port =
        if port.is_empty() { DEFAULT_PORT } else { port.parse().ok().filter(|p| *p != 0)? };
    // The host becomes a program argument: a name or an address, never an option.
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | ':' | '_');
    let sound = !host.is_empty() && !host.starts_with('-') && host.chars().all(plain);
    sound.then(|| (host.to_owned(), port))
}

fn check_login(endpoint: &str, login: &Login) -> Result<()> {
    let password = login.password.expose_secret();
    if password.is_empty() {
        let message = format!(
            "{endpoint} needs a password for `{}`, and the credential has none",
            login.user
        );
        return Err(Fault::new(FaultCode::CredentialMissing, message));
    }
    let (user_bytes, password_bytes) = (login.user.len(), password.len());
    if user_bytes > MAX_USER_BYTES || password_bytes > MAX_PASSWORD_BYTES {
        let message = format!(
            "IPMI has room for {MAX_USER_BYTES} bytes of user name and {MAX_PASSWORD_BYTES} of password; \
             the login for {endpoint} has {user_bytes} and {password_bytes}"
        );
        return Err(Fault::new(FaultCode::NotSupported, message));
    }
    if password.contains('\0') || login.user.contains('\0') {
        let message =
            format!("the login for {endpoint} has a zero byte in it, which IPMI cannot carry");
        return Err(Fault::new(FaultCode::NotSupported, message));
    }
    Ok(())
}

const VALID: u8 = 0x80;
const PERSISTENT: u8 = 0x40;
const EFI: u8 = 0x20;

const fn boot_flags(lasts: BootDuration, firmware: Firmware) -> u8 {
    let lasts = match lasts {
        BootDuration::Once => 0,
        BootDuration::Always => PERSISTENT,
    };
    let firmware = match firmware {
        Firmware::Bios => 0,
        Firmware::Efi => EFI,
    };
    VALID | lasts | firmware
}

fn read_boot(flags: u8, device: u8, memory: BootReadback) -> Boot {
    let number = (device >> 2) & 0x0f;
    let listed = BootDevice::ALL.into_iter().find(|device| device.number() == number);
    let from = listed.map_or(BootFrom::Unlisted(number), BootFrom::Device);
    let lasts = if flags & PERSISTENT != 0 { BootDuration::Always } else { BootDuration::Once };
    match memory {
        BootReadback::DeviceOnly => Boot { from, lasts: None },
        // Without the valid bit the device is stale, and the firmware ignores it.
        BootReadback::Complete if flags & VALID == 0 => {
            Boot { from: BootFrom::Device(BootDevice::None), lasts: None }
        }
        BootReadback::Complete => Boot { from, lasts: Some(lasts) },
    }
}

/// True if the override read back is the requested one. Its duration matters only if there is one.
fn matches_request(observed: &Boot, device: BootDevice, lasts: BootDuration) -> bool {
    observed.from == BootFrom::Device(device)
        && (device == BootDevice::None || observed.lasts.is_none_or(|observed| observed == lasts))
}

/// The bits of the chassis status, section 28.2 of the specification.
fn read_faults(power: u8, rest: u8) -> Vec<&'static str> {
    let power_faults = [(1, "power overload"), (3, "main power fault"), (4, "power control fault")];
    let other_faults = [(2, "drive fault"), (3, "cooling fault")];
    let named = |byte: u8, faults: &[(u8, &'static str)]| -> Vec<&'static str> {
        faults.iter().filter(|(bit, _)| byte & (1 << bit) != 0).map(|(_, name)| *name).collect()
    };
    [named(power, &power_faults), named(rest, &other_faults)].concat()
}

fn read_identity(bytes: &[u8], guid: Option<String>) -> Option<Identity> {
    let [_id, _revision, major, minor, version, _support, m0, m1, m2, p0, p1, ..] = bytes else {
        return None;
    };
    Some(Identity {
        manufacturer: u32::from_le_bytes([*m0, *m1, *m2 & 0x0f, 0]),
        product: u16::from_le_bytes([*p0, *p1]),
        // The minor number is BCD; the IPMI version is BCD with its digits swapped.
        firmware: format!("{}.{minor:02x}", major & 0x7f),
        ipmi_version: format!("{}.{}", version & 0x0f, version >> 4),
        guid,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn login() -> Login {
        Login { user: "admin".into(), password: "hush-hush".into(), allowed: AllowedAddresses::Any }
    }

    #[test]
    fn an_endpoint_is_a_host_and_perhaps_a_port() {
        let good = [
            ("ipmi://10.0.0.5", "10.0.0.5:623"),
            ("ipmi://10.0.0.5:9623/", "10.0.0.5:9623"),
            ("ipmi://bmc-7.rack", "bmc-7.rack:623"),
            ("ipmi://[fd00::5]", "[fd00::5]:623"),
            ("ipmi://[fd00::5]:7", "[fd00::5]:7"),
        ];
        for (endpoint, address) in good {
            let bmc = Bmc::new(endpoint, login(), Settings::default()).unwrap();
            assert_eq!(bmc.address(), address);
        }
        let bad = [
            "10.0.0.5",
            "https://10.0.0.5",
            "ipmi://",
            "ipmi://-E",
            "ipmi://a b",
            "ipmi://u:p@host",
            "ipmi://h:0",
            "ipmi://h:70000",
            "ipmi://[::1]x",
            "ipmi://h/path",
        ];
        for endpoint in bad {
            let fault = Bmc::new(endpoint, login(), Settings::default()).unwrap_err();
            assert_eq!(fault.code, FaultCode::NotSupported, "{endpoint}");
        }
    }

    #[test]
    fn a_login_beyond_the_ipmi_limits_is_refused() {
        let try_login = |user: &str, password: &str| {
            let allowed = AllowedAddresses::Any;
            let login = Login { user: user.into(), password: password.into(), allowed };
            Bmc::new("ipmi://h", login, Settings::default()).map(drop).map_err(|fault| fault.code)
        };
        assert_eq!(try_login("a", "12345678901234567890"), Ok(()));
        assert_eq!(try_login("a", "123456789012345678901"), Err(FaultCode::NotSupported));
        assert_eq!(try_login("12345678901234567", "p"), Err(FaultCode::NotSupported));
        assert_eq!(try_login("a", "p\0q"), Err(FaultCode::NotSupported));
        assert_eq!(try_login("a", ""), Err(FaultCode::CredentialMissing));
    }

    #[test]
    fn the_password_is_not_shown() {
        let bmc = Bmc::new("ipmi://h", login(), Settings::default()).unwrap();
        assert!(!format!("{bmc:?} {:?}", bmc.login).contains("hush-hush"));
    }

    #[test]
    fn every_boot_request_reads_back_as_itself() {
        for device in BootDevice::ALL {
            for lasts in [BootDuration::Once, BootDuration::Always] {
                for firmware in [Firmware::Bios, Firmware::Efi] {
                    let (flags, byte) = (boot_flags(lasts, firmware), device.number() << 2);
                    let observed = read_boot(flags, byte, BootReadback::Complete);
                    assert_eq!(
                        observed,
                        Boot { from: BootFrom::Device(device), lasts: Some(lasts) }
                    );
                    assert!(matches_request(&observed, device, lasts));
                    let forgotten = read_boot(flags & !VALID, byte, BootReadback::Complete);
                    assert_eq!(
                        matches_request(&forgotten, device, lasts),
                        device == BootDevice::None
                    );
                    let poor = read_boot(0, byte, BootReadback::DeviceOnly);
                    assert!(matches_request(&poor, device, lasts));
                }
            }
        }
        let floppy = read_boot(VALID, 0x0f << 2, BootReadback::Complete);
        assert_eq!(floppy.from, BootFrom::Unlisted(0x0f));
        let observed = read_boot(VALID, 0x04, BootReadback::Complete);
        assert!(!matches_request(&observed, BootDevice::Disk, BootDuration::Once));
        assert!(!matches_request(&observed, BootDevice::Pxe, BootDuration::Always));
    }

    #[test]
    fn an_identity_needs_all_its_bytes() {
        let bytes = [0x23, 0x83, 0x09, 0x08, 0x02, 0x9f, 0x91, 0x12, 0x00, 0x02, 0x0f];
        let identity = read_identity(&bytes, None).unwrap();
        assert_eq!((identity.manufacturer, identity.product), (0x1291, 0x0f02));
        assert_eq!((identity.firmware.as_str(), identity.ipmi_version.as_str()), ("9.08", "2.0"));
        assert_eq!(read_identity(&bytes[..10], None), None);
    }
}
