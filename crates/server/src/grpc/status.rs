//! The only place where an error becomes a gRPC code.

use engine::machine::hardware::HardwareError;
use model::fault::{Fault, FaultClass, FaultCode};
use model::refusal::{Refusal, RefusalKind};
use std::collections::HashMap;
use std::time::Duration;
use store::StoreError;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

/// The domain of ErrorInfo.
const DOMAIN: &str = "farrier";
/// The reason of a request that lost a race.
const CONFLICT: &str = "CONFLICT";

/// The delay after which a client should try again.
const RETRY_CONFLICT: Duration = Duration::from_millis(100);
const RETRY_DATABASE: Duration = Duration::from_secs(1);
const RETRY_DEVICE: Duration = Duration::from_secs(5);

/// Turns the error of a result into a gRPC status.
pub(crate) trait OrStatus<T> {
    fn or_status(self) -> Result<T, Status>;
}

impl<T> OrStatus<T> for Result<T, Refusal> {
    fn or_status(self) -> Result<T, Status> {
        self.map_err(refusal_status)
    }
}

impl<T> OrStatus<T> for Result<T, StoreError> {
    fn or_status(self) -> Result<T, Status> {
        self.map_err(store_error_status)
    }
}

impl<T> OrStatus<T> for Result<T, HardwareError> {
    fn or_status(self) -> Result<T, Status> {
        self.map_err(hardware_error_status)
    }
}

pub(crate) fn refusal_status(refusal: Refusal) -> Status {
    let code = match refusal.kind() {
        RefusalKind::Invalid => Code::InvalidArgument,
        RefusalKind::NotFound => Code::NotFound,
        RefusalKind::Precondition => Code::FailedPrecondition,
        RefusalKind::Exists => Code::AlreadyExists,
        RefusalKind::Gone => Code::OutOfRange,
        RefusalKind::Unauthenticated => Code::Unauthenticated,
        RefusalKind::Denied => Code::PermissionDenied,
        RefusalKind::Exhausted => Code::ResourceExhausted,
    };
    let mut details = ErrorDetails::new();
    let mut metadata = HashMap::new();
    if let Some(next) = &refusal.next_command {
        metadata.insert("next".to_string(), next.clone());
    }
    let gate = refusal.gate_word().unwrap_or_default();
    if !gate.is_empty() {
        metadata.insert("gate".to_string(), gate.clone());
    }
    if let Some(approval) = &refusal.approval {
        metadata.insert("approval_id".to_string(), approval.id.clone());
        metadata.insert("request_id".to_string(), approval.request_id.clone());
    }
    details.set_error_info(refusal.reason.as_str(), DOMAIN, metadata);
    if let Some(field) = &refusal.field {
        details.add_bad_request_violation(field, &refusal.message);
    }
    if refusal.kind() == RefusalKind::Precondition {
        // The type is the rule that refuses, the subject its gate if it can be overridden. The
        // message names the objects.
        details.add_precondition_failure_violation(refusal.reason.as_str(), gate, &refusal.message);
    }
    let message = match &refusal.next_command {
        Some(next) => format!("{}; try: {next}", refusal.message),
        None => refusal.message,
    };
    Status::with_error_details(code, message, details)
}

/// A fault of the hardware. Its class decides whether a retry may help.
pub(super) fn fault_status(fault: Fault) -> Status {
    let code = match fault.class() {
        FaultClass::Retryable => Code::Unavailable,
        FaultClass::NeedsIntervention | FaultClass::Rejected => Code::FailedPrecondition,
        FaultClass::Bug => Code::Internal,
    };
    let next = format!("farrier fault {}", fault.code.as_str());
    let mut details = ErrorDetails::new();
    let metadata = HashMap::from([("next".to_string(), next.clone())]);
    details.set_error_info(fault.code.as_str(), DOMAIN, metadata);
    if fault.class() == FaultClass::Retryable {
        details.set_retry_info(Some(RETRY_DEVICE));
    }
    Status::with_error_details(code, format!("{fault}; try: {next}"), details)
}

pub(super) fn hardware_error_status(missed: HardwareError) -> Status {
    match missed {
        HardwareError::Store(error) => store_error_status(error),
        HardwareError::Fault(fault) => fault_status(fault),
    }
}

pub(super) fn store_error_status(error: StoreError) -> Status {
    match error {
        StoreError::Refused(refusal) => refusal_status(refusal),
        StoreError::Unavailable(_) => {
            let message = format!("{error}; nothing was lost, try again shortly");
            let reason = FaultCode::DatabaseUnreachable.as_str();
            retryable_status(Code::Unavailable, reason, message, RETRY_DATABASE)
        }
        StoreError::Conflict => {
            let message = "it was changed at the same moment; try again".to_string();
            retryable_status(Code::Aborted, CONFLICT, message, RETRY_CONFLICT)
        }
        StoreError::Corrupt(_) => {
            tracing::error!(%error, "a stored record cannot be read");
            let mut details = ErrorDetails::new();
            let reason = FaultCode::RecordUnreadable.as_str();
            details.set_error_info(reason, DOMAIN, HashMap::new());
            let message = format!("{error}; see all such rows: farrier db check");
            Status::with_error_details(Code::Internal, message, details)
        }
    }
}

/// A status with the delay after which the client should try again.
pub(super) fn retryable_status(
    code: Code,
    reason: &str,
    message: String,
    delay: Duration,
) -> Status {
    let mut details = ErrorDetails::new();
    details.set_error_info(reason, DOMAIN, HashMap::new());
    details.set_retry_info(Some(delay));
    Status::with_error_details(code, message, details)
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::gate::Gate;
    use model::refusal::Reason;

    #[test]
    fn refusals_map_to_grpc_codes() {
        let table = [
            (Refusal::missing("request_id"), Code::InvalidArgument),
            (Refusal::not_found("machine", "m-1", "farrier list"), Code::NotFound),
            (Refusal::new(Reason::MachineBusy, "busy"), Code::FailedPrecondition),
            (
                Refusal::new(Reason::HealthPrevents, "ill").at_gate(Gate::Health),
                Code::FailedPrecondition,
            ),
            (Refusal::new(Reason::RequestIdReused, "used"), Code::AlreadyExists),
            (Refusal::new(Reason::CursorGone, "gone"), Code::OutOfRange),
        ];
        for (refusal, code) in table {
            let status = refusal_status(refusal.clone());
            assert_eq!(status.code(), code);
            let details = status.get_error_details();
            assert_eq!(details.error_info().unwrap().reason, refusal.reason.as_str());
            if let Some(field) = &refusal.field {
                assert_eq!(details.bad_request().unwrap().field_violations[0].field, *field);
            }
            if let Some(next) = &refusal.next_command {
                assert!(status.message().contains(next.as_str()));
            }
            let failed = details.precondition_failure();
            assert_eq!(failed.is_some(), code == Code::FailedPrecondition);
            assert!(
                failed.is_none_or(|failed| failed.violations[0].r#type == refusal.reason.as_str())
            );
            let gate = refusal.gate.map(Gate::as_str);
            let info = details.error_info().unwrap();
            assert_eq!(info.metadata.get("gate").map(String::as_str), gate);
            let subject = failed.map(|failed| failed.violations[0].subject.as_str());
            assert_eq!(subject.filter(|subject| !subject.is_empty()), gate);
        }
    }

    #[test]
    fn errors_of_the_database_say_when_to_try_again() {
        for (error, code, reason, retried) in [
            (
                StoreError::Unavailable("gone".into()),
                Code::Unavailable,
                "database-unreachable",
                true,
            ),
            (StoreError::Conflict, Code::Aborted, "CONFLICT", true),
            (StoreError::Corrupt("x".into()), Code::Internal, "record-unreadable", false),
        ] {
            let status = store_error_status(error);
            assert_eq!(status.code(), code);
            let details = status.get_error_details();
            assert_eq!(details.error_info().unwrap().reason, reason);
            assert_eq!(details.retry_info().is_some(), retried);
        }
    }

    #[test]
    fn hardware_faults_map_to_grpc_codes() {
        for (code, expected) in [
            (model::fault::FaultCode::BmcUnreachable, Code::Unavailable),
            (model::fault::FaultCode::LoginRefused, Code::FailedPrecondition),
            (model::fault::FaultCode::NotSupported, Code::FailedPrecondition),
            (model::fault::FaultCode::ProtocolBroken, Code::Internal),
        ] {
            let status = hardware_error_status(HardwareError::Fault(Fault::new(code, "smoke")));
            assert_eq!(status.code(), expected);
            let page = format!("smoke ({0}); try: farrier fault {0}", code.as_str());
            assert_eq!(status.message(), page);
            assert_eq!(status.get_error_details().error_info().unwrap().reason, code.as_str());
        }
    }
}
