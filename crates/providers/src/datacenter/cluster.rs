//! Joins a machine to a customer's cluster, removes it, and reads its node.
//!
//! The kubeconfig of a cluster is the credential with the cluster's name. The node has the
//! machine's name. Each join gets its own token, which is deleted when the join has ended.

use super::Datacenter;
use super::exec::{barred, see_through};
use super::orders::{OrderCheckpoint, Remembered};
use crate::fault::possibly_happened;
use crate::kubernetes::{Cluster, Node, NodeTaintEffect, Settings, Taint};
use crate::peer_login::wrong_kind;
use crate::port::{Journal, Target};
use crate::ssh::{Host, JobStatus, Lost};
use crate::state_store::Secret;
use model::condition::{ConditionType, Evidence};
use model::effect::{self, Answer, Expect, NodeLabels, Order, Outcome, TaintEffect, Verb};
use model::fault::{Code, Fault, Happened};
use secrecy::ExposeSecret;
use std::time::Duration;

/// The lifetime of a token that is not deleted.
const TOKEN_LIFE: Duration = Duration::from_secs(3_600);
/// Between two reads while a new node is not listed yet.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// `kubeadm reset` does not delete the Node object; that needs the cluster's credential.
const RESET: &str = "PATH=$PATH:/usr/sbin:/usr/local/bin; kubeadm reset --force";
const FIND_KUBEADM: &str = "PATH=$PATH:/usr/sbin:/usr/local/bin";

/// The parameters of a join.
#[derive(Debug, Clone, Copy)]
pub(super) struct Joining<'a> {
    pub cluster: &'a str,
    pub labels: &'a NodeLabels,
    pub taints: &'a [effect::Taint],
}

impl Datacenter {
    pub(super) async fn cluster(&self, name: &str) -> Result<Cluster, Fault> {
        self.cluster_within(name, Settings::default().deadline).await
    }

    /// The client of a cluster, with this timeout for each request.
    pub(super) async fn cluster_within(
        &self,
        name: &str,
        deadline: Duration,
    ) -> Result<Cluster, Fault> {
        let credential = self.store.credential(name).await?;
        match &credential.secret {
            Secret::Kubeconfig { text } => Cluster::from_kubeconfig(text, Settings { deadline }),
            Secret::Password { .. } | Secret::Key { .. } | Secret::MaasKey { .. } => {
                Err(wrong_kind(&credential, "a kubeconfig, which a cluster wants"))
            }
        }
    }

    /// Reads the node. An advisory check succeeds and reports what it found.
    pub(super) async fn verify(
        &self,
        target: &Target,
        order: &Order,
        cluster: &str,
        expect: Expect,
        advisory: bool,
    ) -> Result<Answer, Fault> {
        if order.verb == Verb::Stop {
            return Ok(Answer::Stopped);
        }
        if cluster.is_empty() {
            return Ok(Answer::Done(nowhere("the machine belongs to no cluster")));
        }
        let seen = self.cluster(cluster).await?.node(target.id.as_str()).await?;
        let outcome = told(cluster, seen.as_ref());
        let holds = match (expect, &seen) {
            (Expect::Ready, Some(node)) => node.ready && node.schedulable,
            (Expect::Drained, Some(node)) => !node.schedulable,
            (Expect::Ready, None) => false,
            (Expect::Drained, None) => true,
        };
        match (holds || advisory, order.verb) {
            (true, _) => Ok(Answer::Done(outcome)),
            (false, Verb::Observe) => Ok(Answer::Differs(outcome.said)),
            (false, Verb::GetStatus) => Ok(Answer::NeverStarted),
            (false, Verb::Perform | Verb::Follow | Verb::Stop) => {
                Err(Fault::new(Code::NotInCluster, outcome.said))
            }
        }
    }

    pub(super) async fn join(
        &self,
        target: &Target,
        order: &Order,
        joining: Joining<'_>,
        journal: &Journal,
    ) -> Result<Answer, Fault> {
        let api = self.cluster(joining.cluster).await?;
        match (order.verb, self.recall(&order.key).await?) {
            (Verb::Perform, None | Some(Remembered::Checkpoint(_))) => {
                let host = self.hosts.connect(target).await?;
                self.begin_join(target, order, &api, &host, journal).await?;
                self.joined(target, order, &api, joining, journal).await
            }
            (Verb::Perform, Some(Remembered::Barred)) => Err(barred(&order.key)),
            (Verb::Follow, Some(Remembered::Checkpoint(_))) => {
                self.joined(target, order, &api, joining, journal).await
            }
            (Verb::Follow | Verb::GetStatus, None | Some(Remembered::Barred)) => {
                Ok(Answer::NeverStarted)
            }
            (Verb::GetStatus, Some(Remembered::Checkpoint(_))) => {
                self.inquire_join(target, order).await
            }
            (Verb::Observe, _) => {
                let node = api.node(target.id.as_str()).await?;
                let seen = told(joining.cluster, node.as_ref());
                Ok(match node {
                    Some(node) => match joining.missing(&node) {
                        None => Answer::Done(seen),
                        Some(missing) => Answer::Differs(missing),
                    },
                    None => Answer::Differs(seen.said),
                })
            }
            (Verb::Stop, noted) => {
                let stopped = self.stop_job(target, order).await?;
                if let Some(Remembered::Checkpoint(OrderCheckpoint::Join { token })) = noted {
                    api.forget_token(&token).await?;
                }
                Ok(stopped)
            }
        }
    }

    /// The checkpoint only records the token; the host knows whether kubeadm was started with it.
    async fn inquire_join(&self, target: &Target, order: &Order) -> Result<Answer, Fault> {
        let host = self.hosts.connect(target).await?;
        Ok(match host.status(order.key.as_str()).await? {
            JobStatus::Never | JobStatus::Barred | JobStatus::Lost(Lost::Unmade) => {
                Answer::NeverStarted
            }
            // `Follow` reports how it ended, and deletes its token.
            JobStatus::Running { .. }
            | JobStatus::Ended(_)
            | JobStatus::Lost(Lost::Rebooted | Lost::Gone) => Answer::UnderWay,
        })
    }

    /// Starts the join unless the host has already started it. Stores the token before creating it.
    async fn begin_join(
        &self,
        target: &Target,
        order: &Order,
        api: &Cluster,
        host: &Host,
        journal: &Journal,
    ) -> Result<(), Fault> {
        match host.status(order.key.as_str()).await? {
            JobStatus::Never | JobStatus::Lost(Lost::Unmade) => {}
            JobStatus::Barred
            | JobStatus::Running { .. }
            | JobStatus::Ended(_)
            | JobStatus::Lost(Lost::Rebooted | Lost::Gone) => return Ok(()),
        }
        let token = api.draw_token()?;
        let memo = OrderCheckpoint::Join { token: token.id.clone() };
        match self.begin(&order.key, memo.clone()).await? {
            None => {}
            Some(Remembered::Barred) => return Err(barred(&order.key)),
            Some(Remembered::Checkpoint(before)) => {
                // A former attempt stored a token and never started: delete that token.
                if let OrderCheckpoint::Join { token } = &before {
                    api.forget_token(token).await?;
                }
                self.compare_and_swap(&order.key, before, memo).await?;
            }
        }
        let material = api.join_material(&token, TOKEN_LIFE).await?;
        let name = target.id.as_str();
        journal.line(format!("join: kubeadm joins the cluster as {name}")).await;
        let arguments = material.arguments();
        let arguments = arguments.expose_secret();
        let command = format!("{FIND_KUBEADM}; kubeadm {arguments} --node-name {name}");
        let begun = host.start(order.key.as_str(), &command).await.map(drop);
        if matches!(&begun, Err(fault) if fault.code.happened() == Happened::No) {
            api.forget_token(&token.id).await?;
        }
        begun
    }

    /// Follows the join to its end, deletes its token, waits for the node, and sets its labels.
    async fn joined(
        &self,
        target: &Target,
        order: &Order,
        api: &Cluster,
        joining: Joining<'_>,
        journal: &Journal,
    ) -> Result<Answer, Fault> {
        let host = self.hosts.connect(target).await.map_err(possibly_happened)?;
        let ended = see_through(&host, order.key.as_str(), order.logged, journal).await;
        let over = !matches!(&ended, Err(fault) if fault.code.happened() == Happened::Maybe);
        if let (true, Some(Remembered::Checkpoint(OrderCheckpoint::Join { token }))) =
            (over, self.recall(&order.key).await?)
        {
            api.forget_token(&token).await.map_err(possibly_happened)?;
        }
        match ended? {
            Answer::Done(_) => {}
            other => return Ok(other),
        }
        // The node appears shortly after kubeadm has ended. The step's timeout limits the wait.
        loop {
            let node = api.node(target.id.as_str()).await.map_err(possibly_happened)?;
            if let Some(node) = node {
                let node = joining.dress(api, node, journal).await.map_err(possibly_happened)?;
                return Ok(Answer::Done(told(joining.cluster, Some(&node))));
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    pub(super) async fn leave(
        &self,
        target: &Target,
        order: &Order,
        cluster: &str,
        journal: &Journal,
    ) -> Result<Answer, Fault> {
        let api = self.cluster(cluster).await?;
        let name = target.id.as_str();
        match order.verb {
            Verb::Observe => Ok(match api.node(name).await? {
                None => Answer::Done(told(cluster, None)),
                Some(node) => Answer::Differs(told(cluster, Some(&node)).said),
            }),
            Verb::Perform | Verb::Follow => {
                match self.command(target, order, RESET, journal).await? {
                    Answer::Done(_) => {}
                    other => return Ok(other),
                }
                api.remove_node(name).await?;
                Ok(Answer::Done(told(cluster, None)))
            }
            Verb::GetStatus => match self.command(target, order, RESET, journal).await? {
                // The host has left; `Follow` deletes the Node object.
                Answer::Done(_) if api.node(name).await?.is_some() => Ok(Answer::UnderWay),
                other => Ok(other),
            },
            Verb::Stop => self.command(target, order, RESET, journal).await,
        }
    }
}

impl Joining<'_> {
    /// Adds labels and taints to those of the node, and reads them back. Idempotent.
    async fn dress(&self, api: &Cluster, node: Node, journal: &Journal) -> Result<Node, Fault> {
        if self.missing(&node).is_none() {
            return Ok(node);
        }
        if !self.labels.is_empty() {
            let labels =
                self.labels.iter().map(|(key, value)| (key.clone(), Some(value.clone()))).collect();
            api.label(&node.name, &labels).await?;
            let words: Vec<String> =
                self.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
            journal.line(format!("join: labelled {}", words.join(", "))).await;
        }
        if !self.taints.is_empty() {
            let taints: Vec<Taint> = self.taints.iter().map(taint).collect();
            api.taint(&node.name, &taints, &[]).await?;
            let words: Vec<String> = self.taints.iter().map(ToString::to_string).collect();
            journal.line(format!("join: tainted {}", words.join(", "))).await;
        }
        let seen = api.node(&node.name).await?;
        match seen {
            Some(seen) => match self.missing(&seen) {
                None => Ok(seen),
                Some(missing) => Err(Fault::new(Code::ReadBackDiffers, missing)),
            },
            None => Err(Fault::new(Code::NotInCluster, told(self.cluster, None).said)),
        }
    }

    /// The labels and taints that the node lacks.
    fn missing(&self, node: &Node) -> Option<String> {
        let labels = self
            .labels
            .iter()
            .filter(|(key, value)| node.labels.get(*key) != Some(*value))
            .map(|(key, value)| format!("the label {key}={value}"));
        let taints = self
            .taints
            .iter()
            .filter(|wanted| !node.taints.contains(&taint(wanted)))
            .map(|taint| format!("the taint {taint}"));
        let missing: Vec<String> = labels.chain(taints).collect();
        (!missing.is_empty())
            .then(|| format!("its node in {} is without {}", self.cluster, missing.join(", ")))
    }
}

fn taint(wanted: &effect::Taint) -> Taint {
    Taint {
        key: wanted.key.clone(),
        value: Some(wanted.value.clone()).filter(|value| !value.is_empty()),
        effect: match wanted.effect {
            TaintEffect::NoSchedule => NodeTaintEffect::NoSchedule,
            TaintEffect::PreferNoSchedule => NodeTaintEffect::PreferNoSchedule,
            TaintEffect::NoExecute => NodeTaintEffect::NoExecute,
        },
    }
}

/// The evidence that the node, or its absence, gives about its machine.
pub(super) fn sight(cluster: &str, node: Option<&Node>) -> Vec<Evidence> {
    told(cluster, node).evidence
}

/// The outcome and evidence of reading a node.
pub(super) fn told(cluster: &str, node: Option<&Node>) -> Outcome {
    let Some(node) = node else {
        return nowhere(&format!("it is no node of {cluster}"));
    };
    let bad: Vec<String> =
        node.bad.iter().map(|one| format!("{} {}", one.kind, one.reason)).collect();
    let health = match (node.ready, bad.is_empty()) {
        (true, true) => "ready".to_string(),
        (true, false) => format!("ready, with {}", bad.join(", ")),
        (false, true) => "not ready".to_string(),
        (false, false) => format!("not ready: {}", bad.join(", ")),
    };
    let drained = if node.schedulable { "Schedulable" } else { "Cordoned" };
    let cordoned = if node.schedulable { "" } else { ", cordoned" };
    let joined = match node.bad.iter().find(|bad| bad.kind == "Ready") {
        Some(bad) => format!("NotReady:{}", bad.reason),
        None => format!("Joined:{cluster}"),
    };
    let evidence = vec![
        Evidence::new(ConditionType::InCustomerCluster, node.ready, joined),
        Evidence::new(ConditionType::Drained, !node.schedulable, drained),
    ];
    Outcome { said: format!("its node in {cluster} is {health}{cordoned}"), evidence, facts: None }
}

/// Without a node there is nothing to drain.
pub(super) fn nowhere(said: &str) -> Outcome {
    let evidence = vec![
        Evidence::new(ConditionType::InCustomerCluster, false, "NotJoined"),
        Evidence::new(ConditionType::Drained, true, "NotInCluster"),
    ];
    Outcome { said: said.into(), evidence, facts: None }
}
