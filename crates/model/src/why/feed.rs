//! Names the power shelves whose loss explains that a machine or a switch is off.

use super::Explanation;
use super::group::power_on;
use crate::effect::DesiredPower;
use crate::id::PowerShelfId;
use crate::power_shelf::PowerShelf;

/// The power shelves that feed a device, if all of them are off. `shelves` are those of its rack;
/// where its feeds are not known, any of them may feed it. Empty: one of them may be on.
pub fn dead_feeds(feeds: &[PowerShelfId], shelves: &[PowerShelf]) -> Vec<PowerShelfId> {
    let own = |shelf: &&PowerShelf| {
        feeds.is_empty() || feeds.iter().any(|id| id.as_str() == shelf.head.id)
    };
    let feeding: Vec<&PowerShelf> = shelves.iter().filter(own).collect();
    let is_off = |shelf: &&PowerShelf| shelf.facts.power == Some(DesiredPower::Off);
    match feeding.len() >= feeds.len() && feeding.iter().all(is_off) {
        true => feeding.iter().map(|shelf| PowerShelfId::trusted(&shelf.head.id)).collect(),
        false => Vec::new(),
    }
}

impl Explanation {
    /// Names the dead feeds of a device as the cause: nothing can be switched on before they are.
    pub fn blame_feeds(&mut self, device: &str, shelves: &[PowerShelfId]) {
        if shelves.is_empty() {
            return;
        }
        let names: Vec<&str> = shelves.iter().map(PowerShelfId::as_str).collect();
        let verb = if names.len() == 1 { "is" } else { "are" };
        let cause =
            format!("no power shelf that feeds {device} is on: {} {verb} off", names.join(", "));
        self.headline = format!("{}; {cause}", self.headline);
        let useless =
            [format!("farrier machine power {device} on"), format!("farrier reboot {device}")];
        self.next_commands.retain(|command| !useless.contains(command));
        self.next_commands.insert(0, power_on(&names));
    }
}
