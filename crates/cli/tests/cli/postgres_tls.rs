//! TLS towards PostgreSQL, against a server of the test's own with a certificate.

use crate::fleet::{DatabaseKind, Server, Setup, TEST_TIMEOUT, free_port, seal_key, skip};
use crate::pki::{Authority, Files, Usage};
use std::fs::File;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Every connection needs TLS; the database `postgres` needs a client certificate too.
const ACCESS: &str = "hostssl postgres postgres 127.0.0.1/32 trust clientcert=verify-ca\n\
                      hostssl template1 postgres 127.0.0.1/32 trust\n";

/// The folder with `initdb` and `postgres`.
fn programs() -> Option<PathBuf> {
    let debian = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let debian = debian.map(|version| version.path().join("bin"));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path: Vec<PathBuf> = std::env::split_paths(&path).collect();
    let complete = |dir: &PathBuf| dir.join("initdb").exists() && dir.join("postgres").exists();
    debian.chain(path).find(complete)
}

/// A PostgreSQL whose files are in the directory of the test.
struct Cluster {
    bin: PathBuf,
    home: PathBuf,
    port: u16,
    child: Option<Child>,
}

impl Cluster {
    fn new(bin: PathBuf, home: &Path, authority: &Authority, clients: &Path) -> Self {
        let home = home.join("postgres");
        std::fs::create_dir(&home).unwrap();
        let cluster = Self { bin, port: free_port(), child: None, home };
        let server = (Usage::Server, ["localhost"].as_slice(), 1);
        authority.issue(&cluster.home, "server", server);
        std::fs::copy(clients, cluster.home.join("clients.pem")).unwrap();
        // PostgreSQL refuses to run as root, and needs a key of its own.
        if is_root() {
            let status = Command::new("chown").args(["-R", "nobody"]).arg(&cluster.home).status();
            assert!(status.unwrap().success());
        }
        let data = cluster.home.join("data");
        let mut initdb = cluster.program("initdb");
        initdb.args(["--username=postgres", "--auth=trust", "--no-sync", "-D"]).arg(&data);
        assert!(initdb.stdout(Stdio::null()).status().unwrap().success());
        std::fs::write(data.join("pg_hba.conf"), ACCESS).unwrap();
        cluster
    }

    fn program(&self, name: &str) -> Command {
        let program = self.bin.join(name);
        let mut command = Command::new("setpriv");
        if is_root() {
            command.args(["--reuid", "nobody", "--regid", "nogroup", "--clear-groups"]);
        }
        command.args(["--pdeathsig", "KILL"]).arg(program);
        command.current_dir(&self.home).env("LC_ALL", "C").stdin(Stdio::null());
        command
    }

    /// Starts it again, with or without TLS.
    fn start(&mut self, tls: bool) {
        self.stop();
        let log = File::options().create(true).append(true).open(self.home.join("log")).unwrap();
        let file = |name: &str| self.home.join(name).display().to_string();
        let mut settings = vec![
            format!("port={}", self.port),
            "listen_addresses=127.0.0.1".into(),
            "unix_socket_directories=".into(),
            "fsync=off".into(),
            "log_statement=all".into(),
            format!("ssl={}", if tls { "on" } else { "off" }),
        ];
        if tls {
            settings.push(format!("ssl_cert_file={}", file("server.pem")));
            settings.push(format!("ssl_key_file={}", file("server.key")));
            settings.push(format!("ssl_ca_file={}", file("clients.pem")));
        }
        let mut server = self.program("postgres");
        server.arg("-D").arg(self.home.join("data"));
        for setting in settings {
            server.args(["-c", &setting]);
        }
        self.child = Some(server.stderr(log).stdout(Stdio::null()).spawn().unwrap());
        let started = Instant::now();
        while std::net::TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            assert!(started.elapsed() < TEST_TIMEOUT, "{}", self.log());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn stop(&mut self) {
        if let Some(mut child) = self.child.take() {
            crate::fleet::signal(child.id(), "INT");
            child.wait().unwrap();
        }
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.home.join("log")).unwrap_or_default()
    }

    fn url(&self, host: &str, database: &str, parameters: &str) -> String {
        format!("postgres://postgres@{host}:{}/{database}?{parameters}", self.port)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.stop();
    }
}

fn is_root() -> bool {
    let output = Command::new("id").arg("-u").output().unwrap();
    output.stdout == b"0\n"
}

/// Tries to serve with this database, and expects a refusal; returns its words.
fn refusal(dir: &Path, url: &str) -> String {
    let output = Command::new("timeout")
        .args(["60", env!("CARGO_BIN_EXE_farrier"), "serve", "--listen", "127.0.0.1:0"])
        .args(["--data-dir".as_ref(), dir.as_os_str()])
        .args(["--database-url", url])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).to_string();
    assert_eq!(output.status.code(), Some(4), "{url}: {said}");
    said
}

#[test]
fn the_server_of_the_database_proves_its_identity() {
    let Some(bin) = programs() else {
        skip("PostgreSQL's initdb and postgres are not installed");
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let (authority, foreign) = (Authority::new("servers"), Authority::new("foreign"));
    let ca = authority.write(&dir.path().join("ca.pem"));
    let other = foreign.write(&dir.path().join("foreign.pem"));
    let clients = Authority::new("clients");
    let clients_ca = clients.write(&dir.path().join("clients.pem"));
    let client = (Usage::Client, [].as_slice(), 2);
    let Files { certificate, key } = clients.issue(dir.path(), "farrier", client);
    let stranger = foreign.issue(dir.path(), "stranger", client);
    let mut cluster = Cluster::new(bin, dir.path(), &authority, &clients_ca);
    cluster.start(true);

    let full = format!("sslmode=verify-full&sslrootcert={}", ca.display());
    let identity = |files: (&Path, &Path)| {
        format!("&sslcert={}&sslkey={}", files.0.display(), files.1.display())
    };
    let known = identity((&certificate, &key));
    let any_name = full.replace("verify-full", "verify-ca");
    for (name, url) in [
        ("full", cluster.url("localhost", "template1", &full)),
        ("certificate", cluster.url("localhost", "postgres", &format!("{full}{known}"))),
        ("any-name", cluster.url("127.0.0.1", "template1", &any_name)),
        ("unverified", cluster.url("127.0.0.1", "template1", "sslmode=require")),
    ] {
        let mut setup = Setup::new(&dir.path().join(name), "zero");
        setup.top = seal_key(&dir.path().join("seal.key"));
        setup.home = DatabaseKind::Postgres(url);
        let server = Server::start(setup);
        // Only connections with TLS are let in, and this one listens for signals.
        let started = Instant::now();
        while !cluster.log().contains("LISTEN farrier") {
            assert!(started.elapsed() < TEST_TIMEOUT, "{name}: {}", cluster.log());
            std::thread::sleep(Duration::from_millis(50));
        }
        server.kill();
        std::fs::write(cluster.home.join("log"), "").unwrap();
    }

    let unknown = full.replace(ca.to_str().unwrap(), other.to_str().unwrap());
    let wrong = identity((&stranger.certificate, &stranger.key));
    for (url, words) in [
        (cluster.url("127.0.0.1", "template1", &full), "use a host name of its certificate"),
        (cluster.url("localhost", "template1", &unknown), "name the file of its authority"),
        (cluster.url("localhost", "postgres", &full), "client certificate"),
        (cluster.url("localhost", "postgres", &format!("{full}{wrong}")), "authority of sslcert"),
        (cluster.url("localhost", "template1", "sslmode=disable"), "no encryption"),
        (cluster.url("localhost", "template1", "sslmode=verify-full"), "needs sslrootcert"),
        (cluster.url("localhost", "template1", "sslmode=allow"), "sslmode=allow is not supported"),
    ] {
        let said = refusal(&dir.path().join("refused"), &url);
        assert!(said.contains(words), "{url}: {said}");
    }
    cluster.start(false);
    let said = refusal(&dir.path().join("refused"), &cluster.url("localhost", "template1", &full));
    assert!(said.contains("does not support TLS") && said.contains("ssl = on"), "{said}");
}
