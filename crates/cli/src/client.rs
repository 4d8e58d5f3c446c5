//! The connection to the server.
//!
//! The connection is opened on first use and reopened when it breaks, so every call fails in the
//! same way. Each call carries the caller's name. If the server is unreachable, the error names the
//! command that starts one.

use crate::args::ClientTlsArgs;
use crate::client_tls;
use crate::context::Connection;
use crate::dry_run::DryRunGuard;
use crate::exit::{Exit, Failure, Result, eprintln_quietly};
use model::time::format_duration;
use proto::v1::{
    access_service_client::AccessServiceClient, admin_service_client::AdminServiceClient,
    approval_service_client::ApprovalServiceClient, audit_service_client::AuditServiceClient,
    cluster_service_client::ClusterServiceClient, component_service_client::ComponentServiceClient,
    credential_service_client::CredentialServiceClient,
    explain_service_client::ExplainServiceClient, firmware_service_client::FirmwareServiceClient,
    hardware_service_client::HardwareServiceClient, health_service_client::HealthServiceClient,
    host_service_client::HostServiceClient, image_service_client::ImageServiceClient,
    machine_service_client::MachineServiceClient, node_service_client::NodeServiceClient,
    notifier_service_client::NotifierServiceClient, plan_service_client::PlanServiceClient,
    power_shelf_service_client::PowerShelfServiceClient, rack_service_client::RackServiceClient,
    run_service_client::RunServiceClient, simulator_service_client::SimulatorServiceClient,
    site_service_client::SiteServiceClient, switch_service_client::SwitchServiceClient,
};
use std::error::Error;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tonic::codegen::http::Uri;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, GrpcMethod, Request, Response, Status};
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Time limit of a unary call.
const CALL_TIMEOUT: Duration = Duration::from_secs(60);
/// Time limit of a call that waits for a device. The server's own limits are much shorter.
const HARDWARE_TIMEOUT: Duration = Duration::from_secs(900);
/// A connection is dead when a ping stays unanswered for `PING_TIMEOUT`.
const PING_INTERVAL: Duration = Duration::from_secs(10);
const PING_TIMEOUT: Duration = Duration::from_secs(10);
/// A page of 1,000 runs with their plans exceeds gRPC's default limit of 4 MiB.
const MAX_MESSAGE_BYTES: usize = 64 * 1024 * 1024;
/// The largest page that the server returns.
const PAGE_SIZE: u32 = 1_000;
const INITIATOR: &str = "farrier-initiator";

type InterceptedChannel = InterceptedService<Channel, CallInterceptor>;

#[derive(Clone)]
pub struct Client {
    server: String,
    channel: Channel,
    interceptor: CallInterceptor,
}

/// Adds the caller's name to every request. In a dry run it refuses the calls that would act.
#[derive(Clone)]
pub struct CallInterceptor {
    initiator: Initiator,
    /// The header `authorization`.
    authorization: Option<MetadataValue<Ascii>>,
    dry_run: Option<Arc<DryRunGuard>>,
}

impl Interceptor for CallInterceptor {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(guard) = &self.dry_run {
            guard.check(request.extensions().get::<GrpcMethod<'_>>())?;
        }
        request.metadata_mut().insert(INITIATOR, self.initiator.0.clone());
        if let Some(authorization) = &self.authorization {
            request.metadata_mut().insert("authorization", authorization.clone());
        }
        Ok(request)
    }
}

/// The caller's name, as a header.
#[derive(Clone)]
struct Initiator(MetadataValue<Ascii>);

impl Initiator {
    fn from_env() -> Self {
        let name =
            ["USER", "LOGNAME", "USERNAME"].into_iter().find_map(|name| std::env::var(name).ok());
        Self::named(name.as_deref().unwrap_or_default())
    }

    /// Headers are ASCII: every other character becomes a question mark.
    fn named(name: &str) -> Self {
        let ascii: String =
            name.chars().map(|c| if c.is_ascii_graphic() { c } else { '?' }).collect();
        let known = MetadataValue::try_from(ascii.as_str()).ok().filter(|_| !ascii.is_empty());
        // The name that power-shelf.md gives to a caller without one.
        Self(known.unwrap_or_else(|| MetadataValue::from_static("admin-cli")))
    }
}

fn authorization(token: &str) -> Result<MetadataValue<Ascii>> {
    let value = MetadataValue::try_from(format!("Bearer {token}"));
    let mut value = value
        .map_err(|_| Failure::refused("the token has characters that a header cannot have"))?;
    value.set_sensitive(true);
    Ok(value)
}

macro_rules! services {
    ($($name:ident: $client:ident;)*) => {$(
        pub fn $name(&self) -> $client<InterceptedChannel> {
            $client::with_interceptor(self.channel.clone(), self.interceptor.clone())
                .max_decoding_message_size(MAX_MESSAGE_BYTES)
        }
    )*};
}

impl Client {
    services! {
        access: AccessServiceClient;
        approvals: ApprovalServiceClient;
        audit: AuditServiceClient;
        machines: MachineServiceClient;
        plans: PlanServiceClient;
        runs: RunServiceClient;
        racks: RackServiceClient;
        admin: AdminServiceClient;
        clusters: ClusterServiceClient;
        credentials: CredentialServiceClient;
        explain: ExplainServiceClient;
        components: ComponentServiceClient;
        firmware: FirmwareServiceClient;
        hardware: HardwareServiceClient;
        health: HealthServiceClient;
        hosts: HostServiceClient;
        images: ImageServiceClient;
        nodes: NodeServiceClient;
        notifiers: NotifierServiceClient;
        sites: SiteServiceClient;
        simulator: SimulatorServiceClient;
        switches: SwitchServiceClient;
        power_shelves: PowerShelfServiceClient;
        reflection: ServerReflectionClient;
    }

    /// Creates a client for this server. The connection is opened by the first call.
    pub fn new(server: &str, tls: &ClientTlsArgs) -> Result<Self> {
        let server = normalize_address(server)?;
        let mut endpoint = Endpoint::from_shared(server.clone())
            .map_err(|_| invalid_address(&server))?
            .connect_timeout(CONNECT_TIMEOUT)
            .http2_keep_alive_interval(PING_INTERVAL)
            .keep_alive_timeout(PING_TIMEOUT)
            .tcp_nodelay(true);
        if let Some(tls) = client_tls::settings(&server, endpoint.uri(), tls)? {
            endpoint = endpoint
                .tls_config(tls)
                .map_err(|error| Failure::refused(client_tls::invalid_files(&error)))?;
        }
        let initiator = Initiator::from_env();
        let interceptor = CallInterceptor { initiator, authorization: None, dry_run: None };
        Ok(Self { channel: endpoint.connect_lazy(), server, interceptor })
    }

    /// Creates a client with the token of this connection, which is not sent in the clear.
    pub fn open(connection: &Connection) -> Result<Self> {
        let Connection { server, token, tls, insecure } = connection;
        let client = Self::new(server, tls)?;
        let Some(token) = token else { return Ok(client) };
        if !insecure && sends_in_the_clear(&client.server) {
            return Err(Failure::refused(format!(
                "the API token would be sent to {} without TLS, and every host on the way could \
                 read it; write https:// if the server has TLS, or add --insecure, which \
                 `farrier login --insecure` remembers",
                client.server
            )));
        }
        let authorization = Some(authorization(token)?);
        let interceptor = CallInterceptor { authorization, ..client.interceptor };
        Ok(Self { interceptor, ..client })
    }

    pub fn server(&self) -> &str {
        &self.server
    }

    /// The same client for a dry run. Asks the server which of its calls have one.
    pub async fn for_dry_run(self) -> Result<Self> {
        let guard = DryRunGuard::of_server(&self, &self.server).await?;
        let interceptor = CallInterceptor { dry_run: Some(Arc::new(guard)), ..self.interceptor };
        Ok(Self { interceptor, ..self })
    }

    /// The same client for a dry run of a command that calls no server.
    pub fn for_offline_dry_run(self) -> Self {
        let guard = DryRunGuard::offline(&self.server);
        let interceptor = CallInterceptor { dry_run: Some(Arc::new(guard)), ..self.interceptor };
        Self { interceptor, ..self }
    }

    /// The value of the field `dry_run` of every request.
    pub fn is_dry_run(&self) -> bool {
        self.interceptor.dry_run.is_some()
    }

    /// Words the result of a request by its past participle: `deleted`, or in a dry run
    /// `would be deleted`.
    pub fn outcome(&self, participle: &str) -> String {
        let would = if self.is_dry_run() { "would be " } else { "" };
        format!("{would}{participle}")
    }

    /// The name of the user, for a request that goes to no server.
    pub fn initiator(&self) -> String {
        self.interceptor.initiator.0.to_str().unwrap_or_default().to_string()
    }

    /// Waits for the response to a call, at most `CALL_TIMEOUT`.
    pub async fn call<T>(
        &self,
        call: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T> {
        self.call_within(CALL_TIMEOUT, call).await
    }

    /// Like `call`, for a call that the server answers only after a device has answered.
    pub async fn call_hardware<T>(
        &self,
        call: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T> {
        self.call_within(HARDWARE_TIMEOUT, call).await
    }

    async fn call_within<T>(
        &self,
        limit: Duration,
        call: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T> {
        match tokio::time::timeout(limit, call).await {
            Ok(Ok(response)) => Ok(response.into_inner()),
            Ok(Err(status)) => Err(self.failure(status)),
            Err(_) => Err(Failure::new(
                Exit::Unreachable,
                format!(
                    "the Farrier server at {} did not answer within {}",
                    self.server,
                    format_duration(limit)
                ),
            )),
        }
    }

    /// Converts a failed call to the failure that the user reads.
    pub fn failure(&self, status: Status) -> Failure {
        if !is_transport_error(&status) {
            return status.into();
        }
        let cause = root_cause(&status);
        let advice = client_tls::advice(&self.server, &cause)
            .unwrap_or("start one with `farrier serve --demo` or pass --server");
        let message =
            format!("cannot reach the Farrier server at {}: {cause}; {advice}", self.server);
        Failure::new(Exit::Unreachable, message)
    }
}

/// True if the connection failed; false if the server itself sent this status.
pub fn is_transport_error(status: &Status) -> bool {
    let code = status.code();
    let usual =
        matches!(code, Code::Unavailable | Code::Unknown | Code::Internal | Code::Cancelled);
    usual && status.source().is_some()
}

/// Returns the innermost error, which is the most specific.
fn root_cause(status: &Status) -> String {
    let mut cause = status.source();
    while let Some(deeper) = cause.and_then(Error::source) {
        cause = Some(deeper);
    }
    cause.map_or_else(|| status.message().to_string(), ToString::to_string)
}

/// Accepts `host:port` as well as `http://host:port` and `https://host:port`.
fn normalize_address(server: &str) -> Result<String> {
    let server = server.trim();
    let (scheme, host) = match server.split_once("://") {
        Some((scheme @ ("http" | "https"), rest)) => (scheme, rest),
        Some(_) => ("", ""),
        None => ("http", server),
    };
    match host.trim_end_matches('/') {
        "" => Err(invalid_address(server)),
        host => Ok(format!("{scheme}://{host}")),
    }
}

/// Whether other hosts can read what is sent to this address.
fn sends_in_the_clear(address: &str) -> bool {
    let Ok(uri) = address.parse::<Uri>() else { return true };
    let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
    let here = host.parse::<IpAddr>().map_or(host.eq_ignore_ascii_case("localhost"), |address| {
        address.to_canonical().is_loopback()
    });
    uri.scheme_str() != Some("https") && !here
}

fn invalid_address(server: &str) -> Failure {
    Failure::refused(format!(
        "--server {server:?} is not an address; write https://HOST:PORT or http://HOST:PORT"
    ))
}

/// A page of a list: its items, the token of the next page, and the number of rows that the server
/// left out because they cannot be read. Lists that are not stored have no such rows.
pub trait ListPage {
    type Item;

    fn into_parts(self) -> (Vec<Self::Item>, String, i32);
}

impl<T> ListPage for (Vec<T>, String) {
    type Item = T;

    fn into_parts(self) -> (Vec<T>, String, i32) {
        (self.0, self.1, 0)
    }
}

impl<T> ListPage for (Vec<T>, String, i32) {
    type Item = T;

    fn into_parts(self) -> (Vec<T>, String, i32) {
        self
    }
}

/// Fetches pages until the last one, or until `limit` items are read. Says on stderr how many rows
/// the server left out.
pub async fn fetch_pages<P: ListPage>(
    limit: Option<u32>,
    mut fetch: impl AsyncFnMut(i32, String) -> Result<P>,
) -> Result<Vec<P::Item>> {
    let limit = limit.map_or(usize::MAX, |limit| limit as usize);
    let mut items = Vec::new();
    let mut token = String::new();
    let mut left_out = 0;
    while items.len() < limit {
        let desired = (limit - items.len()).min(PAGE_SIZE as usize) as i32;
        let (page, next, unreadable) = fetch(desired, token.clone()).await?.into_parts();
        items.extend(page);
        left_out += unreadable;
        if next.is_empty() {
            break;
        }
        if next == token {
            return Err(Failure::bug("the server sent the same page token twice"));
        }
        token = next;
    }
    items.truncate(limit);
    if left_out > 0 {
        let rows = if left_out == 1 { "1 row".into() } else { format!("{left_out} rows") };
        eprintln_quietly(&format!("{rows} left out: unreadable; farrier db check explains it"));
    }
    Ok(items)
}

/// Builds a filter that selects one ID, combined with the filter `and`.
pub fn build_id_filter(field: &str, id: &str, and: &str) -> Result<String> {
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if id.is_empty() || !id.chars().all(legal) {
        return Err(Failure::refused(format!(
            "{id:?} is not a {field}; ids have letters, digits, '.', '_' and '-'"
        )));
    }
    match and.trim() {
        "" => Ok(format!("{field}={id}")),
        and => Ok(format!("{field}={id} AND {and}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        assert_eq!(normalize_address("127.0.0.1:7411").unwrap(), "http://127.0.0.1:7411");
        assert_eq!(normalize_address("http://farrier:7411/").unwrap(), "http://farrier:7411");
        assert_eq!(normalize_address("https://farrier:7411/").unwrap(), "https://farrier:7411");
        for bad in ["", "https://", "ftp://x", "http://"] {
            assert_eq!(normalize_address(bad).unwrap_err().exit, Exit::Refused, "{bad}");
        }
    }

    #[test]
    fn only_loopback_is_reached_unread_without_tls() {
        for (address, clear) in [
            ("http://127.0.0.1:7411", false),
            ("http://127.8.0.1:7411", false),
            ("http://localhost:7411", false),
            ("http://[::1]:7411", false),
            ("http://[::ffff:127.0.0.1]:7411", false),
            ("https://farrier.example:7411", false),
            ("http://farrier.example:7411", true),
            ("http://10.0.0.7:7411", true),
            ("http://[2001:db8::1]:7411", true),
            ("http://localhost.evil.example:7411", true),
            ("http://127.0.0.1.evil.example:7411", true),
            ("http://127.0.0.1@evil.example:7411", true),
        ] {
            assert_eq!(sends_in_the_clear(address), clear, "{address}");
        }
    }

    #[test]
    fn initiators_are_ascii() {
        assert_eq!(Initiator::named("ada").0, "ada");
        assert_eq!(Initiator::named("ad\u{e4}\n").0, "ad??");
        assert_eq!(Initiator::named("").0, "admin-cli");
    }

    #[test]
    fn filters() {
        assert_eq!(build_id_filter("machine_id", "m-1", "").unwrap(), "machine_id=m-1");
        assert_eq!(
            build_id_filter("machine_id", "m-1", "type=RMA").unwrap(),
            "machine_id=m-1 AND type=RMA"
        );
        assert!(build_id_filter("machine_id", "a b", "").is_err());
    }

    #[tokio::test]
    async fn pages_until_the_end_or_the_limit() {
        let fetch = async |size: i32, token: String| {
            let from: i32 = token.parse().unwrap_or(0);
            let to = (from + size.min(10)).min(25);
            let next = if to < 25 { to.to_string() } else { String::new() };
            Ok(((from..to).collect::<Vec<_>>(), next))
        };
        assert_eq!(fetch_pages(None, fetch).await.unwrap().len(), 25);
        assert_eq!(fetch_pages(Some(12), fetch).await.unwrap(), (0..12).collect::<Vec<_>>());
        let stuck = fetch_pages(None, async |_, _| Ok((vec![1], "again".to_string()))).await;
        assert_eq!(stuck.unwrap_err().exit, Exit::Bug);
    }

    #[tokio::test]
    async fn an_absent_server_says_how_to_start_one() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        let client = Client::new(&address.to_string(), &ClientTlsArgs::default()).unwrap();
        let request = proto::v1::GetMachineRequest::default();
        let failure = client.call(client.machines().get_machine(request)).await.unwrap_err();
        assert_eq!(failure.exit, Exit::Unreachable);
        let start = format!("cannot reach the Farrier server at http://{address}: ");
        assert!(failure.message.starts_with(&start), "{}", failure.message);
        assert!(failure.message.contains("farrier serve --demo"), "{}", failure.message);
    }
}
