//! The fabric on a switch: a real sshd, and an `nv` that follows the manual of NVOS.

use crate::DEADLINE;
use crate::desk::{Desk, said, target, work};
use crate::sshd::{Sshd, Wish};
use model::effect::{Answer, DeviceWork, Effect, FabricTo, Verb};
use model::fault::Code;
use model::machine::MachineSpec;
use model::target::TargetKind;
use providers::Target;
use providers::ssh::Proof;
use providers::state_store::Secret;
use std::fs;
use std::path::PathBuf;

/// A switch. Its state is in files of its user: whether the fabric runs, what was set and not
/// applied, and the state of the controller.
pub const NV: &str = r#"#!/bin/sh
here=$HOME/nv
say() { cat "$here/$1" 2>/dev/null; }
echo "nv $*" >>"$HOME/happened"
if [ -e "$here/broken" ] && [ "$1" != show ]; then
    echo "Error: Action failed with the following issue:" >&2
    echo "  $(say broken)" >&2
    exit 1
fi
case "$*" in
    "show cluster -o json")
        printf '{"nmxc-conn": "%s", "state": "%s"}\n' "$(say conn)" "$(say state)" ;;
    "show cluster apps nmx-controller -o json")
        if [ "$(say state)" != enabled ]; then
            echo "Error: The requested item does not exist." >&2
            exit 1
        fi
        printf '{"addition-info": "%s", "app-id": "nmx-c-nvos", "manager": {"encryption": "disabled", "state": "%s"}, "reason": "%s", "status": "%s"}\n' \
            "$(say info)" "$(say manager)" "$(say reason)" "$(say status)" ;;
    "set cluster state enabled") echo enabled >"$here/set"; echo "created [rev_id: 5]" ;;
    "set cluster state disabled") echo disabled >"$here/set"; echo "created [rev_id: 5]" ;;
    "config apply --assume-yes")
        if [ "$(say set)" = "$(say state)" ]; then echo "no config diff" >&2; exit 1; fi
        cat "$here/set" >"$here/state"
        if [ "$(say state)" = enabled ]; then
            echo up >"$here/conn"; echo "not ok" >"$here/status"; echo STOPPED >"$here/info"
        else
            echo down >"$here/conn"
        fi
        echo "applied [rev_id: 5]" ;;
    "config save") echo "saved [rev_id: 5]" ;;
    "action start cluster apps nmx-controller")
        echo "not ok" >"$here/status"; echo CONTROL_PLANE_STATE_UNCONFIGURED >"$here/info"
        echo "Action succeeded" ;;
    "action update cluster apps nmx-controller manager enabled")
        echo enabled >"$here/manager"; echo "Action succeeded" ;;
    *) echo "Error: Invalid Command" >&2; exit 2 ;;
esac
"#;

/// The folder of the switch's state.
pub fn state(host: &Sshd) -> PathBuf {
    host.home.path().join("user/nv")
}

pub fn set(host: &Sshd, name: &str, value: &str) {
    fs::write(state(host).join(name), format!("{value}\n")).unwrap();
}

/// Prepares a switch on which the fabric is off.
pub fn lay_out(host: &Sshd) {
    fs::create_dir(state(host)).unwrap();
    let anybody = || std::os::unix::fs::PermissionsExt::from_mode(0o777);
    fs::set_permissions(state(host), anybody()).unwrap();
    for (name, value) in [
        ("state", "disabled"),
        ("conn", "down"),
        ("set", "disabled"),
        ("status", "not ok"),
        ("info", "STOPPED"),
        ("manager", "disabled"),
        ("reason", ""),
    ] {
        set(host, name, value);
        fs::set_permissions(state(host).join(name), anybody()).unwrap();
    }
}

struct Scene {
    desk: Desk,
    host: Sshd,
    target: Target,
}

impl Scene {
    fn new() -> Option<Self> {
        let wish = Wish { shims: vec![("nv", NV.into())], ..Wish::default() };
        let host = Sshd::with(&wish)?;
        lay_out(&host);
        let desk = Desk::new();
        let login = host.login(host.key());
        let Proof::Key { pem, passphrase } = login.proof else { panic!("a key") };
        desk.store.set("host", Secret::Key { user: login.user, pem, passphrase });
        let spec =
            MachineSpec { ssh_endpoint: host.endpoint().to_string(), ..MachineSpec::default() };
        Some(Self { desk, host, target: target(TargetKind::Switch, spec) })
    }

    /// Every recorded command except reads.
    fn told(&self) -> Vec<String> {
        let log =
            fs::read_to_string(self.host.home.path().join("user/happened")).unwrap_or_default();
        log.lines().filter(|line| !line.starts_with("nv show")).map(str::to_owned).collect()
    }

    fn is(&self, name: &str) -> String {
        fs::read_to_string(state(&self.host).join(name)).unwrap().trim().to_owned()
    }
}

fn fabric(to: FabricTo) -> Effect {
    work(DeviceWork::Fabric { to })
}

#[tokio::test]
async fn the_fabric_manager_comes_up_where_it_is_wanted() {
    let Some(scene) = Scene::new() else { return };
    let effect = fabric(FabricTo::Manager);
    let (answer, log) = scene.desk.ask_and_read(&scene.target, Verb::Perform, &effect).await;
    let told = said(answer);
    assert!(told.starts_with("the fabric manager runs here: cluster enabled"), "{told}");
    assert_eq!(
        scene.told(),
        [
            "nv set cluster state enabled",
            "nv config apply --assume-yes",
            "nv config save",
            "nv action start cluster apps nmx-controller",
            "nv action update cluster apps nmx-controller manager enabled",
        ]
    );
    assert_eq!((scene.is("state"), scene.is("manager")), ("enabled".into(), "enabled".into()));
    assert!(log.contains("starting the fabric manager"), "{log}");
    // It is so already: no replica repeats a command.
    let count = scene.told().len();
    for verb in [Verb::Observe, Verb::Follow, Verb::Perform] {
        let told = said(scene.desk.ask(&scene.target, verb, &effect).await);
        assert!(told.contains("as it was already"), "{told}");
    }
    assert_eq!(scene.told().len(), count);
}

#[tokio::test]
async fn a_fabric_goes_off_and_is_left_off() {
    let Some(scene) = Scene::new() else { return };
    let effect = fabric(FabricTo::Off);
    let told = said(scene.desk.ask(&scene.target, Verb::Perform, &effect).await);
    assert!(told.starts_with("the fabric is off, as it was already"), "{told}");
    assert_eq!(scene.told(), [""; 0]);
    set(&scene.host, "state", "enabled");
    let told = said(scene.desk.ask(&scene.target, Verb::Follow, &effect).await);
    assert!(told.starts_with("the fabric is off: cluster disabled"), "{told}");
    assert_eq!(scene.is("state"), "disabled");
}

#[tokio::test]
async fn a_switch_is_configured_when_it_says_so_and_not_before() {
    let Some(mut scene) = Scene::new() else { return };
    let effect = fabric(FabricTo::Configured);
    set(&scene.host, "state", "enabled");
    set(&scene.host, "info", "CONTROL_PLANE_STATE_UNCONFIGURED");
    set(&scene.host, "reason", "GFM: UNINITIALIZED");
    let fault = scene.desk.ask(&scene.target, Verb::Perform, &effect).await.unwrap_err();
    assert_eq!(fault.code, Code::FabricFailed, "{fault}");
    assert!(
        fault.said.starts_with("the switch did not report the fabric as configured within 3s")
            && fault.said.contains("GFM: UNINITIALIZED"),
        "{fault}"
    );
    scene.desk.settings.fabric.within = DEADLINE;
    let host = &scene.host;
    let soon = async {
        tokio::time::sleep(std::time::Duration::from_millis(400)).await;
        set(host, "status", "ok");
        set(host, "info", "CONTROL_PLANE_STATE_CONFIGURED");
    };
    let ask = scene.desk.ask(&scene.target, Verb::Follow, &effect);
    let (answer, ()) = tokio::join!(ask, soon);
    assert!(said(answer).starts_with("the switch reports the fabric as configured"));
    assert_eq!(scene.told(), [""; 0], "a wait sends no command");
    // A switch that is managed from elsewhere has no controller, and a connection to it.
    set(&scene.host, "state", "disabled");
    set(&scene.host, "conn", "up");
    assert!(
        said(scene.desk.ask(&scene.target, Verb::Observe, &effect).await)
            .contains("no controller here")
    );
}

#[tokio::test]
async fn what_a_switch_refuses_is_said_in_its_words() {
    let Some(scene) = Scene::new() else { return };
    set(&scene.host, "broken", "permission denied for this user");
    let effect = fabric(FabricTo::Manager);
    let fault = scene.desk.ask(&scene.target, Verb::Perform, &effect).await.unwrap_err();
    assert_eq!(fault.code, Code::FabricFailed, "{fault}");
    assert!(
        fault.said.contains("`nv set cluster state enabled` ended with 1")
            && fault.said.contains("permission denied for this user"),
        "{fault}"
    );
    // A host that is no such switch.
    fs::remove_file(state(&scene.host).join("broken")).unwrap();
    set(&scene.host, "state", "reloading");
    let fault = scene.desk.ask(&scene.target, Verb::Perform, &effect).await.unwrap_err();
    assert!(fault.said.contains("shows the state \"reloading\""), "{fault}");
    let Some(plain) = Sshd::start() else { return };
    let spec = MachineSpec { ssh_endpoint: plain.endpoint().to_string(), ..MachineSpec::default() };
    let none = target(TargetKind::Switch, spec);
    let fault = scene.desk.ask(&none, Verb::Observe, &effect).await.unwrap_err();
    assert_eq!(fault.code, Code::NotSupported, "{fault}");
}

/// The fabric was switched off and not polled for a while. It is on: it may have been switched on
/// again.
#[tokio::test]
async fn a_fabric_that_nobody_watched_is_left_to_a_person() {
    use providers::state_store::{Checkpoint, ProviderStateStore};
    let Some(scene) = Scene::new() else { return };
    let effect = fabric(FabricTo::Off);
    set(&scene.host, "state", "enabled");
    let long_ago =
        std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_micros() as i64 - 90_000_000;
    let note = Checkpoint::Begun(serde_json::json!({"what": "fabric", "told": long_ago}));
    scene.desk.store.begin(&crate::desk::key(&effect), &note).await.unwrap();
    match scene.desk.ask(&scene.target, Verb::GetStatus, &effect).await {
        Ok(Answer::Unknown(seen)) => assert!(seen.contains("nobody looked for 1m"), "{seen}"),
        other => panic!("{other:?}"),
    }
    assert_eq!(scene.told(), [""; 0]);
    set(&scene.host, "state", "disabled");
    assert!(
        said(scene.desk.ask(&scene.target, Verb::GetStatus, &effect).await)
            .contains("the fabric is off")
    );
}

#[tokio::test]
async fn what_was_stopped_is_not_told() {
    let Some(scene) = Scene::new() else { return };
    let effect = fabric(FabricTo::Manager);
    assert_eq!(scene.desk.ask(&scene.target, Verb::Stop, &effect).await, Ok(Answer::Stopped));
    let late = scene.desk.ask(&scene.target, Verb::Perform, &effect).await.unwrap_err();
    assert!(late.said.contains("stopped before it began"), "{late}");
    assert_eq!(scene.told(), [""; 0]);
}
