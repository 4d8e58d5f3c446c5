//! Every fault that the simulator can inject: the commands that `farrier why` prints, typed as
//! they are printed, make the object well again.

use crate::api_cli::Terminal;
use crate::fleet::{Server, Setup, TEST_TIMEOUT};
use model::fault::FaultCode;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

/// Plans of few steps: one attempt each, and a short deadline where it must pass.
const PLANS: &[(&str, &str)] = &[
    ("reboot", "  - {name: look, timeout_seconds: 60, max_retries: 0, reboot: {}}\n"),
    ("hang", "  - {name: look, timeout_seconds: 3, max_retries: 0, reboot: {}}\n"),
    ("ssh", "  - {name: look, timeout_seconds: 60, max_retries: 0, ssh: {command: uptime}}\n"),
    (
        "drain",
        "  - {name: look, timeout_seconds: 60, max_retries: 0, drain: {cluster_ref: cluster-a}}\n",
    ),
    (
        "repave",
        "  - {name: pxe, timeout_seconds: 60, max_retries: 0, netboot: {mode: PXE}}\n  \
         - {name: look, timeout_seconds: 60, max_retries: 0, repave: {image: ubuntu-2204}}\n",
    ),
];

/// The number of codes that are injected and repaired at once.
const AT_ONCE: usize = 4;

/// The path to a fault.
#[derive(Clone, Copy)]
enum Injection {
    /// A rule with the code fails the last step of this plan.
    Step(&'static str),
    /// A rule with the code fails this stage of an onboarding.
    Onboarding(&'static str),
    /// A rule with the code fails this stage of a storage cleanup.
    Cleanup(&'static str),
    /// The operating system of a machine that is off is asked.
    PoweredOff,
    /// The answer is lost, and so is every answer about it.
    LostAnswers,
    /// The deadline of a step passes.
    Hanging,
    /// The peer is busy until the deadline of a step.
    Busy,
    /// A failed step is adopted, and its goal does not hold.
    Adoption,
    /// A run is canceled, and its undo fails.
    Undo,
    /// A run is frozen by its operator.
    Frozen,
    /// One device of a rack fails.
    RackPart,
    /// The maintenance of a rack names a firmware that does not exist.
    RackFirmware,
    /// Nothing that the simulator does ends an operation with it, and why.
    Never(&'static str),
}

/// One closed match: a new code has no test before it is decided here.
const fn injection(code: FaultCode) -> Injection {
    use FaultCode::*;
    match code {
        BmcUnreachable | BmcBusy | BmcGarbled | EffectFailed | ReadBackDiffers | LoginRefused
        | IdentityChanged | IdentityUntrusted | CredentialMissing | CredentialNotAllowed
        | SystemAmbiguous | DatabaseUnreachable | LocalResources | CapabilityMissing
        | NotSupported | ProviderMissing | MachineGone | ForeignEngine | RecordUnreadable
        | FirmwareUnfetched | FirmwareFailed | FirmwareDiffers | FabricFailed => {
            Injection::Step("reboot")
        }
        CommandFailed | HostDiskFull => Injection::Step("ssh"),
        EvictionBlocked | ClusterUnreachable | NotInCluster => Injection::Step("drain"),
        ImageUnknown | NetbootSilent | DeploySilent | ChecksumWrong | DiskUnfit | InstallFailed
        | SystemNotBack => Injection::Step("repave"),
        SiteUnfit | MaasUnreachable | MaasFailed | MaasRefused | CandidatesConflict => {
            Injection::Onboarding("create_or_find_in_maas")
        }
        CommissioningFailed | MaasMachineGone => Injection::Onboarding("commission_node"),
        StateDisagrees => Injection::Onboarding("wait_for_ready"),
        BootDiskMissing => Injection::Onboarding("configure_storage"),
        PxeInterfaceUnfixable => Injection::Onboarding("ensure_pxe_interface_auto"),
        DeployFailed | DatasourceFailed => Injection::Onboarding("wait_for_deployed"),
        HardwareSyncFailed => Injection::Onboarding("wait_for_hardware_sync_healthy"),
        AgentSilent | SeedFailed => Injection::Onboarding("wait_for_agent_enrollment"),
        TaskFailed => Injection::Cleanup("cleanup_storage"),
        NodeNotClean => Injection::Cleanup("validate_clean_node"),
        HostUnreachable => Injection::PoweredOff,
        OutcomeUnknown => Injection::LostAnswers,
        StepTimeout => Injection::Hanging,
        MaasBusy => Injection::Busy,
        NotAdoptable => Injection::Adoption,
        UndoFailed => Injection::Undo,
        FrozenByOperator => Injection::Frozen,
        PartFailed => Injection::RackPart,
        FirmwareUnknown => Injection::RackFirmware,
        AnswerLost | AnswerGarbled => Injection::Never("the status is read before an attempt ends"),
        TaskLost => Injection::Never("simulated hardware has no Redfish tasks"),
        WorkerPanicked | ProtocolBroken => Injection::Never("the simulator has no such bug"),
    }
}

/// An object with a fault, and how it is seen to be well.
struct Case {
    code: FaultCode,
    /// The object that a person asks about.
    object: String,
    /// The object in the list of what needs a person.
    listed: String,
    well: Well,
}

enum Well {
    Machine,
    /// The node of this machine.
    NodeOf(String),
    Rack(String),
}

/// Backoffs take no time.
pub fn quick(dir: &Path) -> Setup {
    let config = "[engine]\nbackoff_first_ms = 1\nbackoff_most_ms = 5".into();
    Setup { config, ..Setup::new(dir, "zero") }
}

/// Every code is injected by its path, or no rule of the simulator may have it. Two passes: all
/// faults are injected, then the hardware is repaired and the commands do the rest.
#[test]
fn the_printed_commands_repair_every_fault_of_the_simulator() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(quick(dir.path()));
    let url = server.url();
    let person = Terminal::new(url.clone());
    for (name, steps) in PLANS {
        let file = dir.path().join(format!("{name}.yaml"));
        let plan = format!("plan_id: plan-{name}\ndisplay_name: {name}\nsteps:\n{steps}");
        std::fs::write(&file, plan).unwrap();
        person.line(&format!("plan create -f {}", file.display()), 0);
    }
    person.line("site create site-lab --provider sim", 0);
    let cases: Vec<Case> =
        in_parallel(FaultCode::ALL, |code| inject(&url, *code)).into_iter().flatten().collect();
    let attention = person.run(&["why", "-o", "json"], 1);
    for Case { code, listed, .. } in &cases {
        assert!(
            attention.contains(listed.as_str()),
            "{listed} ({code:?}) needs a person: {attention}"
        );
    }
    person.line("sim fault clear --all", 0);
    let problems = in_parallel(&cases, |case| repair(&url, case).err());
    let problems: Vec<String> = problems.into_iter().flatten().collect();
    assert!(problems.is_empty(), "{}", problems.join("\n\n"));
    until_nothing_needs_a_person(&url);
}

/// A node that was given back is offline until its next heartbeat.
fn until_nothing_needs_a_person(url: &str) {
    let started = Instant::now();
    loop {
        let (code, output) = typed_in_shell(url, "farrier why");
        if code == 0 {
            return;
        }
        assert!(started.elapsed() < TEST_TIMEOUT, "{output}");
    }
}

/// Applies `work` to each item, a few at once, in their order.
fn in_parallel<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let next = std::sync::atomic::AtomicUsize::new(0);
    let done = std::sync::Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    let Some(item) = items.get(index) else { return };
                    let result = work(item);
                    done.lock().unwrap().push((index, result));
                }
            });
        }
    });
    let mut done = done.into_inner().unwrap();
    done.sort_by_key(|(index, _)| *index);
    done.into_iter().map(|(_, result)| result).collect()
}

/// Makes an operation fail with the fault. None: the simulator cannot.
fn inject(url: &str, code: FaultCode) -> Option<Case> {
    let person = Terminal::new(url.to_string());
    let word = code.as_str();
    let machine = format!("m-{word}");
    let register = format!("machine register {machine} --provider sim");
    let rule = |more: &str| {
        person.line(&format!("sim fault create --machine {machine} {more} --times 0"), 0);
    };
    let enter = || {
        person.line(&register, 0);
        person.line(&format!("enter-maintenance {machine}"), 0);
    };
    let start_line =
        |plan: &str| format!("operation start {machine} --type UPGRADE --plan plan-{plan}");
    let start = |plan: &str| {
        person.line(&start_line(plan), 1);
    };
    let submit = |plan: &str| person.submit(&start_line(plan));
    let well = match injection(code) {
        Injection::Never(why) => {
            assert!(!why.is_empty(), "{code:?}");
            let line = format!("sim fault create --effect reboot --action fail --code {word}");
            person.line(&line, 2);
            return None;
        }
        Injection::Step(plan) => {
            enter();
            rule(&format!("--effect {plan} --action fail --code {word}"));
            start(plan);
            Well::Machine
        }
        Injection::PoweredOff => {
            enter();
            person.line(&format!("machine power {machine} off"), 0);
            start("ssh");
            Well::Machine
        }
        Injection::LostAnswers => {
            enter();
            rule("--effect reboot --action drop");
            rule("--effect reboot --verb get_status --action fail");
            start("reboot");
            Well::Machine
        }
        Injection::Hanging => {
            enter();
            rule("--effect reboot --action hang");
            start("hang");
            Well::Machine
        }
        Injection::Busy => {
            enter();
            rule(&format!("--effect reboot --action fail --code {word}"));
            start("hang");
            Well::Machine
        }
        Injection::Adoption => {
            enter();
            rule("--effect reboot --action fail");
            let id = submit("reboot");
            ended(&person, &id);
            person.line(&format!("operation adopt {id}"), 1);
            Well::Machine
        }
        Injection::Undo => {
            enter();
            rule("--effect repave --action hang");
            let id = submit("repave");
            person.at_step(&id, "look");
            rule("--effect netboot --action fail");
            person.line(&format!("cancel {id}"), 0);
            Well::Machine
        }
        Injection::Frozen => {
            enter();
            rule("--effect reboot --action hang");
            let id = submit("reboot");
            person.line(&format!("operation mark-manual {id} --reason look"), 0);
            ended(&person, &id);
            Well::Machine
        }
        Injection::Onboarding(stage) => {
            person.line(&register, 0);
            rule(&format!("--effect {stage} --action fail --code {word}"));
            person.line(&format!("node onboard {machine} --site site-lab"), 1);
            Well::NodeOf(machine.clone())
        }
        Injection::Cleanup(stage) => {
            person.line(&register, 0);
            person.line(&format!("node onboard {machine} --site site-lab"), 0);
            rule(&format!("--effect {stage} --action fail --code {word}"));
            let node = node_of(&person, &machine);
            person.line(&format!("node decommission {node} --mode storage_cleanup"), 1);
            Well::NodeOf(machine.clone())
        }
        Injection::RackPart | Injection::RackFirmware => {
            let rack = format!("rack-{word}");
            person.line(&format!("rack create {rack} --expect-machines 1"), 0);
            person.line(&format!("{register} --rack {rack} --slot 1"), 0);
            let get = format!("rack get {rack}");
            until(&person, &get, |rack| rack["status"]["state"] == "Ready");
            let request = match injection(code) {
                Injection::RackPart => {
                    rule("--effect power --action fail");
                    "--activity power"
                }
                _ => "--activity firmware --firmware-version nope",
            };
            person.line(&format!("rack maintenance start {rack} {request}"), 1);
            until(&person, &get, |rack| rack["status"]["state"] == "Error");
            Well::Rack(rack)
        }
    };
    let (object, listed) = match &well {
        Well::Machine => (machine.clone(), machine),
        Well::NodeOf(machine) => (node_of(&person, machine), machine.clone()),
        Well::Rack(rack) => {
            let status = person.json(&format!("rack maintenance status {rack}"));
            let id = status[0]["operation"]["operation_id"].as_str().unwrap().to_string();
            (id, rack.clone())
        }
    };
    let why = person.json(&format!("why {object}"));
    assert_eq!(why["fault"], word, "{why:#}");
    Some(Case { code, object, listed, well })
}

/// Waits for the end of an operation.
pub fn ended(person: &Terminal, id: &str) {
    until(person, &format!("operation get {id}"), |run| !run["finished_at"].is_null());
}

pub fn node_of(person: &Terminal, machine: &str) -> String {
    let nodes = person.json(&format!("node list --machine {machine}"));
    nodes[0]["node_id"].as_str().unwrap_or_else(|| panic!("{nodes}")).to_string()
}

/// Types the printed commands in their order until the object is well. One with an ellipsis needs
/// a value that only a person knows.
fn repair(url: &str, case: &Case) -> Result<(), String> {
    let person = Terminal::new(url.to_string());
    let why = person.json(&format!("why {}", case.object));
    let commands = why["next_commands"].as_array().unwrap();
    let mut typed = Vec::new();
    for command in commands.iter().map(|command| command.as_str().unwrap()) {
        if command.contains('…') {
            continue;
        }
        let (code, output) = typed_in_shell(url, command);
        typed.push(format!("{command} -> {code}\n{output}"));
        if code == 2 {
            return Err(format!(
                "{:?}: a refused command is printed\n{}",
                case.code,
                typed.join("\n")
            ));
        }
        if is_well(&person, case) {
            return Ok(());
        }
    }
    Err(format!("{:?}: {} is not well after\n{}", case.code, case.object, typed.join("\n")))
}

fn typed_in_shell(server: &str, command: &str) -> (i32, String) {
    let binary = Path::new(env!("CARGO_BIN_EXE_farrier"));
    let path = format!("{}:/usr/bin:/bin", binary.parent().unwrap().display());
    let output = Command::new("sh")
        .args(["-c", command])
        .env("PATH", path)
        .env("FARRIER_SERVER", server)
        .env("FARRIER_TOKEN", crate::fleet::TEST_TOKEN)
        .env("FARRIER_CONTEXTS", crate::fleet::NO_CONTEXTS)
        .env("USER", "ada")
        .output()
        .unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code().unwrap_or(-1), String::from_utf8_lossy(&text).into_owned())
}

/// The operation has succeeded, and the object is as it should be after it.
fn is_well(person: &Terminal, case: &Case) -> bool {
    match &case.well {
        Well::Machine => {
            let machine = person.json(&format!("get {}", case.object));
            let problem = machine["status"]["problem"].as_str().unwrap_or_default();
            machine["status"]["effective_state"] == "MAINTENANCE" && problem.is_empty()
        }
        Well::NodeOf(machine) => {
            let found = person.json(&format!("node get {}", node_of(person, machine)));
            let done = ["completed", "reconciled"].map(serde_json::Value::from);
            found["node"]["state"] != "quarantined"
                && done.contains(&found["workflow"]["workflow_state"])
        }
        Well::Rack(rack) => {
            let settled = |rack: &serde_json::Value| {
                ["Ready", "Error"].iter().any(|state| rack["status"]["state"] == *state)
            };
            until(person, &format!("rack get {rack}"), settled)["status"]["state"] == "Ready"
        }
    }
}

#[track_caller]
fn until(
    person: &Terminal,
    line: &str,
    holds: impl Fn(&serde_json::Value) -> bool,
) -> serde_json::Value {
    let started = Instant::now();
    loop {
        let observed = person.json(line);
        if holds(&observed) {
            return observed;
        }
        assert!(started.elapsed() < TEST_TIMEOUT, "{line}: {observed:#}");
    }
}

/// A refused request is shown by `why` and by the history of its object.
#[test]
fn a_refused_request_leaves_a_trace() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(quick(dir.path()));
    let person = Terminal::new(server.url());
    person.line("machine register m-1 --provider sim", 0);
    person.line("reimage m-1 --image ubuntu-2204", 2);
    let why = until(&person, "why m-1", |why| !why["refused"].as_str().unwrap_or("").is_empty());
    let refused = why["refused"].as_str().unwrap();
    assert!(refused.starts_with("REIMAGE of "), "{refused}");
    assert!(refused.ends_with("(WRONG_PHASE)"), "{refused}");
    for order in ["", " --sort ts:desc", " --filter cause=request"] {
        let history = person.line(&format!("history m-1{order}"), 0);
        assert!(history.contains("REIMAGE refused: REIMAGE needs phase MAINTENANCE"), "{history}");
    }
    let history = person.line("history m-1 --filter cause=probe", 0);
    assert!(!history.contains("refused"), "{history}");
    // So is a request that names an image which does not exist.
    person.line("enter-maintenance m-1", 0);
    let refused = person.line("reimage m-1 --image no-such-image", 2);
    assert!(refused.contains("no image no-such-image is known"), "{refused}");
    let tells =
        |why: &serde_json::Value| why["refused"].as_str().unwrap_or("").contains("no-such-image");
    until(&person, "why m-1", tells);
    let history = person.line("history m-1", 0);
    assert!(history.contains("REIMAGE refused: no image no-such-image is known"), "{history}");
}

/// `why` and `history` take what a person has at hand; what acts takes exact ids.
#[test]
fn an_object_is_found_by_any_of_its_names() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(quick(dir.path()));
    let person = Terminal::new(server.url());
    let one = "--serial SN-7 --mac aa:bb:cc:00:11:22 --label name=left";
    person.line(&format!("machine register m-1 --provider sim {one}"), 0);
    person.line("machine register m-2 --provider sim --serial SN-8 --label name=left", 0);
    for name in ["M-1", "sn-7", "AA:BB:CC:00:11:22", "aabbcc001122"] {
        assert_eq!(person.json(&format!("why {name}"))["id"], "m-1", "{name}");
    }
    let message = person.line("why LEFT", 2);
    assert!(message.contains("fits 2 objects: m-1, m-2"), "{message}");
    let message = person.line("why nothing-like-it", 2);
    assert!(message.contains("nothing is known as \"nothing-like-it\""), "{message}");
    for words in ["serial number", "host name", "farrier list"] {
        assert!(message.contains(words), "{message}");
    }
    assert_eq!(person.json("get SN-7")["machine_id"], "m-1");
    person.line("history AA:BB:CC:00:11:22", 0);
    person.line("enter-maintenance sn-7", 2);
    person.line("why", 0);
}
