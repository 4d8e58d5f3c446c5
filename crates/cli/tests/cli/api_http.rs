//! The plain HTTP endpoints: health for load balancers, metrics for Prometheus.

use crate::api::{TestServer, fault};
use crate::fleet::{TEST_TIMEOUT, TEST_TOKEN};
use crate::stage::{farrier, finish};
use proto::v1;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// Sends a raw request. Returns the status line with the headers, and the body.
pub fn http(env: &TestServer, method: &str, path: &str) -> (String, String) {
    let headers = ["Host: 127.0.0.1", "Content-Type: application/grpc"];
    http_with(env, &format!("{method} {path}"), &headers, &[])
}

/// Like `http_as`, with the administrator's token.
pub fn http_with(
    env: &TestServer,
    request: &str,
    headers: &[&str],
    body: &[u8],
) -> (String, String) {
    let token = format!("Authorization: Bearer {TEST_TOKEN}");
    http_as(env, request, &[headers, &[token.as_str()]].concat(), body)
}

/// Sends a raw request with these headers. Returns the status line with the headers, and the body.
pub fn http_as(env: &TestServer, request: &str, headers: &[&str], body: &[u8]) -> (String, String) {
    http_to(env.server.setup.port, request, headers, body)
}

/// The same to any port.
pub fn http_to(port: u16, request: &str, headers: &[&str], body: &[u8]) -> (String, String) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let (headers, length) = (headers.join("\r\n"), body.len());
    let head = format!(
        "{request} HTTP/1.1\r\n{headers}\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(body).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let answer = String::from_utf8_lossy(&answer);
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.to_ascii_lowercase(), body.to_string())
}

/// All samples of a page, by name and labels. Checks the rules of the text format on the way.
fn samples(page: &str) -> BTreeMap<String, f64> {
    let mut typed: BTreeMap<&str, &str> = BTreeMap::new();
    let mut samples = BTreeMap::new();
    for line in page.lines().filter(|line| !line.is_empty()) {
        if let Some(comment) = line.strip_prefix("# ") {
            let mut words = comment.splitn(3, ' ');
            let (what, name) = (words.next().unwrap(), words.next().unwrap());
            let rest = words.next().unwrap_or_default();
            match what {
                "TYPE" => assert!(typed.insert(name, rest).is_none(), "two types: {line}"),
                other => assert_eq!(other, "HELP", "{line}"),
            }
            assert!(!rest.is_empty(), "{line}");
            continue;
        }
        let (series, value) = line.rsplit_once(' ').unwrap();
        let name = series.split('{').next().unwrap();
        let legal = |c: char| c.is_ascii_alphanumeric() || c == '_';
        assert!(name.chars().all(legal), "{line}");
        let family = ["_bucket", "_sum", "_count"]
            .iter()
            .find_map(|suffix| name.strip_suffix(suffix).filter(|base| typed.contains_key(base)))
            .unwrap_or(name);
        assert!(typed.contains_key(family), "{name} has no type in front of it");
        let number = value.parse().unwrap_or_else(|_| panic!("{line}"));
        assert!(samples.insert(series.to_string(), number).is_none(), "twice: {line}");
    }
    samples
}

/// Checks that the buckets of a histogram are cumulative and that the last one holds everything.
fn check_histogram(samples: &BTreeMap<String, f64>, name: &str) {
    let mut series: BTreeMap<String, Vec<(f64, f64)>> = BTreeMap::new();
    for (sample, count) in samples {
        let Some(labels) = sample.strip_prefix(&format!("{name}_bucket{{")) else { continue };
        let (others, bound) = labels.split_once("le=\"").unwrap();
        let bound = bound.split('"').next().unwrap().replace("+Inf", "inf").parse().unwrap();
        series.entry(others.to_string()).or_default().push((bound, *count));
    }
    assert!(!series.is_empty(), "there is no histogram {name}");
    for (labels, mut buckets) in series {
        buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
        assert!(buckets.is_sorted_by(|a, b| a.1 <= b.1), "{name} {labels}: {buckets:?}");
        let labels = labels.trim_end_matches(',');
        let labels = if labels.is_empty() { String::new() } else { format!("{{{labels}}}") };
        assert_eq!(samples[&format!("{name}_count{labels}")], buckets[buckets.len() - 1].1);
        assert!(samples[&format!("{name}_sum{labels}")] >= 0.0);
    }
}

fn alerts_on(kind: &str, class: &str) -> String {
    format!("farrier_health_alerts{{kind=\"{kind}\",classification=\"{class}\"}}")
}

#[tokio::test(flavor = "multi_thread")]
async fn the_metrics_count_what_happens() {
    let (env, mut api) = TestServer::open("zero").await;
    api.in_maintenance("m-1").await;
    api.in_maintenance("m-2").await;
    api.done("m-1", "REPAVE", "r").await;
    api.fault(fault("m-2", "reboot", "hang", 0)).await;
    let stuck = api.start("m-2", "REBOOT", "r").await.run_id;
    api.at_step(&stuck, "reboot").await;
    let _watch = api.runs.watch_runs(v1::WatchRunsRequest::default()).await.unwrap();
    let missing = v1::GetMachineRequest { machine_id: "nobody".into(), ..Default::default() };
    api.machines.get_machine(missing).await.unwrap_err();

    let alert = |id: &str, class: &str| v1::HealthAlert {
        id: id.into(),
        message: "told".into(),
        classifications: vec![class.into()],
        ..Default::default()
    };
    let alerts = [("a", "prevent-allocations"), ("b", "evil-1"), ("c", "evil-2")];
    let quiet = [("d", "suppress-external-alerting")];
    let report = v1::MergeHealthReportRequest {
        id: "m-1".into(),
        source: "site".into(),
        alerts: alerts.iter().chain(&quiet).map(|(id, class)| alert(id, class)).collect(),
        dry_run: false,
    };
    api.health.merge_health_report(report).await.unwrap();

    let (head, page) = http(&env, "GET", "/metrics");
    assert!(head.starts_with("http/1.1 200"), "{head}");
    assert!(head.contains("content-type: text/plain; version=0.0.4"), "{head}");
    let samples = samples(&page);
    let get = "path=\"/farrier.v1.MachineService/GetMachine\"";
    for (series, value) in [
        ("farrier_machines", 2.0),
        ("farrier_watchers", 1.0),
        (&alerts_on("machine", "prevent-allocations"), 1.0),
        (&alerts_on("machine", "prevent-state-changes"), 0.0),
        (&alerts_on("machine", "other"), 2.0),
        (&alerts_on("rack", "other"), 0.0),
        ("farrier_health_alerts_suppressed{kind=\"machine\"}", 1.0),
        ("farrier_runs_claimed", 1.0),
        ("farrier_runs_overdue", 0.0),
        ("farrier_runs_active{phase=\"PENDING\"}", 0.0),
        ("farrier_runs_active{phase=\"RUNNING\"}", 1.0),
        ("farrier_runs_started_total{type=\"ENTER_MAINTENANCE\"}", 2.0),
        ("farrier_runs_started_total{type=\"REIMAGE\"}", 1.0),
        ("farrier_runs_started_total{type=\"REBOOT\"}", 1.0),
        ("farrier_runs_finished_total{type=\"REIMAGE\",phase=\"SUCCEEDED\"}", 1.0),
        (&format!("farrier_requests_total{{{get},status=\"5\"}}"), 1.0),
    ] {
        assert_eq!(samples.get(series), Some(&value), "{series}\n{page}");
    }
    assert!(samples["farrier_probes_total"] >= 2.0);
    assert!(!page.contains("evil-1"), "a client's words are no labels");
    for name in [
        "farrier_provider_call_seconds",
        "farrier_run_start_latency_seconds",
        "farrier_request_seconds",
    ] {
        check_histogram(&samples, name);
    }
    assert_eq!(samples["farrier_run_start_latency_seconds_count"], 4.0);
}

/// A gauge that is not set again would keep its old value.
#[tokio::test(flavor = "multi_thread")]
async fn a_rack_that_left_error_is_counted_there_no_more() {
    let (env, _api) = TestServer::open("zero").await;
    let url = &env.server.url();
    let typed = |line: &str, expected: i32| {
        let (code, stdout, stderr) = finish(farrier(url, &line.split(' ').collect::<Vec<_>>()));
        assert_eq!(code, expected, "{line}\n{stdout}\n{stderr}");
    };
    // Waits until this many racks are in Error and in Ready.
    let until = |expected: [f64; 2]| {
        let started = Instant::now();
        loop {
            let samples = samples(&http(&env, "GET", "/metrics").1);
            let of = |state: &str| {
                samples[&format!("farrier_devices{{kind=\"rack\",state=\"{state}\"}}")]
            };
            let observed = [of("Error"), of("Ready")];
            if observed == expected {
                return samples;
            }
            assert!(started.elapsed() < TEST_TIMEOUT, "{observed:?} never becomes {expected:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    let samples = until([0.0, 0.0]);
    let hosts = "farrier_devices{kind=\"host\",state=\"FailedFirmwareUpgrade\"}";
    assert_eq!(samples.get(hosts), Some(&0.0));
    typed("rack create rack-1 --hardware-type t --expect-machines 1", 0);
    typed("machine register tray-1 --provider sim --rack rack-1 --slot 1", 0);
    until([0.0, 1.0]);
    typed("rack maintenance start rack-1 --firmware-version fw-none", 1);
    until([1.0, 0.0]);
    typed("rack maintenance start rack-1 --machine tray-1", 0);
    until([0.0, 1.0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn strangers_cannot_fill_the_metrics() {
    let (env, _) = TestServer::open("zero").await;
    for index in 0..20 {
        for path in [
            format!("/evil-{index}"),
            format!("/farrier.v1.Evil/{index}"),
            format!("/farrier.v1.MachineService/Evil{index}"),
            format!("/grpc.evil/{index}"),
        ] {
            http(&env, "GET", &path);
            http(&env, "POST", &path);
            let plain = ["Host: 127.0.0.1", "Content-Type: text/plain"];
            http_with(&env, &format!("POST {path}"), &plain, &[]);
        }
    }
    let samples = samples(&http(&env, "GET", "/metrics").1);
    let paths: BTreeSet<&str> = samples
        .keys()
        .filter_map(|series| series.strip_prefix("farrier_requests_total{path=\""))
        .filter_map(|rest| rest.split('"').next())
        .collect();
    assert!(paths.len() <= 3, "{paths:?}");

    // A request that reaches no service is not counted as a call.
    let call = "/farrier.v1.MachineService/ReimageMachine";
    http_with(&env, &format!("POST {call}"), &["Host: 127.0.0.1", "Content-Type: text/plain"], &[]);
    let page = http(&env, "GET", "/metrics").1;
    assert!(!page.contains(call), "{page}");
    assert!(page.contains("farrier_requests_total{path=\"http\",status=\"415\"}"), "{page}");
}

#[tokio::test(flavor = "multi_thread")]
async fn health_is_told_to_load_balancers() {
    let (world, _) = TestServer::open("zero").await;
    let (head, body) = http(&world, "GET", "/healthz");
    assert!(head.starts_with("http/1.1 200"), "{head}");
    assert_eq!(body.trim(), "ok");
    assert!(http(&world, "DELETE", "/healthz").0.starts_with("http/1.1 405"));
}
