//! The attributes that identify this node: hardware serial, MAC addresses, hostname and boot id.

use crate::inventory::{physical_macs, read_line};
use std::path::Path;

pub const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The limit of MAC addresses that are sent.
const MAX_MACS: usize = 64;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    pub hostname: String,
    pub serial: String,
    pub macs: Vec<String>,
    /// Changes with each boot of the kernel.
    pub boot_id: String,
}

impl Identity {
    /// Reads `/sys` and `/proc` below this directory. Unknown values are empty.
    pub fn read(root: &Path) -> Self {
        let mut macs = physical_macs(root);
        macs.truncate(MAX_MACS);
        Self {
            hostname: read_line(&root.join("proc/sys/kernel/hostname")),
            serial: read_line(&root.join("sys/class/dmi/id/product_serial")),
            macs,
            boot_id: read_line(&root.join("proc/sys/kernel/random/boot_id")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn identity_is_read_from_the_kernel() {
        let folder = tempfile::tempdir().unwrap();
        assert!(Identity::read(folder.path()).serial.is_empty());
        let write = |file: &str, text: &str| {
            let path = folder.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("{text}\n")).unwrap();
        };
        write("proc/sys/kernel/hostname", "gpu-1");
        write("proc/sys/kernel/random/boot_id", "b-1");
        write("sys/class/dmi/id/product_serial", "S 1 ");
        for (card, mac) in [("docker0", "02:00:00:00:00:01"), ("eth0", "AA:BB:CC:DD:EE:01")] {
            write(&format!("sys/class/net/{card}/type"), "1");
            write(&format!("sys/class/net/{card}/address"), mac);
        }
        assert_eq!(
            Identity::read(folder.path()).macs.len(),
            2,
            "cards without a device are all there is"
        );
        write("sys/class/net/eth0/device/vendor", "0x15b3");
        let found = Identity::read(folder.path());
        assert_eq!((found.hostname.as_str(), found.serial.as_str()), ("gpu-1", "S 1"));
        assert_eq!(
            (found.boot_id.as_str(), found.macs),
            ("b-1", vec!["aa:bb:cc:dd:ee:01".to_string()])
        );
    }
}
