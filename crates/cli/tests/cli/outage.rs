//! The database becomes unavailable and returns: requests are refused with a reason, runs continue
//! by themselves, and nothing is lost.

use crate::api::slow;
use crate::audit::{FailoverClient, audit};
use crate::fleet::{
    Clients, DatabaseKind, Server, Setup, TEST_TIMEOUT, new_database, postgres, skip,
};
use proto::v1;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tonic::Code;

/// A proxy to PostgreSQL whose connections can be cut.
struct DatabaseProxy {
    port: u16,
    connected: Arc<watch::Sender<bool>>,
    /// Connections opened before this generation are silent: they transfer nothing and do not
    /// close.
    dead: Arc<watch::Sender<u32>>,
    commits: Arc<CommitFaults>,
}

/// Counts commits, and drops the responses to some of them.
#[derive(Default)]
struct CommitFaults {
    seen: AtomicUsize,
    /// Drop the response to every n-th commit; never if zero.
    lose_every: AtomicUsize,
    lost: AtomicUsize,
    /// The number of writes whose commit is still to be withheld, after which their connection is
    /// silent.
    withhold: AtomicUsize,
}

impl CommitFaults {
    fn drops_response(&self, sent: &[u8]) -> bool {
        if !sent.windows(6).any(|name| name == b"COMMIT") {
            return false;
        }
        let observed = self.seen.fetch_add(1, Ordering::Relaxed);
        let every = self.lose_every.load(Ordering::Relaxed);
        let lost = every > 0 && observed.is_multiple_of(every);
        self.lost.fetch_add(usize::from(lost), Ordering::Relaxed);
        lost
    }

    /// True if this is the commit of a write that must never arrive.
    fn withholds_commit(&self, sent: &[u8]) -> bool {
        let one_less = |left: usize| left.checked_sub(1);
        sent.windows(6).any(|name| name == b"COMMIT")
            && self.withhold.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_ok()
    }

    /// Forwards both directions until a commit is dropped: it reaches the database, and the
    /// connection ends before the response returns.
    async fn pass(&self, near: &mut TcpStream, far: &mut TcpStream) -> std::io::Result<()> {
        let (mut near_in, mut near_out) = near.split();
        let (mut far_in, mut far_out) = far.split();
        let mut sent = vec![0_u8; 65_536];
        let mut answered = vec![0_u8; 65_536];
        let mut writing = false;
        loop {
            tokio::select! {
                count = near_in.read(&mut sent) => {
                    let count = count?;
                    if sent[..count].windows(5).any(|name| name == b"BEGIN") {
                        writing = !sent[..count].windows(9).any(|words| words == b"READ ONLY");
                    }
                    if writing && self.withholds_commit(&sent[..count]) {
                        return std::future::pending().await;
                    }
                    far_out.write_all(&sent[..count]).await?;
                    if count == 0 {
                        return Ok(());
                    }
                    if self.drops_response(&sent[..count]) {
                        return far_in.read(&mut answered).await.map(drop);
                    }
                }
                count = far_in.read(&mut answered) => {
                    let count = count?;
                    near_out.write_all(&answered[..count]).await?;
                    if count == 0 {
                        return Ok(());
                    }
                }
            }
        }
    }
}

impl DatabaseProxy {
    async fn to(address: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let complete = Arc::new(watch::Sender::new(true));
        let state = Arc::clone(&complete);
        let dead = Arc::new(watch::Sender::new(0));
        let deaths = Arc::clone(&dead);
        let commits = Arc::new(CommitFaults::default());
        let counted = Arc::clone(&commits);
        tokio::spawn(async move {
            loop {
                let Ok((mut near, _)) = listener.accept().await else { return };
                if !*state.borrow() {
                    continue;
                }
                let address = address.clone();
                let mut cut = state.subscribe();
                let commits = Arc::clone(&counted);
                let mut death = deaths.subscribe();
                let born = *death.borrow();
                tokio::spawn(async move {
                    let Ok(mut far) = TcpStream::connect(address).await else { return };
                    tokio::select! {
                        _ = commits.pass(&mut near, &mut far) => {}
                        _ = cut.wait_for(|complete| !complete) => {}
                        () = wait_until_silent(&mut death, born) => {}
                    }
                });
            }
        });
        Self { port, connected: complete, dead, commits }
    }

    fn close_all(&self) {
        self.connected.send_replace(false);
    }

    /// Makes all existing connections silent without closing them. New connections work.
    fn silence_connections(&self) {
        self.dead.send_modify(|now| *now += 1);
    }

    fn reopen(&self) {
        self.connected.send_replace(true);
    }
}

/// Starts a server behind a proxy to its own database. None without PostgreSQL.
async fn server_behind_proxy(dir: &std::path::Path) -> Option<(DatabaseProxy, Server)> {
    let url = new_database(&postgres()?).await;
    let (address, name) = url.split_once('@').unwrap().1.split_once('/').unwrap();
    let wire = DatabaseProxy::to(address.to_string()).await;
    let mut setup = Setup::new(dir, "fast");
    setup.home =
        DatabaseKind::Postgres(format!("postgres://postgres@127.0.0.1:{}/{name}", wire.port));
    Some((wire, Server::start(setup)))
}

/// Waits until the runs have ended. Every refusal on the way must be UNAVAILABLE.
async fn end_past_refusals(server: &Server, runs: &[String]) {
    let mut through = FailoverClient::of(std::slice::from_ref(server));
    for id in runs {
        through.finished(id).await;
    }
    let other = through.refusals.iter().find(|status| status.code() != Code::Unavailable);
    assert!(other.is_none(), "{other:?}");
}

/// Starts a run on m-1 and waits until it is in the middle of a slow repave.
async fn repaving(clients: &mut Clients) -> v1::Run {
    clients.fault(slow("m-1", "repave", 2_000)).await;
    let run = clients.start("m-1", "REPAVE", "r").await;
    clients.at_step(&run.run_id, "repave-os").await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_comes_back_finds_its_work_resumed() {
    let dir = tempfile::tempdir().unwrap();
    let Some((wire, server)) = server_behind_proxy(dir.path()).await else { return };
    let mut clients = server.clients().await;
    clients.in_maintenance("m-1").await;
    clients.register("m-2").await;
    let run = repaving(&mut clients).await;

    wire.close_all();
    let refused = clients.try_start("m-2", "ENTER_MAINTENANCE", "e").await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable, "{refused:?}");
    assert!(refused.message().contains("database"), "{refused:?}");
    // Long enough for the repave to end while its result cannot be stored.
    tokio::time::sleep(Duration::from_millis(3_000)).await;
    wire.reopen();

    let runs = [run.run_id];
    end_past_refusals(&server, &runs).await;
    audit(&clients, &runs).await;
    clients.start("m-2", "ENTER_MAINTENANCE", "e").await;
}

/// Waits until the connection's generation is silent, then blocks forever.
async fn wait_until_silent(death: &mut watch::Receiver<u32>, born: u32) {
    drop(death.wait_for(|now| *now > born).await);
    std::future::pending().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_database_connection_is_abandoned() {
    let dir = tempfile::tempdir().unwrap();
    let Some((wire, server)) = server_behind_proxy(dir.path()).await else { return };
    let mut clients = server.clients().await;
    clients.in_maintenance("m-1").await;
    let run = repaving(&mut clients).await;
    wire.silence_connections();
    // Requests are answered again after some time, and the run continues.
    let runs = [run.run_id];
    end_past_refusals(&server, &runs).await;
    audit(&clients, &runs).await;
}

/// As after a power failure or on a frozen host: the transaction stays open with its locks, and
/// PostgreSQL does not learn that its client is gone.
#[tokio::test(flavor = "multi_thread")]
async fn an_abandoned_transaction_blocks_no_other() {
    const LEFT_OPEN: usize = 3;
    let dir = tempfile::tempdir().unwrap();
    let Some((wire, server)) = server_behind_proxy(dir.path()).await else { return };
    let mut clients = server.clients().await;
    clients.in_maintenance("m-1").await;
    let run = repaving(&mut clients).await;
    wire.commits.withhold.store(LEFT_OPEN, Ordering::Relaxed);
    let watch = clients.runs.watch_runs(v1::WatchRunsRequest::default()).await;
    let mut watch = watch.unwrap().into_inner();
    let runs = [run.run_id];
    end_past_refusals(&server, &runs).await;
    audit(&clients, &runs).await;
    assert_eq!(wire.commits.withhold.load(Ordering::Relaxed), 0, "too few were left open");
    // Watches show no event newer than the oldest open transaction, so that transaction must end
    // too.
    loop {
        let event = tokio::time::timeout(TEST_TIMEOUT, watch.message()).await.expect("an event");
        let run = event.unwrap().unwrap().snapshot.unwrap();
        if run.r#type == "REPAVE" && run.finished_at.is_some() {
            break;
        }
    }
}

/// The most dangerous response to lose is that of a commit: it succeeded, and the server does not
/// know.
#[tokio::test(flavor = "multi_thread")]
async fn a_commit_whose_answer_is_lost_is_neither_repeated_nor_forgotten() {
    const MACHINES: usize = 12;
    let dir = tempfile::tempdir().unwrap();
    let Some((wire, server)) = server_behind_proxy(dir.path()).await else { return };
    let mut clients = server.clients().await;
    for index in 0..MACHINES {
        clients.in_maintenance(&format!("m-{index}")).await;
    }
    wire.commits.lose_every.store(5, Ordering::Relaxed);
    let mut runs = Vec::new();
    for index in 0..MACHINES {
        // The client lost the response and repeats the request with the same ID.
        runs.push(loop {
            match clients.try_start(&format!("m-{index}"), "REPAVE", "r").await {
                Ok(run) => break run.run_id,
                Err(status) => assert_eq!(status.code(), Code::Unavailable, "{status:?}"),
            }
        });
    }
    end_past_refusals(&server, &runs).await;
    wire.commits.lose_every.store(0, Ordering::Relaxed);
    // Each step acted exactly once: none was repeated, and none was taken for done.
    audit(&clients, &runs).await;
    assert!(wire.commits.lost.load(Ordering::Relaxed) > MACHINES, "too few answers were lost");
}

/// A small file system, so that a disk can be full.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    /// None if this user may not mount.
    fn mount(size: &str) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let done = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"])
            .arg(dir.path())
            .output();
        match done {
            Ok(output) if output.status.success() => Some(Self(dir)),
            Ok(_) | Err(_) => {
                skip("this user may not mount a tmpfs");
                None
            }
        }
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_refuses_with_words_and_goes_on_when_there_is_space() {
    let Some(disk) = SmallDisk::mount("12m") else { return };
    let dir = tempfile::tempdir().unwrap();
    let mut setup = Setup::new(dir.path(), "fast");
    setup.dir = disk.0.path().join("data");
    let server = Server::start(setup);
    let mut clients = server.clients().await;
    clients.in_maintenance("m-1").await;
    let run = repaving(&mut clients).await;

    let ballast = disk.0.path().join("ballast");
    let filled = std::fs::write(&ballast, vec![0_u8; 64 << 20]);
    assert!(filled.is_err(), "the disk must be full now");
    // Reads still work; writes are refused with the reason.
    clients.machine("m-1").await;
    let mut refused = None;
    for index in 0..200 {
        let machine = crate::api::machine(&format!("x-{index}"));
        let request = v1::RegisterMachineRequest { machine: Some(machine), ..Default::default() };
        if let Err(status) = clients.machines.register_machine(request).await {
            refused = Some(status);
            break;
        }
    }
    let refused = refused.expect("a full disk takes no more machines");
    assert_eq!(refused.code(), Code::Unavailable, "{refused:?}");
    assert!(refused.message().contains("disk"), "{refused:?}");
    tokio::time::sleep(Duration::from_millis(1_000)).await;
    std::fs::remove_file(&ballast).unwrap();

    audit(&clients, &[run.run_id]).await;
}
