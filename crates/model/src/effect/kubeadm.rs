//! The part of a plan about the `kubeadm join` of a machine. It is checked when the plan is
//! created, not after the machine has booted.

use crate::refusal::Refusal;
use serde::{Deserialize, Serialize};

/// The number of arguments and of preflight checks that one step may name.
const MAX_ENTRIES: usize = 32;
const MAX_ARGUMENT: usize = 1_024;
/// Arguments that the join itself passes to kubeadm; a plan may not set them.
const OWN_ARGUMENTS: [&str; 8] = [
    "--config",
    "--discovery-file",
    "--discovery-token",
    "--discovery-token-ca-cert-hash",
    "--ignore-preflight-errors",
    "--node-name",
    "--tls-bootstrap-token",
    "--token",
];

#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct KubeadmOptions {
    /// A JoinConfiguration of kubeadm, as YAML. Farrier adds the discovery and the node's name.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub config: String,
    /// Further arguments, such as `--cri-socket=unix:///run/crio/crio.sock`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub arguments: Vec<String>,
    /// The preflight checks whose errors are ignored, such as `Swap`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ignore_preflight_errors: Vec<String>,
}

impl KubeadmOptions {
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// `field` names the options in a refusal. The caller has checked the text of the config.
    pub fn check(&self, field: &str) -> Result<(), Refusal> {
        for (name, entries) in [
            ("arguments", &self.arguments),
            ("ignore_preflight_errors", &self.ignore_preflight_errors),
        ] {
            if entries.len() > MAX_ENTRIES {
                let problem = format!("has {} entries", entries.len());
                let instead = format!("use at most {MAX_ENTRIES}");
                return Err(Refusal::invalid(&format!("{field}.{name}"), problem, instead));
            }
        }
        for (index, argument) in self.arguments.iter().enumerate() {
            check_argument(&format!("{field}.arguments[{index}]"), argument)?;
        }
        for (index, check) in self.ignore_preflight_errors.iter().enumerate() {
            let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
            if check.is_empty() || check.len() > MAX_ARGUMENT || !check.chars().all(fits) {
                let at = format!("{field}.ignore_preflight_errors[{index}]");
                let instead = "name a preflight check, as in Swap or FileAvailable--etc-kubernetes-kubelet.conf";
                return Err(Refusal::invalid(&at, format!("is {check:?}"), instead));
            }
        }
        Ok(())
    }
}

fn check_argument(field: &str, argument: &str) -> Result<(), Refusal> {
    let name = argument.split_once('=').map_or(argument, |(name, _)| name);
    let printable = argument.chars().all(|c| !c.is_control());
    if !name.starts_with("--") || argument.len() > MAX_ARGUMENT || !printable {
        let shown: String = argument.chars().take(64).collect();
        let instead = "write one argument with its value, as in --v=5";
        return Err(Refusal::invalid(field, format!("is {shown:?}"), instead));
    }
    if OWN_ARGUMENTS.contains(&name) {
        let problem = format!("is {name}, which the join sets itself");
        let instead = "leave it out; the plan has fields for the config and the preflight checks";
        return Err(Refusal::invalid(field, problem, instead));
    }
    Ok(())
}
