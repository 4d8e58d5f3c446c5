//! The position of a watch, as an opaque string with which a client resumes.

use model::id::ObjectId;
use model::refusal::Refusal;
use store::Cursor;

/// The position of a watch: within the snapshot, or after an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WatchPosition {
    /// `last`: the last object that was delivered.
    Snapshot {
        at: Cursor,
        last: Option<ObjectId>,
    },
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
            Self::Snapshot { at, last: Some(id) } => format!("{at}~{id}"),
            Self::Snapshot { at, last: None } => format!("{at}~"),
        }
    }

    pub fn parse(name: &str) -> std::result::Result<Self, Refusal> {
        let wrong = || foreign(name);
        match name.split_once('~') {
            None => Cursor::parse(name).map(Self::After).ok_or_else(wrong),
            Some((at, last)) => {
                let at = Cursor::parse(at).ok_or_else(wrong)?;
                let last = match last {
                    "" => None,
                    id => Some(ObjectId::parse(id).map_err(|_| wrong())?),
                };
                Ok(Self::Snapshot { at, last })
            }
        }
    }

    /// Refuses a position in the snapshot of another kind of object.
    pub(crate) fn check_id(
        &self,
        is_id: impl Fn(&str) -> bool,
    ) -> std::result::Result<(), Refusal> {
        match self {
            Self::Snapshot { last: Some(id), .. } if !is_id(id.as_str()) => {
                Err(foreign(&self.to_cursor_text()))
            }
            Self::Snapshot { .. } | Self::After(_) => Ok(()),
        }
    }
}

fn foreign(name: &str) -> Refusal {
    let shown: String = name.chars().take(64).collect();
    Refusal::invalid(
        "cursor",
        format!(
            "{shown:?} was not given out by this server, or belongs to a watch of another kind"
        ),
        "use the cursor of the last event you saw, or none to begin with a snapshot",
    )
}
