//! The index of feeds: the devices of a power shelf.

use crate::harness::Db;
use model::id::{MachineId, PowerShelfId};
use model::target::{TargetId, TargetKind};

on_both!(devices_are_found_by_the_shelf_that_feeds_them,);

async fn devices_are_found_by_the_shelf_that_feeds_them(db: Db) {
    let shelves = |ids: &[&str]| -> Vec<PowerShelfId> {
        ids.iter().map(|id| PowerShelfId::trusted(*id)).collect()
    };
    let (machine, switch) =
        (TargetId::from(&MachineId::trusted("m-1")), TargetId::new(TargetKind::Switch, "sw-1"));
    for (device, feeds) in [
        (machine.clone(), shelves(&["ps-1", "ps-2"])),
        (switch.clone(), shelves(&["ps-2"])),
        (machine.clone(), shelves(&["ps-1"])),
    ] {
        db.write(tx!([device, feeds], |tx| tx.write_feeds(&device, &feeds))).await.unwrap();
    }
    for (ids, expected) in [
        (&["ps-1"][..], vec![machine.clone()]),
        (&["ps-2"], vec![switch.clone()]),
        (&["ps-1", "ps-2"], vec![machine.clone(), switch.clone()]),
        (&["ps-3"], vec![]),
    ] {
        let ids = shelves(ids);
        let found = db.read(tx!([ids], |tx| tx.devices_fed_by(&ids).await)).await.unwrap();
        assert_eq!(found.into_iter().collect::<Vec<_>>(), expected, "{ids:?}");
    }
}
