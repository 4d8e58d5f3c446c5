//! `[datacenter]`: machines with their own BMC.

use providers::datacenter::Settings;
use providers::http_client::Trust;
use providers::peer_login::TrustPolicy;
use providers::power::PowerTimeouts;
use providers::{governor, kubernetes, ssh};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::time::Duration;

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Datacenter {
    /// The BMC credential of machines that name none.
    pub bmc_credential: String,
    /// The SSH credential of machines that name none.
    pub ssh_credential: String,
    /// Jump hosts for every SSH connection, in order: `bastion`, `bastion:2222`.
    pub jump_hosts: Vec<String>,
    /// The credential for the jump hosts.
    pub jump_credential: String,
    /// The folder of tokens that kubeconfigs may name as `tokenFile`. They are read for every
    /// request, so that another program can renew them. Empty: no kubeconfig may name a file.
    pub token_folder: PathBuf,
    /// `first-use`, `ca` or `pinned`.
    pub trust: TrustKind,
    /// CA certificates, as PEM.
    pub ca_file: PathBuf,
    /// How long a machine has for a graceful shutdown. 0: it is powered off at once.
    pub graceful_seconds: u32,
    /// Whether a machine that does not shut down is powered off.
    pub force: bool,
    /// How long a forced change of power may take.
    pub power_seconds: u32,
    /// The timeout of one call to a BMC, including the wait for a free slot.
    pub call_ms: u64,
    /// How many concurrent calls one BMC gets.
    pub calls_per_bmc: usize,
    /// How many concurrent calls all BMCs together get.
    pub calls_at_once: usize,
    /// After this many failures in a row the circuit breaker stops probes of a BMC for a while.
    pub break_after: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TrustKind {
    FirstUse,
    Ca,
    Pinned,
}

impl Default for Datacenter {
    fn default() -> Self {
        let Settings { power_timeouts, call_timeout: call, governor, .. } = Settings::default();
        Self {
            bmc_credential: String::new(),
            ssh_credential: String::new(),
            jump_hosts: Vec::new(),
            jump_credential: String::new(),
            token_folder: PathBuf::new(),
            trust: TrustKind::FirstUse,
            ca_file: PathBuf::new(),
            graceful_seconds: power_timeouts.graceful.as_secs() as u32,
            force: power_timeouts.force,
            power_seconds: power_timeouts.change.as_secs() as u32,
            call_ms: super::millis(call),
            calls_per_bmc: governor.per_bmc,
            calls_at_once: governor.max_calls,
            break_after: governor.break_after,
        }
    }
}

impl Datacenter {
    pub fn check(&self) -> Result<(), String> {
        let positive = [
            ("power_seconds", u64::from(self.power_seconds)),
            ("call_ms", self.call_ms),
            ("calls_per_bmc", self.calls_per_bmc as u64),
            ("calls_at_once", self.calls_at_once as u64),
            ("break_after", u64::from(self.break_after)),
        ];
        if let Some((field, _)) = positive.iter().find(|(_, value)| *value == 0) {
            return Err(format!("datacenter.{field} is 0; use at least 1"));
        }
        for jump in &self.jump_hosts {
            ssh::Endpoint::parse("datacenter.jump_hosts", jump)
                .map_err(|refusal| refusal.message)?;
        }
        if self.trust == TrustKind::Ca && self.ca_file.as_os_str().is_empty() {
            let instead = "name a file with certificates, or use trust = \"first-use\"";
            return Err(format!("datacenter.ca_file is empty and trust is \"ca\"; {instead}"));
        }
        Ok(())
    }

    pub fn token_folder(&self) -> Option<PathBuf> {
        Some(self.token_folder.clone()).filter(|folder| !folder.as_os_str().is_empty())
    }

    /// The provider's settings. Reads the certificates.
    pub fn settings(&self) -> Result<Settings, String> {
        let defaults = Settings::default();
        let graceful = Duration::from_secs(self.graceful_seconds.into());
        Ok(Settings {
            bmc_credential: self.bmc_credential.clone(),
            ssh_credential: self.ssh_credential.clone(),
            jump_hosts: self.jump_hosts.clone(),
            jump_credential: self.jump_credential.clone(),
            cluster: kubernetes::Settings {
                token_folder: self.token_folder(),
                ..defaults.cluster.clone()
            },
            trust: self.trust_policy()?,
            power_timeouts: PowerTimeouts {
                graceful,
                force: self.force,
                change: Duration::from_secs(self.power_seconds.into()),
                ..defaults.power_timeouts
            },
            call_timeout: Duration::from_millis(self.call_ms),
            // A run that waits for one read of the power state and one of the components must have
            // half of its time left.
            poll_timeout: defaults.poll_timeout.min(Duration::from_millis(self.call_ms / 6)),
            governor: governor::Settings {
                per_bmc: self.calls_per_bmc,
                max_calls: self.calls_at_once,
                break_after: self.break_after,
                ..defaults.governor
            },
            ..Settings::default()
        })
    }

    fn trust_policy(&self) -> Result<TrustPolicy, String> {
        match self.trust {
            TrustKind::FirstUse => Ok(TrustPolicy::FirstUse),
            TrustKind::Pinned => Ok(TrustPolicy::Pinned),
            TrustKind::Ca => {
                let wrong = |message: String| {
                    format!("datacenter.ca_file {}: {message}", self.ca_file.display())
                };
                let pem = std::fs::read(&self.ca_file).map_err(|error| wrong(error.to_string()))?;
                let trust = Trust::ca_from_pem(&pem).map_err(|fault| wrong(fault.message))?;
                Ok(TrustPolicy::Ca(trust))
            }
        }
    }
}
