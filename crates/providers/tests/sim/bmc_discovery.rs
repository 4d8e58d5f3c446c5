use model::fault::{Fault, FaultCode};
use model::machine::matcher::DiscoveredMachine;
use providers::bmc_discovery::*;

fn fault() -> Fault {
    Fault::new(FaultCode::NotSupported, "no")
}

#[test]
fn checks_that_were_not_made_are_listed() {
    let mut report = BmcTestReport::default();
    assert!(report.require(BmcCheck::Name, Ok("h".into())));
    assert!(!report.require(BmcCheck::Port, Err(Fault::new(FaultCode::BmcUnreachable, "closed"))));
    report.add_missing_checks();
    assert_eq!(report.findings.len(), BmcCheck::ALL.len());
    let login = &report.findings[5];
    assert_eq!((login.check, login.outcome), (BmcCheck::Login, CheckOutcome::NotTried));
    assert_eq!(login.message, "port comes first");
    assert!(!report.usable());
    let message = "Farrier cannot work with this BMC: closed (bmc-unreachable)";
    assert_eq!(report.summary(), message);
}

#[test]
fn the_summary_lists_the_abilities() {
    let mut report =
        BmcTestReport { chosen: Some(DiscoveredMachine::default()), ..BmcTestReport::default() };
    assert!(!report.usable());
    assert_eq!(report.summary(), "Farrier can do nothing with this BMC");
    report.record(BmcCheck::Power, Ok("On".into()));
    assert!(report.usable());
    assert_eq!(report.summary(), "Farrier can see whether it is on");
    report.record(BmcCheck::Bios, Err(fault()));
    report.add_missing_checks();
    let message = "Farrier can see whether it is on; it cannot read and set its BIOS";
    assert_eq!(report.summary(), message);
    assert_eq!(report.findings[0].message, "there is no such thing here");
}
