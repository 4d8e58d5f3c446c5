//! The whole way: an image in the catalogue, a machine with an empty disk, and at the end a system that answers with the key
//! it was given and says which image it is.

use crate::site::{Site, Vm};
use crate::stage::{farrier, finish};
use std::time::Duration;

/// Emulated processors are slow, and the computer under them may be busy.
const REIMAGE: &str = "15m";
const WRITING: Duration = Duration::from_secs(300);
/// Longer than one try of the deploy environment, so that it notices.
const AWAY: Duration = Duration::from_secs(4);

fn image(kind: &str) -> String {
    let name = format!("FARRIER_VM_{}", kind.to_uppercase());
    std::env::var(&name).unwrap_or_else(|_| panic!("{name} is not set; run `cargo xtask test-vm`"))
}

/// A Farrier that has each of these images under the name of its kind, and the machine in maintenance.
fn with_images(number: usize, kinds: &[&str]) -> Site {
    let site = Site::open(Vm::numbered(number));
    for kind in kinds {
        site.run(&[
            "image",
            "add",
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

/// The new system is asked by a plan, over SSH.
fn runs_commands(site: &Site, image: &str) {
    let name = &site.vm.name;
    let command = "echo I am $(hostname); . /etc/os-release; echo on $ID; cat /etc/farrier/image";
    // An operation that ends with a reboot ends when the machine is on, and not yet its system.
    let step = format!("  - {{name: ask, max_retries: 10, ssh: {{command: '{command}'}}}}\n");
    site.plan(&format!("ask-{image}"), &step);
    let start = format!("run start {name} --type UPGRADE --plan ask-{image} --timeout 5m");
    let run = site.line(&start);
    assert!(run.contains("SUCCEEDED"), "{run}");
    for words in [&format!("I am {name}"), "on farrier-test", &format!("image {image}")] {
        assert!(run.contains(words), "{words:?} is not in\n{run}");
    }
}

/// The newest operation.
fn newest(site: &Site) -> String {
    let operations = site.json("ops --limit 1");
    let id = operations.pointer("/0/operation_id").and_then(|id| id.as_str());
    id.unwrap_or_else(|| panic!("{operations}")).to_string()
}

/// The run says of itself that the right system answered.
fn says_so_itself(site: &Site, run: &str, image: &str) {
    let told = site.line(&format!("run get {run}"));
    assert!(told.contains(&format!("it runs {image} and says so itself")), "{told}");
}

/// A disk that was empty, and then the same one with a system on it.
#[test]
fn a_machine_is_reimaged_over_the_network() {
    let kinds = ["qcow2", "tar"];
    let site = with_images(1, &kinds);
    for image in kinds.map(|kind| format!("tiny-{kind}")) {
        let told = site.line(&format!("reimage vm-1 --image {image} --timeout {REIMAGE}"));
        assert!(told.contains("SUCCEEDED"), "{told}");
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
    site.vm.says("writing tiny-raw", WRITING);
    site.kill_and_start(AWAY);
    let (code, stdout, stderr) = finish(follower);
    assert_eq!(code, 0, "{stdout}{stderr}");
    assert!(stdout.contains("SUCCEEDED"), "{stdout}");

    // It struck the writing, which went on from where it was, and nothing was begun again.
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
