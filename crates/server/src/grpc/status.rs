//! The one place where what went wrong becomes a gRPC code.

use model::refusal::{Refusal, RefusalKind};
use std::collections::HashMap;
use store::StoreError;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

/// Who says so, in ErrorInfo.
const DOMAIN: &str = "farrier";

pub(super) fn refused(refusal: Refusal) -> Status {
    let code = match refusal.kind {
        RefusalKind::Invalid => Code::InvalidArgument,
        RefusalKind::NotFound => Code::NotFound,
        RefusalKind::Precondition => Code::FailedPrecondition,
        RefusalKind::Exists => Code::AlreadyExists,
        RefusalKind::Gone => Code::OutOfRange,
    };
    let mut details = ErrorDetails::new();
    let mut metadata = HashMap::new();
    if let Some(next) = &refusal.next {
        metadata.insert("next".to_string(), next.clone());
    }
    details.set_error_info(refusal.reason, DOMAIN, metadata);
    if let Some(field) = &refusal.field {
        details.add_bad_request_violation(field, &refusal.said);
    }
    let message = match &refusal.next {
        Some(next) => format!("{}; try: {next}", refusal.said),
        None => refusal.said,
    };
    Status::with_error_details(code, message, details)
}

pub(super) fn failed(error: StoreError) -> Status {
    match error {
        StoreError::Refused(refusal) => refused(refusal),
        StoreError::Unavailable(_) => {
            Status::unavailable(format!("{error}; nothing was lost, try again shortly"))
        }
        StoreError::Conflict => Status::aborted("somebody else changed it first; try again"),
        StoreError::Corrupt(_) => {
            tracing::error!(%error, "a stored record cannot be read");
            Status::internal(format!("{error}; see the server's log"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_its_code_and_says_what_to_do() {
        let table = [
            (Refusal::missing("request_id"), Code::InvalidArgument),
            (Refusal::not_found("machine", "m-1", "farrier list"), Code::NotFound),
            (Refusal::precondition("MACHINE_BUSY", "busy"), Code::FailedPrecondition),
            (Refusal::new(RefusalKind::Exists, "REQUEST_ID_REUSED", "used"), Code::AlreadyExists),
            (Refusal::new(RefusalKind::Gone, "CURSOR_GONE", "gone"), Code::OutOfRange),
        ];
        for (refusal, code) in table {
            let status = refused(refusal.clone());
            assert_eq!(status.code(), code);
            let details = status.get_error_details();
            assert_eq!(details.error_info().unwrap().reason, refusal.reason);
            if let Some(field) = &refusal.field {
                assert_eq!(details.bad_request().unwrap().field_violations[0].field, *field);
            }
            if let Some(next) = &refusal.next {
                assert!(status.message().contains(next.as_str()));
            }
        }
        assert_eq!(failed(StoreError::Unavailable("gone".into())).code(), Code::Unavailable);
        assert_eq!(failed(StoreError::Corrupt("x".into())).code(), Code::Internal);
    }
}
