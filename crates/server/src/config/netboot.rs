//! `[netboot]`: machines that boot over the network to be imaged.

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
    /// The directory with the deploy environment: `vmlinuz` and `initrd`.
    pub deploy_dir: PathBuf,
    /// The directory for the files of images. Empty: `images` in `data_dir`. Replicas share one.
    pub images_dir: PathBuf,
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
            deploy_dir: PathBuf::from("deploy-env"),
            images_dir: PathBuf::new(),
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
        if self.cmdline.chars().any(char::is_control) {
            return Err("netboot.cmdline has control characters; write one line".into());
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
            (Netboot { cmdline: "a\nb".into(), ..sound.clone() }, "netboot.cmdline"),
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
