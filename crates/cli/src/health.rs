//! `farrier health`: alerts that external systems report about machines, racks, switches and power
//! shelves.

use crate::args::{
    HealthCommand, HealthDeleteArgs, HealthListArgs, HealthReplaceArgs, HealthReportArgs,
};
use crate::client::{Client, fetch_pages};
use crate::exit::{Exit, Result};
use crate::filter::{FilterText, empty_list_note};
use crate::output::Screen;
use crate::table::{Cell, ColorMode, Table, Tone, format_pairs};
use crate::time::Clock;
use proto::v1::{
    DeleteHealthReportRequest, GetHealthRequest, Health, HealthBar, ListHealthRequest,
    MergeHealthReportRequest, ReplaceHealthReportRequest,
};
use proto::words::WireEnum;

pub async fn run(client: &Client, screen: &mut Screen, command: HealthCommand) -> Result<Exit> {
    let (health, dry_run) = match command {
        HealthCommand::List(args) => return list(client, screen, args).await,
        HealthCommand::Get(args) => {
            let request = GetHealthRequest { id: args.id };
            (client.call(client.health().get_health(request)).await?, false)
        }
        HealthCommand::Report(args) => {
            let HealthReportArgs { id, source, alerts, dry_run } = args;
            let request = MergeHealthReportRequest { id, source, alerts, dry_run };
            (client.call(client.health().merge_health_report(request)).await?, dry_run)
        }
        HealthCommand::Replace(args) => {
            let HealthReplaceArgs { id, source, alerts, dry_run } = args;
            let request = ReplaceHealthReportRequest { id, source, alerts, dry_run };
            (client.call(client.health().replace_health_report(request)).await?, dry_run)
        }
        HealthCommand::Delete(args) => {
            let HealthDeleteArgs { id, source, alerts: alert_ids, dry_run } = args;
            let request = DeleteHealthReportRequest { id, source, alert_ids, dry_run };
            (client.call(client.health().delete_health_report(request)).await?, dry_run)
        }
    };
    screen.print_record(&health, |health| {
        let would = match dry_run {
            true => "would be reported like this; nothing was changed\n\n",
            false => "",
        };
        format!("{would}{}", format_health(health, &Clock::system()))
    })?;
    Ok(Exit::Success)
}

async fn list(client: &Client, screen: &mut Screen, args: HealthListArgs) -> Result<Exit> {
    let filter = FilterText::typed(&args.list.filter).equal("source", &args.source);
    let filter = filter.equal("classification", &args.class).build();
    let objects = fetch_pages(args.list.limit, async |page_size, page_token| {
        let request = ListHealthRequest { page_size, page_token, filter: filter.clone() };
        let page = client.call(client.health().list_health(request)).await?;
        Ok((page.objects, page.next_page_token, page.unreadable_rows))
    })
    .await?;
    screen.print_list(&objects, table, empty_list_note(&filter, "no alerts"))?;
    Ok(Exit::Success)
}

fn format_health(health: &Health, clock: &Clock) -> String {
    let object = format!("{} ({})", health.id, health.kind().word().replace('_', " "));
    let mut text = format_pairs(&[("Object:", object), ("Alerts:", health.alerts.to_string())]);
    text.push_str(&format_section(health, clock));
    text
}

/// The health section of another object's details; empty if there are no alerts.
pub fn optional_section(health: Option<&Health>, clock: &Clock) -> String {
    health.map(|health| format_section(health, clock)).unwrap_or_default()
}

/// The prevented actions, and all alerts; empty if there are none.
fn format_section(health: &Health, clock: &Clock) -> String {
    if health.alerts == 0 {
        return String::new();
    }
    let mut text = String::from("\n");
    for bar in &health.bars {
        text.push_str(&format_pairs(&[(&format!("{}:", bar.classification), format_bar(bar))]));
    }
    if !health.bars.is_empty() {
        text.push('\n');
    }
    let mut table = Table::new(&["ALERT", "SOURCE", "PART", "SINCE", "CLASSIFICATIONS", "MESSAGE"]);
    for report in &health.reports {
        for alert in &report.alerts {
            table.add_row(vec![
                (&alert.id).into(),
                (&report.source).into(),
                (&alert.target).into(),
                clock.ago(alert.since.as_ref()).into(),
                alert.classifications.join(",").into(),
                (&alert.message).into(),
            ]);
        }
    }
    text.push_str(&table.render(ColorMode { enabled: false }));
    text
}

fn format_bar(bar: &HealthBar) -> String {
    format!("{} reports {}: {}", bar.source, bar.alert, bar.message)
}

fn table(objects: &[Health], wide: bool) -> Table {
    let names = ["OBJECT", "KIND", "ALERTS", "PREVENTS"];
    let mut table =
        Table::new(&if wide { [&names[..], &["SOURCES"]].concat() } else { names.to_vec() });
    for health in objects {
        let bars = health.bars.iter().map(|bar| bar.classification.replace("prevent-", ""));
        let bars = bars.collect::<Vec<_>>().join(",");
        let tone = if bars.is_empty() { Tone::Plain } else { Tone::Warn };
        let mut row = vec![
            (&health.id).into(),
            health.kind().word().into(),
            health.alerts.to_string().into(),
            Cell::with_tone(bars, tone),
        ];
        if wide {
            let sources = health.reports.iter().map(|report| report.source.as_str());
            row.push(sources.collect::<Vec<_>>().join(",").into());
        }
        table.add_row(row);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::v1::TargetKind;
    use proto::v1::{HealthAlert, HealthReport};

    #[test]
    fn what_is_prevented_stands_above_the_alerts() {
        let alert = HealthAlert {
            id: "fan-3".into(),
            message: "it stands\u{1b} still".into(),
            classifications: vec!["prevent-allocations".into(), "site-7".into()],
            since: Some(proto::Timestamp { seconds: 36_001, nanos: 0 }),
            ..Default::default()
        };
        let bar = HealthBar {
            classification: "prevent-allocations".into(),
            source: "dcim".into(),
            alert: "fan-3".into(),
            message: "it stands still".into(),
        };
        let health = Health {
            id: "ps-1".into(),
            kind: TargetKind::PowerShelf.into(),
            reports: vec![HealthReport {
                source: "dcim".into(),
                alerts: vec![alert],
                ..Default::default()
            }],
            alerts: 1,
            bars: vec![bar],
        };
        assert_eq!(
            format_health(&health, &Clock::fixed(36_721)),
            "\
Object:  ps-1 (power shelf)
Alerts:  1

prevent-allocations:  dcim reports fan-3: it stands still

ALERT  SOURCE  PART  SINCE       CLASSIFICATIONS             MESSAGE
fan-3  dcim    -     12m 0s ago  prevent-allocations,site-7  it stands\\x1b still
"
        );
        let well =
            Health { id: "m-1".into(), kind: TargetKind::Machine.into(), ..Default::default() };
        assert_eq!(format_health(&well, &Clock::fixed(0)), "Object:  m-1 (machine)\nAlerts:  0\n");
    }
}
