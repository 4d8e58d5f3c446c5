//! Conversion of plans and their steps.

use super::word_from;
use model::effect::{
    ClusterExpectation, DesiredPower, DeviceWork, DrainOptions, Effect, KubeadmOptions,
    NetbootMode, PowerOffPolicy, RebootMode, RmaAction, Taint, TaintEffect,
};
use model::id::PlanId;
use model::plan::{OnFailure, Plan, RunStep, Step};
use model::refusal::Refusal;
use proto::words::WireEnum;
use proto::{v1, words};
use providers::kubernetes::find_config_problem;

pub(in crate::grpc) fn plan(plan: &Plan) -> v1::Plan {
    let steps = plan.steps.iter().map(|step| v1::Step {
        name: step.name.clone(),
        timeout_seconds: step.timeout_seconds.map(|seconds| seconds as i32),
        max_retries: step.max_retries.map(|retries| retries as i32),
        kind: kind(&step.effect),
    });
    v1::Plan {
        plan_id: plan.id.to_string(),
        display_name: plan.display_name.clone(),
        steps: steps.collect(),
        default_for: plan.default_for.map(|kind| kind.run_word().to_string()).unwrap_or_default(),
        built_in: plan.built_in,
        on_failure: match plan.on_failure {
            OnFailure::KeepPhase => v1::OnFailure::Unspecified.into(),
            OnFailure::EnterMaintenance => v1::OnFailure::EnterMaintenance.into(),
        },
    }
}

pub(in crate::grpc) fn run_step(step: &RunStep) -> v1::Step {
    v1::Step {
        name: step.name.clone(),
        timeout_seconds: Some(step.timeout_seconds as i32),
        max_retries: Some(step.max_retries as i32),
        kind: kind(&step.effect),
    }
}

fn kind(effect: &Effect) -> Option<v1::step::Kind> {
    use v1::step::Kind as K;
    Some(match effect.clone() {
        Effect::Ssh { command, destructive } => K::Ssh(v1::SshCommand { command, destructive }),
        Effect::Reboot { mode, power_off } => {
            let mode = match mode {
                RebootMode::Bmc => "bmc",
                RebootMode::InBand => "in_band",
            };
            let (graceful_seconds, force) = power_off_fields(power_off);
            K::Reboot(v1::Reboot { mode: mode.into(), graceful_seconds, force })
        }
        Effect::Netboot { mode } => {
            let mode = match mode {
                NetbootMode::Pxe => "PXE",
                NetbootMode::Disk => "DISK",
            };
            K::Netboot(v1::SetNetboot { mode: mode.into() })
        }
        Effect::Repave { image } => K::Repave(v1::RepaveImage { image }),
        Effect::Join { cluster_ref, labels, taints, kubeadm } => K::Join(v1::KubeadmJoin {
            cluster_ref,
            labels: labels.into_iter().collect(),
            taints: taints.into_iter().map(taint).collect(),
            kubeadm: kubeadm_options(kubeadm),
        }),
        Effect::Verify { cluster_ref, expect, advisory } => {
            let expect = match expect {
                ClusterExpectation::Ready => v1::ClusterExpectation::Ready,
                ClusterExpectation::Drained => v1::ClusterExpectation::Drained,
            };
            K::Verify(v1::VerifyInCluster { cluster_ref, expect: expect.into(), advisory })
        }
        Effect::Net { document } => K::Net(v1::NetReconfig { document }),
        Effect::Rma { action, power_off } => {
            let action = match action {
                RmaAction::Record => v1::RmaActionKind::Record,
                RmaAction::PowerOff => v1::RmaActionKind::PowerOff,
                RmaAction::Mark => v1::RmaActionKind::Mark,
            };
            let (graceful_seconds, force) = power_off_fields(power_off);
            K::Rma(v1::RmaAction { action: action.into(), graceful_seconds, force })
        }
        Effect::Drain { cluster_ref, deadline_seconds, options } => {
            let deadline_seconds = deadline_seconds.map(|seconds| seconds as i32);
            let options = drain_options(options);
            K::Drain(v1::DrainNode { cluster_ref, deadline_seconds, options })
        }
        Effect::Uncordon { cluster_ref, .. } => K::Uncordon(v1::UncordonNode { cluster_ref }),
        Effect::Power { to, power_off } => {
            let (graceful_seconds, force) = power_off_fields(power_off);
            let to = words::value::<v1::DesiredPower>(to.as_str());
            K::Power(v1::SetPower { to, graceful_seconds, force })
        }
        Effect::Device { work } => K::Device(v1::DeviceStep {
            work: words::value::<v1::DeviceWork>(work.word()),
            details: details(&work).into_iter().map(|(key, value)| (key.into(), value)).collect(),
        }),
        Effect::Stage { stage, node, site, .. } => {
            let site_id = site.map(|site| site.to_string()).unwrap_or_default();
            K::Stage(v1::StageStep { stage: stage.to_string(), node_id: node.to_string(), site_id })
        }
        Effect::ChildRuns { group } => K::Parts(v1::PartsStep {
            target_ids: group.child_runs.iter().map(|part| part.target.to_string()).collect(),
            at_once: group.max_concurrent as i32,
        }),
        // Only an undo; a plan cannot contain it.
        Effect::Leave { .. } => return None,
    })
}

/// Unset where every option has its default.
fn kubeadm_options(options: KubeadmOptions) -> Option<v1::KubeadmOptions> {
    (!options.is_default()).then_some(v1::KubeadmOptions {
        config: options.config,
        arguments: options.arguments,
        ignore_preflight_errors: options.ignore_preflight_errors,
    })
}

/// Unset where every option has its default.
fn drain_options(options: DrainOptions) -> Option<v1::DrainOptions> {
    (!options.is_default()).then(|| v1::DrainOptions {
        unmanaged_pods: options.unmanaged_pods,
        emptydir: options.emptydir,
        grace_seconds: options.grace_seconds.map(|seconds| seconds as i32),
        selector: options.selector,
    })
}

fn details(work: &DeviceWork) -> Vec<(&'static str, String)> {
    match work.clone() {
        DeviceWork::Firmware { component, version, url, sha256 } => {
            vec![("component", component), ("version", version), ("url", url), ("sha256", sha256)]
        }
        DeviceWork::Read | DeviceWork::Configure => Vec::new(),
        DeviceWork::Check { firmware, power } => {
            let firmware =
                firmware.iter().map(|(component, version)| format!("{component}={version}"));
            let power = power.map(|power| ("power", power.as_str().to_string()));
            let firmware = ("firmware", firmware.collect::<Vec<_>>().join(", "));
            [firmware].into_iter().chain(power).collect()
        }
        DeviceWork::Fabric { to } => vec![("to", to.as_str().into())],
    }
}

fn power_off_fields(power_off: PowerOffPolicy) -> (Option<i32>, Option<bool>) {
    (power_off.graceful_seconds.map(|seconds| seconds as i32), power_off.force)
}

fn taint(taint: Taint) -> v1::NodeTaint {
    v1::NodeTaint { key: taint.key, value: taint.value, effect: taint.effect.as_str().into() }
}

/// A plan as a client or a file describes it.
pub(crate) fn plan_from(plan: v1::Plan) -> Result<Plan, Refusal> {
    let id = PlanId::parse_field(&plan.plan_id, "plan.plan_id")?;
    for (field, message) in
        [("plan.default_for", !plan.default_for.is_empty()), ("plan.built_in", plan.built_in)]
    {
        if message {
            let instead = "leave it out: the default plans are those that come with Farrier";
            return Err(Refusal::invalid(field, "cannot be set", instead));
        }
    }
    let steps = plan.steps.into_iter().enumerate();
    let steps = steps.map(|(index, step)| step_from(&format!("plan.steps[{index}]"), step));
    let on_failure = match v1::OnFailure::try_from(plan.on_failure) {
        Ok(v1::OnFailure::Unspecified) => OnFailure::KeepPhase,
        Ok(v1::OnFailure::EnterMaintenance) => OnFailure::EnterMaintenance,
        Err(_) => {
            let instead = "leave it out, or use ON_FAILURE_ENTER_MAINTENANCE";
            let problem = format!("is {}", plan.on_failure);
            return Err(Refusal::invalid("plan.on_failure", problem, instead));
        }
    };
    let plan = Plan {
        id,
        display_name: plan.display_name,
        steps: steps.collect::<Result<_, _>>()?,
        default_for: None,
        built_in: false,
        on_failure,
    };
    let plan = plan.checked()?;
    check_kubeadm_configs(&plan)?;
    Ok(plan)
}

/// Checks what the model cannot read: the YAML for kubeadm.
fn check_kubeadm_configs(plan: &Plan) -> Result<(), Refusal> {
    for (index, step) in plan.steps.iter().enumerate() {
        let Effect::Join { kubeadm, .. } = &step.effect else { continue };
        if let Some(problem) = find_config_problem(&kubeadm.config) {
            let field = format!("plan.steps[{index}].join.kubeadm.config");
            let instead = "give a JoinConfiguration of kubeadm, as YAML";
            return Err(Refusal::invalid(&field, problem, instead));
        }
    }
    Ok(())
}

fn step_from(field: &str, step: v1::Step) -> Result<Step, Refusal> {
    Ok(Step {
        timeout_seconds: parse_count(&format!("{field}.timeout_seconds"), step.timeout_seconds)?,
        max_retries: parse_count(&format!("{field}.max_retries"), step.max_retries)?,
        effect: effect_from(field, step.kind)?,
        name: step.name,
    })
}

fn parse_count(field: &str, value: Option<i32>) -> Result<Option<u32>, Refusal> {
    match value {
        None => Ok(None),
        Some(value) => u32::try_from(value).map(Some).map_err(|_| {
            let instead = "use a positive number, or leave it out for the server's default";
            Refusal::invalid(field, format!("is {value}"), instead)
        }),
    }
}

fn effect_from(field: &str, kind: Option<v1::step::Kind>) -> Result<Effect, Refusal> {
    use v1::step::Kind as K;
    let Some(kind) = kind else {
        let instead = "give it one of ssh, reboot, netboot, repave, join, verify, net, rma, drain, \
                       power, uncordon";
        return Err(Refusal::invalid(&format!("{field}.kind"), "is missing or unknown", instead));
    };
    Ok(match kind {
        K::Ssh(ssh) => Effect::Ssh { command: ssh.command, destructive: ssh.destructive },
        K::Reboot(reboot) => Effect::Reboot {
            mode: parse_choice(
                &format!("{field}.reboot.mode"),
                &reboot.mode,
                &[("bmc", RebootMode::Bmc), ("in_band", RebootMode::InBand)],
            )?,
            power_off: power_off_policy_from(
                &format!("{field}.reboot"),
                reboot.graceful_seconds,
                reboot.force,
            )?,
        },
        K::Netboot(netboot) => Effect::Netboot {
            mode: parse_choice(
                &format!("{field}.netboot.mode"),
                &netboot.mode,
                &[("PXE", NetbootMode::Pxe), ("DISK", NetbootMode::Disk)],
            )?,
        },
        K::Repave(repave) => Effect::Repave { image: repave.image },
        K::Join(join) => Effect::Join {
            cluster_ref: join.cluster_ref,
            labels: join.labels.into_iter().collect(),
            taints: taints_from(&format!("{field}.join.taints"), join.taints)?,
            kubeadm: kubeadm_from(join.kubeadm.unwrap_or_default()),
        },
        K::Verify(verify) => Effect::Verify {
            expect: expectation_from(&format!("{field}.verify.expect"), verify.expect)?,
            cluster_ref: verify.cluster_ref,
            advisory: verify.advisory,
        },
        K::Net(net) => Effect::Net { document: net.document },
        K::Rma(rma) => rma_from(&format!("{field}.rma"), &rma)?,
        K::Drain(drain) => Effect::Drain {
            deadline_seconds: parse_count(
                &format!("{field}.drain.deadline_seconds"),
                drain.deadline_seconds,
            )?,
            cluster_ref: drain.cluster_ref,
            options: drain_options_from(
                &format!("{field}.drain.options"),
                drain.options.unwrap_or_default(),
            )?,
        },
        K::Uncordon(uncordon) => Effect::Uncordon { cluster_ref: uncordon.cluster_ref, own: false },
        K::Device(_) | K::Parts(_) | K::Stage(_) => {
            let problem = "is started by the lifecycle of a device, a rack or a node only";
            let instead = "use the kinds of step that `farrier plans` shows";
            return Err(Refusal::invalid(field, problem, instead));
        }
        K::Power(power) => power_from(&format!("{field}.power"), &power)?,
    })
}

fn kubeadm_from(options: v1::KubeadmOptions) -> KubeadmOptions {
    let v1::KubeadmOptions { config, arguments, ignore_preflight_errors } = options;
    KubeadmOptions { config, arguments, ignore_preflight_errors }
}

/// Options of a drain. Their values are checked by the model.
pub(in crate::grpc) fn drain_options_from(
    field: &str,
    options: v1::DrainOptions,
) -> Result<DrainOptions, Refusal> {
    let v1::DrainOptions { unmanaged_pods, emptydir, grace_seconds, selector } = options;
    let grace_seconds = parse_count(&format!("{field}.grace_seconds"), grace_seconds)?;
    let options = DrainOptions { unmanaged_pods, emptydir, grace_seconds, selector };
    options.check(|name| format!("{field}.{name}"))?;
    Ok(options)
}

fn power_from(field: &str, power: &v1::SetPower) -> Result<Effect, Refusal> {
    let words = [("ON", DesiredPower::On), ("OFF", DesiredPower::Off)];
    Ok(Effect::Power {
        to: parse_value::<v1::DesiredPower, _>(&format!("{field}.to"), power.to, &words)?,
        power_off: power_off_policy_from(field, power.graceful_seconds, power.force)?,
    })
}

fn rma_from(field: &str, rma: &v1::RmaAction) -> Result<Effect, Refusal> {
    let words = [
        ("RECORD", RmaAction::Record),
        ("POWER_OFF", RmaAction::PowerOff),
        ("MARK", RmaAction::Mark),
    ];
    Ok(Effect::Rma {
        action: parse_value::<v1::RmaActionKind, _>(
            &format!("{field}.action"),
            rma.action,
            &words,
        )?,
        power_off: power_off_policy_from(field, rma.graceful_seconds, rma.force)?,
    })
}

fn power_off_policy_from(
    field: &str,
    graceful_seconds: Option<i32>,
    force: Option<bool>,
) -> Result<PowerOffPolicy, Refusal> {
    let graceful_seconds = parse_count(&format!("{field}.graceful_seconds"), graceful_seconds)?;
    Ok(PowerOffPolicy { graceful_seconds, force })
}

fn taints_from(field: &str, taints: Vec<v1::NodeTaint>) -> Result<Vec<Taint>, Refusal> {
    let words = TaintEffect::ALL.map(|effect| (effect.as_str(), effect));
    let taints = taints.into_iter().enumerate().map(|(index, taint)| {
        let effect = parse_required(&format!("{field}[{index}].effect"), &taint.effect, &words)?;
        Ok(Taint { key: taint.key, value: taint.value, effect })
    });
    taints.collect()
}

fn expectation_from(field: &str, expect: i32) -> Result<ClusterExpectation, Refusal> {
    let words = [("READY", ClusterExpectation::Ready), ("DRAINED", ClusterExpectation::Drained)];
    let word = word_from::<v1::ClusterExpectation>(field, expect)?;
    parse_choice(field, word.unwrap_or_default(), &words)
}

/// The model's value of an enum value that must be set.
fn parse_value<E: WireEnum, T: Copy>(
    field: &str,
    value: i32,
    words: &[(&str, T)],
) -> Result<T, Refusal> {
    parse_required(field, word_from::<E>(field, value)?.unwrap_or_default(), words)
}

/// The value of a word that must not be empty.
fn parse_required<T: Copy>(field: &str, name: &str, words: &[(&str, T)]) -> Result<T, Refusal> {
    if name.is_empty() {
        return Err(Refusal::missing(field));
    }
    parse_choice(field, name, words)
}

/// The value of a word; an empty word means the first value.
fn parse_choice<T: Copy>(field: &str, label: &str, words: &[(&str, T)]) -> Result<T, Refusal> {
    let found = words.iter().find(|(name, _)| label.is_empty() || *name == label);
    found.map(|(_, value)| *value).ok_or_else(|| {
        let names: Vec<_> = words.iter().map(|(name, _)| *name).collect();
        let shown: String = label.chars().take(64).collect();
        Refusal::invalid(field, format!("is {shown:?}"), format!("use {}", names.join(" or ")))
    })
}
