//! ClusterService: questions about Kubernetes clusters.

use super::convert::{drain_options_from, time};
use super::status::OrStatus;
use super::{Answer, GrpcServices};
use model::id::MachineId;
use proto::v1;
use providers::bmc_discovery::CheckOutcome;
use providers::cluster_check::{ClusterReport, DrainPreview};
use providers::kubernetes::PodDecision;
use tonic::{Request, Response};

#[tonic::async_trait]
impl v1::cluster_service_server::ClusterService for GrpcServices {
    async fn check_cluster(
        &self,
        request: Request<v1::CheckClusterRequest>,
    ) -> Answer<v1::ClusterReport> {
        let call = self.call(&request).await?;
        let name = request.into_inner().name;
        let checked = call.engine.clusters().check(&name).await.or_status()?;
        Ok(Response::new(report(name, checked)))
    }

    async fn preview_drain(
        &self,
        request: Request<v1::PreviewDrainRequest>,
    ) -> Answer<v1::DrainPreview> {
        let call = self.call(&request).await?;
        let v1::PreviewDrainRequest { machine_id, options } = request.into_inner();
        let id = MachineId::parse(&machine_id).or_status()?;
        let options = drain_options_from("options", options.unwrap_or_default()).or_status()?;
        let found = call.engine.clusters().preview_drain(&id, &options).await.or_status()?;
        Ok(Response::new(preview(found)))
    }
}

fn preview(found: DrainPreview) -> v1::DrainPreview {
    use v1::PodDecision as D;
    let pods = found.pods.into_iter().map(|pod| {
        let (decision, message) = match pod.decision {
            PodDecision::Evict => (D::Evict, String::new()),
            PodDecision::Stay => (D::Stay, String::new()),
            PodDecision::Terminating => (D::Terminating, String::new()),
            PodDecision::Blocked(why) => (D::Blocked, why),
            PodDecision::Refused(why) => (D::Refused, why),
        };
        v1::PodPreview {
            namespace: pod.pod.namespace,
            name: pod.pod.name,
            decision: decision.into(),
            message,
        }
    });
    let budgets = found.budgets.into_iter().map(|budget| v1::DisruptionBudget {
        namespace: budget.namespace,
        name: budget.name,
        disruptions_allowed: budget.disruptions_allowed,
        current_healthy: budget.current_healthy,
        desired_healthy: budget.desired_healthy,
    });
    v1::DrainPreview {
        pods: pods.collect(),
        budgets: budgets.collect(),
        cluster: found.cluster,
        node: found.node,
    }
}

fn report(name: String, checked: ClusterReport) -> v1::ClusterReport {
    use v1::cluster_finding::Outcome as O;
    let usable = checked.usable();
    let failed = checked.findings.iter().filter(|one| one.outcome == CheckOutcome::Cannot).count();
    let (summary, next_command) = match usable {
        true => (
            format!("Farrier can work with {name}"),
            format!("farrier machine register MACHINE --cluster {name} …"),
        ),
        false => (
            format!("Farrier cannot do everything in {name}; checks that failed: {failed}"),
            "kubectl apply -f deploy/kubernetes-rbac.yaml".to_owned(),
        ),
    };
    let is_ok = |check: &str| {
        let found = checked.findings.iter().find(|one| one.check == check);
        found.is_some_and(|one| one.outcome != CheckOutcome::Cannot)
    };
    let next_command = match is_ok("kubeconfig") && is_ok("user") {
        true => next_command,
        false => format!("farrier credential set {name} --kubeconfig FILE"),
    };
    let findings = checked.findings.into_iter().map(|finding| v1::ClusterFinding {
        check: finding.check,
        outcome: match finding.outcome {
            CheckOutcome::Ok => O::Ok,
            CheckOutcome::Cannot => O::Cannot,
            CheckOutcome::NotTried => O::NotTried,
        }
        .into(),
        message: finding.message,
    });
    v1::ClusterReport {
        findings: findings.collect(),
        name,
        address: checked.address,
        version: checked.version,
        user: checked.user,
        expires_at: checked.expires_at.map(time),
        usable,
        summary,
        next_command,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use providers::cluster_check::ClusterFinding;

    #[test]
    fn a_failed_check_leads_to_what_mends_it() {
        for (failed, next) in [
            ("", "farrier machine register"),
            ("kubeconfig", "farrier credential set a"),
            ("user", "farrier credential set a"),
            ("list pods", "kubectl apply -f deploy/kubernetes-rbac.yaml"),
        ] {
            let findings = ["kubeconfig", "reachable", "user", "list pods"].map(|check| {
                let outcome = if check == failed { CheckOutcome::Cannot } else { CheckOutcome::Ok };
                ClusterFinding { check: check.into(), outcome, message: String::new() }
            });
            let checked = ClusterReport { findings: findings.into(), ..ClusterReport::default() };
            let next_command = report("a".into(), checked).next_command;
            assert!(next_command.starts_with(next), "{failed}: {next_command}");
        }
    }
}
