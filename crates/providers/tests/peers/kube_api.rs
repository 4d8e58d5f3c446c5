//! A small, strict Kubernetes API server, because no package registry has one: the real paths, over
//! TLS with its own authority. It refuses a wrong content type, an unknown field, a missing kind,
//! an unknown query parameter or selector, so that no mistake of the client passes unnoticed.
//!
//! It stores nodes, pods, secrets and config maps as JSON. Disruption budgets refuse evictions.
//! Evicted pods go when their grace period ends, unless they are stubborn. Each request can be made
//! to fail.

use crate::crash_injector::{CallTarget, CrashInjector};
use crate::kube_access::{Admission, Attributes, record_field_manager};
use crate::kube_pki::Pki;
use crate::kube_schema::{
    ACCESS_REVIEW, DELETE_OPTIONS, EVENT, EVICTION, NODE, SECRET, SELF_REVIEW, Schema, mismatch,
};
use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Request, State};
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::serve::Listener;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

pub const TOKEN: &str = "letmein";
const MAX_BODY_BYTES: usize = 1024 * 1024;

/// The way in which a request fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trouble {
    Status(u16),
    /// It is executed, and the connection breaks in the middle of the answer.
    Cut,
    Hang,
    /// A proxy answers, and not with JSON.
    Proxy(u16),
    /// A success with this body.
    RawBody(&'static str),
    /// A concurrent writer is faster: nodes are changed, and pods are replaced under the same
    /// names.
    Race,
    /// A proxy refuses it and quotes the request.
    QuotingProxy(u16),
    /// The authorizer refuses it, as one of several API servers does that has just started.
    Forbidden,
}

/// The number of pods of an application that may be evicted.
#[derive(Debug, Clone)]
pub struct Budget {
    pub name: &'static str,
    pub app: &'static str,
    pub allowed: usize,
}

#[derive(Default)]
pub struct ClusterState {
    pub nodes: BTreeMap<String, Value>,
    pub pods: BTreeMap<String, Value>,
    pub secrets: BTreeMap<String, Value>,
    pub config_maps: BTreeMap<String, Value>,
    pub events: BTreeMap<String, Value>,
    pub budgets: Vec<Budget>,
    /// Pods that do not end.
    pub stubborn: BTreeSet<String>,
    /// `METHOD path?query`, in order.
    pub requests: Vec<String>,
    /// Verb and resource that the user has no right to.
    pub forbidden: Vec<(&'static str, &'static str)>,
    /// The server has just started, and its caches are empty.
    pub starting: bool,
    /// The hooks of its start have not ended.
    pub unready: bool,
    /// By how many seconds its clock is ahead.
    pub clock_ahead_s: i64,
    /// Namespaces that are being deleted.
    pub terminating: BTreeSet<String>,
    /// Applications whose evictions an admission rule denies.
    pub admission: Vec<(&'static str, Admission)>,
    /// Counts the requests and crashes at one of them.
    pub crash_injector: Option<Arc<CrashInjector>>,
    troubles: Vec<(Method, Trouble)>,
    version: u64,
}

/// A running server. Dropping it stops it.
pub struct Api {
    pub address: SocketAddr,
    pub state: SharedState,
    server: JoinHandle<io::Result<()>>,
}

impl Drop for Api {
    fn drop(&mut self) {
        self.server.abort();
    }
}

/// The state, and whether a token is required: a client certificate is checked before HTTP begins.
#[derive(Clone)]
pub struct SharedState {
    state: Arc<Mutex<ClusterState>>,
    wants_token: bool,
}

impl SharedState {
    pub fn new(wants_token: bool) -> Self {
        Self { state: Arc::default(), wants_token }
    }

    pub fn lock(&self) -> MutexGuard<'_, ClusterState> {
        self.state.lock().unwrap()
    }

    pub fn router(&self) -> Router {
        Router::new().fallback(answer).with_state(self.clone())
    }
}

impl Api {
    pub async fn start(pki: &Pki) -> Self {
        Self::serve(TlsAcceptor::from(pki.server()), SharedState::new(true)).await
    }

    /// A server that identifies its users by their certificates, and ends the connection of others
    /// as a proxy does. A kube-apiserver answers 401 to them. Run with 1.35.8.
    pub async fn start_with_client_certificates(pki: &Pki) -> Self {
        Self::serve(TlsAcceptor::from(pki.server_with_clients()), SharedState::new(false)).await
    }

    /// A server whose certificate has expired.
    pub async fn start_with_expired_certificate(pki: &Pki) -> Self {
        Self::serve(TlsAcceptor::from(pki.expired_server()), SharedState::new(true)).await
    }

    async fn serve(acceptor: TlsAcceptor, env: SharedState) -> Self {
        let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = tcp.local_addr().unwrap();
        let serve = axum::serve(Tls { tcp, acceptor }, env.router());
        Self { address, state: env, server: tokio::spawn(async move { serve.await }) }
    }

    /// Makes the next requests of this method fail, this many times.
    pub fn trouble(&self, method: Method, failure: Trouble, times: usize) {
        let mut env = self.state.lock();
        env.troubles.extend(std::iter::repeat_n((method, failure), times));
    }
}

struct Tls {
    tcp: TcpListener,
    acceptor: TlsAcceptor,
}

impl Listener for Tls {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        loop {
            let Ok((stream, from)) = self.tcp.accept().await else { continue };
            if let Ok(stream) = self.acceptor.accept(stream).await {
                return (stream, from);
            }
        }
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        self.tcp.local_addr()
    }
}

/// A refusal, as the API server writes it.
pub struct ApiError(pub StatusCode, pub Value);

pub fn api_error(code: u16, reason: &str, message: impl Into<String>) -> ApiError {
    let message = message.into();
    let mut status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "code": code,
    });
    if !reason.is_empty() {
        status["reason"] = json!(reason);
    }
    ApiError(StatusCode::from_u16(code).unwrap(), status)
}

pub fn json_response(code: StatusCode, value: &Value) -> Response {
    (code, [("content-type", "application/json")], value.to_string()).into_response()
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        json_response(self.0, &self.1)
    }
}

/// One parsed request.
struct Call {
    method: Method,
    path: Vec<String>,
    query: BTreeMap<String, String>,
    content_type: String,
    body: Bytes,
}

async fn answer(State(shared): State<SharedState>, request: Request) -> Response {
    let injector = shared.lock().crash_injector.clone();
    match injector {
        None => answer_with_trouble(shared, request).await,
        Some(injector) => {
            injector.call_or_crash(CallTarget::Api, answer_with_trouble(shared, request)).await
        }
    }
}

async fn answer_with_trouble(shared: SharedState, request: Request) -> Response {
    let failure = {
        let mut env = shared.lock();
        env.requests.push(format!("{} {}", request.method(), request.uri()));
        let position = env.troubles.iter().position(|(method, _)| method == request.method());
        position.map(|position| env.troubles.remove(position).1)
    };
    match failure {
        None => execute(&shared, request).await,
        Some(Trouble::Status(code)) => {
            api_error(code, "InternalError", "etcdserver: request timed out").into_response()
        }
        Some(Trouble::Proxy(code)) => {
            (StatusCode::from_u16(code).unwrap(), "<html>no such page</html>").into_response()
        }
        Some(Trouble::QuotingProxy(code)) => {
            let headers = format!("<html>refused: {:?}</html>", request.headers());
            (StatusCode::from_u16(code).unwrap(), headers).into_response()
        }
        Some(Trouble::RawBody(words)) => (StatusCode::OK, words).into_response(),
        Some(Trouble::Hang) => {
            tokio::time::sleep(Duration::from_secs(60)).await;
            StatusCode::NO_CONTENT.into_response()
        }
        Some(Trouble::Race) => {
            shared.lock().race();
            execute(&shared, request).await
        }
        Some(Trouble::Forbidden) => {
            let path: Vec<&str> = request.uri().path().trim_matches('/').split('/').collect();
            match Attributes::of(request.method(), &path) {
                Some(attributes) => attributes.forbidden().into_response(),
                None => unknown_path().into_response(),
            }
        }
        Some(Trouble::Cut) => {
            let _ = execute(&shared, request).await;
            let parts = [Ok("{\"kind\":"), Err(io::Error::from(io::ErrorKind::ConnectionReset))];
            Response::new(Body::from_stream(futures_util::stream::iter(parts)))
        }
    }
}

async fn execute(shared: &SharedState, request: Request) -> Response {
    let allowed = request
        .headers()
        .get("authorization")
        .is_some_and(|value| value == &format!("Bearer {TOKEN}"));
    if shared.wants_token && !allowed {
        return api_error(401, "Unauthorized", "Unauthorized").into_response();
    }
    let call = match Call::read(request).await {
        Ok(call) => call,
        Err(no) => return no.into_response(),
    };
    let mut env = shared.lock();
    let mut response = env.execute(&call).into_response();
    response.headers_mut().insert("date", env.date());
    response
}

impl Call {
    async fn read(request: Request) -> Result<Self, ApiError> {
        let (parts, body) = request.into_parts();
        let header = parts.headers.get("content-type").and_then(|value| value.to_str().ok());
        let body = to_bytes(body, MAX_BODY_BYTES)
            .await
            .map_err(|_| api_error(413, "RequestEntityTooLarge", "long"))?;
        let query = parts.uri.query().unwrap_or_default();
        Ok(Self {
            method: parts.method,
            path: parts.uri.path().trim_matches('/').split('/').map(str::to_owned).collect(),
            query: query.split('&').filter(|pair| !pair.is_empty()).map(pair).collect(),
            content_type: header.unwrap_or_default().to_owned(),
            body,
        })
    }

    /// Refuses query parameters other than these.
    fn check_query(&self, known: &[&str]) -> Result<(), ApiError> {
        match self.query.keys().find(|key| !known.contains(&key.as_str())) {
            Some(key) => {
                Err(api_error(400, "BadRequest", format!("unknown query parameter {key}")))
            }
            None => Ok(()),
        }
    }

    /// The body as an object of one kind, without fields that the kind does not have.
    fn object(&self, schema: &Schema, api_version: &str, kind: &str) -> Result<Value, ApiError> {
        if self.content_type != "application/json" {
            return Err(api_error(
                415,
                "UnsupportedMediaType",
                format!("not {}", self.content_type),
            ));
        }
        let value: Value = serde_json::from_slice(&self.body)
            .map_err(|e| api_error(400, "BadRequest", e.to_string()))?;
        if value["kind"] != kind || value["apiVersion"] != api_version {
            return Err(api_error(
                400,
                "BadRequest",
                format!("Object 'Kind' is missing, or is no {api_version} {kind}"),
            ));
        }
        check_fields(schema, &value)?;
        Ok(value)
    }

    fn check_delete_options(&self) -> Result<(), ApiError> {
        self.check_query(&[])?;
        if self.body.is_empty() {
            return Ok(());
        }
        let value = serde_json::from_slice(&self.body)
            .map_err(|e| api_error(400, "BadRequest", e.to_string()))?;
        check_fields(&DELETE_OPTIONS, &value)
    }
}

/// `a%3Db` is the only escape that occurs.
fn pair(text: &str) -> (String, String) {
    let (key, value) = text.split_once('=').unwrap_or((text, ""));
    (key.to_owned(), value.replace("%3D", "=").replace("%2F", "/"))
}

fn check_fields(schema: &Schema, value: &Value) -> Result<(), ApiError> {
    match mismatch(schema, value, "") {
        Some(field) => Err(api_error(
            400,
            "BadRequest",
            format!("strict decoding error: unknown field \"{field}\""),
        )),
        None => Ok(()),
    }
}

impl ClusterState {
    fn execute(&mut self, call: &Call) -> Result<Response, ApiError> {
        self.remove_ended_pods();
        let path: Vec<&str> = call.path.iter().map(String::as_str).collect();
        match path.as_slice() {
            ["readyz"] => return Ok(self.readyz()),
            ["version"] => return self.version(),
            _ => {}
        }
        let attributes = Attributes::of(&call.method, &path).ok_or_else(unknown_path)?;
        self.authorize(&attributes)?;
        let Attributes { verb, namespace, resource, name, .. } = attributes;
        match (verb, namespace, resource.as_str()) {
            ("list", "", "nodes") => self.list_nodes(call),
            ("get", "", "nodes") => found(self.nodes.get(name), "nodes", name),
            ("patch", "", "nodes") => self.patch_node(name, call),
            ("delete", "", "nodes") => delete(&mut self.nodes, "nodes", name, call),
            ("list", "", "pods") => self.list_pods(call),
            ("create", namespace, "pods/eviction") => self.evict(namespace, name, call),
            ("create", "kube-system", "secrets") => self.create_secret(call),
            ("delete", "kube-system", "secrets") => {
                delete(&mut self.secrets, "secrets", name, call)
            }
            ("get", "kube-public", "configmaps") => {
                found(self.config_maps.get(name), "configmaps", name)
            }
            ("create", "default", "events") => self.create_event(call),
            ("patch", "default", "events") => self.patch_event(name, call),
            ("list", "", "poddisruptionbudgets") => self.list_budgets(call),
            ("create", "", "selfsubjectaccessreviews") => {
                let kind = ("authorization.k8s.io/v1", "SelfSubjectAccessReview");
                Ok(self.review_access(call.object(&ACCESS_REVIEW, kind.0, kind.1)?))
            }
            ("create", "", "selfsubjectreviews") => {
                let kind = ("authentication.k8s.io/v1", "SelfSubjectReview");
                Ok(self.review_user(call.object(&SELF_REVIEW, kind.0, kind.1)?))
            }
            _ => Err(unknown_path()),
        }
    }

    pub fn add_node(&mut self, mut node: Value) {
        self.version += 1;
        node["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.nodes.insert(node["metadata"]["name"].as_str().unwrap().to_owned(), node);
    }

    /// The owner of the cluster cordons or uncordons a node, as `kubectl` 1.35 does: it patches the
    /// one field and leaves the annotations of others.
    pub fn kubectl_cordon(&mut self, name: &str, cordoned: bool) {
        let before = self.nodes[name].clone();
        let mut node = before.clone();
        let desired = if cordoned { json!(true) } else { Value::Null };
        merge(&mut node, &json!({ "spec": { "unschedulable": desired } }));
        record_field_manager(&before, &mut node, "kubectl");
        self.add_node(node);
    }

    pub fn add_pod(&mut self, name: &str, more: Value) {
        let (namespace, short) = name.split_once('/').unwrap();
        let mut pod = json!({
            "kind": "Pod", "apiVersion": "v1",
            "metadata": {
                "name": short, "namespace": namespace, "uid": format!("uid-{name}"),
                "ownerReferences": [{
                    "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "r", "controller": true,
                }],
            },
            "spec": { "nodeName": "n1", "containers": [], "terminationGracePeriodSeconds": 0 },
            "status": { "phase": "Running" },
        });
        merge(&mut pod, &more);
        self.pods.insert(name.to_owned(), pod);
    }

    fn race(&mut self) {
        self.version += 1;
        let version = json!(self.version.to_string());
        self.nodes
            .values_mut()
            .for_each(|node| node["metadata"]["resourceVersion"] = version.clone());
        let uid = json!(format!("uid-{}", self.version));
        self.pods.values_mut().for_each(|pod| pod["metadata"]["uid"] = uid.clone());
    }

    /// Removes the pods whose grace period has ended.
    fn remove_ended_pods(&mut self) {
        let now = jiff::Timestamp::now();
        let stubborn = &self.stubborn;
        self.pods.retain(|name, pod| {
            let due = pod["metadata"]["deletionTimestamp"]
                .as_str()
                .map(|due| due.parse::<jiff::Timestamp>().unwrap());
            stubborn.contains(name) || due.is_none_or(|due| due > now)
        });
    }

    fn patch_node(&mut self, name: &str, call: &Call) -> Result<Response, ApiError> {
        call.check_query(&["fieldManager"])?;
        if call.content_type != "application/strategic-merge-patch+json" {
            return Err(api_error(
                415,
                "UnsupportedMediaType",
                format!("not {}", call.content_type),
            ));
        }
        let patch: Value = serde_json::from_slice(&call.body)
            .map_err(|e| api_error(400, "BadRequest", e.to_string()))?;
        let Some(node) = self.nodes.get(name) else { return Err(absent("nodes", name)) };
        let desired = patch["metadata"].get("resourceVersion");
        if desired.is_some_and(|desired| *desired != node["metadata"]["resourceVersion"]) {
            return Err(api_error(
                409,
                "Conflict",
                "the object has been modified; please apply your changes to the latest version",
            ));
        }
        let mut patched = node.clone();
        merge(&mut patched, &patch);
        check_fields(&NODE, &patched)?;
        let manager = call.query.get("fieldManager").map_or("unknown", String::as_str);
        record_field_manager(node, &mut patched, manager);
        self.add_node(patched);
        found(self.nodes.get(name), "nodes", name)
    }

    fn list_nodes(&self, call: &Call) -> Result<Response, ApiError> {
        call.check_query(&["limit", "continue"])?;
        page(call, "NodeList", &self.nodes.values().collect::<Vec<_>>(), self.version)
    }

    fn list_pods(&self, call: &Call) -> Result<Response, ApiError> {
        call.check_query(&["fieldSelector", "labelSelector", "limit", "continue"])?;
        let selector = call.query.get("fieldSelector").map(String::as_str).unwrap_or_default();
        let Some(node) = selector.strip_prefix("spec.nodeName=") else {
            return Err(api_error(
                400,
                "BadRequest",
                format!("field label not supported: {selector}"),
            ));
        };
        // Of the selectors, only key=value is known here.
        let labels = call.query.get("labelSelector").and_then(|text| text.split_once('='));
        let selected = |pod: &&Value| {
            labels.is_none_or(|(key, value)| pod["metadata"]["labels"][key] == value)
        };
        let on_node = self.pods.values().filter(|pod| pod["spec"]["nodeName"] == node);
        let all: Vec<&Value> = on_node.filter(selected).collect();
        page(call, "PodList", &all, self.version)
    }

    fn evict(&mut self, namespace: &str, name: &str, call: &Call) -> Result<Response, ApiError> {
        call.check_query(&["fieldManager"])?;
        let body = call.object(&EVICTION, "policy/v1", "Eviction")?;
        if body["metadata"]["name"] != name || body["metadata"]["namespace"] != namespace {
            return Err(api_error(
                400,
                "BadRequest",
                "name in URL does not match name in Eviction object",
            ));
        }
        let full = format!("{namespace}/{name}");
        let Some(pod) = self.pods.get(&full) else { return Err(absent("pods", name)) };
        self.admit_eviction(namespace, name, pod)?;
        let Some(pod) = self.pods.get_mut(&full) else { return Err(absent("pods", name)) };
        let uid = body["deleteOptions"]["preconditions"].get("uid");
        if uid.is_some_and(|uid| *uid != pod["metadata"]["uid"]) {
            return Err(api_error(
                409,
                "Conflict",
                "Precondition failed: UID in precondition differs",
            ));
        }
        let app = pod["metadata"]["labels"]["app"].clone();
        // A pod that runs nothing yet, or nothing any more, needs no budget. Read in 1.35.
        let guarded = pod["status"]["phase"] == "Running"
            && pod["metadata"].get("deletionTimestamp").is_none();
        let mut budgets: Vec<&mut Budget> =
            self.budgets.iter_mut().filter(|budget| guarded && app == budget.app).collect();
        // A dry run is judged as the real one, and changes nothing. Read in 1.35.
        let dry_run = body["deleteOptions"]["dryRun"] == json!(["All"]);
        match budgets.as_mut_slice() {
            [] => {}
            [budget] if budget.allowed > 0 => budget.allowed -= usize::from(!dry_run),
            [budget] => return Err(blocked(budget)),
            _ => {
                let message = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.";
                // Without a reason. Run with 1.35.
                return Err(api_error(500, "", message));
            }
        }
        let success = json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201 });
        if dry_run {
            return Ok(json_response(StatusCode::CREATED, &success));
        }
        let grace = body["deleteOptions"]["gracePeriodSeconds"].as_i64();
        let grace =
            grace.or_else(|| pod["spec"]["terminationGracePeriodSeconds"].as_i64()).unwrap_or(30);
        let due = jiff::Timestamp::now() + jiff::SignedDuration::from_secs(grace);
        pod["metadata"]["deletionTimestamp"] = json!(format!("{due:.0}"));
        Ok(json_response(StatusCode::CREATED, &success))
    }

    /// Namespace `default` for objects without a namespace. Read in 1.35.
    fn create_event(&mut self, call: &Call) -> Result<Response, ApiError> {
        call.check_query(&["fieldManager"])?;
        let body = call.object(&EVENT, "v1", "Event")?;
        let name = body["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        if body["involvedObject"].get("namespace").is_some()
            || body["metadata"]["namespace"] != "default"
        {
            let message = "involvedObject.namespace: does not match event.namespace";
            return Err(api_error(422, "Invalid", message));
        }
        if self.events.contains_key(&name) {
            let message = format!("events \"{name}\" already exists");
            return Err(api_error(409, "AlreadyExists", message));
        }
        self.events.insert(name, body.clone());
        Ok(json_response(StatusCode::CREATED, &body))
    }

    fn patch_event(&mut self, name: &str, call: &Call) -> Result<Response, ApiError> {
        call.check_query(&["fieldManager"])?;
        let patch: Value = serde_json::from_slice(&call.body)
            .map_err(|e| api_error(400, "BadRequest", e.to_string()))?;
        let Some(event) = self.events.get_mut(name) else { return Err(absent("events", name)) };
        merge(event, &patch);
        check_fields(&EVENT, event)?;
        found(self.events.get(name), "events", name)
    }

    fn list_budgets(&self, call: &Call) -> Result<Response, ApiError> {
        call.check_query(&["limit", "continue"])?;
        let budgets: Vec<Value> = self.budgets.iter().map(|budget| json!({
            "metadata": { "name": budget.name, "namespace": "shop" },
            "status": { "disruptionsAllowed": budget.allowed, "currentHealthy": 2, "desiredHealthy": 2 },
        })).collect();
        page(call, "PodDisruptionBudgetList", &budgets.iter().collect::<Vec<_>>(), self.version)
    }

    fn create_secret(&mut self, call: &Call) -> Result<Response, ApiError> {
        call.check_query(&["fieldManager"])?;
        let body = call.object(&SECRET, "v1", "Secret")?;
        let name = body["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let token = body["stringData"]["token-id"].as_str().unwrap_or_default();
        if body["type"] == "bootstrap.kubernetes.io/token"
            && name != format!("bootstrap-token-{token}")
        {
            return Err(api_error(
                422,
                "Invalid",
                format!("Secret \"{name}\" is invalid: metadata.name"),
            ));
        }
        if self.secrets.contains_key(&name) {
            return Err(api_error(
                409,
                "AlreadyExists",
                format!("secrets \"{name}\" already exists"),
            ));
        }
        self.secrets.insert(name, body.clone());
        Ok(json_response(StatusCode::CREATED, &body))
    }
}

fn blocked(budget: &Budget) -> ApiError {
    let mut refusal = api_error(
        429,
        "TooManyRequests",
        "Cannot evict pod as it would violate the pod's disruption budget.",
    );
    let message =
        format!("The disruption budget {} needs 2 healthy pods and has 2 currently", budget.name);
    refusal.1["details"] =
        json!({ "causes": [{ "reason": "DisruptionBudget", "message": message }] });
    refusal
}

/// The requested page of a list, and the start of the next one.
fn page(call: &Call, kind: &str, all: &[&Value], version: u64) -> Result<Response, ApiError> {
    let number = |key: &str, default: usize| match call.query.get(key) {
        None => Ok(default),
        Some(text) => {
            text.parse().map_err(|_| api_error(400, "BadRequest", format!("{key} is not valid")))
        }
    };
    let (from, limit) = (number("continue", 0)?, number("limit", usize::MAX)?);
    let rest = all.len().saturating_sub(from);
    let items: Vec<&&Value> = all.iter().skip(from).take(limit).collect();
    let mut metadata = json!({ "resourceVersion": version.to_string() });
    if rest > limit {
        metadata["continue"] = json!((from + limit).to_string());
        metadata["remainingItemCount"] = json!(rest - limit);
    }
    let list = json!({ "kind": kind, "apiVersion": "v1", "metadata": metadata, "items": items });
    Ok(json_response(StatusCode::OK, &list))
}

fn unknown_path() -> ApiError {
    // The real server answers so, in plain text, for unknown paths.
    ApiError(StatusCode::NOT_FOUND, json!("404 page not found"))
}

fn absent(resource: &str, name: &str) -> ApiError {
    api_error(404, "NotFound", format!("{resource} \"{name}\" not found"))
}

fn found(object: Option<&Value>, resource: &str, name: &str) -> Result<Response, ApiError> {
    match object {
        Some(object) => Ok(json_response(StatusCode::OK, object)),
        None => Err(absent(resource, name)),
    }
}

fn delete(
    objects: &mut BTreeMap<String, Value>,
    resource: &str,
    name: &str,
    call: &Call,
) -> Result<Response, ApiError> {
    call.check_delete_options()?;
    match objects.remove(name) {
        Some(_) => {
            let details = json!({ "name": name, "kind": resource });
            let status = json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details });
            Ok(json_response(StatusCode::OK, &status))
        }
        None => Err(absent(resource, name)),
    }
}

/// A strategic merge for the fields of nodes: maps are merged, lists are replaced, nothing is
/// removed.
fn merge(into: &mut Value, patch: &Value) {
    let Value::Object(fields) = patch else {
        *into = patch.clone();
        return;
    };
    if !into.is_object() {
        *into = Value::Object(Map::new());
    }
    for (key, value) in fields {
        if value.is_null() {
            into.as_object_mut().unwrap().remove(key);
        } else {
            merge(&mut into[key], value);
        }
    }
}
