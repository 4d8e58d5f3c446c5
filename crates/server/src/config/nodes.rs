//! `[nodes]`: how nodes are watched, and where their agents reach Farrier.

use engine::NodeSettings;
use model::node::heartbeat::HeartbeatLimits;
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

/// The upper limit of every duration here.
const MAX_SECONDS: u32 = 7 * 24 * 3_600;

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Nodes {
    /// The address that serves agents. Unset: only simulated agents are possible.
    pub listen: Option<SocketAddr>,
    /// The URLs under which agents reach it, separated by commas. Empty: `listen`, with `https://`
    /// if the listener has TLS.
    pub url: String,
    /// The static agent binary that new nodes download. Empty: nodes get it in another way, which
    /// the cloud-init document of their site must define.
    pub agent_binary: PathBuf,
    /// The interval of an agent's heartbeats.
    pub heartbeat_seconds: u32,
    /// A node is offline after this long without a heartbeat.
    pub silence_seconds: u32,
    /// A mass outage: this percentage of a site's active nodes is silent or drifting at once. The
    /// cause is then not the nodes themselves.
    pub outage_percent: u32,
    /// The least number of nodes that makes a mass outage.
    pub outage_least: u32,
    /// How long a mass outage keeps silent nodes from becoming offline.
    pub outage_hold_seconds: u32,
    /// The interval of the check for silent nodes.
    pub sweep_seconds: u32,
    /// The interval at which each site is reconciled.
    pub reconcile_seconds: u32,
}

impl Default for Nodes {
    fn default() -> Self {
        let NodeSettings {
            heartbeat_limits: silence,
            silence_check_interval: sweep_interval,
            reconcile_interval,
        } = NodeSettings::default();
        let seconds = |time: Duration| time.as_secs() as u32;
        Self {
            listen: None,
            url: String::new(),
            agent_binary: PathBuf::new(),
            heartbeat_seconds: 30,
            silence_seconds: seconds(silence.silence),
            outage_percent: silence.outage_percent,
            outage_least: silence.outage_least as u32,
            outage_hold_seconds: seconds(silence.outage_hold),
            sweep_seconds: seconds(sweep_interval),
            reconcile_seconds: seconds(reconcile_interval),
        }
    }
}

impl Nodes {
    /// `tls`: whether the listener has it.
    pub fn check(&self, tls: bool) -> Result<(), String> {
        let all = [
            ("heartbeat_seconds", self.heartbeat_seconds, MAX_SECONDS),
            ("silence_seconds", self.silence_seconds, MAX_SECONDS),
            ("outage_percent", self.outage_percent, 100),
            ("outage_least", self.outage_least, u32::MAX),
            ("outage_hold_seconds", self.outage_hold_seconds, MAX_SECONDS),
            ("sweep_seconds", self.sweep_seconds, MAX_SECONDS),
            ("reconcile_seconds", self.reconcile_seconds, MAX_SECONDS),
        ];
        if let Some((field, value, most)) =
            all.into_iter().find(|(_, value, most)| *value == 0 || value > most)
        {
            return Err(format!("nodes.{field} is {value}; use 1 to {most}"));
        }
        if self.silence_seconds < 2 * self.heartbeat_seconds {
            return Err(format!(
                "nodes.silence_seconds is {}, and nodes.heartbeat_seconds {}; one heartbeat may be lost: use at least twice as much",
                self.silence_seconds, self.heartbeat_seconds
            ));
        }
        if let Some(listen) = self.listen.filter(|at| at.ip().is_unspecified())
            && self.url.trim().is_empty()
        {
            return Err(format!(
                "nodes.url is empty and nodes.listen is {listen}, which no agent can reach; write url = \"{}ADDRESS:{}\"",
                scheme(tls),
                listen.port()
            ));
        }
        for url in model::site::addresses(&self.url) {
            model::text::check_web_url("nodes.url", url).map_err(|refusal| refusal.message)?;
            let Some(rest) = url.strip_prefix(scheme(tls)) else {
                let with = if tls { "has" } else { "has no" };
                return Err(format!(
                    "nodes.url is {url:?} and the listener for agents {with} TLS; write {}10.0.0.1:8481",
                    scheme(tls)
                ));
            };
            let host = rest.split(['/', ':']).next();
            if !rest.starts_with('[') && host.is_none_or(|host| host.parse::<IpAddr>().is_err()) {
                return Err(format!(
                    "nodes.url {url:?} is no address that agents can reach: they ask no name server; write {}10.0.0.1:8481",
                    scheme(tls)
                ));
            }
        }
        Ok(())
    }

    pub(crate) fn settings(&self) -> NodeSettings {
        let seconds = |value: u32| Duration::from_secs(value.into());
        NodeSettings {
            heartbeat_limits: HeartbeatLimits {
                silence: seconds(self.silence_seconds),
                outage_percent: self.outage_percent,
                outage_least: self.outage_least as usize,
                outage_hold: seconds(self.outage_hold_seconds),
            },
            silence_check_interval: seconds(self.sweep_seconds),
            reconcile_interval: seconds(self.reconcile_seconds),
        }
    }

    /// The URLs under which agents reach this server, separated by commas.
    pub fn urls(&self, tls: bool) -> String {
        match (self.url.as_str(), self.listen) {
            ("", Some(listen)) => format!("{}{listen}", scheme(tls)),
            ("", None) => String::new(),
            (url, _) => url.to_string(),
        }
    }
}

const fn scheme(tls: bool) -> &'static str {
    if tls { "https://" } else { "http://" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_settings_are_refused_at_start() {
        let anywhere = Some("0.0.0.0:8481".parse().unwrap());
        let sound =
            Nodes { listen: anywhere, url: "http://10.0.0.1:8481".into(), ..Nodes::default() };
        sound.check(false).unwrap();
        assert_eq!(sound.urls(false), "http://10.0.0.1:8481");
        let message = sound.check(true).unwrap_err();
        assert!(message.contains("has TLS; write https://10.0.0.1:8481"), "{message}");
        for (wrong, named) in [
            (Nodes { url: String::new(), ..sound.clone() }, "nodes.url is empty"),
            (Nodes { url: "http://a,tcp://b".into(), ..sound.clone() }, "nodes.url"),
            (Nodes { sweep_seconds: 0, ..sound.clone() }, "nodes.sweep_seconds is 0"),
            (Nodes { outage_percent: 101, ..sound.clone() }, "nodes.outage_percent is 101"),
            (Nodes { silence_seconds: 59, ..sound.clone() }, "nodes.silence_seconds is 59"),
        ] {
            let message = wrong.check(false).unwrap_err();
            assert!(message.contains(named), "{message}");
        }
        Nodes::default().check(false).unwrap();
        assert_eq!(Nodes::default().urls(false), "");
        let alone = Nodes { listen: Some("10.0.0.1:8481".parse().unwrap()), ..Nodes::default() };
        assert_eq!(alone.urls(true), "https://10.0.0.1:8481");
    }
}
