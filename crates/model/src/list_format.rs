//! Formatting of lists in messages.

/// Joins the first `most` items and counts the rest: `a, b, and 3 more`.
pub fn join_limited<S: AsRef<str>>(all: &[S], between: &str, most: usize) -> String {
    let named: Vec<&str> = all.iter().take(most).map(AsRef::as_ref).collect();
    let named = named.join(between);
    match all.len().saturating_sub(most) {
        0 => named,
        more => format!("{named}{between}and {more} more"),
    }
}
