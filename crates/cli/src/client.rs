//! The way to the server.
//!
//! The connection is made when it is first needed and made again when it breaks, so every call can
//! fail in the same way. Each call says who asks. A server that cannot be reached is the one failure
//! a newcomer surely meets, so it says how to start one.

use crate::exit::{Exit, Failure};
use model::time::spoken;
use proto::v1::{
    admin_service_client::AdminServiceClient, component_service_client::ComponentServiceClient,
    credential_service_client::CredentialServiceClient,
    explain_service_client::ExplainServiceClient, firmware_service_client::FirmwareServiceClient,
    hardware_service_client::HardwareServiceClient, health_service_client::HealthServiceClient,
    host_service_client::HostServiceClient, image_service_client::ImageServiceClient,
    machine_service_client::MachineServiceClient, node_service_client::NodeServiceClient,
    operation_service_client::OperationServiceClient, plan_service_client::PlanServiceClient,
    power_shelf_service_client::PowerShelfServiceClient, rack_service_client::RackServiceClient,
    run_service_client::RunServiceClient, simulator_service_client::SimulatorServiceClient,
    site_service_client::SiteServiceClient, switch_service_client::SwitchServiceClient,
};
use std::error::Error;
use std::time::Duration;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Response, Status};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long an answer may take, streams aside.
const CALL_TIMEOUT: Duration = Duration::from_secs(60);
/// The same where a device is asked; the server gives up on it long before.
const HARDWARE_TIMEOUT: Duration = Duration::from_secs(900);
/// A dead peer is noticed by a ping that nobody answers.
const PING_EVERY: Duration = Duration::from_secs(10);
const PING_TIMEOUT: Duration = Duration::from_secs(10);
/// A page of a thousand runs with their plans is larger than gRPC's default of 4 MiB.
const MAX_MESSAGE: usize = 64 * 1024 * 1024;
/// What the server gives at most on one page.
const PAGE_SIZE: u32 = 1_000;
const INITIATOR: &str = "farrier-initiator";

type Wire = InterceptedService<Channel, Initiator>;

#[derive(Clone)]
pub struct Client {
    server: String,
    channel: Channel,
    initiator: Initiator,
}

/// Puts the caller's name on every request.
#[derive(Clone)]
pub struct Initiator(MetadataValue<Ascii>);

impl Interceptor for Initiator {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        request.metadata_mut().insert(INITIATOR, self.0.clone());
        Ok(request)
    }
}

impl Initiator {
    fn from_env() -> Self {
        let name =
            ["USER", "LOGNAME", "USERNAME"].into_iter().find_map(|name| std::env::var(name).ok());
        Self::named(name.as_deref().unwrap_or_default())
    }

    /// Headers are ASCII; what is not becomes a question mark.
    fn named(name: &str) -> Self {
        let ascii: String =
            name.chars().map(|c| if c.is_ascii_graphic() { c } else { '?' }).collect();
        let known = MetadataValue::try_from(ascii.as_str()).ok().filter(|_| !ascii.is_empty());
        Self(known.unwrap_or_else(|| MetadataValue::from_static("unknown")))
    }
}

macro_rules! services {
    ($($name:ident: $client:ident;)*) => {$(
        pub fn $name(&self) -> $client<Wire> {
            $client::with_interceptor(self.channel.clone(), self.initiator.clone())
                .max_decoding_message_size(MAX_MESSAGE)
        }
    )*};
}

impl Client {
    services! {
        machines: MachineServiceClient;
        operations: OperationServiceClient;
        plans: PlanServiceClient;
        runs: RunServiceClient;
        racks: RackServiceClient;
        admin: AdminServiceClient;
        credentials: CredentialServiceClient;
        explain: ExplainServiceClient;
        components: ComponentServiceClient;
        firmware: FirmwareServiceClient;
        hardware: HardwareServiceClient;
        health: HealthServiceClient;
        hosts: HostServiceClient;
        images: ImageServiceClient;
        nodes: NodeServiceClient;
        sites: SiteServiceClient;
        simulator: SimulatorServiceClient;
        switches: SwitchServiceClient;
        power_shelves: PowerShelfServiceClient;
    }

    /// A client for this server. Nothing is sent yet.
    pub fn new(server: &str) -> Result<Self, Failure> {
        let server = full_address(server)?;
        let endpoint = Endpoint::from_shared(server.clone())
            .map_err(|_| bad_address(&server))?
            .connect_timeout(CONNECT_TIMEOUT)
            .http2_keep_alive_interval(PING_EVERY)
            .keep_alive_timeout(PING_TIMEOUT)
            .tcp_nodelay(true);
        Ok(Self { channel: endpoint.connect_lazy(), server, initiator: Initiator::from_env() })
    }

    /// Waits for the answer to a call, within bounds.
    pub async fn call<T>(
        &self,
        call: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T, Failure> {
        self.call_within(CALL_TIMEOUT, call).await
    }

    /// The same for a call that the server only answers when a device has.
    pub async fn ask_hardware<T>(
        &self,
        call: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T, Failure> {
        self.call_within(HARDWARE_TIMEOUT, call).await
    }

    async fn call_within<T>(
        &self,
        limit: Duration,
        call: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T, Failure> {
        match tokio::time::timeout(limit, call).await {
            Ok(Ok(response)) => Ok(response.into_inner()),
            Ok(Err(status)) => Err(self.failure(status)),
            Err(_) => Err(Failure::new(
                Exit::Unreachable,
                format!(
                    "the Farrier server at {} did not answer within {}",
                    self.server,
                    spoken(limit)
                ),
            )),
        }
    }

    /// What a failed call means to the one who typed the command.
    pub fn failure(&self, status: Status) -> Failure {
        if !is_transport(&status) {
            return status.into();
        }
        let cause = root_cause(&status);
        Failure::new(
            Exit::Unreachable,
            format!(
                "cannot reach the Farrier server at {}: {cause}; start one with `farrier serve --demo` or pass --server",
                self.server
            ),
        )
    }
}

/// True when the connection failed, not the server's own word.
pub fn is_transport(status: &Status) -> bool {
    let code = status.code();
    let usual =
        matches!(code, Code::Unavailable | Code::Unknown | Code::Internal | Code::Cancelled);
    usual && status.source().is_some()
}

/// The innermost error, as that is the one which says something.
fn root_cause(status: &Status) -> String {
    let mut cause = status.source();
    while let Some(deeper) = cause.and_then(Error::source) {
        cause = Some(deeper);
    }
    cause.map_or_else(|| status.message().to_string(), ToString::to_string)
}

/// `host:port` is enough to type.
fn full_address(server: &str) -> Result<String, Failure> {
    let server = server.trim();
    let host = match server.split_once("://") {
        Some(("http", rest)) => rest.trim_end_matches('/'),
        Some(_) => "",
        None => server.trim_end_matches('/'),
    };
    if host.is_empty() { Err(bad_address(server)) } else { Ok(format!("http://{host}")) }
}

fn bad_address(server: &str) -> Failure {
    Failure::refused(format!("--server {server:?} is not an address; write http://HOST:PORT"))
}

/// Fetches page after page until there is no more, or enough.
pub async fn pages<T>(
    limit: Option<u32>,
    mut fetch: impl AsyncFnMut(i32, String) -> Result<(Vec<T>, String), Failure>,
) -> Result<Vec<T>, Failure> {
    let limit = limit.map_or(usize::MAX, |limit| limit as usize);
    let mut items = Vec::new();
    let mut token = String::new();
    while items.len() < limit {
        let wanted = (limit - items.len()).min(PAGE_SIZE as usize) as i32;
        let (page, next) = fetch(wanted, token.clone()).await?;
        items.extend(page);
        if next.is_empty() {
            break;
        }
        if next == token {
            return Err(Failure::bug("the server sent the same page token twice"));
        }
        token = next;
    }
    items.truncate(limit);
    Ok(items)
}

/// One id as a term of a filter.
pub fn filter_by(field: &str, id: &str, and: &str) -> Result<String, Failure> {
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
        assert_eq!(full_address("127.0.0.1:7411").unwrap(), "http://127.0.0.1:7411");
        assert_eq!(full_address("http://farrier:7411/").unwrap(), "http://farrier:7411");
        for bad in ["", "https://x", "ftp://x", "http://"] {
            assert_eq!(full_address(bad).unwrap_err().exit, Exit::Refused, "{bad}");
        }
    }

    #[test]
    fn initiators_are_ascii() {
        assert_eq!(Initiator::named("ada").0, "ada");
        assert_eq!(Initiator::named("ad\u{e4}\n").0, "ad??");
        assert_eq!(Initiator::named("").0, "unknown");
    }

    #[test]
    fn filters() {
        assert_eq!(filter_by("machine_id", "m-1", "").unwrap(), "machine_id=m-1");
        assert_eq!(
            filter_by("machine_id", "m-1", "type=RMA").unwrap(),
            "machine_id=m-1 AND type=RMA"
        );
        assert!(filter_by("machine_id", "a b", "").is_err());
    }

    #[tokio::test]
    async fn pages_until_the_end_or_the_limit() {
        let fetch = async |size: i32, token: String| {
            let from: i32 = token.parse().unwrap_or(0);
            let to = (from + size.min(10)).min(25);
            let next = if to < 25 { to.to_string() } else { String::new() };
            Ok(((from..to).collect::<Vec<_>>(), next))
        };
        assert_eq!(pages(None, fetch).await.unwrap().len(), 25);
        assert_eq!(pages(Some(12), fetch).await.unwrap(), (0..12).collect::<Vec<_>>());
        let stuck = pages(None, async |_, _| Ok((vec![1], "again".to_string()))).await;
        assert_eq!(stuck.unwrap_err().exit, Exit::Bug);
    }

    #[tokio::test]
    async fn an_absent_server_says_how_to_start_one() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        let client = Client::new(&address.to_string()).unwrap();
        let request = proto::v1::GetMachineRequest::default();
        let failure = client.call(client.machines().get_machine(request)).await.unwrap_err();
        assert_eq!(failure.exit, Exit::Unreachable);
        let start = format!("cannot reach the Farrier server at http://{address}: ");
        assert!(failure.message.starts_with(&start), "{}", failure.message);
        assert!(failure.message.contains("farrier serve --demo"), "{}", failure.message);
    }
}
