//! The limits of connections of each listener, derived from the descriptors of this process.
//!
//! Connections of strangers must not take the descriptors that the store and the providers need:
//! a reserve is set aside first, and the listeners share the rest.

use super::ListenerName;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::time::Duration;

/// With fewer descriptors neither the store nor one listener could work.
const LEAST_DESCRIPTORS: u64 = 64;
/// The soft limit is raised to at most this: programs that are started inherit it, and some close
/// every descriptor up to the limit.
const MOST_DESCRIPTORS: u64 = 65_536;
/// A listener that shares few descriptors keeps at least this many connections.
const LEAST_CONNECTIONS: usize = 4;

/// The limits of one listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ListenerLimits {
    pub connections: usize,
    pub per_peer: usize,
    /// Concurrent streams of one HTTP/2 connection.
    pub streams: u32,
    pub first_byte: Duration,
    pub header: Duration,
    /// The longest pause inside the body of an HTTP/1 request, and of a peer that reads its answer.
    pub stall: Duration,
    pub idle: Duration,
    pub handshake: Duration,
}

/// The division of the descriptors of this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DescriptorPlan {
    pub limit: u64,
    /// For the store, the providers and files.
    pub reserve: usize,
    shares: Vec<(ListenerName, usize)>,
}

impl DescriptorPlan {
    /// Leaves the reserve, but at least half of the descriptors for the connections.
    pub fn new(
        limit: u64,
        reserve: usize,
        wanted: &[(ListenerName, usize)],
    ) -> Result<Self, String> {
        if limit < LEAST_DESCRIPTORS {
            return Err(format!(
                "this process may open {limit} files, and Farrier needs at least \
                 {LEAST_DESCRIPTORS}; type `ulimit -n 65536` before `farrier serve`, or write \
                 LimitNOFILE=65536 in its systemd unit"
            ));
        }
        let all = usize::try_from(limit).unwrap_or(usize::MAX);
        let reserve = reserve.min(all / 2);
        let available = all - reserve;
        let sum: usize = wanted.iter().map(|(_, count)| count).sum();
        let share = |count: usize| match sum <= available {
            true => count,
            false => {
                let part = count as u128 * available as u128 / (sum as u128).max(1);
                usize::try_from(part).unwrap_or(count).max(LEAST_CONNECTIONS).min(count)
            }
        };
        let shares = wanted.iter().map(|(name, count)| (*name, share(*count))).collect();
        Ok(Self { limit, reserve, shares })
    }

    /// The connections of a listener.
    pub fn connections(&self, name: ListenerName) -> usize {
        let found = self.shares.iter().find(|(one, _)| *one == name);
        found.map_or(LEAST_CONNECTIONS, |(_, count)| *count)
    }
}

/// Raises the soft limit of open files to the hard limit; returns what this process has now.
pub(crate) fn raise_descriptor_limit() -> u64 {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let (current, maximum) = (current.unwrap_or(u64::MAX), maximum.unwrap_or(u64::MAX));
    let wanted = maximum.min(MOST_DESCRIPTORS);
    if wanted <= current {
        return current;
    }
    let raised = Rlimit { current: Some(wanted), maximum: Some(maximum) };
    match setrlimit(Resource::Nofile, raised) {
        Ok(()) => wanted,
        Err(error) => {
            tracing::warn!(%error, current, "the limit of open files could not be raised");
            current
        }
    }
}

#[cfg(test)]
mod tests {
    use super::ListenerName::{Agents, Api, Netboot};
    use super::*;

    #[test]
    fn a_reserve_is_left_whatever_the_limit() {
        let wanted = [(Api, 2_048), (Agents, 8_192), (Netboot, 1_024)];
        for (limit, reserve, expected) in [
            (65_536, 850, (850, [2_048, 8_192, 1_024])),
            (1_024, 850, (512, [93, 372, 46])),
            (256, 850, (128, [23, 93, 11])),
            (256, 100, (100, [28, 113, 14])),
            (64, 850, (32, [5, 23, 4])),
        ] {
            let plan = DescriptorPlan::new(limit, reserve, &wanted).unwrap();
            let shares = [Api, Agents, Netboot].map(|name| plan.connections(name));
            assert_eq!((plan.reserve, shares), expected, "{limit}");
            let used = plan.reserve + shares.iter().sum::<usize>();
            assert!(used as u64 <= limit, "{limit}: {used}");
        }
        let one = DescriptorPlan::new(256, 850, &[(Api, 2_048)]).unwrap();
        assert_eq!((one.reserve, one.connections(Api)), (128, 128));
        let few = DescriptorPlan::new(63, 850, &wanted).unwrap_err();
        assert!(few.contains("may open 63 files") && few.contains("ulimit -n 65536"), "{few}");
    }
}
