//! Waits after power on: for the deploy environment, then for the new system.

use super::progress_log::ProgressLog;
use super::{ImagingWork, POLL_INTERVAL, READ_STAMP, READ_TIMEOUT, install_outcome};
use crate::datacenter::TrustPolicy;
use model::deploy::{Deployment, DeploymentCommand, DeploymentStage, failure_fault};
use model::effect::{CallResult, NetbootMode, ProviderAnswer};
use model::fault::{Fault, FaultCode, Result};
use model::time::format_duration;
use std::time::Instant;

impl ImagingWork<'_> {
    /// Follows the deploy environment until the machine is released to boot the installed system.
    pub(super) async fn wait_until_installed(&self) -> Result<()> {
        let began = Instant::now();
        let mut progress_log = ProgressLog::default();
        // By our own clock, from the start of this loop: earlier reports may have been missed.
        let mut heartbeat = (None, began);
        loop {
            let one = self.read_deployment().await?;
            if one.last_report_at != heartbeat.0 {
                heartbeat = (one.last_report_at, Instant::now());
            }
            if let Some(line) = progress_log.next_line(&one) {
                self.journal.write_line(line).await;
            }
            self.report_progress(&one);
            match one.stage {
                DeploymentStage::Prepared | DeploymentStage::Requested
                    if began.elapsed() > self.imaging.boot_timeout =>
                {
                    return Err(self.never_booted(&one));
                }
                DeploymentStage::Claimed
                | DeploymentStage::Writing
                | DeploymentStage::Installing
                    if heartbeat.1.elapsed() > self.imaging.silence_timeout =>
                {
                    return Err(self.silent(&one));
                }
                DeploymentStage::Prepared
                | DeploymentStage::Requested
                | DeploymentStage::Claimed
                | DeploymentStage::Writing
                | DeploymentStage::Installing => {}
                DeploymentStage::Installed => self.release_machine(&one).await?,
                DeploymentStage::Released | DeploymentStage::Finished => return Ok(()),
                DeploymentStage::Failed(failure) => {
                    return Err(failure_fault(failure, &one.message));
                }
                DeploymentStage::Closed => {
                    return Err(Fault::new(FaultCode::EffectFailed, "the deployment was closed"));
                }
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Waits until the boot files have been fetched: a foreign installer sends nothing after that.
    pub(super) async fn wait_until_fetched(&self, desired: &Deployment) -> Result<()> {
        let began = Instant::now();
        loop {
            let one = self.read_deployment().await?;
            let elsewhere = desired.image.body.artifacts().iter().all(|file| file.url.is_some());
            if one.boot_requested_at.is_some() || elsewhere {
                self.journal.write_line("image: fetched; its installer says nothing more").await;
                return Ok(());
            }
            if began.elapsed() > self.imaging.boot_timeout {
                return Err(self.never_booted(&one));
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    async fn read_deployment(&self) -> Result<Deployment> {
        let found = self.datacenter.store.deployment(&self.call.key).await?;
        found.ok_or_else(|| Fault::new(FaultCode::RecordUnreadable, "the deployment is gone"))
    }

    /// Restores the boot from disk and pins the new host key, then releases the machine.
    async fn release_machine(&self, one: &Deployment) -> Result<()> {
        self.boot_from(NetbootMode::Disk).await?;
        let key = one.host_keys.first().map(String::as_str);
        self.datacenter.hosts.pin(self.target, key).await?;
        self.datacenter
            .store
            .command_deployment(&self.call.key, DeploymentCommand::Release)
            .await
            .map(drop)
    }

    /// Waits for the new system, and verifies that it is the installed one.
    pub(super) async fn wait_for_system(&self, desired: &Deployment) -> CallResult {
        let began = Instant::now();
        self.journal.write_line("image: waiting for the new system to answer").await;
        loop {
            let fault = match self.check_system(desired).await {
                Ok(()) => break,
                Err(fault) => fault,
            };
            // A refused login will be refused again, and each attempt counts towards a lockout.
            let refused = matches!(
                fault.code,
                FaultCode::LoginRefused
                    | FaultCode::CredentialMissing
                    | FaultCode::CredentialNotAllowed
            );
            if refused || began.elapsed() > self.imaging.boot_timeout {
                let waited = format_duration(began.elapsed());
                let message = format!(
                    "{} was installed, and its system did not come back within {waited}: {}",
                    desired.image.name, fault.message
                );
                return Err(fault.restated(FaultCode::SystemNotBack, message));
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        if let Some(url) = self.iso_url(desired).await? {
            self.datacenter.eject_iso(self.target, &url).await?;
        }
        let one = self
            .datacenter
            .store
            .command_deployment(&self.call.key, DeploymentCommand::Finish)
            .await?;
        Ok(ProviderAnswer::Done(install_outcome(one.as_ref().unwrap_or(desired))))
    }

    async fn check_system(&self, desired: &Deployment) -> Result<()> {
        if !desired.image.body.reports_progress() {
            return self.check_new_host_key().await;
        }
        let message = self.read_stamp().await?;
        if message.trim_end() == desired.stamp().trim_end() {
            return Ok(());
        }
        let message = match message.trim() {
            "" => "it answers and does not say which image it is".to_string(),
            other => format!("it answers as another image: {}", other.replace('\n', ", ")),
        };
        Err(Fault::new(FaultCode::ReadBackDiffers, message))
    }

    /// A foreign installer has succeeded when the host key has changed, or none was pinned.
    async fn check_new_host_key(&self) -> Result<()> {
        let hosts = &self.datacenter.hosts;
        let before = hosts.known_host_key(self.target).await?;
        match (hosts.connect(self.target).await, before) {
            (Err(fault), _)
                if fault.code == FaultCode::IdentityChanged
                    && !matches!(self.datacenter.settings.trust, TrustPolicy::Pinned) =>
            {
                hosts.pin(self.target, None).await?;
                hosts.connect(self.target).await.map(drop)
            }
            (Err(fault), _) => Err(fault),
            (Ok(_), None) => Ok(()),
            (Ok(_), Some(_)) => {
                let message = "the system that was there before answers";
                Err(Fault::new(FaultCode::ReadBackDiffers, message))
            }
        }
    }

    /// The image stamp of the system that answers; empty if it has none.
    pub(super) async fn read_stamp(&self) -> Result<String> {
        let host = self.datacenter.hosts.connect(self.target).await?;
        let output = host.run(READ_STAMP, b"", READ_TIMEOUT).await?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    fn never_booted(&self, one: &Deployment) -> Fault {
        let waited = format_duration(self.imaging.boot_timeout);
        let message = match one.boot_requested_at {
            None => format!(
                "the machine was switched on, and {} got no boot request from {} within {waited}",
                self.imaging.url,
                one.macs.join(", ")
            ),
            Some(_) => {
                format!("the machine was told what to boot and said nothing more within {waited}")
            }
        };
        Fault::new(FaultCode::NetbootSilent, message)
    }

    fn silent(&self, one: &Deployment) -> Fault {
        let silent = format_duration(self.imaging.silence_timeout);
        let message = format!(
            "the deploy environment has said nothing for {silent}; it was at {} % ({})",
            one.percent(),
            one.message
        );
        Fault::new(FaultCode::DeploySilent, message)
    }
}
