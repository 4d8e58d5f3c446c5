//! Every fault that the simulator can inject: the commands that `farrier why` prints, typed as
//! they are printed, make the object well again.

use crate::api_cli::Terminal;
use crate::fleet::{Server, Setup, TEST_TIMEOUT};
use model::fault::FaultCode;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

/// One plan for each kind of step: a short deadline, and one attempt.
const PLAN: &str = "plan_id: PLAN\ndisplay_name: one step\nsteps:\n  - STEP\n";

/// How a fault is injected, and which object has it then.
struct Injection {
    code: FaultCode,
    /// The step of the plan; empty: another command.
    step: &'static str,
    rules: &'static [&'static str],
    /// The command that meets the fault, if it is not a run of the plan.
    command: &'static str,
    object: &'static str,
}

const REBOOT: &str = "{name: look, timeout_seconds: 60, max_retries: 0, reboot: {}}";
const SSH: &str = "{name: look, timeout_seconds: 60, max_retries: 0, ssh: {command: uptime}}";

const INJECTIONS: &[Injection] = &[
    Injection {
        code: FaultCode::EffectFailed,
        step: REBOOT,
        rules: &["--effect reboot --action fail --times 0"],
        command: "",
        object: "m-effect-failed",
    },
    Injection {
        code: FaultCode::CommandFailed,
        step: SSH,
        rules: &["--effect ssh --action fail --times 0"],
        command: "",
        object: "m-command-failed",
    },
    Injection {
        code: FaultCode::EvictionBlocked,
        step: "{name: look, timeout_seconds: 60, max_retries: 0, drain: {cluster_ref: cluster-a}}",
        rules: &["--effect drain --action fail --times 0"],
        command: "",
        object: "m-eviction-blocked",
    },
    Injection {
        code: FaultCode::OutcomeUnknown,
        step: REBOOT,
        rules: &[
            "--effect reboot --action drop --times 0",
            "--effect reboot --verb get_status --action fail --times 0",
        ],
        command: "",
        object: "m-outcome-unknown",
    },
    Injection {
        code: FaultCode::StepTimeout,
        step: "{name: look, timeout_seconds: 3, max_retries: 0, reboot: {}}",
        rules: &["--effect reboot --action hang --times 0"],
        command: "",
        object: "m-step-timeout",
    },
    Injection {
        code: FaultCode::PartFailed,
        step: "",
        rules: &["--effect power --action fail --times 0"],
        command: "rack maintenance start rack-1 --activity power",
        object: "m-part-failed",
    },
];

/// Backoffs take no time.
fn quick(dir: &Path) -> Setup {
    let config = "[engine]\nbackoff_first_ms = 1\nbackoff_most_ms = 5".into();
    Setup { config, ..Setup::new(dir, "zero") }
}

#[test]
fn the_printed_commands_repair_every_fault_of_the_simulator() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(quick(dir.path()));
    let person = Terminal::new(server.url());
    for code in server::SIMULATED_FAULTS {
        let injected = INJECTIONS.iter().find(|one| one.code == *code);
        let one = injected.unwrap_or_else(|| panic!("nothing injects {}", code.as_str()));
        let object = inject(&person, dir.path(), one);
        let why = person.json(&format!("why {object}"));
        repair(&person, &server.url(), &object, &why);
    }
    assert_eq!(INJECTIONS.len(), server::SIMULATED_FAULTS.len(), "a case has no fault");
    person.line("why", 0);
}

/// Makes an operation fail with the fault. Returns the id of the object to ask about.
fn inject(person: &Terminal, dir: &Path, one: &Injection) -> String {
    let Injection { code, step, rules, command, object } = one;
    let in_rack = if step.is_empty() { " --rack rack-1 --slot 1" } else { "" };
    if step.is_empty() {
        person.line("rack create rack-1 --expect-machines 1", 0);
    }
    person.line(&format!("machine register {object} --provider sim{in_rack}"), 0);
    if !step.is_empty() {
        person.line(&format!("enter-maintenance {object}"), 0);
    }
    if step.is_empty() {
        until(person, "rack get rack-1", |rack| rack["status"]["state"] == "Ready");
    }
    for rule in *rules {
        person.line(&format!("sim fault add --machine {object} {rule}"), 0);
    }
    let command = match step.is_empty() {
        true => command.to_string(),
        false => {
            let file = dir.join(format!("{}.yaml", code.as_str()));
            let plan = format!("plan-{}", code.as_str());
            std::fs::write(&file, PLAN.replace("PLAN", &plan).replace("STEP", step)).unwrap();
            person.line(&format!("plan create -f {}", file.display()), 0);
            format!("operation start {object} --type UPGRADE --plan {plan}")
        }
    };
    person.line(&command, 1);
    let (about, listed) = match step.is_empty() {
        true => {
            until(person, "rack get rack-1", |rack| rack["status"]["state"] == "Error");
            let status = person.json("rack maintenance status rack-1");
            (status[0]["operation"]["operation_id"].as_str().unwrap().to_string(), "rack-1")
        }
        false => (object.to_string(), *object),
    };
    let why = person.json(&format!("why {about}"));
    assert_eq!(why["fault"], code.as_str(), "{why:#}");
    let attention = person.run(&["why", "-o", "json"], 1);
    assert!(attention.contains(listed), "{listed} needs a person: {attention}");
    // The hardware is repaired; the commands do the rest.
    person.line("sim fault clear --all", 0);
    about
}

/// Types the printed commands in their order until the object is well.
fn repair(person: &Terminal, server: &str, object: &str, why: &serde_json::Value) {
    let commands = why["next_commands"].as_array().unwrap();
    let mut typed = Vec::new();
    for command in commands {
        let command = command.as_str().unwrap();
        let (code, output) = typed_in_shell(server, command);
        typed.push(format!("{command} -> {code}\n{output}"));
        assert_ne!(code, 2, "{command} is refused:\n{output}");
        if is_well(person, object) {
            return;
        }
    }
    panic!("{object} is not well after\n{}", typed.join("\n"));
}

fn typed_in_shell(server: &str, command: &str) -> (i32, String) {
    let binary = Path::new(env!("CARGO_BIN_EXE_farrier"));
    let path = format!("{}:/usr/bin:/bin", binary.parent().unwrap().display());
    let output = Command::new("sh")
        .args(["-c", command])
        .env("PATH", path)
        .env("FARRIER_SERVER", server)
        .env("USER", "ada")
        .output()
        .unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code().unwrap_or(-1), String::from_utf8_lossy(&text).into_owned())
}

fn is_well(person: &Terminal, object: &str) -> bool {
    match object.starts_with("op-") {
        true => {
            let settled = |rack: &serde_json::Value| {
                ["Ready", "Error"].iter().any(|state| rack["status"]["state"] == *state)
            };
            let rack = until(person, "rack get rack-1", settled);
            rack["status"]["state"] == "Ready"
        }
        false => {
            let machine = person.json(&format!("get {object}"));
            machine["status"]["effective_state"] == "MAINTENANCE"
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
    assert!(message.contains("no machine or operation nothing-like-it is known"), "{message}");
    assert_eq!(person.json("get SN-7")["machine_id"], "m-1");
    person.line("history AA:BB:CC:00:11:22", 0);
    person.line("enter-maintenance sn-7", 2);
    person.line("why", 0);
}
