//! The program itself, as the deploy environment starts it.

use crate::environment::{KEY, MAC, MIB, TOKEN, TestMachine, image, successful_script};
use crate::server::Server;
use std::process::{Command, Output};

fn agent(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_farrier-agent")).args(arguments).output().unwrap()
}

#[test]
fn program_prints_the_final_action() {
    let machine = TestMachine::new(MIB);
    for (reported, name) in [("stop", "power off"), ("reboot", "reboot")] {
        let mut script = successful_script("raw", image(2 * MIB));
        script.then = [("failed", reported)].into();
        let server = Server::start(script);
        let address = server.address;
        let cmdline = format!(
            "quiet farrier.url=http://{address} farrier.token={TOKEN} farrier.mac={MAC} farrier.key={KEY}"
        );
        let root = machine.folder.path().to_str().unwrap();
        let output = agent(&["--cmdline", &cmdline, "--root", root, "--stay"]);
        let message = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{message}");
        assert!(message.ends_with(&format!("farrier-agent: {name}\n")), "{message}");
        assert!(message.contains("needs 2.0 MiB"), "the console shows what went wrong: {message}");
        assert!(!message.contains(TOKEN));
    }
}

#[test]
fn missing_url_is_a_usage_error() {
    let output = agent(&["--cmdline", "quiet", "--stay"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stdout).contains("no farrier.url="));
    assert_eq!(agent(&["--what"]).status.code(), Some(2));
}
