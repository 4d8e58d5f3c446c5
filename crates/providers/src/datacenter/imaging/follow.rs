//! Waits after power on: for the deploy environment, then for the new system.

use super::teller::Teller;
use super::{ASK_LIMIT, LOOK_EVERY, READ_STAMP, Work, installed};
use crate::datacenter::TrustPolicy;
use model::deploy::{Deployment, Stage, Steer};
use model::effect::{Answer, NetbootMode};
use model::fault::{Code, Fault};
use model::time::spoken;
use std::time::Instant;

impl Work<'_> {
    /// Follows the deploy environment until the machine is released to boot the installed system.
    pub(super) async fn until_installed(&self) -> Result<(), Fault> {
        let began = Instant::now();
        let mut teller = Teller::default();
        // By our own clock, from the start of this loop: earlier reports may have been missed.
        let mut heard = (None, began);
        loop {
            let one = self.look().await?;
            if one.heard_at != heard.0 {
                heard = (one.heard_at, Instant::now());
            }
            if let Some(line) = teller.line(&one) {
                self.journal.line(line).await;
            }
            match one.stage {
                Stage::Prepared | Stage::Wanted if began.elapsed() > self.imaging.boot => {
                    return Err(self.never_booted(&one));
                }
                Stage::Claimed | Stage::Writing | Stage::Installing
                    if heard.1.elapsed() > self.imaging.silence =>
                {
                    return Err(self.silent(&one));
                }
                Stage::Prepared
                | Stage::Wanted
                | Stage::Claimed
                | Stage::Writing
                | Stage::Installing => {}
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

    /// Waits until the boot files have been fetched: a foreign installer sends nothing after that.
    pub(super) async fn until_fetched(&self, wanted: &Deployment) -> Result<(), Fault> {
        let began = Instant::now();
        loop {
            let one = self.look().await?;
            let elsewhere = wanted.image.body.artifacts().iter().all(|file| file.url.is_some());
            if one.asked_at.is_some() || elsewhere {
                self.journal.line("image: fetched; its installer says nothing more").await;
                return Ok(());
            }
            if began.elapsed() > self.imaging.boot {
                return Err(self.never_booted(&one));
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    async fn look(&self) -> Result<Deployment, Fault> {
        let found = self.at.store.deployment(&self.order.key).await?;
        found.ok_or_else(|| Fault::new(Code::RecordUnreadable, "the deployment is gone"))
    }

    /// Restores the boot from disk and pins the new host key, then releases the machine.
    async fn let_go(&self, one: &Deployment) -> Result<(), Fault> {
        self.boot_from(NetbootMode::Disk).await?;
        let key = one.host_keys.first().map(String::as_str);
        self.at.hosts.pin(self.target, key).await?;
        self.at.store.steer(&self.order.key, Steer::Release).await.map(drop)
    }

    /// Waits for the new system, and verifies that it is the installed one.
    pub(super) async fn until_back(&self, wanted: &Deployment) -> Result<Answer, Fault> {
        let began = Instant::now();
        self.journal.line("image: waiting for the new system to answer").await;
        loop {
            let fault = match self.answers(wanted).await {
                Ok(()) => break,
                Err(fault) => fault,
            };
            // A refused login will be refused again, and each attempt counts towards a lockout.
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
        let one = self.at.store.steer(&self.order.key, Steer::Finish).await?;
        Ok(Answer::Done(installed(one.as_ref().unwrap_or(wanted))))
    }

    async fn answers(&self, wanted: &Deployment) -> Result<(), Fault> {
        if !wanted.image.body.phones_home() {
            return self.another_answers().await;
        }
        let said = self.stamp_there().await?;
        if said.trim_end() == wanted.stamp().trim_end() {
            return Ok(());
        }
        let said = match said.trim() {
            "" => "it answers and does not say which image it is".to_string(),
            other => format!("it answers as another image: {}", other.replace('\n', ", ")),
        };
        Err(Fault::new(Code::ReadBackDiffers, said))
    }

    /// A foreign installer has succeeded when the host key has changed, or none was pinned.
    async fn another_answers(&self) -> Result<(), Fault> {
        let hosts = &self.at.hosts;
        let before = hosts.known(self.target).await?;
        match (hosts.connect(self.target).await, before) {
            (Err(fault), _)
                if fault.code == Code::IdentityChanged
                    && !matches!(self.at.settings.trust, TrustPolicy::Pinned) =>
            {
                hosts.pin(self.target, None).await?;
                hosts.connect(self.target).await.map(drop)
            }
            (Err(fault), _) => Err(fault),
            (Ok(_), None) => Ok(()),
            (Ok(_), Some(_)) => {
                let said = "the system that was there before answers";
                Err(Fault::new(Code::ReadBackDiffers, said))
            }
        }
    }

    /// The image stamp of the system that answers; empty if it has none.
    pub(super) async fn stamp_there(&self) -> Result<String, Fault> {
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
