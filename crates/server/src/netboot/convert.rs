//! From the messages of the deploy environment to the model's values, and back.

use model::deploy::{ClaimRefusal, Deployment, DeploymentFailure, DeploymentReport, ReportStep};
use model::image::{DiskFormat, ImageContent};
use model::machine::MAX_MACS;
use model::refusal::Refusal;
use model::text;
use providers::ssh::HostKey;
use wire::deploy::{Assignment, Claim, IMAGE, Image, ImageKind, Stage};

/// The most that is kept of the text in a report.
const MAX_MESSAGE: usize = 1_000;
const MAX_HOST_KEYS: usize = 8;

/// The network cards that a claim names.
pub fn macs(claim: &Claim) -> Result<Vec<String>, Refusal> {
    if claim.session.len() < 32 {
        let instead = "choose 32 random bytes, in hexadecimal";
        return Err(Refusal::invalid("session", "is too short", instead));
    }
    let all = std::iter::once(&claim.mac).chain(claim.macs.iter().take(MAX_MACS));
    all.map(|mac| text::normalize_mac("macs", mac)).collect()
}

pub fn assignment(one: &Deployment) -> Assignment<Option<Image>> {
    let image = match &one.image.body {
        ImageContent::Disk { format, file } => Some(Image {
            name: one.image.name.clone(),
            kind: image_kind(*format),
            url: file.url.clone().unwrap_or_else(|| IMAGE.into()),
            sha256: file.sha256.clone(),
            size: file.size,
        }),
        // The operator's own installer knows what it installs.
        ImageContent::Kernel { .. } | ImageContent::Iso { .. } => None,
    };
    Assignment {
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

const fn image_kind(format: DiskFormat) -> ImageKind {
    match format {
        DiskFormat::Raw => ImageKind::Raw,
        DiskFormat::Qcow2 => ImageKind::Qcow2,
        DiskFormat::Tar => ImageKind::Tar,
    }
}

pub fn report(reported: wire::deploy::Report<String>) -> Result<DeploymentReport, Refusal> {
    let Some(stage) = Stage::parse(&reported.stage) else {
        let instead = "use writing, installing, installed or failed";
        return Err(Refusal::invalid("stage", format!("is {:?}", reported.stage), instead));
    };
    let step = match stage {
        Stage::Writing => ReportStep::Writing,
        Stage::Installing => ReportStep::Installing,
        Stage::Installed => ReportStep::Installed,
        // A code of a newer environment is still a failure.
        Stage::Failed => {
            ReportStep::Failed(reported.code.unwrap_or(DeploymentFailure::InstallFailed))
        }
    };
    let message = reported.message.chars().filter(|c| !c.is_control()).take(MAX_MESSAGE).collect();
    let keys = reported.host_keys.into_iter().take(MAX_HOST_KEYS);
    let host_keys = keys.map(host_key).collect::<Result<_, _>>()?;
    Ok(DeploymentReport { step, done: reported.done, total: reported.total, message, host_keys })
}

/// A key as it stands in a `.pub` file. A key that no host can show is refused, because the engine
/// would wait for it.
fn host_key(line: String) -> Result<String, Refusal> {
    match line.parse::<HostKey>() {
        Ok(key) => Ok(key.to_string()),
        Err(message) => {
            Err(Refusal::invalid("host_keys", message, "send the line of the .pub file"))
        }
    }
}

pub fn refusal(denied: ClaimRefusal) -> wire::Refusal {
    wire::Refusal { code: denied.as_str().into(), message: denied.said().into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_machine_says_is_bounded() {
        let message = "x\n".repeat(2 * MAX_MESSAGE);
        let reported =
            serde_json::json!({ "stage": "failed", "code": "new-word", "said": message });
        let failed = report(serde_json::from_value(reported).unwrap()).unwrap();
        assert_eq!(failed.message.len(), MAX_MESSAGE);
        assert_eq!(failed.step, ReportStep::Failed(DeploymentFailure::InstallFailed));
        for (reported, field) in [
            (serde_json::json!({ "stage": "dancing" }), "stage"),
            (serde_json::json!({ "stage": "installed", "host_keys": ["garbage"] }), "host_keys"),
        ] {
            let refusal = report(serde_json::from_value(reported).unwrap()).unwrap_err();
            assert_eq!(refusal.field.as_deref(), Some(field));
        }
    }

    #[test]
    fn a_claim_names_network_cards() {
        let reported = |session: &str, mac: &str| {
            let reported = serde_json::json!({ "token": "t", "session": session, "mac": mac, "macs": ["52-54-00-00-00-02"] });
            macs(&serde_json::from_value(reported).unwrap())
        };
        let session = "s".repeat(64);
        let macs = reported(&session, "52:54:00:00:00:AA").unwrap();
        assert_eq!(macs, ["52:54:00:00:00:aa", "52:54:00:00:00:02"]);
        assert!(reported(&session, "eth0").is_err());
        assert!(reported("short", "52:54:00:00:00:AA").is_err());
    }

    #[test]
    fn the_deploy_environment_gets_the_names_of_the_disk_formats() {
        for format in DiskFormat::ALL {
            assert_eq!(image_kind(format).as_str(), format.as_str());
        }
    }
}
