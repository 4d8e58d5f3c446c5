//! The position of a watch, as an opaque string with which a client resumes.

use model::id::RunId;
use model::refusal::Refusal;
use store::Cursor;

/// The position of a watch: within the snapshot, or after an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WatchPosition {
    Snapshot { at: Cursor, before: Option<RunId> },
    After(Cursor),
}

impl WatchPosition {
    /// The cursor after which no event has been delivered.
    pub(crate) fn cursor(&self) -> Cursor {
        match self {
            Self::After(cursor) | Self::Snapshot { at: cursor, .. } => *cursor,
        }
    }

    /// The opaque string for the client.
    pub fn to_cursor_text(&self) -> String {
        match self {
            Self::After(cursor) => cursor.to_string(),
            Self::Snapshot { at, before: Some(run) } => format!("{at}~{run}"),
            Self::Snapshot { at, before: None } => format!("{at}~"),
        }
    }

    pub fn parse(name: &str) -> std::result::Result<Self, Refusal> {
        let wrong = || {
            let shown: String = name.chars().take(64).collect();
            Refusal::invalid(
                "cursor",
                format!("{shown:?} was not given out by this server"),
                "use the cursor of the last event you saw, or none to begin with a snapshot",
            )
        };
        match name.split_once('~') {
            None => Cursor::parse(name).map(Self::After).ok_or_else(wrong),
            Some((at, run)) => {
                let at = Cursor::parse(at).ok_or_else(wrong)?;
                let before = match run {
                    "" => None,
                    run => Some(RunId::parse(run).map_err(|_| wrong())?),
                };
                Ok(Self::Snapshot { at, before })
            }
        }
    }
}
