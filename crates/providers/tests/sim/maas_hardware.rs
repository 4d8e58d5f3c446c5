use providers::maas::*;

#[test]
fn an_interface_is_read_with_its_links() {
    let read: Interface = serde_json::from_str(
        r#"{"id": 10, "name": "ens3", "type": "physical", "mac_address": "52:54:00:15:36:f2", "product": null,
            "enabled": true, "effective_mtu": 1500, "params": "", "parents": [], "vlan": null,
            "links": [{"id": 7, "mode": "auto", "subnet": {"id": 2, "cidr": "10.0.0.0/24", "gateway_ip": null}},
                      {"id": 8, "mode": "link_up"}]}"#,
    )
    .unwrap();
    assert_eq!((read.id, read.effective_mtu, read.product.as_str()), (10, 1500, ""));
    assert_eq!(
        read.links.iter().map(|link| link.mode).collect::<Vec<_>>(),
        [Some(LinkMode::Auto), Some(LinkMode::LinkUp)]
    );
    assert_eq!(read.links[0].subnet.as_ref().unwrap().cidr, "10.0.0.0/24");
    let strange: Link = serde_json::from_str(r#"{"id": 1, "mode": "teleport"}"#).unwrap();
    assert_eq!(strange.mode, None);
}
