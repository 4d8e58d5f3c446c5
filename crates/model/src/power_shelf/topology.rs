//! Finds the machines that lose power or the fabric when power shelves are switched off.
//!
//! If the feeds of a device are known, they decide. For the other devices it is not known which
//! shelf feeds which: if another shelf of the rack stays on, none of them counts as affected; if
//! none does, all of them do.

use super::{PowerShelf, PowerShelfState};
use crate::blast_radius::{AffectedMachine, PoweredDevice, loses_power};
use crate::effect::DesiredPower;
use crate::id::{PowerShelfId, RackId};
use crate::list_format::join_limited;
use crate::target::TargetKind;
use std::collections::BTreeSet;

/// The number of shelves that a rule names; the rest is counted.
const MAX_SHELVES_NAMED: usize = 4;
/// The number of devices that a rule names: more than most racks hold.
const MAX_DEVICES_NAMED: usize = 24;

/// The shelves and devices that a power change may concern.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PowerTopology {
    /// The shelves of the racks that are concerned, and those that feed `devices`.
    pub shelves: Vec<PowerShelf>,
    /// The machines and switches of these racks, and those that a shelf to switch feeds.
    pub devices: Vec<PoweredDevice>,
}

/// The consequences of switching shelves off.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PowerLoss {
    pub machines: Vec<AffectedMachine>,
    /// The machines that keep their power and lose the fabric.
    pub fabric: Vec<AffectedMachine>,
    /// The rules that decided, and the devices that each was used for.
    pub rules: Vec<String>,
    /// The shelves whose own controller may lose its power, by rack.
    pub controllers: Vec<Vec<String>>,
}

/// A device with the feeds that still exist, and whether it loses power.
struct JudgedDevice<'a> {
    device: &'a PoweredDevice,
    feeds: Vec<PowerShelfId>,
    lost: bool,
}

impl JudgedDevice<'_> {
    fn is_in(&self, rack: &RackId) -> bool {
        self.device.rack.as_ref() == Some(rack)
    }
}

impl PowerTopology {
    /// Computes the consequences of switching these shelves off.
    pub fn power_loss(&self, off: &[PowerShelfId]) -> PowerLoss {
        let mut loss = PowerLoss::default();
        let mut devices: Vec<JudgedDevice<'_>> =
            self.devices.iter().map(|one| self.of(one)).collect();
        self.judge_shelves_without_rack(off, &devices, &mut loss);
        let off_shelves = self.shelves.iter().filter(|shelf| off.contains(&shelf.id()));
        let racks: BTreeSet<&RackId> =
            off_shelves.filter_map(|shelf| shelf.head.rack.as_ref()).collect();
        for rack in racks {
            self.judge_rack(rack, off, &mut devices, &mut loss);
        }
        self.judge_feeds(off, &mut devices, &mut loss);
        add_fabric_loss(&devices, &mut loss);
        let lost = devices.iter().filter(|one| one.lost);
        loss.machines = lost.filter_map(|one| one.device.affected.clone()).collect();
        loss
    }

    /// Shelves that do not exist any more feed nothing.
    fn of<'a>(&self, device: &'a PoweredDevice) -> JudgedDevice<'a> {
        let known = |id: &&PowerShelfId| self.shelves.iter().any(|shelf| shelf.id() == **id);
        let feeds = device.feeds.iter().filter(known).cloned().collect();
        JudgedDevice { device, feeds, lost: false }
    }

    fn judge_shelves_without_rack(
        &self,
        off: &[PowerShelfId],
        devices: &[JudgedDevice<'_>],
        loss: &mut PowerLoss,
    ) {
        let alone = |shelf: &&PowerShelf| off.contains(&shelf.id()) && shelf.head.rack.is_none();
        for shelf in self.shelves.iter().filter(alone) {
            let id = &shelf.head.id;
            if !devices.iter().any(|one| one.feeds.contains(&shelf.id())) {
                loss.rules.push(format!("{id} stands in no rack: it is not known what it feeds"));
            }
            loss.controllers.push(vec![id.clone()]);
        }
    }

    /// The rule for the devices of a rack whose feeds are unknown.
    fn judge_rack(
        &self,
        rack: &RackId,
        off: &[PowerShelfId],
        devices: &mut [JudgedDevice<'_>],
        loss: &mut PowerLoss,
    ) {
        let shelves = self.shelves.iter().filter(|shelf| shelf.head.rack.as_ref() == Some(rack));
        let (off, others): (Vec<&PowerShelf>, Vec<&PowerShelf>) =
            shelves.partition(|shelf| off.contains(&shelf.id()));
        let all = off.len() + others.len();
        let feeding: Vec<&str> =
            others.iter().filter(|one| stays_on(one)).map(|one| one.head.id.as_str()).collect();
        if feeding.is_empty() {
            loss.controllers.push(off.iter().map(|shelf| shelf.head.id.clone()).collect());
        }
        let here = devices.iter_mut().filter(|one| one.is_in(rack));
        let (with, mut without): (Vec<_>, Vec<_>) = here.partition(|one| !one.feeds.is_empty());
        if !with.is_empty() && without.is_empty() {
            return;
        }
        let prefix = match with.is_empty() {
            true => String::new(),
            false => format!("without feeds ({}): ", names(without.iter().map(|one| &**one))),
        };
        if feeding.is_empty() {
            let who = if with.is_empty() { "all of its machines" } else { "they" };
            loss.rules.push(format!(
                "{prefix}{rack} has no other shelf that is known to stay on, so {who} would lose power"
            ));
            without.iter_mut().for_each(|one| one.lost = true);
            return;
        }
        let left = feeding.len();
        let stay = if left == 1 { "stays" } else { "stay" };
        let named = join_limited(&feeding, ", ", MAX_SHELVES_NAMED);
        loss.rules
            .push(format!("{prefix}{rack} keeps its power: {named} {stay} on, {left} of {all}"));
    }

    /// The rule for devices with feeds.
    fn judge_feeds(
        &self,
        off: &[PowerShelfId],
        devices: &mut [JudgedDevice<'_>],
        loss: &mut PowerLoss,
    ) {
        let on =
            |id: &PowerShelfId| self.shelves.iter().any(|one| one.id() == *id && stays_on(one));
        for one in devices.iter_mut().filter(|one| !one.feeds.is_empty()) {
            one.lost = loses_power(&one.feeds, off, on);
        }
        let fed = |one: &&JudgedDevice<'_>| one.feeds.iter().any(|id| off.contains(id));
        let given = || devices.iter().filter(|one| !one.feeds.is_empty());
        let groups = [
            (
                "without power",
                names(given().filter(|one| one.lost)),
                "no other shelf that feeds them is known to stay on",
            ),
            (
                "power is kept",
                names(given().filter(|one| !one.lost).filter(fed)),
                "another shelf that feeds them stays on",
            ),
            (
                "power is kept",
                names(given().filter(|one| !fed(one))),
                "none of these shelves feeds them",
            ),
        ];
        for (outcome, named, why) in groups.iter().filter(|(_, named, _)| !named.is_empty()) {
            loss.rules.push(format!("by feeds, {outcome}: {named} ({why})"));
        }
    }
}

/// A switch without power takes the fabric from the machines of its rack.
fn add_fabric_loss(devices: &[JudgedDevice<'_>], loss: &mut PowerLoss) {
    let switches = devices.iter().filter(|one| one.device.target.kind == TargetKind::Switch);
    let lost: Vec<&JudgedDevice<'_>> = switches.filter(|one| one.lost).collect();
    let racks: BTreeSet<&RackId> = lost.iter().filter_map(|one| one.device.rack.as_ref()).collect();
    for rack in racks {
        let machines = devices.iter().filter(|one| !one.lost && one.is_in(rack));
        let machines: Vec<AffectedMachine> =
            machines.filter_map(|one| one.device.affected.clone()).collect();
        if machines.is_empty() {
            continue;
        }
        let named = names(lost.iter().copied().filter(|one| one.is_in(rack)));
        loss.rules.push(format!(
            "the other machines of {rack} would lose the fabric, because of {named}"
        ));
        loss.fabric.extend(machines);
    }
}

fn names<'a, 'b: 'a>(devices: impl Iterator<Item = &'a JudgedDevice<'b>>) -> String {
    let names: Vec<&str> = devices.map(|one| one.device.target.as_str()).collect();
    join_limited(&names, ", ", MAX_DEVICES_NAMED)
}

/// True if a shelf keeps feeding its devices: it reports its power as on, and no operation is about
/// to change that.
pub(crate) fn stays_on(shelf: &PowerShelf) -> bool {
    let asked_off =
        shelf.maintenance_requested.as_ref().is_some_and(|one| one.operation == DesiredPower::Off);
    let off_under_way =
        matches!(shelf.state, PowerShelfState::Maintenance { operation: DesiredPower::Off });
    let others = shelf.head.active_run.is_some() && shelf.head.active_run != shelf.run;
    let answers = shelf.observed.as_ref().is_none_or(|observed| observed.reachable);
    shelf.facts.power == Some(DesiredPower::On)
        && answers
        && matches!(shelf.state, PowerShelfState::Ready)
        && !asked_off
        && !off_under_way
        && !others
        && !shelf.head.deleted
}
