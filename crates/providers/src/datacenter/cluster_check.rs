//! Checks a cluster for `farrier cluster check`: the kubeconfig, the server, our user and its
//! rights. Previews a drain there.

use super::Datacenter;
use super::node_state::find_node;
use crate::bmc_discovery::CheckOutcome::{Cannot, NotTried, Ok as Fine};
use crate::cluster_check::{ClusterInspector, ClusterReport, DrainPreview};
use crate::kubernetes::{Cluster, PodDecision, PodPreview, RIGHTS, Right, RightsRule};
use crate::port::Target;
use async_trait::async_trait;
use model::effect::DrainOptions;
use model::fault::{Fault, FaultCode, Result};
use model::time::{Timestamp, format_duration};
use std::collections::BTreeSet;
use std::time::Duration;

/// The clocks may differ by this much. Join tokens live for an hour by our clock.
const MAX_CLOCK_SKEW: Duration = Duration::from_secs(60);
/// A credential that expires sooner than this is a finding.
const EXPIRES_SOON: Duration = Duration::from_secs(7 * 24 * 60 * 60);

#[async_trait]
impl ClusterInspector for Datacenter {
    async fn check_cluster(&self, name: &str) -> ClusterReport {
        let mut report = ClusterReport::default();
        let now = crate::clock::now();
        let reached = self.check_server(name, now, &mut report).await;
        for rule in &RIGHTS {
            for right in rule.rights() {
                check_right(reached.as_ref(), rule, right, &mut report).await;
            }
        }
        report
    }
}

impl Datacenter {
    /// Asks the API server about each eviction, as a dry run.
    pub(super) async fn preview_node_drain(
        &self,
        target: &Target,
        options: &DrainOptions,
    ) -> Result<DrainPreview> {
        let cluster = target.spec.target_cluster_ref.clone();
        if cluster.is_empty() {
            return Ok(DrainPreview::default());
        }
        let api = self.cluster(&cluster).await?;
        let (name, node) = find_node(&api, target).await?;
        if node.is_none() {
            return Ok(DrainPreview { cluster, ..DrainPreview::default() });
        }
        let pods = api.preview_drain(&name, options).await?;
        let goes =
            |one: &PodPreview| matches!(one.decision, PodDecision::Evict | PodDecision::Blocked(_));
        let namespaces: BTreeSet<&str> =
            pods.iter().filter(|one| goes(one)).map(|one| one.pod.namespace.as_str()).collect();
        let mut budgets = api.budgets().await?;
        budgets.retain(|budget| namespaces.contains(budget.namespace.as_str()));
        Ok(DrainPreview { cluster, node: name, budgets, pods })
    }

    /// Everything but the rights. None: no further request makes sense.
    async fn check_server(
        &self,
        name: &str,
        now: Timestamp,
        report: &mut ClusterReport,
    ) -> Option<Cluster> {
        let api = match self.cluster(name).await {
            Ok(api) => api,
            Err(fault) => {
                report.add("kubeconfig", Cannot, fault.message);
                return None;
            }
        };
        report.address = api.address().to_owned();
        report.expires_at = api.expires_at();
        let (outcome, message) = describe_expiry(api.expires_at(), now);
        report.add("kubeconfig", outcome, message);
        let server = match api.version().await {
            Ok(server) => server,
            // An answer, although not the one that was asked for.
            Err(fault) if fault.code == FaultCode::LoginRefused => {
                report.add("reachable", Fine, format!("{} answers", report.address));
                if fault.facts().missing_right.is_some() {
                    report.add("clock", NotTried, "our user may not read the version");
                    return check_user(&api, report).await.then_some(api);
                }
                report.add("user", Cannot, describe_refused_login(&fault));
                return None;
            }
            Err(fault) => {
                report.add("reachable", Cannot, fault.message);
                return None;
            }
        };
        report.version = server.version.clone();
        let message = format!("{}, Kubernetes {}", report.address, server.version);
        report.add("reachable", Fine, message);
        let (outcome, message) = describe_clock(server.clock, crate::clock::now());
        report.add("clock", outcome, message);
        check_user(&api, report).await.then_some(api)
    }
}

fn describe_refused_login(fault: &Fault) -> String {
    format!("the cluster answers and refuses the login: {}", fault.message)
}

/// True if the server knows our user. False: it does not, and has nothing more to say.
async fn check_user(api: &Cluster, report: &mut ClusterReport) -> bool {
    match api.user().await {
        Ok(Some(user)) => {
            report.user = user.clone();
            report.add("user", Fine, user);
            true
        }
        Ok(None) => {
            report.add("user", NotTried, "the server is older than 1.28 and does not say");
            true
        }
        Err(fault) if fault.code == FaultCode::LoginRefused => {
            report.add("user", Cannot, describe_refused_login(&fault));
            false
        }
        Err(fault) => {
            report.add("user", Cannot, fault.message);
            false
        }
    }
}

async fn check_right(
    api: Option<&Cluster>,
    rule: &RightsRule,
    right: Right<'static>,
    report: &mut ClusterReport,
) {
    let place = match right.namespace {
        "" => String::new(),
        namespace => format!(" in {namespace}"),
    };
    let check = format!("{} {}{place}", right.verb, right.resource);
    let (outcome, message) = match api {
        None => (NotTried, rule.purpose.to_owned()),
        Some(api) => describe_right(api.may(right).await, rule),
    };
    report.add(check, outcome, message);
}

fn describe_right(
    allowed: Result<bool>,
    rule: &RightsRule,
) -> (crate::bmc_discovery::CheckOutcome, String) {
    match allowed {
        Ok(true) => (Fine, rule.purpose.to_owned()),
        Ok(false) => (Cannot, format!("not allowed; it is for {}", rule.purpose)),
        Err(fault) => (Cannot, fault.message),
    }
}

fn describe_expiry(
    expires_at: Option<Timestamp>,
    now: Timestamp,
) -> (crate::bmc_discovery::CheckOutcome, String) {
    let Some(expires_at) = expires_at else {
        return (Fine, "does not say when it expires".into());
    };
    if expires_at <= now {
        return (Cannot, format!("expired {} ago", format_duration(now.since(expires_at))));
    }
    let left = expires_at.since(now);
    let message = format!("expires in {}", format_duration(left));
    match left < EXPIRES_SOON {
        true => (Cannot, format!("{message}; set a new one")),
        false => (Fine, message),
    }
}

fn describe_clock(
    server: Option<Timestamp>,
    now: Timestamp,
) -> (crate::bmc_discovery::CheckOutcome, String) {
    let Some(server) = server else {
        return (NotTried, "the server does not say what time it is".into());
    };
    let (apart, way) = match server > now {
        true => (server.since(now), "ahead of"),
        false => (now.since(server), "behind"),
    };
    match apart > MAX_CLOCK_SKEW {
        true => (Cannot, format!("its clock is {} {way} ours", format_duration(apart))),
        false => (Fine, "agrees with ours".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expiry_and_a_clock_are_judged() {
        let at = |seconds: i64| Timestamp::from_micros(seconds * 1_000_000);
        let day = 24 * 60 * 60;
        let now = at(100 * day);
        for (expires, outcome, words) in [
            (None, Fine, "does not say"),
            (Some(at(130 * day)), Fine, "expires in"),
            (Some(at(101 * day)), Cannot, "set a new one"),
            (Some(at(99 * day)), Cannot, "expired"),
        ] {
            let (judged, message) = describe_expiry(expires, now);
            assert!(judged == outcome && message.contains(words), "{message}");
        }
        for (server, outcome, words) in [
            (None, NotTried, "does not say"),
            (Some(at(100 * day + 2)), Fine, "agrees"),
            (Some(at(100 * day + 300)), Cannot, "ahead of ours"),
            (Some(at(100 * day - 300)), Cannot, "behind ours"),
        ] {
            let (judged, message) = describe_clock(server, now);
            assert!(judged == outcome && message.contains(words), "{message}");
        }
    }
}
