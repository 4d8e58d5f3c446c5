//! The fabric on a switch: a real sshd, and an `nv` that follows the manual of NVOS.

use crate::DEADLINE;
use crate::datacenter_fixture::{DatacenterFixture, done_message, target, work};
use crate::sshd::{Sshd, SshdOptions};
use model::effect::{CallVerb, DeviceWork, Effect, FabricGoal, ProviderAnswer};
use model::fault::FaultCode;
use model::machine::MachineSpec;
use model::target::TargetKind;
use providers::Target;
use providers::ssh::LoginSecret;
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

struct SwitchFixture {
    fixture: DatacenterFixture,
    host: Sshd,
    target: Target,
}

impl SwitchFixture {
    fn new() -> Option<Self> {
        let requested = SshdOptions { shims: vec![("nv", NV.into())], ..SshdOptions::default() };
        let host = Sshd::with(&requested)?;
        lay_out(&host);
        let datacenter_fixture = DatacenterFixture::new();
        let login = host.login(host.key());
        let LoginSecret::Key { pem, passphrase } = login.proof else { panic!("a key") };
        datacenter_fixture
            .store
            .set_credential("host", Secret::Key { user: login.user, pem, passphrase });
        let spec =
            MachineSpec { ssh_endpoint: host.endpoint().to_string(), ..MachineSpec::default() };
        Some(Self { fixture: datacenter_fixture, host, target: target(TargetKind::Switch, spec) })
    }

    /// Every recorded command except reads.
    fn recorded_changes(&self) -> Vec<String> {
        let log =
            fs::read_to_string(self.host.home.path().join("user/happened")).unwrap_or_default();
        log.lines().filter(|line| !line.starts_with("nv show")).map(str::to_owned).collect()
    }

    fn state_of(&self, name: &str) -> String {
        fs::read_to_string(state(&self.host).join(name)).unwrap().trim().to_owned()
    }
}

fn fabric(to: FabricGoal) -> Effect {
    work(DeviceWork::Fabric { to })
}

#[tokio::test]
async fn the_fabric_manager_starts_where_requested() {
    let Some(fixture) = SwitchFixture::new() else { return };
    let effect = fabric(FabricGoal::Manager);
    let (answer, log) =
        fixture.fixture.call_with_log(&fixture.target, CallVerb::Perform, &effect).await;
    let reported = done_message(answer);
    assert!(reported.starts_with("the fabric manager runs here: cluster enabled"), "{reported}");
    assert_eq!(
        fixture.recorded_changes(),
        [
            "nv set cluster state enabled",
            "nv config apply --assume-yes",
            "nv config save",
            "nv action start cluster apps nmx-controller",
            "nv action update cluster apps nmx-controller manager enabled",
        ]
    );
    assert_eq!(
        (fixture.state_of("state"), fixture.state_of("manager")),
        ("enabled".into(), "enabled".into())
    );
    assert!(log.contains("starting the fabric manager"), "{log}");
    // It is so already: no replica repeats a command.
    let count = fixture.recorded_changes().len();
    for verb in [CallVerb::Observe, CallVerb::Follow, CallVerb::Perform] {
        let reported =
            done_message(fixture.fixture.call_provider(&fixture.target, verb, &effect).await);
        assert!(reported.contains("as it was already"), "{reported}");
    }
    assert_eq!(fixture.recorded_changes().len(), count);
}

#[tokio::test]
async fn a_fabric_goes_off_and_is_left_off() {
    let Some(fixture) = SwitchFixture::new() else { return };
    let effect = fabric(FabricGoal::Off);
    let reported = done_message(
        fixture.fixture.call_provider(&fixture.target, CallVerb::Perform, &effect).await,
    );
    assert!(reported.starts_with("the fabric is off, as it was already"), "{reported}");
    assert_eq!(fixture.recorded_changes(), [""; 0]);
    set(&fixture.host, "state", "enabled");
    let reported = done_message(
        fixture.fixture.call_provider(&fixture.target, CallVerb::Follow, &effect).await,
    );
    assert!(reported.starts_with("the fabric is off: cluster disabled"), "{reported}");
    assert_eq!(fixture.state_of("state"), "disabled");
}

#[tokio::test]
async fn a_switch_is_configured_when_it_says_so_and_not_before() {
    let Some(mut fixture) = SwitchFixture::new() else { return };
    let effect = fabric(FabricGoal::Configured);
    set(&fixture.host, "state", "enabled");
    set(&fixture.host, "info", "CONTROL_PLANE_STATE_UNCONFIGURED");
    set(&fixture.host, "reason", "GFM: UNINITIALIZED");
    let fault = fixture
        .fixture
        .call_provider(&fixture.target, CallVerb::Perform, &effect)
        .await
        .unwrap_err();
    assert_eq!(fault.code, FaultCode::FabricFailed, "{fault}");
    assert!(
        fault.message.starts_with("the switch did not report the fabric as configured within 3s")
            && fault.message.contains("GFM: UNINITIALIZED"),
        "{fault}"
    );
    fixture.fixture.settings.fabric.limit = DEADLINE;
    let host = &fixture.host;
    let soon = async {
        tokio::time::sleep(std::time::Duration::from_millis(400)).await;
        set(host, "status", "ok");
        set(host, "info", "CONTROL_PLANE_STATE_CONFIGURED");
    };
    let request = fixture.fixture.call_provider(&fixture.target, CallVerb::Follow, &effect);
    let (answer, ()) = tokio::join!(request, soon);
    assert!(done_message(answer).starts_with("the switch reports the fabric as configured"));
    assert_eq!(fixture.recorded_changes(), [""; 0], "a wait sends no command");
    // A switch that is managed from elsewhere has no controller, and a connection to it.
    set(&fixture.host, "state", "disabled");
    set(&fixture.host, "conn", "up");
    assert!(
        done_message(
            fixture.fixture.call_provider(&fixture.target, CallVerb::Observe, &effect).await
        )
        .contains("no controller here")
    );
}

#[tokio::test]
async fn a_refusal_of_the_switch_is_reported() {
    let Some(fixture) = SwitchFixture::new() else { return };
    set(&fixture.host, "broken", "permission denied for this user");
    let effect = fabric(FabricGoal::Manager);
    let fault = fixture
        .fixture
        .call_provider(&fixture.target, CallVerb::Perform, &effect)
        .await
        .unwrap_err();
    assert_eq!(fault.code, FaultCode::FabricFailed, "{fault}");
    assert!(
        fault.message.contains("`nv set cluster state enabled` ended with 1")
            && fault.message.contains("permission denied for this user"),
        "{fault}"
    );
    // A host that is no such switch.
    fs::remove_file(state(&fixture.host).join("broken")).unwrap();
    set(&fixture.host, "state", "reloading");
    let fault = fixture
        .fixture
        .call_provider(&fixture.target, CallVerb::Perform, &effect)
        .await
        .unwrap_err();
    assert!(fault.message.contains("shows the state \"reloading\""), "{fault}");
    let Some(plain) = Sshd::start() else { return };
    let spec = MachineSpec { ssh_endpoint: plain.endpoint().to_string(), ..MachineSpec::default() };
    let none = target(TargetKind::Switch, spec);
    let fault = fixture.fixture.call_provider(&none, CallVerb::Observe, &effect).await.unwrap_err();
    assert_eq!(fault.code, FaultCode::NotSupported, "{fault}");
}

/// The fabric was switched off and not polled for a while. It is on: it may have been switched on
/// again.
#[tokio::test]
async fn an_unobserved_fabric_change_is_left_to_the_operator() {
    use providers::state_store::{Checkpoint, ProviderStateStore};
    let Some(fixture) = SwitchFixture::new() else { return };
    let effect = fabric(FabricGoal::Off);
    set(&fixture.host, "state", "enabled");
    let long_ago =
        std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_micros() as i64 - 90_000_000;
    let note = Checkpoint::Begun(serde_json::json!({"what": "fabric", "told": long_ago}));
    fixture.fixture.store.begin(&crate::datacenter_fixture::key(&effect), &note).await.unwrap();
    match fixture.fixture.call_provider(&fixture.target, CallVerb::GetStatus, &effect).await {
        Ok(ProviderAnswer::Unknown(observed)) => {
            assert!(observed.contains("it was not observed for 1m"), "{observed}")
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(fixture.recorded_changes(), [""; 0]);
    set(&fixture.host, "state", "disabled");
    assert!(
        done_message(
            fixture.fixture.call_provider(&fixture.target, CallVerb::GetStatus, &effect).await
        )
        .contains("the fabric is off")
    );
}

#[tokio::test]
async fn a_stopped_change_is_not_sent() {
    let Some(fixture) = SwitchFixture::new() else { return };
    let effect = fabric(FabricGoal::Manager);
    assert_eq!(
        fixture.fixture.call_provider(&fixture.target, CallVerb::Stop, &effect).await,
        Ok(ProviderAnswer::Stopped)
    );
    let late = fixture
        .fixture
        .call_provider(&fixture.target, CallVerb::Perform, &effect)
        .await
        .unwrap_err();
    assert!(late.message.contains("stopped before it began"), "{late}");
    assert_eq!(fixture.recorded_changes(), [""; 0]);
}
