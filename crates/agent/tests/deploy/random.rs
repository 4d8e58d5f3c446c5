//! Tests of the module `random` alone.

use agent::random::*;

#[test]
fn random_values_differ() {
    assert_eq!(new_session().unwrap().len(), 64);
    assert_ne!(new_session(), new_session());
    let one = new_uuid().unwrap();
    assert_ne!(Ok(one.clone()), new_uuid());
    assert_eq!(one.len(), 36);
    assert_eq!(one.as_bytes()[14], b'4');
    assert!(b"89ab".contains(&one.as_bytes()[19]));
}
