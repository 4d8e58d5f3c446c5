//! Every call that may take a machine out of service asks the disruption budgets, and its dry run
//! shows from which it would take.

use crate::api::TestServer;
use crate::api_cli::Terminal;
use std::collections::BTreeSet;

/// A dry run for each call that takes machines that serve.
const ASKS: &[(&str, &str)] = &[
    ("MachineService/EnterMaintenance", "enter-maintenance m-1"),
    ("MachineService/RebootMachine", "reboot m-1"),
    ("RunService/StartRun", "operation start m-1 --type REBOOT"),
    ("RunService/StartRun", "machine power m-1 off --override in-service --reason r"),
    ("RunService/Rerun", "operation rerun {failed}"),
    ("RunService/RestartClean", "operation restart-clean {failed}"),
    ("RunService/ResumeRun", "operation resume {failed}"),
    ("RunService/RetryStep", "operation retry-step {failed}"),
    ("NodeService/DecommissionNode", "node decommission {node} --mode reimage"),
    ("NodeService/DrainNode", "node drain {node}"),
    ("NodeService/RetireNode", "node retire {node}"),
    (
        "RackService/OnDemandRackMaintenance",
        "rack maintenance start rack-1 --power reset --override in-service --reason r",
    ),
    ("RackService/ReprovisionRack", "rack reprovision rack-1 --override in-service --reason r"),
    (
        "PowerShelfService/SetPowerShelfMaintenance",
        "power-shelf maintenance power-off --id ps-1 --override in-service --reason r",
    ),
    (
        "ComponentService/UpdateComponentFirmware",
        "component firmware update --compute-trays m-3 --target-version fw-9 --override in-service \
         --reason r",
    ),
];

/// The calls that take no machine which serves, by the reason.
const TAKES_NOTHING: &[(&str, &[&str])] = &[
    (
        "its machine is in maintenance, or not in service yet",
        &[
            "HostService/TriggerHostReprovisioning",
            "MachineService/DeleteMachine",
            "MachineService/ExitMaintenance",
            "MachineService/ReimageMachine",
            "NodeService/OnboardNode",
        ],
    ),
    (
        "a stop must always be possible",
        &[
            "HostService/CancelHostReprovisioning",
            "MachineService/CancelOperation",
            "NodeService/QuarantineNode",
            "RunService/CancelRun",
            "RunService/MarkManual",
        ],
    ),
    (
        "it continues an operation like ResumeRun, if the goal of its step holds",
        &["NodeService/ResumeNode", "RunService/AdoptObservedState"],
    ),
    (
        "it brings a node back, or records what is known of an object",
        &[
            "AdminService/ClearNeedsIntervention",
            "HealthService/DeleteHealthReport",
            "HealthService/MergeHealthReport",
            "HealthService/ReplaceHealthReport",
            "MachineService/RegisterMachine",
            "MachineService/RegisterMachines",
            "MachineService/UpdateMachine",
            "NodeService/ReactivateNode",
            "NodeService/ReleaseNode",
        ],
    ),
    (
        "it steers a rollout, which asks when it starts a target",
        &[
            "RolloutService/AbortRollout",
            "RolloutService/CreateRollout",
            "RolloutService/PauseRollout",
            "RolloutService/PromoteRollout",
            "RolloutService/ResumeRollout",
            "RolloutService/RetryRolloutTargets",
            "RolloutService/SkipRolloutTarget",
            "RolloutService/UpdateRollout",
        ],
    ),
    (
        "it changes a record, reads a device or decides about a request",
        &[
            "ApprovalService/DenyApproval",
            "ApprovalService/GrantApproval",
            "ClusterService/CheckCluster",
            "FirmwareService/CreateFirmware",
            "FirmwareService/DeleteFirmware",
            "FirmwareService/UpdateFirmware",
            "HardwareService/Discover",
            "HardwareService/InspectMachine",
            "HardwareService/TestBmc",
            "HardwareService/UnlockBmc",
            "PowerShelfService/DeletePowerShelf",
            "PowerShelfService/RegisterPowerShelf",
            "PowerShelfService/RetryPowerShelf",
            "PowerShelfService/UpdatePowerShelf",
            "RackService/CreateRack",
            "RackService/DeleteRack",
            "RackService/UpdateRack",
            "SiteService/CheckSite",
            "SiteService/CreateSite",
            "SiteService/DeleteSite",
            "SiteService/UpdateSite",
            "SwitchService/DeleteSwitch",
            "SwitchService/RegisterSwitch",
            "SwitchService/RetrySwitch",
            "SwitchService/UpdateSwitch",
        ],
    ),
];

/// The calls that an operator may make and a viewer may not. Calls of administrators only are about
/// configuration.
fn acting_calls() -> BTreeSet<&'static str> {
    let rows = include_str!("access_calls.txt").lines().filter(|line| !line.starts_with('#'));
    let rows = rows.map(|line| line.split(' ').collect::<Vec<_>>());
    let acts = |row: &Vec<&str>| {
        !row.contains(&"viewer") && (row.contains(&"operator") || row.contains(&"rack-operator"))
    };
    rows.filter(acts).map(|row| row[0]).collect()
}

#[test]
fn every_call_that_acts_asks_the_budgets_or_takes_nothing() {
    let takes_nothing = TAKES_NOTHING.iter().flat_map(|(_, calls)| *calls).copied();
    let mut named: BTreeSet<&str> = ASKS.iter().map(|(call, _)| *call).collect();
    for call in takes_nothing {
        assert!(named.insert(call), "{call} is named twice");
    }
    assert_eq!(named, acting_calls());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dry_run_of_every_call_that_takes_machines_names_the_budget() {
    let (env, _) = TestServer::open("zero").await;
    let person = Terminal::new(env.server.url());
    tokio::task::spawn_blocking(move || name_the_budget(&person)).await.unwrap();
}

fn name_the_budget(person: &Terminal) {
    let rack = "rack create rack-1 --hardware-type nvl72 --expect-machines 1";
    person.line(&format!("{rack} --expect-power-shelves 1"), 0);
    person.line("power-shelf register ps-1 --provider sim --rack rack-1", 0);
    person.line("machine register m-3 --provider sim --rack rack-1", 0);
    person.wait_for("rack get rack-1", |one| one["status"]["state"] == "Ready");
    let file = format!("url=https://files.example/bmc.bin,sha256={}", "0".repeat(64));
    let component = format!("--component machine:BMC=9,{file}");
    person.line(&format!("firmware create fw-9 --hardware-type nvl72 --default {component}"), 0);
    for machine in ["m-1", "m-2"] {
        person.line(&format!("machine register {machine} --provider sim"), 0);
    }
    for machine in ["m-1", "m-2", "m-3"] {
        person.line(&format!("enter-maintenance {machine}"), 0);
        person.line(&format!("exit-maintenance {machine}"), 0);
    }
    person.line("site create site-a --provider sim", 0);
    person.line("machine register m-4 --provider sim", 0);
    person.line("node onboard m-4 --site site-a", 0);
    let nodes = person.json("node list");
    let node = nodes[0]["node_id"].as_str().unwrap_or_else(|| panic!("{nodes}"));
    person.line("sim fault add --machine m-2 --effect reboot --action fail --times 0", 0);
    let failed = person.submit("reboot m-2");
    person.line(&format!("operation watch {failed}"), 1);
    person.line("budget create all --max-unavailable 100", 0);
    let mut silent = Vec::new();
    for (call, line) in ASKS {
        let line = line.replace("{node}", node).replace("{failed}", &failed);
        let text = person.output_with_codes(&format!("{line} --dry-run"), &[0, 2]);
        if !text.contains("budget all: takes 1 machine") {
            silent.push(format!("{call}: {line}:\n{text}"));
        }
    }
    assert!(silent.is_empty(), "{}", silent.join("\n"));
}
