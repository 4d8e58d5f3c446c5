//! A switch that runs NVOS, called over SSH with its `nv` commands.
//!
//! `nv show … -o json` reads the state. Only a few fields are read, and strictly: an unknown state
//! is a fault. `nv set`, `nv config apply` and `nv action` change the state. Setting a value that
//! is already set is no failure.

use super::{Cluster, Controller, FabricManager, Seen, Tell};
use crate::ssh::{Host, Output};
use async_trait::async_trait;
use model::fault::{Code, Fault};
use serde_json::Value;
use std::time::Duration;

const LOOK_WITHIN: Duration = Duration::from_secs(30);
/// Applying a configuration starts or stops services.
const TELL_WITHIN: Duration = Duration::from_secs(180);
/// The longest message that is passed on from a switch.
const MAX_SAID_CHARS: usize = 400;
/// The exit status of a shell that does not find the command.
const NO_SUCH_COMMAND: u32 = 127;

const SHOW_CLUSTER: &str = "nv show cluster -o json";
const SHOW_CONTROLLER: &str = "nv show cluster apps nmx-controller -o json";
const CONFIGURED: &str = "CONTROL_PLANE_STATE_CONFIGURED";
/// The message of a switch that has no such application now.
const ABSENT: &str = "does not exist";
/// The message of a switch when the new value equals the present one.
const NOTHING_NEW: &str = "no config diff";

pub struct Nvos {
    host: Host,
}

impl Nvos {
    pub const fn new(host: Host) -> Self {
        Self { host }
    }

    /// The output of a read-only command; None: the object does not exist.
    async fn show(&self, command: &str) -> Result<Option<Value>, Fault> {
        let output = self.host.run(command, b"", LOOK_WITHIN).await.map_err(only_looked)?;
        if output.status == Some(0) {
            let parsed = serde_json::from_slice(&output.stdout);
            return parsed.map(Some).map_err(|error| {
                let said = format!("`{command}` said no JSON: {error}: {}", words(&output));
                Fault::new(Code::FabricFailed, said)
            });
        }
        match words(&output).contains(ABSENT) {
            true => Ok(None),
            false => Err(failed(command, &output)),
        }
    }
}

#[async_trait]
impl FabricManager for Nvos {
    async fn look(&self) -> Result<Seen, Fault> {
        let cluster = self.show(SHOW_CLUSTER).await?.ok_or_else(|| {
            let said =
                "the switch has no cluster commands: its release is too old, or of another kind";
            Fault::new(Code::NotSupported, said)
        })?;
        let controller = self.show(SHOW_CONTROLLER).await?;
        seen(&cluster, controller.as_ref()).map_err(|said| Fault::new(Code::FabricFailed, said))
    }

    async fn tell(&self, what: Tell) -> Result<(), Fault> {
        for command in commands(what) {
            let output = self.host.run(command, b"", TELL_WITHIN).await?;
            if output.status != Some(0) && !words(&output).contains(NOTHING_NEW) {
                return Err(failed(command, &output));
            }
        }
        Ok(())
    }
}

/// The commands, in order. A setting is saved, or the switch would lose it at its next start.
const fn commands(what: Tell) -> &'static [&'static str] {
    match what {
        Tell::Enable => {
            &["nv set cluster state enabled", "nv config apply --assume-yes", "nv config save"]
        }
        Tell::Disable => {
            &["nv set cluster state disabled", "nv config apply --assume-yes", "nv config save"]
        }
        Tell::Start => &["nv action start cluster apps nmx-controller"],
        Tell::Open => &["nv action update cluster apps nmx-controller manager enabled"],
    }
}

fn seen(cluster: &Value, controller: Option<&Value>) -> Result<Seen, String> {
    let state = text(cluster, "state").ok_or("`nv show cluster` shows no state")?;
    let known = match state {
        "enabled" => Cluster::Enabled,
        "disabled" => Cluster::Disabled,
        other => return Err(format!("`nv show cluster` shows the state {other:?}")),
    };
    let connected = text(cluster, "nmxc-conn") == Some("up");
    let mut told = format!("cluster {state}, connection to the controller {}", up(connected));
    let Some(app) = controller.filter(|app| text(app, "status").is_some()) else {
        told.push_str(", no controller here");
        let (controller, open) = (Controller::Absent, false);
        return Ok(Seen { cluster: known, controller, open, connected, said: told });
    };
    // The spelling depends on the release.
    let info = text(app, "addition-info").or_else(|| text(app, "additional-info"));
    let info = info.unwrap_or_default();
    let status = text(app, "status").unwrap_or_default();
    let kind = match (status, info) {
        ("ok", CONFIGURED) => Controller::Configured,
        ("stopped", _) | (_, "STOPPED" | "CONTROL_PLANE_STATE_STOPPED") => Controller::Stopped,
        (_, _) => Controller::Unconfigured,
    };
    let open = app.get("manager").and_then(|manager| text(manager, "state"));
    let open = matches!(open, Some("enabled" | "active" | "start"));
    told.push_str(&format!(", controller {status}"));
    for more in [info, text(app, "reason").unwrap_or_default()] {
        if !more.is_empty() {
            told.push_str(&format!(" ({more})"));
        }
    }
    Ok(Seen { cluster: known, controller: kind, open, connected, said: told })
}

const fn up(connected: bool) -> &'static str {
    if connected { "up" } else { "down" }
}

/// A field that is a string, or that has its string under `state`.
fn text<'a>(value: &'a Value, name: &str) -> Option<&'a str> {
    match value.get(name)? {
        Value::String(word) => Some(word),
        Value::Object(fields) => fields.get("state")?.as_str(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) => None,
    }
}

/// The output in one line. The switch reports errors on either stream.
fn words(output: &Output) -> String {
    let said = [&output.stderr, &output.stdout];
    let said: Vec<String> =
        said.iter().map(|bytes| String::from_utf8_lossy(bytes).into_owned()).collect();
    let line = said.join(" ").split_whitespace().collect::<Vec<_>>().join(" ");
    line.chars().filter(|c| !c.is_control()).take(MAX_SAID_CHARS).collect()
}

fn failed(command: &str, output: &Output) -> Fault {
    let (code, how) = match output.status {
        Some(NO_SUCH_COMMAND) => (Code::NotSupported, "is no command there".to_owned()),
        Some(status) => (Code::FabricFailed, format!("ended with {status}")),
        None => (Code::FabricFailed, "was ended by a signal".to_owned()),
    };
    Fault::new(code, format!("`{command}` {how}: {}", words(output)))
}

/// A read without an answer has changed nothing.
fn only_looked(fault: Fault) -> Fault {
    match matches!(fault.code, Code::AnswerLost | Code::StepTimeout) {
        true => Fault::new(Code::HostUnreachable, fault.said),
        false => fault,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_a_switch_shows_is_read() {
        let app = |status: &str, info: &str, manager: &str| {
            json!({"app-id": "nmx-c-nvos", "status": status, "addition-info": info,
                "manager": {"state": manager, "encryption": "disabled"}})
        };
        let on = json!({"state": "enabled", "nmxc-conn": "up"});
        let off = json!({"state": "disabled", "nmxc-conn": {"state": "down"}});
        for (cluster, app, expected) in [
            (&off, None, (Cluster::Disabled, Controller::Absent, false, false)),
            (&on, None, (Cluster::Enabled, Controller::Absent, false, true)),
            (&on, Some(json!({})), (Cluster::Enabled, Controller::Absent, false, true)),
            (
                &on,
                Some(app("ok", CONFIGURED, "enabled")),
                (Cluster::Enabled, Controller::Configured, true, true),
            ),
            (
                &on,
                Some(app("not ok", "CONTROL_PLANE_STATE_UNCONFIGURED", "disabled")),
                (Cluster::Enabled, Controller::Unconfigured, false, true),
            ),
            (
                &on,
                Some(app("not ok", "STOPPED", "enabled")),
                (Cluster::Enabled, Controller::Stopped, true, true),
            ),
            (
                &on,
                Some(json!({"status": "ok", "additional-info": CONFIGURED})),
                (Cluster::Enabled, Controller::Configured, false, true),
            ),
            // Configured but not healthy counts as unconfigured.
            (
                &on,
                Some(app("not ok", CONFIGURED, "active")),
                (Cluster::Enabled, Controller::Unconfigured, true, true),
            ),
        ] {
            let found = seen(cluster, app.as_ref()).unwrap();
            let Seen { cluster, controller, open, connected, .. } = found;
            assert_eq!((cluster, controller, open, connected), expected, "{app:?}");
        }
    }

    #[test]
    fn a_state_that_nobody_knows_is_not_taken_for_another() {
        assert!(seen(&json!({}), None).is_err());
        let said = seen(&json!({"state": "starting"}), None).unwrap_err();
        assert!(said.contains("\"starting\""), "{said}");
    }

    #[test]
    fn what_a_switch_says_is_one_line() {
        let output = |status, stderr: &str| Output {
            status: Some(status),
            stdout: b"Action executing ...\n".to_vec(),
            stderr: stderr.as_bytes().to_vec(),
        };
        let fault =
            failed("nv show x", &output(1, "Error: Action failed\n  cluster is not enabled\n"));
        assert_eq!(fault.code, Code::FabricFailed);
        assert!(
            fault
                .said
                .ends_with("Error: Action failed cluster is not enabled Action executing ...")
        );
        assert_eq!(failed("nv", &output(127, "not found")).code, Code::NotSupported);
    }
}
