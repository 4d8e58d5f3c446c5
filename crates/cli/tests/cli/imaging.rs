//! Installs an image: the real server, a Redfish emulator as BMC, OpenSSH as the new system, and a
//! machine whose firmware and deploy agent the test plays. (`cargo xtask test-vm` uses real ones.)

use crate::api::{plan, step};
use crate::fleet::{Server, Setup, TEST_TIMEOUT, free_port};
use crate::hardware::{
    MAC, PASSWORD, SSHD, SUSHY, emulator, host, log_of, log_says, password, peer, register, set,
    user_key,
};
use crate::stage::{farrier, finish};
use proto::v1;
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::{Duration, Instant};

const IMAGE: &[u8] = b"0123456789";
const OTHER_MAC: &str = "52:54:00:00:00:02";

/// The port of the netboot service.
struct Netboot(u16);

impl Netboot {
    /// Sends a raw request. Returns the status and the body. Retries while the server is down.
    fn send(&self, method: &str, path: &str, more: &str, body: &str) -> (u16, String) {
        let started = Instant::now();
        loop {
            if let Some(answer) = self.try_send(method, path, more, body) {
                return answer;
            }
            assert!(started.elapsed() < TEST_TIMEOUT, "nobody answers {method} {path}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn try_send(&self, method: &str, path: &str, more: &str, body: &str) -> Option<(u16, String)> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.0)).ok()?;
        let length = body.len();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\
             Content-Type: application/json\r\nContent-Length: {length}\r\n{more}\r\n{body}"
        );
        stream.write_all(request.as_bytes()).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        Some((head.split(' ').nth(1)?.parse().ok()?, body.to_string()))
    }

    fn get(&self, path: &str) -> (u16, String) {
        self.send("GET", path, "", "")
    }

    fn script(&self, mac: &str) -> (u16, String) {
        self.get(&format!("/netboot/by-mac/{}", mac.replace(':', "-")))
    }

    /// Plays the firmware: polls until the boot script is offered, and returns its token.
    fn token(&self) -> String {
        let started = Instant::now();
        loop {
            let (status, script) = self.script(MAC);
            if status == 200 {
                let (_, rest) = script.split_once("farrier.token=").unwrap();
                return rest.split(' ').next().unwrap().to_string();
            }
            assert_eq!(status, 404, "{script}");
            assert!(started.elapsed() < TEST_TIMEOUT, "nobody wants it");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn claim(&self, token: &str, session: &str, mac: &str) -> (u16, Value) {
        let body = json!({ "token": token, "session": session, "mac": mac, "macs": [mac] });
        let (status, answer) = self.send("POST", "/deploy/claim", "", &body.to_string());
        (status, serde_json::from_str(&answer).unwrap())
    }

    fn report(&self, session: &str, report: &Value) -> (u16, Value) {
        let bearer = format!("Authorization: Bearer {session}\r\n");
        let (status, answer) = self.send("POST", "/deploy/report", &bearer, &report.to_string());
        (status, serde_json::from_str(&answer).unwrap())
    }
}

fn config(dir: &Path, port: u16) -> String {
    let deploy = dir.join("deploy");
    std::fs::create_dir_all(&deploy).unwrap();
    std::fs::write(deploy.join("vmlinuz"), "the kernel").unwrap();
    std::fs::write(deploy.join("initrd"), "the ramdisk").unwrap();
    format!(
        "[datacenter]\ngraceful_seconds = 0\nbmc_credential = \"bmc\"\nssh_credential = \"host\"\n\
         [netboot]\nlisten = \"127.0.0.1:{port}\"\ndeploy_dir = {deploy:?}\n"
    )
}

fn type_in(server: &Server, line: &str) -> (i32, String, String) {
    finish(farrier(&server.url(), &line.split(' ').collect::<Vec<_>>()))
}

/// Starts an sshd that reads its image name from a file of the test, and executes all other
/// commands.
fn new_system(program: &Path, dir: &Path) -> crate::hardware::Peer {
    let script = format!(
        "#!/bin/sh\n[ \"$SSH_ORIGINAL_COMMAND\" = 'cat /etc/farrier/image' ] && exec cat {}\n\
         exec sh -c \"$SSH_ORIGINAL_COMMAND\"\n",
        dir.join("stamp").display()
    );
    let path = dir.join("answer");
    std::fs::write(&path, script).unwrap();
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    host(program, dir, &format!("ForceCommand {}", path.display()))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_is_given_an_image_although_we_are_killed() {
    let (Some(sushy), Some(sshd)) = (peer(SUSHY), peer(SSHD)) else { return };
    let dir = tempfile::tempdir().unwrap();
    let bmc = emulator(&sushy, dir.path());
    let system = new_system(&sshd, dir.path());
    let netboot = Netboot(free_port());
    let config = config(dir.path(), netboot.0);
    let server = Server::start(Setup { config, ..Setup::new(dir.path(), "zero") });
    set(&server, "bmc", password(PASSWORD)).await;
    set(&server, "host", user_key(dir.path())).await;
    let mut api = server.clients().await;
    let spec = v1::MachineSpec {
        bmc_endpoint: format!("http://127.0.0.1:{}", bmc.port),
        ssh_endpoint: format!("127.0.0.1:{}", system.port),
        mac_addresses: vec![MAC.into()],
        ..Default::default()
    };
    register(&mut api, spec).await;
    let repave = v1::step::Kind::Repave(v1::RepaveImage { image: "tiny".into() });
    api.try_plan(plan("image-only", vec![step("repave-os", repave)])).await.unwrap();
    api.done("m-1", "ENTER_MAINTENANCE", "enter").await;

    // An unknown image is refused before the run starts.
    let missing = api.try_start_plan("m-1", "image-only", "too-early").await.unwrap_err();
    assert_eq!(missing.code(), tonic::Code::NotFound, "{missing:?}");
    let file = dir.path().join("tiny.raw");
    std::fs::write(&file, IMAGE).unwrap();
    let (code, message, wrong) =
        type_in(&server, &format!("image create tiny --file {}", file.display()));
    assert_eq!(code, 0, "{message}{wrong}");
    assert!(message.contains("Next: farrier reimage MACHINE --image tiny"), "{message}");
    let (code, message, _) = type_in(&server, "netboot config --interface br0");
    assert_eq!(code, 0);
    assert!(message.contains(&format!("dhcp-host={MAC},127.0.0.1,m-1")), "{message}");

    // No machine gets a boot script before a run requests it.
    assert_eq!(netboot.script(MAC).0, 404);
    assert_eq!(netboot.get("/netboot/boot.ipxe").0, 200);
    let run = api.start_plan("m-1", "image-only", "r").await.run_id;
    let token = netboot.token();
    let (_, script) = netboot.script(MAC);
    let key = script.split_once("farrier.key=").unwrap().1.split(' ').next().unwrap().to_string();
    let public = std::fs::read_to_string(dir.path().join("data/manifest.pub")).unwrap();
    assert_eq!(public.trim(), key);
    assert_eq!(netboot.script(OTHER_MAC).0, 404);
    // A page in a browser is refused here too.
    let foreign = "Origin: https://evil.example\r\n";
    assert_eq!(netboot.send("GET", "/netboot/boot.ipxe", foreign, "").0, 403);
    let kernel = format!("/netboot/{token}/kernel");
    assert_eq!(netboot.get(&kernel), (200, "the kernel".into()));
    assert_eq!(netboot.get("/netboot/0000/kernel").0, 403);

    // Another machine cannot use the token, and no machine can use it twice.
    let (session, other) = ("5".repeat(64), "6".repeat(64));
    let (status, message) = netboot.claim(&token, &other, OTHER_MAC);
    assert_eq!((status, &message["code"]), (403, &json!("mac-refused")));
    let (status, call) = netboot.claim(&token, &session, MAC);
    assert_eq!(status, 200, "{call}");
    // The deploy environment believes the signed manifest, for this claim of this machine.
    let signed = serde_json::from_value(call.clone()).unwrap();
    let key = agent::manifest::ManifestKey::parse(&key).unwrap();
    let granted = key.verify(&signed, &session, &[MAC.into()]).unwrap();
    assert_eq!((granted.machine.as_str(), granted.image.size), ("m-1", IMAGE.len() as u64));
    assert!(key.verify(&signed, &other, &[MAC.into()]).is_err());
    assert!(key.verify(&signed, &session, &[OTHER_MAC.into()]).is_err());
    let (status, message) = netboot.claim(&token, &other, MAC);
    assert_eq!((status, &message["code"]), (403, &json!("token-used")));
    assert_eq!(netboot.claim(&token, &session, MAC), (200, call.clone()), "an answer may be lost");
    assert_eq!(netboot.get(&kernel).0, 403);
    assert_eq!(netboot.script(MAC).0, 404);

    // The image is available from any byte offset, only to the session.
    assert_eq!(call["image"]["size"], IMAGE.len());
    let bearer = format!("Authorization: Bearer {session}\r\nRange: bytes=4-\r\n");
    assert_eq!(netboot.send("GET", "/deploy/image", &bearer, ""), (206, "456789".into()));
    assert_eq!(netboot.get("/deploy/image").0, 403);
    let half = json!({ "stage": "writing", "done": 5, "total": 10, "said": "writing" });
    assert_eq!(netboot.report(&session, &half), (200, json!({ "then": "go-on" })));
    assert_eq!(netboot.report(&other, &half).0, 403);
    log_says(&mut api, &run, "image: 50 % written").await;
    let (code, _, message) = type_in(&server, "image delete tiny");
    assert_eq!(code, 2, "{message}");
    assert!(message.contains("is being installed"), "{message}");

    // The server is killed while the image is written. The machine continues where it was.
    let server = Server::start(server.kill());
    let mut api = server.clients().await;
    assert_eq!(netboot.report(&session, &half).1["then"], "go-on");
    let key = std::fs::read_to_string(dir.path().join("host_key.pub")).unwrap();
    let installed =
        json!({ "stage": "installed", "done": 10, "total": 10, "host_keys": [key.trim()] });
    let started = Instant::now();
    while netboot.report(&session, &installed).1["then"] != "reboot" {
        assert!(
            started.elapsed() < TEST_TIMEOUT,
            "it is never let go: {}",
            log_of(&mut api, &run).await
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    std::fs::write(dir.path().join("stamp"), call["stamp"].as_str().unwrap()).unwrap();
    let done = api.finished(&run).await;
    let log = log_of(&mut api, &run).await;
    assert_eq!(done.phase(), v1::run::Phase::Succeeded, "{done:#?}\n{log}\n{}", server.log());
    assert!(done.steps[0].message.contains("runs tiny"), "{done:#?}");
    assert_eq!(log.matches("switching it on").count(), 1, "{log}");
    assert_eq!(netboot.report(&session, &installed).1["then"], "stop");
    assert!(!format!("{log}{}", server.log()).contains(&token), "a token was shown");
    let (code, message, _) = type_in(&server, "image delete tiny");
    assert_eq!((code, message.as_str()), (0, "image tiny deleted\n"));
    // The files of the simulated fleet's images stay.
    let files = std::fs::read_dir(dir.path().join("data/images")).unwrap().flatten();
    let files = files.filter(|file| file.file_name() != ".lock");
    assert_eq!(files.count(), crate::fleet::IMAGES.len());
}
