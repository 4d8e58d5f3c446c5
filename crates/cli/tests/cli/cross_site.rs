//! A page in a browser on the operator's computer cannot act, although it reaches loopback.

use crate::api::TestServer;
use crate::api_http::{http, http_with};
use proto::{Message, v1};

const CALL: &str = "POST /farrier.v1.MachineService/ReimageMachine";
const HERE: &str = "Host: 127.0.0.1";
const GRPC: &str = "Content-Type: application/grpc";

/// A request as gRPC frames it: no compression, the length, the message.
fn framed(request: &impl Message) -> Vec<u8> {
    let body = request.encode_to_vec();
    let length = u32::try_from(body.len()).unwrap().to_be_bytes();
    [&[0], &length[..], &body].concat()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_page_cannot_start_an_operation() {
    let (env, mut api) = TestServer::open("zero").await;
    api.in_maintenance("m-1").await;
    let body = framed(&v1::ReimageMachineRequest {
        machine_id: "m-1".into(),
        request_id: "from-a-page".into(),
        image_ref: "ubuntu-2204".into(),
        ..Default::default()
    });
    let origin = "Origin: https://evil.example";
    for (headers, status) in [
        // A browser sends these requests of a page without a CORS preflight.
        (vec![HERE, origin, "Content-Type: text/plain"], "403"),
        (vec![HERE, "Content-Type: text/plain"], "415"),
        (vec![HERE, "Content-Type: application/x-www-form-urlencoded"], "415"),
        (vec![HERE], "415"),
        (vec![HERE, "Origin: null", "Content-Type: text/plain"], "403"),
        (vec![HERE, "Sec-Fetch-Site: cross-site", "Content-Type: text/plain"], "403"),
        // A page whose name leads to this address.
        (vec!["Host: evil.example", "Content-Type: text/plain"], "421"),
    ] {
        let (head, answer) = http_with(&env, CALL, &headers, &body);
        assert!(head.starts_with(&format!("http/1.1 {status}")), "{headers:?}: {head}");
        assert!(!answer.is_empty(), "{headers:?} is refused without a word");
    }
    for (headers, message) in [
        (vec![HERE, GRPC, origin], "other%20sites"),
        (vec!["Host: evil.example:7411", GRPC], "allowed_hosts"),
    ] {
        let (head, _) = http_with(&env, CALL, &headers, &body);
        assert!(head.contains("grpc-status: 7"), "{headers:?}: {head}");
        assert!(head.contains(message), "{headers:?}: {head}");
    }
    let runs = || v1::ListRunsRequest { filter: "type=REIMAGE".into(), ..Default::default() };
    let started = api.runs.list_runs(runs()).await.unwrap().into_inner().runs;
    assert_eq!(started, [], "a refused request started an operation");

    // The same request from a client starts one: it was refused for its sender alone.
    http_with(&env, CALL, &[HERE, GRPC], &body);
    let started = api.runs.list_runs(runs()).await.unwrap().into_inner().runs;
    assert_eq!(started.len(), 1, "{started:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_page_can_link_to_the_console_and_not_frame_it() {
    let (env, _) = TestServer::open("zero").await;
    let foreign = "Sec-Fetch-Site: cross-site";
    for (headers, status) in [
        (vec![HERE, foreign, "Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: document"], "200"),
        (vec![HERE, foreign, "Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: iframe"], "403"),
        (vec![HERE, foreign, "Sec-Fetch-Mode: no-cors", "Sec-Fetch-Dest: script"], "403"),
        (vec!["Host: evil.example"], "421"),
        (vec!["Host: localhost"], "200"),
    ] {
        let (head, _) = http_with(&env, "GET /", &headers, &[]);
        assert!(head.starts_with(&format!("http/1.1 {status}")), "{headers:?}: {head}");
    }
    assert!(http(&env, "GET", "/healthz").0.starts_with("http/1.1 200"));
}
