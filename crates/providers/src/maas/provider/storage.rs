//! The boot disk of a node and its layout.

use super::annotations::AnnotationOwner;
use super::executor::{
    MachineSetting, StageExecutor, check_unlocked, describe_state, done, state_disagrees,
};
use crate::maas::{BlockDevice, Machine, Status, StorageLayout};
use model::effect::{CallResult, ProviderAnswer};
use model::fault::{Fault, FaultCode, Result};

const PHYSICAL: &str = "physical";
const BYTES_PER_GB: u64 = 1_000_000_000;

impl StageExecutor<'_> {
    pub async fn configure_storage(&self) -> CallResult {
        self.configure(MachineSetting::Disks).await
    }

    /// Checks that it boots from the desired disk. MAAS does not report the layout.
    pub fn observe_layout(&self, machine: &Machine) -> ProviderAnswer {
        let chosen = choose(machine, &self.site.spec.boot_disk_model);
        let boots = machine.boot_disk.as_ref().map(|disk| disk.id);
        match chosen {
            Ok(Some(disk)) if Some(disk.id) == boots => {
                done(machine, format!("it boots from {}", named(disk)))
            }
            Ok(None) => done(machine, "MAAS chooses the disk that it boots from"),
            Ok(Some(disk)) => {
                ProviderAnswer::Differs(format!("it does not boot from {}", named(disk)))
            }
            Err(fault) => ProviderAnswer::Differs(fault.message),
        }
    }

    pub async fn apply_layout(&self, machine: Machine) -> CallResult {
        check_unlocked(&machine)?;
        if machine.status != Status::Ready {
            return Err(state_disagrees(&machine, self.ready_hint(&machine).await?));
        }
        let id = &machine.system_id;
        let disk = choose(&machine, &self.site.spec.boot_disk_model)?;
        if let Some(disk) = disk
            && machine.boot_disk.as_ref().map(|disk| disk.id) != Some(disk.id)
        {
            self.call.journal.write_line(format!("maas: {id} boots from {}", named(disk))).await;
            self.call.maas().set_boot_disk(id, disk.id).await?;
        }
        if let Some(layout) = self.layout()? {
            self.call
                .journal
                .write_line(format!("maas: {id} is laid out {}", layout.as_str()))
                .await;
            self.call.maas().set_storage_layout(id, layout, disk.map(|disk| disk.id)).await?;
        }
        let now = self.call.maas().machine(id).await?;
        let boots = now.boot_disk.as_ref().map(|disk| disk.id);
        match disk {
            Some(disk) if boots != Some(disk.id) => {
                let message =
                    format!("{}; it does not boot from {}", describe_state(&now), named(disk));
                Err(Fault::new(FaultCode::ReadBackDiffers, message))
            }
            Some(disk) => Ok(done(&now, format!("it boots from {}", named(disk)))),
            None => Ok(done(&now, "MAAS chooses the disk that it boots from")),
        }
    }

    /// The advice that makes the machine Ready again: MAAS changes disks only then.
    async fn ready_hint(&self, machine: &Machine) -> Result<&'static str> {
        let ours = match self.call.annotation_owner(machine, Some(&self.node.id())).await? {
            AnnotationOwner::ThisRun | AnnotationOwner::ThisNode => {
                machine.status == Status::Allocated
            }
            AnnotationOwner::OtherNode(_) | AnnotationOwner::Unmarked => false,
        };
        Ok(match ours {
            true => {
                "disks are laid out while it is Ready: `farrier operation restart-clean` releases it first"
            }
            false => "disks are laid out while it is Ready: release it in MAAS, then retry",
        })
    }

    /// `None`: MAAS's default.
    fn layout(&self) -> Result<Option<StorageLayout>> {
        match self.site.spec.storage_layout.as_str() {
            "" => Ok(None),
            name => StorageLayout::parse(name).map(Some).ok_or_else(|| {
                let message =
                    format!("site.spec.storage_layout is {name:?}, which MAAS does not know");
                Fault::new(FaultCode::SiteUnfit, message)
            }),
        }
    }
}

/// The boot disk by a part of its model; the present one is preferred. `None`: MAAS's choice.
fn choose<'a>(machine: &'a Machine, model: &str) -> Result<Option<&'a BlockDevice>> {
    if model.is_empty() {
        return Ok(None);
    }
    let desired = model.to_lowercase();
    let fits = |disk: &&BlockDevice| {
        (disk.kind.is_empty() || disk.kind == PHYSICAL)
            && disk.model.to_lowercase().contains(&desired)
    };
    let boots = machine.boot_disk.as_ref().map(|disk| disk.id);
    let fitting = machine.disks.iter().filter(fits);
    let chosen = fitting.min_by_key(|disk| (Some(disk.id) != boots, disk.id));
    chosen.map(Some).ok_or_else(|| {
        let all: Vec<String> = machine.disks.iter().map(named).collect();
        let there = if all.is_empty() { "no disks".to_owned() } else { all.join(", ") };
        let message = format!(
            "no disk of {} has {model:?} in its model (site.spec.boot_disk_model); it has {there}",
            machine.system_id
        );
        Fault::new(FaultCode::BootDiskMissing, message)
    })
}

fn named(disk: &BlockDevice) -> String {
    let model = if disk.model.is_empty() { "no model" } else { &disk.model };
    format!("{} ({model}, {} GB)", disk.name, disk.size_bytes / BYTES_PER_GB)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn machine(boots: i64, models: &[&str]) -> Machine {
        let disk = |(id, model): (usize, &&str)| {
            let kind = if model.starts_with("RAID") { "virtual" } else { "physical" };
            json!({"id": id, "name": format!("d{id}"), "model": model, "type": kind, "size": 480_000_000_000_u64})
        };
        let disks: Vec<_> = models.iter().enumerate().map(disk).collect();
        serde_json::from_value(json!({
            "system_id": "a", "status": 4, "blockdevice_set": disks, "boot_disk": {"id": boots}
        }))
        .unwrap()
    }

    #[test]
    fn the_boot_disk_is_found_by_its_model() {
        for (boots, models, model, expected) in [
            (0, vec!["MZQL2", "DELLBOSS VD"], "BOSS", Ok(Some(1))),
            (0, vec!["MZQL2", "DellBoss-N1"], "boss", Ok(Some(1))),
            (2, vec!["BOSS", "x", "BOSS"], "BOSS", Ok(Some(2))),
            (1, vec!["BOSS", "x", "BOSS"], "BOSS", Ok(Some(0))),
            (0, vec!["MZQL2"], "", Ok(None)),
            (0, vec!["MZQL2", "RAID of BOSS"], "BOSS", Err("d0 (MZQL2, 480 GB)")),
            (0, vec![""], "BOSS", Err("d0 (no model, 480 GB)")),
            (0, vec![], "BOSS", Err("no disks")),
        ] {
            let machine = machine(boots, &models);
            match (choose(&machine, model), expected) {
                (Ok(found), Ok(id)) => assert_eq!(found.map(|disk| disk.id), id, "{models:?}"),
                (Err(fault), Err(words)) => {
                    assert_eq!(fault.code, FaultCode::BootDiskMissing);
                    assert!(
                        fault.message.contains(words) && fault.message.contains(model),
                        "{fault}"
                    );
                }
                (found, expected) => panic!("{models:?}: {found:?}, not {expected:?}"),
            }
        }
    }
}
