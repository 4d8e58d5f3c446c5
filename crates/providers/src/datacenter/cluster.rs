//! Joins a machine to a customer's cluster, removes it, and reads its node.
//!
//! The kubeconfig of a cluster is the credential with the cluster's name. Each join gets its own
//! token, which is deleted when the join has ended.

use super::exec::{follow_job, stopped_before_start};
use super::node_state::{find_node, node_outcome, not_in_cluster, observe_node};
use super::provider_calls::{CallCheckpoint, StoredCheckpoint};
use super::{Datacenter, TargetCall};
use crate::fault::possibly_happened;
use crate::kubernetes::{
    Cluster, Node, NodeEvent, NodeTaintEffect, PRELUDE, Settings, Taint, check_config, join_script,
};
use crate::port::{Journal, Target};
use crate::ssh::{Host, JobStatus, LostReason};
use model::condition::ConditionType;
use model::effect::{
    self, CallOutcome, CallResult, CallVerb, ClusterExpectation, EffectKey, KubeadmOptions,
    NodeLabels, ProviderAnswer, ProviderCall, TaintEffect,
};
use model::fault::{EffectOutcome, Fault, FaultCode, Result};
use model::plan::UNDO_PREFIX;
use secrecy::ExposeSecret;
use std::time::Duration;

/// The lifetime of a token that is not deleted.
const TOKEN_TTL: Duration = Duration::from_secs(3_600);
/// The interval between two reads while a new node is not listed yet.
const POLL_INTERVAL: Duration = Duration::from_secs(2);
/// `kubeadm reset` does not delete the Node object; that needs the cluster's credential.
const RESET: &str = "$SUDO env \"PATH=$PATH\" kubeadm reset --force";
/// The API server that the kubelet of a host was joined to. Nothing: it was joined to none.
const JOINED_TO: &str = "$SUDO sed -n 's/^ *server: //p' /etc/kubernetes/kubelet.conf 2>/dev/null";
/// The most attempts in a row that ended before this provider was called.
const MAX_GAP: u32 = 32;
/// The most lines of kubeadm that a fault quotes.
const MAX_LAST_LINES: usize = 8;
const MAX_LINE_CHARS: usize = 300;

/// The parameters of a join.
#[derive(Debug, Clone, Copy)]
pub(super) struct JoinRequest<'a> {
    pub cluster: &'a str,
    pub labels: &'a NodeLabels,
    pub taints: &'a [effect::Taint],
    pub kubeadm: &'a KubeadmOptions,
}

impl Datacenter {
    pub(super) async fn cluster(&self, name: &str) -> Result<Cluster> {
        self.cluster_with(name, self.settings.cluster.clone()).await
    }

    /// The client of a cluster for a probe: with this timeout, and without repeating anything.
    pub(super) async fn cluster_within(&self, name: &str, deadline: Duration) -> Result<Cluster> {
        let settings = self.settings.cluster.clone();
        self.cluster_with(name, Settings { deadline, refusal_grace: Duration::ZERO, ..settings })
            .await
    }

    async fn cluster_with(&self, name: &str, settings: Settings) -> Result<Cluster> {
        let text = self.store.kubeconfig(name).await?;
        Cluster::from_credential(name, &text, settings)
    }

    /// Reads the node. An advisory check succeeds and reports what it found.
    pub(super) async fn verify(
        &self,
        request: TargetCall<'_>,
        cluster: &str,
        expect: ClusterExpectation,
        advisory: bool,
    ) -> CallResult {
        let TargetCall { target, call, journal } = request;
        if call.verb == CallVerb::Stop {
            return Ok(ProviderAnswer::Stopped);
        }
        if cluster.is_empty() {
            return Ok(ProviderAnswer::Done(not_in_cluster("the machine belongs to no cluster")));
        }
        let api = self.cluster(cluster).await?;
        let (_, observed) = find_node(&api, target).await?;
        let outcome = observe_node(&api, cluster, observed.as_ref()).await?;
        if let (ClusterExpectation::Ready, Some(node)) = (expect, &observed)
            && !node.schedulable
        {
            let (name, id) = (&node.name, target.id.as_str());
            let line = format!(
                "verify: node {name} stays cordoned and takes no work; uncordon it with \
                 `kubectl uncordon {name}`, or leave maintenance with \
                 `farrier exit-maintenance {id} --uncordon`"
            );
            journal.write_line(line).await;
        }
        let holds = match (expect, &observed) {
            (ClusterExpectation::Ready, Some(node)) => node.ready && node.schedulable,
            (ClusterExpectation::Ready, None) => false,
            (ClusterExpectation::Drained, _) => outcome
                .evidence
                .iter()
                .any(|one| one.condition == ConditionType::Drained && one.status),
        };
        match (holds || advisory, call.verb) {
            (true, _) => Ok(ProviderAnswer::Done(outcome)),
            (false, CallVerb::Observe) => Ok(ProviderAnswer::Differs(outcome.message)),
            (false, CallVerb::GetStatus) => Ok(ProviderAnswer::NeverStarted),
            (false, CallVerb::Perform | CallVerb::Follow | CallVerb::Stop) => {
                Err(Fault::new(FaultCode::NotInCluster, outcome.message))
            }
        }
    }

    pub(super) async fn join(
        &self,
        request: TargetCall<'_>,
        joining: JoinRequest<'_>,
    ) -> CallResult {
        let TargetCall { target, call, .. } = request;
        // Stored first, so that the undo knows what this run did not do.
        let noted = self.begin_or_recall(call, CallCheckpoint::Join { token: None }).await?;
        let api = self.cluster(joining.cluster).await?;
        match (call.verb, noted) {
            (CallVerb::Perform, None | Some(StoredCheckpoint::Checkpoint(_))) => {
                let host = self.hosts.connect(target).await?;
                if let Some(node) = self.find_member(request, &api, &host).await? {
                    let line = format!("join: {} is a member already", node.name);
                    request.journal.write_line(line).await;
                    return joining.complete(&api, node, request).await;
                }
                self.begin_join(request, &api, &host, joining.kubeadm).await?;
                self.finish_join(request, &api, joining).await
            }
            (CallVerb::Perform, Some(StoredCheckpoint::StoppedBeforeStart)) => {
                Err(stopped_before_start(&call.key))
            }
            (
                CallVerb::Follow | CallVerb::GetStatus,
                None
                | Some(
                    StoredCheckpoint::StoppedBeforeStart
                    | StoredCheckpoint::Checkpoint(CallCheckpoint::Join { token: None }),
                ),
            ) => Ok(ProviderAnswer::NeverStarted),
            (CallVerb::Follow, Some(StoredCheckpoint::Checkpoint(_))) => {
                self.finish_join(request, &api, joining).await
            }
            (CallVerb::GetStatus, Some(StoredCheckpoint::Checkpoint(_))) => {
                self.join_status(target, call).await
            }
            (CallVerb::Observe, _) => {
                let (_, node) = find_node(&api, target).await?;
                let observed = observe_node(&api, joining.cluster, node.as_ref()).await?;
                Ok(match node {
                    Some(node) => match joining.missing(&node) {
                        None => ProviderAnswer::Done(observed),
                        Some(missing) => ProviderAnswer::Differs(missing),
                    },
                    None => ProviderAnswer::Differs(observed.message),
                })
            }
            (CallVerb::Stop, _) => {
                let noted = self.bar(&call.key).await?;
                let stopped = self.stop_job(target, call).await?;
                if let Some(CallCheckpoint::Join { token: Some(token) }) = noted {
                    api.delete_token(&token).await?;
                }
                Ok(stopped)
            }
        }
    }

    /// The checkpoint only records the token; the host knows whether kubeadm was started with it.
    async fn join_status(&self, target: &Target, call: &ProviderCall) -> CallResult {
        let host = self.hosts.connect(target).await?;
        Ok(match host.status(call.key.as_str()).await? {
            JobStatus::NeverStarted
            | JobStatus::StoppedBeforeStart
            | JobStatus::Lost(LostReason::NotLaunched) => ProviderAnswer::NeverStarted,
            // `Follow` reports how it ended, and deletes its token.
            JobStatus::Running { .. }
            | JobStatus::Ended(_)
            | JobStatus::Lost(LostReason::Rebooted | LostReason::Gone) => ProviderAnswer::UnderWay,
        })
    }

    /// The node of a host that belongs to the cluster already: kubeadm would refuse to join it
    /// again. None while this call's own join is under way.
    async fn find_member(
        &self,
        request: TargetCall<'_>,
        api: &Cluster,
        host: &Host,
    ) -> Result<Option<Node>> {
        let TargetCall { target, call, .. } = request;
        let (_, node) = find_node(api, target).await?;
        let Some(node) = node else { return Ok(None) };
        match host.status(call.key.as_str()).await? {
            JobStatus::NeverStarted | JobStatus::Lost(LostReason::NotLaunched) => {}
            JobStatus::StoppedBeforeStart
            | JobStatus::Running { .. }
            | JobStatus::Ended(_)
            | JobStatus::Lost(LostReason::Rebooted | LostReason::Gone) => return Ok(None),
        }
        let command = format!("{PRELUDE}; {JOINED_TO}");
        let output = host.run(&command, b"", self.settings.ssh.call_timeout).await?;
        let server = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        if server.is_empty() {
            return Ok(None);
        }
        let own = format!("https://{}", api.join_address().await?);
        Ok(Some(node).filter(|_| server == own))
    }

    /// Starts the join unless the host has already started it. Stores the token before creating it.
    async fn begin_join(
        &self,
        request: TargetCall<'_>,
        api: &Cluster,
        host: &Host,
        kubeadm: &KubeadmOptions,
    ) -> Result<()> {
        let TargetCall { target, call, journal } = request;
        match host.status(call.key.as_str()).await? {
            JobStatus::NeverStarted | JobStatus::Lost(LostReason::NotLaunched) => {}
            JobStatus::StoppedBeforeStart
            | JobStatus::Running { .. }
            | JobStatus::Ended(_)
            | JobStatus::Lost(LostReason::Rebooted | LostReason::Gone) => return Ok(()),
        }
        check_config(kubeadm)?;
        let token = api.draw_token()?;
        let checkpoint = CallCheckpoint::Join { token: Some(token.id.clone()) };
        match self.begin(&call.key, checkpoint.clone()).await? {
            None => {}
            Some(StoredCheckpoint::StoppedBeforeStart) => {
                return Err(stopped_before_start(&call.key));
            }
            Some(StoredCheckpoint::Checkpoint(before)) => {
                // A former attempt stored a token and never started: delete that token.
                if let CallCheckpoint::Join { token: Some(token) } = &before {
                    api.delete_token(token).await?;
                }
                self.compare_and_swap(&call.key, before, checkpoint).await?;
            }
        }
        let material = api.join_material(&token, TOKEN_TTL).await?;
        let name = target.node_name();
        journal.write_line(format!("join: kubeadm joins the cluster as {name}")).await;
        let begun = match join_script(&material, kubeadm, &name) {
            Ok(script) => host.start(call.key.as_str(), script.expose_secret()).await.map(drop),
            Err(fault) => Err(fault),
        };
        if matches!(&begun, Err(fault) if fault.code.effect_outcome() == EffectOutcome::NotApplied)
        {
            api.delete_token(&token.id).await?;
        }
        begun
    }

    /// Follows the join to its end, deletes its token, waits for the node, and sets its labels.
    async fn finish_join(
        &self,
        request: TargetCall<'_>,
        api: &Cluster,
        joining: JoinRequest<'_>,
    ) -> CallResult {
        let TargetCall { target, call, journal } = request;
        let host = self.hosts.connect(target).await.map_err(possibly_happened)?;
        let ended = follow_job(&host, call.key.as_str(), call.log_offset_bytes, journal).await;
        let over =
            !matches!(&ended, Err(fault) if fault.code.effect_outcome() == EffectOutcome::Unknown);
        if let (
            true,
            Some(StoredCheckpoint::Checkpoint(CallCheckpoint::Join { token: Some(token) })),
        ) = (over, self.checkpoint(&call.key).await?)
        {
            api.delete_token(&token).await.map_err(possibly_happened)?;
        }
        let answer = match ended {
            Err(fault) if fault.code == FaultCode::CommandFailed => {
                return Err(with_last_lines(fault, &host, call.key.as_str()).await);
            }
            other => other?,
        };
        if !matches!(answer, ProviderAnswer::Done(_)) {
            return Ok(answer);
        }
        // The node appears shortly after kubeadm has ended. The step's timeout limits the wait.
        loop {
            let (_, node) = find_node(api, target).await.map_err(possibly_happened)?;
            if let Some(node) = node {
                let answer = joining.complete(api, node.clone(), request).await?;
                let message = "Farrier joined the machine to the cluster";
                api.record_event(&node, NodeEvent::Joined, call.key.run(), message).await;
                return Ok(answer);
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    pub(super) async fn leave(&self, request: TargetCall<'_>, cluster: &str) -> CallResult {
        let TargetCall { target, call, .. } = request;
        let api = self.cluster(cluster).await?;
        if call.verb != CallVerb::Stop && self.joined_nothing(call).await? {
            let (_, node) = find_node(&api, target).await?;
            let observed = observe_node(&api, cluster, node.as_ref()).await?;
            let message = format!("{}: this operation did not join it", observed.message);
            return Ok(ProviderAnswer::Done(CallOutcome { message, ..observed }));
        }
        let reset = format!("{PRELUDE}; {RESET}");
        match call.verb {
            CallVerb::Observe => {
                let (_, node) = find_node(&api, target).await?;
                let observed = node_outcome(cluster, node.as_ref(), None);
                Ok(match node {
                    None => ProviderAnswer::Done(observed),
                    Some(_) => ProviderAnswer::Differs(observed.message),
                })
            }
            CallVerb::Perform | CallVerb::Follow => {
                let answer = self.command(request, &reset).await?;
                if !matches!(answer, ProviderAnswer::Done(_)) {
                    return Ok(answer);
                }
                let (name, _) = find_node(&api, target).await?;
                api.remove_node(&name).await?;
                Ok(ProviderAnswer::Done(node_outcome(cluster, None, None)))
            }
            CallVerb::GetStatus => {
                let answer = self.command(request, &reset).await?;
                let left = matches!(answer, ProviderAnswer::Done(_));
                // The host has left; `Follow` deletes the Node object.
                let under_way = left && find_node(&api, target).await?.1.is_some();
                Ok(if under_way { ProviderAnswer::UnderWay } else { answer })
            }
            CallVerb::Stop => self.command(request, &reset).await,
        }
    }

    /// True if the join that this call undoes was called and never started kubeadm: its host is as
    /// it was before. False without a checkpoint: what became of the join is not known.
    async fn joined_nothing(&self, call: &ProviderCall) -> Result<bool> {
        let undo = &call.key;
        let Some(step) = undo.step().strip_prefix(UNDO_PREFIX) else { return Ok(false) };
        if let Some(changed) = self.join_changed_host(undo.run(), step).await? {
            return Ok(!changed);
        }
        let effect::Effect::Leave { joined_by: Some(original), .. } = &call.effect else {
            return Ok(false);
        };
        Ok(self.join_changed_host(original.as_str(), step).await? == Some(false))
    }

    /// True if an attempt of the run's join started kubeadm. None: none was called.
    async fn join_changed_host(&self, run: &str, step: &str) -> Result<Option<bool>> {
        let (mut called, mut gap) = (false, 0);
        for attempt in 1.. {
            let key = EffectKey::trusted(format!("{run}/{step}/{attempt}"));
            match self.checkpoint(&key).await? {
                None if gap == MAX_GAP => break,
                None => gap += 1,
                Some(
                    StoredCheckpoint::StoppedBeforeStart
                    | StoredCheckpoint::Checkpoint(CallCheckpoint::Join { token: None }),
                ) => (called, gap) = (true, 0),
                Some(StoredCheckpoint::Checkpoint(_)) => return Ok(Some(true)),
            }
        }
        Ok(called.then_some(false))
    }
}

/// The fault of a join, with the last lines that kubeadm wrote.
async fn with_last_lines(fault: Fault, host: &Host, key: &str) -> Fault {
    let (journal, mut output) = Journal::new();
    let reader = tokio::spawn(async move {
        let mut text = Vec::new();
        while let Some(piece) = output.recv().await {
            text.extend(piece.data);
        }
        text
    });
    let read = host.follow_output(key, 0, &journal).await;
    drop(journal);
    let text = reader.await.unwrap_or_default();
    match (read, last_lines(&String::from_utf8_lossy(&text))) {
        (Ok(_), lines) if !lines.is_empty() => {
            Fault { message: format!("kubeadm failed: {lines}"), ..fault }
        }
        (Ok(_) | Err(_), _) => fault,
    }
}

/// Lines of kubeadm that are the same for every failure.
const ADVICE: [&str; 2] = ["To see the stack trace", "[preflight] If you know what you are doing"];

/// The last lines of kubeadm that say something.
fn last_lines(text: &str) -> String {
    let says =
        |line: &&str| !line.is_empty() && !ADVICE.iter().any(|advice| line.starts_with(advice));
    let lines: Vec<String> = text
        .lines()
        .map(str::trim)
        .filter(says)
        .map(|line| line.chars().take(MAX_LINE_CHARS).collect())
        .collect();
    lines[lines.len().saturating_sub(MAX_LAST_LINES)..].join("; ")
}

impl JoinRequest<'_> {
    /// Gives the node its labels and taints, and reports it.
    async fn complete(&self, api: &Cluster, node: Node, request: TargetCall<'_>) -> CallResult {
        let node = self.apply_labels_and_taints(api, node, request.journal).await;
        let node = node.map_err(possibly_happened)?;
        let observed = observe_node(api, self.cluster, Some(&node)).await;
        Ok(ProviderAnswer::Done(observed.map_err(possibly_happened)?))
    }

    /// Adds labels and taints to those of the node, and reads them back. Idempotent.
    async fn apply_labels_and_taints(
        &self,
        api: &Cluster,
        node: Node,
        journal: &Journal,
    ) -> Result<Node> {
        if self.missing(&node).is_none() {
            return Ok(node);
        }
        if !self.labels.is_empty() {
            let labels =
                self.labels.iter().map(|(key, value)| (key.clone(), Some(value.clone()))).collect();
            api.label(&node.name, &labels).await?;
            let words: Vec<String> =
                self.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
            journal.write_line(format!("join: labelled {}", words.join(", "))).await;
        }
        if !self.taints.is_empty() {
            let taints: Vec<Taint> = self.taints.iter().map(taint).collect();
            api.taint(&node.name, &taints, &[]).await?;
            let words: Vec<String> = self.taints.iter().map(ToString::to_string).collect();
            journal.write_line(format!("join: tainted {}", words.join(", "))).await;
        }
        let observed = api.node(&node.name).await?;
        match observed {
            Some(observed) => match self.missing(&observed) {
                None => Ok(observed),
                Some(missing) => Err(Fault::new(FaultCode::ReadBackDiffers, missing)),
            },
            None => {
                let message = node_outcome(self.cluster, None, None).message;
                Err(Fault::new(FaultCode::NotInCluster, message))
            }
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
            .filter(|desired| !node.taints.contains(&taint(desired)))
            .map(|taint| format!("the taint {taint}"));
        let missing: Vec<String> = labels.chain(taints).collect();
        (!missing.is_empty())
            .then(|| format!("its node in {} is without {}", self.cluster, missing.join(", ")))
    }
}

fn taint(desired: &effect::Taint) -> Taint {
    Taint {
        key: desired.key.clone(),
        value: Some(desired.value.clone()).filter(|value| !value.is_empty()),
        effect: match desired.effect {
            TaintEffect::NoSchedule => NodeTaintEffect::NoSchedule,
            TaintEffect::PreferNoSchedule => NodeTaintEffect::PreferNoSchedule,
            TaintEffect::NoExecute => NodeTaintEffect::NoExecute,
        },
    }
}
