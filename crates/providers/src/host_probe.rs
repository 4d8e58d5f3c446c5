//! Probes whether the host of a machine is reachable: whether an SSH server answers at its address.

use crate::fault::LocalShortage;
use crate::port::Target;
use model::condition::{ConditionObservation, ConditionType, POWERED_OFF, POWERED_ON};
use model::effect::DesiredPower;
use model::target::TargetKind;
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// The time that a host has to send the first bytes of its banner.
pub(crate) const HOST_TIMEOUT: Duration = Duration::from_secs(4);
/// The first bytes of every SSH banner.
const BANNER: &[u8] = b"SSH-";
const SSH_PORT: u16 = 22;

pub(crate) async fn host_answers(target: &Target) -> bool {
    let observed = probe_host(&target.spec.ssh_endpoint, HOST_TIMEOUT).await;
    observed.is_some_and(|evidence| evidence.status)
}

/// A host is reachable when an SSH server answers. None: it has no address, or this host lacks the
/// resources to ask.
pub(crate) async fn probe_host(endpoint: &str, limit: Duration) -> Option<ConditionObservation> {
    if endpoint.is_empty() {
        return None;
    }
    let condition = ConditionType::Reachable;
    Some(match timeout(limit, banner(endpoint)).await {
        Ok(Ok(true)) => ConditionObservation::new(condition, true, "SpeaksSSH"),
        Ok(Ok(false)) => ConditionObservation::new(condition, false, "NoSSHThere"),
        Ok(Err(error)) if LocalShortage::of(&error).is_some() => return None,
        Ok(Err(error)) => ConditionObservation::new(condition, false, error.kind().to_string()),
        Err(_) => ConditionObservation::new(condition, false, "Silent"),
    })
}

/// The evidence about a host, from its own answer and from the power state that its BMC reports.
/// A host without an address is known by its power alone. A device that is no machine has no host.
pub(crate) fn host_evidence(
    target: &Target,
    answered: Option<ConditionObservation>,
    power: Option<DesiredPower>,
) -> Option<ConditionObservation> {
    let power = power.filter(|_| target.id.kind == TargetKind::Machine);
    let is_silent = answered.as_ref().is_none_or(|evidence| !evidence.status);
    let has_address = !target.spec.ssh_endpoint.is_empty();
    match power {
        Some(DesiredPower::Off) if is_silent => {
            Some(ConditionObservation::new(ConditionType::Reachable, false, POWERED_OFF))
        }
        Some(DesiredPower::On) if !has_address => {
            Some(ConditionObservation::new(ConditionType::Reachable, true, POWERED_ON))
        }
        Some(DesiredPower::Off | DesiredPower::On) | None => answered,
    }
}

async fn banner(endpoint: &str) -> std::io::Result<bool> {
    let (host, port) = host_and_port(endpoint);
    let mut stream = TcpStream::connect((host, port)).await?;
    let mut first = [0; BANNER.len()];
    stream.read_exact(&mut first).await?;
    Ok(first == BANNER)
}

/// The host and port of `host`, `host:port`, `[v6]` or `[v6]:port`, validated at registration.
fn host_and_port(endpoint: &str) -> (&str, u16) {
    let endpoint = endpoint.rsplit_once('@').map_or(endpoint, |(_, position)| position);
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

    #[tokio::test]
    async fn a_host_is_reachable_if_it_sends_an_ssh_banner() {
        use tokio::io::AsyncWriteExt;
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = listener.local_addr().unwrap().to_string();
        let words: [&[u8]; 3] = [b"SSH-2.0-x\r\n", b"HTTP/1.1 400", b""];
        let server = tokio::spawn(async move {
            for words in words {
                let (mut stream, _) = listener.accept().await.unwrap();
                stream.write_all(words).await.unwrap();
                if words.is_empty() {
                    std::future::pending::<()>().await;
                }
            }
        });
        let limit = Duration::from_millis(300);
        for expected in [(true, "SpeaksSSH"), (false, "NoSSHThere"), (false, "Silent")] {
            let reported = probe_host(&endpoint, limit).await.unwrap();
            assert_eq!((reported.status, reported.reason.as_str()), expected);
        }
        server.abort();
        assert!(server.await.unwrap_err().is_cancelled());
        let gone = probe_host(&endpoint, limit).await.unwrap();
        assert_eq!((gone.status, gone.reason.as_str()), (false, "connection refused"));
        assert_eq!(probe_host("", limit).await, None);
    }

    #[test]
    fn an_endpoint_has_a_host_and_a_port() {
        for (endpoint, expected) in [
            ("10.0.0.5", ("10.0.0.5", 22)),
            ("10.0.0.5:2222", ("10.0.0.5", 2222)),
            ("admin@node-7", ("node-7", 22)),
            ("[::1]:2222", ("::1", 2222)),
            ("[::1]", ("::1", 22)),
            ("fe80::1", ("fe80::1", 22)),
        ] {
            assert_eq!(host_and_port(endpoint), expected, "{endpoint}");
        }
    }
}
