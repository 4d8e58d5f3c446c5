//! How a machine is: its BMC, and its host.

use super::Datacenter;
use crate::governor::Priority;
use crate::port::Target;
use model::condition::{ConditionType, Evidence};
use model::fault::Fault;
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// How long a host has to say its first word.
const HOST_LIMIT: Duration = Duration::from_secs(4);
/// How every SSH server begins.
const BANNER: &[u8] = b"SSH-";
const SSH_PORT: u16 = 22;

impl Datacenter {
    /// Looks at both sides at once. What is not configured is not spoken of.
    pub(super) async fn look(&self, target: &Target) -> Result<Vec<Evidence>, Fault> {
        let (bmc, host) = tokio::join!(self.look_at_bmc(target), look_at_host(target));
        Ok(bmc.into_iter().chain(host).collect())
    }

    async fn look_at_bmc(&self, target: &Target) -> Option<Evidence> {
        if target.spec.bmc_endpoint.is_empty() {
            return None;
        }
        let condition = ConditionType::BmcReachable;
        Some(match self.read_power(target, Priority::Polling).await {
            Ok(_) => Evidence::new(condition, true, "Answers"),
            Err(fault) => Evidence::new(condition, false, fault.code.as_str()),
        })
    }
}

/// A host is reachable when something there speaks SSH.
async fn look_at_host(target: &Target) -> Option<Evidence> {
    let endpoint = target.spec.ssh_endpoint.as_str();
    if endpoint.is_empty() {
        return None;
    }
    let condition = ConditionType::Reachable;
    Some(match timeout(HOST_LIMIT, banner(endpoint)).await {
        Ok(Ok(true)) => Evidence::new(condition, true, "SpeaksSSH"),
        Ok(Ok(false)) => Evidence::new(condition, false, "NoSSHThere"),
        Ok(Err(error)) => Evidence::new(condition, false, error.kind().to_string()),
        Err(_) => Evidence::new(condition, false, "Silent"),
    })
}

async fn banner(endpoint: &str) -> std::io::Result<bool> {
    let (host, port) = place(endpoint);
    let mut stream = TcpStream::connect((host, port)).await?;
    let mut first = [0; BANNER.len()];
    stream.read_exact(&mut first).await?;
    Ok(first == BANNER)
}

/// The host and the port of `host`, `host:port`, `[v6]` or `[v6]:port`, checked when the machine was registered.
fn place(endpoint: &str) -> (&str, u16) {
    let endpoint = endpoint.rsplit_once('@').map_or(endpoint, |(_, place)| place);
    let parsed = |port: &str| port.parse().unwrap_or(SSH_PORT);
    if let Some((host, rest)) = endpoint.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        return (host, rest.strip_prefix(':').map_or(SSH_PORT, parsed));
    }
    match endpoint.rsplit_once(':') {
        Some((host, port)) if !host.contains(':') => (host, parsed(port)),
        Some(_) | None => (endpoint, SSH_PORT),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_a_host_and_a_port() {
        for (endpoint, expected) in [
            ("10.0.0.5", ("10.0.0.5", 22)),
            ("10.0.0.5:2222", ("10.0.0.5", 2222)),
            ("admin@node-7", ("node-7", 22)),
            ("[::1]:2222", ("::1", 2222)),
            ("[::1]", ("::1", 22)),
            ("fe80::1", ("fe80::1", 22)),
        ] {
            assert_eq!(place(endpoint), expected, "{endpoint}");
        }
    }
}
