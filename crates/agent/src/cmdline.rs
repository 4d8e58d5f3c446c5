//! The kernel command line: the URL of Farrier, its public key, and the token, which is valid for
//! one claim.

use crate::http::Url;
use crate::manifest::ManifestKey;
use secrecy::SecretString;

const TOKEN_DIGITS: usize = 64;

#[derive(Debug, Clone)]
pub struct BootParameters {
    pub url: Url,
    pub token: SecretString,
    pub mac: String,
    /// The public key of Farrier's manifests.
    pub key: Option<ManifestKey>,
    /// The `console=…` parameters, in order. The installed system gets the same ones.
    pub consoles: Vec<String>,
}

impl BootParameters {
    /// Parses a kernel command line. Of a repeated parameter the last one counts, as in the kernel.
    pub fn parse(cmdline: &str) -> Result<Self, String> {
        let label = |name: &str| {
            let value = |label: &str| Some(label.strip_prefix(name)?.strip_prefix('=')?.to_owned());
            let found = cmdline.split_ascii_whitespace().rev().find_map(value);
            found.ok_or_else(|| format!("the kernel command line has no {name}=…"))
        };
        let url = Url::parse(&label("farrier.url")?)
            .map_err(|message| format!("farrier.url: {message}"))?;
        let token = label("farrier.token")?;
        if token.len() != TOKEN_DIGITS || !token.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(format!("farrier.token: {TOKEN_DIGITS} hexadecimal digits are wanted"));
        }
        let mac = label("farrier.mac")?.to_ascii_lowercase();
        if !is_mac(&mac) {
            return Err(format!("farrier.mac: {mac:?} is no address such as aa:bb:cc:dd:ee:ff"));
        }
        let key = label("farrier.key").ok().map(|key| ManifestKey::parse(&key)).transpose();
        let key = key.map_err(|message| format!("farrier.key: {message}"))?;
        let consoles =
            cmdline.split_ascii_whitespace().filter(|label| label.starts_with("console="));
        let consoles = consoles.map(str::to_owned).collect();
        Ok(Self { url, token: token.into(), mac, key, consoles })
    }
}

fn is_mac(text: &str) -> bool {
    let pairs: Vec<&str> = text.split(':').collect();
    let pair = |pair: &&str| pair.len() == 2 && pair.bytes().all(|byte| byte.is_ascii_hexdigit());
    pairs.len() == 6 && pairs.iter().all(pair)
}
