//! Selects the log lines about a deployment: each new stage, and a percentage now and then.

use model::deploy::{Deployment, Stage};
use std::time::{Duration, Instant};

/// The minimum time between two lines that differ only in the percentage.
const TELL_EVERY: Duration = Duration::from_secs(10);
const TELL_PERCENT: u64 = 10;

#[derive(Default)]
pub struct Teller {
    stage: Option<Stage>,
    asked: bool,
    percent: u64,
    told: Option<Instant>,
}

impl Teller {
    pub fn line(&mut self, one: &Deployment) -> Option<String> {
        if one.asked_at.is_some() && !self.asked && one.session.is_none() {
            self.asked = true;
            return Some("netboot: the machine asked what to boot".into());
        }
        let percent = one.percent();
        let news = self.stage != Some(one.stage);
        let rested = self.told.is_none_or(|told| told.elapsed() >= TELL_EVERY);
        let moved = percent >= self.percent + TELL_PERCENT || (percent > self.percent && rested);
        let line = match one.stage {
            Stage::Claimed if news => "image: the deploy environment is up".to_string(),
            Stage::Writing if news || moved => {
                format!("image: {percent} % written ({} of {} bytes)", one.done, one.total)
            }
            Stage::Installing if news => format!("image: {}", one.said),
            Stage::Installed if news => "image: installed".into(),
            Stage::Released if news => "image: the machine boots from its disk".into(),
            Stage::Failed(_) if news => format!("image: failed: {}", one.said),
            Stage::Prepared
            | Stage::Wanted
            | Stage::Claimed
            | Stage::Writing
            | Stage::Installing
            | Stage::Installed
            | Stage::Released
            | Stage::Failed(_)
            | Stage::Finished
            | Stage::Closed => return None,
        };
        self.stage = Some(one.stage);
        self.percent = percent;
        self.told = Some(Instant::now());
        Some(line)
    }
}
