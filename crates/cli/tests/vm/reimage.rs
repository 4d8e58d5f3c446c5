//! The whole way: an image in the catalogue, a machine with an empty disk, and at the end a system that answers with the key
//! it was given and says which image it is.

use crate::site::{Site, Vm};
use crate::stage::{farrier, finish};
use std::time::{Duration, Instant};

/// Emulated processors are slow, and the computer under them may be busy.
const REIMAGE: &str = "15m";
const WRITING: Duration = Duration::from_secs(300);
const POLL: Duration = Duration::from_millis(100);
/// Longer than one try of the deploy environment, so that it notices.
const AWAY: Duration = Duration::from_secs(4);

fn image(kind: &str) -> String {
    let name = format!("FARRIER_VM_{}", kind.to_uppercase());
    std::env::var(&name).unwrap_or_else(|_| panic!("{name} is not set; run `cargo xtask test-vm`"))
}

fn with_image(number: usize, kind: &str) -> Site {
    let site = Site::open(Vm::numbered(number));
    site.run(&["image", "add", "tiny", "--file", &image(kind), "--kind", kind]);
    site.line(&format!("enter-maintenance {}", site.vm.name));
    site
}

/// The new system is asked by a plan, over SSH.
fn runs_commands(site: &Site) {
    let name = &site.vm.name;
    let command = "echo I am $(hostname); . /etc/os-release; echo on $ID; cat /etc/farrier/image";
    site.plan("ask", &format!("  - {{name: ask, ssh: {{command: '{command}'}}}}\n"));
    let run = site.line(&format!("run start {name} --type UPGRADE --plan ask --timeout 5m"));
    assert!(run.contains("SUCCEEDED"), "{run}");
    for words in [&format!("I am {name}"), "on farrier-test", "tiny"] {
        assert!(run.contains(words), "{words:?} is not in\n{run}");
    }
}

/// The log of the newest operation.
fn log(site: &Site) -> (String, String) {
    let operations = site.json("ops --limit 1");
    let id = operations.pointer("/0/operation_id").or(operations.pointer("/operations/0/operation_id"));
    let id = id.and_then(|id| id.as_str()).unwrap_or_else(|| panic!("{operations}")).to_string();
    let log = site.line(&format!("logs {id}"));
    (id, log)
}

#[test]
fn a_machine_is_reimaged_over_the_network() {
    let site = with_image(1, "qcow2");
    let told = site.line(&format!("reimage vm-1 --image tiny --timeout {REIMAGE}"));
    assert!(told.contains("SUCCEEDED"), "{told}");
    assert!(told.contains("it runs tiny and says so itself"), "{told}");
    runs_commands(&site);
    let why = site.line("why vm-1");
    assert!(why.contains("vm-1"), "{why}");
}

#[test]
fn a_reimage_survives_kill_9_while_the_image_is_written() {
    let mut site = with_image(2, "raw");
    let args = ["reimage", "vm-2", "--image", "tiny", "--timeout", REIMAGE];
    println!("$ farrier {}", args.join(" "));
    let follower = farrier(&site.url(), &args);
    let started = Instant::now();
    println!("waiting for the image to be written, at most {} s", WRITING.as_secs());
    while !site.vm.console().contains("writing tiny") {
        assert!(started.elapsed() < WRITING, "it never was");
        std::thread::sleep(POLL);
    }
    site.kill_and_start(AWAY);
    let (code, stdout, stderr) = finish(follower);
    assert_eq!(code, 0, "{stdout}{stderr}");
    assert!(stdout.contains("SUCCEEDED"), "{stdout}");

    // It struck the writing, which went on from where it was, and nothing was begun again.
    let console = site.vm.console();
    assert!(console.contains("going on from byte"), "{}", site.vm.tail());
    assert_eq!(console.matches("writing tiny").count(), 1, "{}", site.vm.tail());
    let (id, log) = log(&site);
    assert_eq!(log.matches("the deploy environment is up").count(), 1, "{log}");
    let history = site.line(&format!("history {id}"));
    assert!(history.contains("took over"), "{history}");
    runs_commands(&site);
}
