//! The disk of a machine, as an operator sees it: the image of a plan, a half-written disk, and a
//! machine that was never imaged.

use crate::api::{TestServer, params, plan, refused, step};
use crate::api_cli::Terminal;
use crate::fleet::TEST_TIMEOUT;
use proto::v1;
use proto::v1::step::Kind;
use std::time::{Duration, Instant};
use tonic::Code::{InvalidArgument, NotFound};

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
    wait_for(&person, &format!("logs {run} --no-follow"), "Progress: 10%").await;
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
    let row = person.line("list", 0);
    assert!(row.contains("READY        ⚠IDLE"), "{row}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_is_checked_when_it_is_asked_for() {
    let (world, mut api) = TestServer::open("zero").await;
    let person = Terminal::new(world.server.url());
    assert!(person.line("image list", 0).contains("ubuntu-2204"));
    api.in_maintenance("m-1").await;
    let refusal = person.line("reimage m-1 --image nosuchimage", 2);
    assert!(refusal.contains("no image nosuchimage is known"), "{refusal}");
    assert!(refusal.contains("farrier image list"), "{refusal}");

    // The image of a plan is checked too, and recorded; a request for another one is refused.
    for (id, image) in [("plan-missing", "nosuchimage"), ("plan-rhel", "rhel-9")] {
        let netboot = Kind::Netboot(v1::SetNetboot { mode: "PXE".into() });
        let write = Kind::Repave(v1::RepaveImage { image: image.into() });
        let steps = vec![step("boot", netboot), step("write", write)];
        api.try_plan(plan(id, steps)).await.unwrap();
    }
    let request = |plan: &str, request: &str, pairs: &[(&str, &str)]| v1::StartRunRequest {
        machine_id: "m-1".into(),
        request_id: request.into(),
        r#type: "REPAVE".into(),
        plan_id: plan.into(),
        params: params(pairs),
        ..Default::default()
    };
    refused(api.try_run(request("plan-missing", "a", &[])).await, NotFound, &["nosuchimage"]);
    let other = api.try_run(request("plan-rhel", "b", &[("image_ref", "ubuntu-2204")])).await;
    let words = [r#"params[image_ref] is "ubuntu-2204""#, r#"plan-rhel installs "rhel-9""#];
    refused(other, InvalidArgument, &words);
    let run = api.try_run(request("plan-rhel", "c", &[])).await.unwrap();
    let run = api.finished(&run.run_id).await;
    assert_eq!(
        (run.phase(), run.params["image_ref"].as_str()),
        (v1::run::Phase::Succeeded, "rhel-9")
    );
    let provisioned = api.machine("m-1").await.status.unwrap().conditions;
    let provisioned = provisioned.into_iter().find(|one| one.r#type == "Provisioned").unwrap();
    assert_eq!((provisioned.status, provisioned.reason.as_str()), (true, "Image:rhel-9"));
}
