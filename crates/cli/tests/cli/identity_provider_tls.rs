//! An identity provider behind TLS, with an authority of its own: every connection to it is
//! verified.

use crate::fleet::TEST_TIMEOUT;
use crate::identity_provider::{Browser, Env};
use crate::pki::{Authority, Files, Usage};
use std::time::Instant;

/// A folder with the authority of the provider, and a certificate of it and of another one.
struct Certificates {
    dir: tempfile::TempDir,
    own: Files,
    foreign: Files,
}

impl Certificates {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let names = (Usage::Server, ["127.0.0.1"].as_slice(), 1);
        let own = Authority::new("provider");
        own.write(&dir.path().join("provider-ca.pem"));
        let own = own.issue(dir.path(), "provider", names);
        let other = Authority::new("foreign");
        other.write(&dir.path().join("foreign-ca.pem"));
        let foreign = other.issue(dir.path(), "foreign", names);
        Self { dir, own, foreign }
    }

    /// The lines of the configuration that trust this authority.
    fn trust(&self, authority: &str) -> String {
        format!("ca_file = {:?}\n", self.dir.path().join(authority))
    }
}

/// Waits until the log has these words.
fn until_logged(env: &Env, words: &str) {
    let started = Instant::now();
    while !env.server.log().contains(words) {
        assert!(started.elapsed() < TEST_TIMEOUT, "{}", env.server.log());
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}

/// The words of a connection to a peer with a certificate of another authority.
const NOT_TRUSTED: &str = "UnknownIssuer";

#[tokio::test(flavor = "multi_thread")]
async fn a_provider_behind_tls_is_used_for_both_kinds_of_sign_in() {
    let made = Certificates::new();
    let (trust, own) = (made.trust("provider-ca.pem"), made.own.clone());
    let Some(env) = Env::open_in(made.dir, &trust, Some(&own)) else { return };
    env.bind("viewer", "group:oidc:night-shift").await;
    let caller = env.caller(&env.access_token()).await.unwrap();
    assert_eq!(caller.user, "oidc:farrier-cli");
    let browser = Browser::new(&env, "ada");
    let begun = browser.open("/sign-in/oidc");
    assert!(begun.location.starts_with("https://127.0.0.1:"), "{begun:?}");
    let back = browser.agree(&begun.location, "ada");
    let signed_in = browser.come_back(&back);
    assert_eq!(signed_in.status, "200", "{signed_in:?}\n{}", env.server.log());
    assert_eq!(browser.open("/racks").status, "200");
}

/// Neither the discovery document nor the keys are read from a provider of another authority.
#[tokio::test(flavor = "multi_thread")]
async fn a_provider_of_another_authority_is_refused() {
    for source in ["", "jwks_url = \"ISSUER/jwks\"\n"] {
        let made = Certificates::new();
        let (more, own) = (made.trust("foreign-ca.pem") + source, made.own.clone());
        let Some(env) = Env::open_in(made.dir, &more, Some(&own)) else { return };
        env.refused(&env.access_token()).await;
        until_logged(&env, NOT_TRUSTED);
        let begun = Browser::new(&env, "ada").open("/sign-in/oidc");
        assert_eq!(begun.status, "503", "{begun:?}");
    }
}

/// Without `ca_file` the authorities of the host count, and this one is none of them.
#[tokio::test(flavor = "multi_thread")]
async fn the_authorities_of_the_host_do_not_include_any() {
    let made = Certificates::new();
    let own = made.own.clone();
    let Some(env) = Env::open_in(made.dir, "", Some(&own)) else { return };
    env.refused(&env.access_token()).await;
    until_logged(&env, NOT_TRUSTED);
}

/// Somebody takes the place of the provider after its documents were read: neither new keys nor the
/// answer to a code are believed.
#[tokio::test(flavor = "multi_thread")]
async fn a_provider_that_is_replaced_is_not_believed() {
    let made = Certificates::new();
    let (trust, own, foreign) =
        (made.trust("provider-ca.pem"), made.own.clone(), made.foreign.clone());
    let Some(env) = Env::open_in(made.dir, &trust, Some(&own)) else { return };
    env.bind("viewer", "user:oidc:ada").await;
    env.caller(&env.access_token()).await.unwrap();
    let back = {
        let browser = Browser::new(&env, "ada");
        let begun = browser.open("/sign-in/oidc");
        browser.agree(&begun.location, "ada")
    };
    let env = env.restart_provider("second", Some(&foreign));
    let refused = Browser::new(&env, "ada").come_back(&back);
    assert_eq!(refused.status, "401", "{refused:?}");
    let log = env.server.log();
    let said = log.lines().find(|line| line.contains("a sign-in with the identity provider"));
    assert!(said.is_some_and(|line| line.contains(NOT_TRUSTED)), "{log}");
    // The forged token has a key that only the replaced provider knows.
    let before = env.server.log().matches(NOT_TRUSTED).count();
    let started = Instant::now();
    while env.server.log().matches(NOT_TRUSTED).count() == before {
        env.refused(&env.access_token()).await;
        assert!(started.elapsed() < TEST_TIMEOUT, "{}", env.server.log());
        tokio::time::sleep(std::time::Duration::from_millis(500)).await;
    }
    env.refused(&env.access_token()).await;
}
