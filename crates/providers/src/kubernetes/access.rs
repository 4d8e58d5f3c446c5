//! The rights of our user, and the rule by which a refusal counts.
//!
//! An API server that has just started answers 401 or 403 to everyone until its caches are filled,
//! and behind one address there may be several servers. So a refusal counts only once `/readyz` is
//! ok and the same request was refused for [`super::Settings::refusal_grace`]. RBAC shows `/readyz`
//! to everyone, so at first that is refused as well; then an access review decides, which every
//! user may make. A refused request has changed nothing, so it may be repeated.

use super::client::ApiRequest;
use super::fault::{self, ApiCall};
use super::object::Status;
use super::{Answer, Cluster};
use model::fault::Result;
use serde::Deserialize;
use serde_json::json;
use std::time::Duration;
use tokio::time::Instant;

const REVIEWS: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
/// The interval between two repetitions of a refused request.
const REPEAT_AFTER: Duration = Duration::from_secs(1);

/// One right of RBAC. An empty namespace means all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Right<'a> {
    pub verb: &'a str,
    pub group: &'a str,
    /// `pods`, or `pods/eviction` with its subresource.
    pub resource: &'a str,
    pub namespace: &'a str,
    /// The one object that is meant; empty: all of them.
    pub name: &'a str,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Review {
    status: ReviewStatus,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ReviewStatus {
    allowed: bool,
}

impl Cluster {
    /// Sends a request, and repeats it while its refusal does not count yet.
    pub(super) async fn exchange(
        &self,
        call: &ApiCall<'_>,
        request: &ApiRequest,
    ) -> Result<Answer> {
        let started = Instant::now();
        loop {
            let answer = self.send_once(call, request).await?;
            let Err(status) = &answer else { return Ok(answer) };
            if !status.is_access_refused() {
                return Ok(answer);
            }
            self.check_ready(call, status).await?;
            if started.elapsed() >= self.settings.refusal_grace {
                return Ok(answer);
            }
            tokio::time::sleep(REPEAT_AFTER).await;
        }
    }

    /// A fault while the server says that it is not ready, or refuses everything. One that only
    /// hides `/readyz` from us counts as ready.
    async fn check_ready(&self, call: &ApiCall<'_>, refused: &Status) -> Result<()> {
        let asked = ApiCall::new("get", "path", "/readyz");
        let readiness = match self.send_once(&asked, &ApiRequest::get("/readyz")).await {
            Ok(Err(status)) if status.code >= 500 => {
                format!("/readyz answered {}", status.code)
            }
            Ok(Err(status)) if status.code == 403 => {
                let review = ApiCall::new("create", "selfsubjectaccessreviews", "");
                match self.send_once(&review, &review_request(READ_NODES)).await {
                    Ok(Err(status)) if status.code == 403 => {
                        "/readyz and an access review answered 403 too".to_owned()
                    }
                    Ok(_) => return Ok(()),
                    Err(fault) => fault.message,
                }
            }
            Ok(_) => return Ok(()),
            Err(fault) => fault.message,
        };
        Err(fault::not_ready(&self.address, call, refused, &readiness))
    }

    /// True if our user has a right.
    pub async fn may(&self, right: Right<'_>) -> Result<bool> {
        let call = ApiCall::new("create", "selfsubjectaccessreviews", "");
        let review: Review = self.send(&call, &review_request(right)).await?;
        Ok(review.status.allowed)
    }
}

const READ_NODES: Right<'static> =
    Right { verb: "get", group: "", resource: "nodes", namespace: "", name: "" };

fn review_request(right: Right<'_>) -> ApiRequest {
    let Right { verb, group, resource, namespace, name } = right;
    let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
    let body = json!({
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": { "resourceAttributes": {
            "verb": verb, "group": group, "resource": resource,
            "subresource": subresource, "namespace": namespace, "name": name,
        } },
    });
    ApiRequest::create(REVIEWS, &body)
}
