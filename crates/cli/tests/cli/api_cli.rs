//! The command line against a real server: every command of the help, every format, every exit
//! code.

mod access;
mod catalogue;
mod hardware;
mod notify;
mod stored;

use crate::api::TestServer;
use crate::stage::{farrier, finish};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

/// An operator at a terminal. It records which commands were typed.
pub struct Terminal {
    url: String,
    typed: RefCell<BTreeSet<String>>,
}

impl Terminal {
    pub fn new(url: String) -> Self {
        Self { url, typed: RefCell::default() }
    }

    fn record_command(&self, args: &[&str]) {
        let words: Vec<&str> =
            args.iter().take_while(|name| !name.starts_with('-')).copied().collect();
        for count in 1..=words.len() {
            self.typed.borrow_mut().insert(words[..count].join(" "));
        }
    }

    /// Runs a command, checks its exit code, and returns its output.
    #[track_caller]
    pub fn run(&self, args: &[&str], expected: i32) -> String {
        self.record_command(args);
        let (code, stdout, stderr) = finish(farrier(&self.url, args));
        assert_eq!(code, expected, "{args:?}\n{stdout}\n{stderr}");
        match code {
            0 | 1 => stdout,
            _ => {
                assert!(stderr.starts_with("error: "), "{args:?}: {stderr}");
                stderr
            }
        }
    }

    /// Like `run`, with the line split at spaces.
    #[track_caller]
    pub fn line(&self, line: &str, expected: i32) -> String {
        self.run(&line.split(' ').collect::<Vec<_>>(), expected)
    }

    /// The standard output of a command that exits with one of these codes.
    #[track_caller]
    pub fn output_with_codes(&self, line: &str, codes: &[i32]) -> String {
        let args: Vec<&str> = line.split(' ').collect();
        let (code, stdout, stderr) = finish(farrier(&self.url, &args));
        assert!(codes.contains(&code), "{line}: {code}\n{stdout}\n{stderr}");
        stdout
    }

    /// A dry run that would be refused: it exits with 2 and prints the reason on stdout.
    #[track_caller]
    pub fn expect_refused_dry_run(&self, line: &str) -> String {
        self.output_with_codes(&format!("{line} --dry-run"), &[2])
    }

    /// A dry run in text and in JSON. Checks that the object is unchanged, apart from probes.
    #[track_caller]
    pub fn check_dry_run(&self, line: &str, about: &str, words: &[&str]) {
        let looked = || {
            let args: Vec<&str> = about.split(' ').chain(["-o", "json"]).collect();
            let (code, stdout, _) = finish(farrier(&self.url, &args));
            (code, serde_json::from_str(&stdout).ok().map(without_probe_fields))
        };
        let before = looked();
        let message = self.line(&format!("{line} --dry-run"), 0);
        for name in words.iter().chain(&["nothing was changed"]) {
            assert!(message.contains(name), "{line}: {name:?} is not in\n{message}");
        }
        let record = self.json(&format!("{line} --dry-run"));
        assert!(record.is_object(), "{line}: {record}");
        assert_eq!(looked(), before, "{line}");
    }

    #[track_caller]
    pub fn json(&self, line: &str) -> serde_json::Value {
        let text = self.line(&format!("{line} -o json"), 0);
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{line}: {error}\n{text}"))
    }

    /// Starts an operation without waiting, and returns its ID.
    #[track_caller]
    pub fn submit(&self, line: &str) -> String {
        let operation = self.json(&format!("{line} --no-wait"));
        operation["operation_id"].as_str().unwrap_or_else(|| panic!("{operation}")).to_string()
    }

    /// Repeats a command that reads until its answer is as expected.
    #[track_caller]
    pub fn wait_for(&self, line: &str, expected: impl Fn(&serde_json::Value) -> bool) {
        let started = Instant::now();
        loop {
            let answer = self.json(line);
            if expected(&answer) {
                return;
            }
            assert!(started.elapsed() < crate::fleet::TEST_TIMEOUT, "{line}: {answer}");
        }
    }

    /// Waits until the operation is at a step.
    #[track_caller]
    pub fn at_step(&self, id: &str, step: &str) {
        let started = Instant::now();
        while self.json(&format!("operation get {id}"))["current_step"] != step {
            assert!(started.elapsed() < crate::fleet::TEST_TIMEOUT, "{id} is never at {step}");
        }
    }

    /// Reads an endless stream until it contains the word.
    pub fn stream(&self, args: &[&str], name: &str) {
        use std::io::{BufRead, BufReader};
        self.record_command(args);
        let mut child = farrier(&self.url, args);
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let found = lines.map_while(Result::ok).any(|line| line.contains(name));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(found, "{args:?} never says {name:?}");
    }

    /// Repeats an action until a watching stream contains the word.
    pub fn repeat_until_streamed(&self, args: &[&str], name: &str, act: impl Fn()) {
        use std::io::{BufRead, BufReader};
        let mut child = farrier(&self.url, args);
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let desired = name.to_string();
        let reader = std::thread::spawn(move || {
            lines.map_while(Result::ok).any(|line| line.contains(&desired))
        });
        let started = Instant::now();
        while !reader.is_finished() && started.elapsed() < crate::fleet::TEST_TIMEOUT {
            act();
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(reader.join().unwrap(), "{args:?} never says {name:?}");
    }

    /// Shows the same object in every format.
    #[track_caller]
    pub fn formats(&self, line: &str, name: &str) {
        for format in ["table", "wide"] {
            let text = self.line(&format!("{line} -o {format}"), 0);
            assert!(text.contains(name), "{line}: {name:?} is not in\n{text}");
            assert!(text.lines().all(|line| line.trim_end() == line), "{line}:\n{text}");
        }
        let mut json = self.json(line);
        assert!(json.to_string().contains(name), "{json}");
        // A heartbeat or a probe may change the record between two commands: repeat them then.
        loop {
            let yaml = self.line(&format!("{line} -o yaml"), 0);
            let before = std::mem::replace(&mut json, self.json(line));
            if before == json {
                let read: serde_json::Value = serde_saphyr::from_str(&yaml).unwrap();
                return assert_eq!(read, json, "{line}");
            }
        }
    }
}

/// Removes the fields that a probe may have changed meanwhile.
fn without_probe_fields(mut record: serde_json::Value) -> serde_json::Value {
    if let Some(status) = record.get_mut("status").and_then(|status| status.as_object_mut()) {
        for field in ["observed", "facts", "version", "updated_at"] {
            status.remove(field);
        }
    }
    record
}

fn devices(person: &Terminal) {
    for (noun, id) in [("switch", "sw-1"), ("power-shelf", "ps-1")] {
        let get = format!("{noun} get {id}");
        let register = format!("{noun} register {id} --provider sim --serial S1");
        let would = format!("would register {id}");
        person.check_dry_run(&register, &get, &[&would, "step read", "step configure", "Ready: "]);
        let message = person.line(&format!("{register} --rack rack-none --dry-run"), 2);
        assert!(message.contains("no such rack is known"), "{message}");
        person.line(&register, 0);
        let started = Instant::now();
        while person.json(&format!("{noun} get {id}"))["status"]["state"] != "Ready" {
            assert!(started.elapsed() < crate::fleet::TEST_TIMEOUT, "{id} is never ready");
        }
        let update = format!("{noun} update {id} --label row=a");
        person.check_dry_run(&update, &get, &[&format!("would update {id}")]);
        person.line(&update, 0);
        person.formats(&get, "S1");
        person.formats(&format!("{noun} list --label row=a"), id);
        for dry_run in ["", " --dry-run"] {
            let message = person.line(&format!("{noun} retry {id}{dry_run}"), 2);
            assert!(message.contains("only what is in Error"), "{message}");
        }
        let would = format!("would mark {id} for deletion");
        person.check_dry_run(&format!("{noun} delete {id}"), &get, &[&would, "  removed"]);
    }
    for verb in ["power-on", "power-off"] {
        let line = format!("power-shelf maintenance {verb} --id ps-1 --dry-run");
        assert!(person.line(&line, 0).contains(verb));
    }
    person.line("switch delete sw-1", 0);
    person.line("power-shelf delete ps-1", 0);
}

fn health(person: &Terminal) {
    let alert = "id=fan-3,message=fan 3 stands still, again,class=prevent-state-changes";
    let report = ["health", "report", "machine-2", "--source", "dcim", "--alert", alert];
    person.run(&[&report[..], &["--dry-run"]].concat(), 0);
    assert!(person.line("health get machine-2", 0).contains("Alerts:  0"));
    let reported = person.run(&report, 0);
    assert!(reported.contains("dcim reports fan-3: fan 3 stands still, again"), "{reported}");
    person.formats("health get machine-2", "fan-3");
    person.formats("health list", "machine-2");
    person.formats("get machine-2", "fan-3");
    person.formats("why machine-2", "fan-3");
    assert!(person.line("health list --class nothing-has-it", 0).lines().count() == 1);
    let refused = person.line("reboot machine-2", 2);
    assert!(refused.contains("farrier health get machine-2"), "{refused}");
    assert!(refused.contains("--override health --reason"), "{refused}");
    let old = "operation start machine-2 --type REBOOT --param health_override=now";
    let refused = person.line(old, 2);
    assert!(refused.contains("--override GATE --reason"), "{refused}");
    person.line("reboot machine-2 --override health --reason now", 0);
    let history = person.line("history machine-2", 0);
    assert!(history.contains("; gate health overridden by "), "{history}");
    let replace = "health replace machine-2 --source dcim --alert id=nic,message=slow";
    person.check_dry_run(replace, "health get machine-2", &["would be", "nic"]);
    let reported = person.run(
        &["health", "replace", "machine-2", "--source", "dcim", "--alert", "id=nic,message=slow"],
        0,
    );
    assert!(reported.contains("nic") && !reported.contains("fan-3"), "{reported}");
    person.line("reboot machine-2", 0);
    let refused = person.line("health delete machine-2 --source dcim --alert fan-3", 2);
    assert!(refused.contains("no alert fan-3 of dcim"), "{refused}");
    let remove = "health delete machine-2 --source dcim";
    person.check_dry_run(remove, "health get machine-2", &["Alerts:  0"]);
    person.line(remove, 0);
    assert!(person.line("health get machine-2", 0).contains("Alerts:  0"));
    assert!(person.line("history machine-2", 0).contains("dcim reports nic: slow"));
}

/// The firmware of a machine, upgraded by `machine reprovision` and by `component firmware`.
fn hosts(person: &Terminal) {
    person.line("machine register fresh-1 --provider sim", 0);
    let preview = person.line("machine reprovision fresh-1 --firmware fw-2 --dry-run", 0);
    for name in ["BMC is not known to be at 2.1", "step firmware-bmc", "nothing was changed"] {
        assert!(preview.contains(name), "{name:?} is not in\n{preview}");
    }
    let message = person.line("machine reprovision fresh-1 --firmware nope", 2);
    assert!(message.contains("farrier firmware list"), "{message}");
    person.line("machine reprovision fresh-1 --firmware fw-2 --request-id up", 0);
    let started = Instant::now();
    while !person.line("get fresh-1", 0).contains("BMC 2.1") {
        assert!(started.elapsed() < crate::fleet::TEST_TIMEOUT, "its firmware is never upgraded");
    }
    person.line("machine reprovision fresh-1 --firmware fw-2 --request-id up", 0);
    let applied = person.json("firmware history --device fresh-1");
    assert_eq!(applied.as_array().unwrap().len(), 1, "{applied}");
    assert_eq!(applied[0]["previous"], "1.0", "{applied}");
    person.formats("firmware history --device fresh-1", "fresh-1");
    person.check_dry_run(
        "machine reprovision fresh-1 --cancel",
        "history fresh-1",
        &["would give up the firmware of fresh-1"],
    );
    person.line("machine reprovision fresh-1 --cancel", 0);

    let line = "component firmware update --compute-trays fresh-1 --target-version";
    let (code, message, _) = finish(farrier(
        &person.url,
        &format!("{line} fw-1 --dry-run").split(' ').collect::<Vec<_>>(),
    ));
    assert!(code == 2 && message.contains("stands in no rack"), "{code} {message}");
    let message = person.line(&format!("{line} nope"), 2);
    assert!(message.contains("farrier firmware list"), "{message}");
    let message = person.line(&format!("{line} fw-2 --reason because"), 2);
    assert!(message.contains("--override"), "{message}");
    let line = "component firmware status --compute-trays fresh-1";
    person.formats(&format!("{line} --target-version fw-1"), "fw-1");
    person.formats("component firmware versions --compute-trays fresh-1", "fresh-1");
}

/// The help of one command.
pub struct HelpPage {
    /// The words after `farrier`; an argument before a subcommand is filled in.
    pub path: Vec<String>,
    pub help: String,
    /// True if the command has no subcommands.
    pub leaf: bool,
}

/// The help of every command that a help page lists, each before its subcommands.
pub fn help_pages(path: &[String]) -> Vec<HelpPage> {
    let output = Command::new(env!("CARGO_BIN_EXE_farrier"))
        .args(path)
        .arg("-h")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(output.status.success(), "{path:?}");
    let help = String::from_utf8(output.stdout).unwrap();
    let commands = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let names = commands.take_while(|line| !line.is_empty()).filter_map(|line| {
        let named = line.strip_prefix("  ").filter(|rest| !rest.starts_with(' '));
        named.and_then(|rest| rest.split(' ').next()).filter(|name| *name != "help")
    });
    let names: Vec<String> = names.map(String::from).collect();
    // The arguments between a command and its subcommands: the machine ID.
    let usage = help.lines().find(|line| line.starts_with("Usage: ")).unwrap_or_default();
    let between = usage.matches("<MACHINE_ID>").count();
    let outer = [path, &vec!["machine-1".to_string(); between]].concat();
    let mut pages = vec![HelpPage { path: path.to_vec(), help, leaf: names.is_empty() }];
    for name in names {
        pages.extend(help_pages(&[&outer[..], &[name]].concat()));
    }
    pages
}

#[tokio::test(flavor = "multi_thread")]
async fn every_command_works_against_a_real_server() {
    let (env, _) = TestServer::open("zero").await;
    let url = env.server.url();
    let dir = tempfile::tempdir().unwrap();
    let typed = tokio::task::spawn_blocking(move || {
        let person = Terminal::new(url);
        local_commands(&person);
        agent(&person, dir.path());
        inventory(&person, dir.path());
        verbs(&person);
        read_commands(&person);
        plans(&person, dir.path());
        repair_commands(&person);
        stopping(&person);
        flags(&person);
        power(&person);
        hardware::credentials(&person, dir.path());
        hardware::hardware(&person);
        catalogue::images(&person, dir.path());
        devices(&person);
        catalogue::firmware(&person, dir.path());
        crate::racks::typed(&person);
        crate::node_commands::typed(&person, dir.path());
        health(&person);
        stored::check_database(&person);
        access::typed(&person, dir.path());
        notify::typed(&person, dir.path());
        exit_codes(&person);
        person.typed.into_inner()
    });
    let typed = typed.await.unwrap();
    let leaves = help_pages(&[]).into_iter().filter(|page| page.leaf);
    let all: BTreeSet<String> = leaves.map(|page| page.path.join(" ")).collect();
    assert!(all.len() > 40, "{all:?}");
    let missed: Vec<&String> = all.iter().filter(|leaf| !typed.contains(*leaf)).collect();
    assert!(missed.is_empty(), "never typed: {missed:?}");
}

fn local_commands(person: &Terminal) {
    assert!(person.line("completions bash", 0).contains("enter-maintenance"));
    let config = person.line("serve --print-config --listen 127.0.0.1:1", 0);
    assert!(config.contains("127.0.0.1:1") && config.contains("backoff_first_ms"), "{config}");
}

/// The agent of a node, which contacts its own controllers and not `--server`.
fn agent(person: &Terminal, dir: &Path) {
    assert!(person.line("agent unit", 0).contains("ExecStart=/usr/local/bin/farrier agent run "));
    let example = person.line("agent config", 0);
    assert!(example.contains("controllers = ["), "{example}");
    let file = dir.join("agent.toml");
    let config = file.to_str().unwrap();
    let message = person.run(&["agent", "run", "--config", config], 2);
    assert!(
        message.contains("agent.toml") && message.contains("farrier agent config"),
        "{message}"
    );
    std::fs::write(&file, format!("{example}scratch_dirs = [\"/etc\"]\n")).unwrap();
    let message = person.run(&["agent", "run", "--config", config], 2);
    assert!(message.contains("scratch_dirs: /etc"), "{message}");
    let state = dir.join("agent-state");
    // No process listens on port 9.
    let text = example
        .replace("10.0.0.1:8481", "127.0.0.1:9")
        .replace("/var/lib/farrier-agent", state.to_str().unwrap());
    std::fs::write(&file, &text).unwrap();
    let message = person.run(&["agent", "enroll", "--config", config], 2);
    assert!(message.contains("token_file"), "{message}");
    // The file permissions of a token are checked first.
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    std::fs::write(&file, format!("{text}token = \"once\"\n")).unwrap();
    let message = person.run(&["agent", "enroll", "--config", config], 4);
    assert!(message.contains("127.0.0.1:9"), "{message}");
    let message = person.run(&["agent", "status", "--config", config], 0);
    assert!(message.contains("an enrollment has been asked for"), "{message}");
    let status = person.run(&["agent", "status", "--config", config, "-o", "json"], 0);
    let status: serde_json::Value = serde_json::from_str(&status).unwrap();
    assert_eq!((&status["enrolling"], &status["task"]), (&true.into(), &serde_json::Value::Null));
}

fn inventory(person: &Terminal, dir: &Path) {
    assert!(person.line("import 3", 0).contains("3 machines registered"));
    let file = dir.join("fleet.csv");
    let rows = "machine_id,labels.env,target_cluster_ref,provider\n\
                csv-1,prod,cluster-a,sim\ncsv-2,stage,,sim\n";
    std::fs::write(&file, rows).unwrap();
    let import = ["import", file.to_str().unwrap()];
    let message = person.run(&[&import[..], &["--dry-run"]].concat(), 0);
    let words = "2 machines would be registered";
    assert!(message.contains(words) && message.contains("nothing was changed"), "{message}");
    person.line("get csv-1", 2);
    let message = person.run(&import, 0);
    assert!(message.starts_with("plan: 2 machines registered\ncsv-1 registered\n"), "{message}");
    assert!(person.run(&import, 0).contains("0 machines registered, 2 unchanged"));
    stored::check_imports(person, dir);
    person.line("machine register web-1 --provider sim --label env=prod --mac aa:bb:cc:dd:ee:ff --serial s1", 0);
    let update = "machine update web-1 --label rack=r1 --remove-label env --cluster cluster-a";
    assert_eq!(person.line(update, 0), "web-1 updated\n");
    let history = person.json("history web-1");
    let same = "web-1 has these values already; nothing was changed\n";
    assert_eq!(person.line(update, 0), same);
    assert_eq!(person.json("history web-1"), history);
    let machine = person.json("machine get web-1");
    assert_eq!(machine["labels"], serde_json::json!({"rack": "r1"}));
    assert_eq!(machine["spec"]["serial"], "s1", "what is not given stays");
    let list = person.line("list", 0);
    let header: Vec<&str> = list.lines().next().unwrap().split_whitespace().collect();
    let columns =
        ["MACHINE_ID", "PHASE", "EFFECTIVE", "REACHABLE", "PROVISIONED", "ACTIVE_OP", "CONDITIONS"];
    assert_eq!(header, columns);
    assert_eq!(list.lines().count(), 7, "{list}");
    person.formats("list", "machine-1");
    person.formats("machine list", "csv-2");
    person.formats("get machine-1", "machine-1");
    let found = person.run(&["list", "--filter", "labels.env in (prod, stage)"], 0);
    assert!(found.contains("csv-1") && !found.contains("web-1"), "{found}");
    assert_eq!(person.line("list --limit 2", 0).lines().count(), 3);
    person.line("machine register gone-1 --provider sim", 0);
    let message = person.line("machine delete gone-1 --dry-run", 0);
    assert!(
        message
            .contains("gone-1 would be deleted; its history stays\ndry run: nothing was changed"),
        "{message}"
    );
    assert_eq!(person.json("get gone-1")["machine_id"], "gone-1");
    assert!(person.line("machine delete gone-1", 0).contains("farrier history gone-1"));
    for line in ["get gone-1", "why gone-1"] {
        let message = person.line(line, 2);
        assert!(message.contains("gone-1 was deleted"), "{message}");
    }
    person.formats("history gone-1", "removed");
}

fn verbs(person: &Terminal) {
    let reported = person.line("enter-maintenance machine-1", 0);
    assert!(reported.contains("request-id: ") && reported.contains("SUCCEEDED"), "{reported}");
    person.line("machine enter-maintenance machine-2", 0);
    let reported = person.line("reimage machine-1 --image ubuntu-2204 --request-id deploy", 0);
    for name in ["✓ Netboot configured", "│ [repave-os] ", "✓ SUCCEEDED", "Provisioned=✓"] {
        assert!(reported.contains(name), "{name:?} is not in\n{reported}");
    }
    let again = person.line("reimage machine-1 --image ubuntu-2204 --request-id deploy", 0);
    assert!(again.contains("same operation, no new work"), "{again}");
    person.line("machine reimage machine-2 --image rhel-9", 0);
    person.line("reboot machine-1", 0);
    person.line("machine reboot machine-2", 0);
    person.line("exit-maintenance machine-1", 0);
    person.line("machine exit-maintenance machine-2", 0);
    assert_eq!(person.json("get machine-1")["status"]["phase"], "READY");
}

fn read_commands(person: &Terminal) {
    for line in ["operation list", "op list", "ops", "runs", "run list", "workflow list"] {
        person.formats(line, "machine-1");
        let found = person.run(
            &[&line.split(' ').collect::<Vec<_>>()[..], &["--filter", "type=REBOOT"]].concat(),
            0,
        );
        assert!(found.contains("machine-2") && !found.contains("REIMAGE"), "{found}");
        let found = person.line(&format!("{line} --filter type=REPAVE"), 0);
        assert!(found.contains("REIMAGE") && !found.contains("REPAVE"), "{found}");
    }
    let runs =
        person.run(&["runs", "--filter", "type=REPAVE AND machine_id=machine-1", "-o", "json"], 0);
    let runs: serde_json::Value = serde_json::from_str(&runs).unwrap();
    let list = runs.as_array().or(runs["runs"].as_array()).unwrap();
    let run = list[0]["operation_id"].as_str().unwrap().to_string();
    assert!(person.line(&format!("run get {run}"), 0).contains("Type:       REIMAGE"));
    person.formats(&format!("get {run}"), &run);
    person.formats(&format!("operation get {run}"), "repave-os");
    person.formats("why machine-1", "ready for work");
    assert!(person.line(&format!("why {run}"), 0).contains("farrier get machine-1"));
    person.formats("history machine-1", "registered");
    assert!(person.line(&format!("history {run}"), 0).contains("repave-os"));
    assert!(person.line("fault effect-failed", 0).contains("What to do"));
    for line in [format!("logs {run}"), format!("logs -f {run}"), format!("operation logs {run}")] {
        let log = person.line(&line, 0);
        assert!(log.contains("Writing image ubuntu-2204"), "{log}");
    }
    let log = person.line(&format!("logs {run} -o json"), 0);
    assert!(log.contains("Writing image ubuntu-2204") && log.contains("\"offset\":0"), "{log}");
    person.stream(&["watch", "--all"], "machine-1");
    person.stream(&["watch", "machine-2", "--all", "-o", "json"], "machine-2");
    person.stream(&["operation", "watch", "--all"], "machine-1");
    person.stream(&["machine", "watch"], "machine-3");
    let one = ["machine", "watch", "machine-2", "--filter", "phase!=MAINTENANCE", "-o", "json"];
    person.stream(&one, "\"machine_id\":\"machine-2\"");
    assert!(person.line(&format!("operation watch {run}"), 0).contains("✓ SUCCEEDED"));
    let effects = person.line(&format!("sim effects --prefix {run}"), 0);
    assert!(effects.contains("repave-os/1"), "{effects}");
}

fn plans(person: &Terminal, dir: &Path) {
    for line in ["plans", "plan list"] {
        person.formats(line, "plan-repave-v1");
    }
    person.formats("plan get plan-repave-v1", "set-netboot");
    let file = dir.join("plan.yaml");
    let text = "plan_id: mine\ndisplay_name: Mine\nsteps:\n\
                - {name: look, timeout_seconds: 60, ssh: {command: uptime}}\n- {name: again, reboot: {}}\n";
    std::fs::write(&file, text).unwrap();
    let path = file.to_str().unwrap();
    assert!(person.run(&["plan", "create", "-f", path], 0).contains("mine"));
    person.run(&["plan", "create", "-f", path], 0);
    let reported = person.line("operation start machine-1 --type REBOOT --plan mine", 0);
    assert!(reported.contains("SUCCEEDED"), "{reported}");
    std::fs::write(&file, text.replace("uptime", "true")).unwrap();
    assert!(person.run(&["plan", "create", "-f", path], 2).contains("new plan_id"));
}

/// Power, nodes and RMA.
fn power(person: &Terminal) {
    assert!(person.line("machine power machine-1 status", 0).contains("on"));
    let reported = person.line("machine power machine-1 on", 0);
    for name in ["Type: POWER", "It was on already", "✓ Power changed", "✓ SUCCEEDED"] {
        assert!(reported.contains(name), "{name:?} is not in\n{reported}");
    }
    // It is in service.
    let refused = person.line("machine power machine-1 off", 2);
    for words in ["machine-1 is in service and not drained", "--override in-service --reason"] {
        assert!(refused.contains(words), "{refused}");
    }
    let off = "machine power machine-1 off --graceful 0 --request-id off \
               --override in-service --reason a-test";
    let reported = person.line(off, 0);
    assert!(reported.contains("Cutting the power"), "{reported}");
    let listed = person.line("list", 0);
    assert!(listed.contains("⚠IDLE"), "{listed}");
    let why = person.line("why machine-1", 0);
    for words in ["it is switched off", "farrier machine power machine-1 on"] {
        assert!(why.contains(words), "{why}");
    }
    let run = person.json("operation list --limit 1")[0].clone();
    let given = (&run["plan_id"], &run["params"]["graceful_seconds"]);
    assert_eq!(given, (&"plan-power-off-v1".into(), &"0".into()), "{run}");
    assert_eq!(run["params"]["gate_override"], "in-service", "{run}");
    let again = person.line(off, 0);
    assert!(again.contains("same operation, no new work"), "{again}");
    let cycle = "machine power machine-1 cycle --graceful 5 --no-force";
    person.line(&format!("{cycle} --override in-service --reason a-test"), 0);
    let refused = person.line("machine power machine-1 off --graceful 0 --no-force", 2);
    assert!(refused.contains("params[graceful_seconds]"), "{refused}");
    let refused = person.line("machine power csv-1 off", 2);
    assert!(refused.contains("farrier enter-maintenance csv-1"), "{refused}");

    let drained = |id: &str| {
        let machine = person.json(&format!("get {id}"));
        let conditions = machine["status"]["conditions"].as_array().unwrap().clone();
        let drained = conditions.into_iter().find(|one| one["type"] == "Drained").unwrap();
        (drained["status"] == true, drained["reason"].as_str().unwrap_or_default().to_string())
    };
    person.line("enter-maintenance csv-1", 0);
    person.line("reimage csv-1", 0);
    let options = "--drain-emptydir --drain-unmanaged-pods --drain-grace 30s --drain-selector a=b";
    let dry = person.line(&format!("enter-maintenance csv-1 --drain {options} --dry-run"), 0);
    assert!(dry.contains("drain"), "{dry}");
    person.line("enter-maintenance csv-1 --drain-emptydir", 2);
    let reported = person.line("machine enter-maintenance csv-1 --drain", 0);
    assert!(reported.contains("✓ Node drained"), "{reported}");
    assert_eq!(drained("csv-1"), (true, "Evicted".into()));
    let reported = person.line("machine rma csv-1", 0);
    assert!(reported.contains("✓ SUCCEEDED") && reported.contains("serial SIM"), "{reported}");
    assert!(person.line("machine power csv-1 on", 2).contains("flagged RMA"));
    assert!(person.line("why csv-1", 0).contains("farrier machine exit-rma csv-1"));
    person.line("machine exit-rma csv-1", 0);
    assert_eq!(person.json("get csv-1")["status"]["phase"], "MAINTENANCE");
    assert!(person.line("machine exit-rma csv-1", 2).contains("not flagged RMA"));
    let reported = person.line("exit-maintenance csv-1 --uncordon", 0);
    assert!(reported.contains("✓ Node uncordoned"), "{reported}");
    assert_eq!(drained("csv-1"), (false, "InService".into()));
    person.line("sim fault create --machine csv-1 --effect drain --action fail --times 0", 0);
    let reported = person.line("enter-maintenance csv-1 --drain", 1);
    assert!(reported.contains("farrier fault eviction-blocked"), "{reported}");
    person.line("sim fault delete --all", 0);
}

/// Failures, and every repair command.
fn repair_commands(person: &Terminal) {
    person.line("enter-maintenance machine-3", 0);
    let broken = |effect: &str, times: u32| {
        person.run(
            &[
                "sim",
                "fault",
                "add",
                "--machine",
                "machine-3",
                "--effect",
                effect,
                "--action",
                "fail",
                "--times",
                &times.to_string(),
                "--message",
                "smoke",
            ],
            0,
        );
    };
    broken("reboot", 3);
    assert!(person.line("sim fault list", 0).contains("machine-3"));
    let reported = person.line("reboot machine-3 --request-id broken", 1);
    for name in
        ["✗ FAILED", "smoke", "farrier fault effect-failed", "Next: farrier operation retry-step"]
    {
        assert!(reported.contains(name), "{name:?} is not in\n{reported}");
    }
    let ops = person.json("ops --limit 1");
    let list = ops.as_array().or(ops["operations"].as_array()).unwrap();
    let run = list[0]["operation_id"].as_str().unwrap().to_string();
    assert!(
        person.line("why machine-3", 0).contains(&format!("farrier operation retry-step {run}"))
    );
    assert!(person.line("list", 0).contains("ATTENTION"));
    // A reboot cannot be observed, so it cannot be adopted.
    assert!(person.line(&format!("operation adopt {run}"), 1).contains("cannot be adopted"));
    person.run(&["operation", "mark-manual", &run, "--reason", "look first"], 0);
    assert!(person.line(&format!("operation retry-step {run}"), 0).contains("SUCCEEDED"));
    assert!(person.line(&format!("operation rerun {run}"), 0).contains("SUCCEEDED"));
    assert!(person.line(&format!("operation restart-clean {run}"), 0).contains("SUCCEEDED"));
    broken("reboot", 3);
    let reported = person.line("reboot machine-3 -o json", 1);
    let failed: serde_json::Value = serde_json::from_str(&reported).unwrap();
    one_form(person, &failed);
    let failed = &failed["operation_id"];
    assert!(
        person
            .line(&format!("operation resume {}", failed.as_str().unwrap()), 0)
            .contains("SUCCEEDED")
    );
    person.line("sim fault delete --all", 0);
}

/// Every command prints an operation in the same form.
fn one_form(person: &Terminal, operation: &serde_json::Value) {
    let id = operation["operation_id"].as_str().unwrap();
    let shown = person.json(&format!("operation get {id}"));
    assert_eq!(*operation, shown);
    for list in ["operation list", "ops", "runs"] {
        assert_eq!(person.json(&format!("{list} --limit 1"))[0], shown, "{list}");
    }
}

fn stopping(person: &Terminal) {
    person.line("sim fault create --machine machine-3 --effect reboot --action hang --times 0", 0);
    for cancel in ["cancel", "operation cancel"] {
        let run = person.submit("reboot machine-3");
        person.at_step(&run, "reboot");
        let args: Vec<&str> =
            cancel.split(' ').chain([run.as_str(), "--reason", "enough"]).collect();
        // A cancel that ends in CANCELED is a success.
        let reported = person.run(&args, 0);
        assert!(reported.contains("CANCELED"), "{reported}");
        assert!(person.line(&format!("cancel {run}"), 2).contains("already ended CANCELED"));
    }
    let reported = person.line("reboot machine-3 --timeout 300ms", 3);
    assert!(
        reported.contains("the operation goes on") && reported.contains("next: farrier"),
        "{reported}"
    );
    assert!(person.line("reboot machine-3", 2).contains("farrier why op-"));
    let run = person.json("get machine-3")["status"]["active_run_id"].as_str().unwrap().to_string();
    person.line(&format!("cancel {run}"), 0);
    person.line("sim fault delete --all", 0);
}

fn flags(person: &Terminal) {
    person.formats("admin replicas", "one");
    let replicas = person.json("admin replicas");
    assert_eq!(replicas[0]["version"], env!("CARGO_PKG_VERSION"), "{replicas}");
    for (command, state) in [
        ("set-rma", "BLOCKED"),
        ("clear-rma", "MAINTENANCE"),
        ("set-retired", "BLOCKED"),
        ("clear-retired", "MAINTENANCE"),
    ] {
        person.run(&["admin", command, "machine-3", "--reason", "a test"], 0);
        let machine = person.json("get machine-3").to_string();
        let shown = format!("\"effective_state\":\"{state}\"");
        assert!(machine.contains(&shown), "{command}: {machine}");
    }
    person.line("sim fault create --machine machine-3 --effect reboot --action fail --times 0", 0);
    person.line("reboot machine-3", 1);
    person.run(&["admin", "clear-needs-intervention", "machine-3", "--reason", "looked"], 0);
    let rules = person.json("sim fault list");
    let rules = rules.as_array().or(rules["faults"].as_array()).unwrap();
    let rule = rules[0]["fault_id"].as_str().unwrap().to_string();
    person.line(&format!("sim fault delete {rule}"), 0);
    assert!(person.line(&format!("sim fault delete {rule}"), 2).contains("farrier sim fault list"));
}

fn exit_codes(person: &Terminal) {
    for line in
        ["get nobody", "reimage machine-1 --image x", "list --filter colour=red", "fault nonsense"]
    {
        person.line(line, 2);
    }
    let reported = person.line("list --filter colour=red", 2);
    assert!(reported.contains("colour=red\n  ^"), "{reported}");
    let nobody = Terminal::new("http://127.0.0.1:9".into());
    assert!(nobody.line("list", 4).contains("cannot reach"));
}
