use providers::ssh::*;

#[test]
fn a_folder_is_a_plain_absolute_path() {
    assert_eq!(Folder::parse("/var/lib/jobs/").unwrap().as_str(), "/var/lib/jobs");
    for bad in ["", "/", "jobs", "/a b", "/a'b", "/a$b", "/a/../b", "/a\nb"] {
        assert!(Folder::parse(bad).is_err(), "{bad:?}");
    }
}
