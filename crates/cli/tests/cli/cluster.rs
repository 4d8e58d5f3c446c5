//! A private PostgreSQL server that can be killed and restarted on the same data.

use crate::fleet::{TEST_TIMEOUT, free_port, signal, skip};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

pub struct Cluster {
    bin: PathBuf,
    home: tempfile::TempDir,
    port: u16,
    server: Child,
}

impl Cluster {
    /// None if the server's programs are missing or this user cannot run them.
    pub fn start() -> Option<Self> {
        let made = programs().and_then(|bin| {
            let home = tempfile::tempdir().unwrap();
            initialise(&bin, home.path()).then_some((bin, home))
        });
        let Some((bin, home)) = made else {
            skip("there is no PostgreSQL that this user may start");
            return None;
        };
        let port = free_port();
        let server = serve(&bin, home.path(), port);
        Some(Self { bin, home, port, server })
    }

    pub fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}", self.port)
    }

    /// Like `pg_ctl restart -m immediate` (QUIT) or `-m fast` (INT), with a pause in between.
    pub fn restart(&mut self, with: &str, away: Duration) {
        signal(self.server.id(), with);
        self.server.wait().unwrap();
        std::thread::sleep(away);
        self.server = serve(&self.bin, self.home.path(), self.port);
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let _ = Command::new("kill").args(["-QUIT", &self.server.id().to_string()]).status();
        let _ = self.server.wait();
    }
}

/// A command that runs one of the server's programs. PostgreSQL refuses to run as root, so root
/// switches to another user. The kernel ends the server if the test is killed.
fn program(bin: &Path, name: &str, home: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "QUIT"]);
    if let Some(Owner { user, group }) = owner() {
        let (user, group) = (user.to_string(), group.to_string());
        command.args(["--reuid", &user, "--regid", &group, "--clear-groups"]);
    }
    command.arg(bin.join(name)).current_dir(home).env("LC_ALL", "C").stdin(Stdio::null());
    let mut options = std::fs::File::options();
    let log = options.create(true).append(true).open(home.join("log")).unwrap();
    command.stdout(log.try_clone().unwrap()).stderr(log);
    command
}

struct Owner {
    user: u32,
    group: u32,
}

/// The user and group that must own the files; none if the test does not run as root.
fn owner() -> Option<Owner> {
    let id = |args: &[&str]| {
        let output = Command::new("id").args(args).stderr(Stdio::null()).output().ok()?;
        String::from_utf8_lossy(&output.stdout).trim().parse::<u32>().ok()
    };
    if id(&["-u"]) != Some(0) {
        return None;
    }
    ["postgres", "nobody"]
        .into_iter()
        .find_map(|name| Some(Owner { user: id(&["-u", name])?, group: id(&["-g", name])? }))
}

fn initialise(bin: &Path, home: &Path) -> bool {
    if let Some(Owner { user, group }) = owner() {
        std::os::unix::fs::chown(home, Some(user), Some(group)).unwrap();
    }
    let mut initdb = program(bin, "initdb", home);
    initdb.args(["--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C"]);
    let done = initdb.args(["--no-sync", "-D", "data"]).status();
    done.is_ok_and(|status| status.success())
}

fn serve(bin: &Path, home: &Path, port: u16) -> Child {
    let mut server = program(bin, "postgres", home);
    server.args(["-D", "data", "-p", &port.to_string(), "-c", "listen_addresses=127.0.0.1"]);
    // Only the server is killed, not the operating system, so no data is lost without fsync, and it
    // saves much time.
    server.args(["-c", "fsync=off"]);
    server.arg("-c").arg(format!("unix_socket_directories={}", home.display()));
    let mut server = server.spawn().unwrap();
    let started = Instant::now();
    loop {
        // The eighth line of the status file says whether the server accepts connections.
        let status = std::fs::read_to_string(home.join("data/postmaster.pid")).unwrap_or_default();
        let ours = status.lines().next() == Some(&server.id().to_string());
        if ours && status.lines().nth(7).is_some_and(|line| line.trim() == "ready") {
            return server;
        }
        let log = || std::fs::read_to_string(home.join("log")).unwrap_or_default();
        assert!(server.try_wait().unwrap().is_none(), "PostgreSQL ended:\n{}", log());
        assert!(started.elapsed() < TEST_TIMEOUT, "PostgreSQL does not start:\n{}", log());
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The directory of the server's programs: from PATH, else the newest Debian package.
fn programs() -> Option<PathBuf> {
    let complete =
        |folder: &PathBuf| ["initdb", "postgres"].iter().all(|name| folder.join(name).is_file());
    let path = std::env::var_os("PATH").unwrap_or_default();
    let version = |bin: &PathBuf| bin.parent()?.file_name()?.to_str()?.parse::<u32>().ok();
    std::env::split_paths(&path).find(complete).or_else(|| {
        let versions = std::fs::read_dir("/usr/lib/postgresql").ok()?;
        let folders = versions.flatten().map(|entry| entry.path().join("bin")).filter(complete);
        folders.max_by_key(version)
    })
}
