//! Putting an image on a machine.
//!
//! A deployment is wanted, the machine is told to boot over the network, and its power is cycled. What it boots is the deploy
//! environment, which claims the deployment, writes the disk, and says how it goes. When all is installed, the boot goes back to
//! the disk, the machine is let go, and the new system must answer over SSH, with the host key that was made for it and
//! with the stamp of this very attempt. An installer of somebody's own that says nothing is waited for until its system answers.

mod teller;

use super::Datacenter;
use super::controller::Controller;
use super::course::Course;
use super::exec::{barred, out_of_sight};
use super::orders::{Memo, Remembered, done, now, two_effects, value};
use super::power::{Goal, Stage as PowerStage};
use crate::governor::Priority;
use crate::keeper::Note;
use crate::port::{Journal, Target};
use model::condition::{ConditionType, Evidence};
use model::deploy::{Deployment, Stage, Steer, image_lines};
use model::effect::{Answer, Manner, NetbootMode, Order, Outcome, Verb};
use model::fault::{Code, Fault, Happened};
use model::image::{Body, Image};
use model::time::spoken;
use secrecy::ExposeSecret;
use std::time::{Duration, Instant};
use teller::Teller;

/// How often one looks how it goes.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long a question to the new system may take.
const ASK_LIMIT: Duration = Duration::from_secs(10);
const READ_STAMP: &str = "cat /etc/farrier/image";

/// How images are put on machines.
#[derive(Debug, Clone)]
pub struct Imaging {
    /// Where machines find the netboot service.
    pub url: String,
    /// How long a token is good.
    pub token: Duration,
    /// How long a machine may take from power on to its first word.
    pub boot: Duration,
    /// How long the deploy environment may be silent.
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
            Verb::Perform => {
                let memo = Memo::Image { stage: PowerStage::Begun };
                match self.begin(&order.key, memo).await? {
                    None => work.carry_out(PowerStage::Begun).await,
                    Some(before) => work.go_on(before).await,
                }
            }
            Verb::Follow => match self.recall(&order.key).await? {
                None => Ok(Answer::NeverStarted),
                Some(before) => work.go_on(before).await,
            },
            Verb::Inquire => work.inquire().await,
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

/// One order to put an image on a machine.
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
            Remembered::Memo(Memo::Image { stage: PowerStage::Stopped }) | Remembered::Barred => {
                Err(barred(&self.order.key))
            }
            Remembered::Memo(Memo::Image { stage }) => self.carry_out(stage).await,
            Remembered::Memo(
                Memo::Power { .. }
                | Memo::Netboot { .. }
                | Memo::InBand { .. }
                | Memo::Join { .. }
                | Memo::Drain { .. }
                | Memo::Uncordon,
            ) => Err(two_effects()),
        }
    }

    async fn inquire(&self) -> Result<Answer, Fault> {
        match self.at.recall(&self.order.key).await? {
            None
            | Some(
                Remembered::Barred | Remembered::Memo(Memo::Image { stage: PowerStage::Stopped }),
            ) => {
                return Ok(Answer::NeverStarted);
            }
            Some(Remembered::Memo(_)) => {}
        }
        Ok(match self.at.keeper.deployment(&self.order.key).await? {
            Some(one) if one.stage == Stage::Finished => Answer::Done(installed(&one)),
            Some(_) | None => Answer::UnderWay,
        })
    }

    /// Whether the machine runs this image already, whoever put it there.
    async fn observe(&self) -> Result<Answer, Fault> {
        let image = self.at.keeper.image(self.image).await?;
        let said = self.stamp_there().await?;
        Ok(match said.starts_with(&image_lines(&image)) {
            true => Answer::Done(runs(&image.name)),
            false if said.is_empty() => Answer::Differs("it does not say which image it is".into()),
            false => Answer::Differs(format!("it says: {}", said.trim().replace('\n', ", "))),
        })
    }

    /// Closes the deployment, so that nothing more is written. What has been let go already boots the new system, and is
    /// followed; a machine that is half off is brought back first.
    async fn stop(&self) -> Result<Answer, Fault> {
        let (at, key) = (self.at, &self.order.key);
        match at.keeper.begin(key, &Note::Barred).await? {
            None | Some(Note::Barred) => return Ok(Answer::Stopped),
            Some(Note::Begun(_)) => {}
        }
        let stage = match at.recall(key).await? {
            Some(Remembered::Memo(Memo::Image { stage })) => stage,
            Some(Remembered::Memo(_) | Remembered::Barred) | None => return Ok(Answer::Stopped),
        };
        if stage == PowerStage::Begun {
            let note = |stage| Memo::Image { stage };
            at.amend(key, note(PowerStage::Begun), note(PowerStage::Stopped)).await?;
        }
        match at.keeper.deployment(key).await? {
            Some(one) if one.stage == Stage::Finished => return Ok(Answer::Done(installed(&one))),
            Some(one) if one.stage == Stage::Released => return self.carry_out(stage).await,
            Some(_) | None => {}
        }
        if let Some(one) = at.keeper.steer(key, Steer::Close).await?
            && one.session.is_some()
        {
            let how_far =
                format!("image: stopped at {} %; the disk holds half of it", one.percent());
            self.journal.line(how_far).await;
        }
        match stage {
            PowerStage::Begun | PowerStage::Stopped | PowerStage::Done => {}
            PowerStage::Shutting(_) | PowerStage::Cutting(_) | PowerStage::Starting(_) => {
                self.cycle(&mut stage.clone()).await?;
            }
        }
        Ok(Answer::Stopped)
    }

    /// Goes on from wherever it is. A failure that is one for certain closes the deployment: whatever the machine still does, it
    /// does not do in our name.
    async fn carry_out(&self, stage: PowerStage) -> Result<Answer, Fault> {
        let ended = self.see_through(stage).await;
        if let Err(fault) = &ended
            && fault.code.happened() == Happened::No
        {
            self.at.keeper.steer(&self.order.key, Steer::Close).await.map_err(out_of_sight)?;
        }
        ended
    }

    async fn see_through(&self, mut stage: PowerStage) -> Result<Answer, Fault> {
        let wanted = self.wanted(stage).await?;
        match wanted.stage {
            Stage::Finished => return Ok(Answer::Done(installed(&wanted))),
            Stage::Closed => {
                let said = format!("the deployment of {} was closed", self.order.key);
                return Err(Fault::new(Code::EffectFailed, said));
            }
            Stage::Wanted
            | Stage::Claimed
            | Stage::Writing
            | Stage::Installing
            | Stage::Installed
            | Stage::Released
            | Stage::Failed(_) => {}
        }
        if stage == PowerStage::Begun {
            self.point_boot(&wanted).await?;
        }
        if stage != PowerStage::Done {
            self.cycle(&mut stage).await?;
        }
        self.follow(&wanted).await.map_err(out_of_sight)
    }

    async fn follow(&self, wanted: &Deployment) -> Result<Answer, Fault> {
        match wanted.image.body.phones_home() {
            true => self.until_installed().await?,
            false => self.until_fetched(wanted).await?,
        }
        self.until_back(wanted).await
    }

    async fn cycle(&self, stage: &mut PowerStage) -> Result<(), Fault> {
        let note = |_, stage| Memo::Image { stage };
        let key = &self.order.key;
        let (goal, manner, back) = (Goal::Cycle, Manner::CONFIGURED, false);
        let course = Course { goal, manner, back };
        let ended =
            self.at.follow_course(self.target, key, course, stage, note, self.journal).await;
        ended.map(drop)
    }

    /// The deployment of this key, wanted now if it was not before.
    async fn wanted(&self, stage: PowerStage) -> Result<Deployment, Fault> {
        if let Some(known) = self.at.keeper.deployment(&self.order.key).await? {
            return Ok(known);
        }
        let key = &self.order.key;
        let wanted = self.new_deployment().await?;
        let note = value(key, Memo::Image { stage })?;
        let opened = self.at.keeper.want(&wanted, &note).await?;
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
        let image = self.at.keeper.image(self.image).await?;
        let macs = target.spec.mac_addresses.clone();
        if macs.is_empty() && !matches!(image.body, Body::Iso { .. }) {
            let said = "the machine has no mac_addresses, and would not be known when it boots; \
                        add them with `farrier machine update`";
            return Err(Fault::new(Code::NotSupported, said));
        }
        let (user, public) = self.at.hosts.owner(target).await?;
        let (key, machine_id) = (order.key.clone(), target.machine_id.clone());
        Ok(Deployment {
            macs,
            user,
            authorized_keys: public.into_iter().collect(),
            root_disk: target.spec.root_disk.clone(),
            ..Deployment::new(key, machine_id, image, now(), imaging.token)
        })
    }

    /// Sees to it that the next boot leads to the image.
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

    /// Where the BMC fetches the disc, if the image is one.
    async fn disc(&self, wanted: &Deployment) -> Result<Option<String>, Fault> {
        let Body::Iso { file } = &wanted.image.body else { return Ok(None) };
        if let Some(url) = &file.url {
            return Ok(Some(url.clone()));
        }
        let token = self.at.keeper.token(&wanted.key).await?;
        Ok(Some(format!("{}/netboot/{}/disc.iso", self.imaging.url, token.expose_secret())))
    }

    /// Follows the deploy environment until the machine is let go to boot what was installed.
    async fn until_installed(&self) -> Result<(), Fault> {
        let began = Instant::now();
        let mut teller = Teller::default();
        loop {
            let one = self.look().await?;
            if let Some(line) = teller.line(&one) {
                self.journal.line(line).await;
            }
            match one.stage {
                Stage::Wanted if began.elapsed() > self.imaging.boot => {
                    return Err(self.never_booted(&one));
                }
                Stage::Claimed | Stage::Writing | Stage::Installing
                    if one
                        .heard_at
                        .is_some_and(|heard| now().since(heard) > self.imaging.silence) =>
                {
                    return Err(self.silent(&one));
                }
                Stage::Wanted | Stage::Claimed | Stage::Writing | Stage::Installing => {}
                Stage::Installed => self.let_go(&one).await?,
                Stage::Released | Stage::Finished => return Ok(()),
                Stage::Failed(trouble) => return Err(trouble.fault(&one.said)),
                Stage::Closed => {
                    return Err(Fault::new(Code::EffectFailed, "the deployment was closed"));
                }
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Waits until what is to be booted has been fetched, which is the last that is heard of an installer that says nothing.
    async fn until_fetched(&self, wanted: &Deployment) -> Result<(), Fault> {
        let began = Instant::now();
        loop {
            let one = self.look().await?;
            let elsewhere = wanted.image.body.artifacts().iter().all(|file| file.url.is_some());
            if one.asked_at.is_some() || elsewhere {
                self.journal.line("image: fetched; its installer says nothing more").await;
                self.at.hosts.introduce(self.target, None).await?;
                return Ok(());
            }
            if began.elapsed() > self.imaging.boot {
                return Err(self.never_booted(&one));
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    async fn look(&self) -> Result<Deployment, Fault> {
        let found = self.at.keeper.deployment(&self.order.key).await?;
        found.ok_or_else(|| Fault::new(Code::RecordUnreadable, "the deployment is gone"))
    }

    /// Back to the disk, whose host key is known from now on; then the machine may go.
    async fn let_go(&self, one: &Deployment) -> Result<(), Fault> {
        let limit = self.at.settings.call;
        let back =
            async |bmc: &super::controller::Controller| bmc.boot_from(NetbootMode::Disk).await;
        let seen = self.at.bmcs.call(self.target, Priority::Operator, limit, back).await?;
        self.journal.line(format!("boot: the BMC shows {seen}")).await;
        let key = one.host_keys.first().map(String::as_str);
        self.at.hosts.introduce(self.target, key).await?;
        self.at.keeper.steer(&self.order.key, Steer::Release).await.map(drop)
    }

    /// Waits for the new system, and sees that it is the right one.
    async fn until_back(&self, wanted: &Deployment) -> Result<Answer, Fault> {
        let began = Instant::now();
        self.journal.line("image: waiting for the new system to answer").await;
        loop {
            let fault = match self.answers(wanted).await {
                Ok(()) => break,
                Err(fault) => fault,
            };
            // What refuses us now refuses us in a minute, and counts.
            let refused = matches!(fault.code, Code::LoginRefused | Code::CredentialMissing);
            if refused || began.elapsed() > self.imaging.boot {
                let waited = spoken(began.elapsed());
                let said = format!(
                    "{} was installed, and its system did not come back within {waited}: {}",
                    wanted.image.name, fault.said
                );
                return Err(Fault::new(Code::SystemNotBack, said));
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
        if let Some(url) = self.disc(wanted).await? {
            self.at.take_disc_out(self.target, &url).await?;
        }
        let one = self.at.keeper.steer(&self.order.key, Steer::Finish).await?;
        Ok(Answer::Done(installed(one.as_ref().unwrap_or(wanted))))
    }

    async fn answers(&self, wanted: &Deployment) -> Result<(), Fault> {
        let said = self.stamp_there().await?;
        if !wanted.image.body.phones_home() || said.trim_end() == wanted.stamp().trim_end() {
            return Ok(());
        }
        let said = match said.trim() {
            "" => "it answers and does not say which image it is".to_string(),
            other => format!("it answers as another image: {}", other.replace('\n', ", ")),
        };
        Err(Fault::new(Code::ReadBackDiffers, said))
    }

    /// What the system that answers now says of its image; empty when it says nothing.
    async fn stamp_there(&self) -> Result<String, Fault> {
        let host = self.at.hosts.connect(self.target).await?;
        let output = host.run(READ_STAMP, b"", ASK_LIMIT).await?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    fn never_booted(&self, one: &Deployment) -> Fault {
        let waited = spoken(self.imaging.boot);
        let said = match one.asked_at {
            None => format!(
                "the machine was switched on and never asked {} what to boot within {waited}",
                self.imaging.url
            ),
            Some(_) => {
                format!("the machine was told what to boot and said nothing more within {waited}")
            }
        };
        Fault::new(Code::NetbootSilent, said)
    }

    fn silent(&self, one: &Deployment) -> Fault {
        let silent = spoken(self.imaging.silence);
        let said = format!(
            "the deploy environment has said nothing for {silent}; it was at {} % ({})",
            one.percent(),
            one.said
        );
        Fault::new(Code::DeploySilent, said)
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
    Outcome { said: format!("it runs {image} and says so itself"), evidence }
}
