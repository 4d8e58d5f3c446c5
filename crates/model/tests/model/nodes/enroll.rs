//! Enrollment with a token: once, in time, and on the machine that it was issued for.

use crate::support::at;
use model::id::NodeId;
use model::machine::MachineSpec;
use model::node::enroll::{EnrollingAgent, EnrollmentRefusal, EnrollmentToken};

fn ticket(used_by: Option<&str>) -> EnrollmentToken {
    EnrollmentToken {
        node: NodeId::trusted("node-1"),
        issued_at: at(0),
        expires_at: at(100),
        used_by: used_by.map(String::from),
    }
}

fn machine(serial: &str, macs: &[&str]) -> MachineSpec {
    let mac_addresses = macs.iter().map(|mac| mac.to_string()).collect();
    MachineSpec { serial: serial.into(), mac_addresses, ..MachineSpec::default() }
}

fn applicant(serial: &str, macs: &[&str]) -> EnrollingAgent {
    EnrollingAgent {
        session: "s1".into(),
        hostname: "gpu-1".into(),
        serial: serial.into(),
        macs: macs.iter().map(|mac| mac.to_string()).collect(),
        version: "1".into(),
    }
}

#[test]
fn a_token_works_once_and_in_time() {
    let (requester, known) = (applicant("", &[]), machine("", &[]));
    for (used_by, second, expected) in [
        (None, 0, Ok(())),
        (None, 99, Ok(())),
        // It expires at `expires_at` exactly.
        (None, 100, Err(EnrollmentRefusal::TokenExpired)),
        (None, 101, Err(EnrollmentRefusal::TokenExpired)),
        // The answer may have been lost, however long ago.
        (Some("s1"), 1, Ok(())),
        (Some("s1"), 500, Ok(())),
        (Some("s2"), 1, Err(EnrollmentRefusal::TokenUsed)),
        (Some("s2"), 500, Err(EnrollmentRefusal::TokenUsed)),
    ] {
        let admitted = ticket(used_by).admit(&requester, &known, at(second));
        let used = ticket(Some("s1"));
        assert_eq!(admitted, expected.map(|()| used), "{used_by:?} at {second}");
    }
}

#[test]
fn a_token_is_for_one_machine() {
    let macs: &[&str] = &["aa:bb:cc:00:00:01", "aa:bb:cc:00:00:02"];
    let (differs, missing) =
        (Err(EnrollmentRefusal::IdentityDiffers), Err(EnrollmentRefusal::IdentityMissing));
    let other: &[&str] = &["aa:bb:cc:00:00:03"];
    for (requester, known, expected) in [
        (applicant("SN1", macs), machine("SN1", macs), Ok(())),
        (applicant("sn1 ", &[]), machine("SN1", &[]), Ok(())),
        (applicant("SN2", macs), machine("SN1", macs), differs),
        // A value that one side does not know is not compared.
        (applicant("SN1", macs), machine("", &[]), Ok(())),
        (applicant("", &[]), machine("", &[]), Ok(())),
        (applicant("", &["AA:BB:CC:00:00:02"]), machine("SN1", macs), Ok(())),
        (applicant("SN1", &[]), machine("SN1", macs), Ok(())),
        (applicant("", other), machine("SN1", macs), differs),
        (applicant("SN1", other), machine("SN1", macs), differs),
        (applicant("", &[other[0], macs[0]]), machine("", macs), Ok(())),
        // If they are known, an agent cannot leave them out to avoid the comparison.
        (applicant("", &[]), machine("SN1", macs), missing),
        (applicant(" ", &[]), machine("SN1", &[]), missing),
        (applicant("", &[]), machine("", macs), missing),
        (applicant("", macs), machine("SN1", &[]), missing),
        (applicant("SN1", &[]), machine("", macs), missing),
    ] {
        let admitted = ticket(None).admit(&requester, &known, at(1)).map(drop);
        assert_eq!(admitted, expected, "{requester:?} on {known:?}");
    }
}

#[test]
fn everybody_is_told_why() {
    let all = [
        (EnrollmentRefusal::TokenUnknown, "token-unknown"),
        (EnrollmentRefusal::TokenUsed, "token-used"),
        (EnrollmentRefusal::TokenExpired, "token-expired"),
        (EnrollmentRefusal::IdentityDiffers, "identity-differs"),
        (EnrollmentRefusal::IdentityMissing, "identity-missing"),
        (EnrollmentRefusal::SessionUnknown, "session-unknown"),
        (EnrollmentRefusal::NodeDeleted, "node-deleted"),
        (EnrollmentRefusal::TaskOver, "task-over"),
    ];
    for (denied, name) in all {
        assert_eq!(denied.as_str(), name);
        assert!(!denied.message().is_empty());
    }
    for denied in [EnrollmentRefusal::TokenUsed, EnrollmentRefusal::TokenExpired] {
        assert!(denied.message().contains("farrier node bootstrap --reissue"), "{denied:?}");
    }
}
