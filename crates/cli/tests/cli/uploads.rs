//! Attacks on the disk by uploads: more than the quota, into the reserve, together, and cut off.

use crate::api::{field_of, refused};
use crate::fleet::{Channel, IMAGES, Server, Setup, TEST_TIMEOUT, channel, channel_with};
use crate::stage::{farrier, finish};
use proto::v1::access_service_client::AccessServiceClient;
use proto::v1::image_service_client::ImageServiceClient;
use proto::v1::{self, UploadArtifactRequest};
use std::path::Path;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status};

const GIB: i64 = 1 << 30;

/// An upload whose sender says more only when the test does.
struct OpenUpload {
    sender: mpsc::Sender<UploadArtifactRequest>,
    answer: JoinHandle<Result<(), Status>>,
}

async fn begin(server: &Server, size: i64) -> OpenUpload {
    begin_on(channel(&server.url()).await, size).await
}

async fn begin_on(channel: Channel, size: i64) -> OpenUpload {
    let mut images = ImageServiceClient::new(channel);
    let (sender, receiver) = mpsc::channel(1);
    let answer = tokio::spawn(async move {
        images.upload_artifact(ReceiverStream::new(receiver)).await.map(drop)
    });
    let first = UploadArtifactRequest { size, data: b"half".to_vec(), ..Default::default() };
    sender.send(first).await.unwrap();
    OpenUpload { sender, answer }
}

impl OpenUpload {
    /// The answer, while the sender has not ended.
    async fn refused(self) -> Result<(), Status> {
        let answer = tokio::time::timeout(TEST_TIMEOUT, self.answer).await;
        drop(self.sender);
        answer.expect("an answer before the end of the file").unwrap()
    }
}

/// The names in the images folder: incomplete files, and others without the lock.
fn files(server: &Server) -> (usize, usize) {
    let entries = std::fs::read_dir(server.setup.dir.join("images")).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let (parts, others): (Vec<_>, Vec<_>) =
        names.filter(|name| name != ".lock").partition(|name| name.starts_with(".part-"));
    (parts.len(), others.len())
}

async fn until_parts(server: &Server, count: usize) {
    let started = Instant::now();
    while files(server).0 != count {
        assert!(started.elapsed() < TEST_TIMEOUT, "{:?} in the folder", files(server));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn start(dir: &Path, config: &str) -> Server {
    let config = format!("[netboot]\n{config}\n");
    Server::start(Setup { config, ..Setup::new(dir, "zero") })
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_that_does_not_fit_is_refused_before_a_byte_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path(), "images_quota_gib = 1");
    for size in [0, -1] {
        let status =
            refused(begin(&server, size).await.refused().await, Code::InvalidArgument, &[]);
        assert_eq!(field_of(&status), "size");
    }
    let words = ["netboot.images_quota_gib", "farrier image delete NAME"];
    for size in [GIB + 1, i64::MAX] {
        let answer = begin(&server, size).await.refused().await;
        refused(answer, Code::ResourceExhausted, &words);
    }
    // Each of two fits alone.
    let first = begin(&server, GIB * 2 / 3).await;
    until_parts(&server, 1).await;
    let second = begin(&server, GIB * 2 / 3).await.refused().await;
    refused(second, Code::ResourceExhausted, &words);
    assert_eq!(files(&server), (1, IMAGES.len()), "the refused one left nothing");
    // Its sender goes away: its space is free again.
    first.answer.abort();
    drop(first.sender);
    until_parts(&server, 0).await;
    let third = begin(&server, GIB * 2 / 3).await;
    until_parts(&server, 1).await;
    drop(third);
    until_parts(&server, 0).await;

    let big = dir.path().join("big.raw");
    std::fs::File::create(&big).unwrap().set_len(2 * GIB.unsigned_abs()).unwrap();
    let words = ["image", "create", "big", "--file", big.to_str().unwrap()];
    let (code, _, message) = finish(farrier(&server.url(), &words));
    assert_eq!(code, 2, "{message}");
    assert!(message.contains("the file has 2.0 GiB, and "), "{message}");
}

/// Its space is reserved as long as it is open.
#[tokio::test(flavor = "multi_thread")]
async fn an_upload_ends_with_its_token() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path(), "images_quota_gib = 1");
    let mut access = AccessServiceClient::new(channel(&server.url()).await);
    let roles = vec!["admin".into()];
    let request = v1::CreateTokenRequest { user: "ada".into(), roles, ..Default::default() };
    let made = access.create_token(request).await.unwrap().into_inner();
    let upload = begin_on(channel_with(&server.url(), &made.secret).await, GIB / 2).await;
    until_parts(&server, 1).await;
    let token_id = made.token.unwrap().token_id;
    let request = v1::RevokeTokenRequest { token_id, ..Default::default() };
    access.revoke_token(request).await.unwrap();
    refused(upload.refused().await, Code::Unauthenticated, &["revoked"]);
    until_parts(&server, 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_upload_uses_the_reserve_of_the_disk() {
    let dir = tempfile::tempdir().unwrap();
    // No disk has that much. The images of the simulator are the server's own.
    let server = start(dir.path(), "images_reserve_gib = 4000000000");
    let answer = begin(&server, 1).await.refused().await;
    refused(answer, Code::ResourceExhausted, &["images_reserve_gib", "farrier image delete NAME"]);
    assert_eq!(files(&server), (0, IMAGES.len()));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_that_was_cut_off_by_kill_9_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path(), "");
    let upload = begin(&server, GIB).await;
    until_parts(&server, 1).await;
    let setup = server.kill();
    drop(upload);
    let left = std::fs::read_dir(setup.dir.join("images")).unwrap();
    assert_eq!(left.count(), IMAGES.len() + 2, "the lock, and the incomplete file");
    let server = Server::start(setup);
    assert_eq!(files(&server), (0, IMAGES.len()));
}
