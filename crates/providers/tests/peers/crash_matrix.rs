//! The crash matrix of the datacenter provider. Every effect runs once undisturbed while the calls
//! to the state store and to the peers are counted; then once for each of these calls, with a crash
//! before it and one after it. A new process continues from the stored state as the engine would:
//! get the status, follow what is in progress, perform what never started. The end must be the
//! same, and no destructive effect may happen twice.

use crate::crash_fixture::{CLUSTER, CrashFixture, IMAGE, MACHINE};
use crate::crash_injector::{CallTarget, CrashPoint, CrashTiming};
use crate::fake_bmc::SYSTEM;
use crate::fake_updater::{FILE, NEW, OLD, sha256};
use crate::skip;
use crate::sshd::is_root;
use futures_util::stream::{self, StreamExt};
use model::effect::{
    CallVerb, DesiredPower, DeviceWork, Effect, FabricGoal, NetbootMode, PowerOffPolicy,
    ProviderAnswer, RebootMode, RmaAction,
};
use model::fault::EffectOutcome;
use model::target::TargetKind;
use std::collections::{BTreeMap, BTreeSet};

/// The most turns that a scenario may take after its crash.
const MAX_TURNS: usize = 10;
/// The number of scenarios that run at the same time.
const AT_ONCE: usize = 12;
/// The number of crash points of a scenario whose outcome may be unknown: between the checkpoint
/// and the device's receipt of the command lie one crash of Farrier and one of the device.
const MAX_UNKNOWN: usize = 2;
const DOCUMENT: &str = "network: {version: 2}";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scenario {
    Cycle,
    PowerOff,
    NetbootPxe,
    NetbootDisk,
    Command,
    InBand,
    Net,
    Join,
    /// A join of a host that is a member already.
    Adopt,
    Leave,
    SwitchOff,
    Drain,
    Uncordon,
    Repave,
    Firmware,
    ShelfOff,
    ShelfOn,
    FabricManager,
    FabricOff,
}

impl Scenario {
    const ALL: [Self; 19] = [
        Self::Cycle,
        Self::PowerOff,
        Self::NetbootPxe,
        Self::NetbootDisk,
        Self::Command,
        Self::InBand,
        Self::Net,
        Self::Join,
        Self::Adopt,
        Self::Leave,
        Self::SwitchOff,
        Self::Drain,
        Self::Uncordon,
        Self::Repave,
        Self::Firmware,
        Self::ShelfOff,
        Self::ShelfOn,
        Self::FabricManager,
        Self::FabricOff,
    ];

    /// `files` is the server that firmware is downloaded from.
    pub fn effect(self, files: &str) -> Effect {
        let (cluster_ref, power_off) = (CLUSTER.to_string(), PowerOffPolicy::PROVIDER_DEFAULT);
        match self {
            Self::Cycle => Effect::Reboot { mode: RebootMode::Bmc, power_off },
            Self::PowerOff => Effect::Rma { action: RmaAction::PowerOff, power_off },
            Self::NetbootPxe => Effect::Netboot { mode: NetbootMode::Pxe },
            Self::NetbootDisk => Effect::Netboot { mode: NetbootMode::Disk },
            Self::Command => {
                let command = "echo begun >>$HOME/happened; sleep 0.3; echo ended >>$HOME/happened";
                Effect::Ssh { command: command.into(), destructive: true }
            }
            Self::InBand => Effect::Reboot { mode: RebootMode::InBand, power_off },
            Self::Net => Effect::Net { document: DOCUMENT.into() },
            Self::Join | Self::Adopt => {
                let labels = BTreeMap::from([("zone".to_owned(), "b".to_owned())]);
                let taints = Vec::new();
                Effect::Join { cluster_ref, labels, taints, kubeadm: Default::default() }
            }
            Self::Leave => Effect::Leave { cluster_ref, joined_by: None },
            Self::SwitchOff => Effect::Power { to: DesiredPower::Off, power_off },
            Self::Drain => {
                let options = Default::default();
                Effect::Drain { cluster_ref, deadline_seconds: None, options }
            }
            Self::Uncordon => Effect::Uncordon { cluster_ref, own: false },
            Self::Repave => Effect::Repave { image: IMAGE.into() },
            Self::Firmware => {
                let (component, version) = ("BMC_0".into(), NEW.into());
                let (url, sha256) = (files.into(), sha256(FILE));
                Effect::Device { work: DeviceWork::Firmware { component, version, url, sha256 } }
            }
            Self::ShelfOff => Effect::Power { to: DesiredPower::Off, power_off },
            Self::ShelfOn => Effect::Power { to: DesiredPower::On, power_off },
            Self::FabricManager => {
                Effect::Device { work: DeviceWork::Fabric { to: FabricGoal::Manager } }
            }
            Self::FabricOff => Effect::Device { work: DeviceWork::Fabric { to: FabricGoal::Off } },
        }
    }

    pub fn kind(self) -> TargetKind {
        match self {
            Self::ShelfOff | Self::ShelfOn => TargetKind::PowerShelf,
            Self::Firmware | Self::FabricManager | Self::FabricOff => TargetKind::Switch,
            Self::Cycle
            | Self::PowerOff
            | Self::NetbootPxe
            | Self::NetbootDisk
            | Self::Command
            | Self::InBand
            | Self::Net
            | Self::Join
            | Self::Adopt
            | Self::Leave
            | Self::SwitchOff
            | Self::Drain
            | Self::Uncordon
            | Self::Repave => TargetKind::Machine,
        }
    }

    /// Calls only the BMC, and the same number of times in every run.
    fn calls_only_bmc(self) -> bool {
        match self {
            Self::Cycle
            | Self::PowerOff
            | Self::NetbootPxe
            | Self::NetbootDisk
            | Self::SwitchOff
            | Self::Firmware
            | Self::ShelfOff
            | Self::ShelfOn => true,
            Self::Command
            | Self::InBand
            | Self::Net
            | Self::Join
            | Self::Adopt
            | Self::Leave
            | Self::Drain
            | Self::Uncordon
            | Self::Repave
            | Self::FabricManager
            | Self::FabricOff => false,
        }
    }

    pub fn needs_bmc(self) -> bool {
        self.calls_only_bmc() || self == Self::Repave
    }

    pub fn needs_host(self) -> bool {
        !self.calls_only_bmc() && !matches!(self, Self::Drain | Self::Uncordon)
    }

    pub fn needs_cluster(self) -> bool {
        matches!(self, Self::Join | Self::Adopt | Self::Leave | Self::Drain | Self::Uncordon)
    }

    pub fn reboots_host(self) -> bool {
        self == Self::InBand
    }

    /// Checks what must hold at the end of every crash.
    fn check(self, site: &CrashFixture, end: End, message: &str) {
        assert!(end == End::Done || self == Self::Firmware, "the outcome is unknown: {message}");
        match self {
            Self::Cycle => assert_eq!(site.resets(), ["ForceOff", "On"], "{message}"),
            Self::PowerOff => assert_eq!(site.resets(), ["ForceOff"], "{message}"),
            Self::NetbootPxe => assert_eq!(boot_target(site), "Pxe", "{message}"),
            Self::NetbootDisk => assert_eq!(boot_target(site), "None", "{message}"),
            Self::Command => assert_recorded_once(site, &["begun", "ended"], message),
            Self::InBand => assert_recorded_once(site, &["reboot"], message),
            Self::Net => {
                assert_recorded_once(site, &["netplan generate", "netplan apply"], message);
                assert_eq!(
                    site.document().as_deref().map(str::trim_end),
                    Some(DOCUMENT),
                    "{message}"
                );
            }
            Self::Join => {
                assert_recorded_once(site, &["kubeadm join"], message);
                let env = site.api.as_ref().unwrap().state.lock();
                assert!(env.nodes.contains_key(MACHINE), "{message}");
                let tokens: Vec<&String> = env.secrets.keys().collect();
                assert_eq!(tokens, [""; 0], "a token was left behind: {message}");
                let reasons: Vec<_> = env.events.values().map(|one| &one["reason"]).collect();
                assert_eq!(reasons, ["Joined"], "{message}");
            }
            Self::Adopt => {
                assert_eq!(site.count_recorded("kubeadm join"), 0, "{message}");
                let env = site.api.as_ref().unwrap().state.lock();
                let zone = &env.nodes[MACHINE]["metadata"]["labels"]["zone"];
                assert_eq!(zone, "b", "{message}");
                assert!(env.events.is_empty(), "Farrier did not join it: {message}");
                assert!(env.secrets.is_empty(), "{message}");
            }
            Self::Leave => {
                assert_recorded_once(site, &["kubeadm reset"], message);
                let env = site.api.as_ref().unwrap().state.lock();
                assert!(!env.nodes.contains_key(MACHINE), "{message}");
            }
            Self::SwitchOff => assert_eq!(site.resets(), ["ForceOff"], "{message}"),
            Self::Drain => {
                assert!(site.is_cordoned(), "{message}");
                let env = site.api.as_ref().unwrap().state.lock();
                assert!(env.pods.is_empty(), "{:?} are left: {message}", env.pods.keys());
            }
            Self::Uncordon => assert!(!site.is_cordoned(), "{message}"),
            Self::Repave => {
                assert_eq!(site.resets(), ["ForceOff", "On"], "{message}");
                assert_eq!(boot_target(site), "None", "{message}");
                assert_eq!(site.installed(), 1, "{message}");
            }
            // Only firmware that was never installed may end as unknown.
            Self::Firmware => {
                let device = site.device();
                let (files, version) = match end {
                    End::Done => (1, NEW),
                    End::Unknown => (0, OLD),
                };
                assert_eq!(
                    (device.files().len(), device.version().as_str()),
                    (files, version),
                    "{message}"
                );
            }
            Self::ShelfOff => assert_eq!(site.shelf_power(), "Off", "{message}"),
            Self::ShelfOn => assert_eq!(site.shelf_power(), "On", "{message}"),
            Self::FabricManager => {
                assert_eq!(site.fabric(), ("enabled".into(), "enabled".into()), "{message}");
            }
            Self::FabricOff => assert_eq!(site.fabric().0, "disabled", "{message}"),
        }
    }
}

/// The end of a scenario.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Done,
    /// The outcome is unknown and is left to the operator.
    Unknown,
}

fn boot_target(site: &CrashFixture) -> String {
    let (env, _) = site.bmc.as_ref().unwrap();
    let target = env.get(SYSTEM)["Boot"]["BootSourceOverrideTarget"].clone();
    target.as_str().unwrap().to_string()
}

/// Each of these lines occurs exactly once.
fn assert_recorded_once(site: &CrashFixture, lines: &[&str], message: &str) {
    for line in lines {
        assert_eq!(site.count_recorded(line), 1, "{line:?} happened once: {message}");
    }
}

/// Acts like the engine, beginning with this verb, until the effect is done.
async fn run_to_end(site: &CrashFixture, mut verb: CallVerb, message: &str) -> End {
    for _ in 0..MAX_TURNS {
        // Each turn is a new process without memory.
        verb = match (verb, site.call_provider(verb).await) {
            (_, Ok(ProviderAnswer::Done(_))) => return End::Done,
            (CallVerb::GetStatus, Ok(ProviderAnswer::Unknown(_))) => return End::Unknown,
            (CallVerb::GetStatus, Ok(ProviderAnswer::UnderWay)) => CallVerb::Follow,
            (CallVerb::GetStatus, Ok(ProviderAnswer::NeverStarted)) => CallVerb::Perform,
            // A fault is expected only where the outcome may be left to the operator.
            (CallVerb::Follow, Err(fault))
                if site.scenario == Scenario::Firmware
                    && fault.code.effect_outcome() == EffectOutcome::Unknown =>
            {
                CallVerb::GetStatus
            }
            (verb, other) => panic!("{verb:?} was answered with {other:?}: {message}"),
        };
    }
    panic!("it did not end in {MAX_TURNS} turns: {message}");
}

/// Runs a scenario with a crash. Returns whether it crashed (if not, it ended before that call),
/// and how it ended.
async fn run_with_crash(scenario: Scenario, point: CrashPoint) -> (bool, End) {
    let message = format!("{scenario:?} struck at {point:?}");
    let site = CrashFixture::new(scenario, Some(point)).await.unwrap();
    let end = tokio::select! {
        end = run_to_end(&site, CallVerb::Perform, &message) => end,
        () = site.wait_for_crash() => run_to_end(&site, CallVerb::GetStatus, &message).await,
    };
    scenario.check(&site, end, &message);
    (site.crash_injector.has_crashed(), end)
}

async fn matrix(scenario: Scenario) {
    if scenario.reboots_host() && !is_root() {
        return skip("this needs root, for a boot id of the host's own");
    }
    let Some(site) = CrashFixture::new(scenario, None).await else { return };
    let end = run_to_end(&site, CallVerb::Perform, &format!("{scenario:?} undisturbed")).await;
    assert_eq!(end, End::Done);
    scenario.check(&site, end, &format!("{scenario:?} undisturbed"));
    let calls = site.calls();
    drop(site);
    let points: Vec<CrashPoint> = calls
        .iter()
        .flat_map(|(requester, count)| (1..=*count).map(move |call| (*requester, call)))
        .flat_map(|(requester, call)| {
            [CrashTiming::Before, CrashTiming::After].map(|when| CrashPoint {
                target: requester,
                call,
                timing: when,
            })
        })
        .collect();
    let lived: Vec<(CrashPoint, (bool, End))> = stream::iter(points)
        .map(|point| async move { (point, run_with_crash(scenario, point).await) })
        .buffer_unordered(AT_ONCE)
        .collect()
        .await;
    let unknown: Vec<&CrashPoint> =
        lived.iter().filter(|(_, (_, end))| *end == End::Unknown).map(|(point, _)| point).collect();
    assert!(unknown.len() <= MAX_UNKNOWN, "{scenario:?} is left to the operator at {unknown:?}");
    let struck: Vec<(CrashPoint, bool)> =
        lived.into_iter().map(|(point, (struck, _))| (point, struck)).collect();
    assert_covered(scenario, &calls, &struck);
}

/// Every call was crashed at, but a scenario that polls may poll a little less often than the first
/// run did.
fn assert_covered(
    scenario: Scenario,
    calls: &[(CallTarget, usize)],
    struck: &[(CrashPoint, bool)],
) {
    let count = struck.iter().filter(|(_, struck)| *struck).count();
    eprintln!("{scenario:?}: {calls:?}, {count} of {} points", struck.len());
    let requested: BTreeSet<CallTarget> =
        calls.iter().filter(|(_, n)| *n > 0).map(|(requester, _)| *requester).collect();
    let expected: BTreeSet<CallTarget> = [
        (CallTarget::ProviderStateStore, true),
        (CallTarget::Bmc, scenario.needs_bmc()),
        (CallTarget::Host, scenario.needs_host()),
        (CallTarget::Api, scenario.needs_cluster()),
    ]
    .into_iter()
    .filter(|(_, needed)| *needed)
    .map(|(requester, _)| requester)
    .collect();
    assert_eq!(requested, expected, "{scenario:?}");
    let missed: Vec<&CrashPoint> =
        struck.iter().filter(|(_, struck)| !struck).map(|(point, _)| point).collect();
    if scenario.calls_only_bmc() {
        assert!(missed.is_empty(), "{scenario:?} never crashed at {missed:?}");
    }
    assert!(missed.len() * 5 <= struck.len(), "{scenario:?} never crashed at {missed:?}");
}

#[test]
fn every_effect_has_a_scenario_or_is_harmless() {
    let lived: BTreeSet<&str> =
        Scenario::ALL.iter().map(|scenario| scenario.effect("").name()).collect();
    // These only read, are harmless when repeated, or are not sent to a device.
    let idle = ["verify", "read", "configure", "check", "parts"];
    let all: BTreeSet<&str> = Effect::NAMES.into_iter().collect();
    assert_eq!(lived.iter().copied().chain(idle).collect::<BTreeSet<_>>(), all);
}

macro_rules! crash_scenarios {
    ($($name:ident: $scenario:ident;)*) => {$(
        #[tokio::test(flavor = "multi_thread")]
        async fn $name() {
            matrix(Scenario::$scenario).await;
        }
    )*};
}

crash_scenarios! {
    a_reboot_by_the_bmc_survives_every_crash: Cycle;
    a_power_off_survives_every_crash: PowerOff;
    a_boot_from_the_network_survives_every_crash: NetbootPxe;
    a_boot_from_disk_survives_every_crash: NetbootDisk;
    a_command_survives_every_crash: Command;
    a_reboot_from_within_survives_every_crash: InBand;
    a_new_network_survives_every_crash: Net;
    a_join_survives_every_crash: Join;
    an_adoption_survives_every_crash: Adopt;
    a_leave_survives_every_crash: Leave;
    a_switch_off_survives_every_crash: SwitchOff;
    a_drain_survives_every_crash: Drain;
    an_uncordon_survives_every_crash: Uncordon;
    an_image_survives_every_crash: Repave;
    firmware_survives_every_crash: Firmware;
    a_shelf_that_goes_off_survives_every_crash: ShelfOff;
    a_shelf_that_goes_on_survives_every_crash: ShelfOn;
    a_fabric_manager_survives_every_crash: FabricManager;
    a_fabric_that_goes_off_survives_every_crash: FabricOff;
}
