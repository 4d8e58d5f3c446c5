//! Windows and freezes: when operations may start.

mod weekly;
mod zone;

pub use weekly::{WeeklyWindows, WindowState};
pub use zone::{Zone, ZonedInstant};
