//! Logins to OpenSSH, accepted and refused.

use crate::jobs::{LIMIT, read_output, run_command};
use crate::sshd::{PASSWORD, Sshd, needs_root, secret};
use model::fault::FaultCode;
use providers::ssh::{Endpoint, Host, LoginSecret, Route, Settings, StartResult, Trust};
use std::net::TcpListener;
use std::time::Duration;

#[tokio::test(flavor = "multi_thread")]
async fn a_key_logs_in_and_output_streams_are_separate() {
    let Some(sshd) = Sshd::start() else { return };
    let host = sshd.host().await;
    assert_eq!(host.host_keys(), [(sshd.endpoint(), sshd.host_key())]);
    let output = host.run("cat; echo err >&2; exit 7", b"in", LIMIT).await.unwrap();
    assert_eq!(
        (output.status, output.stdout, output.stderr),
        (Some(7), b"in".to_vec(), b"err\n".to_vec())
    );
    assert_eq!(host.run("kill -KILL $$", b"", LIMIT).await.unwrap().status, None);
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    assert_eq!(host.boot_id().await.unwrap(), boot.trim());
    let mut hop = sshd.hop();
    let pem = secret(&sshd.file("locked_key"));
    hop.login.proof = LoginSecret::Key { pem, passphrase: Some(secret("open sesame")) };
    Host::connect(Route::direct(hop), sshd.settings()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_password_logs_in() {
    let Some(sshd) = Sshd::start() else { return };
    if !needs_root() {
        return;
    }
    let mut hop = sshd.hop();
    hop.login.proof = LoginSecret::Password(secret(PASSWORD));
    let host = Host::connect(Route::direct(hop), sshd.settings()).await.unwrap();
    assert_eq!(run_command(&host, "id -un").await, sshd.login(sshd.key()).user);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_login_names_the_host_and_hides_the_secret() {
    let Some(sshd) = Sshd::start() else { return };
    let key = |name: &str, phrase: Option<&str>| LoginSecret::Key {
        pem: secret(&sshd.file(name)),
        passphrase: phrase.map(secret),
    };
    for (proof, code) in [
        (LoginSecret::Password(secret("battery staple")), FaultCode::LoginRefused),
        (key("stranger_key", None), FaultCode::LoginRefused),
        (key("locked_key", None), FaultCode::CredentialMissing),
        (key("locked_key", Some("battery staple")), FaultCode::CredentialMissing),
        (key("rsa_key", None), FaultCode::CredentialMissing),
        (key("user_key.pub", None), FaultCode::CredentialMissing),
    ] {
        let mut hop = sshd.hop();
        hop.login.proof = proof;
        assert!(!format!("{hop:?}").contains("battery"), "{hop:?}");
        let fault = Host::connect(Route::direct(hop), sshd.settings()).await.err().unwrap();
        assert_eq!(fault.code, code, "{fault}");
        assert!(fault.message.contains(&sshd.endpoint().to_string()), "{fault}");
        assert!(!fault.message.contains("battery"), "{fault}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_host_key_is_refused() {
    let Some(sshd) = Sshd::start() else { return };
    let stranger = sshd.file("stranger_key.pub").parse().unwrap();
    let own = sshd.host_key();
    let second = sshd.file("other_host_key.pub").parse().unwrap();
    let pinned = |keys: &[&providers::ssh::HostKey]| {
        Trust::Pinned(keys.iter().map(|key| (*key).clone()).collect())
    };
    for (trust, code) in [
        (Trust::FirstUse(Some(own.clone())), None),
        // The host has two keys, and shows the known one.
        (Trust::FirstUse(Some(second)), None),
        (pinned(&[&stranger, &own]), None),
        (Trust::FirstUse(Some(stranger.clone())), Some(FaultCode::IdentityChanged)),
        (pinned(&[&stranger]), Some(FaultCode::IdentityUntrusted)),
        (pinned(&[]), Some(FaultCode::IdentityUntrusted)),
    ] {
        let mut hop = sshd.hop();
        hop.trust = trust;
        let made = Host::connect(Route::direct(hop), sshd.settings()).await;
        assert_eq!(made.err().map(|fault| fault.code), code);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unreachable_host_is_reported() {
    let Some(sshd) = Sshd::start() else { return };
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    for (host, port) in [
        // Nothing listens on port 1; a port that was free a moment ago may belong to another test
        // by now.
        ("127.0.0.1", 1),
        ("127.0.0.1", silent.local_addr().unwrap().port()),
        ("no-such-host.invalid", 22),
    ] {
        let mut hop = sshd.hop();
        hop.endpoint = Endpoint { user: None, host: host.into(), port };
        let settings = Settings { connect_timeout: Duration::from_secs(1), ..sshd.settings() };
        let fault = Host::connect(Route::direct(hop.clone()), settings).await.err().unwrap();
        assert_eq!(fault.code, FaultCode::HostUnreachable, "{fault}");
        assert!(fault.message.contains(&hop.endpoint.to_string()), "{fault}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_is_reached_through_others() {
    let (Some(first), Some(second), Some(third)) = (Sshd::start(), Sshd::start(), Sshd::start())
    else {
        return;
    };
    let route = Route { hops: vec![first.hop(), second.hop()], last: third.hop() };
    let host = Host::connect(route, third.settings()).await.unwrap();
    let keys: Vec<_> = host.host_keys().into_iter().map(|(_, key)| key).collect();
    assert_eq!(keys, [first.host_key(), second.host_key(), third.host_key()]);
    assert_eq!(host.start("far", "echo far; seq 1 200000").await.unwrap(), StartResult::Started);
    let (out, _, length) = read_output(&host, "far", 0).await;
    assert_eq!(out.len() as u64, length);
    assert!(out.starts_with("far\n1\n") && out.ends_with("\n200000\n"));
    // The key of every hop is checked, and an unreachable last hop is reported.
    let mut forged = second.hop();
    forged.trust = Trust::Pinned(vec![first.file("stranger_key.pub").parse().unwrap()]);
    let route = Route { hops: vec![first.hop(), forged], last: third.hop() };
    let fault = Host::connect(route, third.settings()).await.err().unwrap();
    assert_eq!(fault.code, FaultCode::IdentityUntrusted, "{fault}");
    let mut nowhere = third.hop();
    // Nothing listens on port 1.
    nowhere.endpoint.port = 1;
    let route = Route { hops: vec![first.hop()], last: nowhere };
    let fault = Host::connect(route, third.settings()).await.err().unwrap();
    assert_eq!(fault.code, FaultCode::HostUnreachable, "{fault}");
}
