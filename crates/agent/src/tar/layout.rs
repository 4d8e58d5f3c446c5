//! The partition layout for a tar image. UUIDs are generated here, so that they are known before
//! the partitions exist.

use crate::disk::MIB;
use crate::random::new_uuid;

pub const FIRMWARE_BYTES: u64 = 512 * MIB;
const FIRMWARE_TYPE: &str = "C12A7328-F81F-11D2-BA4B-00A0C93EC93B";
const ROOT_TYPE: &str = "4F68BCE3-E8CD-4DB1-96E7-FBCAF984B709";

pub struct Layout {
    pub firmware: String,
    pub root: String,
}

impl Layout {
    pub fn new() -> Result<Self, String> {
        Ok(Self { firmware: new_uuid()?, root: new_uuid()? })
    }

    /// The script for `sfdisk`. A BIOS finds its boot partition by the attribute, UEFI by the type.
    pub fn script(&self) -> String {
        let Self { firmware, root } = self;
        let size = FIRMWARE_BYTES / MIB;
        format!(
            "label: gpt\n\
             size={size}MiB, type={FIRMWARE_TYPE}, uuid={firmware}, name=firmware, attrs=LegacyBIOSBootable\n\
             type={ROOT_TYPE}, uuid={root}, name=root\n"
        )
    }

    pub fn fstab(&self) -> String {
        let Self { firmware, root } = self;
        format!(
            "# Written by Farrier when it installed this machine.\n\
             PARTUUID={root} / ext4 defaults 0 1\n\
             PARTUUID={firmware} /boot/efi vfat umask=0077,nofail 0 2\n"
        )
    }

    /// The kernel command line of the new system, with the consoles of the deploy environment.
    pub fn cmdline(&self, consoles: &[String]) -> String {
        let consoles: String = consoles.iter().map(|name| format!(" {name}")).collect();
        format!("root=PARTUUID={} rw{consoles}", self.root)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uuids_agree_in_all_files() {
        let layout = Layout { firmware: "F".into(), root: "R".into() };
        assert_eq!(
            layout.script(),
            "label: gpt\n\
             size=512MiB, type=C12A7328-F81F-11D2-BA4B-00A0C93EC93B, uuid=F, name=firmware, attrs=LegacyBIOSBootable\n\
             type=4F68BCE3-E8CD-4DB1-96E7-FBCAF984B709, uuid=R, name=root\n"
        );
        assert!(layout.fstab().contains("\nPARTUUID=R / ext4 "));
        assert!(layout.fstab().contains("\nPARTUUID=F /boot/efi vfat "));
        let consoles = ["console=tty0".to_string(), "console=ttyS0,115200".to_string()];
        assert_eq!(
            layout.cmdline(&consoles),
            "root=PARTUUID=R rw console=tty0 console=ttyS0,115200"
        );
        assert_ne!(Layout::new().unwrap().root, Layout::new().unwrap().root);
    }
}
