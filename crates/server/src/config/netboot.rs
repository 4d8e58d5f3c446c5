//! `[netboot]`: machines that boot over the network to be imaged.

use crate::netboot::artifacts::SpaceLimits;
use model::image::check_boot_words;
use providers::datacenter::Imaging;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Netboot {
    /// The address in the machines' network that they boot from. Absent: machines cannot be imaged.
    pub listen: Option<SocketAddr>,
    /// The URL under which machines reach it, `http://10.0.0.1:8480`. Empty: made from `listen`.
    pub url: String,
    /// Whether machines may boot from an address that other hosts can reach. Firmware speaks no
    /// TLS, so everything in that network can change what a machine boots.
    pub insecure: bool,
    /// The directory with the deploy environment: `vmlinuz` and `initrd`.
    pub deploy_dir: PathBuf,
    /// The directory for the files of images. Empty: `images` in `data_dir`. Replicas share one.
    pub images_dir: PathBuf,
    /// The most that the files of all images may take, in GiB.
    pub images_quota_gib: u32,
    /// How much of the disk of `images_dir` uploads leave free, in GiB: the database may need it.
    pub images_reserve_gib: u32,
    /// The key that signs what machines are told to become. Empty: `manifest.key` in `data_dir`. It
    /// is made at the first start; replicas share one.
    pub manifest_key_file: PathBuf,
    /// Kernel parameters of the deploy environment, such as `console=ttyS0`.
    pub cmdline: String,
    /// The lifetime of the token that a machine boots with.
    pub token_minutes: u32,
    /// How long a machine may take from power on to its first report.
    pub boot_seconds: u32,
    /// How long the deploy environment may go without a report.
    pub silence_seconds: u32,
}

/// The deploy environment reports every second, and a report is stored every few seconds.
const LEAST_SILENCE: u32 = 10;

impl Default for Netboot {
    fn default() -> Self {
        Self {
            listen: None,
            url: String::new(),
            insecure: false,
            deploy_dir: PathBuf::from("deploy-env"),
            images_dir: PathBuf::new(),
            images_quota_gib: 200,
            images_reserve_gib: 2,
            manifest_key_file: PathBuf::new(),
            cmdline: String::new(),
            token_minutes: 60,
            boot_seconds: 900,
            silence_seconds: 180,
        }
    }
}

impl Netboot {
    pub fn check(&self) -> Result<(), String> {
        let positive = [
            ("images_quota_gib", self.images_quota_gib),
            ("images_reserve_gib", self.images_reserve_gib),
            ("token_minutes", self.token_minutes),
            ("boot_seconds", self.boot_seconds),
            ("silence_seconds", self.silence_seconds),
        ];
        if let Some((field, _)) = positive.iter().find(|(_, value)| *value == 0) {
            return Err(format!("netboot.{field} is 0; use at least 1"));
        }
        if self.silence_seconds < LEAST_SILENCE {
            let seconds = self.silence_seconds;
            return Err(format!(
                "netboot.silence_seconds is {seconds}; use at least {LEAST_SILENCE}"
            ));
        }
        for (field, text) in [("netboot.cmdline", &self.cmdline), ("netboot.url", &self.url)] {
            check_boot_words(field, text).map_err(|refusal| refusal.message)?;
        }
        let Some(listen) = self.listen else { return Ok(()) };
        if self.url.is_empty() && listen.ip().is_unspecified() {
            return Err(format!(
                "netboot.url is empty and netboot.listen is {listen}, which no machine can reach; \
                 write url = \"http://ADDRESS:{}\"",
                listen.port()
            ));
        }
        if !self.url.is_empty() && !model::image::is_plain_http_url(&self.url) {
            return Err(format!(
                "netboot.url is {:?}; write http://10.0.0.1:8480, as firmware speaks no TLS and the \
                 deploy environment asks no name server",
                self.url
            ));
        }
        for file in DEPLOY_FILES {
            let path = self.deploy_dir.join(file);
            if !path.is_file() {
                return Err(format!(
                    "netboot.deploy_dir: {} is missing; make it with `cargo xtask deploy-env --out {}`",
                    path.display(),
                    self.deploy_dir.display()
                ));
            }
        }
        Ok(())
    }

    /// The URL under which machines reach it, without a trailing slash.
    pub fn url(&self) -> String {
        match self.listen {
            Some(listen) if self.url.is_empty() => format!("http://{listen}"),
            Some(_) | None => self.url.trim_end_matches('/').to_string(),
        }
    }

    pub fn images_dir(&self, data_dir: &Path) -> PathBuf {
        match self.images_dir.as_os_str().is_empty() {
            true => data_dir.join("images"),
            false => self.images_dir.clone(),
        }
    }

    pub fn manifest_key(&self, data_dir: &Path) -> PathBuf {
        match self.manifest_key_file.as_os_str().is_empty() {
            true => data_dir.join("manifest.key"),
            false => self.manifest_key_file.clone(),
        }
    }

    pub fn space_limits(&self) -> SpaceLimits {
        SpaceLimits::gib(self.images_quota_gib, self.images_reserve_gib)
    }

    /// The provider's settings; none: netboot is off.
    pub fn imaging(&self) -> Option<Imaging> {
        self.listen.map(|_| Imaging {
            url: self.url(),
            token_ttl: Duration::from_secs(u64::from(self.token_minutes) * 60),
            boot_timeout: Duration::from_secs(self.boot_seconds.into()),
            silence_timeout: Duration::from_secs(self.silence_seconds.into()),
        })
    }
}

/// The files that the directory of the deploy environment must contain.
pub const DEPLOY_FILES: [&str; 2] = ["vmlinuz", "initrd"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_settings_are_refused_at_start() {
        let dir = tempfile::tempdir().unwrap();
        let sound = Netboot {
            listen: Some("10.0.0.1:8480".parse().unwrap()),
            deploy_dir: dir.path().into(),
            ..Netboot::default()
        };
        assert!(sound.check().unwrap_err().contains("vmlinuz is missing"));
        for file in DEPLOY_FILES {
            std::fs::write(dir.path().join(file), "x").unwrap();
        }
        sound.check().unwrap();
        assert_eq!(sound.url(), "http://10.0.0.1:8480");
        let anywhere = Some("0.0.0.0:8480".parse().unwrap());
        for (wrong, named) in [
            (Netboot { listen: anywhere, ..sound.clone() }, "netboot.url is empty"),
            (Netboot { url: "https://h".into(), ..sound.clone() }, "netboot.url is \"https://h\""),
            (Netboot { boot_seconds: 0, ..sound.clone() }, "netboot.boot_seconds"),
            (Netboot { images_quota_gib: 0, ..sound.clone() }, "netboot.images_quota_gib"),
            (Netboot { images_reserve_gib: 0, ..sound.clone() }, "netboot.images_reserve_gib"),
            (Netboot { cmdline: "a\nb".into(), ..sound.clone() }, "netboot.cmdline"),
            (Netboot { cmdline: "a || shell".into(), ..sound.clone() }, "netboot.cmdline"),
            (Netboot { url: "http://10.0.0.1/${x}".into(), ..sound.clone() }, "netboot.url"),
        ] {
            let message = wrong.check().unwrap_err();
            assert!(message.contains(named), "{message}");
        }
        let named = Netboot { listen: anywhere, url: "http://10.0.0.1:80/".into(), ..sound };
        named.check().unwrap();
        assert_eq!(named.url(), "http://10.0.0.1:80");
        assert!(Netboot::default().check().is_ok() && Netboot::default().imaging().is_none());
    }
}
