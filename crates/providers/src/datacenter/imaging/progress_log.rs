//! Selects the log lines about a deployment: each new stage, and a percentage now and then.

use model::deploy::{Deployment, DeploymentStage};
use std::time::{Duration, Instant};

/// The minimum time between two lines that differ only in the percentage.
const LOG_INTERVAL: Duration = Duration::from_secs(10);
const LOG_PERCENT_STEP: u64 = 10;

#[derive(Default)]
pub struct ProgressLog {
    stage: Option<DeploymentStage>,
    boot_requested: bool,
    percent: u64,
    logged_at: Option<Instant>,
}

impl ProgressLog {
    pub fn next_line(&mut self, one: &Deployment) -> Option<String> {
        if one.boot_requested_at.is_some() && !self.boot_requested && one.session.is_none() {
            self.boot_requested = true;
            return Some("netboot: the machine asked what to boot".into());
        }
        let percent = one.percent();
        let change = self.stage != Some(one.stage);
        let rested = self.logged_at.is_none_or(|reported| reported.elapsed() >= LOG_INTERVAL);
        let moved =
            percent >= self.percent + LOG_PERCENT_STEP || (percent > self.percent && rested);
        let line = match one.stage {
            DeploymentStage::Claimed if change => "image: the deploy environment is up".to_string(),
            DeploymentStage::Writing if change || moved => {
                format!("image: {percent} % written ({} of {} bytes)", one.done, one.total)
            }
            DeploymentStage::Installing if change => format!("image: {}", one.message),
            DeploymentStage::Installed if change => "image: installed".into(),
            DeploymentStage::Released if change => "image: the machine boots from its disk".into(),
            DeploymentStage::Failed(_) if change => format!("image: failed: {}", one.message),
            DeploymentStage::Prepared
            | DeploymentStage::Requested
            | DeploymentStage::Claimed
            | DeploymentStage::Writing
            | DeploymentStage::Installing
            | DeploymentStage::Installed
            | DeploymentStage::Released
            | DeploymentStage::Failed(_)
            | DeploymentStage::Finished
            | DeploymentStage::Closed => return None,
        };
        self.stage = Some(one.stage);
        self.percent = percent;
        self.logged_at = Some(Instant::now());
        Some(line)
    }
}
