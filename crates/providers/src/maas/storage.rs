//! Disks and storage layouts. MAAS changes them while a machine is Ready.

use super::Maas;
use super::call::Call;
use super::machine::Machine;
use super::machines::op;
use super::parts::BlockDevice;
use super::verdict::About;
use crate::http_client::form::{Form, encode};
use model::fault::Fault;

/// How MAAS partitions the boot disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    Flat,
    Lvm,
    Bcache,
    Vmfs6,
    Vmfs7,
    Custom,
    Blank,
}

impl Layout {
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

    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|layout| layout.as_str() == word)
    }
}

impl Maas {
    pub async fn block_devices(&self, system_id: &str) -> Result<Vec<BlockDevice>, Fault> {
        self.read(Call::get(disks(system_id)).about(About::Machine)).await
    }

    pub async fn set_boot_disk(&self, system_id: &str, disk: i64) -> Result<(), Fault> {
        let path = format!("{}{disk}/", disks(system_id));
        self.done(Call::post(path).op("set_boot_disk").about(About::Part).harmless()).await
    }

    /// Replaces the present layout, on the boot disk or on `root_device`.
    pub async fn set_storage_layout(
        &self,
        system_id: &str,
        layout: Layout,
        root_device: Option<i64>,
    ) -> Result<Machine, Fault> {
        let form = Form::default()
            .with("storage_layout", layout.as_str())
            .maybe("root_device", root_device);
        self.read(op(system_id, "set_storage_layout").harmless().form(form)).await
    }
}

fn disks(system_id: &str) -> String {
    format!("nodes/{}/blockdevices/", encode(system_id))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_are_read_by_their_words() {
        for layout in Layout::ALL {
            assert_eq!(Layout::parse(layout.as_str()), Some(layout));
        }
        assert_eq!(Layout::parse("zfs"), None);
    }
}
