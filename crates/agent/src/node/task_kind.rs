//! The kinds of task. Each can be repeated from its beginning: hooks must be written so that they
//! can be repeated, and the agent's own part checks first and does only what is left to do.

use super::hook::Hook;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TaskKind {
    /// Waits for the workload on the node to end.
    Drain,
    /// Ends the workload on the node.
    Release,
    /// Clears the memory of the GPUs.
    Scrub,
    /// Checks that nothing of the last user is left.
    Validate,
    /// Empties the scratch directories.
    CleanupStorage,
    /// Uninstalls the agent.
    Uninstall,
}

impl TaskKind {
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

    /// The site's hook for this kind.
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
    fn hooks_are_named_after_task_kinds() {
        for kind in TaskKind::ALL {
            assert_eq!(TaskKind::parse(kind.as_str()), Some(kind));
            assert_eq!(format!("node.{}", kind.hook().as_str()), kind.as_str());
        }
        assert_eq!(TaskKind::parse("node.dance"), None);
        assert_eq!(TaskKind::parse("drain"), None);
    }
}
