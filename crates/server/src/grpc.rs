//! The gRPC services: each call parses its request, calls the engine and converts the result. One
//! file for each service.

mod access;
mod admin;
mod approval;
mod audit;
mod call;
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
mod notify;
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
mod untrusted;
mod update;

pub(crate) use audit::audit_entry;
pub(crate) use call::{Call, GrpcServices};
pub(crate) use convert::{INITIATOR, plan_from, time};
pub(crate) use node::workflow_kind;
pub(crate) use untrusted::{read_page_token, read_request};

use engine::Engine;
use proto::v1;
use tonic::service::Routes;
use tonic::{Response, Status};

/// The response of a service, or its gRPC status.
type Answer<T> = Result<Response<T>, Status>;

/// All services, with reflection and health.
pub(crate) async fn routes(
    services: GrpcServices,
    engine: Engine,
) -> Result<Routes, tonic_reflection::server::Error> {
    let simulates = services.simulates();
    let descriptors = match simulates {
        true => proto::DESCRIPTORS.to_vec(),
        false => proto::descriptors_without_simulator(),
    };
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(&descriptors)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let (health, health_service) = tonic_health::server::health_reporter();
    health.set_service_status("", tonic_health::ServingStatus::Serving).await;
    tokio::spawn(run_health(engine, health, simulates));

    let mut routes = Routes::builder();
    routes
        .add_service(v1::access_service_server::AccessServiceServer::new(services.clone()))
        .add_service(v1::approval_service_server::ApprovalServiceServer::new(services.clone()))
        .add_service(v1::audit_service_server::AuditServiceServer::new(services.clone()))
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
        .add_service(v1::notifier_service_server::NotifierServiceServer::new(services.clone()))
        .add_service(v1::site_service_server::SiteServiceServer::new(services.clone()))
        .add_service(v1::explain_service_server::ExplainServiceServer::new(services.clone()))
        .add_service(health_service)
        .add_service(reflection().build_v1()?)
        .add_service(reflection().build_v1alpha()?);
    if simulates {
        routes.add_service(v1::simulator_service_server::SimulatorServiceServer::new(services));
    }
    Ok(routes.routes())
}

/// Offered only by a server with simulated hardware.
const SIMULATOR: &str = "farrier.v1.SimulatorService";

/// The services whose health is reported by name.
const SERVICES: [&str; 24] = [
    "farrier.v1.AccessService",
    "farrier.v1.ApprovalService",
    "farrier.v1.AuditService",
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
    SIMULATOR,
    "farrier.v1.SwitchService",
    "farrier.v1.PowerShelfService",
    "farrier.v1.NodeService",
    "farrier.v1.NotifierService",
    "farrier.v1.SiteService",
];

/// Reports every service as serving while the database answers.
async fn run_health(engine: Engine, health: tonic_health::server::HealthReporter, simulates: bool) {
    loop {
        let status = match engine.healthy().await {
            Ok(()) => tonic_health::ServingStatus::Serving,
            Err(_) => tonic_health::ServingStatus::NotServing,
        };
        let offered = SERVICES.iter().filter(|name| simulates || **name != SIMULATOR);
        for service in offered.chain([&""]) {
            health.set_service_status(service, status).await;
        }
        tokio::time::sleep(std::time::Duration::from_secs(2)).await;
    }
}
