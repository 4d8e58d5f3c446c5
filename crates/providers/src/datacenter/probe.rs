//! How a machine is: its BMC, its host, its node, and rarely its parts.

use super::Datacenter;
use super::cluster::sight;
use super::devices::power_to;
use super::roster::Nodes;
use crate::port::Target;
use model::condition::{ConditionType, Evidence};
use model::effect::Facts;
use model::fault::{Code, Fault};
use model::target::TargetKind;
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// How long a host has to say its first word.
pub(crate) const HOST_LIMIT: Duration = Duration::from_secs(4);
/// How every SSH server begins.
const BANNER: &[u8] = b"SSH-";
const SSH_PORT: u16 = 22;
/// A look at the parts of a machine is many questions, so it may take this many times as long as one.
const PARTS_TIMES: u32 = 2;
/// How many parts are named that are not well.
const NAMED: usize = 3;

impl Datacenter {
    /// Looks at all sides at once. What is not configured is not spoken of, nor what could not be learned.
    pub(super) async fn look(&self, target: &Target) -> Vec<Evidence> {
        let limit = HOST_LIMIT.min(self.settings.poll);
        let (bmc, host, node) = tokio::join!(
            self.look_at_bmc(target),
            look_at_host(&target.spec.ssh_endpoint, limit),
            self.look_at_node(target)
        );
        bmc.into_iter().chain(host).chain(node).collect()
    }

    /// What a device shows of its power. That its turn at the controller did not come is no news about it.
    pub(super) async fn look_at_power(&self, target: &Target) -> Result<Facts, Fault> {
        let limit = self.settings.poll;
        let power = self.bmcs.poll(target, limit, async |bmc| bmc.power().await).await?;
        let power = power.ok_or_else(busy)?;
        Ok(Facts { power: power_to(power), ..Facts::default() })
    }

    async fn look_at_bmc(&self, target: &Target) -> Option<Evidence> {
        if target.spec.bmc_endpoint.is_empty() {
            return None;
        }
        let limit = self.settings.poll;
        let power = self.bmcs.poll(target, limit, async |bmc| bmc.power().await).await;
        answers(power.map(|turn| turn.map(drop)))
    }

    /// What the BMC says about the parts of the machine. None: it has no BMC.
    pub(super) async fn look_at_parts(&self, target: &Target) -> Result<Option<Evidence>, Fault> {
        if target.spec.bmc_endpoint.is_empty() {
            return Ok(None);
        }
        let limit = self.settings.poll * PARTS_TIMES;
        let seen = self.bmcs.poll(target, limit, async |bmc| bmc.ailments().await).await?;
        seen.map(|ailments| Some(judged(&ailments))).ok_or_else(busy)
    }

    /// Whether the machine is a node of the cluster that it is meant for. One list of nodes serves all machines.
    async fn look_at_node(&self, target: &Target) -> Vec<Evidence> {
        if target.id.kind != TargetKind::Machine {
            return Vec::new();
        }
        let cluster = target.spec.target_cluster_ref.as_str();
        if cluster.is_empty() {
            let condition = ConditionType::InCustomerCluster;
            return vec![Evidence::new(condition, false, "NotJoined")];
        }
        // Half of the time, so that whoever waits for the list of somebody else still gets it.
        let limit = self.settings.poll / 2;
        let list = self.list_nodes(cluster, limit);
        match self.rosters.nodes(cluster, limit, list).await {
            Ok(nodes) => sight(cluster, nodes.get(target.id.as_str())),
            Err(_) => Vec::new(),
        }
    }

    async fn list_nodes(&self, cluster: &str, limit: Duration) -> Result<Nodes, Fault> {
        let nodes = self.cluster_within(cluster, limit).await?.nodes().await?;
        Ok(nodes.into_iter().map(|node| (node.name.clone(), node)).collect())
    }
}

fn busy() -> Fault {
    Fault::new(Code::BmcBusy, "its BMC was busy with other calls")
}

/// What a look at a BMC says. Waiting in vain for a turn at it, or for our own database, says nothing about it.
fn answers(looked: Result<Option<()>, Fault>) -> Option<Evidence> {
    let condition = ConditionType::BmcReachable;
    match looked {
        Ok(Some(())) => Some(Evidence::new(condition, true, "Answers")),
        Ok(None) => None,
        Err(fault) if fault.code == Code::DatabaseUnreachable => None,
        Err(fault) => Some(Evidence::new(condition, false, fault.code.as_str())),
    }
}

/// A machine is degraded when something of it is not well, which is named.
fn judged(ailments: &[String]) -> Evidence {
    if ailments.is_empty() {
        return Evidence::new(ConditionType::Degraded, false, "Healthy");
    }
    let named = ailments[..ailments.len().min(NAMED)].join(", ");
    let reason = match ailments.len().saturating_sub(NAMED) {
        0 => named,
        more => format!("{named} and {more} more"),
    };
    Evidence::new(ConditionType::Degraded, true, reason)
}

/// Whether something there speaks SSH now.
pub(super) async fn host_answers(target: &Target) -> bool {
    let seen = look_at_host(&target.spec.ssh_endpoint, HOST_LIMIT).await;
    seen.is_some_and(|evidence| evidence.status)
}

/// A host is reachable when something there speaks SSH.
pub(crate) async fn look_at_host(endpoint: &str, limit: Duration) -> Option<Evidence> {
    if endpoint.is_empty() {
        return None;
    }
    let condition = ConditionType::Reachable;
    Some(match timeout(limit, banner(endpoint)).await {
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
    fn a_look_that_was_not_made_says_nothing() {
        let failed = |code| Err(Fault::new(code, "why"));
        for (looked, expected) in [
            (Ok(Some(())), Some((true, "Answers"))),
            (Ok(None), None),
            (failed(Code::DatabaseUnreachable), None),
            (failed(Code::BmcUnreachable), Some((false, "bmc-unreachable"))),
            (failed(Code::LoginRefused), Some((false, "login-refused"))),
        ] {
            let told = answers(looked.clone());
            let told = told.as_ref().map(|one| (one.status, one.reason.as_str()));
            assert_eq!(told, expected, "{looked:?}");
        }
    }

    #[test]
    fn what_is_not_well_is_named_up_to_a_few() {
        for (count, expected) in [
            (0, (false, "Healthy")),
            (1, (true, "part 1")),
            (3, (true, "part 1, part 2, part 3")),
            (5, (true, "part 1, part 2, part 3 and 2 more")),
        ] {
            let ailments: Vec<String> = (1..=count).map(|n| format!("part {n}")).collect();
            let told = judged(&ailments);
            assert_eq!((told.status, told.reason.as_str()), expected);
        }
    }

    #[tokio::test]
    async fn a_host_is_known_by_its_first_words() {
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
            let told = look_at_host(&endpoint, limit).await.unwrap();
            assert_eq!((told.status, told.reason.as_str()), expected);
        }
        server.abort();
        assert!(server.await.unwrap_err().is_cancelled());
        let gone = look_at_host(&endpoint, limit).await.unwrap();
        assert_eq!((gone.status, gone.reason.as_str()), (false, "connection refused"));
        assert_eq!(look_at_host("", limit).await, None);
    }

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
