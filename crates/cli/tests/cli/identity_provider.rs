//! Users of an OpenID Connect provider that was not written here: npm's oidc-provider. curl is the
//! browser.

use crate::fleet::{
    NO_CONTEXTS, Server, Setup, TEST_TIMEOUT, TEST_TOKEN, channel, channel_with, free_port,
    provided, skip,
};
use crate::pki::Files;
use crate::unreadable::expect;
use proto::v1;
use proto::v1::access_service_client::AccessServiceClient;
use proto::v1::run_service_client::RunServiceClient;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};
use tonic::{Code, Status};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cli/oidc_provider.mjs");
const AUDIENCE: &str = "https://farrier.example";

/// The provider in a process of its own.
struct Provider {
    child: Child,
    /// Open as long as the provider, which ends when it cannot write.
    _stdout: BufReader<ChildStdout>,
    port: u16,
    scheme: &'static str,
}

impl Provider {
    /// Starts the provider with one new key of this id. `tls`: its certificate.
    fn start(
        module: &str,
        port: u16,
        key_id: &str,
        redirect_url: &str,
        tls: Option<&Files>,
    ) -> Self {
        let mut node = Command::new("node");
        node.args([SCRIPT, module, &port.to_string(), key_id, redirect_url]);
        if let Some(Files { certificate, key }) = tls {
            node.arg(certificate).arg(key);
        }
        let mut child = node.stdout(Stdio::piped()).spawn().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let scheme = if tls.is_some() { "https" } else { "http" };
        Self { child, _stdout: ready(stdout), port, scheme }
    }

    /// An access token of the client `farrier-cli` for a resource.
    fn access_token(&self, resource: &str) -> String {
        let url = format!("{}://127.0.0.1:{}/token", self.scheme, self.port);
        let form = format!("grant_type=client_credentials&resource={resource}");
        let args = ["--user", "farrier-cli:cli-secret", "--data", &form, &url];
        let answer: serde_json::Value = serde_json::from_str(&curl(&args)).unwrap();
        answer["access_token"].as_str().unwrap().to_string()
    }
}

impl Drop for Provider {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits until the provider says that it is ready. A read has no time limit of its own.
fn ready(mut stdout: BufReader<ChildStdout>) -> BufReader<ChildStdout> {
    let (said, hears) = mpsc::channel();
    thread::spawn(move || {
        let mut line = String::new();
        let _ = said.send(stdout.read_line(&mut line).map(|_| (line, stdout)));
    });
    let (line, stdout) = hears.recv_timeout(TEST_TIMEOUT).expect("the provider starts").unwrap();
    assert_eq!(line, "ready\n");
    stdout
}

fn curl(args: &[&str]) -> String {
    let mut command = Command::new("curl");
    let output =
        command.args(["--silent", "--insecure", "--max-time", "60"]).args(args).output().unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The provider and a server that trusts it.
pub struct Env {
    module: String,
    provider: Provider,
    pub server: Server,
    pub dir: tempfile::TempDir,
}

impl Env {
    /// `more` is more of the section, with ISSUER for the provider. None: the provider or curl is
    /// not installed.
    fn open(more: &str) -> Option<Self> {
        Self::open_in(tempfile::tempdir().unwrap(), more, None)
    }

    /// The same in a folder that has the certificate of the provider.
    pub fn open_in(dir: tempfile::TempDir, more: &str, tls: Option<&Files>) -> Option<Self> {
        let module = provided("FARRIER_TEST_OIDC_PROVIDER")?;
        if Command::new("curl").arg("--version").stdout(Stdio::null()).status().is_err() {
            skip("curl is not installed");
            return None;
        }
        let mut setup = Setup::new(dir.path(), "zero");
        let (port, redirect) = (free_port(), redirect_url(setup.port));
        let provider = Provider::start(&module, port, "first", &redirect, tls);
        let issuer = format!("{}://127.0.0.1:{port}", provider.scheme);
        let secret = dir.path().join("client.secret");
        std::fs::write(&secret, "a secret: of/the+tests\n").unwrap();
        setup.config = format!(
            "[oidc]\nissuer = {issuer:?}\naudience = \"{AUDIENCE}\"\n\
             client_id = \"farrier-console\"\nclient_secret_file = {secret:?}\n\
             redirect_url = {redirect:?}\ndisplay_name = \"Acme\"\n{more}"
        );
        setup.config = setup.config.replace("ISSUER", &issuer);
        let server = Server::start(setup);
        Some(Self { module, provider, server, dir })
    }

    /// Stops the provider, and starts it again with another key.
    fn rotate_key(self, key_id: &str) -> Self {
        self.restart_provider(key_id, None)
    }

    /// Stops the provider, and starts it again with another key, and with this certificate.
    pub fn restart_provider(self, key_id: &str, tls: Option<&Files>) -> Self {
        let Self { module, provider, server, dir } = self;
        let port = provider.port;
        drop(provider);
        let redirect = redirect_url(server.setup.port);
        let provider = Provider::start(&module, port, key_id, &redirect, tls);
        Self { module, provider, server, dir }
    }

    /// An access token of the provider for this server.
    pub fn access_token(&self) -> String {
        self.provider.access_token(AUDIENCE)
    }

    pub async fn bind(&self, role: &str, subject: &str) {
        let mut access = AccessServiceClient::new(channel(&self.server.url()).await);
        let request = v1::CreateRoleBindingRequest {
            role: role.into(),
            subject: subject.into(),
            ..Default::default()
        };
        access.create_role_binding(request).await.unwrap();
    }

    pub async fn caller(&self, token: &str) -> Result<v1::GetCallerResponse, Status> {
        let mut access = AccessServiceClient::new(channel_with(&self.server.url(), token).await);
        access.get_caller(v1::GetCallerRequest {}).await.map(tonic::Response::into_inner)
    }

    pub async fn refused(&self, token: &str) -> Status {
        let refused = self.caller(token).await.unwrap_err();
        assert_eq!(refused.code(), Code::Unauthenticated, "{refused:?}");
        refused
    }
}

fn redirect_url(port: u16) -> String {
    format!("http://127.0.0.1:{port}/sign-in/callback")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bearer_token_has_the_rights_of_its_groups() {
    let Some(env) = Env::open("jwks_url = \"ISSUER/jwks\"\n") else { return };
    env.bind("operator", "group:oidc:night-shift").await;
    let token = env.provider.access_token(AUDIENCE);
    let caller = env.caller(&token).await.unwrap();
    assert_eq!(
        (caller.user.as_str(), caller.groups),
        ("oidc:farrier-cli", vec!["oidc:night-shift".into()])
    );
    assert_eq!(caller.method, v1::AuthMethod::Oidc as i32);
    assert!(
        caller.permissions.contains(&(v1::Permission::Destroy as i32)),
        "{:?}",
        caller.permissions
    );
    assert!(!caller.permissions.contains(&(v1::Permission::Admin as i32)));

    // A token for another service is worth nothing here, and the client does not learn why.
    let foreign = env.provider.access_token("https://other.example");
    let refused = env.refused(&foreign).await;
    assert!(refused.message().contains("is not accepted; try:"), "{refused:?}");
    let log = env.server.log();
    assert!(log.contains("it is for another audience"), "{log}");
    // Neither is one with a changed claim.
    let mut parts: Vec<&str> = token.split('.').collect();
    let other: Vec<&str> = foreign.split('.').collect();
    parts[1] = other[1];
    env.refused(&parts.join(".")).await;
    for token in [&token, &foreign] {
        assert!(!log.contains(token.as_str()), "a token is in the log");
    }
}

/// An open watch does not outlive the token of the provider.
#[tokio::test(flavor = "multi_thread")]
async fn a_watch_ends_when_its_bearer_token_expires() {
    let more = "clock_skew_seconds = 0\nprefix = \"acme:\"\n";
    let Some(mut env) = Env::open(more) else { return };
    let audience = format!("{AUDIENCE}/short");
    let setup = env.server.terminate();
    let config = setup.config.replace(&format!("{AUDIENCE:?}"), &format!("{audience:?}"));
    env.server = Server::start(Setup { config, ..setup });
    env.bind("viewer", "user:acme:farrier-cli").await;
    let token = env.provider.access_token(&audience);
    let mut runs = RunServiceClient::new(channel_with(&env.server.url(), &token).await);
    let request = v1::WatchRunsRequest { bookmark: true, ..Default::default() };
    let mut watch = runs.watch_runs(request).await.unwrap().into_inner();
    watch.message().await.unwrap().expect("the bookmark");
    let ended = tokio::time::timeout(TEST_TIMEOUT, watch.message()).await.unwrap();
    assert_eq!(ended.unwrap_err().code(), Code::Unauthenticated);
    let refused = env.refused(&token).await;
    assert!(refused.message().contains("expired"), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn new_keys_are_found_and_known_keys_outlive_the_provider() {
    let Some(env) = Env::open("") else { return };
    let old = env.provider.access_token(AUDIENCE);
    env.caller(&old).await.unwrap();
    let env = env.rotate_key("second");
    let new = env.provider.access_token(AUDIENCE);
    let started = Instant::now();
    // The provider is asked for new keys at most every ten seconds.
    while env.caller(&new).await.is_err() {
        assert!(started.elapsed() < TEST_TIMEOUT, "{}", env.server.log());
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    // The provider has withdrawn the old key.
    env.refused(&old).await;
    let Env { module: _, provider, server, dir } = env;
    drop(provider);
    let mut access = AccessServiceClient::new(channel_with(&server.url(), &new).await);
    access.get_caller(v1::GetCallerRequest {}).await.expect("the key is known");
    // API tokens never needed the provider.
    let mut access = AccessServiceClient::new(channel(&server.url()).await);
    access.get_caller(v1::GetCallerRequest {}).await.unwrap();
    drop(dir);
}

/// A browser: curl with its cookies.
pub struct Browser<'a> {
    env: &'a Env,
    jar: PathBuf,
}

/// An answer: its status, where it leads, its headers and its body.
#[derive(Debug)]
pub struct Page {
    pub status: String,
    pub location: String,
    head: String,
    body: String,
}

impl<'a> Browser<'a> {
    pub fn new(env: &'a Env, name: &str) -> Self {
        Self { env, jar: env.dir.path().join(name) }
    }

    fn request(&self, url: &str, more: &[&str]) -> Page {
        let jar = self.jar.to_str().unwrap();
        let head = self.jar.with_extension("head");
        let cookies = ["--cookie", jar, "--cookie-jar", jar];
        let head_file = ["--dump-header", head.to_str().unwrap()];
        let shown =
            ["--write-out", "\n%{http_code} %{redirect_url}", "--header", "Accept: text/html"];
        let args = [cookies.as_slice(), &head_file, &shown, more, &[url]];
        let said = curl(&args.concat());
        let (body, last) = said.rsplit_once('\n').unwrap();
        let (status, location) = last.split_once(' ').unwrap();
        Page {
            status: status.into(),
            location: location.into(),
            head: std::fs::read_to_string(&head).unwrap(),
            body: body.into(),
        }
    }

    pub fn open(&self, path: &str) -> Page {
        self.request(&format!("{}{path}", self.env.server.url()), &[])
    }

    /// Goes through the pages of the provider as this user. Returns the address that it leads back
    /// to.
    pub fn agree(&self, authorization_url: &str, user: &str) -> String {
        let form = |page: &Page, fields: &str| self.request(&page.location, &["--data", fields]);
        let asked = self.request(authorization_url, &[]);
        let login = form(&asked, &format!("prompt=login&login={user}&password=x"));
        let resumed = self.request(&login.location, &[]);
        let consent = form(&resumed, "prompt=consent");
        self.request(&consent.location, &[]).location
    }

    /// Follows the provider's answer as a browser does.
    pub fn come_back(&self, url: &str) -> Page {
        let cross_site =
            ["Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: document"];
        let headers: Vec<&str> = cross_site.iter().flat_map(|one| ["--header", one]).collect();
        self.request(url, &headers)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_browser_signs_in_with_the_provider() {
    let Some(env) = Env::open("") else { return };
    env.bind("viewer", "group:oidc:night-shift").await;
    let browser = Browser::new(&env, "ada");
    let asked = browser.open("/racks");
    assert_eq!(asked.location, format!("{}/sign-in?next=%2Fracks", env.server.url()));
    let page = browser.request(&asked.location, &[]);
    assert!(page.body.contains("Sign in with Acme"), "{}", page.body);
    assert!(page.body.contains("href=\"/sign-in/oidc?next=%2Fracks\""), "{}", page.body);

    let begun = browser.open("/sign-in/oidc?next=%2Fracks");
    assert_eq!(begun.status, "303", "{begun:?}");
    let url = begun.location.clone();
    for part in ["code_challenge_method=S256", "response_type=code", "state=", "nonce="] {
        assert!(url.contains(part), "{url}");
    }
    let cookie = begun.head.to_ascii_lowercase();
    assert!(cookie.contains("httponly") && cookie.contains("samesite=lax"), "{cookie}");
    let back = browser.agree(&url, "ada");
    assert!(back.starts_with(&redirect_url(env.server.setup.port)), "{back}");
    let signed_in = browser.come_back(&back);
    assert_eq!(signed_in.status, "200", "{signed_in:?}");
    assert!(signed_in.body.contains("content=\"0;url=/racks\""), "{}", signed_in.body);
    assert!(signed_in.head.to_ascii_lowercase().contains("samesite=strict"), "{}", signed_in.head);
    assert_eq!(browser.open("/racks").status, "200");
    // The answer of the provider works once, and the cookie of the sign-in is gone.
    assert_eq!(browser.come_back(&back).status, "401");
    assert_eq!(browser.open("/racks").status, "200", "the session stays");
    let log = expect(&env.server.url(), "audit list", 0, &["console/SignInWithProvider"]);
    let accepted =
        log.lines().find(|line| line.contains("SignInWithProvider") && line.contains("accepted"));
    assert!(accepted.is_some_and(|line| line.contains("oidc:ada")), "{log}");

    // Without the right of its group the session is worth nothing at once.
    let mut access = AccessServiceClient::new(channel(&env.server.url()).await);
    let bound = access.list_role_bindings(v1::ListRoleBindingsRequest {}).await.unwrap();
    let bound = bound.into_inner().role_bindings;
    let group = bound.iter().find(|one| one.subject == "group:oidc:night-shift").unwrap();
    let unbind = v1::DeleteRoleBindingRequest {
        role_binding_id: group.role_binding_id.clone(),
        ..Default::default()
    };
    access.delete_role_binding(unbind).await.unwrap();
    assert_eq!(browser.open("/racks").status, "403");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sign_in_of_another_browser_is_refused() {
    let Some(env) = Env::open("") else { return };
    env.bind("viewer", "user:oidc:eve").await;
    let eve = Browser::new(&env, "eve");
    let url = eve.open("/sign-in/oidc").location;
    let back = eve.agree(&url, "eve");
    // A victim who is led to the attacker's answer is not signed in as the attacker.
    let victim = Browser::new(&env, "victim");
    for _ in 0..2 {
        let refused = victim.come_back(&back);
        assert_eq!(refused.status, "401", "{refused:?}");
        assert!(refused.body.contains("does not belong to this browser"), "{}", refused.body);
        assert!(!refused.head.contains("farrier_session"), "{}", refused.head);
        // The second time with a sign-in of its own.
        victim.open("/sign-in/oidc");
    }
    // A code that the provider did not give, and a refusal of the provider.
    let (path, query) = back.split_once('?').unwrap();
    let pairs: Vec<&str> = query.split('&').filter(|pair| !pair.starts_with("code=")).collect();
    let forged = eve.come_back(&format!("{path}?{}&code=forged", pairs.join("&")));
    assert_eq!(forged.status, "401", "{forged:?}");
    assert!(env.server.log().contains("refused the code: 400 Bad Request invalid_grant"));
    assert!(!env.server.log().contains("forged"));
    // That has used up the sign-in.
    assert_eq!(eve.come_back(&back).status, "401");
    let url = eve.open("/sign-in/oidc").location;
    let state = url.split('&').find(|pair| pair.starts_with("state=")).unwrap();
    let denied = eve.come_back(&format!("{path}?{state}&error=access_denied"));
    assert_eq!(denied.status, "401", "{denied:?}");
    assert!(env.server.log().contains("the provider answered access_denied"));
    let other_issuer = format!("{path}?{state}&code=x&iss=https%3A%2F%2Fevil.example");
    assert_eq!(eve.come_back(&other_issuer).status, "401");
}

/// Without a provider there is no button, and nothing behind its address.
#[test]
fn no_provider_is_offered_that_is_not_configured() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(Setup::new(dir.path(), "zero"));
    let page = curl(&[&format!("{}/sign-in", server.url())]);
    assert!(page.contains("Or paste an API token") && !page.contains("Sign in with"), "{page}");
    for path in ["/sign-in/oidc", "/sign-in/callback?code=x&state=y"] {
        let args = ["--output", "/dev/null", "--write-out", "%{http_code}"];
        let status = curl(&[args.as_slice(), &[&format!("{}{path}", server.url())]].concat());
        assert_eq!(status, "404", "{path}");
    }
}

/// The command line takes a token of the provider as any other.
#[tokio::test(flavor = "multi_thread")]
async fn a_token_of_the_provider_is_used_by_the_command_line() {
    let Some(env) = Env::open("") else { return };
    let file = env.dir.path().join("provider.token");
    std::fs::write(&file, env.provider.access_token(AUDIENCE)).unwrap();
    let farrier = |args: &[&str], token: &Path| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_farrier"));
        command.env("FARRIER_CONTEXTS", NO_CONTEXTS).env_remove("FARRIER_TOKEN");
        command.args(args).args(["--server", &env.server.url(), "--token-file"]).arg(token);
        let output = command.output().unwrap();
        String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
    };
    let whoami = "oidc:farrier-cli at oidc\nGroups:      oidc:night-shift\nPermissions: none\n";
    assert_eq!(farrier(&["whoami"], &file), whoami);
    let admin = env.dir.path().join("admin.token");
    std::fs::write(&admin, TEST_TOKEN).unwrap();
    farrier(&["role", "bind", "viewer", "user:oidc:farrier-cli"], &admin);
    assert!(farrier(&["whoami"], &file).ends_with("Permissions: view\n"));
    // A link stands for an API token.
    let said = farrier(&["console"], &file);
    assert!(said.contains("no API token"), "{said}");
}
