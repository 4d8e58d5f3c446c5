//! What is on the disk of a machine, as an operator sees it: a half-written disk, and a machine
//! that was never imaged.

use crate::api::TestServer;
use crate::api_cli::Terminal;
use crate::fleet::TEST_TIMEOUT;
use std::time::{Duration, Instant};

/// The output of a command, once it contains this text.
async fn wait_for(person: &Terminal, line: &str, text: &str) -> String {
    let started = Instant::now();
    loop {
        let output = person.line(line, 0);
        if output.contains(text) {
            return output;
        }
        assert!(started.elapsed() < TEST_TIMEOUT, "{line}: {output}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_half_written_disk_leaves_maintenance_only_with_an_override() {
    let (world, mut api) = TestServer::open("human").await;
    let person = Terminal::new(world.server.url());
    api.in_maintenance("m-1").await;
    let row = wait_for(&person, "list", "never").await;
    assert!(row.contains("MAINT       ✓          never"), "{row}");
    let why = person.line("why m-1", 0);
    assert!(why.contains("no image was installed on it here"), "{why}");

    let run = api.start("m-1", "REPAVE", "second").await.run_id;
    wait_for(&person, &format!("logs {run}"), "Progress: 10%").await;
    let row = person.line("list", 0);
    assert!(row.contains("BUSY        ✓          ✗"), "{row}");
    person.line(&format!("cancel {run}"), 0);
    let reason = format!("%:{run}");
    let machine = person.line("get m-1", 0);
    let provisioned = machine.lines().find(|line| line.starts_with("Provisioned")).unwrap();
    assert!(provisioned.contains("Unfinished:ubuntu-2204:"), "{provisioned}");
    assert!(provisioned.ends_with(&reason), "{provisioned}");
    let why = person.line("why m-1", 0);
    assert!(why.contains("its disk is half written"), "{why}");
    assert!(why.contains(&format!("farrier operation rerun {run}")), "{why}");

    let refusal = person.line("exit-maintenance m-1", 2);
    let sentence = format!("{run} did not finish writing ubuntu-2204 to the disk of m-1");
    assert!(refusal.contains(&sentence), "{refusal}");
    assert!(refusal.contains("--override unfinished-disk --reason …"), "{refusal}");
    let wrong = "reboot m-1 --override unfinished-disk --reason x";
    assert!(person.line(wrong, 2).contains("is not a gate of this request"));
    let left =
        ["exit-maintenance", "m-1", "--override", "unfinished-disk", "--reason", "a test rig"];
    person.run(&left, 0);
    let history = person.line("history m-1", 0);
    assert!(history.contains("gate unfinished-disk overridden by"), "{history}");
    assert!(history.contains("a test rig"), "{history}");
    let why = person.line("why m-1", 0);
    assert!(why.contains("m-1 is in phase READY, and its disk is half written"), "{why}");
}
