use model::fault::FaultCode;
use providers::http_client::*;

#[test]
fn a_fingerprint_is_read_as_tools_show_it() {
    let shown = format!("sha256:{}", "0a".repeat(32));
    let fingerprint: Fingerprint = shown.parse().unwrap();
    assert_eq!(fingerprint.to_string(), shown);
    let colons = vec!["0A"; 32].join(":");
    assert_eq!(colons.parse(), Ok(fingerprint));
    for wrong in ["", "sha256:", "0a", &"zz".repeat(32), &"é".repeat(32)] {
        assert_eq!(wrong.parse::<Fingerprint>(), Err(InvalidFingerprint), "{wrong}");
    }
}

#[test]
fn an_authority_must_be_in_the_file() {
    for pem in ["", "not pem", "-----BEGIN CERTIFICATE-----\n!!\n-----END CERTIFICATE-----\n"] {
        let fault = Trust::ca_from_pem(pem.as_bytes()).unwrap_err();
        assert_eq!(fault.code, FaultCode::IdentityUntrusted, "{pem}");
    }
}
