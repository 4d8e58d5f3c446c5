//! The whole reimage: an image in the catalogue, a machine with an empty disk, and a new system
//! that answers with the given host key and reports the name of its image.

use crate::site::{Site, Vm};
use crate::stage::{farrier, finish};
use std::time::Duration;

/// Emulated processors are slow, and the host may be busy.
const REIMAGE: &str = "15m";
const WRITING: Duration = Duration::from_secs(300);
/// Longer than one attempt of the deploy agent, so that it notices the outage.
const AWAY: Duration = Duration::from_secs(4);

fn image(kind: &str) -> String {
    let name = format!("FARRIER_VM_{}", kind.to_uppercase());
    std::env::var(&name).unwrap_or_else(|_| panic!("{name} is not set; run `cargo xtask test-vm`"))
}

/// Starts Farrier with one image per kind, named after the kind, and the machine in maintenance.
fn with_images(number: usize, kinds: &[&str]) -> Site {
    let site = Site::open(Vm::numbered(number));
    for kind in kinds {
        site.run(&[
            "image",
            "create",
            &format!("tiny-{kind}"),
            "--file",
            &image(kind),
            "--kind",
            kind,
        ]);
    }
    site.line(&format!("enter-maintenance {}", site.vm.name));
    site
}

/// Runs a command on the new system over SSH, by a plan.
fn runs_commands(site: &Site, image: &str) {
    let name = &site.vm.name;
    let command = "echo I am $(hostname); . /etc/os-release; echo on $ID; cat /etc/farrier/image";
    // The operation ends when the machine is on, before its system has booted.
    let step = format!("  - {{name: ask, max_retries: 10, ssh: {{command: '{command}'}}}}\n");
    site.plan(&format!("ask-{image}"), &step);
    let start = format!("operation start {name} --type UPGRADE --plan ask-{image} --timeout 5m");
    let run = site.line(&start);
    assert!(run.contains("SUCCEEDED"), "{run}");
    for words in [&format!("I am {name}"), "on farrier-test", &format!("image {image}")] {
        assert!(run.contains(words), "{words:?} is not in\n{run}");
    }
}

/// The ID of the newest operation.
fn newest(site: &Site) -> String {
    let operations = site.json("ops --limit 1");
    let id = operations.pointer("/0/operation_id").and_then(|id| id.as_str());
    id.unwrap_or_else(|| panic!("{operations}")).to_string()
}

/// Checks that the run itself has verified the image name.
fn says_so_itself(site: &Site, run: &str, image: &str) {
    let reported = site.line(&format!("operation get {run}"));
    assert!(reported.contains(&format!("it runs {image} and says so itself")), "{reported}");
}

/// A reimage of an empty disk, then of the same disk with a system on it.
#[test]
fn a_machine_is_reimaged_over_the_network() {
    let kinds = ["qcow2", "tar"];
    let site = with_images(1, &kinds);
    for image in kinds.map(|kind| format!("tiny-{kind}")) {
        let reported = site.line(&format!("reimage vm-1 --image {image} --timeout {REIMAGE}"));
        assert!(reported.contains("SUCCEEDED"), "{reported}");
        says_so_itself(&site, &newest(&site), &image);
        runs_commands(&site, &image);
    }
    let why = site.line("why vm-1");
    assert!(why.contains("vm-1 is in maintenance, as its operator intends"), "{why}");
}

#[test]
fn a_reimage_survives_kill_9_while_the_image_is_written() {
    let mut site = with_images(2, &["raw"]);
    let args = ["reimage", "vm-2", "--image", "tiny-raw", "--timeout", REIMAGE];
    println!("$ farrier {}", args.join(" "));
    let follower = farrier(&site.url(), &args);
    site.vm.wait_for_console("writing tiny-raw", WRITING);
    site.kill_and_start(AWAY);
    let (code, stdout, stderr) = finish(follower);
    assert_eq!(code, 0, "{stdout}{stderr}");
    assert!(stdout.contains("SUCCEEDED"), "{stdout}");

    // The server was killed during the write, which continued from its offset; no step was started
    // again.
    let console = site.vm.console();
    assert!(console.contains("going on from byte"), "{}", site.vm.tail());
    assert_eq!(console.matches("writing tiny-raw").count(), 1, "{}", site.vm.tail());
    let run = newest(&site);
    let log = site.line(&format!("logs {run}"));
    for once in
        ["[repave-os] power: switching it on", "image: tiny-raw (raw) for", "image: installed"]
    {
        assert_eq!(log.matches(once).count(), 1, "{once}\n{log}");
    }
    let history = site.line(&format!("history {run}"));
    assert!(history.contains("took over"), "{history}");
    says_so_itself(&site, &run, "tiny-raw");
    runs_commands(&site, "tiny-raw");
}
