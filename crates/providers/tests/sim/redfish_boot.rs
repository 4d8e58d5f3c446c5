use providers::redfish::*;

#[test]
fn an_override_selects_its_source_unless_disabled() {
    let shown =
        |source, span| BootOverride { source, target: String::new(), span: Some(span), mode: None };
    for source in [BootSource::Pxe, BootSource::Hdd, BootSource::Cd] {
        assert!(shown(Some(source), BootSpan::Once).boots_from(source));
        assert!(shown(Some(source), BootSpan::Continuous).boots_from(source));
        assert!(!shown(Some(source), BootSpan::Disabled).boots_from(source));
        assert!(shown(Some(source), BootSpan::Disabled).boots_from(BootSource::None));
        assert!(!shown(Some(source), BootSpan::Once).boots_from(BootSource::None));
    }
    assert!(shown(Some(BootSource::None), BootSpan::Once).boots_from(BootSource::None));
    assert!(!shown(None, BootSpan::Once).boots_from(BootSource::Pxe));
}
