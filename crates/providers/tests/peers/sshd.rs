//! A real sshd for one test: its own port, keys, users and view of the file system. It stops with
//! the test.
//!
//! As root it runs in its own mount namespace with its own user database. So a test can have a user
//! with a password or an unusual shell, and a small disk, without changing the computer.

use crate::{DEADLINE, free_port, peer, skip};
use model::credential::AllowedAddresses;
use providers::ssh::{Endpoint, Hop, Host, HostKey, Login, LoginSecret, Route, Settings, Trust};
use secrecy::SecretString;
use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::thread::sleep;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const SSHD: &str = "FARRIER_TEST_SSHD";
const BUSYBOX: &str = "FARRIER_TEST_BUSYBOX";
const USER: &str = "farrier-tester";
const UID: u32 = 54_321;
pub const PASSWORD: &str = "correct horse";
const PASSWORD_HASH: &str = "$6$farriertest$w6aTHS16nS4nG9c27W8zxmXGK/mmJDn/SXYdjZIkySbiYOjasXaqIPAJsUvV61peQTnSYBuiJiAgUFoP.jkmd.";
pub const FIRST_BOOT_ID: &str = "00000000-0000-4000-8000-000000000001\n";
const START_ATTEMPTS: usize = 5;
/// The programs that a job may use on a host without `setsid`.
const USERLAND: [&str; 24] = [
    "cat", "chmod", "dd", "du", "echo", "find", "head", "id", "kill", "ls", "mkdir", "mkfifo",
    "mv", "ps", "rm", "rmdir", "seq", "sleep", "sync", "tail", "touch", "tr", "wc", "yes",
];

/// The shells and userlands of a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Userland {
    /// Those of this computer.
    Own,
    Busybox,
    Bash,
    WithoutSetsid,
}

#[derive(Debug, Clone)]
pub struct SshdOptions {
    pub userland: Userland,
    /// A file system of this size, in KiB, for the jobs. Requires root.
    pub disk_kib: Option<u32>,
    /// Programs that shadow those of the host: a name and a script.
    pub shims: Vec<(&'static str, String)>,
    /// A script that receives every command in `SSH_ORIGINAL_COMMAND`. Its folder is `HOME`.
    pub command_wrapper: Option<&'static str>,
    /// The host's own boot id, in the file `user/boot_id`. Requires root.
    pub own_boot_id: bool,
}

impl Default for SshdOptions {
    fn default() -> Self {
        Self {
            userland: Userland::Own,
            disk_kib: None,
            shims: Vec::new(),
            command_wrapper: None,
            own_boot_id: false,
        }
    }
}

pub struct Sshd {
    child: Child,
    port: u16,
    pub home: TempDir,
}

pub fn is_root() -> bool {
    static ROOT: OnceLock<bool> = OnceLock::new();
    *ROOT.get_or_init(|| id("-u") == "0")
}

fn id(option: &str) -> String {
    let message = Command::new("id").arg(option).output().unwrap().stdout;
    String::from_utf8(message).unwrap().trim().to_string()
}

/// Skips a test that requires root.
pub fn needs_root() -> bool {
    if !is_root() {
        skip("this needs root, for users and disks of its own");
    }
    is_root()
}

impl Sshd {
    pub fn start() -> Option<Self> {
        Self::with(&SshdOptions::default())
    }

    /// Starts a server, unless a program that it needs is missing.
    pub fn with(requested: &SshdOptions) -> Option<Self> {
        let program = peer(SSHD)?;
        let busybox = match requested.userland {
            Userland::Busybox => Some(peer(BUSYBOX)?),
            Userland::Own | Userland::Bash | Userland::WithoutSetsid => None,
        };
        for _ in 0..START_ATTEMPTS {
            // Another process may take the port in between; then another port is tried.
            let port = free_port();
            let home = tempfile::Builder::new().prefix("farrier-sshd-").tempdir().unwrap();
            fs::set_permissions(home.path(), fs::Permissions::from_mode(0o755)).unwrap();
            let shell = lay_out(home.path(), requested, busybox.as_deref());
            configure(home.path(), port, requested);
            let child = spawn(&program, home.path(), &shell, requested);
            let mut sshd = Self { child, port, home };
            if sshd.listens() {
                return Some(sshd);
            }
        }
        panic!("sshd did not start")
    }

    /// True if it listens, according to its own log: another process on the port would answer as
    /// well.
    fn listens(&mut self) -> bool {
        let started = Instant::now();
        let message = format!("Server listening on 127.0.0.1 port {}.", self.port);
        while started.elapsed() < DEADLINE {
            let log = fs::read_to_string(self.home.path().join("log")).unwrap_or_default();
            if log.contains(&message) {
                return true;
            }
            if self.child.try_wait().unwrap().is_some() {
                eprintln!("{log}");
                return false;
            }
            sleep(Duration::from_millis(20));
        }
        false
    }

    pub fn endpoint(&self) -> Endpoint {
        Endpoint { user: None, host: "127.0.0.1".into(), port: self.port }
    }

    pub fn host_key(&self) -> HostKey {
        self.file("host_key.pub").parse().unwrap()
    }

    pub fn file(&self, name: &str) -> String {
        fs::read_to_string(self.home.path().join(name)).unwrap()
    }

    pub fn login(&self, proof: LoginSecret) -> Login {
        let user = if is_root() { USER.to_string() } else { id("-un") };
        Login { user, proof, allowed: AllowedAddresses::Any }
    }

    pub fn key(&self) -> LoginSecret {
        LoginSecret::Key { pem: self.file("user_key").into(), passphrase: None }
    }

    pub fn hop(&self) -> Hop {
        Hop {
            endpoint: self.endpoint(),
            login: self.login(self.key()),
            trust: Trust::FirstUse(None),
        }
    }

    /// All files are in the server's own folder, and are deleted with it.
    pub fn settings(&self) -> Settings {
        let folder = self.home.path().join("disk/jobs");
        let folder = providers::ssh::Folder::parse(folder.to_str().unwrap()).unwrap();
        Settings { connect_timeout: DEADLINE, folder: Some(folder), ..Settings::default() }
    }

    pub async fn host(&self) -> Host {
        Host::connect(Route::direct(self.hop()), self.settings()).await.unwrap()
    }

    /// The processes that serve connections now: all below the listener.
    pub fn sessions(&self) -> Vec<u32> {
        self.sessions_among(&processes())
    }

    fn sessions_among(&self, processes: &Processes) -> Vec<u32> {
        let listener = self.child.id();
        let serves = |pid: u32| ancestors(processes, pid).any(|parent| parent == listener);
        let named = processes.iter().filter(|(_, (_, name))| name == "sshd");
        named.map(|(pid, _)| *pid).filter(|pid| serves(*pid)).collect()
    }

    pub fn signal_sessions(&self, signal: &str) {
        for pid in self.sessions() {
            send(signal, pid);
        }
    }
}

impl Drop for Sshd {
    /// Ends the server, and every job that a test left behind, found by its search path.
    fn drop(&mut self) {
        let bin = self.home.path().join("bin").display().to_string();
        let ours = |pid: u32| {
            fs::read(format!("/proc/{pid}/environ"))
                .is_ok_and(|environ| String::from_utf8_lossy(&environ).contains(&bin))
        };
        let processes = processes();
        let jobs = processes.keys().copied().filter(|pid| ours(*pid));
        for pid in self.sessions_among(&processes).into_iter().chain(jobs) {
            send("KILL", pid);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn send(signal: &str, pid: u32) {
    let _ =
        Command::new("kill").args(["-s", signal, &pid.to_string()]).stderr(Stdio::null()).status();
}

/// Every process: its parent and its name.
type Processes = BTreeMap<u32, (u32, String)>;

fn processes() -> Processes {
    let numbers = fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let read = |pid: u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let (head, tail) = stat.rsplit_once(") ")?;
        let parent: u32 = tail.split(' ').nth(1)?.parse().ok()?;
        Some((pid, (parent, head.split_once('(')?.1.to_string())))
    };
    numbers.filter_map(read).collect()
}

fn ancestors(processes: &Processes, pid: u32) -> impl Iterator<Item = u32> {
    const MAX_DEPTH: usize = 64;
    let parent = |pid: &u32| processes.get(pid).map(|(parent, _)| *parent);
    std::iter::successors(parent(&pid), parent).take(MAX_DEPTH)
}

/// Creates the keys, the user database and the programs. Returns the user's login shell.
fn lay_out(home: &Path, requested: &SshdOptions, busybox: Option<&Path>) -> PathBuf {
    for folder in ["bin", "disk", "user"] {
        fs::create_dir(home.join(folder)).unwrap();
        fs::set_permissions(home.join(folder), fs::Permissions::from_mode(0o777)).unwrap();
    }
    for (name, private, public) in user_keys().iter().chain(&host_keys()) {
        fs::write(home.join(name), private).unwrap();
        fs::set_permissions(home.join(name), fs::Permissions::from_mode(0o600)).unwrap();
        fs::write(home.join(format!("{name}.pub")), public).unwrap();
    }
    if requested.own_boot_id {
        fs::write(home.join("user/boot_id"), FIRST_BOOT_ID).unwrap();
        let anybody = fs::Permissions::from_mode(0o666);
        fs::set_permissions(home.join("user/boot_id"), anybody).unwrap();
    }
    if let Some(warden) = requested.command_wrapper {
        fs::write(home.join("warden"), warden).unwrap();
        fs::set_permissions(home.join("warden"), fs::Permissions::from_mode(0o755)).unwrap();
    }
    let read = |name: &str| fs::read_to_string(home.join(name)).unwrap();
    fs::write(home.join("authorized_keys"), read("user_key.pub") + &read("locked_key.pub"))
        .unwrap();
    let bin = home.join("bin");
    let shell = match (requested.userland, busybox) {
        (Userland::Busybox, Some(busybox)) => {
            // Without root the user's shell is another one, which has to find the programs of
            // busybox.
            let applets = Command::new(busybox).arg("--list").output().unwrap().stdout;
            for name in String::from_utf8(applets).unwrap().lines() {
                symlink(busybox, bin.join(name)).unwrap();
            }
            bin.join("sh")
        }
        (Userland::Bash, _) => {
            symlink(which("bash"), bin.join("sh")).unwrap();
            which("bash")
        }
        (Userland::WithoutSetsid, _) => {
            for name in USERLAND.into_iter().chain(["sh"]) {
                symlink(which(name), bin.join(name)).unwrap();
            }
            which("sh")
        }
        (Userland::Own | Userland::Busybox, _) => which("sh"),
    };
    for (name, script) in &requested.shims {
        write_program(&bin.join(name), script);
    }
    shell
}

/// Writes a program in place of another, which may be a link to a program of this computer: that
/// one must not be written.
fn write_program(file: &Path, script: &str) {
    match fs::remove_file(file) {
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        removed => removed.unwrap(),
    }
    fs::write(file, script).unwrap();
    fs::set_permissions(file, fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn a_program_of_this_computer_is_not_written() {
    let folder = tempfile::tempdir().unwrap();
    let (own, link) = (folder.path().join("own"), folder.path().join("link"));
    fs::write(&own, "the program").unwrap();
    symlink(&own, &link).unwrap();
    for script in ["first", "second"] {
        write_program(&link, script);
        assert_eq!(fs::read_to_string(&link).unwrap(), script);
    }
    assert_eq!(fs::read_to_string(&own).unwrap(), "the program");
}

/// A key: its name, the private half and the public half.
type Key = (&'static str, String, String);

/// The keys of the users, shared by all servers, because they take a second to create.
fn user_keys() -> &'static [Key] {
    static KEYS: OnceLock<Vec<Key>> = OnceLock::new();
    KEYS.get_or_init(|| {
        make_keys(&[
            ("user_key", "ed25519", ""),
            ("locked_key", "ecdsa", "open sesame"),
            ("stranger_key", "ed25519", ""),
            ("rsa_key", "rsa", ""),
        ])
    })
}

/// The keys of one server.
fn host_keys() -> Vec<Key> {
    make_keys(&[("host_key", "ed25519", ""), ("other_host_key", "ecdsa", "")])
}

fn make_keys(desired: &[(&'static str, &str, &str)]) -> Vec<Key> {
    let folder = tempfile::tempdir().unwrap();
    let make = |(name, kind, phrase): &(&'static str, &str, &str)| {
        let file = folder.path().join(name);
        let mut keygen = Command::new("ssh-keygen");
        keygen.args(["-q", "-t", kind, "-N", phrase, "-C", "test", "-f"]).arg(&file);
        assert!(keygen.status().unwrap().success());
        let public = fs::read_to_string(file.with_extension("pub")).unwrap();
        (*name, fs::read_to_string(&file).unwrap(), public)
    };
    desired.iter().map(make).collect()
}

fn which(name: &str) -> PathBuf {
    let path = std::env::var_os("PATH").unwrap();
    std::env::split_paths(&path)
        .map(|folder| folder.join(name))
        .find(|file| file.is_file())
        .unwrap_or_else(|| panic!("no {name} on PATH"))
}

fn configure(home: &Path, port: u16, requested: &SshdOptions) {
    let at = |name: &str| home.join(name).display().to_string();
    let usual = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
    let path = match requested.userland {
        Userland::Own | Userland::Bash => format!("{}:{usual}", at("bin")),
        Userland::Busybox | Userland::WithoutSetsid => at("bin"),
    };
    let warden = match requested.command_wrapper {
        Some(_) => format!("ForceCommand {}", at("warden")),
        None => String::new(),
    };
    let lines = [
        warden,
        format!("Port {port}"),
        "ListenAddress 127.0.0.1".into(),
        format!("HostKey {}", at("host_key")),
        format!("HostKey {}", at("other_host_key")),
        "PidFile none".into(),
        "UsePAM no".into(),
        "StrictModes no".into(),
        format!("AuthorizedKeysFile {}", at("authorized_keys")),
        "PasswordAuthentication yes".into(),
        "KbdInteractiveAuthentication no".into(),
        "AllowTcpForwarding yes".into(),
        "UseDNS no".into(),
        "MaxStartups 200".into(),
        "MaxSessions 50".into(),
        // Keeps the home of the user who runs the tests clean.
        format!("SetEnv PATH={path} HOME={}", at("user")),
    ];
    fs::write(home.join("sshd_config"), lines.join("\n") + "\n").unwrap();
}

/// Starts the server: directly, or as root with the requested users and disk.
fn spawn(program: &Path, home: &Path, shell: &Path, requested: &SshdOptions) -> Child {
    let at = |name: &str| home.join(name);
    let mut command = if is_root() {
        let user_home = at("user");
        let passwd = fs::read_to_string("/etc/passwd").unwrap();
        let line = format!("{USER}:x:{UID}:{UID}::{}:{}\n", user_home.display(), shell.display());
        fs::write(at("passwd"), passwd + &line).unwrap();
        let shadow = fs::read_to_string("/etc/shadow").unwrap();
        fs::write(at("shadow"), shadow + &format!("{USER}:{PASSWORD_HASH}:19000:0:99999:7:::\n"))
            .unwrap();
        let disk = requested.disk_kib.map_or(String::new(), |size| {
            format!("mount -t tmpfs -o size={size}k,mode=777 tmpfs disk\n")
        });
        let boot_id = match requested.own_boot_id {
            true => "mount --bind user/boot_id /proc/sys/kernel/random/boot_id\n",
            false => "",
        };
        // The folder for sshd's privilege separation is the namespace's own, too.
        let script = format!(
            "set -e\ncd \"$1\"\nmount --bind passwd /etc/passwd\nmount --bind shadow /etc/shadow\n\
             mount -t tmpfs -o mode=755 tmpfs /run\nmkdir /run/sshd\n{disk}{boot_id}shift\nexec \"$@\"\n"
        );
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-c", &script, "sh"]);
        command.arg(home).arg(program);
        command
    } else {
        assert!(
            requested.disk_kib.is_none() && !requested.own_boot_id,
            "these options require root"
        );
        Command::new(program)
    };
    command.arg("-D").arg("-f").arg(at("sshd_config")).arg("-E").arg(at("log"));
    command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap()
}

pub fn secret(text: &str) -> SecretString {
    text.to_string().into()
}
