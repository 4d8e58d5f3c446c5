//! A BMC that speaks IPMI 2.0 over the network: power, boot device, event log, identity.
//!
//! Requests go through `ipmitool`, one RMCP+ session for each, and only as `raw` requests: their
//! responses are bytes of the IPMI specification, not text that changes between versions. Existing
//! crates were rejected: one accepts unsigned packets in a signed session and drops encryption, the
//! other panics on bad packets and ignores sequence numbers; neither has cipher suite 17.
//!
//! A change is sent exactly once. `ipmitool` repeats a request without a response, and a slow BMC
//! then executes it twice; so a missing response to a change is reported as lost, never repeated.

mod answer;
mod event;
mod tool;

pub use event::{Event, EventKind, MAX_EVENTS};

pub use crate::peer_login::Login;
use answer::Trouble;
use model::fault::{Code, Fault};
use secrecy::ExposeSecret;
use std::fmt;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;
use tool::{Ending, Tool};

const SCHEME: &str = "ipmi://";
const DEFAULT_PORT: u16 = 623;
/// The limits of the specification.
const MAX_USER_BYTES: usize = 16;
const MAX_PASSWORD_BYTES: usize = 20;

/// Whether the address of a BMC is an IPMI address.
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

/// Whether a BMC reports, besides the boot device, that an override is set and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BootMemory {
    Whole,
    DeviceOnly,
}

#[derive(Debug, Clone)]
pub struct Settings {
    /// The program, by path or by a name on `PATH`.
    pub program: PathBuf,
    pub cipher: Cipher,
    pub privilege: Privilege,
    pub firmware: Firmware,
    pub boot_memory: BootMemory,
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
            boot_memory: BootMemory::Whole,
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
pub enum PowerKind {
    On,
    Off,
    Cycle,
    Reset,
    /// Asks the operating system to shut down, which may be slow or ignored.
    Soft,
}

impl PowerKind {
    const fn byte(self) -> u8 {
        match self {
            Self::Off => 0x00,
            Self::On => 0x01,
            Self::Cycle => 0x02,
            Self::Reset => 0x03,
            Self::Soft => 0x05,
        }
    }

    const fn asked(self) -> &'static str {
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

/// How long an override applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lasts {
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
    pub lasts: Option<Lasts>,
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
struct Question<'a> {
    asked: &'a str,
    changes: bool,
    bytes: &'a [u8],
}

impl<'a> Question<'a> {
    const fn look(asked: &'a str, bytes: &'a [u8]) -> Self {
        Self { asked, changes: false, bytes }
    }

    const fn change(asked: &'a str, bytes: &'a [u8]) -> Self {
        Self { asked, changes: true, bytes }
    }
}

impl Bmc {
    /// A BMC at `ipmi://HOST[:PORT]`. Nothing is sent yet.
    pub fn new(endpoint: &str, login: Login, settings: Settings) -> Result<Self, Fault> {
        let (host, port) = parse_endpoint(endpoint).ok_or_else(|| {
            let said =
                format!("`{endpoint}` is no IPMI address; write ipmi://HOST or ipmi://HOST:PORT");
            Fault::new(Code::NotSupported, said)
        })?;
        check_login(endpoint, &login)?;
        Ok(Self { host, port, login, settings, suite: OnceLock::new() })
    }

    pub fn address(&self) -> String {
        if self.host.contains(':') {
            return format!("[{}]:{}", self.host, self.port);
        }
        format!("{}:{}", self.host, self.port)
    }

    pub async fn power(&self) -> Result<Power, Fault> {
        let question = Question::look("for its power state", &[0x00, 0x01]);
        let bytes = self.ask(&question).await?;
        match bytes.first() {
            Some(state) if state & 0x01 != 0 => Ok(Power::On),
            Some(_) => Ok(Power::Off),
            None => Err(self.garbled(&question, &bytes)),
        }
    }

    /// The fault bits of the chassis status.
    pub async fn faults(&self) -> Result<Vec<&'static str>, Fault> {
        let question = Question::look("for the state of its chassis", &[0x00, 0x01]);
        let bytes = self.ask(&question).await?;
        match bytes.as_slice() {
            [power, _last, rest, ..] => Ok(read_faults(*power, *rest)),
            _ => Err(self.garbled(&question, &bytes)),
        }
    }

    /// Sent once. Success means accepted, not done: read [`Bmc::power`] afterwards.
    pub async fn set_power(&self, kind: PowerKind) -> Result<(), Fault> {
        self.ask(&Question::change(kind.asked(), &[0x00, 0x02, kind.byte()])).await.map(drop)
    }

    pub async fn boot(&self) -> Result<Boot, Fault> {
        let question = Question::look("for its boot device", &[0x00, 0x09, 0x05, 0x00, 0x00]);
        let bytes = self.ask(&question).await?;
        match bytes.as_slice() {
            [_version, parameter, flags, device, ..] if parameter & 0x7f == 0x05 => {
                Ok(read_boot(*flags, *device, self.settings.boot_memory))
            }
            _ => Err(self.garbled(&question, &bytes)),
        }
    }

    /// Sets the boot device and returns what is read back.
    pub async fn set_boot(&self, device: BootDevice, lasts: Lasts) -> Result<Boot, Fault> {
        // A BMC clears the override after a minute unless this is set. Some lack the setting.
        let keep = Question::change("to keep the boot device", &[0x00, 0x08, 0x03, 0x08]);
        match self.ask(&keep).await {
            Err(fault) if fault.code != Code::NotSupported => return Err(fault),
            Ok(_) | Err(_) => {}
        }
        let flags = boot_flags(lasts, self.settings.firmware);
        let wish = [0x00, 0x08, 0x05, flags, device.number() << 2, 0x00, 0x00, 0x00];
        self.ask(&Question::change("to set its boot device", &wish)).await?;
        let seen = self.boot().await?;
        if holds(&seen, device, lasts) {
            return Ok(seen);
        }
        let said = format!(
            "{} was asked to boot from {device:?} ({lasts:?}) and took it, but now says {seen:?}",
            self.address()
        );
        Err(Fault::new(Code::ReadBackDiffers, said))
    }

    /// The newest entries of the event log, newest first; at most [`MAX_EVENTS`].
    pub async fn events(&self, newest: usize) -> Result<Vec<Event>, Fault> {
        event::read(self, newest.min(MAX_EVENTS)).await
    }

    pub async fn identity(&self) -> Result<Identity, Fault> {
        let question = Question::look("who it is", &[0x06, 0x01]);
        let bytes = self.ask(&question).await?;
        let guid = match self.ask(&Question::look("for its GUID", &[0x06, 0x37])).await {
            Ok(guid) if guid.len() == 16 => Some(guid.iter().map(|b| format!("{b:02x}")).collect()),
            Ok(_) => None,
            Err(fault) if fault.code == Code::NotSupported => None,
            Err(fault) => return Err(fault),
        };
        read_identity(&bytes, guid).ok_or_else(|| self.garbled(&question, &bytes))
    }

    /// Sends one request with the strongest cipher suite that the settings and the BMC allow.
    async fn ask(&self, question: &Question<'_>) -> Result<Vec<u8>, Fault> {
        match self.ask_raw(question).await {
            Ok(bytes) => Ok(bytes),
            Err(trouble) => Err(self.fault(question, &trouble)),
        }
    }

    async fn ask_raw(&self, question: &Question<'_>) -> Result<Vec<u8>, Trouble> {
        let command: Vec<String> = std::iter::once("raw".to_owned())
            .chain(question.bytes.iter().map(|byte| format!("{byte:#04x}")))
            .collect();
        let ending = self.converse(&command, None, question.changes).await;
        answer::judge(ending).and_then(|out| answer::bytes(&out))
    }

    /// Sends several reads in one session and returns the responses that came, concatenated.
    async fn ask_many(&self, asked: &str, questions: &[Vec<u8>]) -> Result<Vec<u8>, Fault> {
        let script: String = questions.iter().map(|bytes| answer::script_line(bytes)).collect();
        let command = ["exec".to_owned(), "/dev/stdin".to_owned()];
        let ending = self.converse(&command, Some(&script), false).await;
        answer::judge_many(ending)
            .and_then(|out| answer::bytes(&out))
            .map_err(|trouble| self.fault(&Question::look(asked, &[]), &trouble))
    }

    async fn converse(&self, command: &[String], script: Option<&str>, changes: bool) -> Ending {
        if let Some(suite) = self.known_suite() {
            return self.tool(suite, changes).run(command, script).await;
        }
        let ending = self.tool(17, changes).run(command, script).await;
        if answer::lacks_suite(&ending) {
            let ending = self.tool(3, changes).run(command, script).await;
            if answer::had_session(&ending) {
                let _ = self.suite.set(3);
            }
            return ending;
        }
        if answer::had_session(&ending) {
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

    fn tool(&self, suite: u8, changes: bool) -> Tool<'_> {
        Tool {
            program: &self.settings.program,
            host: &self.host,
            port: self.port,
            login: &self.login,
            privilege: self.settings.privilege,
            suite,
            sent_times: if changes { 1 } else { tool::LOOK_TIMES },
            deadline: self.settings.deadline,
        }
    }

    fn garbled(&self, question: &Question<'_>, bytes: &[u8]) -> Fault {
        self.fault(question, &Trouble::Garbled(format!("{bytes:02x?}")))
    }

    fn fault(&self, question: &Question<'_>, trouble: &Trouble) -> Fault {
        let asked = format!("{} was asked {}", self.address(), question.asked);
        let user = &self.login.user;
        let (code, rest) = match trouble {
            Trouble::Login(said) => {
                (Code::LoginRefused, format!("refused the login of `{user}`: {said}"))
            }
            Trouble::NoSuite(said) => (
                Code::NotSupported,
                format!("has none of the cipher suites allowed for it: {said}"),
            ),
            Trouble::Unreached(said) => {
                (Code::BmcUnreachable, format!("opened no session: {said}"))
            }
            Trouble::Unanswered if question.changes => {
                (Code::AnswerLost, "did not say in time whether it will".to_owned())
            }
            Trouble::Unanswered => (Code::BmcUnreachable, "did not answer in time".to_owned()),
            Trouble::Refused(completion) => {
                (answer::refusal(*completion, question.changes), answer::meaning(*completion))
            }
            Trouble::Garbled(said) => {
                (Code::AnswerGarbled, format!("answered something else: {said}"))
            }
            Trouble::NoTool(said) => {
                let program = self.settings.program.display();
                (Code::NotSupported, format!("`{program}` could not be run to ask it: {said}"))
            }
        };
        Fault::new(code, format!("{asked}; it {rest}"))
    }
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

fn check_login(endpoint: &str, login: &Login) -> Result<(), Fault> {
    let password = login.password.expose_secret();
    if password.is_empty() {
        let said = format!(
            "{endpoint} needs a password for `{}`, and the credential has none",
            login.user
        );
        return Err(Fault::new(Code::CredentialMissing, said));
    }
    let (user_bytes, password_bytes) = (login.user.len(), password.len());
    if user_bytes > MAX_USER_BYTES || password_bytes > MAX_PASSWORD_BYTES {
        let said = format!(
            "IPMI has room for {MAX_USER_BYTES} bytes of user name and {MAX_PASSWORD_BYTES} of password; \
             the login for {endpoint} has {user_bytes} and {password_bytes}"
        );
        return Err(Fault::new(Code::NotSupported, said));
    }
    if password.contains('\0') || login.user.contains('\0') {
        let said =
            format!("the login for {endpoint} has a zero byte in it, which IPMI cannot carry");
        return Err(Fault::new(Code::NotSupported, said));
    }
    Ok(())
}

const VALID: u8 = 0x80;
const PERSISTENT: u8 = 0x40;
const EFI: u8 = 0x20;

const fn boot_flags(lasts: Lasts, firmware: Firmware) -> u8 {
    let lasts = match lasts {
        Lasts::Once => 0,
        Lasts::Always => PERSISTENT,
    };
    let firmware = match firmware {
        Firmware::Bios => 0,
        Firmware::Efi => EFI,
    };
    VALID | lasts | firmware
}

fn read_boot(flags: u8, device: u8, memory: BootMemory) -> Boot {
    let number = (device >> 2) & 0x0f;
    let listed = BootDevice::ALL.into_iter().find(|device| device.number() == number);
    let from = listed.map_or(BootFrom::Unlisted(number), BootFrom::Device);
    let lasts = if flags & PERSISTENT != 0 { Lasts::Always } else { Lasts::Once };
    match memory {
        BootMemory::DeviceOnly => Boot { from, lasts: None },
        // Without the valid bit the device is stale, and the firmware ignores it.
        BootMemory::Whole if flags & VALID == 0 => {
            Boot { from: BootFrom::Device(BootDevice::None), lasts: None }
        }
        BootMemory::Whole => Boot { from, lasts: Some(lasts) },
    }
}

/// Whether the override read back is the requested one. Its duration matters only if there is one.
fn holds(seen: &Boot, device: BootDevice, lasts: Lasts) -> bool {
    seen.from == BootFrom::Device(device)
        && (device == BootDevice::None || seen.lasts.is_none_or(|seen| seen == lasts))
}

/// The bits of the chassis status, section 28.2 of the specification.
fn read_faults(power: u8, rest: u8) -> Vec<&'static str> {
    let power_faults = [(1, "power overload"), (3, "main power fault"), (4, "power control fault")];
    let other_faults = [(2, "drive fault"), (3, "cooling fault")];
    let named = |byte: u8, faults: &[(u8, &'static str)]| -> Vec<&'static str> {
        faults.iter().filter(|(bit, _)| byte & (1 << bit) != 0).map(|(_, word)| *word).collect()
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
        Login { user: "admin".into(), password: "hush-hush".into() }
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
            assert_eq!(fault.code, Code::NotSupported, "{endpoint}");
        }
    }

    #[test]
    fn a_login_that_ipmi_cannot_carry_is_refused_before_it_is_tried() {
        let try_login = |user: &str, password: &str| {
            let login = Login { user: user.into(), password: password.into() };
            Bmc::new("ipmi://h", login, Settings::default()).map(drop).map_err(|fault| fault.code)
        };
        assert_eq!(try_login("a", "12345678901234567890"), Ok(()));
        assert_eq!(try_login("a", "123456789012345678901"), Err(Code::NotSupported));
        assert_eq!(try_login("12345678901234567", "p"), Err(Code::NotSupported));
        assert_eq!(try_login("a", "p\0q"), Err(Code::NotSupported));
        assert_eq!(try_login("a", ""), Err(Code::CredentialMissing));
    }

    #[test]
    fn the_password_is_not_shown() {
        let bmc = Bmc::new("ipmi://h", login(), Settings::default()).unwrap();
        assert!(!format!("{bmc:?} {:?}", bmc.login).contains("hush-hush"));
    }

    #[test]
    fn every_boot_wish_reads_back_as_itself() {
        for device in BootDevice::ALL {
            for lasts in [Lasts::Once, Lasts::Always] {
                for firmware in [Firmware::Bios, Firmware::Efi] {
                    let (flags, byte) = (boot_flags(lasts, firmware), device.number() << 2);
                    let seen = read_boot(flags, byte, BootMemory::Whole);
                    assert_eq!(seen, Boot { from: BootFrom::Device(device), lasts: Some(lasts) });
                    assert!(holds(&seen, device, lasts));
                    let forgotten = read_boot(flags & !VALID, byte, BootMemory::Whole);
                    assert_eq!(holds(&forgotten, device, lasts), device == BootDevice::None);
                    let poor = read_boot(0, byte, BootMemory::DeviceOnly);
                    assert!(holds(&poor, device, lasts));
                }
            }
        }
        let floppy = read_boot(VALID, 0x0f << 2, BootMemory::Whole);
        assert_eq!(floppy.from, BootFrom::Unlisted(0x0f));
        let seen = read_boot(VALID, 0x04, BootMemory::Whole);
        assert!(!holds(&seen, BootDevice::Disk, Lasts::Once));
        assert!(!holds(&seen, BootDevice::Pxe, Lasts::Always));
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
