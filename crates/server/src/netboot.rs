//! The HTTP API for machines that boot over the network: boot scripts and files, and the reports of
//! the deploy environment.
//!
//! It has a separate port, because it faces the machines' network and not the operators'. A machine
//! is identified by its MAC address while a deployment is pending for it, then by the token in its
//! boot script, then by the session that claimed the deployment. `script` makes the iPXE scripts,
//! `dhcp` the configuration of the DHCP server, `artifacts` stores the files, `convert` reads and
//! writes the messages of the deploy environment, `manifest` signs them.

pub mod artifacts;
pub(crate) mod convert;
pub mod dhcp;
mod manifest;
mod script;

pub use manifest::ManifestKey;

use crate::config::Netboot;
use crate::rate_limit::{RequestLimits, limit_anonymous, limit_logins};
use crate::summed_log::SummedLog;
use artifacts::Artifacts;
use axum::body::Body;
use axum::extract::{DefaultBodyLimit, Path, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use engine::secret::SecretStore;
use model::deploy::{ClaimRefusal, Deployment};
use model::image::ImageContent;
use model::text;
use std::path::PathBuf;
use std::sync::Arc;
use store::StoreError;
use tower::ServiceExt;
use tower_http::services::ServeFile;
use wire::deploy::{self, Claim, Report, ReportReply};

/// The largest request of the deploy environment, in bytes.
const MAX_BODY: usize = 256 * 1024;

#[derive(Clone)]
struct NetbootApi {
    secrets: SecretStore,
    artifacts: Artifacts,
    settings: Arc<Netboot>,
    key: Arc<ManifestKey>,
}

pub fn router(
    secrets: SecretStore,
    artifacts: Artifacts,
    settings: Netboot,
    key: ManifestKey,
) -> Router {
    let (settings, key) = (Arc::new(settings), Arc::new(key));
    let shared = NetbootApi { secrets, artifacts, settings, key };
    let limits = RequestLimits::new(SummedLog::new("netboot"));
    let logins = Router::new()
        .route("/netboot/{token}/{file}", get(boot_file))
        .route(deploy::CLAIM, post(claim))
        .route(deploy::REPORT, post(report))
        .route(deploy::IMAGE, get(image))
        .layer(middleware::from_fn_with_state(limits.clone(), limit_logins));
    Router::new()
        .route("/netboot/boot.ipxe", get(first_script))
        .route("/netboot/by-mac/{mac}", get(script_of))
        .layer(middleware::from_fn_with_state(limits, limit_anonymous))
        .merge(logins)
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .with_state(shared)
}

/// The same script for every machine: it chains to the script of the machine's MAC address.
async fn first_script(State(shared): State<NetbootApi>) -> String {
    script::first_script(&shared.settings.url())
}

async fn script_of(State(shared): State<NetbootApi>, Path(mac): Path<String>) -> Response {
    let Ok(mac) = text::normalize_mac("mac", &mac) else {
        let message = "write the MAC address as 52:54:00:12:34:56 or 52-54-00-12-34-56\n";
        return (StatusCode::BAD_REQUEST, message).into_response();
    };
    match shared.secrets.boot_offer(&mac).await {
        Ok(Some(boot)) => {
            let machine = &boot.deployment.machine_id;
            match script::machine_script(&shared.settings, &boot, &mac, &shared.key.public()) {
                Ok(script) => {
                    tracing::info!(%machine, %mac, "boot script sent");
                    script.into_response()
                }
                Err(refusal) => {
                    tracing::error!(%machine, %mac, %refusal, "no boot script can be made");
                    (StatusCode::CONFLICT, refusal.message + "\n").into_response()
                }
            }
        }
        Ok(None) => {
            let message = format!("no operation wants {mac} to boot from here\n");
            (StatusCode::NOT_FOUND, message).into_response()
        }
        Err(error) => unavailable(&error),
    }
}

/// The kernel, the initrd or the ISO that a machine boots.
async fn boot_file(
    State(shared): State<NetbootApi>,
    Path((token, file)): Path<(String, String)>,
    request: Request,
) -> Response {
    let found = match shared.secrets.deployment_by_token(&token).await {
        Ok(found) => found,
        Err(error) => return unavailable(&error),
    };
    let Some(deployment) = found else {
        return (StatusCode::FORBIDDEN, "no operation has given out this token\n").into_response();
    };
    match shared.boot_path(&deployment, &file) {
        Some(path) => send(path, request).await,
        None => (StatusCode::NOT_FOUND, "this image has no such file\n").into_response(),
    }
}

impl NetbootApi {
    fn boot_path(&self, deployment: &Deployment, file: &str) -> Option<PathBuf> {
        match (&deployment.image.body, file) {
            (ImageContent::Disk { .. }, "kernel") => Some(self.settings.deploy_dir.join("vmlinuz")),
            (ImageContent::Disk { .. }, "initrd") => Some(self.settings.deploy_dir.join("initrd")),
            (ImageContent::Kernel { kernel, .. }, "kernel") => Some(self.artifacts.path(kernel)),
            (ImageContent::Kernel { initrd: Some(initrd), .. }, "initrd") => {
                Some(self.artifacts.path(initrd))
            }
            (ImageContent::Iso { file }, "disc.iso") => Some(self.artifacts.path(file)),
            (
                ImageContent::Disk { .. } | ImageContent::Kernel { .. } | ImageContent::Iso { .. },
                _,
            ) => None,
        }
    }
}

async fn claim(State(shared): State<NetbootApi>, Json(claim): Json<Claim>) -> Response {
    let macs = match convert::macs(&claim) {
        Ok(macs) => macs,
        Err(refusal) => return (StatusCode::BAD_REQUEST, refusal.message).into_response(),
    };
    match shared.secrets.claim(&claim.token, &claim.session, macs).await {
        Ok(Ok(deployment)) => {
            tracing::info!(machine = %deployment.machine_id, key = %deployment.key, "deployment claimed");
            let assignment = convert::assignment(&deployment);
            match shared.key.sign(assignment, &claim.session, &deployment.macs) {
                Ok(reply) => Json(reply).into_response(),
                Err(error) => {
                    tracing::error!(%error, "cannot write a manifest");
                    StatusCode::INTERNAL_SERVER_ERROR.into_response()
                }
            }
        }
        Ok(Err(denied)) => {
            tracing::debug!(mac = %claim.mac, why = denied.as_str(), "claim of a deployment denied");
            forbidden(denied)
        }
        Err(error) => unavailable(&error),
    }
}

async fn report(
    State(shared): State<NetbootApi>,
    headers: HeaderMap,
    Json(reported): Json<Report<String>>,
) -> Response {
    let report = match convert::report(reported) {
        Ok(report) => report,
        Err(refusal) => return (StatusCode::BAD_REQUEST, refusal.message).into_response(),
    };
    match shared.secrets.record_report(session(&headers), report).await {
        Ok(Ok(then)) => Json(ReportReply { next_action: then }).into_response(),
        Ok(Err(denied)) => forbidden(denied),
        Err(error) => unavailable(&error),
    }
}

/// The image file; range requests are supported.
async fn image(State(shared): State<NetbootApi>, headers: HeaderMap, request: Request) -> Response {
    match shared.secrets.deployment_by_session(session(&headers)).await {
        Ok(Some(deployment)) => match &deployment.image.body {
            ImageContent::Disk { file, .. } => send(shared.artifacts.path(file), request).await,
            ImageContent::Kernel { .. } | ImageContent::Iso { .. } => {
                (StatusCode::NOT_FOUND, "this image is not written to a disk\n").into_response()
            }
        },
        Ok(None) => forbidden(ClaimRefusal::SessionUnknown),
        Err(error) => unavailable(&error),
    }
}

/// The session secret of a request from a machine or an agent.
pub(crate) fn session(headers: &HeaderMap) -> &str {
    let given = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    given.and_then(|value| value.strip_prefix("Bearer ")).unwrap_or_default()
}

/// Sends a file of this server; range requests are supported.
pub(crate) async fn send(path: PathBuf, request: Request) -> Response {
    match ServeFile::new(&path).oneshot(request).await {
        Ok(response) if response.status() == StatusCode::NOT_FOUND => {
            tracing::error!(path = %path.display(), "requested file is missing");
            // Another replica may have it, or an operator may restore it: the machine retries.
            let message = "the file is missing on this server\n";
            (StatusCode::SERVICE_UNAVAILABLE, message).into_response()
        }
        Ok(response) => response.map(Body::new),
        Err(never) => match never {},
    }
}

fn forbidden(denied: ClaimRefusal) -> Response {
    (StatusCode::FORBIDDEN, Json(convert::refusal(denied))).into_response()
}

/// The machine retries until the database answers.
fn unavailable(error: &StoreError) -> Response {
    tracing::warn!(%error, "request of a booting machine answered with 503");
    (StatusCode::SERVICE_UNAVAILABLE, "try again\n").into_response()
}
