//! `[connections]`: how many connections are accepted, and how long each may take.

use crate::listener::ListenerName;
use crate::listener::limits::{DescriptorPlan, ListenerLimits};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The upper limit of every duration here.
const MAX_SECONDS: u32 = 24 * 3_600;

/// Limits of the connections to this server. They are lowered when the limit of open files is too
/// small for them.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Connections {
    /// How many connections `listen` keeps open. When all are in use, new ones are refused; one
    /// without a request of a known sender makes room.
    pub max_api: usize,
    /// The same for `nodes.listen`; an agent needs two.
    pub max_agents: usize,
    /// The same for `netboot.listen`.
    pub max_netboot: usize,
    /// How many connections to one listener one address may have, at most half of the above. An
    /// IPv6 network of 64 bits counts as one address, and so does a proxy.
    pub max_per_peer: usize,
    /// How many calls and watches one HTTP/2 connection may have in progress.
    pub max_streams: u32,
    /// How long a new connection may send nothing.
    pub first_byte_seconds: u32,
    /// How long the head of a request may take from its first byte.
    pub header_seconds: u32,
    /// How long a peer may stop within the body of an HTTP/1 request, or not read its answer.
    pub stall_seconds: u32,
    /// How long a connection may be open without a request after its first one.
    pub idle_seconds: u32,
    /// How long the agreement on TLS may take.
    pub tls_handshake_seconds: u32,
    /// How many open files are reserved for the database, the devices and everything else that is
    /// no connection to this server. 0: as many as the other settings need.
    pub reserved_descriptors: usize,
}

impl Default for Connections {
    fn default() -> Self {
        Self {
            max_api: 2_048,
            max_agents: 8_192,
            max_netboot: 1_024,
            max_per_peer: 512,
            max_streams: 1_024,
            first_byte_seconds: 10,
            header_seconds: 20,
            stall_seconds: 120,
            idle_seconds: 300,
            tls_handshake_seconds: 10,
            reserved_descriptors: 0,
        }
    }
}

impl Connections {
    pub fn check(&self) -> Result<(), String> {
        let counts = [
            ("max_api", self.max_api),
            ("max_agents", self.max_agents),
            ("max_netboot", self.max_netboot),
            ("max_per_peer", self.max_per_peer),
            ("max_streams", self.max_streams as usize),
        ];
        if let Some((field, _)) = counts.iter().find(|(_, count)| *count == 0) {
            return Err(format!("connections.{field} is 0; use at least 1"));
        }
        let seconds = [
            ("first_byte_seconds", self.first_byte_seconds),
            ("header_seconds", self.header_seconds),
            ("stall_seconds", self.stall_seconds),
            ("idle_seconds", self.idle_seconds),
            ("tls_handshake_seconds", self.tls_handshake_seconds),
        ];
        match seconds.iter().find(|(_, value)| !(1..=MAX_SECONDS).contains(value)) {
            None => Ok(()),
            Some((field, value)) => {
                Err(format!("connections.{field} is {value}; use 1 to {MAX_SECONDS}"))
            }
        }
    }

    /// The number of connections that a listener wants.
    pub(crate) fn wanted(&self, name: ListenerName) -> usize {
        match name {
            ListenerName::Api => self.max_api,
            ListenerName::Agents => self.max_agents,
            ListenerName::Netboot => self.max_netboot,
        }
    }

    pub(crate) fn limits(&self, name: ListenerName, plan: &DescriptorPlan) -> ListenerLimits {
        let seconds = |value: u32| Duration::from_secs(value.into());
        let connections = plan.connections(name);
        ListenerLimits {
            connections,
            // No address can keep all others out.
            per_peer: self.max_per_peer.min(connections.div_ceil(2)),
            streams: self.max_streams,
            first_byte: seconds(self.first_byte_seconds),
            header: seconds(self.header_seconds),
            stall: seconds(self.stall_seconds),
            idle: seconds(self.idle_seconds),
            handshake: seconds(self.tls_handshake_seconds),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_peer_never_gets_all_connections() {
        let settings = Connections::default();
        for (limit, expected) in [(65_536, (2_048, 512)), (256, (128, 64)), (64, (32, 16))] {
            let wanted = [(ListenerName::Api, settings.max_api)];
            let plan = DescriptorPlan::new(limit, 850, &wanted).unwrap();
            let limits = settings.limits(ListenerName::Api, &plan);
            assert_eq!((limits.connections, limits.per_peer), expected, "{limit}");
        }
    }

    #[test]
    fn values_that_shut_everybody_out_are_refused() {
        Connections::default().check().unwrap();
        for (wrong, words) in [
            (Connections { max_api: 0, ..Connections::default() }, "connections.max_api is 0"),
            (Connections { idle_seconds: 0, ..Connections::default() }, "idle_seconds is 0; use 1"),
        ] {
            let message = wrong.check().unwrap_err();
            assert!(message.contains(words), "{message}");
        }
    }
}
