//! `farrier health`.

use super::*;
use proto::v1::HealthAlert;

#[derive(Debug, Subcommand)]
pub enum HealthCommand {
    /// Show the reported alerts of a machine, rack, switch or power shelf
    Get(HealthArg),
    /// List objects with alerts
    List(HealthListArgs),
    /// Add alerts to the report of a source; its other alerts stay
    #[command(after_help = ALERT_HELP)]
    Report(HealthReportArgs),
    /// Replace the whole report of a source; without alerts the report is removed
    #[command(after_help = ALERT_HELP)]
    Replace(HealthReplaceArgs),
    /// Delete alerts of a source, or its whole report
    #[command(alias = "remove")]
    Delete(HealthDeleteArgs),
}

const ALERT_HELP: &str = "\
Examples:
  farrier health report machine-1 --source dcim --alert id=fan-3,message='fan 3 stands still',class=prevent-allocations
  farrier health replace rack-7 --source leak-sensor --alert id=leak,target=manifold,message=wet,class=prevent-state-changes

An alert is id=…,message=… and optionally target=… (the affected part) and class=… (can be
repeated).

Classifications with an effect; any other word is only stored and shown:
  prevent-allocations          it does not leave maintenance, join a cluster or have its node uncordoned
  prevent-state-changes        no new operation starts on it
  suppress-external-alerting   it is counted separately from the alerts that page an operator";

#[derive(Debug, Args)]
pub struct HealthArg {
    /// ID of a machine, rack-…, sw-… or ps-…
    pub id: String,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Filters; one alert must match all terms:\n  source=dcim AND classification=prevent-allocations\n  kind=rack    machine, switch, power_shelf, rack\n  id, alert, target"
)]
pub struct HealthListArgs {
    /// Only objects with an alert of this source
    #[arg(long, default_value = "", hide_default_value = true)]
    pub source: String,
    /// Only objects with an alert of this classification
    #[arg(long, value_name = "WORD", default_value = "", hide_default_value = true)]
    pub class: String,
    #[command(flatten)]
    pub list: FilteredListArgs,
}

#[derive(Debug, Args)]
pub struct HealthReportArgs {
    /// ID of a machine, rack-…, sw-… or ps-…
    pub id: String,
    /// Reporting system: lower-case letters, digits, dots, dashes and underscores
    #[arg(long)]
    pub source: String,
    /// Alert; can be repeated
    #[arg(long = "alert", value_name = "id=…,message=…", required = true, value_parser = parse_alert)]
    pub alerts: Vec<HealthAlert>,
}

#[derive(Debug, Args)]
pub struct HealthReplaceArgs {
    /// ID of a machine, rack-…, sw-… or ps-…
    pub id: String,
    /// Reporting system: lower-case letters, digits, dots, dashes and underscores
    #[arg(long)]
    pub source: String,
    /// Alert; can be repeated
    #[arg(long = "alert", value_name = "id=…,message=…", value_parser = parse_alert)]
    pub alerts: Vec<HealthAlert>,
}

#[derive(Debug, Args)]
pub struct HealthDeleteArgs {
    /// ID of a machine, rack-…, sw-… or ps-…
    pub id: String,
    /// Source of the report
    #[arg(long)]
    pub source: String,
    /// ID of an alert to delete (default: all alerts of the source)
    #[arg(long = "alert", value_name = "ID")]
    pub alerts: Vec<String>,
}

/// Parses `id=…,message=…,class=…`. A comma ends a value only if a key follows, so a message may
/// contain commas.
fn parse_alert(text: &str) -> Result<HealthAlert, String> {
    const KEYS: [&str; 4] = ["id=", "message=", "class=", "target="];
    let key_of = |piece: &str| KEYS.into_iter().find(|key| piece.starts_with(key));
    let mut pairs: Vec<(&str, String)> = Vec::new();
    for piece in text.split(',') {
        match (key_of(piece.trim_start()), pairs.last_mut()) {
            (Some(key), _) => pairs.push((key, piece.trim_start()[key.len()..].to_string())),
            (None, Some((_, value))) => *value = format!("{value},{piece}"),
            (None, None) => {
                return Err(format!("{piece:?} is no key of an alert; write id=…,message=…"));
            }
        }
    }
    let mut alert = HealthAlert::default();
    for (key, value) in pairs {
        match key {
            "id=" => alert.id = value,
            "message=" => alert.message = value,
            "target=" => alert.target = value,
            _ => alert.classifications.push(value),
        }
    }
    match alert.id.is_empty() || alert.message.is_empty() {
        true => Err("an alert has an id and a message; write id=…,message=…".into()),
        false => Ok(alert),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_alert_is_read_from_one_word() {
        let alert =
            parse_alert("id=fan-3,target=fan 3,message=slow, then still,class=a,class=b").unwrap();
        assert_eq!((alert.id.as_str(), alert.target.as_str()), ("fan-3", "fan 3"));
        assert_eq!(alert.message, "slow, then still");
        assert_eq!(alert.classifications, ["a", "b"]);
        for bad in ["", "fan", "id=a", "message=m", "id=,message=m", "colour=red,id=a,message=m"] {
            assert!(parse_alert(bad).is_err(), "{bad}");
        }
    }
}
