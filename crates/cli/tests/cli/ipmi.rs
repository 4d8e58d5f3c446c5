//! A machine with IPMI only, behind OpenIPMI's simulator, through the real server: it is rebooted
//! and probed, and unsupported operations are refused before they start.

use crate::fleet::{Server, Setup, TEST_TIMEOUT, free_port};
use crate::hardware::{log_of, password, peer, set};
use proto::v1;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const IPMI_SIM: &str = "FARRIER_TEST_IPMI_SIM";
const PASSWORD: &str = "correct-horse";
const CONFIG: &str = "[datacenter]\ngraceful_seconds = 0\nbmc_credential = \"bmc\"\n\
                      [probes]\ninterval_ms = 2000";

const LAN: &str = r#"name "farrier"
set_working_mc 0x20
  startlan 1
    addr 127.0.0.1 PORT
    priv_limit admin
    allowed_auths_admin none md2 md5 straight
    guid a123456789abcdefa123456789abcdef
  endlan
  chassis_control "HOME/chassis 0x20"
  user 2 true "root" "correct-horse" admin 10 none md2 md5 straight
"#;

const EMULATION: &str = "\
mc_setbmc 0x20
mc_add 0x20 0 has-device-sdrs 0x23 9 8 0x9f 0x1291 0xf02 persist_sdr
sel_enable 0x20 1000 0x0a
mc_enable 0x20
";

/// The chassis script: `set` stores a value and appends it to `changes`; `get` returns it.
const CHASSIS: &str = r#"#!/bin/sh
cd HOME || exit 1
shift
op=$1
shift
while [ $# -gt 0 ]; do
  case $op in
    get) echo "$1:$(cat "$1")" ;;
    set) echo "$2" > "$1"; echo "$1 $2" >> changes; shift ;;
  esac
  shift
done
"#;

/// A simulated controller that runs as long as this value lives.
struct Controller(Child);

impl Drop for Controller {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(program: &Path, home: &Path) -> (Controller, u16) {
    let port = free_port();
    let fill = |text: &str| {
        text.replace("HOME", &home.display().to_string()).replace("PORT", &port.to_string())
    };
    std::fs::create_dir(home.join("state")).unwrap();
    for (name, text) in [
        ("lan.conf", fill(LAN)),
        ("sim.emu", EMULATION.to_string()),
        ("power", "1\n".into()),
        ("boot", "default\n".into()),
        ("changes", String::new()),
        ("chassis", fill(CHASSIS)),
    ] {
        std::fs::write(home.join(name), text).unwrap();
    }
    let runs = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(home.join("chassis"), runs).unwrap();
    let mut command = Command::new(program);
    command.arg("-n").arg("-c").arg(home.join("lan.conf"));
    command.arg("-f").arg(home.join("sim.emu")).arg("-s").arg(home.join("state"));
    command.current_dir(home).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    (Controller(command.spawn().unwrap()), port)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_with_ipmi_alone_is_rebooted_and_refuses_what_it_lacks() {
    let Some(program) = peer(IPMI_SIM) else { return };
    let dir = tempfile::tempdir().unwrap();
    let home = tempfile::tempdir().unwrap();
    let (controller, port) = start(&program, home.path());
    let server = Server::start(Setup { config: CONFIG.into(), ..Setup::new(dir.path(), "zero") });
    set(&server, "bmc", password(PASSWORD)).await;
    let mut api = server.clients().await;
    let machine = |bmc_endpoint: String| {
        let spec = v1::MachineSpec { provider: "ipmi".into(), bmc_endpoint, ..Default::default() };
        v1::Machine { machine_id: "m-1".into(), spec: Some(spec), ..Default::default() }
    };
    let status = api.try_put(machine("https://127.0.0.1".into())).await.unwrap_err();
    assert!(status.message().contains("machine.spec.bmc_endpoint"), "{status:?}");
    api.put(machine(format!("127.0.0.1:{port}"))).await;
    let observed =
        api.machine_until("m-1", |machine| crate::api::is(machine, "BMCReachable")).await;
    assert!(!crate::api::is(&observed, "Degraded"), "{observed:#?}");

    // An operation that needs a host or an image is refused, and the refusal names its step.
    api.done("m-1", "ENTER_MAINTENANCE", "enter").await;
    for (kind, words) in
        [("REPAVE", "repave-os needs Imaging"), ("UPGRADE", "upgrade-packages needs RemoteExec")]
    {
        let status = api.try_start("m-1", kind, kind).await.unwrap_err();
        assert!(status.message().contains(words), "{kind}: {status:?}");
    }
    let done = api.done("m-1", "REBOOT", "reboot").await;
    assert!(done.steps[0].message.contains("seen off, and is on again"), "{done:#?}");
    let log = log_of(&mut api, &done.run_id).await;
    assert!(log.contains("cutting it off") && log.contains("switching it on"), "{log}");
    let changes = std::fs::read_to_string(home.path().join("changes")).unwrap();
    assert_eq!(changes, "power 0\npower 1\n");

    // The loss of the controller is detected, and the reason says how.
    drop(controller);
    let begun = Instant::now();
    while crate::api::is(&api.machine("m-1").await, "BMCReachable") {
        assert!(begun.elapsed() < TEST_TIMEOUT, "{:#?}", api.machine("m-1").await);
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}
