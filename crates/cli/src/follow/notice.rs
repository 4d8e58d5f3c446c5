//! The notices about a broken connection: one line when it breaks, one when it is back.

use crate::exit::Result;
use crate::output::Screen;
use crate::table::Tone;

const LOST: &str = "connection lost; waiting for the server…";
const BACK: &str = "connected again";

/// The notice of all feeds of one command: they share a connection.
#[derive(Debug, Default)]
pub struct ConnectionNotice {
    lost: bool,
}

impl ConnectionNotice {
    /// A feed broke. A second feed adds no line, nor does an attempt that fails.
    pub fn lost(&mut self, screen: &mut Screen) -> Result<()> {
        match std::mem::replace(&mut self.lost, true) {
            true => Ok(()),
            false => screen.print_toned_line(Tone::Dim, LOST),
        }
    }

    /// A feed has reconnected.
    pub fn back(&mut self, screen: &mut Screen) -> Result<()> {
        match std::mem::take(&mut self.lost) {
            true => screen.print_toned_line(Tone::Dim, BACK),
            false => Ok(()),
        }
    }
}
