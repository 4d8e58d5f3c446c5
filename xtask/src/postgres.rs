//! A private PostgreSQL for one test run: its own directory, its own port on loopback, deleted
//! afterwards.
//!
//! The server is a child in the same process group, so Ctrl-C reaches it as well, and SIGINT is
//! PostgreSQL's fast shutdown. Where `setpriv` is available, the kernel sends the same signal if
//! this process is killed. Only the directory may then be left behind: its name contains the
//! process ID, and the next run deletes the directories of dead processes.

use crate::shell::{self, Failure};
use std::fs::{self, File};
use std::io;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const FOLDER_PREFIX: &str = "farrier-test-postgres-";
const MAX_CONNECTIONS: &str = "max_connections=300";
const START_ATTEMPTS: usize = 3;
const START_TIMEOUT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(50);
const STOP_TIMEOUT_S: &str = "30";
const LOG_LINES_SHOWN: usize = 20;

/// Keeps the Debian package from creating and starting its own cluster on the default port.
const INSTALL: &str = "\
set -e
export DEBIAN_FRONTEND=noninteractive
folder=/etc/postgresql-common/createcluster.d
mkdir -p \"$folder\"
echo 'create_main_cluster = false' > \"$folder/farrier-test.conf\"
trap 'rm -f \"$folder/farrier-test.conf\"' EXIT
apt-get update || echo 'some package lists could not be fetched; trying with the others'
apt-get install -y --no-install-recommends postgresql
";

/// The server's programs, and the user that they run as: PostgreSQL refuses to run as root.
#[derive(Clone)]
pub struct Tools {
    bin: PathBuf,
    user: Option<User>,
}

#[derive(Clone)]
struct User {
    name: &'static str,
    uid: u32,
    gid: u32,
}

impl Tools {
    /// Finds PostgreSQL, or installs it where that needs no password.
    pub fn find_or_install() -> Result<Self, Failure> {
        let next = "install PostgreSQL's server programs (Debian: `apt-get install postgresql`), \
                    or set FARRIER_TEST_POSTGRES to a server the tests may make databases on";
        if find_bin().is_none() {
            println!("PostgreSQL is not installed; installing it from the system's packages");
            let absent =
                || Failure::new("PostgreSQL's initdb, pg_ctl and postgres were not found", next);
            shell::run(&mut shell::administrator_command(INSTALL).ok_or_else(absent)?, next)?;
        }
        let bin = find_bin().ok_or_else(|| {
            Failure::new("PostgreSQL was installed but its programs were not found", next)
        })?;
        let user = if shell::is_root() { Some(unprivileged_user()?) } else { None };
        Ok(Self { bin, user })
    }

    /// A command that runs one of the server's programs in `home`, not as root.
    fn program(&self, name: &str, home: &Path) -> Command {
        let program = self.bin.join(name);
        let setpriv = shell::find("setpriv");
        let mut command = match (&self.user, setpriv) {
            (None, None) => Command::new(program),
            (None, Some(setpriv)) => {
                let mut command = Command::new(setpriv);
                command.args(["--pdeathsig", "INT"]).arg(program);
                command
            }
            (Some(user), Some(setpriv)) => {
                let mut command = Command::new(setpriv);
                let (uid, gid) = (user.uid.to_string(), user.gid.to_string());
                command
                    .args([
                        "--reuid",
                        &uid,
                        "--regid",
                        &gid,
                        "--clear-groups",
                        "--pdeathsig",
                        "INT",
                    ])
                    .arg(program);
                command
            }
            (Some(user), None) => {
                let mut command = Command::new("su");
                command
                    .args(["-s", "/bin/sh", user.name, "-c", "exec \"$0\" \"$@\"", "--"])
                    .arg(program);
                command
            }
        };
        command.current_dir(home).env("HOME", home).env("LC_ALL", "C").stdin(Stdio::null());
        command
    }

    fn initialise(&self, home: &Path) -> Result<(), Failure> {
        let log = home.join("initdb.log");
        let next =
            format!("the temporary folder {} must be reachable for other users", home.display());
        let mut initdb = self.program("initdb", home);
        initdb.args([
            "--username=postgres",
            "--auth=trust",
            "--encoding=UTF8",
            "--locale=C",
            "--no-sync",
            "-D",
        ]);
        initdb.arg(home.join("data"));
        log_to(&mut initdb, &log)?;
        shell::run(&mut initdb, &next).inspect_err(|_| print_log_tail(&log))
    }

    /// Stops immediately, because all data is about to be deleted.
    fn stop(&self, home: &Path) -> bool {
        let mut stop = self.program("pg_ctl", home);
        stop.args(["stop", "--mode=immediate", "--wait", "--timeout", STOP_TIMEOUT_S, "-D"]);
        shell::succeeds(stop.arg(home.join("data")))
    }
}

/// A running server. Dropping it stops the server and deletes its directory.
pub struct Cluster {
    tools: Tools,
    server: Child,
    port: u16,
    home: ClusterDirectory,
}

impl Cluster {
    pub fn start(tools: &Tools) -> Result<Self, Failure> {
        remove_stale(tools);
        let home = ClusterDirectory::create(tools.user.as_ref()).map_err(|error| {
            Failure::new(
                format!("no folder for PostgreSQL: {error}"),
                "set TMPDIR to a folder with space",
            )
        })?;
        tools.initialise(&home.0)?;
        let log = home.0.join("postgres.log");
        for _ in 0..START_ATTEMPTS {
            // Another process may take the port before the server binds it; then another port is
            // tried.
            let port = free_port()?;
            let mut server = spawn_server(tools, &home.0, port, &log)?;
            if is_ready(&mut server, &home.0) {
                return Ok(Self { tools: tools.clone(), server, port, home });
            }
            kill_server(&mut server);
        }
        print_log_tail(&log);
        Err(Failure::new("PostgreSQL did not start", "read its last lines above"))
    }

    /// The URL for the tests. Each test creates its own database.
    pub fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}", self.port)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if !self.tools.stop(&self.home.0) {
            eprintln!("xtask: PostgreSQL did not stop when asked; killing it");
            let _ = self.server.kill();
        }
        let _ = self.server.wait();
    }
}

/// The directory of one run. Dropping it deletes the directory.
struct ClusterDirectory(PathBuf);

impl ClusterDirectory {
    fn create(owner: Option<&User>) -> io::Result<Self> {
        let path = std::env::temp_dir().join(format!("{FOLDER_PREFIX}{}", std::process::id()));
        fs::create_dir(&path)?;
        let home = Self(path);
        if let Some(user) = owner {
            std::os::unix::fs::chown(&home.0, Some(user.uid), Some(user.gid))?;
        }
        Ok(home)
    }
}

impl Drop for ClusterDirectory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn spawn_server(tools: &Tools, home: &Path, port: u16, log: &Path) -> Result<Child, Failure> {
    let mut server = tools.program("postgres", home);
    server.arg("-D").arg(home.join("data")).arg("-p").arg(port.to_string());
    server.arg("-c").arg(format!("unix_socket_directories={}", home.display()));
    server.args(["-c", "listen_addresses=127.0.0.1", "-c", "fsync=on", "-c", MAX_CONNECTIONS]);
    log_to(&mut server, log)?;
    server.spawn().map_err(|error| {
        Failure::new(format!("PostgreSQL did not start: {error}"), "see the error")
    })
}

/// Waits for the line in the status file that says that the server accepts connections.
fn is_ready(server: &mut Child, home: &Path) -> bool {
    let started = Instant::now();
    while started.elapsed() < START_TIMEOUT {
        if status_line(home, 7).is_some_and(|status| status == "ready") {
            return true;
        }
        if !matches!(server.try_wait(), Ok(None)) {
            return false;
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    false
}

fn kill_server(server: &mut Child) {
    let _ = server.kill();
    let _ = server.wait();
}

/// A line of the server's status file: the first is its process ID, the eighth its status.
fn status_line(home: &Path, index: usize) -> Option<String> {
    let text = fs::read_to_string(home.join("data/postmaster.pid")).ok()?;
    text.lines().nth(index).map(|line| line.trim().to_owned())
}

fn free_port() -> Result<u16, Failure> {
    TcpListener::bind(("127.0.0.1", 0))
        .and_then(|listener| listener.local_addr())
        .map(|address| address.port())
        .map_err(|error| {
            Failure::new(format!("no free port on loopback: {error}"), "check that loopback is up")
        })
}

fn log_to(command: &mut Command, log: &Path) -> Result<(), Failure> {
    let open = || File::options().create(true).append(true).open(log);
    let failed = |error| {
        Failure::new(format!("{}: {error}", log.display()), "set TMPDIR to a folder with space")
    };
    command.stdout(open().map_err(failed)?).stderr(open().map_err(failed)?);
    Ok(())
}

fn print_log_tail(log: &Path) {
    let text = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    for line in lines.iter().skip(lines.len().saturating_sub(LOG_LINES_SHOWN)) {
        eprintln!("  {line}");
    }
}

/// Deletes what killed runs left behind, and stops their servers if they still run.
fn remove_stale(tools: &Tools) {
    let Ok(entries) = fs::read_dir(std::env::temp_dir()) else { return };
    for home in entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.is_dir() && !path.is_symlink())
    {
        let Some(owner) = owner_pid(&home) else { continue };
        let owner_runs = owner != std::process::id()
            && command_line(owner).is_some_and(|line| line.contains("xtask"));
        if owner_runs {
            continue;
        }
        println!("removing {}, left behind by a run that was killed", home.display());
        let server =
            status_line(&home, 0).and_then(|line| line.parse().ok()).and_then(command_line);
        // A process ID may have been reused, so the command line must name this directory.
        if server.is_some_and(|line| line.contains(&*home.to_string_lossy())) {
            tools.stop(&home);
        }
        let _ = fs::remove_dir_all(&home);
    }
}

/// The process ID in the directory's name, if it is one of ours.
fn owner_pid(home: &Path) -> Option<u32> {
    home.file_name()?.to_str()?.strip_prefix(FOLDER_PREFIX)?.parse().ok()
}

/// The command line of a process; none if there is no such process.
fn command_line(pid: u32) -> Option<String> {
    if let Ok(bytes) = fs::read(format!("/proc/{pid}/cmdline")) {
        return Some(String::from_utf8_lossy(&bytes).replace('\0', " "));
    }
    let output =
        Command::new("ps").args(["-o", "command=", "-p", &pid.to_string()]).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The directory with all three programs: from PATH, else the newest Debian package.
fn find_bin() -> Option<PathBuf> {
    let complete = |folder: &PathBuf| {
        ["initdb", "pg_ctl", "postgres"].iter().all(|name| folder.join(name).is_file())
    };
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).find(complete).or_else(|| {
        let versions = fs::read_dir("/usr/lib/postgresql").ok()?;
        let folders = versions.flatten().map(|entry| entry.path().join("bin")).filter(complete);
        folders.max_by_key(|folder| version_of(folder))
    })
}

fn version_of(bin: &Path) -> u32 {
    let name =
        bin.parent().and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned());
    name.and_then(|name| name.parse().ok()).unwrap_or(0)
}

fn unprivileged_user() -> Result<User, Failure> {
    ["postgres", "nobody"]
        .into_iter()
        .find_map(|name| {
            Some(User { name, uid: shell::id(&["-u", name])?, gid: shell::id(&["-g", name])? })
        })
        .ok_or_else(|| {
            Failure::new(
                "PostgreSQL refuses to run as root, and there is no user `postgres` or `nobody`",
                "run as another user",
            )
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_of_ours_is_known_by_its_name() {
        assert_eq!(owner_pid(Path::new("/tmp/farrier-test-postgres-4711")), Some(4711));
        assert_eq!(owner_pid(Path::new("/tmp/farrier-test-postgres-")), None);
        assert_eq!(owner_pid(Path::new("/tmp/farrier-test-postgres-x")), None);
        assert_eq!(owner_pid(Path::new("/tmp/something-else-4711")), None);
    }

    #[test]
    fn the_newest_version_counts_as_a_number() {
        let newest =
            ["9/bin", "15/bin", "odd/bin"].into_iter().max_by_key(|bin| version_of(Path::new(bin)));
        assert_eq!(newest, Some("15/bin"));
    }

    #[test]
    fn a_process_is_known_by_what_it_was_started_with() {
        assert!(command_line(std::process::id()).is_some_and(|line| line.contains("xtask")));
        assert!(command_line(u32::MAX).is_none());
    }

    #[test]
    fn the_status_file_is_read_by_line() {
        let home = std::env::temp_dir().join(format!("xtask-status-{}", std::process::id()));
        fs::create_dir_all(home.join("data")).unwrap();
        fs::write(home.join("data/postmaster.pid"), "12\na\nb\nc\nd\ne\nf\nready   \n").unwrap();
        assert_eq!(status_line(&home, 0).as_deref(), Some("12"));
        assert_eq!(status_line(&home, 7).as_deref(), Some("ready"));
        assert_eq!(status_line(&home, 8), None);
        fs::remove_dir_all(&home).unwrap();
    }
}
