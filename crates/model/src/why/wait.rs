//! The wait of a run: its peer, since when, the last message of the peer, and the normal duration.
//!
//! A wait lasts from the start of a step to its end. The calls, attempts and restarts of the
//! server in between do not begin it anew.

use super::RunContext;
use crate::condition::ConditionType;
use crate::deploy::{Deployment, DeploymentStage};
use crate::effect::{CallVerb, Effect};
use crate::id::{PlanId, RunId};
use crate::machine::MachineProblem;
use crate::node::StageExecutor;
use crate::run::{Run, StepPhase, StepState, Workflow};
use crate::target::TargetId;
use crate::time::{Timestamp, format_duration};
use std::time::Duration;

/// The last signs of life of the peers that a run waits for.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PeerContacts {
    /// The replica that has claimed the run.
    pub replica: Option<ReplicaContact>,
    /// The agent of the run's node.
    pub agent: Option<AgentContact>,
    /// The network boot of the current attempt.
    pub deployment: Option<Box<Deployment>>,
    /// The child runs of the current step that are at work.
    pub children: Vec<ChildProgress>,
    /// The last line in the log of the current step.
    pub last_line: Option<LastLine>,
    /// The usual duration of the current step on this hardware model.
    pub usual: Option<UsualDuration>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplicaContact {
    pub name: String,
    pub heartbeat_at: Option<Timestamp>,
    /// The end of its lease. Another replica takes over after it.
    pub expires_at: Timestamp,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentContact {
    /// None: no heartbeat yet.
    pub heartbeat_at: Option<Timestamp>,
    /// The time without a heartbeat after which its lease is over.
    pub silence: Duration,
    /// When its session was revoked, if it has not enrolled again.
    pub revoked_at: Option<Timestamp>,
}

impl AgentContact {
    /// Since when nothing can be expected of the agent: its lease is over, or its session is
    /// revoked. None: it is heard, or has not been heard yet.
    pub fn lost_since(&self, now: Timestamp) -> Option<Timestamp> {
        let silent = self.heartbeat_at.filter(|at| now.since(*at) > self.silence);
        self.revoked_at.or(silent)
    }
}

/// Says that the machine is down while a run waits for what a cluster does with its node: pods on a
/// machine that is off do not end.
pub(super) fn down_under_cluster_work(run: &Run, context: RunContext) -> Option<String> {
    let machine = context.machine?;
    let step = run.progress.current().filter(|_| !run.ended())?;
    let known = machine.conditions.get(ConditionType::Reachable).filter(|known| !known.status)?;
    run.effect(step)?.cluster()?;
    let problem = MachineProblem::Unreachable(known).describe();
    Some(format!("the node is on {}: {problem}", machine.id))
}

/// True if the current step of a run is a task of the node's agent.
pub fn waits_for_agent(run: &Run) -> bool {
    let step = run.progress.current().filter(|_| !run.ended());
    let effect = step.and_then(|step| run.effect(step));
    matches!(effect, Some(Effect::Stage { stage, .. })
        if matches!(stage.executor(), StageExecutor::Task(_)))
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChildProgress {
    pub target: TargetId,
    pub run: RunId,
    pub step: String,
    pub since: Timestamp,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LastLine {
    pub at: Timestamp,
    pub text: String,
}

/// The median and the 95th percentile of the recorded durations of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsualDuration {
    pub median: Duration,
    pub p95: Duration,
    pub samples: usize,
    /// The hardware model; empty: unknown.
    pub model: String,
}

/// The number of durations that are kept of one step on one hardware model.
pub const MAX_SAMPLES: usize = 100;
/// With fewer durations than this, the deadline of the step is what is normal.
pub const MIN_SAMPLES: usize = 10;

impl UsualDuration {
    /// None: too few durations are recorded.
    pub fn of(mut durations: Vec<Duration>, model: &str) -> Option<Self> {
        if durations.len() < MIN_SAMPLES {
            return None;
        }
        durations.sort_unstable();
        let samples = durations.len();
        // The nearest rank: the smallest duration that is not exceeded by this share of them.
        let at = |percent: usize| durations.get((samples * percent).div_ceil(100) - 1).copied();
        Some(Self { median: at(50)?, p95: at(95)?, samples, model: model.into() })
    }

    fn words(&self) -> String {
        let (median, p95) = (format_duration(self.median), format_duration(self.p95));
        let on = match self.model.as_str() {
            "" => String::new(),
            model => format!(" on {model}"),
        };
        format!("{median}, up to {p95} (the last {}{on})", self.samples)
    }
}

/// The name under which the durations of a step are recorded.
pub fn duration_key(run: &Run, step: &StepState) -> String {
    named_duration_key(&run.spec.plan_id, &run.step_name(step))
}

/// Like [`duration_key`], for the name of a step of a plan.
pub fn named_duration_key(plan: &PlanId, step: &str) -> String {
    format!("{plan}/{step}")
}

/// The steps that a commit has ended successfully, with the duration of each wait. A step that
/// was adopted did not run.
pub fn ended_waits(before: &Run, after: &Run) -> Vec<(String, Duration)> {
    let done = |step: &StepState| step.state == StepPhase::Succeeded;
    let ended = after.progress.steps.iter().enumerate().filter(|(index, step)| {
        let was_done = before.progress.steps.get(*index).is_some_and(done);
        done(step) && step.attempt > 0 && !was_done
    });
    ended
        .filter_map(|(_, step)| {
            let since = step.waiting_since.or(step.started_at)?;
            Some((duration_key(after, step), step.finished_at?.since(since)))
        })
        .collect()
}

/// The reason why a run waits, and the normal duration of the wait.
pub(super) struct Wait {
    pub what: String,
    pub since: Timestamp,
    pub normal: Duration,
    /// The normal duration in words.
    pub words: String,
}

/// The normal time for which a run waits for a worker to claim it.
const PENDING_NORMAL: Duration = Duration::from_secs(5);
const STOP_NORMAL: Duration = Duration::from_secs(30);

impl Wait {
    fn new(what: String, since: Timestamp, normal: Duration) -> Self {
        Self { what, since, normal, words: format!("up to {}", format_duration(normal)) }
    }

    pub fn overdue(&self, now: Timestamp) -> bool {
        now.since(self.since) > self.normal
    }
}

/// None: the run has ended.
pub(super) fn waiting(run: &Run, context: RunContext, now: Timestamp) -> Option<Wait> {
    match run.progress.workflow {
        Workflow::Pending => {
            let what = "a worker to take it".into();
            Some(Wait::new(what, run.spec.created_at, PENDING_NORMAL))
        }
        Workflow::Running | Workflow::Compensating => Some(match run.progress.current() {
            Some(step) => step_wait(run, step, context, now),
            None => {
                let since = run.progress.started_at.unwrap_or(run.spec.created_at);
                Wait::new("a worker to conclude it".into(), since, PENDING_NORMAL)
            }
        }),
        Workflow::Completed
        | Workflow::FailedRetryable
        | Workflow::FailedManualIntervention
        | Workflow::Cancelled
        | Workflow::Reconciled => None,
    }
}

fn step_wait(run: &Run, step: &StepState, context: RunContext, now: Timestamp) -> Wait {
    let name = run.step_name(step);
    let since = step.waiting_since.or(step.started_at);
    let since = since.or(run.progress.started_at).unwrap_or(run.spec.created_at);
    let verb = step.intent.as_ref().map(|intent| intent.verb);
    if let (Some(CallVerb::Stop), Some(intent)) = (verb, &step.intent) {
        let what = format!("{} to stop step {name}", performer(run, step));
        return Wait::new(what, intent.at, STOP_NORMAL);
    }
    let what = match (dead_replica(context, now), verb) {
        (Some(replica), _) => replica,
        (None, None) => before_call(run, step, now),
        (None, Some(CallVerb::Perform | CallVerb::Follow | CallVerb::Stop)) => {
            at_work(run, step, context, now)
        }
        (None, Some(CallVerb::GetStatus)) => {
            format!("{} to report what became of step {name}", performer(run, step))
        }
        (None, Some(CallVerb::Observe)) => {
            format!("{} to report whether step {name} already holds", performer(run, step))
        }
    };
    let timeout = run.plan_step(step).map_or(Duration::ZERO, |plan| plan.timeout());
    match context.contacts.and_then(|contacts| contacts.usual.as_ref()) {
        Some(usual) => {
            let normal = usual.p95.max(PENDING_NORMAL);
            Wait { what, since, normal, words: usual.words() }
        }
        None => Wait::new(what, since, timeout),
    }
}

/// No call is under way: the step starts, or waits for its next attempt.
fn before_call(run: &Run, step: &StepState, now: Timestamp) -> String {
    let name = run.step_name(step);
    let Some(at) = step.not_before else { return format!("step {name} to start") };
    let pause = format_duration(at.since(now));
    let reason = match step.message.as_str() {
        "" => String::new(),
        message => format!(": {message}"),
    };
    let attempt = step.attempt;
    match (step.next_verb, step.busy_since) {
        (CallVerb::Perform, Some(since)) => {
            let timeout = run.plan_step(step).map_or(Duration::ZERO, |plan| plan.timeout());
            let left = format_duration((since + timeout).since(now));
            format!(
                "{}, which is busy{reason} (step {name} is tried again in {pause}, and for {left} \
                 more)",
                performer(run, step)
            )
        }
        (CallVerb::Perform, None) => format!(
            "the next attempt at step {name} (in {pause}; attempt {attempt} failed{reason})"
        ),
        (CallVerb::Follow | CallVerb::GetStatus | CallVerb::Observe | CallVerb::Stop, _) => {
            format!("the next look at step {name} (in {pause}{reason})")
        }
    }
}

/// The claiming replica, if its lease is over.
fn dead_replica(context: RunContext, now: Timestamp) -> Option<String> {
    let ReplicaContact { name, heartbeat_at, expires_at } = context.contacts?.replica.as_ref()?;
    if now <= *expires_at {
        return None;
    }
    let silence = heartbeat_at.map_or(Duration::ZERO, |at| now.since(at));
    let (silence, over) = (format_duration(silence), format_duration(now.since(*expires_at)));
    Some(format!(
        "replica {name}, which has claimed it: its last heartbeat was {silence} ago and its lease \
         ended {over} ago; another replica takes over within seconds"
    ))
}

/// The peer that executes the step.
fn performer(run: &Run, step: &StepState) -> String {
    let target = &run.spec.target;
    let noun = target.kind.noun();
    let cluster = |name: &str| match name {
        "" => format!("the {noun}"),
        name => format!("the cluster {name}"),
    };
    match run.effect(step) {
        Some(Effect::Stage { stage, node, site, .. }) => match (stage.executor(), site) {
            (StageExecutor::Task(_) | StageExecutor::Enrollment, _) => {
                format!("the agent of {node}")
            }
            (StageExecutor::Maas, Some(site)) => format!("the MAAS of {site}"),
            (StageExecutor::Maas, None) | (StageExecutor::Record(_), _) => "a worker".into(),
        },
        Some(
            Effect::Drain { cluster_ref, .. }
            | Effect::Join { cluster_ref, .. }
            | Effect::Leave { cluster_ref, .. }
            | Effect::Verify { cluster_ref, .. }
            | Effect::Uncordon { cluster_ref, .. },
        ) => cluster(&cluster_ref),
        Some(Effect::Ssh { .. } | Effect::Net { .. }) => format!("the host of {target}"),
        Some(
            Effect::Reboot { .. }
            | Effect::Netboot { .. }
            | Effect::Power { .. }
            | Effect::Rma { .. }
            | Effect::Device { .. },
        ) => format!("the BMC of {target}"),
        Some(Effect::Repave { .. } | Effect::ChildRuns { .. }) | None => format!("the {noun}"),
    }
}

/// A call is under way.
fn at_work(run: &Run, step: &StepState, context: RunContext, now: Timestamp) -> String {
    let name = run.step_name(step);
    let plain = format!("{} to finish step {name}", performer(run, step));
    let Some(contacts) = context.contacts else { return plain };
    if let Some(slowest) = contacts.children.iter().min_by_key(|child| child.since) {
        let ChildProgress { target, run, step, since } = slowest;
        let took = format_duration(now.since(*since));
        let count = contacts.children.len();
        return format!(
            "{target} to finish {step} ({run}, for {took}), the slowest of {count} at work in step \
             {name}"
        );
    }
    if let Some(deployment) = &contacts.deployment {
        return boot_wait(deployment, &name, now);
    }
    let at_agent = matches!(run.effect(step), Some(Effect::Stage { stage, .. })
        if matches!(stage.executor(), StageExecutor::Task(_) | StageExecutor::Enrollment));
    match contacts.agent.as_ref().filter(|_| at_agent) {
        Some(agent) => format!("{plain} ({})", agent_words(agent, now)),
        None => plain,
    }
}

/// The last sign of life of an agent.
pub(crate) fn agent_words(agent: &AgentContact, now: Timestamp) -> String {
    if let Some(at) = agent.revoked_at {
        let ago = format_duration(now.since(at));
        return format!("its session was revoked {ago} ago, and it has not enrolled again");
    }
    let Some(at) = agent.heartbeat_at else {
        return "it has never sent a heartbeat".into();
    };
    let silent = now.since(at);
    let words = format_duration(silent);
    match silent > agent.silence {
        true => format!("silent for {words}, its lease is over"),
        false => format!("its last heartbeat was {words} ago"),
    }
}

/// The progress of a network boot and of the deploy environment.
fn boot_wait(deployment: &Deployment, step: &str, now: Timestamp) -> String {
    let ago = |at: Timestamp| format_duration(now.since(at));
    match (deployment.stage, deployment.boot_requested_at, deployment.last_report_at) {
        (DeploymentStage::Prepared, _, _) => {
            format!("the BMC of {} to switch it off, for step {step}", deployment.machine_id)
        }
        (DeploymentStage::Requested, None, _) => format!(
            "a network boot request from {}, for step {step} (none so far)",
            deployment.macs.join(" or ")
        ),
        (DeploymentStage::Requested, Some(at), _) => format!(
            "the deploy environment to report, for step {step} (its boot request came {} ago)",
            ago(at)
        ),
        (DeploymentStage::Released | DeploymentStage::Installed, _, _) => {
            format!("the installed system of {} to answer, for step {step}", deployment.machine_id)
        }
        (
            DeploymentStage::Claimed | DeploymentStage::Writing | DeploymentStage::Installing,
            _,
            heard,
        ) => {
            let heard = heard.map_or_else(|| "never".into(), |at| format!("{} ago", ago(at)));
            let percent = deployment.percent();
            format!("the deploy environment, at {percent} % of step {step} (last report {heard})")
        }
        (
            DeploymentStage::Failed(_) | DeploymentStage::Finished | DeploymentStage::Closed,
            _,
            _,
        ) => format!("step {step} to end after its deployment"),
    }
}

/// True if an active run has waited longer than normal, for the metric of stuck objects.
pub fn overdue(run: &Run, usual: Option<&UsualDuration>, now: Timestamp) -> bool {
    let contacts = PeerContacts { usual: usual.cloned(), ..PeerContacts::default() };
    let context = RunContext { contacts: Some(&contacts), ..RunContext::default() };
    waiting(run, context, now).is_some_and(|wait| wait.overdue(now))
}
