//! The gRPC services: each call parses its request, calls the engine and converts the result. One
//! file for each service.

mod admin;
mod cluster;
mod component;
mod convert;
mod credential;
mod device;
mod explain;
mod firmware;
mod hardware;
mod health;
mod host;
mod image;
mod machine;
mod node;
mod operation;
mod page;
mod plan;
mod power_shelf;
mod rack;
mod run;
mod simulator;
mod site;
pub(crate) mod status;
mod stream;
mod switch;
mod update;

pub(crate) use convert::{plan_from, time};
pub(crate) use node::workflow_kind;

use crate::netboot::artifacts::Artifacts;
use engine::Engine;
use engine::node::Agents;
use engine::secret::SecretStore;
use proto::v1;
use providers::sim::Sim;
use std::path::PathBuf;
use tonic::service::Routes;
use tonic::{Response, Status};

/// The response of a service, or its gRPC status.
type Answer<T> = Result<Response<T>, Status>;

/// The state that the gRPC services share. Every service is implemented on this type.
#[derive(Clone)]
pub(crate) struct GrpcServices {
    pub engine: Engine,
    /// The simulated hardware; None: this server has none.
    pub sim: Option<Sim>,
    pub secrets: SecretStore,
    pub artifacts: Artifacts,
    /// The base URL under which machines reach the netboot service; none: it is off.
    pub netboot_url: Option<String>,
    pub agents: Agents,
    /// The URLs under which agents reach this server, separated by commas; empty: they cannot.
    pub agents_url: String,
    /// The folder of tokens that kubeconfigs may name; None: they may name no file.
    pub token_folder: Option<PathBuf>,
}

impl GrpcServices {
    /// The same services for a request that may be a dry run; see [`Engine::with_dry_run`].
    fn with_dry_run(&self, dry_run: bool) -> Self {
        Self {
            engine: self.engine.with_dry_run(dry_run),
            secrets: self.secrets.with_dry_run(dry_run),
            agents: self.agents.with_dry_run(dry_run),
            ..self.clone()
        }
    }
}

/// All services, with reflection and health.
pub(crate) async fn routes(
    services: GrpcServices,
) -> Result<Routes, tonic_reflection::server::Error> {
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(proto::DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let (health, health_service) = tonic_health::server::health_reporter();
    health.set_service_status("", tonic_health::ServingStatus::Serving).await;
    tokio::spawn(run_health(services.engine.clone(), health));

    let mut routes = Routes::builder();
    routes
        .add_service(v1::machine_service_server::MachineServiceServer::new(services.clone()))
        .add_service(v1::operation_service_server::OperationServiceServer::new(services.clone()))
        .add_service(v1::plan_service_server::PlanServiceServer::new(services.clone()))
        .add_service(v1::run_service_server::RunServiceServer::new(services.clone()))
        .add_service(v1::admin_service_server::AdminServiceServer::new(services.clone()))
        .add_service(v1::credential_service_server::CredentialServiceServer::new(services.clone()))
        .add_service(v1::cluster_service_server::ClusterServiceServer::new(services.clone()))
        .add_service(v1::hardware_service_server::HardwareServiceServer::new(services.clone()))
        .add_service(v1::health_service_server::HealthServiceServer::new(services.clone()))
        .add_service(v1::image_service_server::ImageServiceServer::new(services.clone()))
        .add_service(v1::switch_service_server::SwitchServiceServer::new(services.clone()))
        .add_service(v1::power_shelf_service_server::PowerShelfServiceServer::new(services.clone()))
        .add_service(v1::host_service_server::HostServiceServer::new(services.clone()))
        .add_service(v1::component_service_server::ComponentServiceServer::new(services.clone()))
        .add_service(v1::firmware_service_server::FirmwareServiceServer::new(services.clone()))
        .add_service(v1::rack_service_server::RackServiceServer::new(services.clone()))
        .add_service(v1::node_service_server::NodeServiceServer::new(services.clone()))
        .add_service(v1::site_service_server::SiteServiceServer::new(services.clone()))
        .add_service(v1::explain_service_server::ExplainServiceServer::new(services.clone()))
        .add_service(v1::simulator_service_server::SimulatorServiceServer::new(services))
        .add_service(health_service)
        .add_service(reflection().build_v1()?)
        .add_service(reflection().build_v1alpha()?);
    Ok(routes.routes())
}

/// The services whose health is reported by name.
const SERVICES: [&str; 20] = [
    "farrier.v1.MachineService",
    "farrier.v1.OperationService",
    "farrier.v1.PlanService",
    "farrier.v1.RunService",
    "farrier.v1.RackService",
    "farrier.v1.AdminService",
    "farrier.v1.ClusterService",
    "farrier.v1.CredentialService",
    "farrier.v1.ImageService",
    "farrier.v1.ExplainService",
    "farrier.v1.ComponentService",
    "farrier.v1.FirmwareService",
    "farrier.v1.HostService",
    "farrier.v1.HardwareService",
    "farrier.v1.HealthService",
    "farrier.v1.SimulatorService",
    "farrier.v1.SwitchService",
    "farrier.v1.PowerShelfService",
    "farrier.v1.NodeService",
    "farrier.v1.SiteService",
];

/// Reports every service as serving while the database answers.
async fn run_health(engine: Engine, health: tonic_health::server::HealthReporter) {
    loop {
        let status = match engine.healthy().await {
            Ok(()) => tonic_health::ServingStatus::Serving,
            Err(_) => tonic_health::ServingStatus::NotServing,
        };
        for service in SERVICES.iter().chain([&""]) {
            health.set_service_status(service, status).await;
        }
        tokio::time::sleep(std::time::Duration::from_secs(2)).await;
    }
}
