//! Vendor differences, as a table.
//!
//! Each row names the devices, the difference, and how it is known. Code checks for a quirk, never
//! for a vendor, so a new device is a new row. Where the standard allows several behaviours, that
//! is not a quirk: the code handles all of them for every device.

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Quirk {
    /// A System whose id has this prefix is a board inside the machine, not a computer that boots.
    NotAHost(&'static str),
    /// A boot override must include the boot mode.
    SendBootMode,
    /// New BIOS settings are scheduled only if the request has an apply time.
    NeedsApplyTime(&'static str),
    /// The name of the virtual CD as a boot target instead of `Cd`, if the device lists it.
    CdIs(&'static str),
    /// Firmware whose id has this prefix is an earlier or an available version, not installed.
    NotInstalled(&'static str),
    /// An update targets the related item of the firmware, not its entry in the inventory.
    TargetIsRelated,
    /// A MAC address with this prefix is a placeholder.
    NoMac(&'static str),
}

struct Row {
    /// A substring of the vendor's name, in lower case; empty for all.
    vendor: &'static str,
    /// The prefix of the model's name, in lower case; empty for all.
    model: &'static str,
    quirk: Quirk,
    /// The evidence, so that a later reader can tell whether the row is still needed.
    reason: &'static str,
}

const TABLE: [Row; 10] = [
    Row {
        vendor: "nvidia",
        model: "",
        quirk: Quirk::NotAHost("HGX_"),
        reason: "GB200 trays show the GPU baseboard as a second System, HGX_Baseboard_0, without a Reset action \
                 and with a serial number of its own",
    },
    Row {
        vendor: "",
        model: "",
        quirk: Quirk::NotAHost("HGX_Baseboard"),
        reason: "other vendors' servers with NVIDIA's HGX board pass on that board's System under the same name",
    },
    Row {
        vendor: "supermicro",
        model: "",
        quirk: Quirk::SendBootMode,
        reason: "boards of this maker are reported to fall back to legacy boot when an override comes without its mode",
    },
    Row {
        vendor: "supermicro",
        model: "",
        quirk: Quirk::CdIs("UsbCd"),
        reason: "virtual media is a USB drive there; Cd means a drive in the machine, and both are listed",
    },
    Row {
        vendor: "supermicro",
        model: "",
        quirk: Quirk::TargetIsRelated,
        reason: "its update service is told Systems/1/Bios or Managers/1, which its list of firmware names as related items",
    },
    Row {
        vendor: "dell",
        model: "",
        quirk: Quirk::NeedsApplyTime("OnReset"),
        reason: "iDRAC keeps new BIOS settings as pending and makes no job for them unless an apply time is named",
    },
    Row {
        vendor: "dell",
        model: "",
        quirk: Quirk::NotInstalled("Previous-"),
        reason: "iDRAC lists the version before beside the one that is installed, under the same name, for going back to it",
    },
    Row {
        vendor: "dell",
        model: "",
        quirk: Quirk::NotInstalled("Available-"),
        reason: "iDRAC lists versions that were uploaded and never installed beside the one that is, under the same name",
    },
    Row {
        vendor: "",
        model: "",
        quirk: Quirk::NoMac("00:00:00:00:00:00"),
        reason: "ports without a card in them are listed with an address of zeros by several vendors",
    },
    Row {
        vendor: "",
        model: "",
        quirk: Quirk::NoMac("be:3a:f2:b6:05:9f"),
        reason: "the USB network between a host and its BMC has this address on boards of several makers, Supermicro's \
                 interface ToManager among them, and so it tells no machine from another",
    },
];

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Quirks(Vec<Quirk>);

impl Quirks {
    /// The quirks of a device. A BMC and its System may name different vendors.
    pub fn of(makers: &[String], model: &str) -> Self {
        let makers: Vec<String> = makers.iter().map(|maker| maker.to_lowercase()).collect();
        let model = model.to_lowercase();
        let fits = |row: &&Row| {
            let vendor =
                row.vendor.is_empty() || makers.iter().any(|maker| maker.contains(row.vendor));
            vendor && model.starts_with(row.model)
        };
        Self(TABLE.iter().filter(fits).map(|row| row.quirk).collect())
    }

    pub fn is_host(&self, id: &str) -> bool {
        !self.0.iter().any(|quirk| matches!(quirk, Quirk::NotAHost(begin) if id.starts_with(begin)))
    }

    pub fn is_installed(&self, firmware: &str) -> bool {
        let begins = |quirk: &Quirk| matches!(quirk, Quirk::NotInstalled(begin) if firmware.starts_with(begin));
        !self.0.iter().any(begins)
    }

    pub fn target_is_related(&self) -> bool {
        self.0.contains(&Quirk::TargetIsRelated)
    }

    pub fn send_boot_mode(&self) -> bool {
        self.0.contains(&Quirk::SendBootMode)
    }

    pub fn cd(&self) -> Option<&'static str> {
        self.0.iter().find_map(|quirk| match quirk {
            Quirk::CdIs(name) => Some(*name),
            Quirk::NotAHost(_)
            | Quirk::SendBootMode
            | Quirk::NeedsApplyTime(_)
            | Quirk::NotInstalled(_)
            | Quirk::TargetIsRelated
            | Quirk::NoMac(_) => None,
        })
    }

    pub fn apply_time(&self) -> Option<&'static str> {
        self.0.iter().find_map(|quirk| match quirk {
            Quirk::NeedsApplyTime(when) => Some(*when),
            Quirk::NotAHost(_)
            | Quirk::SendBootMode
            | Quirk::CdIs(_)
            | Quirk::NotInstalled(_)
            | Quirk::TargetIsRelated
            | Quirk::NoMac(_) => None,
        })
    }

    /// The evidence of the quirks, as sentences, without the rows that apply to all vendors.
    pub fn reasons(&self) -> Vec<&'static str> {
        let holds = |row: &&Row| !row.vendor.is_empty() && self.0.contains(&row.quirk);
        TABLE.iter().filter(holds).map(|row| row.reason).collect()
    }

    /// A MAC address in lower case with colons; None for a placeholder.
    pub fn mac(&self, text: &str) -> Option<String> {
        let mac = super::system::plain_mac(text)?;
        let none =
            self.0.iter().any(|quirk| matches!(quirk, Quirk::NoMac(none) if mac.starts_with(none)));
        (!none).then_some(mac)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_apply_to_their_vendors() {
        let of = |maker: &str| Quirks::of(&[maker.to_owned()], "Some Model");
        assert!(!of("NVIDIA").is_host("HGX_Chassis_0") && of("NVIDIA").is_host("System_0"));
        assert!(of("Supermicro").is_host("HGX_1") && !of("Supermicro").is_host("HGX_Baseboard_0"));
        assert!(of("Supermicro").send_boot_mode() && !of("Dell Inc.").send_boot_mode());
        assert_eq!((of("Dell Inc.").apply_time(), of("").apply_time()), (Some("OnReset"), None));
        assert_eq!((of("Supermicro").cd(), of("HPE").cd()), (Some("UsbCd"), None));
        assert_eq!(of("").mac("00-00-00-00-00-00"), None);
        assert_eq!(of("Supermicro").mac("BE:3A:F2:B6:05:9F"), None);
        assert_eq!(of("").mac("94:6D:AE:91:FB:22").as_deref(), Some("94:6d:ae:91:fb:22"));
    }

    #[test]
    fn every_row_has_a_reason() {
        for row in &TABLE {
            assert!(row.reason.len() > 40, "{:?}", row.quirk);
            assert_eq!(row.vendor, row.vendor.to_lowercase());
            assert_eq!(row.model, row.model.to_lowercase());
        }
    }
}
