//! The restore drill of docs/operate/backup.md: a backup of a running server, with its seal key,
//! becomes a server that knows the fleet, the history and the credentials.

use crate::api::{TestServer, on_both};
use crate::fleet::{Clients, DatabaseKind, Server, Setup, new_database, postgres, skip};
use crate::stage::{farrier, finish};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Copies the database as `.backup` of the sqlite3 program does.
const BACK_UP: &str = "import sqlite3, sys\n\
    sqlite3.connect(sys.argv[1]).backup(sqlite3.connect(sys.argv[2]))";
const POSTGRES_PROGRAMS: &str = "/usr/lib/postgresql";
/// Nothing listens there: a BMC test still opens the credential first.
const NO_BMC: &str = "bmc test ipmi://127.0.0.1 --credential bmc";
const WRONG_KEY: &str = "sealed with another key";

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_is_restored_with_its_seal_key() {
    on_both("zero", drill).await;
}

async fn drill(env: &TestServer, mut api: Clients) {
    let dir = tempfile::tempdir().unwrap();
    let server = env.server.url();
    api.in_maintenance("m-1").await;
    let done = api.done("m-1", "REBOOT", "before").await;
    let password = dir.path().join("password");
    std::fs::write(&password, "secret\n").unwrap();
    let create = format!(
        "credential create bmc --user root --for 127.0.0.1 --password-file {}",
        password.display()
    );
    assert_eq!(run(&server, &create).0, 0);

    let Some(restored) = back_up(env, dir.path()).await else { return };
    // The backup does not know what comes after it.
    let later = api.done("m-1", "REBOOT", "after").await;
    let seal_key = env.server.setup.dir.join("seal.key");

    let database = match &restored.home {
        DatabaseKind::Sqlite => restored.dir.display().to_string(),
        DatabaseKind::Postgres(url) => url.clone(),
    };
    let (code, output) = run("http://127.0.0.1:1", &format!("db check --database {database}"));
    assert_eq!(code, 0, "{output}");

    // Without its seal key, or with another one, the server does not start.
    let own = restored.dir.join("seal.key");
    let refused = Server::refused_start(&restored);
    assert!(refused.contains("or from its backup"), "{refused}");
    assert!(!own.exists(), "another key was made");
    std::fs::write(&own, [7; 32]).unwrap();
    let refused = Server::refused_start(&restored);
    assert!(refused.contains("sealed under the master key"), "{refused}");

    std::fs::copy(seal_key, restored.dir.join("seal.key")).unwrap();
    let started = Server::start(restored);
    let mut api = started.clients().await;
    assert_eq!(api.machine("m-1").await.machine_id, "m-1");
    assert_eq!(api.run(&done.run_id).await.version, done.version);
    let (code, history) = run(&started.url(), "history m-1");
    assert!(code == 0 && history.contains("registered"), "{history}");
    let (_, test) = run(&started.url(), NO_BMC);
    assert!(!test.contains(WRONG_KEY), "{test}");
    assert!(run(&started.url(), &format!("get {}", later.run_id)).1.contains("no "));
    // The server works: the same machine takes the next operation.
    api.done("m-1", "REBOOT", "restored").await;
}

fn run(server: &str, line: &str) -> (i32, String) {
    let (code, stdout, stderr) = finish(farrier(server, &line.split(' ').collect::<Vec<_>>()));
    (code, stdout + &stderr)
}

/// Backs up the running server and restores it beside. None without the programs of the database.
async fn back_up(env: &TestServer, dir: &Path) -> Option<Setup> {
    let mut restored = Setup::new(&dir.join("restored"), "zero");
    std::fs::create_dir_all(&restored.dir).unwrap();
    match &env.server.setup.home {
        DatabaseKind::Sqlite => {
            let mut python = Command::new("python3");
            python.args(["-c", BACK_UP]).arg(env.server.setup.dir.join("farrier.db"));
            succeed(python.arg(restored.dir.join("farrier.db")));
        }
        DatabaseKind::Postgres(url) => {
            let Some(programs) = postgres_programs() else {
                skip(&format!("no pg_dump in {POSTGRES_PROGRAMS}"));
                return None;
            };
            let dump = dir.join("farrier.dump");
            succeed(Command::new(programs.join("pg_dump")).args(["-Fc", url, "-f"]).arg(&dump));
            let target = new_database(&postgres()?).await;
            succeed(Command::new(programs.join("pg_restore")).args(["-d", &target]).arg(&dump));
            restored.home = DatabaseKind::Postgres(target);
        }
    }
    Some(restored)
}

pub fn postgres_programs() -> Option<PathBuf> {
    let versions = std::fs::read_dir(POSTGRES_PROGRAMS).ok()?.flatten();
    let mut programs: Vec<PathBuf> = versions.map(|version| version.path().join("bin")).collect();
    programs.sort();
    programs.into_iter().rev().find(|bin| bin.join("pg_dump").is_file())
}

fn succeed(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}\n{}", String::from_utf8_lossy(&output.stderr));
}
