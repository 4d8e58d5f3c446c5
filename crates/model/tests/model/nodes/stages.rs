//! The stages of onboarding and of every mode, in the documents' order, and what each of them
//! adopts.

use super::{Work, run, run_of, stage_context};
use model::effect::Effect;
use model::gate::{Gate, Overrides};
use model::node::{
    AgentTaskContext, DecommissionMode, MaasState, NodeStage, NodeState, RecordStage,
    StageExecutor, TaskKind, adoption_reason, steps,
};
use std::collections::BTreeSet;

/// The stages of an onboarding: maas-node-states.md, section 4.2.
const ONBOARDING: [&str; 16] = [
    "load_site_config",
    "resolve_power_credentials",
    "create_or_find_in_maas",
    "commission_node",
    "wait_for_ready",
    "configure_storage",
    "apply_roce_phase2",
    "ensure_pxe_interface_auto",
    "render_cloud_init",
    "deploy_via_maas",
    "wait_for_deployed",
    "classify_deploy_failure",
    "recover_for_datasource_retry",
    "ensure_hardware_sync_configured",
    "wait_for_hardware_sync_healthy",
    "wait_for_agent_enrollment",
];

/// The stages of a decommission: maas-node-states.md, section 5.2.
const DECOMMISSION: [&str; 13] = [
    "disable_node",
    "force_release_allocations",
    "drain_node",
    "cleanup_storage",
    "scrub_gpu",
    "validate_clean_node",
    "load_site_config",
    "release_maas_node",
    "power_off_maas_node",
    "retire_gpuaas_node",
    "remove_gpuaas_node_record",
    "cleanup_secrets",
    "remove_maas_record",
];

/// The stages of each mode, from the catalogue of 5.2. A full decommission has all of them; its
/// agent uninstalls itself before the machine is released.
const MODES: [(&str, &[&str]); 7] = [
    (
        "soft_reset",
        &[
            "disable_node",
            "force_release_allocations",
            "drain_node",
            "cleanup_storage",
            "scrub_gpu",
            "validate_clean_node",
        ],
    ),
    (
        "reimage",
        &[
            "disable_node",
            "force_release_allocations",
            "drain_node",
            "cleanup_storage",
            "scrub_gpu",
            "validate_clean_node",
            "load_site_config",
            "release_maas_node",
            "cleanup_secrets",
        ],
    ),
    (
        "full_decommission",
        &[
            "disable_node",
            "force_release_allocations",
            "drain_node",
            "cleanup_storage",
            "scrub_gpu",
            "validate_clean_node",
            "retire_gpuaas_node",
            "remove_gpuaas_node_record",
            "load_site_config",
            "release_maas_node",
            "power_off_maas_node",
            "cleanup_secrets",
            "remove_maas_record",
        ],
    ),
    (
        "storage_cleanup",
        &[
            "disable_node",
            "force_release_allocations",
            "drain_node",
            "cleanup_storage",
            "validate_clean_node",
        ],
    ),
    ("drain", &["disable_node", "drain_node", "retire_gpuaas_node"]),
    ("retire", &["disable_node", "force_release_allocations", "drain_node", "retire_gpuaas_node"]),
    ("reactivate", &[]),
];

/// The executor of a stage, if it is not the MAAS of the site.
const AGENT: [(&str, Option<TaskKind>); 7] = [
    ("wait_for_agent_enrollment", None),
    ("force_release_allocations", Some(TaskKind::Release)),
    ("drain_node", Some(TaskKind::Drain)),
    ("cleanup_storage", Some(TaskKind::CleanupStorage)),
    ("scrub_gpu", Some(TaskKind::Scrub)),
    ("validate_clean_node", Some(TaskKind::Validate)),
    ("remove_gpuaas_node_record", Some(TaskKind::Uninstall)),
];
const RECORD: [(&str, RecordStage); 3] = [
    ("disable_node", RecordStage::Disable),
    ("retire_gpuaas_node", RecordStage::Retire),
    ("cleanup_secrets", RecordStage::CleanupSecrets),
];

fn stage_names(stages: &[NodeStage]) -> Vec<&'static str> {
    stages.iter().map(|stage| stage.as_str()).collect()
}

#[test]
fn the_catalogues_are_those_of_the_documents() {
    assert_eq!(stage_names(&NodeStage::ONBOARDING), ONBOARDING);
    assert_eq!(stage_names(&NodeStage::DECOMMISSION), DECOMMISSION);
    let all: BTreeSet<&str> = ONBOARDING.into_iter().chain(DECOMMISSION).collect();
    assert_eq!(all.len(), 28, "loading the site's configuration is in both");
    assert_eq!(NodeStage::NAMES.iter().copied().collect::<BTreeSet<_>>(), all);
    for name in all {
        let stage = NodeStage::parse(name).unwrap_or_else(|| panic!("{name}?"));
        assert_eq!(stage.to_string(), name);
        assert_eq!(serde_json::to_value(stage).unwrap(), name);
    }
}

#[test]
fn every_mode_has_its_stages_in_order() {
    assert_eq!(DecommissionMode::ALL.map(DecommissionMode::as_str), MODES.map(|row| row.0));
    let named = ["soft_reset", "reimage", "full_decommission", "storage_cleanup"];
    assert_eq!(DecommissionMode::DECOMMISSION.map(DecommissionMode::as_str), named);
    for (name, row) in MODES {
        let mode = DecommissionMode::parse(name).unwrap_or_else(|| panic!("{name}?"));
        let mut expected = row.to_vec();
        if name == "reimage" {
            // A released machine is installed again, from Ready on.
            expected.extend(&ONBOARDING[4..]);
        }
        assert_eq!(stage_names(&mode.stages(true)), expected, "{name}");
        let here = |name: &&str| {
            RECORD.iter().any(|(record, _)| record == name)
                || AGENT.iter().any(|(agent, _)| agent == name)
        };
        expected.retain(here);
        assert_eq!(stage_names(&mode.stages(false)), expected, "{name} without a MAAS");
    }
}

#[test]
fn every_stage_is_carried_out_somewhere() {
    for stage in NodeStage::ALL {
        let agent = AGENT.iter().find(|(name, _)| *name == stage.as_str());
        let record = RECORD.iter().find(|(name, _)| *name == stage.as_str());
        let expected = match (agent, record) {
            (Some((_, Some(task))), _) => StageExecutor::Task(*task),
            (Some((_, None)), _) => StageExecutor::Enrollment,
            (None, Some((_, record))) => StageExecutor::Record(*record),
            (None, None) => StageExecutor::Maas,
        };
        assert_eq!(stage.executor(), expected, "{stage}");
        assert_eq!(stage.task(), agent.and_then(|(_, task)| *task), "{stage}");
    }
    for (kind, name) in [
        (TaskKind::Drain, "node.drain"),
        (TaskKind::Uninstall, "node.uninstall"),
        (TaskKind::Release, "node.release"),
        (TaskKind::Scrub, "node.scrub"),
        (TaskKind::Validate, "node.validate"),
        (TaskKind::CleanupStorage, "node.cleanup_storage"),
    ] {
        assert_eq!(kind.as_str(), name);
        assert_eq!(serde_json::to_value(kind).unwrap(), name);
    }
}

#[test]
fn what_writes_a_disk_is_not_done_twice_on_hope() {
    let harmful = [
        "deploy_via_maas",
        "recover_for_datasource_retry",
        "release_maas_node",
        "power_off_maas_node",
        "remove_maas_record",
    ];
    // The agent may clean a node twice, and it erases.
    let erasing = [
        "deploy_via_maas",
        "recover_for_datasource_retry",
        "release_maas_node",
        "cleanup_storage",
        "scrub_gpu",
    ];
    let undoable = ["create_or_find_in_maas", "commission_node", "deploy_via_maas"];
    for step in Work::ALL.into_iter().flat_map(|work| steps(&work.stages(), &stage_context(""))) {
        let name = step.name.as_str();
        assert_eq!(step.effect.harmful_to_repeat(), harmful.contains(&name), "{name}");
        assert_eq!(step.effect.erases(), erasing.contains(&name), "{name}");
        let undo = step.effect.undo();
        assert_eq!(undo.is_some(), undoable.contains(&name), "{name}");
        let Some(undo) = undo else { continue };
        assert!(!undo.harmful_to_repeat() && undo.undo().is_none(), "{name}");
        // It releases the machine that the stage has installed.
        assert_eq!(undo.erases(), name == "deploy_via_maas", "{name}");
    }
}

/// Effect keys contain step names, so no name may repeat; and every attempt has a timeout.
#[test]
fn a_run_has_each_stage_once() {
    for work in Work::ALL {
        let steps = steps(&work.stages(), &stage_context(""));
        let names: BTreeSet<&str> = steps.iter().map(|step| step.name.as_str()).collect();
        assert_eq!(names.len(), steps.len(), "{work:?}");
        assert!(steps.iter().all(|step| step.timeout_seconds > 0), "{work:?}");
    }
}

#[test]
fn who_places_the_work_moves_it_away() {
    for step in steps(&DecommissionMode::FullDecommission.stages(true), &stage_context("cluster-a"))
    {
        match (&step.effect, step.name.as_str()) {
            (Effect::Drain { cluster_ref, deadline_seconds, .. }, "drain_node") => {
                assert_eq!(cluster_ref, "cluster-a");
                assert!(deadline_seconds.is_some_and(|time| time < step.timeout_seconds));
            }
            (Effect::Stage { stage, node, site, provider: by, undo }, name)
                if name != "drain_node" =>
            {
                assert_eq!((stage.as_str(), node.as_str()), (name, "node-1"));
                assert_eq!(site.as_ref().map(|site| site.as_str()), Some("site-1"));
                assert_eq!((by.as_str(), *undo), ("maas", false));
            }
            other => panic!("{other:?}"),
        }
    }
}

/// The MAAS states in which a stage has nothing to do. All other stages never adopt a MAAS state.
const ADOPTS: [(&str, &[&str]); 10] = [
    ("commission_node", &["Commissioning", "Ready", "Allocated", "Deploying", "Deployed"]),
    ("wait_for_ready", &["Ready", "Allocated", "Deploying", "Deployed"]),
    ("configure_storage", &["Deploying", "Deployed"]),
    ("apply_roce_phase2", &["Deploying", "Deployed"]),
    ("ensure_pxe_interface_auto", &["Deploying", "Deployed"]),
    ("deploy_via_maas", &["Deploying", "Deployed"]),
    ("wait_for_deployed", &["Deployed"]),
    ("release_maas_node", &["New", "Ready", "absent"]),
    ("power_off_maas_node", &["absent"]),
    ("remove_maas_record", &["absent"]),
];

#[test]
fn every_stage_and_every_maas_state() {
    for stage in NodeStage::ALL {
        for upstream in MaasState::ALL {
            for state in NodeState::ALL {
                let row = ADOPTS.iter().find(|row| row.0 == stage.as_str());
                let (name, message) = (stage.as_str(), upstream.as_str());
                let expected = match name {
                    // The machine exists in any state, unless its state is unknown.
                    "create_or_find_in_maas" => !matches!(message, "absent" | "Unknown"),
                    "disable_node" | "drain_node" => {
                        matches!(state.as_str(), "retired" | "removing")
                    }
                    _ => row.is_some_and(|row| row.1.contains(&message)),
                };
                let found = adoption_reason(*stage, state, upstream);
                assert_eq!(found.is_some(), expected, "{name}: {state}, {message}");
                let why = found.unwrap_or_default();
                assert!(why.is_empty() || why.contains(message) || why.contains(state.as_str()));
            }
        }
    }
}

/// The stages of a mode for which the agent gets no task.
fn left_out(
    mode: DecommissionMode,
    with: impl Fn(&mut AgentTaskContext<'_>),
    cluster: &str,
) -> Vec<&'static str> {
    let run = run_of(Work::Take(mode), &mode.stages(true), cluster);
    let state = NodeState::Draining;
    let (has_agent, agent_answers, released) = (true, true, false);
    let mut requested = AgentTaskContext { run: &run, state, has_agent, agent_answers, released };
    with(&mut requested);
    let stages = mode.stages(true).into_iter();
    stages.filter(|stage| requested.skip_reason(*stage).is_some()).map(NodeStage::as_str).collect()
}

/// An agent gets every task that it can do. If the installed system serves again, the agent is
/// required.
#[test]
fn when_an_agent_is_not_asked() {
    let tasks = |mode: DecommissionMode| -> Vec<&str> {
        let all = mode.stages(true).into_iter().filter(|stage| stage.task().is_some());
        all.map(NodeStage::as_str).collect()
    };
    for mode in DecommissionMode::ALL {
        assert_eq!(left_out(mode, |_| (), ""), [""; 0], "{mode}");
        assert_eq!(left_out(mode, |one| one.released = true, ""), tasks(mode), "{mode}");
        let emptying = tasks(mode)
            .into_iter()
            .filter(|name| matches!(*name, "force_release_allocations" | "drain_node"));
        let retired = left_out(mode, |one| one.state = NodeState::Retired, "");
        assert_eq!(retired, emptying.collect::<Vec<_>>(), "{mode}");
        let of_cluster: &[&str] = match mode {
            DecommissionMode::Drain | DecommissionMode::Reactivate => &[],
            _ => &["force_release_allocations"],
        };
        assert_eq!(left_out(mode, |_| (), "cluster-a"), of_cluster, "{mode}");
        let silent = left_out(mode, |one| one.agent_answers = false, "");
        let uninstalls = mode == DecommissionMode::FullDecommission;
        let expected: &[&str] = if uninstalls { &["remove_gpuaas_node_record"] } else { &[] };
        assert_eq!(silent, expected, "{mode}");
        let alone = left_out(mode, |one| one.has_agent = false, "");
        match mode {
            DecommissionMode::SoftReset | DecommissionMode::StorageCleanup => {
                assert_eq!(alone, ["force_release_allocations", "drain_node"], "{mode}");
            }
            DecommissionMode::Reimage
            | DecommissionMode::FullDecommission
            | DecommissionMode::Drain
            | DecommissionMode::Retire
            | DecommissionMode::Reactivate => {
                assert_eq!(alone, tasks(mode), "{mode}");
            }
        }
        let mut run = run(Work::Take(mode));
        Overrides::of(&[Gate::Agent], "it burnt").store_in(&mut run.spec.params);
        let requested = AgentTaskContext {
            run: &run,
            state: NodeState::Draining,
            has_agent: true,
            agent_answers: true,
            released: false,
        };
        for stage in mode.stages(true) {
            let message = requested.skip_reason(stage);
            assert_eq!(message.is_some(), stage.task().is_some(), "{mode} {stage}");
            assert!(message.is_none_or(|message| message.contains("it burnt")));
        }
    }
}
