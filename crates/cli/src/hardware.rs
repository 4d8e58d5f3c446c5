//! Live data from a machine's BMC: inventory, event log and power state.

use crate::args::ConsoleLogArgs;
use crate::client::{Client, fetch_pages};
use crate::exit::{Exit, Result};
use crate::output::Screen;
use crate::table::{Cell, ColorMode, Table, Tone, format_pairs};
use crate::text::one_line;
use crate::time::Clock;
use proto::v1::{
    ConsoleLogEntry, Cpu, GetConsoleLogRequest, GetPowerRequest, Gpu, InspectMachineRequest,
    Inspection, MachineHardware, PowerState,
};
use proto::words::WireEnum;
use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const MIB_PER_GIB: i64 = 1024;
/// Disk sizes use decimal units.
const BYTES_PER_GB: i64 = 1_000_000_000;

pub async fn inspect(client: &Client, screen: &mut Screen, machine_id: &str) -> Result<Exit> {
    let request = InspectMachineRequest { machine_id: machine_id.to_string() };
    let observed = client.call_hardware(client.hardware().inspect_machine(request)).await?;
    let (wide, colors) = (screen.is_wide(), screen.color_mode());
    screen.print_record(&observed, |observed| describe(observed, wide, colors))?;
    Ok(Exit::Success)
}

pub async fn print_event_log(
    client: &Client,
    screen: &mut Screen,
    args: &ConsoleLogArgs,
) -> Result<Exit> {
    let since = args.since.map(|since| timestamp_before(SystemTime::now(), since));
    let mut entries = fetch_pages(Some(args.limit), async |page_size, page_token| {
        let machine_id = args.machine_id.clone();
        let request = GetConsoleLogRequest { machine_id, page_size, page_token, since };
        let page = client.call_hardware(client.hardware().get_console_log(request)).await?;
        Ok((page.entries, page.next_page_token))
    })
    .await?;
    entries.reverse();
    let none = match args.since {
        Some(_) => "the BMC has logged nothing in that time",
        None => "the BMC's event log is empty",
    };
    screen.print_list(&entries, log_table, none)?;
    Ok(Exit::Success)
}

/// Shows the current power state of a machine.
pub async fn show_power(client: &Client, screen: &mut Screen, machine_id: &str) -> Result<Exit> {
    let request = GetPowerRequest { machine_id: machine_id.to_string() };
    let observed = client.call_hardware(client.hardware().get_power(request)).await?;
    screen.print_record(&observed, |observed| {
        format!("{} is {}\n", one_line(&observed.machine_id), power_name(observed.power()))
    })?;
    Ok(Exit::Success)
}

pub fn power_name(power: PowerState) -> &'static str {
    match power {
        PowerState::Unspecified => "-",
        PowerState::On => "on",
        PowerState::Off => "off",
        PowerState::Changing => "changing",
    }
}

/// The time `since` before `now`, as a protobuf timestamp.
fn timestamp_before(now: SystemTime, since: Duration) -> proto::Timestamp {
    let then = now.duration_since(UNIX_EPOCH).unwrap_or_default().saturating_sub(since);
    let seconds = i64::try_from(then.as_secs()).unwrap_or(i64::MAX);
    proto::Timestamp { seconds, nanos: then.subsec_nanos() as i32 }
}

fn log_table(entries: &[ConsoleLogEntry], wide: bool) -> Table {
    let clock = Clock::system();
    let names = ["TIME", "SEVERITY", "MESSAGE"];
    let more = ["TIME", "SEVERITY", "LOG", "ID", "MESSAGE"];
    let mut table = Table::new(if wide { &more } else { &names });
    for entry in entries {
        let mut row: Vec<Cell> = vec![
            clock.absolute(entry.ts.as_ref()).into(),
            Cell::with_tone(&entry.severity, health_tone(&entry.severity)),
        ];
        if wide {
            row.extend([(&entry.log).into(), (&entry.id).into()]);
        }
        row.push((&entry.message).into());
        table.add_row(row);
    }
    table
}

/// The tone of a device's health or severity word; unknown words are plain.
fn health_tone(name: &str) -> Tone {
    match name {
        "OK" => Tone::Good,
        "Warning" => Tone::Warn,
        "Critical" => Tone::Bad,
        _ => Tone::Plain,
    }
}

fn or_dash(text: &str) -> String {
    if text.is_empty() { "-".to_string() } else { text.to_string() }
}

/// The hardware that the last inspection recorded, in one line with its age; empty: none.
pub fn summarize(found: Option<&MachineHardware>, clock: &Clock) -> String {
    let Some(found) = found else { return String::new() };
    let part = |count: i32, noun: &str, model: &str| match (count, model) {
        (0, _) => String::new(),
        (1, "") => format!("1 {noun}"),
        (1, model) => format!("1 {noun} ({model})"),
        (count, "") => format!("{count} {noun}s"),
        (count, model) => format!("{count} {noun}s ({model})"),
    };
    let memory = match found.memory_mib / 1024 {
        0 => String::new(),
        gib => format!("{gib} GiB"),
    };
    let mut parts = vec![
        format!("{} {}", found.vendor, found.model).trim().to_string(),
        part(found.cpu_count, "CPU", &found.cpu_model),
        memory,
        part(found.gpu_count, "GPU", &found.gpu_model),
        part(found.disk_count, "disk", &found.disk_model),
        format!("inspected {}", clock.ago(found.inspected_at.as_ref())),
    ];
    parts.retain(|part| !part.is_empty());
    parts.join(", ")
}

fn describe(observed: &Inspection, wide: bool, colors: ColorMode) -> String {
    let mut text = format_pairs(&[
        ("Machine:", observed.machine_id.clone()),
        ("Vendor:", or_dash(&observed.vendor)),
        ("Model:", or_dash(&observed.model)),
        ("Serial:", or_dash(&observed.serial)),
        ("UUID:", or_dash(&observed.uuid)),
        ("BIOS:", or_dash(&observed.bios_version)),
        ("BMC firmware:", or_dash(&observed.bmc_version)),
        ("Power:", power_name(observed.power()).to_string()),
        ("Next boot:", or_dash(&observed.boot)),
        ("Health:", or_dash(observed.health().word())),
        ("CPUs:", format_cpus(&observed.cpus)),
        ("Memory:", format_memory(observed)),
        ("GPUs:", format_gpus(&observed.gpus)),
    ]);
    let mut tables = vec![unhealthy_table(observed), disk_table(observed), nic_table(observed)];
    if wide {
        tables.extend([memory_table(observed), firmware_table(observed)]);
    }
    for table in tables.into_iter().flatten() {
        text.push('\n');
        text.push_str(&table.render(colors));
    }
    if !observed.skipped.is_empty() {
        text.push_str("\nCould not be read:\n");
        for skipped in &observed.skipped {
            text.push_str(&format!("  {}\n", one_line(skipped)));
        }
    }
    text
}

/// `2 × Sim 8-Core`: counts equal names.
fn count_names<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for name in names {
        *counts.entry(if name.is_empty() { "unnamed" } else { name }).or_default() += 1;
    }
    let reported: Vec<String> =
        counts.iter().map(|(name, count)| format!("{count} × {name}")).collect();
    reported.join(", ")
}

fn format_cpus(cpus: &[Cpu]) -> String {
    if cpus.is_empty() {
        return "-".into();
    }
    let cores: i64 = cpus.iter().map(|cpu| cpu.cores).sum();
    let threads: i64 = cpus.iter().map(|cpu| cpu.threads).sum();
    let names = count_names(cpus.iter().map(|cpu| cpu.model.as_str()));
    match (cores, threads) {
        (0, 0) => names,
        (cores, 0) => format!("{names} ({cores} cores)"),
        (cores, threads) => format!("{names} ({cores} cores, {threads} threads)"),
    }
}

fn format_gpus(gpus: &[Gpu]) -> String {
    or_dash(&count_names(gpus.iter().map(|gpu| gpu.model.as_str())))
}

fn format_memory(observed: &Inspection) -> String {
    match (observed.memory_mib, observed.memory.len()) {
        (0, _) => "-".into(),
        (mib, 0) => format!("{} GiB", mib / MIB_PER_GIB),
        (mib, 1) => format!("{} GiB in 1 module", mib / MIB_PER_GIB),
        (mib, modules) => format!("{} GiB in {modules} modules", mib / MIB_PER_GIB),
    }
}

/// A table of the parts; none if there are no parts.
fn optional_table<T>(
    parts: &[T],
    names: &[&'static str],
    row: impl Fn(&T) -> Vec<Cell>,
) -> Option<Table> {
    let mut table = Table::new(names);
    parts.iter().for_each(|part| table.add_row(row(part)));
    (!parts.is_empty()).then_some(table)
}

fn unhealthy_table(observed: &Inspection) -> Option<Table> {
    optional_table(&observed.bad, &["NOT WELL", "HEALTH", "READING"], |part| {
        let health = Cell::with_tone(part.health().word(), health_tone(part.health().word()));
        vec![(&part.name).into(), health, (&part.reading).into()]
    })
}

fn disk_table(observed: &Inspection) -> Option<Table> {
    optional_table(&observed.disks, &["DISK", "MODEL", "SERIAL", "SIZE", "KIND"], |disk| {
        let size = match disk.capacity_bytes {
            0 => "-".to_string(),
            bytes => format!("{} GB", bytes / BYTES_PER_GB),
        };
        let kind = [disk.media.as_str(), &disk.protocol].join(" ");
        let kind = kind.trim();
        vec![
            (&disk.id).into(),
            (&disk.model).into(),
            (&disk.serial).into(),
            size.into(),
            kind.into(),
        ]
    })
}

fn nic_table(observed: &Inspection) -> Option<Table> {
    optional_table(&observed.nics, &["NIC", "MAC", "LINK", "SPEED"], |nic| {
        let link = match nic.link_up {
            Some(true) => Cell::with_tone("up", Tone::Good),
            Some(false) => Cell::with_tone("down", Tone::Warn),
            None => "-".into(),
        };
        let speed = match nic.speed_mbps {
            0 => "-".to_string(),
            mbps => format!("{mbps} Mb/s"),
        };
        vec![(&nic.id).into(), (&nic.mac_address).into(), link, speed.into()]
    })
}

fn memory_table(observed: &Inspection) -> Option<Table> {
    optional_table(&observed.memory, &["MODULE", "SIZE", "KIND", "SERIAL"], |module| {
        let size = format!("{} GiB", module.capacity_mib / MIB_PER_GIB);
        vec![(&module.id).into(), size.into(), (&module.kind).into(), (&module.serial).into()]
    })
}

fn firmware_table(observed: &Inspection) -> Option<Table> {
    optional_table(&observed.firmware, &["FIRMWARE", "VERSION"], |firmware| {
        let name = if firmware.name.is_empty() { &firmware.id } else { &firmware.name };
        vec![name.into(), (&firmware.version).into()]
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::v1::HardwareHealth;

    #[test]
    fn recorded_hardware_is_one_line_with_its_age() {
        let found = MachineHardware {
            vendor: "Acme".into(),
            model: "G8".into(),
            cpu_count: 2,
            cpu_model: "X9".into(),
            memory_mib: 524_288,
            gpu_count: 1,
            disk_count: 4,
            inspected_at: Some(proto::Timestamp { seconds: 40, nanos: 0 }),
            ..Default::default()
        };
        assert_eq!(
            summarize(Some(&found), &Clock::fixed(100)),
            "Acme G8, 2 CPUs (X9), 512 GiB, 1 GPU, 4 disks, inspected 1m 0s ago"
        );
        assert_eq!(summarize(None, &Clock::fixed(100)), "");
    }
    use proto::v1::{BadPart, Disk, MemoryModule, Nic};

    #[test]
    fn a_machine_has_a_short_description() {
        let cpu = Cpu { model: "Fast 8".into(), cores: 8, threads: 16, ..Default::default() };
        let gpu = |model: &str| Gpu { model: model.into(), ..Default::default() };
        let observed = Inspection {
            machine_id: "m-1".into(),
            vendor: "Acme\u{1b}[2J".into(),
            power: PowerState::Off.into(),
            health: HardwareHealth::Critical.into(),
            bad: vec![BadPart {
                name: "Fan 1".into(),
                health: HardwareHealth::Critical.into(),
                reading: "0 RPM".into(),
            }],
            cpus: vec![cpu.clone(), cpu],
            memory_mib: 65_536,
            memory: vec![MemoryModule {
                id: "A1".into(),
                capacity_mib: 65_536,
                ..Default::default()
            }],
            disks: vec![Disk {
                id: "d0".into(),
                capacity_bytes: 960_197_124_096,
                media: "SSD".into(),
                ..Default::default()
            }],
            nics: vec![Nic {
                id: "n0".into(),
                mac_address: "02:00:00:00:00:01".into(),
                link_up: Some(false),
                ..Default::default()
            }],
            gpus: vec![gpu("G1"), gpu("G1"), gpu("")],
            skipped: vec!["the rest".into()],
            ..Default::default()
        };
        let text = describe(&observed, false, ColorMode { enabled: false });
        for words in [
            "Vendor:        Acme\\x1b[2J\n",
            "Power:         off\n",
            "CPUs:          2 × Fast 8 (16 cores, 32 threads)\n",
            "Memory:        64 GiB in 1 module\n",
            "GPUs:          2 × G1, 1 × unnamed\n",
            "NOT WELL  HEALTH    READING\nFan 1     Critical  0 RPM\n",
            "d0    -      -       960 GB  SSD\n",
            "n0   02:00:00:00:00:01  down  -\n",
            "Could not be read:\n  the rest\n",
        ] {
            assert!(text.contains(words), "{words:?} is not in\n{text}");
        }
        assert!(
            !text.contains("MODULE")
                && describe(&observed, true, ColorMode { enabled: false }).contains("MODULE")
        );
    }

    #[test]
    fn a_moment_ago() {
        let now = UNIX_EPOCH + Duration::from_secs(100);
        assert_eq!(timestamp_before(now, Duration::from_secs(30)).seconds, 70);
        assert_eq!(timestamp_before(now, Duration::from_secs(300)).seconds, 0);
    }
}
