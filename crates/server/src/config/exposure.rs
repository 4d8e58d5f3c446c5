//! The loopback rule: a listener without TLS is reachable from this host only, unless the operator
//! has written that it may be reached from others.

use super::Config;
use crate::listener::ListenerName;
use std::net::SocketAddr;

/// A listener without TLS that other hosts can reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct PlainListener {
    name: ListenerName,
    address: SocketAddr,
}

impl Config {
    fn plain_listeners(&self) -> Vec<PlainListener> {
        let plain = |name: &ListenerName| match name {
            ListenerName::Api => !self.tls.is_on(),
            ListenerName::Agents => !self.agent_tls().is_on(),
            ListenerName::Netboot => true,
        };
        let exposed = self
            .listeners()
            .into_iter()
            .filter(|(name, address)| plain(name) && !address.ip().to_canonical().is_loopback());
        exposed.map(|(name, address)| PlainListener { name, address }).collect()
    }

    /// Refuses a listener without TLS that other hosts can reach.
    pub fn check_exposure(&self) -> Result<(), String> {
        let allowed = |one: &PlainListener| match one.name {
            ListenerName::Api | ListenerName::Agents => self.insecure,
            ListenerName::Netboot => self.insecure || self.netboot.insecure,
        };
        match self.plain_listeners().into_iter().find(|one| !allowed(one)) {
            None => Ok(()),
            Some(exposed) => Err(exposed.refusal()),
        }
    }

    /// The warnings at the start of the server: one line for each listener without TLS that other
    /// hosts can reach.
    pub fn exposure_warnings(&self) -> Vec<String> {
        self.plain_listeners().into_iter().map(PlainListener::warning).collect()
    }
}

impl PlainListener {
    const fn field(self) -> &'static str {
        match self.name {
            ListenerName::Api => "listen",
            ListenerName::Agents => "nodes.listen",
            ListenerName::Netboot => "netboot.listen",
        }
    }

    fn refusal(self) -> String {
        let Self { address, .. } = self;
        let field = self.field();
        let exposed = format!("{field} is {address}: other hosts can reach it, and it has no TLS");
        match self.name {
            ListenerName::Api | ListenerName::Agents => format!(
                "{exposed}; set tls.certificate and tls.key (`farrier tls init DIR` makes them), use \
                 127.0.0.1:{}, or type --insecure",
                address.port()
            ),
            ListenerName::Netboot => format!(
                "{exposed}, as firmware speaks none; write insecure = true in [netboot] if every host \
                 in that network may decide what a machine boots"
            ),
        }
    }

    fn warning(self) -> String {
        let (field, address) = (self.field(), self.address);
        let what = match self.name {
            ListenerName::Api => "every host on the way can read and change requests and answers",
            ListenerName::Agents => "every host on the way can take over the sessions of agents",
            ListenerName::Netboot => "every host in that network can change what a machine boots",
        };
        format!("insecure: {field} {address} has no TLS; {what}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Netboot, Nodes, Tls};

    fn config(api: &str, agents: &str, netboot: &str) -> Config {
        let address = |text: &str| text.parse().ok();
        Config {
            listen: api.parse().unwrap(),
            nodes: Nodes { listen: address(agents), ..Nodes::default() },
            netboot: Netboot { listen: address(netboot), ..Netboot::default() },
            ..Config::default()
        }
    }

    #[test]
    fn only_loopback_needs_no_tls() {
        for api in ["127.0.0.1:1", "127.0.0.7:1", "[::1]:1", "[::ffff:127.0.0.1]:1"] {
            let config = config(api, "127.0.0.1:2", "127.0.0.1:3");
            config.check_exposure().unwrap();
            assert_eq!(config.exposure_warnings(), Vec::<String>::new());
        }
        for (api, agents, netboot, field) in [
            ("0.0.0.0:1", "", "", "listen is 0.0.0.0:1"),
            ("[::]:1", "", "", "listen is [::]:1"),
            ("10.0.0.1:1", "", "", "listen is 10.0.0.1:1"),
            ("127.0.0.1:1", "10.0.0.1:2", "", "nodes.listen is 10.0.0.1:2"),
            ("127.0.0.1:1", "", "10.0.0.1:3", "netboot.listen is 10.0.0.1:3"),
        ] {
            let exposed = config(api, agents, netboot);
            let message = exposed.check_exposure().unwrap_err();
            assert!(message.starts_with(field), "{message}");
            let spelled_out = Config { insecure: true, ..exposed };
            spelled_out.check_exposure().unwrap();
            assert_eq!(spelled_out.exposure_warnings().len(), 1);
        }
    }

    #[test]
    fn tls_covers_the_api_and_the_agents_and_not_netboot() {
        let tls = Tls { certificate: "c".into(), key: "k".into(), ..Tls::default() };
        let covered = Config { tls, ..config("10.0.0.1:1", "10.0.0.1:2", "10.0.0.1:3") };
        let message = covered.check_exposure().unwrap_err();
        assert!(message.starts_with("netboot.listen"), "{message}");
        assert!(message.contains("insecure = true in [netboot]"), "{message}");
        let netboot = Netboot { insecure: true, ..covered.netboot.clone() };
        let told = Config { netboot, ..covered };
        told.check_exposure().unwrap();
        let warnings = told.exposure_warnings();
        assert!(warnings.len() == 1 && warnings[0].contains("netboot.listen"), "{warnings:?}");
    }
}
