//! A switch that runs NVOS, called over SSH with its `nv` commands.
//!
//! `nv show … -o json` reads the state. Only a few fields are read, and strictly: an unknown state
//! is a fault. `nv set`, `nv config apply` and `nv action` change the state. Setting a value that
//! is already set is no failure.

use super::{ClusterState, ControllerState, FabricCommand, FabricManager, FabricObservation};
use crate::ssh::{Host, Output};
use async_trait::async_trait;
use model::fault::{Fault, FaultCode, Result};
use serde_json::Value;
use std::time::Duration;

const SHOW_TIMEOUT: Duration = Duration::from_secs(30);
/// Applying a configuration starts or stops services.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(180);
/// The longest message that is passed on from a switch.
const MAX_MESSAGE_CHARS: usize = 400;
/// The exit status of a shell that does not find the command.
const NO_SUCH_COMMAND: u32 = 127;

const SHOW_CLUSTER: &str = "nv show cluster -o json";
const SHOW_CONTROLLER: &str = "nv show cluster apps nmx-controller -o json";
const CONFIGURED: &str = "CONTROL_PLANE_STATE_CONFIGURED";
/// The message of a switch that has no such application now.
const ABSENT: &str = "does not exist";
/// The message of a switch when the new value equals the present one.
const NO_CONFIG_DIFF: &str = "no config diff";

pub struct Nvos {
    host: Host,
}

impl Nvos {
    pub const fn new(host: Host) -> Self {
        Self { host }
    }

    /// The output of a read-only command; None: the object does not exist.
    async fn show(&self, command: &str) -> Result<Option<Value>> {
        let output = self.host.run(command, b"", SHOW_TIMEOUT).await.map_err(read_fault)?;
        if output.status == Some(0) {
            let parsed = serde_json::from_slice(&output.stdout);
            return parsed.map(Some).map_err(|error| {
                let message =
                    format!("`{command}` said no JSON: {error}: {}", one_line_message(&output));
                Fault::new(FaultCode::FabricFailed, message)
            });
        }
        match one_line_message(&output).contains(ABSENT) {
            true => Ok(None),
            false => Err(failed(command, &output)),
        }
    }
}

#[async_trait]
impl FabricManager for Nvos {
    async fn observe(&self) -> Result<FabricObservation> {
        let cluster = self.show(SHOW_CLUSTER).await?.ok_or_else(|| {
            let message =
                "the switch has no cluster commands: its release is too old, or of another kind";
            Fault::new(FaultCode::NotSupported, message)
        })?;
        let controller = self.show(SHOW_CONTROLLER).await?;
        parse_observation(&cluster, controller.as_ref())
            .map_err(|message| Fault::new(FaultCode::FabricFailed, message))
    }

    async fn send_command(&self, what: FabricCommand) -> Result<()> {
        for command in commands(what) {
            let output = self.host.run(command, b"", CHANGE_TIMEOUT).await?;
            if output.status != Some(0) && !one_line_message(&output).contains(NO_CONFIG_DIFF) {
                return Err(failed(command, &output));
            }
        }
        Ok(())
    }
}

/// The commands, in order. A setting is saved, or the switch would lose it at its next start.
const fn commands(what: FabricCommand) -> &'static [&'static str] {
    match what {
        FabricCommand::Enable => {
            &["nv set cluster state enabled", "nv config apply --assume-yes", "nv config save"]
        }
        FabricCommand::Disable => {
            &["nv set cluster state disabled", "nv config apply --assume-yes", "nv config save"]
        }
        FabricCommand::StartManager => &["nv action start cluster apps nmx-controller"],
        FabricCommand::OpenManager => {
            &["nv action update cluster apps nmx-controller manager enabled"]
        }
    }
}

fn parse_observation(
    cluster: &Value,
    controller: Option<&Value>,
) -> Result<FabricObservation, String> {
    let state = text(cluster, "state").ok_or("`nv show cluster` shows no state")?;
    let known = match state {
        "enabled" => ClusterState::Enabled,
        "disabled" => ClusterState::Disabled,
        other => return Err(format!("`nv show cluster` shows the state {other:?}")),
    };
    let connected = text(cluster, "nmxc-conn") == Some("up");
    let mut reported = format!("cluster {state}, connection to the controller {}", up(connected));
    let Some(app) = controller.filter(|app| text(app, "status").is_some()) else {
        reported.push_str(", no controller here");
        let (controller, open) = (ControllerState::Absent, false);
        return Ok(FabricObservation {
            cluster: known,
            controller,
            manager_open: open,
            connected,
            summary: reported,
        });
    };
    // The spelling depends on the release.
    let info = text(app, "addition-info").or_else(|| text(app, "additional-info"));
    let info = info.unwrap_or_default();
    let status = text(app, "status").unwrap_or_default();
    let kind = match (status, info) {
        ("ok", CONFIGURED) => ControllerState::Configured,
        ("stopped", _) | (_, "STOPPED" | "CONTROL_PLANE_STATE_STOPPED") => ControllerState::Stopped,
        (_, _) => ControllerState::Unconfigured,
    };
    let open = app.get("manager").and_then(|manager| text(manager, "state"));
    let open = matches!(open, Some("enabled" | "active" | "start"));
    reported.push_str(&format!(", controller {status}"));
    for more in [info, text(app, "reason").unwrap_or_default()] {
        if !more.is_empty() {
            reported.push_str(&format!(" ({more})"));
        }
    }
    Ok(FabricObservation {
        cluster: known,
        controller: kind,
        manager_open: open,
        connected,
        summary: reported,
    })
}

const fn up(connected: bool) -> &'static str {
    if connected { "up" } else { "down" }
}

/// A field that is a string, or that has its string under `state`.
fn text<'a>(value: &'a Value, name: &str) -> Option<&'a str> {
    match value.get(name)? {
        Value::String(label) => Some(label),
        Value::Object(fields) => fields.get("state")?.as_str(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) => None,
    }
}

/// The output in one line. The switch reports errors on either stream.
fn one_line_message(output: &Output) -> String {
    let message = [&output.stderr, &output.stdout];
    let message: Vec<String> =
        message.iter().map(|bytes| String::from_utf8_lossy(bytes).into_owned()).collect();
    let line = message.join(" ").split_whitespace().collect::<Vec<_>>().join(" ");
    line.chars().filter(|c| !c.is_control()).take(MAX_MESSAGE_CHARS).collect()
}

fn failed(command: &str, output: &Output) -> Fault {
    let (code, how) = match output.status {
        Some(NO_SUCH_COMMAND) => (FaultCode::NotSupported, "is no command there".to_owned()),
        Some(status) => (FaultCode::FabricFailed, format!("ended with {status}")),
        None => (FaultCode::FabricFailed, "was ended by a signal".to_owned()),
    };
    Fault::new(code, format!("`{command}` {how}: {}", one_line_message(output)))
}

/// A read without an answer has changed nothing.
fn read_fault(fault: Fault) -> Fault {
    match matches!(fault.code, FaultCode::AnswerLost | FaultCode::StepTimeout) {
        true => Fault::new(FaultCode::HostUnreachable, fault.message),
        false => fault,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_output_of_a_switch_is_parsed() {
        let app = |status: &str, info: &str, manager: &str| {
            json!({"app-id": "nmx-c-nvos", "status": status, "addition-info": info,
                "manager": {"state": manager, "encryption": "disabled"}})
        };
        let on = json!({"state": "enabled", "nmxc-conn": "up"});
        let off = json!({"state": "disabled", "nmxc-conn": {"state": "down"}});
        for (cluster, app, expected) in [
            (&off, None, (ClusterState::Disabled, ControllerState::Absent, false, false)),
            (&on, None, (ClusterState::Enabled, ControllerState::Absent, false, true)),
            (&on, Some(json!({})), (ClusterState::Enabled, ControllerState::Absent, false, true)),
            (
                &on,
                Some(app("ok", CONFIGURED, "enabled")),
                (ClusterState::Enabled, ControllerState::Configured, true, true),
            ),
            (
                &on,
                Some(app("not ok", "CONTROL_PLANE_STATE_UNCONFIGURED", "disabled")),
                (ClusterState::Enabled, ControllerState::Unconfigured, false, true),
            ),
            (
                &on,
                Some(app("not ok", "STOPPED", "enabled")),
                (ClusterState::Enabled, ControllerState::Stopped, true, true),
            ),
            (
                &on,
                Some(json!({"status": "ok", "additional-info": CONFIGURED})),
                (ClusterState::Enabled, ControllerState::Configured, false, true),
            ),
            // Configured but not healthy counts as unconfigured.
            (
                &on,
                Some(app("not ok", CONFIGURED, "active")),
                (ClusterState::Enabled, ControllerState::Unconfigured, true, true),
            ),
        ] {
            let found = parse_observation(cluster, app.as_ref()).unwrap();
            let FabricObservation { cluster, controller, manager_open: open, connected, .. } =
                found;
            assert_eq!((cluster, controller, open, connected), expected, "{app:?}");
        }
    }

    #[test]
    fn an_unknown_state_is_an_error() {
        assert!(parse_observation(&json!({}), None).is_err());
        let message = parse_observation(&json!({"state": "starting"}), None).unwrap_err();
        assert!(message.contains("\"starting\""), "{message}");
    }

    #[test]
    fn an_error_message_is_one_line() {
        let output = |status, stderr: &str| Output {
            status: Some(status),
            stdout: b"Action executing ...\n".to_vec(),
            stderr: stderr.as_bytes().to_vec(),
        };
        let fault =
            failed("nv show x", &output(1, "Error: Action failed\n  cluster is not enabled\n"));
        assert_eq!(fault.code, FaultCode::FabricFailed);
        assert!(
            fault
                .message
                .ends_with("Error: Action failed cluster is not enabled Action executing ...")
        );
        assert_eq!(failed("nv", &output(127, "not found")).code, FaultCode::NotSupported);
    }
}
