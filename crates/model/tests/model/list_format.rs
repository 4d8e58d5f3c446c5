//! Lists that name only a limited number of entries.

use model::list_format::join_limited;

#[test]
fn what_is_not_named_is_counted() {
    let table = [(0, ""), (1, "a"), (2, "a, b"), (3, "a, b, and 1 more")];
    let all = ["a", "b", "c"];
    for (count, message) in table {
        assert_eq!(join_limited(&all[..count], ", ", 2), message);
    }
}
