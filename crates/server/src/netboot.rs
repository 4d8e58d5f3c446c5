//! What machines fetch when they boot over the network, and what the deploy environment says to Farrier.
//!
//! It has a port of its own, as it faces the machines' network and not the operators'. A machine is known by its MAC
//! address, and only while an operation wants it to boot; then by the token it was given; then by the session that claimed
//! it. `script` is what its firmware is told, `dhcp` what its DHCP server is told, `artifacts` the files, `convert` the messages of the
//! deploy environment.

pub mod artifacts;
mod convert;
pub mod dhcp;
mod script;

use crate::config::Netboot;
use artifacts::Artifacts;
use axum::body::Body;
use axum::extract::{DefaultBodyLimit, Path, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use engine::vault::Vault;
use model::deploy::{Denied, Deployment};
use model::image::Body as ImageBody;
use model::text;
use std::path::PathBuf;
use std::sync::Arc;
use store::StoreError;
use tower::ServiceExt;
use tower_http::services::ServeFile;
use wire::deploy::{self, Claim, Report};

/// The most that the deploy environment says at once.
const MAX_BODY: usize = 256 * 1024;

#[derive(Clone)]
struct Shared {
    vault: Vault,
    artifacts: Artifacts,
    settings: Arc<Netboot>,
}

pub fn router(vault: Vault, artifacts: Artifacts, settings: Netboot) -> Router {
    let shared = Shared { vault, artifacts, settings: Arc::new(settings) };
    Router::new()
        .route("/netboot/boot.ipxe", get(first_script))
        .route("/netboot/by-mac/{mac}", get(script_of))
        .route("/netboot/{token}/{file}", get(boot_file))
        .route(deploy::CLAIM, post(claim))
        .route(deploy::REPORT, post(report))
        .route(deploy::IMAGE, get(image))
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .with_state(shared)
}

/// The same for every machine: it asks on with its MAC address.
async fn first_script(State(shared): State<Shared>) -> String {
    script::first(&shared.settings.url())
}

async fn script_of(State(shared): State<Shared>, Path(mac): Path<String>) -> Response {
    let Ok(mac) = text::mac("mac", &mac) else {
        let said = "write the MAC address as 52:54:00:12:34:56 or 52-54-00-12-34-56\n";
        return (StatusCode::BAD_REQUEST, said).into_response();
    };
    match shared.vault.boot_of(&mac).await {
        Ok(Some(boot)) => {
            tracing::info!(machine = %boot.deployment.machine_id, %mac, "asked what to boot");
            script::of(&shared.settings, &boot, &mac).into_response()
        }
        Ok(None) => {
            let said = format!("no operation wants {mac} to boot from here\n");
            (StatusCode::NOT_FOUND, said).into_response()
        }
        Err(error) => unavailable(&error),
    }
}

/// The kernel and the ramdisk of what is to be booted, or the disc.
async fn boot_file(
    State(shared): State<Shared>,
    Path((token, file)): Path<(String, String)>,
    request: Request,
) -> Response {
    let found = match shared.vault.booting(&token).await {
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

impl Shared {
    fn boot_path(&self, deployment: &Deployment, file: &str) -> Option<PathBuf> {
        match (&deployment.image.body, file) {
            (ImageBody::Disk { .. }, "kernel") => Some(self.settings.deploy_dir.join("vmlinuz")),
            (ImageBody::Disk { .. }, "initrd") => Some(self.settings.deploy_dir.join("initrd")),
            (ImageBody::Kernel { kernel, .. }, "kernel") => Some(self.artifacts.path(kernel)),
            (ImageBody::Kernel { initrd: Some(initrd), .. }, "initrd") => {
                Some(self.artifacts.path(initrd))
            }
            (ImageBody::Iso { file }, "disc.iso") => Some(self.artifacts.path(file)),
            (ImageBody::Disk { .. } | ImageBody::Kernel { .. } | ImageBody::Iso { .. }, _) => None,
        }
    }
}

async fn claim(State(shared): State<Shared>, Json(claim): Json<Claim>) -> Response {
    let macs = match convert::macs(&claim) {
        Ok(macs) => macs,
        Err(refusal) => return (StatusCode::BAD_REQUEST, refusal.said).into_response(),
    };
    match shared.vault.claim(&claim.token, &claim.session, macs).await {
        Ok(Ok(deployment)) => {
            tracing::info!(machine = %deployment.machine_id, key = %deployment.key, "claimed");
            Json(convert::assignment(&deployment)).into_response()
        }
        Ok(Err(denied)) => {
            tracing::warn!(mac = %claim.mac, why = denied.as_str(), "a claim was refused");
            forbidden(denied)
        }
        Err(error) => unavailable(&error),
    }
}

async fn report(
    State(shared): State<Shared>,
    headers: HeaderMap,
    Json(reported): Json<Report<String>>,
) -> Response {
    let report = match convert::report(reported) {
        Ok(report) => report,
        Err(refusal) => return (StatusCode::BAD_REQUEST, refusal.said).into_response(),
    };
    match shared.vault.hear(session(&headers), report).await {
        Ok(Ok(then)) => Json(convert::report_reply(then)).into_response(),
        Ok(Err(denied)) => forbidden(denied),
        Err(error) => unavailable(&error),
    }
}

/// The file of the image, from whichever byte.
async fn image(State(shared): State<Shared>, headers: HeaderMap, request: Request) -> Response {
    match shared.vault.claimed(session(&headers)).await {
        Ok(Some(deployment)) => match &deployment.image.body {
            ImageBody::Disk { file, .. } => send(shared.artifacts.path(file), request).await,
            ImageBody::Kernel { .. } | ImageBody::Iso { .. } => {
                (StatusCode::NOT_FOUND, "this image is not written to a disk\n").into_response()
            }
        },
        Ok(None) => forbidden(Denied::SessionUnknown),
        Err(error) => unavailable(&error),
    }
}

/// The session that a machine or an agent shows.
pub(crate) fn session(headers: &HeaderMap) -> &str {
    let given = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    given.and_then(|value| value.strip_prefix("Bearer ")).unwrap_or_default()
}

/// A file of this server, from whichever byte.
pub(crate) async fn send(path: PathBuf, request: Request) -> Response {
    match ServeFile::new(&path).oneshot(request).await {
        Ok(response) if response.status() == StatusCode::NOT_FOUND => {
            tracing::error!(path = %path.display(), "a file that was asked for is not here");
            // Another replica may have it, or it may be put back: the machine tries again.
            let said = "the file is missing on this server\n";
            (StatusCode::SERVICE_UNAVAILABLE, said).into_response()
        }
        Ok(response) => response.map(Body::new),
        Err(never) => match never {},
    }
}

fn forbidden(denied: Denied) -> Response {
    (StatusCode::FORBIDDEN, Json(convert::refusal(denied))).into_response()
}

/// The machine tries again until we can look.
fn unavailable(error: &StoreError) -> Response {
    tracing::warn!(%error, "a machine that boots has to wait");
    (StatusCode::SERVICE_UNAVAILABLE, "try again\n").into_response()
}
