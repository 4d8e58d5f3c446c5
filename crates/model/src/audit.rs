//! The audit log: who asked for what, and how the request ended.
//!
//! An entry is written in the commit of the request that it describes. Entries are chained
//! afterwards: each seal depends on the seal before it, so a changed or missing entry is found.

use crate::access::{AuthMethod, Principal};
use crate::time::Timestamp;

/// How the calls of sign-ins begin. Browsers sign in at pages, and not by calls of the API.
pub const SIGN_IN_CALLS: &str = "console/";

/// The number of objects that an entry names.
pub const MAX_OBJECTS: usize = 100;

/// Outcome of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AuditOutcome {
    Accepted,
    /// The word of the reason, and how often it happened since the entry before.
    Refused {
        reason: String,
        count: u64,
    },
}

/// One entry, as it is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditEntry {
    pub at: Timestamp,
    /// Empty: the caller was not known.
    pub user: String,
    /// The word of the method; empty: the caller was not known.
    pub method: String,
    pub token_id: String,
    /// The address of the client.
    pub peer: String,
    /// `farrier.v1.Service/Method`, or a sign-in.
    pub call: String,
    /// The objects that the request names.
    pub objects: Vec<String>,
    /// The reason or the reference that the client gave.
    pub reference: String,
    /// The name that the client gave itself. It proves nothing.
    pub remark: String,
    pub outcome: AuditOutcome,
    /// The first operation that the request started.
    pub operation_id: String,
}

impl AuditEntry {
    pub fn of(principal: Option<&Principal>, call: &str, at: Timestamp) -> Self {
        let method = principal.map(|one| one.method).map(AuthMethod::as_str);
        Self {
            at,
            user: principal.map(|one| one.user.clone()).unwrap_or_default(),
            method: method.unwrap_or_default().to_string(),
            token_id: principal.and_then(|one| one.token_id.clone()).unwrap_or_default(),
            peer: String::new(),
            call: call.to_string(),
            objects: Vec::new(),
            reference: String::new(),
            remark: String::new(),
            outcome: AuditOutcome::Accepted,
            operation_id: String::new(),
        }
    }

    /// The text that is sealed: every field with its length, so that no two entries have the same.
    pub fn sealed_text(&self, seq: i64) -> String {
        let (reason, count) = match &self.outcome {
            AuditOutcome::Accepted => ("", 1),
            AuditOutcome::Refused { reason, count } => (reason.as_str(), *count),
        };
        let objects = self.objects.join("\n");
        let numbers = [seq.to_string(), self.at.as_micros().to_string(), count.to_string()];
        let texts = [
            self.user.as_str(),
            &self.method,
            &self.token_id,
            &self.peer,
            &self.call,
            &objects,
            &self.reference,
            &self.remark,
            reason,
            &self.operation_id,
        ];
        let fields = numbers.iter().map(String::as_str).chain(texts);
        fields.map(|field| format!("{}:{field}", field.len())).collect::<Vec<_>>().join(",")
    }
}

/// An entry as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredAuditEntry {
    pub seq: i64,
    pub entry: AuditEntry,
    /// Its place in the chain and its seal. None: it is not sealed yet.
    pub sealed: Option<AuditSeal>,
}

/// A place in the chain with its seal. Kept elsewhere, it is a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditSeal {
    pub position: i64,
    pub seal: String,
}

/// The result of a check of the chain.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AuditCheck {
    /// The last entry of the chain.
    pub head: Option<AuditSeal>,
    pub unsealed: i64,
    /// The first problems, in the order of the chain.
    pub problems: Vec<String>,
}

/// The number of problems that a check lists.
const MAX_PROBLEMS: usize = 20;

impl AuditCheck {
    fn add(&mut self, problem: String) {
        if self.problems.len() < MAX_PROBLEMS {
            self.problems.push(problem);
        }
    }

    /// Checks the next entries of the chain. `seal` computes the seal of an entry after another
    /// one.
    pub fn extend(&mut self, entries: &[StoredAuditEntry], seal: impl Fn(&str, &str) -> String) {
        for one in entries {
            let Some(stored) = &one.sealed else { continue };
            let (position, before) = match &self.head {
                Some(head) => (head.position, head.seal.clone()),
                None => (0, String::new()),
            };
            if stored.position != position + 1 {
                self.add(format!(
                    "entries {} to {} are missing",
                    position + 1,
                    stored.position - 1
                ));
            } else if seal(&before, &one.entry.sealed_text(one.seq)) != stored.seal {
                self.add(format!("entry {} (seq {}) was changed", stored.position, one.seq));
            }
            self.head = Some(stored.clone());
        }
    }

    /// Compares the chain with its recorded end, and with a checkpoint that was kept elsewhere.
    pub fn finish(&mut self, recorded: Option<&AuditSeal>) {
        let end = self.head.as_ref().map_or(0, |head| head.position);
        match recorded {
            Some(recorded) if recorded.position > end => {
                self.add(format!("entries {} to {} are missing", end + 1, recorded.position));
            }
            Some(_) | None => {}
        }
    }

    /// Compares one entry of the chain with a checkpoint. `found` is the seal at its position.
    pub fn compare(&mut self, checkpoint: &AuditSeal, found: Option<&str>) {
        match found {
            Some(seal) if seal == checkpoint.seal => {}
            Some(_) => self
                .add(format!("entry {} has another seal than the checkpoint", checkpoint.position)),
            None => self.add(format!("entry {} of the checkpoint is missing", checkpoint.position)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(user: &str) -> AuditEntry {
        let entry = AuditEntry::of(None, "farrier.v1.A/B", Timestamp::from_micros(7));
        AuditEntry { user: user.into(), ..entry }
    }

    /// A seal that is easy to compute and depends on everything.
    fn seal(before: &str, text: &str) -> String {
        let sum = before
            .bytes()
            .chain(text.bytes())
            .fold(7_u64, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(byte)));
        format!("{sum:x}")
    }

    fn chain(users: &[&str]) -> Vec<StoredAuditEntry> {
        let mut before = String::new();
        (1..)
            .zip(users)
            .map(|(position, user)| {
                let entry = entry(user);
                before = seal(&before, &entry.sealed_text(position));
                let sealed = Some(AuditSeal { position, seal: before.clone() });
                StoredAuditEntry { seq: position, entry, sealed }
            })
            .collect()
    }

    fn check(entries: &[StoredAuditEntry], recorded: Option<i64>) -> Vec<String> {
        let mut check = AuditCheck::default();
        check.extend(entries, seal);
        let recorded = recorded.map(|position| AuditSeal { position, seal: String::new() });
        check.finish(recorded.as_ref());
        check.problems
    }

    #[test]
    fn a_changed_missing_or_truncated_entry_is_found() {
        let whole = chain(&["ada", "bob", "eve", "zoe"]);
        assert_eq!(check(&whole, Some(4)), Vec::<String>::new());
        let mut changed = whole.clone();
        changed[1].entry.user = "mallory".into();
        assert_eq!(check(&changed, Some(4)), ["entry 2 (seq 2) was changed"]);
        let mut missing = whole.clone();
        missing.remove(2);
        assert_eq!(check(&missing, Some(4)), ["entries 3 to 3 are missing"]);
        assert_eq!(check(&whole[..2], Some(4)), ["entries 3 to 4 are missing"]);
        assert_eq!(check(&[], Some(1)), ["entries 1 to 1 are missing"]);
    }

    #[test]
    fn a_checkpoint_finds_a_chain_that_was_made_again() {
        let seal = AuditSeal { position: 2, seal: "aa".into() };
        for (found, problems) in [(Some("aa"), 0), (Some("bb"), 1), (None, 1)] {
            let mut check = AuditCheck::default();
            check.compare(&seal, found);
            assert_eq!(check.problems.len(), problems, "{found:?}");
        }
    }

    #[test]
    fn the_sealed_text_tells_fields_apart() {
        let one = AuditEntry { user: "a".into(), method: "bc".into(), ..entry("") };
        let other = AuditEntry { user: "ab".into(), method: "c".into(), ..entry("") };
        assert_ne!(one.sealed_text(1), other.sealed_text(1));
        assert_ne!(one.sealed_text(1), one.sealed_text(2));
    }
}
