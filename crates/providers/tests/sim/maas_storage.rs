use providers::maas::*;

#[test]
fn layouts_are_read_by_their_words() {
    for layout in StorageLayout::ALL {
        assert_eq!(StorageLayout::parse(layout.as_str()), Some(layout));
    }
    assert_eq!(StorageLayout::parse("zfs"), None);
}
