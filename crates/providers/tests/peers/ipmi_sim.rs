//! IPMI against OpenIPMI's `ipmi_sim`, one controller per test. The chassis behind it is a script:
//! it keeps the power and the boot device in files, records every call, and is slow, hangs or
//! refuses on demand.

use crate::{DEADLINE, free_port, peer};
use model::credential::AllowedAddresses;
use model::fault::{Fault, FaultCode};
use providers::ipmi::{
    Bmc, Boot, BootDevice, BootDuration, BootFrom, BootReadback, ChassisControl, Cipher, Login,
    Power, Privilege, Settings,
};
use std::fs;
use std::net::UdpSocket;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const PEER: &str = "FARRIER_TEST_IPMI_SIM";
pub const PASSWORD: &str = "correct-horse";

const LAN: &str = r#"name "farrier"
set_working_mc 0x20
  startlan 1
    addr 127.0.0.1 PORT
    priv_limit admin
    allowed_auths_callback none md2 md5 straight
    allowed_auths_user none md2 md5 straight
    allowed_auths_operator none md2 md5 straight
    allowed_auths_admin none md2 md5 straight
    guid a123456789abcdefa123456789abcdef
  endlan
  chassis_control "HOME/chassis 0x20"
  user 2 true "admin" "correct-horse" admin 10 none md2 md5 straight
  user 3 true "guest" "correct-horse" user 10 none md2 md5 straight
"#;

const EMULATION: &str = "\
mc_setbmc 0x20
mc_add 0x20 0 has-device-sdrs 0x23 9 8 0x9f 0x1291 0xf02 persist_sdr
sel_enable 0x20 1000 0x0a
mc_enable 0x20
";

const CHASSIS: &str = r#"#!/bin/sh
cd HOME || exit 1
shift
echo "$*" >> calls
[ -e hang ] && sleep 4
[ -e refuse ] && exit 1
op=$1
shift
while [ $# -gt 0 ]; do
  case $op in
    get)
      echo "$1:$(cat "$1")"
      ;;
    set)
      if [ -e slow ]; then
        (sleep 2; echo "$2" > "$1") > /dev/null 2>&1 &
      else
        echo "$2" > "$1"
      fi
      shift
      ;;
  esac
  shift
done
"#;

/// A controller and the folder of its chassis.
pub struct Sim {
    home: TempDir,
    port: u16,
    process: Child,
}

impl Drop for Sim {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Sim {
    async fn start() -> Option<Self> {
        Self::start_with("").await
    }

    /// Starts it with more commands for the simulator.
    pub async fn start_with(commands: &str) -> Option<Self> {
        let program = peer(PEER)?;
        let home = tempfile::tempdir().unwrap();
        let port = free_port();
        let fill = |text: &str| {
            text.replace("HOME", &home.path().display().to_string())
                .replace("PORT", &port.to_string())
        };
        fs::create_dir(home.path().join("state")).unwrap();
        fs::write(home.path().join("lan.conf"), fill(LAN)).unwrap();
        fs::write(home.path().join("sim.emu"), format!("{EMULATION}{commands}")).unwrap();
        fs::write(home.path().join("power"), "0\n").unwrap();
        fs::write(home.path().join("boot"), "default\n").unwrap();
        fs::write(home.path().join("calls"), "").unwrap();
        let chassis = home.path().join("chassis");
        fs::write(&chassis, fill(CHASSIS)).unwrap();
        fs::set_permissions(&chassis, fs::Permissions::from_mode(0o755)).unwrap();
        let process = start(&program, home.path());
        let sim = Self { home, port, process };
        sim.wait_until_ready().await;
        Some(sim)
    }

    async fn wait_until_ready(&self) {
        let started = Instant::now();
        while let Err(fault) = self.bmc().identity().await {
            assert!(started.elapsed() < DEADLINE, "ipmi_sim does not answer: {fault}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    fn bmc(&self) -> Bmc {
        self.bmc_as("admin", PASSWORD, settings())
    }

    fn bmc_as(&self, user: &str, password: &str, settings: Settings) -> Bmc {
        let login =
            Login { user: user.into(), password: password.into(), allowed: AllowedAddresses::Any };
        Bmc::new(&self.url(), login, settings).unwrap()
    }

    pub fn url(&self) -> String {
        format!("ipmi://127.0.0.1:{}", self.port)
    }

    /// Makes the chassis slow, hang or refuse from now on.
    fn set_trouble(&self, failure: &str) {
        fs::write(self.home.path().join(failure), "").unwrap();
    }

    fn calls(&self) -> Vec<String> {
        let text = fs::read_to_string(self.home.path().join("calls")).unwrap();
        text.lines().map(str::to_owned).collect()
    }

    fn count(&self, call: &str) -> usize {
        self.calls().iter().filter(|line| *line == call).count()
    }
}

fn start(program: &Path, home: &Path) -> Child {
    let log = fs::File::create(home.join("log")).unwrap();
    Command::new(program)
        .args(["-n", "-c"])
        .arg(home.join("lan.conf"))
        .arg("-f")
        .arg(home.join("sim.emu"))
        .arg("-s")
        .arg(home.join("state"))
        .current_dir(home)
        .stdin(Stdio::null())
        .stdout(log.try_clone().unwrap())
        .stderr(log)
        .spawn()
        .unwrap()
}

/// The simulator stores only the boot device, and has no cipher suite 17.
pub fn settings() -> Settings {
    Settings { boot_readback: BootReadback::DeviceOnly, ..Settings::default() }
}

async fn wait_for(bmc: &Bmc, desired: Power) {
    let started = Instant::now();
    while bmc.power().await.unwrap() != desired {
        assert!(started.elapsed() < DEADLINE, "never {desired:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Waits until the chassis received this many changes.
async fn wait_for_calls(sim: &Sim, count: usize) {
    let started = Instant::now();
    while sim.calls().iter().filter(|call| call.starts_with("set")).count() < count {
        assert!(started.elapsed() < DEADLINE, "only {:?}", sim.calls());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// A fault must name the address and hide the password.
fn assert_fault(sim: &Sim, fault: &Fault, code: FaultCode) {
    assert_eq!(fault.code, code, "{fault}");
    assert!(fault.message.contains(&format!("127.0.0.1:{}", sim.port)), "{fault}");
    assert!(!fault.message.contains(PASSWORD), "{fault}");
}

#[tokio::test]
async fn power_changes_take_effect() {
    let Some(sim) = Sim::start().await else { return };
    let bmc = sim.bmc();
    assert_eq!(bmc.power().await.unwrap(), Power::Off);
    bmc.set_power(ChassisControl::On).await.unwrap();
    assert_eq!(bmc.power().await.unwrap(), Power::On);
    bmc.set_power(ChassisControl::Cycle).await.unwrap();
    wait_for_calls(&sim, 3).await;
    assert_eq!(bmc.power().await.unwrap(), Power::On);
    bmc.set_power(ChassisControl::Reset).await.unwrap();
    bmc.set_power(ChassisControl::Soft).await.unwrap();
    bmc.set_power(ChassisControl::Off).await.unwrap();
    assert_eq!(bmc.power().await.unwrap(), Power::Off);
    let sets: Vec<_> = sim.calls().into_iter().filter(|call| call.starts_with("set")).collect();
    let desired = [
        "set power 1",
        "set power 0",
        "set power 1",
        "set reset 1",
        "set shutdown 1",
        "set power 0",
    ];
    assert_eq!(sets, desired);
}

#[tokio::test]
async fn a_slow_chassis_is_seen_to_change_later() {
    let Some(sim) = Sim::start().await else { return };
    sim.set_trouble("slow");
    let bmc = sim.bmc();
    bmc.set_power(ChassisControl::On).await.unwrap();
    assert_eq!(bmc.power().await.unwrap(), Power::Off, "accepted, and not done yet");
    wait_for(&bmc, Power::On).await;
    assert_eq!(sim.count("set power 1"), 1);
}

#[tokio::test]
async fn a_refused_command_certainly_did_not_happen() {
    let Some(sim) = Sim::start().await else { return };
    sim.set_trouble("refuse");
    let fault = sim.bmc().set_power(ChassisControl::On).await.unwrap_err();
    assert_fault(&sim, &fault, FaultCode::EffectFailed);
    assert!(fault.message.contains("to power on") && fault.message.contains("0xff"), "{fault}");
}

#[tokio::test]
async fn an_unanswered_change_is_sent_once() {
    let Some(sim) = Sim::start().await else { return };
    let bmc = sim.bmc();
    assert_eq!(bmc.power().await.unwrap(), Power::Off);
    sim.set_trouble("hang");
    let fault = bmc.set_power(ChassisControl::On).await.unwrap_err();
    assert_fault(&sim, &fault, FaultCode::AnswerLost);
    fs::remove_file(sim.home.path().join("hang")).unwrap();
    // The change took effect nevertheless, so the only correct follow-up is a read.
    let started = Instant::now();
    while !matches!(bmc.power().await, Ok(Power::On)) {
        assert!(started.elapsed() < DEADLINE, "the chassis never answered again");
    }
    assert_eq!(sim.count("set power 1"), 1);
}

#[tokio::test]
async fn an_unanswered_read_changed_nothing() {
    let Some(sim) = Sim::start().await else { return };
    sim.set_trouble("hang");
    let settings =
        Settings { deadline: Duration::from_secs(2), cipher: Cipher::Suite3, ..settings() };
    let fault = sim.bmc_as("admin", PASSWORD, settings).power().await.unwrap_err();
    assert_fault(&sim, &fault, FaultCode::BmcUnreachable);
}

#[tokio::test]
async fn a_refused_login_names_the_user() {
    let Some(sim) = Sim::start().await else { return };
    for (user, password) in [("admin", "wrong"), ("nobody", PASSWORD)] {
        let fault = sim.bmc_as(user, password, settings()).power().await.unwrap_err();
        assert_fault(&sim, &fault, FaultCode::LoginRefused);
        assert!(fault.message.contains(&format!("`{user}`")), "{fault}");
    }
    assert_eq!(sim.calls(), Vec::<String>::new(), "no call reached the chassis");
}

#[tokio::test]
async fn a_missing_privilege_is_reported() {
    let Some(sim) = Sim::start().await else { return };
    let settings = Settings { privilege: Privilege::User, ..settings() };
    let guest = sim.bmc_as("guest", PASSWORD, settings);
    assert_eq!(guest.power().await.unwrap(), Power::Off);
    let fault = guest.set_power(ChassisControl::On).await.unwrap_err();
    assert_fault(&sim, &fault, FaultCode::LoginRefused);
    assert_eq!(sim.count("set power 1"), 0);
}

#[tokio::test]
async fn a_closed_port_is_unreachable() {
    if peer(PEER).is_none() {
        return;
    }
    // Bound but never read, so that no other process answers there.
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("ipmi://{}", socket.local_addr().unwrap());
    let login =
        Login { user: "admin".into(), password: PASSWORD.into(), allowed: AllowedAddresses::Any };
    let bmc = Bmc::new(&endpoint, login, settings()).unwrap();
    assert_eq!(bmc.power().await.unwrap_err().code, FaultCode::BmcUnreachable);
    assert_eq!(
        bmc.set_power(ChassisControl::On).await.unwrap_err().code,
        FaultCode::BmcUnreachable
    );
}

#[tokio::test]
async fn a_peer_that_speaks_something_else_is_unreachable() {
    if peer(PEER).is_none() {
        return;
    }
    let socket = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("ipmi://{}", socket.local_addr().unwrap());
    let babble = tokio::spawn(async move {
        let mut buffer = [0; 1024];
        while let Ok((_, from)) = socket.recv_from(&mut buffer).await {
            let _ = socket.send_to(b"HTTP/1.1 400 Bad Request\r\n\r\n", from).await;
        }
    });
    let login =
        Login { user: "admin".into(), password: PASSWORD.into(), allowed: AllowedAddresses::Any };
    let bmc = Bmc::new(&endpoint, login, settings()).unwrap();
    assert_eq!(
        bmc.set_power(ChassisControl::Off).await.unwrap_err().code,
        FaultCode::BmcUnreachable
    );
    babble.abort();
}

#[tokio::test]
async fn the_boot_device_is_read_back() {
    let Some(sim) = Sim::start().await else { return };
    let bmc = sim.bmc();
    for device in [BootDevice::Pxe, BootDevice::Cdrom, BootDevice::Disk, BootDevice::None] {
        let observed = bmc.set_boot(device, BootDuration::Once).await.unwrap();
        assert_eq!(observed, Boot { from: BootFrom::Device(device), lasts: None });
        assert_eq!(bmc.boot().await.unwrap(), observed);
    }
    assert_eq!(sim.count("set boot pxe"), 1);
}

#[tokio::test]
async fn a_forgotten_override_is_detected() {
    let Some(sim) = Sim::start().await else { return };
    let strict = Settings { boot_readback: BootReadback::Complete, ..settings() };
    let bmc = sim.bmc_as("admin", PASSWORD, strict);
    let fault = bmc.set_boot(BootDevice::Pxe, BootDuration::Always).await.unwrap_err();
    assert_fault(&sim, &fault, FaultCode::ReadBackDiffers);
}

#[tokio::test]
async fn a_suite_that_the_controller_lacks_is_not_supported() {
    let Some(sim) = Sim::start().await else { return };
    let strong = Settings { cipher: Cipher::Suite17, ..settings() };
    let fault = sim.bmc_as("admin", PASSWORD, strong).power().await.unwrap_err();
    assert_fault(&sim, &fault, FaultCode::NotSupported);
    let known = Settings { cipher: Cipher::Suite3, ..settings() };
    assert_eq!(sim.bmc_as("admin", PASSWORD, known).power().await.unwrap(), Power::Off);
}

#[tokio::test]
async fn the_event_log_is_read_from_its_newest_entry() {
    let entries: String = (0..40)
        .map(|n| {
            format!(
                "sel_add 0x20 0x02 0 0 0 0x60 0x20 0x00 0x04 0x08 {n:#04x} 0x6f 0x01 0xff 0xff\n"
            )
        })
        .collect();
    let Some(sim) = Sim::start_with(&entries).await else { return };
    let bmc = sim.bmc();
    let newest = bmc.events(3).await.unwrap();
    assert_eq!(newest.iter().map(|event| event.id).collect::<Vec<_>>(), [40, 39, 38]);
    assert!(
        newest[0].describe().starts_with("power supply, sensor 0x27"),
        "{}",
        newest[0].describe()
    );
    let all = bmc.events(usize::MAX).await.unwrap();
    assert_eq!(
        all.iter().map(|event| event.id).collect::<Vec<_>>(),
        (1..=40).rev().collect::<Vec<_>>()
    );
    assert_eq!(bmc.events(0).await.unwrap(), []);
}

#[tokio::test]
async fn an_empty_event_log_has_no_entries() {
    let Some(sim) = Sim::start().await else { return };
    assert_eq!(sim.bmc().events(10).await.unwrap(), []);
}

#[tokio::test]
async fn a_controller_reports_its_identity() {
    let Some(sim) = Sim::start().await else { return };
    let identity = sim.bmc().identity().await.unwrap();
    assert_eq!((identity.manufacturer, identity.product), (0x1291, 0x0f02));
    assert_eq!((identity.firmware.as_str(), identity.ipmi_version.as_str()), ("9.08", "2.0"));
    assert_eq!(identity.guid.as_deref(), Some("a123456789abcdefa123456789abcdef"));
}
