//! The identity of the BMC: certificates that are valid, wrong, changed, expired or stolen.

use crate::certs::{Authority, Identity};
use crate::fake_bmc::{FakeBmc, login, settings};
use crate::http::Peer;
use model::fault::{Fault, FaultCode};
use providers::http_client::{Fingerprint, Trust};
use providers::redfish::{Auth, Bmc, BmcAddress, SystemSelector};
use rustls::version::{TLS12, TLS13};
use std::sync::Arc;

const HERE: &str = "127.0.0.1";
const SOON: i32 = 2099;

async fn serve(tls: tokio_rustls::TlsAcceptor) -> Peer {
    let env = FakeBmc::new();
    Peer::serve(Some(tls), Arc::new(move |call| env.answer(call))).await
}

async fn connect(peer: &Peer, trust: Trust) -> Result<Bmc, Fault> {
    let endpoint = BmcAddress::parse(&peer.url()).unwrap();
    Bmc::connect(endpoint, login(), trust, settings(Auth::Basic)).await
}

async fn refused(peer: &Peer, trust: Trust) -> Fault {
    let fault = connect(peer, trust).await.err().expect("the identity must be refused");
    assert!(peer.calls().is_empty(), "nothing may be sent to it: {fault}");
    fault
}

/// The fingerprint, computed by another implementation.
fn fingerprint(identity: &Identity) -> Fingerprint {
    let digest = ring::digest::digest(&ring::digest::SHA256, &identity.certificate);
    let hex: Vec<String> = digest.as_ref().iter().map(|byte| format!("{byte:02X}")).collect();
    hex.join(":").parse().unwrap()
}

#[tokio::test]
async fn a_certificate_of_the_authority_is_trusted() {
    let authority = Authority::new();
    let trust = Trust::ca_from_pem(authority.pem().as_bytes()).unwrap();
    let identity = authority.issue(HERE, SOON);
    let peer = serve(identity.acceptor()).await;
    let bmc = connect(&peer, trust.clone()).await.unwrap();
    assert!(bmc.system(&SystemSelector::default()).await.is_ok());
    assert_eq!(bmc.fingerprint(), Some(fingerprint(&identity)));

    for (stranger, words) in [
        (Authority::new().issue(HERE, SOON), ""),
        (authority.issue(HERE, 2001), "expired"),
        (authority.issue("10.9.9.9", SOON), "10.9.9.9"),
    ] {
        let peer = serve(stranger.acceptor()).await;
        let fault = refused(&peer, trust.clone()).await;
        assert_eq!(fault.code, FaultCode::IdentityUntrusted, "{fault}");
        assert!(fault.message.contains(words), "{fault}");
        assert!(fault.message.contains(&fingerprint(&stranger).to_string()), "{fault}");
    }
}

#[tokio::test]
async fn a_pinned_certificate_is_enough_and_nothing_else_is() {
    let identity = Authority::new().issue("bmc.example", 2001);
    let peer = serve(identity.acceptor()).await;
    let pinned = Trust::Pinned(fingerprint(&identity));
    assert!(connect(&peer, pinned.clone()).await.is_ok(), "a pinned certificate may be expired");

    let other = Authority::new().issue(HERE, SOON);
    let fault = refused(&serve(other.acceptor()).await, pinned).await;
    assert_eq!(fault.code, FaultCode::IdentityUntrusted, "{fault}");
}

#[tokio::test]
async fn a_changed_certificate_is_refused_after_first_use() {
    let first = Authority::new().issue(HERE, SOON);
    let peer = serve(first.acceptor()).await;
    let bmc = connect(&peer, Trust::FirstUse(None)).await.unwrap();
    let observed = bmc.fingerprint().unwrap();
    assert_eq!(observed, fingerprint(&first));
    assert!(connect(&peer, Trust::FirstUse(Some(observed))).await.is_ok());

    let second = Authority::new().issue(HERE, SOON);
    let fault = refused(&serve(second.acceptor()).await, Trust::FirstUse(Some(observed))).await;
    assert_eq!(fault.code, FaultCode::IdentityChanged, "{fault}");
    for shown in [observed, fingerprint(&second)] {
        assert!(fault.message.contains(&shown.to_string()), "{fault}");
    }
}

#[tokio::test]
async fn a_certificate_without_its_key_proves_nothing() {
    let authority = Authority::new();
    let (victim, claimant) = (authority.issue(HERE, SOON), authority.issue("other.example", SOON));
    let stolen = fingerprint(&victim);
    let ca = Trust::ca_from_pem(authority.pem().as_bytes()).unwrap();
    for trust in [Trust::Pinned(stolen), Trust::FirstUse(Some(stolen)), Trust::FirstUse(None), ca] {
        for version in [&TLS12, &TLS13] {
            let honest = serve(victim.with_key_of(&victim, &[version])).await;
            assert!(connect(&honest, trust.clone()).await.is_ok(), "{trust:?} {version:?}");
            let peer = serve(victim.with_key_of(&claimant, &[version])).await;
            let fault = refused(&peer, trust.clone()).await;
            assert_eq!(fault.code, FaultCode::IdentityUntrusted, "{version:?}: {fault}");
        }
    }
}

#[tokio::test]
async fn a_bmc_that_does_not_speak_tls_is_not_spoken_to_without() {
    let peer = FakeBmc::new().serve().await;
    let endpoint = BmcAddress::parse(&peer.url().replace("http://", "https://")).unwrap();
    let trust = Trust::FirstUse(None);
    let result = Bmc::connect(endpoint, login(), trust, settings(Auth::Basic)).await;
    let fault = result.err().unwrap();
    assert_eq!(fault.code, FaultCode::BmcUnreachable, "{fault}");
    assert!(peer.calls().is_empty());
}
