//! Installs an image on a machine.
//!
//! A deployment is created, the machine is set to boot from the network, and its power is cycled.
//! It boots the deploy environment, which claims the deployment, writes the disk, and reports
//! progress. After the installation the boot target is the disk again, the machine is released, and
//! the new system must answer over SSH with the host key that was generated for it and the stamp of
//! this attempt. A foreign installer that reports nothing is waited for until its system answers.

mod follow;
mod progress_log;

use super::controller::Controller;
use super::exec::stopped_before_start;
use super::power_sequence::PowerSequence;
use super::provider_calls::{CallCheckpoint, StoredCheckpoint, encode_checkpoint, key_conflict};
use super::{Datacenter, TargetCall};
use crate::clock::now;
use crate::fault::possibly_happened;
use crate::port::{Journal, Target};
use crate::power::{PowerGoal, PowerStage};
use model::condition::{ConditionObservation, ConditionType, imaged};
use model::deploy::{Deployment, DeploymentCommand, DeploymentStage, image_lines};
use model::effect::{
    CallOutcome, CallResult, CallVerb, NetbootMode, PowerOffPolicy, ProviderAnswer, ProviderCall,
};
use model::fault::{EffectOutcome, Fault, FaultCode, Result};
use model::image::{Image, ImageContent};
use secrecy::ExposeSecret;
use std::time::Duration;

/// The interval between two reads of the deployment.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// The timeout of a command on the new system.
const READ_TIMEOUT: Duration = Duration::from_secs(10);
const READ_STAMP: &str = "cat /etc/farrier/image";

#[derive(Debug, Clone)]
pub struct Imaging {
    /// The URL of the netboot service, as machines reach it.
    pub url: String,
    /// The lifetime of a token.
    pub token_ttl: Duration,
    /// The time that a machine has from power on to its first request.
    pub boot_timeout: Duration,
    /// The longest time that the deploy environment may send nothing.
    pub silence_timeout: Duration,
}

impl Datacenter {
    pub(super) async fn repave(&self, request: TargetCall<'_>, image: &str) -> CallResult {
        let TargetCall { target, call, journal } = request;
        let Some(imaging) = &self.settings.imaging else {
            if call.verb == CallVerb::Perform {
                journal.report_untouched();
            }
            let message = "there is no netboot service; set netboot.listen in the configuration";
            return Err(Fault::new(FaultCode::CapabilityMissing, message));
        };
        let work = ImagingWork { datacenter: self, imaging, target, call, image, journal };
        match call.verb {
            CallVerb::Perform | CallVerb::Follow => {
                match self.begin_or_recall(call, PowerProgress::FIRST.checkpoint()).await? {
                    None => Ok(ProviderAnswer::NeverStarted),
                    Some(before) => work.resume(before).await,
                }
            }
            CallVerb::GetStatus => work.get_status().await,
            CallVerb::Observe => work.observe().await,
            CallVerb::Stop => work.stop().await,
        }
    }
}

impl Datacenter {
    async fn boot_iso(&self, target: &Target, url: &str) -> Result<String> {
        self.call_bmc(target, async |bmc: &Controller| bmc.boot_iso(url).await).await
    }

    async fn eject_iso(&self, target: &Target, url: &str) -> Result<()> {
        self.call_bmc(target, async |bmc: &Controller| bmc.eject_iso(url).await).await
    }
}

/// The progress of the power cycle: first off, then on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct PowerProgress {
    stage: PowerStage,
    powering_on: bool,
}

impl PowerProgress {
    const FIRST: Self = Self { stage: PowerStage::Begun, powering_on: false };

    fn checkpoint(self) -> CallCheckpoint {
        CallCheckpoint::Image { stage: self.stage, on: self.powering_on }
    }
}

/// One provider call to install an image.
struct ImagingWork<'a> {
    datacenter: &'a Datacenter,
    imaging: &'a Imaging,
    target: &'a Target,
    call: &'a ProviderCall,
    image: &'a str,
    journal: &'a Journal,
}

impl ImagingWork<'_> {
    async fn resume(&self, before: StoredCheckpoint) -> CallResult {
        match before {
            StoredCheckpoint::Checkpoint(CallCheckpoint::Image {
                stage: PowerStage::Stopped,
                ..
            })
            | StoredCheckpoint::StoppedBeforeStart => Err(stopped_before_start(&self.call.key)),
            StoredCheckpoint::Checkpoint(CallCheckpoint::Image { stage, on }) => {
                self.execute(PowerProgress { stage, powering_on: on }).await
            }
            StoredCheckpoint::Checkpoint(_) => Err(key_conflict()),
        }
    }

    async fn get_status(&self) -> CallResult {
        match self.datacenter.checkpoint(&self.call.key).await? {
            None
            | Some(
                StoredCheckpoint::StoppedBeforeStart
                | StoredCheckpoint::Checkpoint(CallCheckpoint::Image {
                    stage: PowerStage::Stopped,
                    ..
                }),
            ) => {
                return Ok(ProviderAnswer::NeverStarted);
            }
            Some(StoredCheckpoint::Checkpoint(_)) => {}
        }
        let deployment = self.datacenter.store.deployment(&self.call.key).await?;
        if let Some(one) = &deployment {
            self.report_progress(one);
        }
        Ok(match deployment {
            Some(one) if one.stage == DeploymentStage::Finished => {
                ProviderAnswer::Done(install_outcome(&one))
            }
            Some(_) | None => ProviderAnswer::UnderWay,
        })
    }

    /// Checks that the machine runs this image, regardless of who installed it.
    async fn observe(&self) -> CallResult {
        let image = self.datacenter.store.image(self.image).await?;
        let message = self.read_stamp().await?;
        Ok(match message.starts_with(&image_lines(&image)) {
            true => ProviderAnswer::Done(image_outcome(&image.name)),
            false if message.is_empty() => {
                ProviderAnswer::Differs("it does not say which image it is".into())
            }
            false => {
                ProviderAnswer::Differs(format!("it says: {}", message.trim().replace('\n', ", ")))
            }
        })
    }

    /// Closes the deployment, so that nothing more is written. A machine that was already released
    /// is followed. Otherwise the boot target is restored, and a begun power cycle is completed.
    async fn stop(&self) -> CallResult {
        let (at, key) = (self.datacenter, &self.call.key);
        let Some(CallCheckpoint::Image { stage, on }) = at.bar(key).await? else {
            self.journal.report_untouched();
            return Ok(ProviderAnswer::Stopped);
        };
        let mut phase = PowerProgress { stage, powering_on: on };
        if phase == PowerProgress::FIRST {
            let stopped = PowerProgress { stage: PowerStage::Stopped, powering_on: false };
            at.compare_and_swap(key, phase.checkpoint(), stopped.checkpoint()).await?;
            phase = stopped;
        }
        let Some(one) = at.store.command_deployment(key, DeploymentCommand::Stop).await? else {
            self.journal.report_untouched();
            return Ok(ProviderAnswer::Stopped);
        };
        match one.stage {
            DeploymentStage::Finished => return Ok(ProviderAnswer::Done(install_outcome(&one))),
            DeploymentStage::Released => return self.execute(phase).await,
            DeploymentStage::Prepared
            | DeploymentStage::Requested
            | DeploymentStage::Claimed
            | DeploymentStage::Writing
            | DeploymentStage::Installing
            | DeploymentStage::Installed
            | DeploymentStage::Failed(_)
            | DeploymentStage::Closed => {}
        }
        if never_claimed(&one) {
            self.journal.report_untouched();
        }
        if one.session.is_some() {
            self.report_progress(&one);
            let how_far =
                format!("image: stopped at {} %; the disk holds half of it", one.percent());
            self.journal.write_line(how_far).await;
        }
        self.restore_boot(&one).await?;
        if phase.stage != PowerStage::Stopped {
            self.power_cycle(&mut phase).await?;
        }
        Ok(ProviderAnswer::Stopped)
    }

    /// Restores the boot target: neither the network nor the ISO.
    async fn restore_boot(&self, desired: &Deployment) -> Result<()> {
        if let Some(url) = self.iso_url(desired).await? {
            self.datacenter.eject_iso(self.target, &url).await?;
        }
        self.boot_from(NetbootMode::Disk).await
    }

    /// Continues from the stored progress. A definite failure closes the deployment.
    async fn execute(&self, phase: PowerProgress) -> CallResult {
        let ended = self.run_to_end(phase).await;
        if let Err(fault) = &ended
            && fault.code.effect_outcome() == EffectOutcome::NotApplied
        {
            let closed = self
                .datacenter
                .store
                .command_deployment(&self.call.key, DeploymentCommand::Close)
                .await;
            let closed = closed.map_err(possibly_happened)?;
            if closed.as_ref().is_none_or(never_claimed) {
                self.journal.report_untouched();
            }
            if let Some(one) = closed
                && let Err(also) = self.restore_boot(&one).await
            {
                self.journal
                    .write_line(format!("boot: could not be put back: {}", also.message))
                    .await;
            }
        }
        ended
    }

    /// Before the deploy environment has claimed the deployment, nothing is written.
    fn report_progress(&self, one: &Deployment) {
        if one.session.is_some() {
            self.journal.report_written(one.percent());
        }
    }

    async fn run_to_end(&self, mut phase: PowerProgress) -> CallResult {
        let desired = self.get_or_create_deployment(phase).await?;
        match desired.stage {
            DeploymentStage::Finished => {
                return Ok(ProviderAnswer::Done(install_outcome(&desired)));
            }
            DeploymentStage::Closed => {
                let message = format!("the deployment of {} was closed", self.call.key);
                return Err(Fault::new(FaultCode::EffectFailed, message));
            }
            DeploymentStage::Prepared
            | DeploymentStage::Requested
            | DeploymentStage::Claimed
            | DeploymentStage::Writing
            | DeploymentStage::Installing
            | DeploymentStage::Installed
            | DeploymentStage::Released
            | DeploymentStage::Failed(_) => {}
        }
        if phase == PowerProgress::FIRST {
            self.set_image_boot(&desired).await?;
        }
        self.power_cycle(&mut phase).await?;
        self.follow(&desired).await.map_err(possibly_happened)
    }

    /// Power off, then on. Arms the deployment in between, so that the old system cannot claim it.
    async fn power_cycle(&self, phase: &mut PowerProgress) -> Result<()> {
        let key = &self.call.key;
        if !phase.powering_on {
            let note = |_, stage| CallCheckpoint::Image { stage, on: false };
            self.run_power_sequence(PowerGoal::Off, &mut phase.stage, note).await?;
            self.datacenter
                .store
                .command_deployment(key, DeploymentCommand::Arm)
                .await
                .map_err(possibly_happened)?;
            let next = PowerProgress { stage: PowerStage::Begun, powering_on: true };
            self.datacenter.compare_and_swap(key, phase.checkpoint(), next.checkpoint()).await?;
            *phase = next;
        }
        if phase.stage == PowerStage::Done {
            return Ok(());
        }
        let note = |_, stage| CallCheckpoint::Image { stage, on: true };
        self.run_power_sequence(PowerGoal::On, &mut phase.stage, note)
            .await
            .map_err(possibly_happened)
    }

    async fn run_power_sequence(
        &self,
        goal: PowerGoal,
        stage: &mut PowerStage,
        note: fn(PowerSequence, PowerStage) -> CallCheckpoint,
    ) -> Result<()> {
        let power_off = PowerOffPolicy::PROVIDER_DEFAULT;
        let plan = PowerSequence { goal, power_off, await_host: false, watched: None };
        let Self { target, call, journal, .. } = *self;
        let request = TargetCall { target, call, journal };
        self.datacenter.follow_power_sequence(request, plan, stage, note).await.map(drop)
    }

    async fn follow(&self, desired: &Deployment) -> CallResult {
        match desired.image.body.reports_progress() {
            true => self.wait_until_installed().await?,
            false => self.wait_until_fetched(desired).await?,
        }
        self.wait_for_system(desired).await
    }

    /// The deployment of this key; created if it does not exist.
    async fn get_or_create_deployment(&self, phase: PowerProgress) -> Result<Deployment> {
        if let Some(known) = self.datacenter.store.deployment(&self.call.key).await? {
            return Ok(known);
        }
        let key = &self.call.key;
        let desired = self.new_deployment().await?;
        let note = encode_checkpoint(key, phase.checkpoint())?;
        let opened = self.datacenter.store.create_deployment(&desired, &note).await?;
        let slept = || {
            let message = format!("another worker has gone on with {key}, or stopped it");
            Fault::new(FaultCode::AnswerLost, message)
        };
        let opened = opened.ok_or_else(slept)?;
        let Image { name, body, .. } = &opened.image;
        let message = format!("image: {name} ({}) for {}", body.kind(), opened.macs.join(", "));
        self.journal.write_line(message).await;
        Ok(opened)
    }

    async fn new_deployment(&self) -> Result<Deployment> {
        let Self { target, imaging, call, .. } = self;
        let image = self.datacenter.store.image(self.image).await?;
        let macs = target.spec.mac_addresses.clone();
        if macs.is_empty() && !matches!(image.body, ImageContent::Iso { .. }) {
            let message = "the machine has no mac_addresses, and would not be known when it boots; \
                        add them with `farrier machine update`";
            return Err(Fault::new(FaultCode::NotSupported, message));
        }
        let (user, public) = self.datacenter.hosts.login_user(target).await?;
        let (key, machine_id) = (call.key.clone(), target.machine_id().clone());
        Ok(Deployment {
            macs,
            user,
            authorized_keys: public.into_iter().collect(),
            root_disk: target.spec.root_disk.clone(),
            ..Deployment::new(key, machine_id, image, now(), imaging.token_ttl)
        })
    }

    /// Sets the next boot to the image.
    async fn set_image_boot(&self, desired: &Deployment) -> Result<()> {
        match self.iso_url(desired).await? {
            None => self.boot_from(NetbootMode::Pxe).await,
            Some(url) => {
                let observed = self.datacenter.boot_iso(self.target, &url).await?;
                self.journal.write_line(format!("boot: the BMC shows {observed}")).await;
                Ok(())
            }
        }
    }

    async fn boot_from(&self, mode: NetbootMode) -> Result<()> {
        self.datacenter.set_netboot(self.target, mode, self.journal).await.map(drop)
    }

    /// The URL of the ISO, if the image is one.
    async fn iso_url(&self, desired: &Deployment) -> Result<Option<String>> {
        let ImageContent::Iso { file } = &desired.image.body else { return Ok(None) };
        if let Some(url) = &file.url {
            return Ok(Some(url.clone()));
        }
        let token = self.datacenter.store.deployment_token(&desired.key).await?;
        Ok(Some(format!("{}/netboot/{}/disc.iso", self.imaging.url, token.expose_secret())))
    }
}

/// True if a closed deployment was never claimed by the deploy environment, which alone writes the
/// disk. False for a foreign installer: it claims no deployment, so nothing is known.
fn never_claimed(closed: &Deployment) -> bool {
    closed.image.body.reports_progress() && closed.session.is_none()
}

fn install_outcome(one: &Deployment) -> CallOutcome {
    match one.image.body.reports_progress() {
        true => image_outcome(&one.image.name),
        false => {
            let message = format!("{} was booted, and its system answers", one.image.name);
            CallOutcome { message, ..image_outcome(&one.image.name) }
        }
    }
}

fn image_outcome(image: &str) -> CallOutcome {
    let answers = ConditionObservation::new(ConditionType::Reachable, true, "Imaged");
    let evidence = vec![answers, imaged(image)];
    CallOutcome { message: format!("it runs {image} and says so itself"), evidence, facts: None }
}
