//! Requests that are refused because of the version that they were made from.

use model::version::check_version;

#[test]
fn a_request_made_from_another_version_is_refused() {
    for (current, expected, refused) in [
        (7, None, false),
        (7, Some(7), false),
        (7, Some(6), true),
        (7, Some(8), true),
        (7, Some(-1), true),
        (1, Some(1), false),
    ] {
        let checked = check_version("site-a", current, expected, "farrier site get site-a");
        let Err(refusal) = checked else {
            assert!(!refused, "{current} {expected:?}");
            continue;
        };
        assert!(refused, "{current} {expected:?}");
        assert_eq!(refusal.reason.as_str(), "VERSION_MOVED");
        let words = format!("site-a is at version {current} by now, and this change was made from");
        assert!(refusal.message.starts_with(&words), "{refusal}");
        assert!(refusal.message.ends_with(&format!("version {}", expected.unwrap())), "{refusal}");
        assert_eq!(refusal.next_command.as_deref(), Some("farrier site get site-a"));
    }
}
