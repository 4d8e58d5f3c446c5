//! Hosts: the firmware of a machine, and the reprovisioning of it.

use crate::args::ReprovisionArgs;
use crate::client::Client;
use crate::exit::{Exit, Result};
use crate::operation::choose_request_id;
use crate::output::Screen;
use crate::table::format_pairs;
use crate::text::one_line;
use crate::time::Clock;
use proto::v1::{
    CancelHostReprovisioningRequest, GetHostRequest, Host, HostState,
    TriggerHostReprovisioningRequest,
};
use proto::words::WireEnum;

pub async fn reprovision(
    client: &Client,
    screen: &mut Screen,
    args: ReprovisionArgs,
) -> Result<Exit> {
    let machine_id = args.machine_id;
    if args.cancel {
        let dry_run = client.is_dry_run();
        let request = CancelHostReprovisioningRequest { machine_id, dry_run };
        let host = client.call(client.hosts().cancel_host_reprovisioning(request)).await?;
        screen.print_record(&host, |host| format_cancel(host, dry_run))?;
        return Ok(Exit::Success);
    }
    let request_id = match client.is_dry_run() {
        true => String::new(),
        false => choose_request_id(screen, args.request_id.as_ref())?,
    };
    let dry_run = client.is_dry_run();
    let firmware_id = args.firmware;
    let request = TriggerHostReprovisioningRequest { machine_id, firmware_id, request_id, dry_run };
    let host = client.call(client.hosts().trigger_host_reprovisioning(request)).await?;
    screen.print_record(&host, |host| format_request(host, dry_run))?;
    Ok(Exit::Success)
}

fn format_cancel(host: &Host, dry_run: bool) -> String {
    let id = one_line(&host.machine_id);
    if !dry_run {
        return format!("the firmware of {id} is given up\n");
    }
    let stops = match host.operation_id.as_str() {
        "" => String::new(),
        run => format!("{} would be stopped first\n", one_line(run)),
    };
    format!("would give up the firmware of {id}\n{stops}")
}

fn format_request(host: &Host, dry_run: bool) -> String {
    let id = one_line(&host.machine_id);
    let mut text = match dry_run {
        true => format!("{id} would have its firmware checked\n"),
        false => format!("{id} has its firmware checked\n"),
    };
    if !host.nothing_to_do.is_empty() {
        text.push_str(&format!("  nothing to install: {}\n", one_line(&host.nothing_to_do)));
    }
    for one in &host.differs {
        text.push_str(&format!("  {}\n", one_line(one)));
    }
    for step in &host.steps {
        text.push_str(&format!("  step {}\n", one_line(step)));
    }
    if !host.refused.is_empty() {
        text.push_str(&format!("  it waits: {}\n", one_line(&host.refused)));
    }
    if !dry_run {
        text.push_str(&format!("\nNext: farrier why {id}\n"));
    }
    text
}

/// The firmware section of `farrier get MACHINE`; empty if nothing is known or requested.
pub async fn firmware_section(client: &Client, machine_id: &str) -> String {
    let request = GetHostRequest { machine_id: machine_id.to_string() };
    match client.call(client.hosts().get_host(request)).await {
        Ok(host) => format_firmware(&host, &Clock::system()),
        // An older server does not know hosts; the machine is shown without this section.
        Err(_) => String::new(),
    }
}

fn format_firmware(host: &Host, clock: &Clock) -> String {
    let mut versions: Vec<String> =
        host.firmware.iter().map(|(name, version)| format!("{name} {version}")).collect();
    versions.sort();
    let mut facts = vec![("Firmware:", versions.join(", "))];
    if host.state() != HostState::Ready {
        let since = clock.ago(host.since.as_ref());
        facts.push(("FirmwareState:", format!("{}, {since}", host.state().word())));
        facts.push(("WaitingFor:", host.waiting_for.clone()));
        facts.push(("Failed:", host.failed.clone()));
        facts.push(("Operation:", host.operation_id.clone()));
    }
    facts.retain(|(_, value)| !value.is_empty());
    if facts.is_empty() { String::new() } else { format!("\n{}", format_pairs(&facts)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ready_host_shows_its_versions_and_no_more() {
        let clock = Clock::system();
        let mut host = Host { state: HostState::Ready.into(), ..Host::default() };
        assert_eq!(format_firmware(&host, &clock), "");
        host.firmware.insert("BMC".into(), "2.1".into());
        assert_eq!(format_firmware(&host, &clock).trim(), "Firmware:  BMC 2.1");
        host.state = HostState::FailedFirmwareUpgrade.into();
        host.failed = "it broke".into();
        let reported = format_firmware(&host, &clock);
        assert!(
            reported.contains("FailedFirmwareUpgrade") && reported.contains("it broke"),
            "{reported}"
        );
    }
}
