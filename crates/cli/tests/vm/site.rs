//! Shared by the tests: the virtual machines of `cargo xtask test-vm`, a Farrier that manages them,
//! and a DHCP server with the configuration that Farrier prints.

use crate::fleet::{Server, Setup};
use crate::stage::{farrier, finish};
use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const NETBOOT_PORT: u16 = 8480;
const DHCP_START: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(100);
/// The number of console lines that a failed wait prints.
const CONSOLE_LINES_SHOWN: usize = 40;

fn variable(name: &str) -> String {
    let name = format!("FARRIER_VM_{name}");
    std::env::var(&name).unwrap_or_else(|_| panic!("{name} is not set; run `cargo xtask test-vm`"))
}

/// A virtual machine with its BMC and its console.
pub struct Vm {
    pub name: String,
    bmc: String,
    mac: String,
    serial: String,
    pub host: String,
    console: PathBuf,
}

impl Vm {
    /// The machine with this number, counted from one.
    pub fn numbered(number: usize) -> Self {
        let own = |list: &str| {
            let all = variable(list);
            let mine = all.split(' ').nth(number - 1);
            mine.unwrap_or_else(|| panic!("there is no machine {number} in {all:?}")).to_string()
        };
        let name = format!("vm-{number}");
        let console = Path::new(&variable("CONSOLES")).join(&name);
        Self {
            bmc: own("BMCS"),
            mac: own("MACS"),
            serial: own("SERIALS"),
            host: own("HOSTS"),
            console,
            name,
        }
    }

    /// The whole output of the serial console.
    pub fn console(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.console).unwrap()).into_owned()
    }

    /// Waits until the console contains these words.
    pub fn wait_for_console(&self, words: &str, timeout: Duration) {
        let started = Instant::now();
        println!("waiting for {} to say {words:?}, at most {} s", self.name, timeout.as_secs());
        while !self.console().contains(words) {
            assert!(started.elapsed() < timeout, "it never did; its console:\n{}", self.tail());
            std::thread::sleep(POLL);
        }
    }

    /// True if a process of this machine exists, without a call to the BMC.
    pub fn is_on(&self) -> bool {
        let name = format!("guest={},", self.name);
        let lines = std::fs::read_dir("/proc")
            .unwrap()
            .flatten()
            .filter_map(|process| std::fs::read(process.path().join("cmdline")).ok());
        lines
            .map(|line| String::from_utf8_lossy(&line).into_owned())
            .any(|line| line.contains(&name))
    }

    pub fn tail(&self) -> String {
        let text = self.console();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(CONSOLE_LINES_SHOWN)..].join("\n")
    }
}

/// A Farrier that manages one machine, and the DHCP server of its network.
pub struct Site {
    pub vm: Vm,
    server: Option<Server>,
    dhcp: Option<Child>,
    dir: tempfile::TempDir,
}

impl Drop for Site {
    fn drop(&mut self) {
        if let Some(dhcp) = &mut self.dhcp {
            let _ = dhcp.kill();
            let _ = dhcp.wait();
        }
        if std::thread::panicking() {
            eprintln!("the console of {}:\n{}", self.vm.name, self.vm.tail());
        }
    }
}

impl Site {
    /// Starts Farrier, registers the machine and its credentials, and starts the DHCP server.
    pub fn open(vm: Vm) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let config = format!(
            "[datacenter]\ngraceful_seconds = 0\nbmc_credential = \"bmc\"\nssh_credential = \"host\"\n\
             [netboot]\nlisten = \"{}:{NETBOOT_PORT}\"\ninsecure = true\ndeploy_dir = {:?}\ncmdline = \"console=ttyS0\"\n\
             [probes]\ninterval_ms = 2000",
            variable("ADDRESS"),
            variable("DEPLOY"),
        );
        let server = Server::start(Setup { config, ..Setup::new(dir.path(), "zero") });
        let mut site = Self { vm, server: Some(server), dhcp: None, dir };
        site.set_credentials();
        let Vm { name, bmc, mac, serial, host, .. } = &site.vm;
        let at = ["--provider", "datacenter", "--bmc-endpoint", bmc, "--ssh-endpoint", host];
        let known = ["--mac", mac, "--root-disk", &format!("serial:{serial}")];
        site.run(&[&["machine", "register", name][..], &at, &known].concat());
        site.serve_dhcp();
        site
    }

    fn set_credentials(&self) {
        let file = |name: &str| self.dir.path().join(name).display().to_string();
        std::fs::write(file("password"), variable("PASSWORD")).unwrap();
        let mut keygen = Command::new("ssh-keygen");
        keygen.args(["-q", "-t", "ed25519", "-N", "", "-C", "test", "-f"]).arg(file("key"));
        assert!(keygen.status().unwrap().success());
        let password = file("password");
        let any = ["--for", "0.0.0.0/0", "--allow-plain-http"];
        let bmc = ["credential", "set", "bmc", "--user", "root", "--password-file", &password];
        self.run(&[&bmc[..], &any].concat());
        let host = ["credential", "set", "host", "--user", "root", "--ssh-key", &file("key")];
        self.run(&[&host[..], &any].concat());
    }

    /// Runs dnsmasq with the configuration that Farrier prints; only the paths of its own files are
    /// added.
    fn serve_dhcp(&mut self) {
        let text = self.run(&["netboot", "config", "--interface", &variable("BRIDGE")]);
        let file = |name: &str| self.dir.path().join(name);
        std::fs::write(file("dnsmasq.conf"), text).unwrap();
        let log = std::fs::File::create(file("dnsmasq.log")).unwrap();
        let mut dnsmasq = Command::new("dnsmasq");
        dnsmasq.args(["--keep-in-foreground", "--user=root", "--log-facility=-", "--pid-file"]);
        dnsmasq.arg(format!("--conf-file={}", file("dnsmasq.conf").display()));
        dnsmasq.arg(format!("--dhcp-leasefile={}", file("leases").display()));
        dnsmasq.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        self.dhcp = Some(dnsmasq.spawn().unwrap());
        // The bind fails once dnsmasq has the port.
        let tftp = (variable("ADDRESS"), 69);
        let started = Instant::now();
        while UdpSocket::bind(tftp.clone()).is_ok() {
            let log = std::fs::read_to_string(file("dnsmasq.log")).unwrap_or_default();
            assert!(started.elapsed() < DHCP_START, "dnsmasq does not start:\n{log}");
            std::thread::sleep(POLL);
        }
    }

    fn server(&self) -> &Server {
        self.server.as_ref().expect("Farrier runs")
    }

    pub fn url(&self) -> String {
        self.server().url()
    }

    /// Runs a command that must succeed, and returns its output.
    #[track_caller]
    pub fn run(&self, args: &[&str]) -> String {
        println!("$ farrier {}", args.join(" "));
        let (code, stdout, stderr) = finish(farrier(&self.url(), args));
        assert_eq!(code, 0, "{args:?}\n{stdout}\n{stderr}\n{}", self.server().log());
        stdout
    }

    /// Like `run`, with the line split at spaces.
    #[track_caller]
    pub fn line(&self, line: &str) -> String {
        self.run(&line.split(' ').collect::<Vec<_>>())
    }

    /// Like `line`, with JSON output.
    #[track_caller]
    pub fn json(&self, line: &str) -> serde_json::Value {
        serde_json::from_str(&self.line(&format!("{line} -o json"))).unwrap()
    }

    /// Creates a plan from steps in the syntax of a plan file.
    #[track_caller]
    pub fn plan(&self, name: &str, steps: &str) {
        let file = self.dir.path().join(format!("{name}.yaml"));
        let text = format!("plan_id: {name}\ndisplay_name: {name}\nsteps:\n{steps}");
        std::fs::write(&file, text).unwrap();
        self.run(&["plan", "create", "--file", &file.display().to_string()]);
    }

    /// Sends SIGKILL, waits, and restarts Farrier on the same data.
    pub fn kill_and_start(&mut self, away: Duration) {
        let server = self.server.take().expect("Farrier runs");
        println!("killing Farrier ({}) with -9", server.pid());
        let setup = server.kill();
        std::thread::sleep(away);
        self.server = Some(Server::start(setup));
        println!("Farrier is back ({})", self.server().pid());
    }
}
