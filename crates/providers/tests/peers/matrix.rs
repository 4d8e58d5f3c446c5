//! The crash matrix of the datacenter provider. Every effect runs once undisturbed while the calls
//! to the state store and to the peers are counted; then once for each of these calls, with a crash
//! before it and one after it. A new process continues from the stored state as the engine would:
//! get the status, follow what is in progress, perform what never started. The end must be the
//! same, and no destructive effect may happen twice.

use crate::reaper::{Point, When, Who};
use crate::sites::{CLUSTER, IMAGE, MACHINE, Site};
use crate::skip;
use crate::sshd::is_root;
use crate::updater::{FILE, NEW, OLD, sha256};
use crate::world::SYSTEM;
use futures_util::stream::{self, StreamExt};
use model::effect::{
    Answer, DeviceWork, Effect, FabricTo, NetbootMode, PowerOffPolicy, PowerTo, RebootMode,
    RmaAction, Verb,
};
use model::fault::Happened;
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
pub enum Life {
    Cycle,
    PowerOff,
    NetbootPxe,
    NetbootDisk,
    Command,
    InBand,
    Net,
    Join,
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

impl Life {
    const ALL: [Self; 18] = [
        Self::Cycle,
        Self::PowerOff,
        Self::NetbootPxe,
        Self::NetbootDisk,
        Self::Command,
        Self::InBand,
        Self::Net,
        Self::Join,
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
        let (cluster_ref, power_off) = (CLUSTER.to_string(), PowerOffPolicy::CONFIGURED);
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
            Self::Join => Effect::Join { cluster_ref, labels: BTreeMap::new(), taints: Vec::new() },
            Self::Leave => Effect::Leave { cluster_ref },
            Self::SwitchOff => Effect::Power { to: PowerTo::Off, power_off },
            Self::Drain => Effect::Drain { cluster_ref, deadline_seconds: None },
            Self::Uncordon => Effect::Uncordon { cluster_ref, own: false },
            Self::Repave => Effect::Repave { image: IMAGE.into() },
            Self::Firmware => {
                let (component, version) = ("BMC_0".into(), NEW.into());
                let (url, sha256) = (files.into(), sha256(FILE));
                Effect::Device { work: DeviceWork::Firmware { component, version, url, sha256 } }
            }
            Self::ShelfOff => Effect::Power { to: PowerTo::Off, power_off },
            Self::ShelfOn => Effect::Power { to: PowerTo::On, power_off },
            Self::FabricManager => {
                Effect::Device { work: DeviceWork::Fabric { to: FabricTo::Manager } }
            }
            Self::FabricOff => Effect::Device { work: DeviceWork::Fabric { to: FabricTo::Off } },
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
            | Self::Leave
            | Self::SwitchOff
            | Self::Drain
            | Self::Uncordon
            | Self::Repave => TargetKind::Machine,
        }
    }

    /// Calls only the BMC, and the same number of times in every run.
    fn only_bmc(self) -> bool {
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
            | Self::Leave
            | Self::Drain
            | Self::Uncordon
            | Self::Repave
            | Self::FabricManager
            | Self::FabricOff => false,
        }
    }

    pub fn needs_bmc(self) -> bool {
        self.only_bmc() || self == Self::Repave
    }

    pub fn needs_host(self) -> bool {
        !self.only_bmc() && !matches!(self, Self::Drain | Self::Uncordon)
    }

    pub fn needs_cluster(self) -> bool {
        matches!(self, Self::Join | Self::Leave | Self::Drain | Self::Uncordon)
    }

    pub fn reboots_host(self) -> bool {
        self == Self::InBand
    }

    /// Checks what must hold at the end of every crash.
    fn check(self, site: &Site, end: End, said: &str) {
        assert!(end == End::Done || self == Self::Firmware, "the outcome is unknown: {said}");
        match self {
            Self::Cycle => assert_eq!(site.resets(), ["ForceOff", "On"], "{said}"),
            Self::PowerOff => assert_eq!(site.resets(), ["ForceOff"], "{said}"),
            Self::NetbootPxe => assert_eq!(boot_target(site), "Pxe", "{said}"),
            Self::NetbootDisk => assert_eq!(boot_target(site), "None", "{said}"),
            Self::Command => happened(site, &["begun", "ended"], said),
            Self::InBand => happened(site, &["reboot"], said),
            Self::Net => {
                happened(site, &["netplan generate", "netplan apply"], said);
                assert_eq!(site.document().as_deref().map(str::trim_end), Some(DOCUMENT), "{said}");
            }
            Self::Join => {
                happened(site, &["kubeadm join"], said);
                let world = site.api.as_ref().unwrap().world.lock();
                assert!(world.nodes.contains_key(MACHINE), "{said}");
                let tokens: Vec<&String> = world.secrets.keys().collect();
                assert_eq!(tokens, [""; 0], "a token was left behind: {said}");
            }
            Self::Leave => {
                happened(site, &["kubeadm reset"], said);
                let world = site.api.as_ref().unwrap().world.lock();
                assert!(!world.nodes.contains_key(MACHINE), "{said}");
            }
            Self::SwitchOff => assert_eq!(site.resets(), ["ForceOff"], "{said}"),
            Self::Drain => {
                assert!(site.cordoned(), "{said}");
                let world = site.api.as_ref().unwrap().world.lock();
                assert!(world.pods.is_empty(), "{:?} are left: {said}", world.pods.keys());
            }
            Self::Uncordon => assert!(!site.cordoned(), "{said}"),
            Self::Repave => {
                assert_eq!(site.resets(), ["ForceOff", "On"], "{said}");
                assert_eq!(boot_target(site), "None", "{said}");
                assert_eq!(site.installed(), 1, "{said}");
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
                    "{said}"
                );
            }
            Self::ShelfOff => assert_eq!(site.shelf_power(), "Off", "{said}"),
            Self::ShelfOn => assert_eq!(site.shelf_power(), "On", "{said}"),
            Self::FabricManager => {
                assert_eq!(site.fabric(), ("enabled".into(), "enabled".into()), "{said}");
            }
            Self::FabricOff => assert_eq!(site.fabric().0, "disabled", "{said}"),
        }
    }
}

/// How a scenario ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Done,
    /// The outcome is unknown and is left to the operator.
    Unknown,
}

fn boot_target(site: &Site) -> String {
    let (world, _) = site.bmc.as_ref().unwrap();
    let target = world.get(SYSTEM)["Boot"]["BootSourceOverrideTarget"].clone();
    target.as_str().unwrap().to_string()
}

/// Each of these lines occurs exactly once.
fn happened(site: &Site, lines: &[&str], said: &str) {
    for line in lines {
        assert_eq!(site.happened(line), 1, "{line:?} happened once: {said}");
    }
}

/// Acts like the engine, beginning with this verb, until the effect is done.
async fn live(site: &Site, mut verb: Verb, said: &str) -> End {
    for _ in 0..MAX_TURNS {
        // Each turn is a new process without memory.
        verb = match (verb, site.ask(verb).await) {
            (_, Ok(Answer::Done(_))) => return End::Done,
            (Verb::GetStatus, Ok(Answer::Unknown(_))) => return End::Unknown,
            (Verb::GetStatus, Ok(Answer::UnderWay)) => Verb::Follow,
            (Verb::GetStatus, Ok(Answer::NeverStarted)) => Verb::Perform,
            // A fault is expected only where the outcome may be left to the operator.
            (Verb::Follow, Err(fault))
                if site.life == Life::Firmware && fault.code.happened() == Happened::Maybe =>
            {
                Verb::GetStatus
            }
            (verb, other) => panic!("{verb:?} was answered with {other:?}: {said}"),
        };
    }
    panic!("it did not end in {MAX_TURNS} turns: {said}");
}

/// Runs a scenario with a crash. Returns whether it crashed (if not, it ended before that call),
/// and how it ended.
async fn die_at(life: Life, point: Point) -> (bool, End) {
    let said = format!("{life:?} struck at {point:?}");
    let site = Site::new(life, Some(point)).await.unwrap();
    let end = tokio::select! {
        end = live(&site, Verb::Perform, &said) => end,
        () = site.struck() => live(&site, Verb::GetStatus, &said).await,
    };
    life.check(&site, end, &said);
    (site.reaper.has_struck(), end)
}

async fn matrix(life: Life) {
    if life.reboots_host() && !is_root() {
        return skip("this needs root, for a boot id of the host's own");
    }
    let Some(site) = Site::new(life, None).await else { return };
    let end = live(&site, Verb::Perform, &format!("{life:?} undisturbed")).await;
    assert_eq!(end, End::Done);
    life.check(&site, end, &format!("{life:?} undisturbed"));
    let calls = site.calls();
    drop(site);
    let points: Vec<Point> = calls
        .iter()
        .flat_map(|(who, count)| (1..=*count).map(move |call| (*who, call)))
        .flat_map(|(who, call)| [When::Before, When::After].map(|when| Point { who, call, when }))
        .collect();
    let lived: Vec<(Point, (bool, End))> = stream::iter(points)
        .map(|point| async move { (point, die_at(life, point).await) })
        .buffer_unordered(AT_ONCE)
        .collect()
        .await;
    let unknown: Vec<&Point> =
        lived.iter().filter(|(_, (_, end))| *end == End::Unknown).map(|(point, _)| point).collect();
    assert!(unknown.len() <= MAX_UNKNOWN, "{life:?} is left to the operator at {unknown:?}");
    let struck: Vec<(Point, bool)> =
        lived.into_iter().map(|(point, (struck, _))| (point, struck)).collect();
    assert_covered(life, &calls, &struck);
}

/// Every call was crashed at, but a scenario that polls may poll a little less often than the first
/// run did.
fn assert_covered(life: Life, calls: &[(Who, usize)], struck: &[(Point, bool)]) {
    let count = struck.iter().filter(|(_, struck)| *struck).count();
    eprintln!("{life:?}: {calls:?}, {count} of {} points", struck.len());
    let asked: BTreeSet<Who> = calls.iter().filter(|(_, n)| *n > 0).map(|(who, _)| *who).collect();
    let expected: BTreeSet<Who> = [
        (Who::ProviderStateStore, true),
        (Who::Bmc, life.needs_bmc()),
        (Who::Host, life.needs_host()),
        (Who::Api, life.needs_cluster()),
    ]
    .into_iter()
    .filter(|(_, needed)| *needed)
    .map(|(who, _)| who)
    .collect();
    assert_eq!(asked, expected, "{life:?}");
    let missed: Vec<&Point> =
        struck.iter().filter(|(_, struck)| !struck).map(|(point, _)| point).collect();
    if life.only_bmc() {
        assert!(missed.is_empty(), "{life:?} never crashed at {missed:?}");
    }
    assert!(missed.len() * 5 <= struck.len(), "{life:?} never crashed at {missed:?}");
}

#[test]
fn every_effect_is_lived_or_does_nothing() {
    let lived: BTreeSet<&str> = Life::ALL.iter().map(|life| life.effect("").word()).collect();
    // These only read, are harmless when repeated, or are not sent to a device.
    let idle = ["verify", "read", "configure", "check", "parts"];
    let all: BTreeSet<&str> = Effect::WORDS.into_iter().collect();
    assert_eq!(lived.iter().copied().chain(idle).collect::<BTreeSet<_>>(), all);
}

macro_rules! lives {
    ($($name:ident: $life:ident;)*) => {$(
        #[tokio::test(flavor = "multi_thread")]
        async fn $name() {
            matrix(Life::$life).await;
        }
    )*};
}

lives! {
    a_reboot_by_the_bmc_survives_every_death: Cycle;
    a_power_off_survives_every_death: PowerOff;
    a_boot_from_the_network_survives_every_death: NetbootPxe;
    a_boot_from_disk_survives_every_death: NetbootDisk;
    a_command_survives_every_death: Command;
    a_reboot_from_within_survives_every_death: InBand;
    a_new_network_survives_every_death: Net;
    a_join_survives_every_death: Join;
    a_leave_survives_every_death: Leave;
    a_switch_off_survives_every_death: SwitchOff;
    a_drain_survives_every_death: Drain;
    an_uncordon_survives_every_death: Uncordon;
    an_image_survives_every_death: Repave;
    firmware_survives_every_death: Firmware;
    a_shelf_that_goes_off_survives_every_death: ShelfOff;
    a_shelf_that_goes_on_survives_every_death: ShelfOn;
    a_fabric_manager_survives_every_death: FabricManager;
    a_fabric_that_goes_off_survives_every_death: FabricOff;
}
