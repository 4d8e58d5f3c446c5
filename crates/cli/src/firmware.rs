//! Firmware: the catalogue for racks, and the history of what was applied.

use crate::args::{
    FirmwareAvailableArgs, FirmwareChangeArgs, FirmwareCommand, FirmwareCreateArgs,
    FirmwareHistoryArgs, FirmwareListArgs, VersionArgs,
};
use crate::client::{Client, fetch_pages};
use crate::exit::{Exit, Failure, Result};
use crate::filter::{FilterText, empty_list_note};
use crate::import::file::{FileSyntax, parse_as, read_file};
use crate::output::Screen;
use crate::table::{Cell, ColorMode, Table, Tone, format_pairs};
use crate::text::one_line;
use crate::time::Clock;
use proto::FieldMask;
use proto::v1::{
    AppliedFirmware, CreateFirmwareRequest, DeleteFirmwareRequest, Firmware, GetFirmwareRequest,
    ListFirmwareHistoryRequest, ListFirmwareRequest, UpdateFirmwareRequest,
};
use proto::words::WireEnum;

pub async fn run(client: &Client, screen: &mut Screen, command: FirmwareCommand) -> Result<Exit> {
    match command {
        FirmwareCommand::Create(args) => create(client, screen, args).await?,
        FirmwareCommand::List(args) => list(client, screen, &args).await?,
        FirmwareCommand::Get(args) => {
            let request = GetFirmwareRequest { firmware_id: args.firmware_id };
            let found = client.call(client.firmware().get_firmware(request)).await?;
            screen.print_record(&found, describe)?;
        }
        FirmwareCommand::SetDefault(args) => {
            let FirmwareChangeArgs { firmware_id, dry_run, version } = args;
            let firmware = Firmware { firmware_id, is_default: true, ..Default::default() };
            let request = update_request(firmware, "is_default", version, dry_run);
            let done = client.call(client.firmware().update_firmware(request)).await?;
            let what = format!("the default of {}", one_line(&done.hardware_type));
            screen.print_record(&done, |done| format_change(done, dry_run, &what))?;
        }
        FirmwareCommand::SetAvailable(args) => {
            let FirmwareAvailableArgs { firmware_id, available, dry_run, version } = args;
            let firmware =
                Firmware { firmware_id, available: Some(available), ..Default::default() };
            let request = update_request(firmware, "available", version, dry_run);
            let done = client.call(client.firmware().update_firmware(request)).await?;
            let what = if available { "available" } else { "not available" };
            screen.print_record(&done, |done| format_change(done, dry_run, what))?;
        }
        FirmwareCommand::Delete(args) => {
            let FirmwareChangeArgs { firmware_id, dry_run, version } = args;
            let expected_version = version.or_any();
            let request = DeleteFirmwareRequest { firmware_id, dry_run, expected_version };
            let gone = client.call(client.firmware().delete_firmware(request)).await?;
            screen.print_record(&gone, |gone| format_change(gone, dry_run, "deleted"))?;
        }
        FirmwareCommand::History(args) => history(client, screen, &args).await?,
    }
    Ok(Exit::Success)
}

/// A request to change one flag of a record.
fn update_request(
    firmware: Firmware,
    flag: &str,
    version: VersionArgs,
    dry_run: bool,
) -> UpdateFirmwareRequest {
    UpdateFirmwareRequest {
        firmware: Some(firmware),
        update_mask: Some(FieldMask { paths: vec![flag.into()] }),
        expected_version: version.or_any(),
        dry_run,
    }
}

/// The change of a record, done or (in a dry run) planned.
fn format_change(one: &Firmware, dry_run: bool, what: &str) -> String {
    let how = if dry_run { "would be" } else { "is" };
    let unchanged = if dry_run { "; nothing was changed" } else { "" };
    format!("firmware {} {how} {what}{unchanged}\n", one_line(&one.firmware_id))
}

async fn create(client: &Client, screen: &mut Screen, args: FirmwareCreateArgs) -> Result<()> {
    let desired = match &args.file {
        Some(file) => {
            let syntax = FileSyntax::from_path(file).filter(|syntax| *syntax != FileSyntax::Csv);
            let Some(syntax) = syntax else {
                return Err(Failure::refused(format!(
                    "{}: a record is a .yaml or .json file; see `farrier firmware create --help`",
                    file.display()
                )));
            };
            parse_as(file, &read_file(file)?, syntax)?
        }
        None => Firmware {
            firmware_id: args.firmware_id.unwrap_or_default(),
            hardware_type: args.hardware_type,
            description: args.description,
            components: args.components,
            is_default: args.default,
            available: Some(!args.unavailable),
            ..Default::default()
        },
    };
    let dry_run = args.dry_run;
    let request = CreateFirmwareRequest { firmware: Some(desired), dry_run };
    let made = client.call(client.firmware().create_firmware(request)).await?;
    screen.print_record(&made, |made| {
        let id = one_line(&made.firmware_id);
        let message = match dry_run {
            false => format!("firmware {id} created"),
            true => format!("would create firmware {id}; nothing was changed"),
        };
        format!("{message}\n\n{}", describe(made))
    })
}

async fn list(client: &Client, screen: &mut Screen, args: &FirmwareListArgs) -> Result<()> {
    let filter = FilterText::typed(&args.list.filter).equal("hardware_type", &args.hardware_type);
    let filter = filter.build();
    let found = fetch_pages(args.list.limit, async |page_size, page_token| {
        let filter = filter.clone();
        let request = ListFirmwareRequest { page_size, page_token, filter };
        let page = client.call(client.firmware().list_firmware(request)).await?;
        Ok((page.firmware, page.next_page_token, page.unreadable_rows))
    })
    .await?;
    let none = "no firmware; make a record with `farrier firmware create`";
    screen.print_list(&found, table, empty_list_note(&filter, none))
}

async fn history(client: &Client, screen: &mut Screen, args: &FirmwareHistoryArgs) -> Result<()> {
    let found = fetch_pages(args.list.limit, async |page_size, page_token| {
        let (device_id, filter) = (args.device.clone(), args.list.filter.clone());
        let request = ListFirmwareHistoryRequest {
            device_id,
            page_size,
            page_token,
            filter,
            order_by: args.sort.order_by.clone(),
        };
        let page = client.call(client.firmware().list_firmware_history(request)).await?;
        Ok((page.applied, page.next_page_token))
    })
    .await?;
    let none = empty_list_note(&args.list.filter, "no firmware was applied");
    screen.print_list(&found, history_table, none)
}

fn table(all: &[Firmware], wide: bool) -> Table {
    let clock = Clock::system();
    let names = ["FIRMWARE_ID", "HARDWARE_TYPE", "DEFAULT", "AVAILABLE", "COMPONENTS", "CREATED"];
    let more = ["DESCRIPTION"];
    let mut table =
        Table::new(&if wide { [&names[..], &more[..]].concat() } else { names.to_vec() });
    let mark = |yes: bool| if yes { "✓" } else { "-" };
    for one in all {
        let components: Vec<String> = one
            .components
            .iter()
            .map(|one| format!("{}:{}={}", one.device_type().word(), one.name, one.version))
            .collect();
        let mut row: Vec<Cell> = vec![
            (&one.firmware_id).into(),
            (&one.hardware_type).into(),
            mark(one.is_default).into(),
            mark(one.available()).into(),
            components.join(",").into(),
            clock.ago(one.created_at.as_ref()).into(),
        ];
        if wide {
            row.push((&one.description).into());
        }
        table.add_row(row);
    }
    table
}

fn describe(one: &Firmware) -> String {
    let name = |yes: bool| if yes { "yes" } else { "no" }.to_string();
    let mut facts = vec![
        ("Firmware:", one.firmware_id.clone()),
        ("HardwareType:", one.hardware_type.clone()),
        ("Description:", one.description.clone()),
        ("Default:", name(one.is_default)),
        ("Available:", name(one.available())),
        ("Created:", Clock::system().ago(one.created_at.as_ref())),
        ("Version:", one.version.to_string()),
    ];
    facts.retain(|(_, value)| !value.is_empty());
    let mut table = Table::new(&["DEVICE", "COMPONENT", "VERSION", "SHA256", "URL"]);
    for component in &one.components {
        table.add_row(vec![
            component.device_type().word().into(),
            (&component.name).into(),
            (&component.version).into(),
            (&component.sha256).into(),
            (&component.url).into(),
        ]);
    }
    format!("{}\n{}", format_pairs(&facts), table.render(ColorMode { enabled: false }))
}

fn history_table(all: &[AppliedFirmware], wide: bool) -> Table {
    let clock = Clock::system();
    let names = ["WHEN", "DEVICE", "COMPONENT", "FROM", "TO", "RESULT", "OPERATION"];
    let more = ["STEP"];
    let mut table =
        Table::new(&if wide { [&names[..], &more[..]].concat() } else { names.to_vec() });
    for one in all {
        let result = match one.changed {
            true => Cell::with_tone("changed", Tone::Good),
            false => Cell::with_tone("already there", Tone::Dim),
        };
        let mut row: Vec<Cell> = vec![
            clock.ago(one.at.as_ref()).into(),
            (&one.device_id).into(),
            (&one.component).into(),
            (&one.previous).into(),
            (&one.version).into(),
            result,
            (&one.operation_id).into(),
        ];
        if wide {
            row.push((&one.step).into());
        }
        table.add_row(row);
    }
    table
}
