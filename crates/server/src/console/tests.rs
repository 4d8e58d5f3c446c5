//! The console over HTTP, in front of a real engine with an empty inventory.

use super::*;
use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, Request, StatusCode};
use engine::{Settings, clock, random};
use model::id::MachineId;
use model::machine::{Labels, MachineSpec};
use providers::Providers;
use providers::sim::{Sim, Speed};
use store::{Options, Store};
use tempfile::TempDir;
use tonic::codegen::Service;

struct TestConsole {
    router: Router,
    engine: Engine,
    _dir: TempDir,
}

async fn start_console() -> TestConsole {
    let dir = tempfile::tempdir().unwrap();
    let options = Options::Sqlite { path: dir.path().join("farrier.db") };
    let store = Store::open(&options).await.unwrap();
    let sim = Sim::in_dir(dir.path().join("sim"), Speed::Zero).unwrap();
    let providers = Providers::default().with(Arc::new(sim));
    let engine =
        Engine::start_up(store, providers, Settings::default(), clock::system(), random::system())
            .await
            .unwrap();
    TestConsole { router: router(engine.clone(), None, None), engine, _dir: dir }
}

impl TestConsole {
    async fn get(&mut self, address: &str) -> (StatusCode, HeaderMap, String) {
        let request = Request::get(address).body(Body::empty()).unwrap();
        self.send(request).await
    }

    async fn send(&mut self, request: Request<Body>) -> (StatusCode, HeaderMap, String) {
        let (parts, body) = self.router.call(request).await.unwrap().into_parts();
        let body = to_bytes(body, 1 << 20).await.unwrap();
        (parts.status, parts.headers, String::from_utf8(body.to_vec()).unwrap())
    }

    async fn register(&self, id: &str) {
        let spec = MachineSpec { provider: "sim".into(), ..MachineSpec::default() };
        let labels = Labels::from([("note".to_string(), "a<b>&\"".to_string())]);
        let id = MachineId::trusted(id);
        let machine = engine::DescribedMachine { id: Some(id), spec: Some(spec), labels };
        self.engine.machines().register(machine, "<i>me</i>".into()).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_address_has_its_status() {
    let mut console = start_console().await;
    console.register("m-1").await;
    for (address, status) in [
        ("/", 200),
        ("/?filter=effective_state%3DNEW", 200),
        ("/?filter=nonsense", 400),
        ("/?after=%20", 400),
        ("/machines", 307),
        ("/machines/m-1", 200),
        ("/machines/m-1?before=1", 200),
        ("/machines/m-1?before=-9223372036854775808", 200),
        ("/machines/m-2", 404),
        ("/machines/%3Cscript%3E", 404),
        ("/nodes", 200),
        ("/nodes?after=x", 400),
        ("/nodes/node-1", 404),
        ("/nodes/m-1", 404),
        ("/operations", 200),
        ("/operations?filter=phase%3DREADY", 400),
        ("/operations?before=m-1", 400),
        ("/operations/op-1", 404),
        ("/operations/m-1", 404),
        ("/operations/op-1/stream", 404),
        ("/stream?after=x", 400),
        ("/faults", 200),
        ("/faults/bmc-unreachable", 200),
        ("/faults/nonsense", 404),
        ("/console.css", 200),
        ("/console.js", 200),
        ("/favicon.svg", 200),
        ("/no/such/page", 404),
    ] {
        let (got, headers, _) = console.get(address).await;
        assert_eq!(got.as_u16(), status, "{address}");
        let policy = headers[header::CONTENT_SECURITY_POLICY].to_str().unwrap();
        assert!(policy.contains("script-src 'self'") && !policy.contains("unsafe"), "{address}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_filter_is_shown_with_its_caret_and_escaped() {
    let (status, _, page) = start_console().await.get("/?filter=%3Cscript%3E").await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert!(page.contains("<pre class=\"caret\">  &lt;script&gt;\n  ^</pre>"), "{page}");
    assert!(!page.contains("<script>"));
}

#[tokio::test(flavor = "multi_thread")]
async fn foreign_text_is_escaped_on_every_page() {
    let mut console = start_console().await;
    console.register("m-1").await;
    for address in ["/", "/machines/m-1"] {
        let (_, _, page) = console.get(address).await;
        assert!(page.contains("a&lt;b&gt;&amp;"), "{page}");
        assert!(!page.contains("<b>&") && !page.contains("<i>me"), "{page}");
        // The policy would refuse inline handlers, styles and scripts.
        assert!(!page.contains(" style=") && !page.contains(" onclick="), "{page}");
        assert_eq!(page.matches("<script").count(), 1, "{page}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_shows_its_three_layers_side_by_side() {
    let mut console = start_console().await;
    console.register("m-1").await;
    let requester = || model::run::actions::Requester { by: "me".into(), reason: String::new() };
    let spec = model::site::SiteSpec { provider: "sim".into(), ..Default::default() };
    let id = model::id::SiteId::trusted("site-1");
    let described = engine::SiteDescription { id: id.clone(), spec, labels: Labels::new() };
    console.engine.sites().create(described, requester()).await.unwrap();
    let desired = engine::node::Onboard {
        overrides: model::gate::Overrides::default(),
        machine: MachineId::trusted("m-1"),
        site: id,
        request_id: "r".into(),
        by: "<i>me</i>".into(),
    };
    let started = console.engine.nodes().onboard(desired).await.unwrap();
    let node = started.node.id();
    while !console.engine.runs().get(&started.run.spec.id).await.unwrap().ended() {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    let (_, _, list) = console.get("/nodes").await;
    assert!(list.contains(&format!("href=\"/nodes/{node}\"")) && list.contains("active"), "{list}");
    assert!(list.contains(">site-1</th>"), "{list}");
    assert!(!list.contains("completed"), "the list shows coarse states only: {list}");
    let (status, _, page) = console.get(&format!("/nodes/{node}")).await;
    assert_eq!(status, StatusCode::OK);
    for words in
        ["active", "completed", "Deployed", "✓ </span>expected", "wait_for_agent_enrollment"]
    {
        assert!(page.contains(words), "{words}: {page}");
    }
    assert!(page.contains(&format!("farrier node get {node}")), "{page}");
    assert!(!page.contains("<i>me"), "{page}");
    let (_, _, machine) = console.get("/machines/m-1").await;
    assert!(machine.contains(&format!("/nodes/{node}")), "{machine}");
    let (_, _, front) = console.get("/").await;
    assert!(front.contains("Nothing needs you."), "{front}");
    // An operator quarantines the node: its last operation is still shown as it ended.
    let why = "smells <b>burnt</b>".to_string();
    let request = model::node::requests::NodeRequest::Quarantine { why };
    console.engine.nodes().apply_request(&node, request, None, requester()).await.unwrap();
    let (_, _, page) = console.get(&format!("/nodes/{node}")).await;
    for words in ["quarantined", "operator", "smells &lt;b&gt;burnt", "completed", "node release"] {
        assert!(page.contains(words), "{words}: {page}");
    }
    // The front page says so too, with the command.
    let (_, _, front) = console.get("/").await;
    assert!(!front.contains("Nothing needs you."), "{front}");
    for words in [node.as_str(), "1 stopped", "node release"] {
        assert!(front.contains(words), "{words}: {front}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_link_to_the_next_page() {
    let mut console = start_console().await;
    for index in 0..=list::PAGE_SIZE {
        console.register(&format!("m-{index:03}")).await;
    }
    let (_, _, first) = console.get("/?filter=provider%3Dsim").await;
    let next = "/?filter=provider%3Dsim&after=m-099";
    assert!(first.contains(&next.replace('&', "&amp;")) && !first.contains("m-100"));
    let (_, _, second) = console.get(next).await;
    assert!(second.contains("/machines/m-100") && !second.contains("/machines/m-099"));
    assert!(second.contains("first page") && !second.contains("rel=\"next\""));
}

#[tokio::test(flavor = "multi_thread")]
async fn assets_are_cached_only_under_their_hash() {
    let mut console = start_console().await;
    for (address, stored) in [(assets::css_address(), true), ("/console.css?v=other".into(), false)]
    {
        let (_, headers, _) = console.get(&address).await;
        let message = headers[header::CACHE_CONTROL].to_str().unwrap();
        assert_eq!(message.contains("immutable"), stored, "{address}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_grpc_methods_get_a_grpc_status() {
    let request = Request::post("/farrier.v1.Nope/Do")
        .header(header::CONTENT_TYPE, "application/grpc")
        .body(Body::empty())
        .unwrap();
    let (status, headers, _) = start_console().await.send(request).await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(headers["grpc-status"], "12");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_ends_when_the_process_stops() {
    let mut console = start_console().await;
    let request = Request::get("/stream").body(Body::empty()).unwrap();
    let response = console.router.call(request).await.unwrap();
    assert_eq!(response.headers()[header::CONTENT_TYPE], "text/event-stream");
    let engine = console.engine.clone();
    tokio::spawn(async move { engine.shut_down().await });
    let reported = to_bytes(response.into_body(), 1 << 20).await.unwrap();
    assert!(reported.starts_with(b"retry: "), "{reported:?}");
}

#[tokio::test]
async fn store_errors_become_error_pages() {
    use axum::response::IntoResponse;
    for (error, status) in [
        (store::StoreError::Unavailable("<gone>".into()), StatusCode::SERVICE_UNAVAILABLE),
        (store::StoreError::Conflict, StatusCode::SERVICE_UNAVAILABLE),
        (store::StoreError::Corrupt("x".into()), StatusCode::INTERNAL_SERVER_ERROR),
    ] {
        let response = error_page::ErrorPage::from(error).into_response();
        assert_eq!(response.status(), status);
        let page = to_bytes(response.into_body(), 1 << 20).await.unwrap();
        let page = String::from_utf8(page.to_vec()).unwrap();
        assert!(page.contains("<main") && !page.contains("<gone>"), "{page}");
    }
}
