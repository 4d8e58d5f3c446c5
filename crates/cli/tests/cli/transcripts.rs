//! Golden transcripts: the help of every command, and the tables of the main commands against a
//! simulated fleet.
//!
//! `cargo xtask transcripts` writes the files in `golden`; without it, these tests compare them.
//! IDs, dates and durations differ in every run, so they are replaced before the comparison.

use crate::api_cli::{Terminal, help_pages};
use crate::fleet::{Server, Setup, TEST_TIMEOUT};
use crate::stage::{farrier, finish};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Instant;
use unicode_width::UnicodeWidthStr;

/// Set by `cargo xtask transcripts`: the files are written instead of compared.
const REWRITE: &str = "FARRIER_REWRITE_TRANSCRIPTS";

/// Nothing is probed or reconciled again while the commands are typed.
const CALM: &str = "[engine]\nbackoff_first_ms = 1\nbackoff_most_ms = 5\n\
                    [probes]\ninterval_ms = 3600000\n[nodes]\nreconcile_seconds = 3600";

/// Compares a transcript with its golden file, or writes the file.
#[track_caller]
fn check(name: &str, transcript: &str) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/cli/golden").join(name);
    if std::env::var_os(REWRITE).is_some() {
        std::fs::write(&path, transcript).unwrap();
        return;
    }
    let golden = std::fs::read_to_string(&path).unwrap_or_default();
    let mut expected = golden.lines();
    let mut command = "";
    for (position, line) in transcript.lines().enumerate() {
        if line.starts_with("$ ") {
            command = line;
        }
        let place = format!("golden/{name}, line {}, {command}", position + 1);
        let hint = "if the new text is right, run `cargo xtask transcripts`";
        assert_eq!(Some(line), expected.next(), "{place}: {hint}");
    }
    assert_eq!(golden, transcript, "golden/{name} is longer; run `cargo xtask transcripts`");
}

#[test]
fn the_help_of_every_command() {
    let listed = help_pages(&[]);
    // These two are in no list: they are other names of `farrier operation list`.
    let hidden = ["ops", "runs"].into_iter().flat_map(|name| help_pages(&[name.to_string()]));
    let mut transcript = String::new();
    for page in listed.into_iter().chain(hidden) {
        let command = [&["farrier".to_string()], &page.path[..]].concat().join(" ");
        let help = match page.path.is_empty() {
            true => page.help,
            false => without_global_options(&page.help),
        };
        let help: Vec<&str> = help.trim_end().lines().map(str::trim_end).collect();
        transcript.push_str(&format!("$ {command} -h\n{}\n\n", help.join("\n")));
    }
    check("help.txt", &transcript);
}

/// The help without the options that every command has.
fn without_global_options(help: &str) -> String {
    let paragraphs = help.split("\n\n").filter(|text| !text.starts_with("Global options:"));
    paragraphs.collect::<Vec<_>>().join("\n\n")
}

#[tokio::test(flavor = "multi_thread")]
async fn the_output_of_the_main_commands() {
    let dir = tempfile::tempdir().unwrap();
    let setup = Setup { config: CALM.into(), ..Setup::new(dir.path(), "zero") };
    let server = Server::start(setup);
    let url = server.url();
    let transcript = tokio::task::spawn_blocking(move || {
        prepare(&Terminal::new(url.clone()));
        let mut transcript = Transcript { url, ids: BTreeMap::new(), text: String::new() };
        for line in COMMANDS.lines() {
            transcript.type_command(line);
        }
        transcript.text
    });
    check("output.txt", &transcript.await.unwrap());
}

/// The commands of the transcript, in the order in which they are typed. `$NODE`,
/// `$FAILED` and `$REIMAGED` are the node of the fleet and two of its operations.
const COMMANDS: &str = "\
list
list --filter phase=MAINTENANCE
list --sort machine_id:desc
list --sort colour
get machine-1
get machine-3
why machine-1
why machine-3
why $FAILED
operation list --filter labels.env=demo
operation list --filter machine_id=rack:rack-1
operation list --filter type=REIMAGE -o wide
operation list --node $NODE
operation list --filter phase=CANCELED
operation get $FAILED
operation get $NODE
operation get $REIMAGED
logs $REIMAGED
history $FAILED
cancel $FAILED
reimage machine-2 --image ubuntu-2204
get nobody
rack list
rack get rack-1
why rack-1
rack maintenance start rack-1 --dry-run
switch list
power-shelf list
switch get sw-1
node list
node get $NODE
why $NODE
node onboard machine-2 --site site-lab --dry-run
node onboard gpu-2 --site site-lab --dry-run
plan list
plan get plan-repave-v1
site list
site get site-lab
rollout create reboot --filter labels.env=demo --canary 1 --batch 50% --dry-run
rollout list
site create site-lab --provider sim
site update site-lab --zone row-7 --expected-version 99
site update site-none --zone row-7
health get machine-2
health list
health list --filter source=colour
image list
firmware list
firmware list --filter available=true
budget create fleet --max-unavailable 1%
budget create fleet --max-unavailable 10
budget list
budget get fleet
credential list
credential get bmc
trust list
trust update https://10.0.0.5 abababababababababababababababababababababababababababababababab
trust create https://10.0.0.5 abababababababababababababababababababababababababababababababab
trust get https://10.0.0.5
trust delete https://10.0.0.5
sim fault list";

/// A fleet with one machine that was reimaged, one that failed, a rack and a node.
fn prepare(person: &Terminal) {
    person.line("import 3", 0);
    person.line("enter-maintenance machine-1", 0);
    person.line("reimage machine-1 --image ubuntu-2204 --request-id deploy-1", 0);
    person.line("exit-maintenance machine-1", 0);
    person.line("enter-maintenance machine-3 --request-id enter-3", 0);
    let fault = "sim fault create --machine machine-3 --effect reboot --action fail --times 0";
    person
        .run(&[&fault.split(' ').collect::<Vec<_>>()[..], &["--message", "no power"]].concat(), 0);
    person.line("reboot machine-3 --request-id broken", 1);
    let alert = "id=fan-3,message=fan 3 stands still,class=prevent-allocations";
    person.run(&["health", "report", "machine-2", "--source", "dcim", "--alert", alert], 0);
    let rack = "rack create rack-1 --hardware-type gb200 --expect-machines 2";
    person.line(&format!("{rack} --expect-switches 1 --expect-power-shelves 1"), 0);
    for (name, slot) in [("tray-1", 3), ("tray-2", 5)] {
        person.line(
            &format!("machine register {name} --provider sim --rack rack-1 --slot {slot}"),
            0,
        );
    }
    person.line("switch register sw-1 --provider sim --serial S1 --rack rack-1 --slot 8", 0);
    person.line("power-shelf register ps-1 --provider sim --serial P1 --rack rack-1 --slot 1", 0);
    for get in ["rack get rack-1", "switch get sw-1", "power-shelf get ps-1"] {
        let started = Instant::now();
        while person.json(get)["status"]["state"] != "Ready" {
            assert!(started.elapsed() < TEST_TIMEOUT, "{get}: never Ready");
        }
    }
    person.line("site create site-lab --provider sim --pool gpu", 0);
    person.line("machine register gpu-1 --provider sim", 0);
    person.line("machine register gpu-2 --provider sim", 0);
    person.line("node onboard gpu-1 --site site-lab --request-id onboard-1", 0);
    person.line("site check site-lab", 0);
    let started = Instant::now();
    while !person.line("list", 0).lines().skip(1).all(|row| row.contains('✓')) {
        assert!(started.elapsed() < TEST_TIMEOUT, "a machine is never probed");
    }
}

struct Transcript {
    url: String,
    /// The replacement of each ID, by the ID.
    ids: BTreeMap<String, String>,
    text: String,
}

impl Transcript {
    /// Types a command and records it with its output.
    fn type_command(&mut self, line: &str) {
        let words: Vec<String> = line.split(' ').map(|word| self.variable(word)).collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let (code, stdout, stderr) = finish(farrier(&self.url, &words));
        let exit = if code == 0 { String::new() } else { format!("(exit {code})\n") };
        let output = format!("{stdout}{stderr}{exit}");
        let output = match words[0] {
            // The timeouts of a plan are the same in every run.
            "plan" => output,
            _ => align_tables(&self.replace(&output)),
        };
        let command = self.replace(&words.join(" "));
        self.text.push_str(&format!("$ farrier {command}{output}\n"));
    }

    fn variable(&self, word: &str) -> String {
        let json = |line: &str| {
            let words: Vec<&str> = line.split(' ').chain(["-o", "json"]).collect();
            let (_, stdout, _) = finish(farrier(&self.url, &words));
            serde_json::from_str::<serde_json::Value>(&stdout).unwrap()
        };
        match word {
            "$NODE" => json("node list")[0]["node_id"].as_str().unwrap().to_string(),
            "$FAILED" => json("runs --filter request_id=broken")[0]["operation_id"]
                .as_str()
                .unwrap()
                .to_string(),
            word => word.to_string(),
        }
    }

    /// Replaces IDs, dates and durations, word by word.
    fn replace(&mut self, text: &str) -> String {
        let lines = text.lines().map(|line| {
            let mut words: Vec<String> = Vec::new();
            for word in line.split(' ') {
                let word = self.replace_ids(word);
                let word = replace_time(&word);
                // `4m 32s` and `2026-01-30 10:00:01 +00:00` are one time.
                let rest = word.strip_prefix("<time>");
                match (rest, words.last_mut().filter(|last| last.ends_with("<time>"))) {
                    (Some(rest), Some(last)) => last.push_str(rest),
                    (Some(_) | None, _) => words.push(word),
                }
            }
            format!("{}\n", words.join(" "))
        });
        lines.collect()
    }

    /// Replaces the generated IDs in a word by counted ones of the same length.
    fn replace_ids(&mut self, word: &str) -> String {
        let mut replaced = word.to_string();
        for prefix in ["op-", "node-", "req-"] {
            let generated = |tail: &str| -> Option<String> {
                let end = tail.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(tail.len());
                (end >= 12).then(|| format!("{prefix}{}", &tail[..end]))
            };
            let found = word.split(prefix).skip(1).filter_map(generated);
            for id in found.collect::<Vec<_>>() {
                let count = self.ids.keys().filter(|known| known.starts_with(prefix)).count() + 1;
                let width = id.len() - prefix.len();
                let counted = || format!("{prefix}{count:0width$}");
                let name = self.ids.entry(id.clone()).or_insert_with(counted);
                replaced = replaced.replace(&id, name);
            }
        }
        replaced
    }
}

/// Replaces a duration, a date or a time of day by `<time>`, and keeps what surrounds it.
fn replace_time(word: &str) -> String {
    let start = word.trim_start_matches(['(', '[']);
    let core = start.trim_end_matches([',', '.', ')', ']', ';']);
    if !is_duration(core) && !is_date(core) {
        return word.to_string();
    }
    word.replacen(core, "<time>", 1)
}

/// `12s`, `1m30s` or `350ms`.
fn is_duration(word: &str) -> bool {
    let unit = word.trim_start_matches(|c: char| c.is_ascii_digit());
    unit.len() < word.len() && ["ms", "s", "m", "h", "d"].contains(&unit)
}

/// `2026-01-30`, `10:00:01` or `+00:00`.
fn is_date(word: &str) -> bool {
    let shape: String = word.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
    ["0000-00-00", "00:00:00", "+00:00", "-00:00"].contains(&shape.as_str())
}

/// Aligns the columns of each table again: a replaced duration has another width.
fn align_tables(text: &str) -> String {
    let mut aligned = String::new();
    let mut table: Vec<Vec<&str>> = Vec::new();
    for line in text.lines() {
        let cells: Vec<&str> =
            line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect();
        let is_heading = |cell: &&str| cell.chars().all(|c| c.is_ascii_uppercase() || c == '_');
        let begins = cells.len() > 1 && cells.iter().all(is_heading);
        let continues = table.first().is_some_and(|header| header.len() == cells.len());
        if begins || !continues {
            push_table(&mut aligned, &std::mem::take(&mut table));
        }
        if begins || continues {
            table.push(cells);
        } else {
            aligned.push_str(&format!("{line}\n"));
        }
    }
    push_table(&mut aligned, &table);
    aligned
}

fn push_table(text: &mut String, rows: &[Vec<&str>]) {
    let columns = rows.first().map_or(0, Vec::len);
    let width = |column: usize| rows.iter().map(|row| row[column].width()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    for row in rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            line.push_str(cell);
            line.push_str(&" ".repeat(width + 2 - cell.width()));
        }
        text.push_str(&format!("{}\n", line.trim_end()));
    }
}

#[test]
fn times_and_ids_are_replaced_and_columns_stay_aligned() {
    let mut transcript =
        Transcript { url: String::new(), ids: BTreeMap::new(), text: String::new() };
    let text = "\
ID                       CREATED     DURATION
op-01m7md2n9qfextbvd9qn  1m 40s ago  350ms
op-01m7md2n9qfextbvd9qx  2s ago      -

Created:  2026-01-30 10:00:01 +00:00 (4m 32s).
next: farrier logs op-01m7md2n9qfextbvd9qn
";
    assert_eq!(
        align_tables(&transcript.replace(text)),
        "\
ID                       CREATED     DURATION
op-00000000000000000001  <time> ago  <time>
op-00000000000000000002  <time> ago  -

Created:  <time> (<time>).
next: farrier logs op-00000000000000000001
"
    );
}
