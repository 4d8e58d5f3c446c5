//! The Redfish client against sushy-tools, a third-party Redfish emulator: TLS with our own
//! authority, basic authentication, two Systems, and power that takes seconds to change.

use crate::certs::Authority;
use crate::fake_bmc::login;
use crate::http::{Peer, Response};
use crate::{free_port, peer, skip, until};
use model::credential::AllowedAddresses;
use model::fault::{Fault, FaultCode};
use providers::http_client::Trust;
use providers::redfish::{
    Bmc, BmcAddress, BootSource, BootSpan, Login, Power, Reset, Settings, System, SystemSelector,
    TaskRef,
};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;

const PROGRAM: &str = "FARRIER_TEST_SUSHY";
/// The emulator changes the power up to 11 s after the request.
const POWER_WITHIN: Duration = Duration::from_secs(90);
/// The bcrypt hash of the password that all tests use, with the lowest cost.
const HTPASSWD: &str = "root:$2y$04$g1kJ9kcG.7ROVx4dfHP3q.2bFHUKoKB8aGBjgBl1RNSZswkYBCR7W\n";

/// An emulator that runs as long as this value exists.
pub struct Emulator {
    process: Child,
    port: u16,
    authority: Authority,
    folder: TempDir,
}

impl Emulator {
    /// Starts one, unless its program is missing.
    pub async fn or_skip() -> Option<Self> {
        Some(Self::start(peer(PROGRAM)?, &fake()).await)
    }

    /// Starts one with a machine of libvirt's test driver, which accepts firmware, unless its
    /// program or libvirt's binding is missing.
    pub async fn with_firmware() -> Option<Self> {
        let program = peer(PROGRAM)?;
        let bound = Command::new(program.with_file_name("python"))
            .args(["-c", "import libvirt"])
            .stderr(Stdio::null())
            .status();
        if !bound.is_ok_and(|status| status.success()) {
            skip("the emulator has no libvirt; `cargo xtask test` binds it where libvirt-dev is");
            return None;
        }
        Some(Self::start(program, "SUSHY_EMULATOR_LIBVIRT_URI = 'test:///default'\n").await)
    }

    pub fn url(&self) -> String {
        format!("https://127.0.0.1:{}", self.port)
    }

    /// The MAC address of one of its machines, which the other does not have.
    pub fn mac(&self) -> String {
        mac(1)
    }

    async fn start(program: PathBuf, driver: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let authority = Authority::new();
        let identity = authority.issue("127.0.0.1", 2099);
        let port = free_port();
        let file = |name: &str| folder.path().join(name).display().to_string();
        std::fs::write(file("cert.pem"), &identity.pem).unwrap();
        std::fs::write(file("key.pem"), identity.key.serialize_pem()).unwrap();
        std::fs::write(file("htpasswd"), HTPASSWD).unwrap();
        std::fs::create_dir(file("state")).unwrap();
        let config = format!(
            "SUSHY_EMULATOR_LISTEN_IP = '127.0.0.1'\n\
             SUSHY_EMULATOR_LISTEN_PORT = {port}\n\
             SUSHY_EMULATOR_SSL_CERT = '{}'\n\
             SUSHY_EMULATOR_SSL_KEY = '{}'\n\
             SUSHY_EMULATOR_AUTH_FILE = '{}'\n\
             SUSHY_EMULATOR_STATE_DIR = '{}'\n\
             SUSHY_EMULATOR_FEATURE_SET = 'full'\n\
             {driver}",
            file("cert.pem"),
            file("key.pem"),
            file("htpasswd"),
            file("state"),
        );
        std::fs::write(file("fake.conf"), config).unwrap();
        let log = std::fs::File::create(file("log")).unwrap();
        let process = Command::new(program)
            .args(["--config", &file("fake.conf")])
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        let emulator = Self { process, port, authority, folder };
        emulator.wait().await;
        emulator
    }

    async fn wait(&self) {
        let what = format!("the emulator listens; see {:?}", self.folder.path().join("log"));
        let address = ("127.0.0.1", self.port);
        until(&what, async || tokio::net::TcpStream::connect(address).await.is_ok()).await;
    }

    async fn connect(&self, login: Login, trust: Trust) -> Result<Bmc, Fault> {
        let endpoint = BmcAddress::parse(&self.url()).unwrap();
        let settings =
            Settings { poll_interval: Duration::from_millis(200), ..Settings::default() };
        Bmc::connect(endpoint, login, trust, settings).await
    }

    pub fn trust(&self) -> Trust {
        Trust::ca_from_pem(self.authority.pem().as_bytes()).unwrap()
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Two fake machines.
fn fake() -> String {
    format!(
        "SUSHY_EMULATOR_FAKE_DRIVER = True\nSUSHY_EMULATOR_FAKE_SYSTEMS = [{}, {}]\n",
        node(1),
        node(2)
    )
}

fn node(number: u8) -> String {
    format!(
        "{{'uuid': '{}', 'name': 'node{number}', 'power_state': 'Off', 'external_notifier': False, \
         'nics': [{{'mac': '{}', 'ip': '10.0.0.{number}'}}]}}",
        uuid(number),
        mac(number)
    )
}

fn uuid(number: u8) -> String {
    format!("00000000-0000-4000-8000-00000000000{number}")
}

fn mac(number: u8) -> String {
    format!("02:00:00:00:00:0{number}")
}

#[tokio::test]
async fn sushy_is_read_and_changed() {
    let Some(program) = peer(PROGRAM) else { return };
    let emulator = Emulator::start(program, &fake()).await;
    strangers_are_refused(&emulator).await;
    let bmc = emulator.connect(login(), emulator.trust()).await.unwrap();
    the_system_is_chosen(&bmc).await;
    let desired = SystemSelector { macs: vec![mac(2)], ..SystemSelector::default() };
    let system = bmc.system(&desired).await.unwrap();
    let requested = system.reset(Reset::On).await;
    assert_eq!(requested, Ok(()));
    // The other tests run while the power changes.
    boots(&system).await;
    reports_what_it_cannot_do(&system).await;
    carries_media(&system).await;
    is_described(&bmc, &system).await;
    system.wait_for_power(Power::On, POWER_WITHIN).await.unwrap();
    system.reset(Reset::ForceOff).await.unwrap();
    system.wait_for_power(Power::Off, POWER_WITHIN).await.unwrap();
}

async fn strangers_are_refused(emulator: &Emulator) {
    let stranger = Trust::ca_from_pem(Authority::new().pem().as_bytes()).unwrap();
    let fault = emulator.connect(login(), stranger).await.err().unwrap();
    assert_eq!(fault.code, FaultCode::IdentityUntrusted, "{fault}");
    let wrong =
        Login { user: "root".into(), password: "wrong".into(), allowed: AllowedAddresses::Any };
    let fault = emulator.connect(wrong, emulator.trust()).await.err().unwrap();
    assert_eq!(fault.code, FaultCode::LoginRefused, "{fault}");
}

async fn the_system_is_chosen(bmc: &Bmc) {
    let fault = bmc.system(&SystemSelector::default()).await.err().unwrap();
    assert_eq!(fault.code, FaultCode::SystemAmbiguous, "{fault}");
    assert!(fault.message.contains(&uuid(1)) && fault.message.contains(&uuid(2)), "{fault}");
    // A System's name is redirected to its id.
    let named = SystemSelector { id: Some("node1".into()), ..SystemSelector::default() };
    assert_eq!(bmc.system(&named).await.unwrap().id(), uuid(1));
}

async fn boots(system: &System) {
    for source in [BootSource::Pxe, BootSource::Cd, BootSource::Hdd] {
        let observed = system.set_boot(source, BootSpan::Once).await.unwrap();
        // It shows every override as continuous, and that must be reported.
        assert_eq!((observed.source, observed.span), (Some(source), Some(BootSpan::Continuous)));
    }
}

/// It cannot disable an override, and fails on an update of a fake machine.
async fn reports_what_it_cannot_do(system: &System) {
    let fault = system.set_boot(BootSource::None, BootSpan::Once).await.unwrap_err();
    assert_eq!(fault.code, FaultCode::EffectFailed, "{fault}");
    let target = [system.path().to_owned()];
    let fault = system.simple_update("http://127.0.0.1/bios.bin", &target).await.unwrap_err();
    assert_eq!(fault.code, FaultCode::AnswerLost, "{fault}");
    assert!(fault.message.contains("BIOS"), "the emulator's message is passed on: {fault}");
    let fault = system.reset(Reset::PowerCycle).await.unwrap_err();
    assert_eq!(fault.code, FaultCode::NotSupported, "{fault}");
}

async fn carries_media(system: &System) {
    let image = Peer::start(|_| Response::status(200, "an image")).await;
    let url = format!("{}/agent.iso", image.url());
    let media = system.insert_media(&url).await.unwrap();
    assert!(media.inserted);
    assert_eq!(media.image.as_deref(), Some(url.as_str()));
    assert!(!system.eject_media(&media.path).await.unwrap().inserted);
}

async fn is_described(bmc: &Bmc, system: &System) {
    let inventory = system.inventory().await.unwrap();
    let macs: Vec<&str> = inventory.nics.iter().map(|nic| nic.mac.as_str()).collect();
    assert_eq!(macs, [mac(2)], "{inventory:?}");
    let bios = system.bios().await.unwrap_err();
    assert_eq!(bios.code, FaultCode::NotSupported, "{bios}");
    let task = TaskRef::parse("/redfish/v1/TaskService/Tasks/42").unwrap();
    assert_eq!(bmc.task(&task).await.unwrap().state.ended(), Some(true));
}
