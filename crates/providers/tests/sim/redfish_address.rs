use model::fault::FaultCode;
use providers::redfish::*;

#[test]
fn a_path_may_name_the_system() {
    for (text, shown, system) in [
        ("10.0.0.5", "https://10.0.0.5", None),
        ("https://h:8443/redfish/v1/", "https://h:8443", None),
        ("h/redfish/v1/Systems/System.Embedded.1/", "https://h", Some("System.Embedded.1")),
    ] {
        let address = BmcAddress::parse(text).unwrap();
        assert_eq!(address.to_string(), shown, "{text}");
        let system = system.map(|id| format!("/redfish/v1/Systems/{id}"));
        assert_eq!(address.system, system, "{text}");
    }
}

#[test]
fn an_invalid_address_is_refused() {
    for text in ["", "ftp://h", "h/other", "h/redfish/v1/Systems/1/Bios"] {
        let fault = BmcAddress::parse(text).unwrap_err();
        assert_eq!(fault.code, FaultCode::BmcUnreachable, "{text}");
    }
}

#[test]
fn a_password_in_an_address_is_refused_and_not_repeated() {
    let fault = BmcAddress::parse("https://root:calvin@10.0.0.5").unwrap_err();
    assert!(!fault.message.contains("calvin"), "{fault}");
    assert!(fault.message.contains("credential"), "{fault}");
}
