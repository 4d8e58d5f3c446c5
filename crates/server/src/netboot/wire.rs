//! The words between the deploy environment and Farrier.

use model::deploy::{Denied, Deployment, Report, ReportStep, Then, Trouble};
use model::image::Body;
use model::machine::MAX_MACS;
use model::refusal::Refusal;
use model::text;
use providers::ssh::HostKey;
use serde::{Deserialize, Serialize};

/// The most of what a machine says of itself that is kept.
const MAX_SAID: usize = 1_000;
const MAX_HOST_KEYS: usize = 8;
/// Where the image is fetched that Farrier has.
const IMAGE_PATH: &str = "/deploy/image";

/// Who asks to carry a deployment out.
#[derive(Deserialize)]
pub struct Claimed {
    pub token: String,
    pub session: String,
    /// The network card it booted from.
    pub mac: String,
    /// All of them.
    #[serde(default)]
    pub macs: Vec<String>,
}

impl Claimed {
    pub fn macs(&self) -> Result<Vec<String>, Refusal> {
        if self.session.len() < 32 {
            let instead = "choose 32 random bytes, in hexadecimal";
            return Err(Refusal::invalid("session", "is too short", instead));
        }
        let all = std::iter::once(&self.mac).chain(self.macs.iter().take(MAX_MACS));
        all.map(|mac| text::mac("macs", mac)).collect()
    }
}

/// What is to be done.
#[derive(Debug, Serialize)]
pub struct Assignment {
    run: String,
    machine: String,
    hostname: String,
    user: String,
    authorized_keys: Vec<String>,
    root_disk: String,
    image: Option<DiskImage>,
    stamp: String,
}

#[derive(Debug, Serialize)]
struct DiskImage {
    name: String,
    kind: &'static str,
    url: String,
    sha256: String,
    size: u64,
}

impl Assignment {
    pub fn of(one: &Deployment) -> Self {
        let image = match &one.image.body {
            Body::Disk { format, file } => Some(DiskImage {
                name: one.image.name.clone(),
                kind: format.as_str(),
                url: file.url.clone().unwrap_or_else(|| IMAGE_PATH.into()),
                sha256: file.sha256.clone(),
                size: file.size,
            }),
            // Somebody's own installer knows what it installs.
            Body::Kernel { .. } | Body::Iso { .. } => None,
        };
        Self {
            run: one.key.run().to_string(),
            machine: one.machine_id.to_string(),
            hostname: one.hostname.clone(),
            user: one.user.clone(),
            authorized_keys: one.authorized_keys.clone(),
            root_disk: one.root_disk.clone(),
            image,
            stamp: one.stamp(),
        }
    }
}

/// How it goes.
#[derive(Debug, Deserialize)]
pub struct Reported {
    stage: String,
    #[serde(default)]
    done: u64,
    #[serde(default)]
    total: u64,
    #[serde(default)]
    said: String,
    #[serde(default)]
    code: String,
    #[serde(default)]
    host_keys: Vec<String>,
}

impl Reported {
    pub fn report(self) -> Result<Report, Refusal> {
        let step = match self.stage.as_str() {
            "writing" => ReportStep::Writing,
            "installing" => ReportStep::Installing,
            "installed" => ReportStep::Installed,
            "failed" => {
                // A word from a newer environment is still a failure.
                ReportStep::Failed(Trouble::parse(&self.code).unwrap_or(Trouble::InstallFailed))
            }
            other => {
                let instead = "use writing, installing, installed or failed";
                return Err(Refusal::invalid("stage", format!("is {other:?}"), instead));
            }
        };
        let said = self.said.chars().filter(|c| !c.is_control()).take(MAX_SAID).collect();
        let keys = self.host_keys.into_iter().take(MAX_HOST_KEYS);
        let host_keys = keys.map(host_key).collect::<Result<_, _>>()?;
        Ok(Report { step, done: self.done, total: self.total, said, host_keys })
    }
}

/// A key as it stands in a `.pub` file. What nobody could ever show must not be waited for.
fn host_key(line: String) -> Result<String, Refusal> {
    match line.parse::<HostKey>() {
        Ok(key) => Ok(key.to_string()),
        Err(said) => Err(Refusal::invalid("host_keys", said, "send the line of the .pub file")),
    }
}

#[derive(Debug, Serialize)]
pub struct Next {
    then: &'static str,
}

impl Next {
    pub fn of(then: Then) -> Self {
        let then = match then {
            Then::GoOn => "go-on",
            Then::Reboot => "reboot",
            Then::Stop => "stop",
        };
        Self { then }
    }
}

#[derive(Debug, Serialize)]
pub struct Refused {
    code: &'static str,
    said: &'static str,
}

impl Refused {
    pub fn of(denied: Denied) -> Self {
        Self { code: denied.as_str(), said: denied.said() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_machine_says_is_bounded() {
        let said = "x\n".repeat(2 * MAX_SAID);
        let told = serde_json::json!({ "stage": "failed", "code": "new-word", "said": said });
        let report = serde_json::from_value::<Reported>(told).unwrap().report().unwrap();
        assert_eq!(report.said.len(), MAX_SAID);
        assert_eq!(report.step, ReportStep::Failed(Trouble::InstallFailed));
        for (told, field) in [
            (serde_json::json!({ "stage": "dancing" }), "stage"),
            (serde_json::json!({ "stage": "installed", "host_keys": ["garbage"] }), "host_keys"),
        ] {
            let refusal = serde_json::from_value::<Reported>(told).unwrap().report().unwrap_err();
            assert_eq!(refusal.field.as_deref(), Some(field));
        }
    }

    #[test]
    fn a_claim_names_network_cards() {
        let told = |session: &str, mac: &str| {
            let told = serde_json::json!({ "token": "t", "session": session, "mac": mac, "macs": ["52-54-00-00-00-02"] });
            serde_json::from_value::<Claimed>(told).unwrap().macs()
        };
        let session = "s".repeat(64);
        let macs = told(&session, "52:54:00:00:00:AA").unwrap();
        assert_eq!(macs, ["52:54:00:00:00:aa", "52:54:00:00:00:02"]);
        assert!(told(&session, "eth0").is_err());
        assert!(told("short", "52:54:00:00:00:AA").is_err());
    }
}
