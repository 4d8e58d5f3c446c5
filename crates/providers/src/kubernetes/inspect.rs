//! The facts that an API server reports about itself and about us, for `farrier cluster check`.

use super::Cluster;
use super::client::ApiRequest;
use super::fault::{self, ApiCall};
use model::fault::{FaultCode, Result};
use model::time::Timestamp;
use serde::Deserialize;
use serde_json::json;

const SELF_REVIEWS: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";

/// The version of an API server, and what its clock showed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerVersion {
    pub version: String,
    pub clock: Option<Timestamp>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct VersionInfo {
    git_version: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct SelfReview {
    status: SelfReviewStatus,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct SelfReviewStatus {
    user_info: UserInfo,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct UserInfo {
    username: String,
}

impl Cluster {
    pub async fn version(&self) -> Result<ServerVersion> {
        let call = ApiCall::new("get", "path", "/version");
        let request = ApiRequest::get("/version");
        let sent = tokio::time::timeout(self.settings.deadline, self.client.send_dated(&request));
        let (text, clock) = match sent.await {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => {
                return Err(self.of_credential(fault::classify(&self.address, &call, &error)));
            }
            Err(_) => return Err(fault::late(&self.address, &call, self.settings.deadline)),
        };
        let info: VersionInfo = self.decode(&call, &text)?;
        Ok(ServerVersion { version: info.git_version, clock })
    }

    /// The name of our user. `None` where the server is too old to tell (before 1.28).
    pub async fn user(&self) -> Result<Option<String>> {
        let call = ApiCall::new("create", "selfsubjectreviews", "");
        let body = json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview" });
        let answer = self.send::<SelfReview>(&call, &ApiRequest::create(SELF_REVIEWS, &body)).await;
        match answer {
            Ok(review) => Ok(Some(review.status.user_info.username)),
            Err(fault) if fault.code == FaultCode::AnswerGarbled => Ok(None),
            Err(fault) => Err(fault),
        }
    }
}
