//! Effects: names and undo.

mod node;
mod power_off;

use model::effect::{
    ChildRunGroup, ChildRunSpec, ClusterExpectation, DesiredPower, DeviceWork, Effect, FabricGoal,
    NetbootMode, NodeLabels, PowerOffPolicy, RebootMode, RmaAction,
};
use model::plan::{RunStep, RunType};
use model::target::TargetId;
use std::collections::BTreeMap;

/// One effect of each kind, except the stages of nodes.
pub fn one_of_each() -> Vec<Effect> {
    let cluster_ref = String::new;
    let all = [
        Effect::Ssh { command: "true".into(), destructive: false },
        Effect::Reboot { mode: RebootMode::Bmc, power_off: PowerOffPolicy::PROVIDER_DEFAULT },
        Effect::Netboot { mode: NetbootMode::Pxe },
        Effect::Repave { image: "i".into() },
        Effect::Join {
            cluster_ref: cluster_ref(),
            labels: NodeLabels::new(),
            taints: Vec::new(),
            kubeadm: Default::default(),
        },
        Effect::Leave { cluster_ref: cluster_ref(), joined_by: None },
        Effect::Verify {
            cluster_ref: cluster_ref(),
            expect: ClusterExpectation::Ready,
            advisory: false,
        },
        Effect::Net { document: "n".into() },
        Effect::Rma { action: RmaAction::Record, power_off: PowerOffPolicy::PROVIDER_DEFAULT },
        Effect::Drain {
            cluster_ref: cluster_ref(),
            deadline_seconds: None,
            options: Default::default(),
        },
        Effect::Uncordon { cluster_ref: cluster_ref(), own: false },
        Effect::Power { to: DesiredPower::Off, power_off: PowerOffPolicy::PROVIDER_DEFAULT },
    ];
    let text = String::new;
    let works = [
        DeviceWork::Firmware { component: text(), version: text(), url: text(), sha256: text() },
        DeviceWork::Read,
        DeviceWork::Configure,
        DeviceWork::Check { firmware: BTreeMap::new(), power: None },
        DeviceWork::Fabric { to: FabricGoal::Off },
    ];
    let works = works.into_iter().map(|work| Effect::Device { work });
    let group =
        ChildRunGroup { child_runs: Vec::new(), max_concurrent: 1, skip_if_all_hold: Vec::new() };
    all.into_iter().chain(works).chain([Effect::ChildRuns { group }]).collect()
}

/// What erases, and what is harmful to repeat, are two facts: rows of effects, erases, harmful.
#[test]
fn what_erases_is_marked_and_what_harms_twice_is_not() {
    let marked = |fact: fn(&Effect) -> bool| -> Vec<&str> {
        let all = one_of_each().into_iter();
        all.filter(fact).map(|effect| effect.name()).collect()
    };
    assert_eq!(marked(Effect::erases), ["repave", "firmware"]);
    let harmful = ["reboot", "repave", "net", "power", "firmware", "fabric"];
    assert_eq!(marked(Effect::harmful_to_repeat), harmful);
    // The author of a command declares both.
    let wipe = Effect::Ssh { command: "wipefs -a /dev/sda".into(), destructive: true };
    assert!(wipe.erases() && wipe.harmful_to_repeat());
    // A step of a rack erases what its parts erase.
    let group = |effect: Effect| {
        let step = RunStep { name: "s".into(), timeout_seconds: 1, max_retries: 0, effect };
        let (target, run_type) = (TargetId::from_key("m-1"), RunType::Upgrade);
        let child_runs = vec![ChildRunSpec { target, run_type, steps: vec![step] }];
        let group = ChildRunGroup { child_runs, max_concurrent: 1, skip_if_all_hold: Vec::new() };
        Effect::ChildRuns { group }
    };
    for effect in one_of_each() {
        assert_eq!(group(effect.clone()).erases(), effect.erases(), "{effect:?}");
    }
}

/// Fails when a variant is missing in `NAMES`, or the reverse.
#[test]
fn every_effect_has_its_name() {
    let all = one_of_each();
    let words: Vec<_> = all.iter().map(Effect::name).collect();
    assert_eq!(words, Effect::NAMES);
    for effect in all {
        if let Some(undo) = effect.undo() {
            assert_eq!(undo.undo(), None, "{effect:?} is undone once");
            assert!(!undo.harmful_to_repeat(), "{undo:?} may be asked again");
        }
    }
}
