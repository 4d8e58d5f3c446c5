//! Every way in which a token can be wrong.

use super::claims::Expected;
use super::keys::KeySet;
use super::*;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use model::access::AuthMethod;
use ring::rand::SystemRandom;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair as _,
};
use serde_json::{Value, json};

const ISSUER: &str = "https://id.example.com";
const AUDIENCE: &str = "farrier";
/// 2026-01-01, in seconds.
const NOW: i64 = 1_767_225_600;

/// A public key and a token that was signed with its private key by another program.
const RSA_MODULUS: &str = "\
    kzLvxULOcrm_YgOTb08BeXnpDHvl9ifwIDWEQyI5FzAo-PLoCzQgFECNhKOkuz48ZavdB7szoSCtvGu4SQkTdGn9\
    kgwLWb5jJayHGFzo9dO7DNViR-ekJh3fBY0yHto22941a_1GCzO6VuH0aECsT_LWa3YqzsDYoVlmFfsHWfpNUxDb\
    APl3ydGnyOqrbJIo6hBYofPl_Xv-A_vyvyY1OOL_jdaDzxsWOVsT9VV1RVN3_TQNg1ysyaiB5_6kNjSqoH1XcHgt\
    fJAbR-sbM9BTvlpa-7zB1RgUGd2yjgNfFewjRsLarHrBPX8MBRxYbDuUxzM3IVnMcbAT5gfmkijzZw";
const RSA_TOKEN: &str = "\
    eyJhbGciOiJSUzI1NiIsImtpZCI6InJzYSIsInR5cCI6IkpXVCJ9.eyJpc3MiOiJodHRwczovL2lkLmV4YW1wbGU\
    uY29tIiwiYXVkIjoiZmFycmllciIsInN1YiI6ImFkYSIsImV4cCI6NDEwMjQ0NDgwMH0.Dp6Zn_r_ptAFTs9FCts\
    zRxONFVdHq5LI9qqn0w7NFwic5IG9dw4oxKmseO92dVHMDH5ka7ylp73sia_bE8TJALGIPuvn2kXSSjm6SM6fyyU\
    ufpglLyZMMwkqTsXZpG1pvOPv6DQR2NZ0y6-9n_q-6DUUkJwShqCYQyy8phdcFYP3ZTFdTQZEkKmuo-xWOhjSvYU\
    uAj04F45CbQphADOS8prSe6qdf55YYqpFxrpcO4HrY3RE51qrfTVayWDSlw9BGhwnV7q2M_P40-ppanFE82YFeRN\
    vw-OlsuxnZsXGa-3TMFZDHRzsyA7z16JW8zp_729PARc4hBUZ2AGnKcCA-Q";

enum TestKey {
    Ed(Ed25519KeyPair),
    Ec(EcdsaKeyPair),
}

impl TestKey {
    fn ed() -> Self {
        let document = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
        Self::Ed(Ed25519KeyPair::from_pkcs8(document.as_ref()).unwrap())
    }

    fn ec() -> Self {
        let (kind, random) = (&ECDSA_P256_SHA256_FIXED_SIGNING, SystemRandom::new());
        let document = EcdsaKeyPair::generate_pkcs8(kind, &random).unwrap();
        Self::Ec(EcdsaKeyPair::from_pkcs8(kind, document.as_ref(), &random).unwrap())
    }

    fn public(&self) -> &[u8] {
        match self {
            Self::Ed(key) => key.public_key().as_ref(),
            Self::Ec(key) => key.public_key().as_ref(),
        }
    }

    fn jwk(&self, id: &str) -> Value {
        let encode = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        match self {
            Self::Ed(_) => {
                json!({"kty": "OKP", "crv": "Ed25519", "kid": id, "x": encode(self.public())})
            }
            Self::Ec(_) => {
                let (x, y) = self.public()[1..].split_at(32);
                json!({"kty": "EC", "crv": "P-256", "kid": id, "x": encode(x), "y": encode(y)})
            }
        }
    }

    fn sign(&self, header: &str, claims: &str) -> String {
        let encode = |text: &str| URL_SAFE_NO_PAD.encode(text);
        let signed = format!("{}.{}", encode(header), encode(claims));
        let signature = match self {
            Self::Ed(key) => key.sign(signed.as_bytes()).as_ref().to_vec(),
            Self::Ec(key) => {
                let made = key.sign(&SystemRandom::new(), signed.as_bytes()).unwrap();
                made.as_ref().to_vec()
            }
        };
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature))
    }
}

/// A provider whose keys are in a file.
struct TestProvider {
    ed: TestKey,
    ec: TestKey,
    provider: Arc<OidcProvider>,
    file: tempfile::NamedTempFile,
}

fn write_keys(file: &tempfile::NamedTempFile, keys: &[Value]) {
    std::fs::write(file.path(), json!({ "keys": keys }).to_string()).unwrap();
}

impl TestProvider {
    fn open(change: impl FnOnce(&mut Oidc)) -> Self {
        let (ed, ec) = (TestKey::ed(), TestKey::ec());
        let file = tempfile::NamedTempFile::new().unwrap();
        let rsa = json!({"kty": "RSA", "kid": "rsa", "n": RSA_MODULUS, "e": "AQAB"});
        write_keys(&file, &[ed.jwk("ed"), ec.jwk("ec"), rsa]);
        let mut config = Oidc {
            issuer: ISSUER.into(),
            audience: AUDIENCE.into(),
            jwks_file: file.path().into(),
            ..Oidc::default()
        };
        change(&mut config);
        config.check().unwrap();
        let provider = OidcProvider::open(&config).map_err(|error| error.to_string());
        Self { ed, ec, provider: provider.unwrap().unwrap(), file }
    }

    async fn verify(&self, token: &str) -> Result<ForeignIdentity, OidcError> {
        let expected = Expected { audience: AUDIENCE, nonce: None };
        self.provider.verify(token, expected, Timestamp::from_millis(NOW * 1_000)).await
    }

    /// A token of the Ed25519 key with these claims in place of the usual ones; null removes one.
    fn token(&self, changes: Value) -> String {
        self.ed.sign(ED_HEADER, &claims(changes))
    }

    async fn claims_error(&self, changes: Value) -> OidcError {
        self.verify(&self.token(changes)).await.unwrap_err()
    }
}

const ED_HEADER: &str = r#"{"alg":"EdDSA","kid":"ed"}"#;
const EC_HEADER: &str = r#"{"alg":"ES256","kid":"ec"}"#;

fn claims(changes: Value) -> String {
    let mut claims = json!({
        "iss": ISSUER, "aud": AUDIENCE, "sub": "ada", "exp": NOW + 600, "iat": NOW, "groups": ["ops"],
    });
    let all = claims.as_object_mut().unwrap();
    for (name, value) in changes.as_object().unwrap().clone() {
        if value.is_null() {
            all.remove(&name);
        } else {
            all.insert(name, value);
        }
    }
    claims.to_string()
}

#[tokio::test]
async fn a_token_of_each_algorithm_names_its_user() {
    let env = TestProvider::open(|_| {});
    for token in [env.token(json!({})), env.ec.sign(EC_HEADER, &claims(json!({})))] {
        let found = env.verify(&token).await.unwrap();
        let principal = found.principal;
        assert_eq!((principal.user.as_str(), principal.method), ("oidc:ada", AuthMethod::Oidc));
        assert_eq!((principal.groups, principal.token_id), (vec!["oidc:ops".to_string()], None));
        // The tolerance for clocks holds for the end too.
        assert_eq!(found.valid_until, Timestamp::from_millis((NOW + 660) * 1_000));
    }
    let found = env.verify(RSA_TOKEN).await.unwrap();
    assert_eq!((found.principal.user.as_str(), found.principal.groups), ("oidc:ada", vec![]));
    // One key fits a token without a key id.
    let unnamed = env.ed.sign(r#"{"alg":"EdDSA","typ":"at+jwt"}"#, &claims(json!({})));
    env.verify(&unnamed).await.unwrap();
}

#[tokio::test]
async fn the_form_of_a_token_is_checked() {
    let env = TestProvider::open(|_| {});
    let good = env.token(json!({}));
    let (signed, signature) = good.rsplit_once('.').unwrap();
    let (header, payload) = signed.split_once('.').unwrap();
    let sign = |header: &str| env.ed.sign(header, &claims(json!({})));
    let twice = claims(json!({})).replacen('{', r#"{"sub":"root","#, 1);
    for (name, token) in [
        ("nothing", String::new()),
        ("one part", header.to_string()),
        ("two parts", signed.to_string()),
        ("four parts", format!("{good}.{signature}")),
        ("empty parts", "..".to_string()),
        ("padding", format!("{good}=")),
        ("base64 of another alphabet", format!("{header}.{payload}.+/{signature}")),
        ("too long", env.token(json!({"more": "a".repeat(jws::MAX_TOKEN_BYTES)}))),
        ("a header that is no object", env.ed.sign("[]", &claims(json!({})))),
        ("a header that is no JSON", env.ed.sign("{", &claims(json!({})))),
        ("a name twice in the header", sign(r#"{"alg":"none","alg":"EdDSA","kid":"ed"}"#)),
        ("a claim twice", env.ed.sign(ED_HEADER, &twice)),
        ("claims that are no object", env.ed.sign(ED_HEADER, "7")),
        ("critical extensions", sign(r#"{"alg":"EdDSA","kid":"ed","crit":["b64"],"b64":false}"#)),
        ("a key id that is no text", sign(r#"{"alg":"EdDSA","kid":7}"#)),
        ("another type", sign(r#"{"alg":"EdDSA","kid":"ed","typ":"logout+jwt"}"#)),
    ] {
        let error = env.verify(&token).await.unwrap_err();
        assert!(matches!(error, OidcError::Malformed(_)), "{name}: {error:?}");
    }
}

#[tokio::test]
async fn the_algorithm_is_pinned_by_the_key() {
    let env = TestProvider::open(|_| {});
    let body = claims(json!({}));
    let unsigned = |header: &str| {
        let encode = |text: &str| URL_SAFE_NO_PAD.encode(text);
        format!("{}.{}.", encode(header), encode(&body))
    };
    // The public key as the secret of an HMAC: the classic confusion.
    let confused = {
        let header = r#"{"alg":"HS256","kid":"ed"}"#;
        let unsigned = unsigned(header);
        let signed = unsigned.trim_end_matches('.');
        let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, env.ed.public());
        let tag = ring::hmac::sign(&key, signed.as_bytes());
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(tag))
    };
    for (name, token) in [
        ("none", unsigned(r#"{"alg":"none"}"#)),
        ("None", unsigned(r#"{"alg":"None","kid":"ed"}"#)),
        ("no algorithm", unsigned(r#"{"kid":"ed"}"#)),
        ("HMAC with a public key", confused),
        ("in another case", env.ed.sign(r#"{"alg":"eddsa","kid":"ed"}"#, &body)),
        ("of another key", env.ed.sign(r#"{"alg":"ES256","kid":"ed"}"#, &body)),
        ("RSA with a key of Ed25519", env.ed.sign(r#"{"alg":"RS256","kid":"ed"}"#, &body)),
    ] {
        assert_eq!(env.verify(&token).await, Err(OidcError::Algorithm), "{name}");
    }
    let pinned = TestProvider::open(|config| config.algorithms = vec!["ES256".into()]);
    assert_eq!(pinned.verify(&pinned.token(json!({}))).await, Err(OidcError::Algorithm));
    pinned.verify(&pinned.ec.sign(EC_HEADER, &body)).await.unwrap();
}

#[tokio::test]
async fn the_signature_is_verified() {
    let env = TestProvider::open(|_| {});
    let good = env.token(json!({}));
    let (signed, signature) = good.rsplit_once('.').unwrap();
    let other = env.token(json!({"sub": "root"}));
    let stranger = TestKey::ed();
    let forged = URL_SAFE_NO_PAD.encode([0; 64]);
    let rsa = RSA_TOKEN.rsplit_once('.').unwrap().0;
    for (name, token) in [
        ("empty", format!("{signed}.")),
        ("zeros", format!("{signed}.{forged}")),
        ("of other claims", format!("{}.{signature}", other.rsplit_once('.').unwrap().0)),
        ("of a stranger", stranger.sign(ED_HEADER, &claims(json!({})))),
        ("of another algorithm", env.ed.sign(EC_HEADER, &claims(json!({})))),
        ("no RSA", format!("{rsa}.{forged}")),
    ] {
        assert_eq!(env.verify(&token).await, Err(OidcError::Signature), "{name}");
    }
}

#[tokio::test]
async fn the_claims_are_checked() {
    let env = TestProvider::open(|_| {});
    use OidcError::{Audience, Claim, Expired, Issuer, NotYetValid};
    for (changes, error) in [
        (json!({"iss": "https://id.example.com/"}), Issuer),
        (json!({"iss": "https://evil.example"}), Issuer),
        (json!({"iss": null}), Claim("a text")),
        (json!({"aud": "other"}), Audience),
        (json!({"aud": ["other"]}), Audience),
        (json!({"aud": ["farrier", 7]}), Audience),
        (json!({"aud": {"farrier": true}}), Audience),
        (json!({"aud": "farrier "}), Audience),
        (json!({"aud": null}), Audience),
        (json!({"exp": NOW - 61}), Expired),
        (json!({"exp": NOW - 60}), Expired),
        (json!({"exp": null}), Claim("exp")),
        (json!({"exp": "4102444800"}), Claim("exp")),
        (json!({"exp": -1}), Claim("exp")),
        (json!({"exp": 1e300}), Claim("exp")),
        (json!({"nbf": NOW + 61}), NotYetValid),
        (json!({"nbf": "soon"}), Claim("nbf")),
        (json!({"iat": NOW + 61}), NotYetValid),
        (json!({"sub": null}), Claim("a text")),
        (json!({"sub": 7}), Claim("a text")),
        (json!({"sub": ""}), Claim("the user")),
        (json!({"sub": "a\nb"}), Claim("the user")),
        (json!({"sub": "a".repeat(200)}), Claim("the user")),
        (json!({"groups": [7]}), Claim("the groups")),
        (json!({"groups": {"ops": true}}), Claim("the groups")),
        (json!({"groups": [""]}), Claim("the groups")),
        (json!({"groups": vec!["g"; 501]}), Claim("the groups")),
    ] {
        assert_eq!(env.claims_error(changes.clone()).await, error, "{changes}");
    }
    for changes in [
        json!({"aud": ["other", "farrier"]}),
        json!({"exp": NOW - 59}),
        json!({"exp": NOW as f64 + 0.5}),
        json!({"nbf": NOW + 60, "iat": NOW + 60}),
        json!({"iat": null, "groups": null}),
        json!({"groups": "ops"}),
    ] {
        let found = env.verify(&env.token(changes.clone())).await;
        assert!(found.is_ok(), "{changes}: {found:?}");
    }
}

#[tokio::test]
async fn an_address_counts_when_the_provider_has_checked_it() {
    let env = TestProvider::open(|config| config.user_claim = "email".into());
    let unchecked = json!({"email": "ada@example.com", "email_verified": false});
    assert_eq!(env.claims_error(unchecked).await, OidcError::Claim("email_verified"));
    let checked = env.token(json!({"email": "ada@example.com", "email_verified": true}));
    assert_eq!(env.verify(&checked).await.unwrap().principal.user, "oidc:ada@example.com");
}

#[tokio::test]
async fn the_token_of_a_sign_in_belongs_to_it() {
    let env = TestProvider::open(|_| {});
    let now = Timestamp::from_millis(NOW * 1_000);
    let expected = Expected { audience: AUDIENCE, nonce: Some("n-1") };
    for (changes, error) in [
        (json!({"nonce": "n-1"}), None),
        (json!({"nonce": "n-1", "azp": AUDIENCE}), None),
        (json!({"nonce": "n-2"}), Some(OidcError::Nonce)),
        (json!({}), Some(OidcError::Claim("a text"))),
        (json!({"nonce": "n-1", "azp": "other"}), Some(OidcError::Audience)),
    ] {
        let found = env.provider.verify(&env.token(changes.clone()), expected, now).await;
        assert_eq!(found.err(), error, "{changes}");
    }
}

/// New keys are read when a token names one, and not more often than the interval allows.
#[tokio::test(start_paused = true)]
async fn unknown_keys_are_looked_up_at_a_limited_rate() {
    let env = TestProvider::open(|_| {});
    let new = TestKey::ed();
    let header = r#"{"alg":"EdDSA","kid":"new"}"#;
    let token = new.sign(header, &claims(json!({})));
    assert_eq!(env.verify(&token).await, Err(OidcError::UnknownKey));
    write_keys(&env.file, &[env.ed.jwk("ed"), new.jwk("new")]);
    assert_eq!(env.verify(&token).await, Err(OidcError::UnknownKey), "it was asked just now");
    tokio::time::advance(UNKNOWN_KEY_INTERVAL).await;
    env.verify(&token).await.unwrap();
    // Without its keys the provider is asked in vain, and the known ones stay.
    std::fs::write(env.file.path(), "{}").unwrap();
    tokio::time::advance(UNKNOWN_KEY_INTERVAL).await;
    let stranger = TestKey::ed().sign(r#"{"alg":"EdDSA","kid":"x"}"#, &claims(json!({})));
    assert_eq!(env.verify(&stranger).await, Err(OidcError::UnknownKey));
    env.verify(&token).await.unwrap();
    // Two keys fit a token without a key id: neither does.
    let unnamed = new.sign(r#"{"alg":"EdDSA"}"#, &claims(json!({})));
    assert_eq!(env.verify(&unnamed).await, Err(OidcError::UnknownKey));
}

#[test]
fn keys_for_other_purposes_are_left_out() {
    let (ed, ec) = (TestKey::ed(), TestKey::ec());
    let with = |mut key: Value, name: &str, value: &str| {
        key[name] = value.into();
        key
    };
    let parse = |keys: Vec<Value>| KeySet::parse(json!({ "keys": keys }).to_string().as_bytes());
    let found = parse(vec![
        with(ed.jwk("a"), "use", "sig"),
        with(ed.jwk("b"), "use", "enc"),
        with(ec.jwk("c"), "alg", "ES256"),
        with(ec.jwk("d"), "alg", "ES384"),
        with(ec.jwk("e"), "crv", "P-384"),
        with(ec.jwk("f"), "x", "AA"),
        json!({"kty": "oct", "kid": "g", "k": "c2VjcmV0"}),
        json!("no key"),
    ]);
    assert_eq!(found.unwrap().len(), 2);
    for document in ["", "[]", "{}", r#"{"keys":[]}"#, r#"{"keys":[{"kty":"oct","k":"AA"}]}"#] {
        assert!(KeySet::parse(document.as_bytes()).is_err(), "{document}");
    }
    assert!(parse(vec![ed.jwk("a"); 101]).is_err());
}

/// A client learns nothing but that a token is not accepted, or that it has expired.
#[tokio::test]
async fn a_refusal_tells_the_client_little() {
    let env = TestProvider::open(|_| {});
    let now = Timestamp::from_millis(NOW * 1_000);
    for (token, words) in [
        (env.token(json!({"aud": "other"})), "is not accepted"),
        (env.token(json!({"iss": "x"})), "is not accepted"),
        ("eyJ.x.y".to_string(), "is not accepted"),
        (env.token(json!({"exp": NOW - 100})), "expired"),
    ] {
        let refusal = env.provider.authenticate(&token, now).await.unwrap_err();
        assert!(refusal.message.ends_with(words), "{}", refusal.message);
        assert!(!refusal.to_string().contains(&token), "{refusal}");
    }
    let closed = TestProvider::open(|config| {
        config.audience.clear();
        config.client_id = "console".into();
        config.redirect_url = "https://f.example/sign-in/callback".into();
    });
    closed.provider.authenticate(&closed.token(json!({})), now).await.unwrap_err();
}

/// The corpus of the fuzz target has tokens of every algorithm that is accepted, and of others.
#[test]
fn the_corpus_has_tokens_that_are_accepted_and_refused() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/jwt");
    let mut algorithms = Vec::new();
    let mut refused = 0;
    for input in std::fs::read_dir(corpus).unwrap() {
        let path = input.unwrap().path();
        let (token, name) = (std::fs::read_to_string(&path).unwrap(), path.file_name().unwrap());
        let read = super::untrusted::read_token(&token);
        match name.to_str().unwrap().split_once('_').unwrap() {
            ("accepted", _) => {
                assert_eq!(read.unwrap().principal.user, "oidc:ada", "{name:?}");
                algorithms.extend(JwsAlgorithm::ALL.into_iter().filter(|algorithm| {
                    ParsedToken::parse(&token, std::slice::from_ref(algorithm)).is_ok()
                }));
            }
            ("refused", _) => {
                read.expect_err(name.to_str().unwrap());
                refused += 1;
            }
            _ => assert!(KeySet::parse(token.as_bytes()).is_ok(), "{name:?}"),
        }
    }
    for algorithm in JwsAlgorithm::ALL {
        assert!(algorithms.contains(&algorithm), "{}", algorithm.as_str());
    }
    assert!(refused >= 15, "{refused}");
}
