//! `farrier cluster`.

use super::*;

#[derive(Debug, Subcommand)]
pub enum ClusterCommand {
    /// Check the access to a Kubernetes cluster, without changing anything in it
    Check(ClusterCheckArgs),
}

const CLUSTER_CHECK_HELP: &str = "\
A cluster is known by the credential with its kubeconfig. The server asks its API server, not this
computer: whether it answers, who our user is there, and whether the user has each of the rights
that deploy/kubernetes-rbac.yaml grants. Exits with 1 if a check fails.

Examples:
  farrier credential create cluster-a --kubeconfig cluster-a.conf
  farrier cluster check cluster-a";

#[derive(Debug, Args)]
#[command(after_help = CLUSTER_CHECK_HELP)]
pub struct ClusterCheckArgs {
    /// Name of the cluster, which is the name of its credential
    pub name: String,
}
