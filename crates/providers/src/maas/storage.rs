//! Disks and storage layouts. MAAS changes them while a machine is Ready.

use super::Maas;
use super::call::Call;
use super::classify::CallTarget;
use super::hardware::BlockDevice;
use super::machine::Machine;
use super::machines::op;
use crate::http_client::form::{Form, encode};
use model::fault::Result;

/// The layout in which MAAS partitions the boot disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StorageLayout {
    Flat,
    Lvm,
    Bcache,
    Vmfs6,
    Vmfs7,
    Custom,
    Blank,
}

impl StorageLayout {
    pub const ALL: [Self; 7] =
        [Self::Flat, Self::Lvm, Self::Bcache, Self::Vmfs6, Self::Vmfs7, Self::Custom, Self::Blank];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Flat => "flat",
            Self::Lvm => "lvm",
            Self::Bcache => "bcache",
            Self::Vmfs6 => "vmfs6",
            Self::Vmfs7 => "vmfs7",
            Self::Custom => "custom",
            Self::Blank => "blank",
        }
    }

    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|layout| layout.as_str() == name)
    }
}

impl Maas {
    pub async fn block_devices(&self, system_id: &str) -> Result<Vec<BlockDevice>> {
        self.read(Call::get(disks(system_id)).about(CallTarget::Machine)).await
    }

    pub async fn set_boot_disk(&self, system_id: &str, disk: i64) -> Result<()> {
        let path = format!("{}{disk}/", disks(system_id));
        self.send(Call::post(path).op("set_boot_disk").about(CallTarget::Component).idempotent())
            .await
    }

    /// Replaces the present layout, on the boot disk or on `root_device`.
    pub async fn set_storage_layout(
        &self,
        system_id: &str,
        layout: StorageLayout,
        root_device: Option<i64>,
    ) -> Result<Machine> {
        let form = Form::default()
            .with("storage_layout", layout.as_str())
            .with_optional("root_device", root_device);
        self.read(op(system_id, "set_storage_layout").idempotent().form(form)).await
    }
}

fn disks(system_id: &str) -> String {
    format!("nodes/{}/blockdevices/", encode(system_id))
}
