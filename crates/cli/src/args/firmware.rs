//! `farrier firmware`.

use super::*;
use proto::v1::{FirmwareComponent, TargetKind};
use proto::words;

#[derive(Debug, Subcommand)]
pub enum FirmwareCommand {
    /// Add a firmware record to the catalogue; afterwards only its two flags can change
    Create(FirmwareCreateArgs),
    /// List firmware records
    List(FirmwareListArgs),
    /// Show one firmware record with its components
    Get(FirmwareArg),
    /// Make a firmware record the default of its hardware type
    SetDefault(FirmwareChangeArgs),
    /// Set whether a firmware record may be applied
    SetAvailable(FirmwareAvailableArgs),
    /// Delete a firmware record, unless it is a default or in use
    Delete(FirmwareChangeArgs),
    /// Show which firmware was applied to which device, newest first
    History(FirmwareHistoryArgs),
}

#[derive(Debug, Args)]
pub struct FirmwareArg {
    /// ID of the firmware record, from `farrier firmware list`
    pub firmware_id: String,
}

const FIRMWARE_HELP: &str = "\
Examples:
  farrier firmware create fw-v2.1 --hardware-type nvl72 --default \\
    --component machine:BMC=2.1,url=https://files.example/bmc-2.1.bin,sha256=9f86… \\
    --component switch:BIOS=0.9,url=https://files.example/bios-0.9.bin,sha256=60303…
  farrier firmware create -f fw.yaml

Example of a file:
  firmware_id: fw-v2.1
  hardware_type: nvl72
  components:
    - {device_type: machine, name: BMC, version: \"2.1\", url: \"https://files.example/bmc-2.1.bin\", sha256: 9f86…}

Devices are machine, switch and power_shelf. Components are applied in the order they are given.";

#[derive(Debug, Args)]
#[command(after_help = FIRMWARE_HELP)]
pub struct FirmwareCreateArgs {
    /// ID of the new firmware record: letters, digits, '.', '_' and '-'
    #[arg(required_unless_present = "file", conflicts_with = "file")]
    pub firmware_id: Option<String>,
    /// File with one firmware record, .yaml or .json
    #[arg(short, long, value_name = "FILE", conflicts_with_all = ["hardware_type", "description", "components", "default", "unavailable"])]
    pub file: Option<PathBuf>,
    /// Hardware type of the racks that the record is for
    #[arg(
        long,
        value_name = "TYPE",
        required_unless_present = "file",
        default_value = "",
        hide_default_value = true
    )]
    pub hardware_type: String,
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    /// Description, free text
    pub description: String,
    /// Component of one device type; can be repeated
    #[arg(long = "component", value_name = "DEVICE:NAME=VERSION,url=URL,sha256=DIGITS", value_parser = parse_component)]
    pub components: Vec<FirmwareComponent>,
    /// Make the record the default of its hardware type
    #[arg(long)]
    pub default: bool,
    /// Do not allow the record to be applied yet
    #[arg(long)]
    pub unavailable: bool,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Filters:\n  hardware_type=gb200 AND available=true\n  firmware_id, is_default"
)]
pub struct FirmwareListArgs {
    /// Only firmware records of this hardware type
    #[arg(long, value_name = "TYPE", default_value = "", hide_default_value = true)]
    pub hardware_type: String,
    #[command(flatten)]
    pub list: FilteredListArgs,
}

#[derive(Debug, Args)]
pub struct FirmwareChangeArgs {
    /// ID of the firmware record, from `farrier firmware list`
    pub firmware_id: String,
    #[command(flatten)]
    pub version: VersionArgs,
}

#[derive(Debug, Args)]
pub struct FirmwareAvailableArgs {
    /// ID of the firmware record, from `farrier firmware list`
    pub firmware_id: String,
    /// Whether the record may be applied
    #[arg(action = clap::ArgAction::Set, value_name = "true|false")]
    pub available: bool,
    #[command(flatten)]
    pub version: VersionArgs,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Filters:\n  component=BMC AND changed=true\n  device_type=switch    machine, switch, power_shelf\n  device_id, version, operation_id\n\nOrders: at, at:desc (the default)"
)]
pub struct FirmwareHistoryArgs {
    /// Only this machine, switch or power shelf
    #[arg(long, value_name = "ID", default_value = "", hide_default_value = true)]
    pub device: String,
    #[command(flatten)]
    pub list: FilteredListArgs,
    #[command(flatten)]
    pub sort: SortArg,
}

/// Parses `machine:BMC=2.1,url=…,sha256=…`. The URL may contain commas.
fn parse_component(text: &str) -> Result<FirmwareComponent, String> {
    let wrong = || format!("{text:?} is no component; write machine:BMC=2.1,url=…,sha256=…");
    let (device_type, rest) = text.split_once(':').ok_or_else(wrong)?;
    let (name, rest) = rest.split_once('=').ok_or_else(wrong)?;
    let mut pieces = rest.split(',');
    let version = pieces.next().unwrap_or_default();
    let kind = words::value::<TargetKind>(device_type);
    if kind == 0 {
        return Err(wrong());
    }
    let mut one = FirmwareComponent {
        device_type: kind,
        name: name.into(),
        version: version.into(),
        ..Default::default()
    };
    let mut last = None;
    for piece in pieces {
        let named = [("url=", &mut one.url), ("sha256=", &mut one.sha256)];
        let found = named.into_iter().find_map(|(name, field)| {
            piece.strip_prefix(name).map(|value| {
                value.clone_into(field);
                name
            })
        });
        match (found, last) {
            (Some(name), _) => last = Some(name),
            (None, Some("url=")) => one.url = format!("{},{piece}", one.url),
            (None, _) => return Err(wrong()),
        }
    }
    Ok(one)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn components_are_typed() {
        let one = parse_component("machine:BMC=2.1,sha256=ab,url=http://h/a,b=c").unwrap();
        assert_eq!(
            one,
            FirmwareComponent {
                device_type: TargetKind::Machine.into(),
                name: "BMC".into(),
                version: "2.1".into(),
                url: "http://h/a,b=c".into(),
                sha256: "ab".into(),
            }
        );
        for bad in ["machine", "machine:BMC", "machine:BMC=2.1,colour=red"] {
            assert!(parse_component(bad).unwrap_err().contains("machine:BMC=2.1"), "{bad}");
        }
    }
}
