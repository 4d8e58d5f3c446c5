//! `farrier bmc`: test a BMC by its address, and unlock a refused login.

use crate::args::{BmcCommand, BmcTestArgs, BmcUnlockArgs};
use crate::client::Client;
use crate::exit::{Exit, Failure, Result};
use crate::output::Screen;
use crate::table::{ColorMode, Tone};
use crate::text::one_line;
use proto::v1::bmc_finding::Outcome;
use proto::v1::{BmcFinding, BmcReport, TestBmcRequest, UnlockBmcRequest};

/// The width of the longest step name.
const STEP_WIDTH: usize = "firmware updates".len();

pub async fn run(client: &Client, screen: &mut Screen, command: BmcCommand) -> Result<Exit> {
    match command {
        BmcCommand::Test(args) => test(client, screen, args).await,
        BmcCommand::Unlock(args) => unlock(client, screen, args).await,
    }
}

async fn test(client: &Client, screen: &mut Screen, args: BmcTestArgs) -> Result<Exit> {
    let ca_pem = match &args.ca {
        None => String::new(),
        Some(path) => std::fs::read_to_string(path)
            .map_err(|error| Failure::refused(format!("--ca {}: {error}", path.display())))?,
    };
    let request = TestBmcRequest {
        endpoint: args.endpoint,
        credential: args.credential,
        ca_pem,
        serial: args.serial,
        mac_addresses: args.mac_addresses,
    };
    let report = client.call_hardware(client.hardware().test_bmc(request)).await?;
    let colors = screen.color_mode();
    screen.print_record(&report, |report| format_report(report, colors))?;
    Ok(if report.usable { Exit::Success } else { Exit::Unsuccessful })
}

fn format_report(report: &BmcReport, colors: ColorMode) -> String {
    let mut text = format!("{}\n", one_line(&report.peer));
    for finding in &report.findings {
        text.push_str(&format_finding(finding, colors));
    }
    text.push_str(&format!(
        "\n{}\nnext: {}\n",
        one_line(&report.summary),
        one_line(&report.next_command)
    ));
    text
}

fn format_finding(finding: &BmcFinding, colors: ColorMode) -> String {
    let (mark, tone, name) = match finding.outcome() {
        Outcome::Ok => ("✓", Tone::Good, "ok"),
        Outcome::Cannot => ("✗", Tone::Bad, "cannot"),
        Outcome::NotTried | Outcome::Unspecified => ("-", Tone::Dim, "not tried"),
    };
    let mark = colors.apply(tone, mark);
    format!(
        "  {mark} {:STEP_WIDTH$}  {name:9}  {}\n",
        one_line(&finding.step),
        one_line(&finding.message)
    )
}

async fn unlock(client: &Client, screen: &mut Screen, args: BmcUnlockArgs) -> Result<Exit> {
    let request = UnlockBmcRequest { endpoint: args.endpoint, dry_run: client.is_dry_run() };
    let done = client.call(client.hardware().unlock_bmc(request)).await?;
    screen.print_record(&done, |done| {
        let peer = one_line(&done.peer);
        match done.was_locked {
            true => {
                let unlocked = client.outcome("unlocked");
                format!("{peer} {unlocked}; the login that it refused is tried again\n")
            }
            false => format!("{peer} has refused no login; there is nothing to unlock\n"),
        }
    })?;
    Ok(Exit::Success)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_step_is_a_line() {
        let finding = |step: &str, classification: Outcome, message: &str| BmcFinding {
            step: step.into(),
            outcome: classification.into(),
            message: message.into(),
        };
        let report = BmcReport {
            peer: "https://h".into(),
            findings: vec![
                finding("port", Outcome::Ok, "443"),
                finding("login", Outcome::Cannot, "no\u{7}"),
                finding("firmware updates", Outcome::NotTried, "login comes first"),
            ],
            summary: "Farrier cannot".into(),
            next_command: "farrier fault login-refused".into(),
            ..Default::default()
        };
        let text = format_report(&report, ColorMode { enabled: false });
        assert_eq!(
            text,
            "https://h\n\
             \x20 ✓ port              ok         443\n\
             \x20 ✗ login             cannot     no\\x07\n\
             \x20 - firmware updates  not tried  login comes first\n\
             \nFarrier cannot\nnext: farrier fault login-refused\n"
        );
    }
}
