//! The tasks that an agent knows. Each may be begun again from its beginning: a hook must be written so that it can be repeated, and
//! what the agent does itself looks first and does only what is still to do.

use super::hook::Hook;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Lets the work on the node come to its end.
    Drain,
    /// Ends the work on the node.
    Release,
    /// Leaves nothing in the memory of the GPUs.
    Scrub,
    /// Looks whether anything is left of whoever was here.
    Validate,
    /// Leaves nothing on the scratch disks.
    CleanupStorage,
    /// The agent's own end.
    Uninstall,
}

impl Kind {
    pub const ALL: [Self; 6] = [
        Self::Drain,
        Self::Release,
        Self::Scrub,
        Self::Validate,
        Self::CleanupStorage,
        Self::Uninstall,
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Drain => "node.drain",
            Self::Release => "node.release",
            Self::Scrub => "node.scrub",
            Self::Validate => "node.validate",
            Self::CleanupStorage => "node.cleanup_storage",
            Self::Uninstall => "node.uninstall",
        }
    }

    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == word)
    }

    /// The hook that does what only the site knows.
    pub const fn hook(self) -> Hook {
        match self {
            Self::Drain => Hook::Drain,
            Self::Release => Hook::Release,
            Self::Scrub => Hook::Scrub,
            Self::Validate => Hook::Validate,
            Self::CleanupStorage => Hook::CleanupStorage,
            Self::Uninstall => Hook::Uninstall,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hook_is_called_like_its_kind() {
        for kind in Kind::ALL {
            assert_eq!(Kind::parse(kind.as_str()), Some(kind));
            assert_eq!(format!("node.{}", kind.hook().as_str()), kind.as_str());
        }
        assert_eq!(Kind::parse("node.dance"), None);
        assert_eq!(Kind::parse("drain"), None);
    }
}
