//! Installs an image on a machine.
//!
//! A deployment is created, the machine is set to boot from the network, and its power is cycled.
//! It boots the deploy environment, which claims the deployment, writes the disk, and reports
//! progress. After the installation the boot target is the disk again, the machine is released, and
//! the new system must answer over SSH with the host key that was generated for it and the stamp of
//! this attempt. A foreign installer that reports nothing is waited for until its system answers.

mod follow;
mod teller;

use super::Datacenter;
use super::controller::Controller;
use super::exec::barred;
use super::orders::{OrderCheckpoint, Remembered, done, two_effects, value};
use super::power_sequence::PowerSequence;
use crate::clock::now;
use crate::fault::possibly_happened;
use crate::governor::Priority;
use crate::port::{Journal, Target};
use crate::power::{PowerGoal, PowerStage};
use crate::state_store::Checkpoint;
use model::condition::{ConditionType, Evidence};
use model::deploy::{Deployment, Stage, Steer, image_lines};
use model::effect::{Answer, NetbootMode, Order, Outcome, PowerOffPolicy, Verb};
use model::fault::{Code, Fault, Happened};
use model::image::{Body, Image};
use secrecy::ExposeSecret;
use std::time::Duration;

/// Between two reads of the deployment.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The timeout of a command on the new system.
const ASK_LIMIT: Duration = Duration::from_secs(10);
const READ_STAMP: &str = "cat /etc/farrier/image";

#[derive(Debug, Clone)]
pub struct Imaging {
    /// The URL of the netboot service, as machines reach it.
    pub url: String,
    /// The lifetime of a token.
    pub token: Duration,
    /// How long a machine may take from power on to its first request.
    pub boot: Duration,
    /// How long the deploy environment may send nothing.
    pub silence: Duration,
}

impl Datacenter {
    pub(super) async fn repave(
        &self,
        target: &Target,
        order: &Order,
        image: &str,
        journal: &Journal,
    ) -> Result<Answer, Fault> {
        let Some(imaging) = &self.settings.imaging else {
            let said = "there is no netboot service; set netboot.listen in the configuration";
            return Err(Fault::new(Code::CapabilityMissing, said));
        };
        let work = Work { at: self, imaging, target, order, image, journal };
        match order.verb {
            Verb::Perform => match self.begin(&order.key, Leg::FIRST.memo()).await? {
                None => work.carry_out(Leg::FIRST).await,
                Some(before) => work.go_on(before).await,
            },
            Verb::Follow => match self.recall(&order.key).await? {
                None => Ok(Answer::NeverStarted),
                Some(before) => work.go_on(before).await,
            },
            Verb::GetStatus => work.inquire().await,
            Verb::Observe => work.observe().await,
            Verb::Stop => work.stop().await,
        }
    }
}

impl Datacenter {
    async fn show_disc(&self, target: &Target, url: &str) -> Result<String, Fault> {
        let show = async |bmc: &Controller| bmc.boot_disc(url).await;
        self.bmcs.call(target, Priority::Operator, self.settings.call, show).await
    }

    async fn take_disc_out(&self, target: &Target, url: &str) -> Result<(), Fault> {
        let out = async |bmc: &Controller| bmc.take_disc_out(url).await;
        self.bmcs.call(target, Priority::Operator, self.settings.call, out).await
    }
}

/// The progress of the power cycle: first off, then on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Leg {
    stage: PowerStage,
    on: bool,
}

impl Leg {
    const FIRST: Self = Self { stage: PowerStage::Begun, on: false };

    fn memo(self) -> OrderCheckpoint {
        OrderCheckpoint::Image { stage: self.stage, on: self.on }
    }
}

/// One provider call to install an image.
struct Work<'a> {
    at: &'a Datacenter,
    imaging: &'a Imaging,
    target: &'a Target,
    order: &'a Order,
    image: &'a str,
    journal: &'a Journal,
}

impl Work<'_> {
    async fn go_on(&self, before: Remembered) -> Result<Answer, Fault> {
        match before {
            Remembered::Checkpoint(OrderCheckpoint::Image {
                stage: PowerStage::Stopped, ..
            })
            | Remembered::Barred => Err(barred(&self.order.key)),
            Remembered::Checkpoint(OrderCheckpoint::Image { stage, on }) => {
                self.carry_out(Leg { stage, on }).await
            }
            Remembered::Checkpoint(
                OrderCheckpoint::Power { .. }
                | OrderCheckpoint::Netboot { .. }
                | OrderCheckpoint::InBand { .. }
                | OrderCheckpoint::Join { .. }
                | OrderCheckpoint::Drain { .. }
                | OrderCheckpoint::Uncordon
                | OrderCheckpoint::Firmware { .. }
                | OrderCheckpoint::Fabric { .. },
            ) => Err(two_effects()),
        }
    }

    async fn inquire(&self) -> Result<Answer, Fault> {
        match self.at.recall(&self.order.key).await? {
            None
            | Some(
                Remembered::Barred
                | Remembered::Checkpoint(OrderCheckpoint::Image {
                    stage: PowerStage::Stopped, ..
                }),
            ) => {
                return Ok(Answer::NeverStarted);
            }
            Some(Remembered::Checkpoint(_)) => {}
        }
        Ok(match self.at.store.deployment(&self.order.key).await? {
            Some(one) if one.stage == Stage::Finished => Answer::Done(installed(&one)),
            Some(_) | None => Answer::UnderWay,
        })
    }

    /// Whether the machine runs this image, regardless of who installed it.
    async fn observe(&self) -> Result<Answer, Fault> {
        let image = self.at.store.image(self.image).await?;
        let said = self.stamp_there().await?;
        Ok(match said.starts_with(&image_lines(&image)) {
            true => Answer::Done(runs(&image.name)),
            false if said.is_empty() => Answer::Differs("it does not say which image it is".into()),
            false => Answer::Differs(format!("it says: {}", said.trim().replace('\n', ", "))),
        })
    }

    /// Closes the deployment, so that nothing more is written. A machine that was already released
    /// is followed. Otherwise the boot target is restored, and a begun power cycle is completed.
    async fn stop(&self) -> Result<Answer, Fault> {
        let (at, key) = (self.at, &self.order.key);
        match at.store.begin(key, &Checkpoint::Barred).await? {
            None | Some(Checkpoint::Barred) => return Ok(Answer::Stopped),
            Some(Checkpoint::Begun(_)) => {}
        }
        let mut leg = match at.recall(key).await? {
            Some(Remembered::Checkpoint(OrderCheckpoint::Image { stage, on })) => Leg { stage, on },
            Some(Remembered::Checkpoint(_) | Remembered::Barred) | None => {
                return Ok(Answer::Stopped);
            }
        };
        if leg == Leg::FIRST {
            let stopped = Leg { stage: PowerStage::Stopped, on: false };
            at.compare_and_swap(key, leg.memo(), stopped.memo()).await?;
            leg = stopped;
        }
        let Some(one) = at.store.steer(key, Steer::Stop).await? else {
            return Ok(Answer::Stopped);
        };
        match one.stage {
            Stage::Finished => return Ok(Answer::Done(installed(&one))),
            Stage::Released => return self.carry_out(leg).await,
            Stage::Prepared
            | Stage::Wanted
            | Stage::Claimed
            | Stage::Writing
            | Stage::Installing
            | Stage::Installed
            | Stage::Failed(_)
            | Stage::Closed => {}
        }
        if one.session.is_some() {
            let how_far =
                format!("image: stopped at {} %; the disk holds half of it", one.percent());
            self.journal.line(how_far).await;
        }
        self.put_boot_back(&one).await?;
        if leg.stage != PowerStage::Stopped {
            self.off_and_on(&mut leg).await?;
        }
        Ok(Answer::Stopped)
    }

    /// Restores the boot target: neither the network nor the ISO.
    async fn put_boot_back(&self, wanted: &Deployment) -> Result<(), Fault> {
        if let Some(url) = self.disc(wanted).await? {
            self.at.take_disc_out(self.target, &url).await?;
        }
        self.boot_from(NetbootMode::Disk).await
    }

    /// Continues from the stored progress. A definite failure closes the deployment.
    async fn carry_out(&self, leg: Leg) -> Result<Answer, Fault> {
        let ended = self.see_through(leg).await;
        if let Err(fault) = &ended
            && fault.code.happened() == Happened::No
        {
            let closed = self.at.store.steer(&self.order.key, Steer::Close).await;
            if let Some(one) = closed.map_err(possibly_happened)?
                && let Err(also) = self.put_boot_back(&one).await
            {
                self.journal.line(format!("boot: could not be put back: {}", also.said)).await;
            }
        }
        ended
    }

    async fn see_through(&self, mut leg: Leg) -> Result<Answer, Fault> {
        let wanted = self.wanted(leg).await?;
        match wanted.stage {
            Stage::Finished => return Ok(Answer::Done(installed(&wanted))),
            Stage::Closed => {
                let said = format!("the deployment of {} was closed", self.order.key);
                return Err(Fault::new(Code::EffectFailed, said));
            }
            Stage::Prepared
            | Stage::Wanted
            | Stage::Claimed
            | Stage::Writing
            | Stage::Installing
            | Stage::Installed
            | Stage::Released
            | Stage::Failed(_) => {}
        }
        if leg == Leg::FIRST {
            self.point_boot(&wanted).await?;
        }
        self.off_and_on(&mut leg).await?;
        self.follow(&wanted).await.map_err(possibly_happened)
    }

    /// Power off, then on. Arms the deployment in between, so that the old system cannot claim it.
    async fn off_and_on(&self, leg: &mut Leg) -> Result<(), Fault> {
        let key = &self.order.key;
        if !leg.on {
            let note = |_, stage| OrderCheckpoint::Image { stage, on: false };
            self.lead(PowerGoal::Off, &mut leg.stage, note).await?;
            self.at.store.steer(key, Steer::Arm).await.map_err(possibly_happened)?;
            let next = Leg { stage: PowerStage::Begun, on: true };
            self.at.compare_and_swap(key, leg.memo(), next.memo()).await?;
            *leg = next;
        }
        if leg.stage == PowerStage::Done {
            return Ok(());
        }
        let note = |_, stage| OrderCheckpoint::Image { stage, on: true };
        self.lead(PowerGoal::On, &mut leg.stage, note).await.map_err(possibly_happened)
    }

    async fn lead(
        &self,
        goal: PowerGoal,
        stage: &mut PowerStage,
        note: fn(PowerSequence, PowerStage) -> OrderCheckpoint,
    ) -> Result<(), Fault> {
        let power_off = PowerOffPolicy::CONFIGURED;
        let course = PowerSequence { goal, power_off, back: false, watched: None };
        let key = &self.order.key;
        self.at.follow_course(self.target, key, course, stage, note, self.journal).await.map(drop)
    }

    async fn follow(&self, wanted: &Deployment) -> Result<Answer, Fault> {
        match wanted.image.body.phones_home() {
            true => self.until_installed().await?,
            false => self.until_fetched(wanted).await?,
        }
        self.until_back(wanted).await
    }

    /// The deployment of this key; created if it does not exist.
    async fn wanted(&self, leg: Leg) -> Result<Deployment, Fault> {
        if let Some(known) = self.at.store.deployment(&self.order.key).await? {
            return Ok(known);
        }
        let key = &self.order.key;
        let wanted = self.new_deployment().await?;
        let note = value(key, leg.memo())?;
        let opened = self.at.store.want(&wanted, &note).await?;
        let slept = || {
            let said = format!("another worker has gone on with {key}, or stopped it");
            Fault::new(Code::AnswerLost, said)
        };
        let opened = opened.ok_or_else(slept)?;
        let Image { name, body, .. } = &opened.image;
        let said = format!("image: {name} ({}) for {}", body.kind(), opened.macs.join(", "));
        self.journal.line(said).await;
        Ok(opened)
    }

    async fn new_deployment(&self) -> Result<Deployment, Fault> {
        let Self { target, imaging, order, .. } = self;
        let image = self.at.store.image(self.image).await?;
        let macs = target.spec.mac_addresses.clone();
        if macs.is_empty() && !matches!(image.body, Body::Iso { .. }) {
            let said = "the machine has no mac_addresses, and would not be known when it boots; \
                        add them with `farrier machine update`";
            return Err(Fault::new(Code::NotSupported, said));
        }
        let (user, public) = self.at.hosts.owner(target).await?;
        let (key, machine_id) = (order.key.clone(), target.machine_id().clone());
        Ok(Deployment {
            macs,
            user,
            authorized_keys: public.into_iter().collect(),
            root_disk: target.spec.root_disk.clone(),
            ..Deployment::new(key, machine_id, image, now(), imaging.token)
        })
    }

    /// Sets the next boot to the image.
    async fn point_boot(&self, wanted: &Deployment) -> Result<(), Fault> {
        match self.disc(wanted).await? {
            None => self.boot_from(NetbootMode::Pxe).await,
            Some(url) => {
                let seen = self.at.show_disc(self.target, &url).await?;
                self.journal.line(format!("boot: the BMC shows {seen}")).await;
                Ok(())
            }
        }
    }

    async fn boot_from(&self, mode: NetbootMode) -> Result<(), Fault> {
        self.at.set_netboot(self.target, mode, self.journal).await.map(drop)
    }

    /// The URL of the ISO, if the image is one.
    async fn disc(&self, wanted: &Deployment) -> Result<Option<String>, Fault> {
        let Body::Iso { file } = &wanted.image.body else { return Ok(None) };
        if let Some(url) = &file.url {
            return Ok(Some(url.clone()));
        }
        let token = self.at.store.token(&wanted.key).await?;
        Ok(Some(format!("{}/netboot/{}/disc.iso", self.imaging.url, token.expose_secret())))
    }
}

fn installed(one: &Deployment) -> Outcome {
    match one.image.body.phones_home() {
        true => runs(&one.image.name),
        false => done(format!("{} was booted, and its system answers", one.image.name)),
    }
}

fn runs(image: &str) -> Outcome {
    let evidence = vec![Evidence::new(ConditionType::Reachable, true, "Imaged")];
    Outcome { said: format!("it runs {image} and says so itself"), evidence, facts: None }
}
