//! The agent's settings: one TOML file, read once and checked before anything is done.
//!
//! The directories to be emptied are the dangerous part. A path that belongs to the system is
//! refused here, and not after a task has begun. Every refusal names the key and says what to write
//! instead.

use crate::http::{TlsFiles, Url};
use secrecy::SecretString;
use serde::Deserialize;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};

/// The output of `farrier agent config`. A test checks that it has the defaults.
pub const EXAMPLE: &str = include_str!("agent.example.toml");
pub const DEFAULT_PATH: &str = "/etc/farrier/agent.toml";

/// Far more than there are replicas.
const MAX_CONTROLLERS: usize = 16;
const MAX_SCRATCH_DIRS: usize = 64;
const MAX_TOKEN_BYTES: usize = 1024;
/// Read permission of the group and of others.
const OTHERS_READ: u32 = 0o044;

/// Nothing below these is scratch.
const SYSTEM: [&str; 13] = [
    "/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/proc", "/root", "/run", "/sbin",
    "/sys", "/usr",
];
/// These are not scratch themselves, though a directory in them may be.
const SHARED: [&str; 9] =
    ["/", "/home", "/media", "/mnt", "/opt", "/srv", "/var", "/var/lib", "/var/log"];
/// Shared memory, where jobs leave files behind.
const SHARED_MEMORY: &str = "/dev/shm";

#[derive(Debug)]
pub struct Config {
    /// Tried in turn.
    pub controllers: Vec<Url>,
    /// The TLS files for controllers with `https://`.
    pub tls: Option<TlsFiles>,
    pub token: Token,
    pub state_dir: PathBuf,
    pub hooks_dir: PathBuf,
    /// None: not configured. An empty list says that nothing is stored here.
    pub scratch_dirs: Option<Vec<PathBuf>>,
    pub nvidia_smi: PathBuf,
    /// The kernel's list of PCI devices.
    pub pci_devices: PathBuf,
    pub systemctl: PathBuf,
    /// The unit of this agent, which an uninstall disables.
    pub unit: String,
    /// The file that this was read from.
    pub path: Option<PathBuf>,
}

/// The source of the one-time token. It is read for each attempt, so that an operator can replace
/// it.
#[derive(Debug)]
pub enum Token {
    /// An enrolled node needs no token.
    None,
    Here(SecretString),
    File(PathBuf),
}

impl Token {
    pub fn read(&self) -> Result<Option<SecretString>, String> {
        match self {
            Self::None => Ok(None),
            Self::Here(token) => Ok(Some(token.clone())),
            Self::File(path) => match fs::read_to_string(path) {
                Ok(text) => checked_token("token_file", text.trim()).map(Some),
                // The file may be created later, or removed once the token is used.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
                Err(error) => Err(format!("token_file: {}: {error}", path.display())),
            },
        }
    }
}

/// The known keys.
const KEYS: [&str; 13] = [
    "controllers",
    "ca_file",
    "client_certificate",
    "client_key",
    "token",
    "token_file",
    "state_dir",
    "hooks_dir",
    "scratch_dirs",
    "nvidia_smi",
    "pci_devices",
    "systemctl",
    "unit",
];

/// The file as written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ConfigFile {
    controllers: Vec<String>,
    ca_file: Option<PathBuf>,
    client_certificate: Option<PathBuf>,
    client_key: Option<PathBuf>,
    token: Option<String>,
    token_file: Option<PathBuf>,
    #[serde(default = "state_dir")]
    state_dir: PathBuf,
    #[serde(default = "hooks_dir")]
    hooks_dir: PathBuf,
    scratch_dirs: Option<Vec<PathBuf>>,
    #[serde(default = "nvidia_smi")]
    nvidia_smi: PathBuf,
    #[serde(default = "pci_devices")]
    pci_devices: PathBuf,
    #[serde(default = "systemctl")]
    systemctl: PathBuf,
    #[serde(default = "unit")]
    unit: String,
}

fn state_dir() -> PathBuf {
    "/var/lib/farrier-agent".into()
}

fn hooks_dir() -> PathBuf {
    "/etc/farrier/hooks".into()
}

fn nvidia_smi() -> PathBuf {
    "/usr/bin/nvidia-smi".into()
}

fn pci_devices() -> PathBuf {
    "/sys/bus/pci/devices".into()
}

fn systemctl() -> PathBuf {
    "/usr/bin/systemctl".into()
}

fn unit() -> String {
    "farrier-agent.service".into()
}

impl Config {
    pub fn load(path: &Path) -> Result<Self, String> {
        let text = fs::read_to_string(path).map_err(|error| {
            format!("{}: {error}; `farrier agent config` prints an example", path.display())
        })?;
        let parsed =
            Self::parse(&text).map_err(|message| format!("{}: {message}", path.display()))?;
        Ok(Self { path: Some(path.to_owned()), ..parsed })
    }

    /// A warning about a token that not only its owner can read.
    pub fn exposed_token_warning(&self) -> Option<String> {
        let (what, path) = match (&self.token, &self.path) {
            (Token::File(path), _) => ("token_file", path),
            (Token::Here(_), Some(path)) => ("the token in the configuration", path),
            (Token::Here(_) | Token::None, _) => return None,
        };
        let mode = fs::metadata(path).ok()?.permissions().mode();
        let path = path.display();
        (mode & OTHERS_READ != 0).then(|| {
            format!("{what} can be read by everybody who can read {path}; type chmod 600 {path}")
        })
    }

    pub fn parse(text: &str) -> Result<Self, String> {
        let written: ConfigFile =
            toml::from_str(text).map_err(|error| describe_toml_error(text, &error))?;
        let controllers = controllers(&written.controllers)?;
        let identity = (written.client_certificate, written.client_key);
        let config = Self {
            tls: tls_files(&controllers, written.ca_file, identity)?,
            controllers,
            token: token(written.token, written.token_file)?,
            state_dir: own_dir("state_dir", written.state_dir)?,
            hooks_dir: absolute("hooks_dir", written.hooks_dir)?,
            scratch_dirs: written.scratch_dirs,
            nvidia_smi: absolute("nvidia_smi", written.nvidia_smi)?,
            pci_devices: absolute("pci_devices", written.pci_devices)?,
            systemctl: absolute("systemctl", written.systemctl)?,
            unit: unit_name(written.unit)?,
            path: None,
        };
        check_scratch(&config)?;
        Ok(config)
    }
}

/// The error with its line and key. The text itself is not repeated: it may be a token, or part of
/// one.
fn describe_toml_error(text: &str, error: &toml::de::Error) -> String {
    let message = error.message();
    let message = match message.split_once("expected ") {
        Some((problem, expected)) if problem.starts_with("invalid ") => {
            format!("this is something else than {expected}")
        }
        Some(_) | None => message.lines().next().unwrap_or_default().to_owned(),
    };
    let Some(span) = error.span() else { return message };
    let before = text.get(..span.start).unwrap_or_default();
    let number = before.matches('\n').count() + 1;
    let line = text.lines().nth(number - 1).unwrap_or_default();
    let key = line.split_once('=').map(|(key, _)| key.trim()).filter(|key| KEYS.contains(key));
    match key {
        Some(key) => format!("line {number}: {key}: {message}"),
        None => format!("line {number}: {message}"),
    }
}

fn controllers(written: &[String]) -> Result<Vec<Url>, String> {
    if written.is_empty() || written.len() > MAX_CONTROLLERS {
        return Err(format!(
            "controllers: there are {}; name between 1 and {MAX_CONTROLLERS}, like [\"http://10.0.0.1:8480\"]",
            written.len()
        ));
    }
    let parsed = written.iter().map(|text| Url::parse_web(text));
    parsed.collect::<Result<_, _>>().map_err(|message| format!("controllers: {message}"))
}

fn tls_files(
    controllers: &[Url],
    ca_file: Option<PathBuf>,
    identity: (Option<PathBuf>, Option<PathBuf>),
) -> Result<Option<TlsFiles>, String> {
    let identity = match identity {
        (None, None) => None,
        (Some(certificate), Some(key)) => {
            Some((absolute("client_certificate", certificate)?, absolute("client_key", key)?))
        }
        (Some(_), None) => return Err("client_key is missing beside client_certificate".into()),
        (None, Some(_)) => return Err("client_certificate is missing beside client_key".into()),
    };
    match (ca_file, controllers.iter().find(|url| url.is_tls())) {
        (Some(file), _) => Ok(Some(TlsFiles { ca_file: absolute("ca_file", file)?, identity })),
        (None, Some(url)) => Err(format!(
            "ca_file is missing and {url} has TLS; name the file with the certificate of Farrier's authority, like \"/etc/farrier/ca.pem\""
        )),
        (None, None) if identity.is_some() => {
            Err("client_certificate needs ca_file and controllers with https://".into())
        }
        (None, None) => Ok(None),
    }
}

fn token(token: Option<String>, file: Option<PathBuf>) -> Result<Token, String> {
    match (token, file) {
        (Some(_), Some(_)) => Err("token and token_file are both there; keep one of them".into()),
        (Some(token), None) => checked_token("token", &token).map(Token::Here),
        (None, Some(file)) => absolute("token_file", file).map(Token::File),
        (None, None) => Ok(Token::None),
    }
}

/// A token must fit into a request. The error does not repeat it, because it is a secret.
fn checked_token(key: &str, text: &str) -> Result<SecretString, String> {
    let sound = !text.is_empty()
        && text.len() <= MAX_TOKEN_BYTES
        && text.bytes().all(|byte| byte.is_ascii_graphic());
    match sound {
        true => Ok(SecretString::from(text)),
        false => Err(format!(
            "{key}: that is no token: it has 1 to {MAX_TOKEN_BYTES} letters, digits and signs, and no blanks; paste the one you were given"
        )),
    }
}

fn unit_name(name: String) -> Result<String, String> {
    let sound = name.ends_with(".service")
        && !name.starts_with('-')
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.@".contains(&byte));
    match sound {
        true => Ok(name),
        false => Err(format!(
            "unit: {name:?} names no systemd service; write it like \"farrier-agent.service\""
        )),
    }
}

/// An absolute path without `.` and `..`.
fn absolute(key: &str, path: PathBuf) -> Result<PathBuf, String> {
    let straight = path.is_absolute()
        && path.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
    match straight {
        // Rebuilt, to remove doubled and trailing slashes.
        true => Ok(path.components().collect()),
        false => Err(format!(
            "{key}: {:?} is not an absolute path without `.` and `..`; write it from / on",
            path.display()
        )),
    }
}

/// The directory that an uninstall removes.
fn own_dir(key: &str, path: PathBuf) -> Result<PathBuf, String> {
    let path = absolute(key, path)?;
    match is_system(&path) {
        false => Ok(path),
        true => Err(format!(
            "{key}: {} belongs to the system, and an uninstall would remove it; write a folder of the agent's own, like {}",
            path.display(),
            state_dir().display()
        )),
    }
}

fn is_system(path: &Path) -> bool {
    if path.starts_with(SHARED_MEMORY) {
        return false;
    }
    SYSTEM.iter().any(|system| path.starts_with(system))
        || SHARED.iter().any(|shared| path == Path::new(shared))
}

fn check_scratch(config: &Config) -> Result<(), String> {
    let dirs = config.scratch_dirs.as_deref().unwrap_or_default();
    if dirs.len() > MAX_SCRATCH_DIRS {
        return Err(format!("scratch_dirs: there are {}; at most {MAX_SCRATCH_DIRS}", dirs.len()));
    }
    for dir in dirs {
        let plain = absolute("scratch_dirs", dir.clone())?;
        if plain.as_os_str() != dir.as_os_str() {
            return Err(format!(
                "scratch_dirs: {:?} is written with a detour; write {:?}",
                dir.display(),
                plain.display()
            ));
        }
        if is_system(dir) {
            return Err(format!(
                "scratch_dirs: {} belongs to the system and would be emptied; write the folder in it that is scratch, or leave it out",
                dir.display()
            ));
        }
        let own = [
            ("state_dir", &config.state_dir),
            ("hooks_dir", &config.hooks_dir),
            ("nvidia_smi", &config.nvidia_smi),
            ("systemctl", &config.systemctl),
        ];
        let lost = own.iter().find(|(_, path)| path.starts_with(dir) || dir.starts_with(path));
        if let Some((key, path)) = lost {
            return Err(format!(
                "scratch_dirs: emptying {} would touch {key} ({}); move one of them",
                dir.display(),
                path.display()
            ));
        }
    }
    Ok(())
}
