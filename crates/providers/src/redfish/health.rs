//! The health of a machine.
//!
//! A report combines the health of the System, the unhealthy sensors, fans and supplies of its
//! chassis, and the redundancy of cooling and power. A component that is absent or disabled is not
//! unhealthy, and neither is one without a health value: it is unknown.

use super::client::{MAX_MEMBERS, Skipped};
use super::decode::{JsonNode, Resource};
use super::system::System;
use model::fault::Result;

/// The most chassis of one System that are read.
const MAX_CHASSIS: usize = 16;
/// The most unhealthy components that are listed.
const MAX_BAD: usize = 100;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Health {
    Unknown,
    Ok,
    Warning,
    Critical,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnhealthyComponent {
    pub name: String,
    pub health: Health,
    /// The measured value with its unit, for a sensor.
    pub reading: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Redundancy {
    pub name: String,
    pub health: Health,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HealthReport {
    pub overall: Health,
    pub unhealthy: Vec<UnhealthyComponent>,
    pub redundancy: Vec<Redundancy>,
    /// The number of sensors, fans and supplies that were read.
    pub components_read: usize,
    /// The resources that could not be read, each with the reason.
    pub skipped: Vec<String>,
}

impl Health {
    pub const ALL: [Self; 4] = [Self::Unknown, Self::Ok, Self::Warning, Self::Critical];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Unknown => "Unknown",
            Self::Ok => "OK",
            Self::Warning => "Warning",
            Self::Critical => "Critical",
        }
    }

    fn parse(name: Option<String>) -> Self {
        let is = |health: &Self| name.as_deref().is_some_and(|name| name == health.as_str());
        Self::ALL.into_iter().find(is).unwrap_or(Self::Unknown)
    }

    /// The worse of a component's own health and its rollup.
    fn of(part: JsonNode<'_>) -> Self {
        let status = part.get("Status");
        match status.text("State").as_deref() {
            Some("Absent" | "Disabled" | "StandbyOffline" | "UnavailableOffline") => Self::Unknown,
            _ => Self::parse(status.text("Health")).max(Self::parse(status.text("HealthRollup"))),
        }
    }
}

impl System {
    pub async fn health(&self) -> Result<HealthReport> {
        let system = self.read().await?;
        let mut report = HealthReport {
            overall: Health::of(system.root()),
            unhealthy: Vec::new(),
            redundancy: Vec::new(),
            components_read: 0,
            skipped: Vec::new(),
        };
        // A power shelf may be a chassis itself.
        if system.root().text("ChassisType").is_some() {
            self.examine(&system, &mut report).await?;
        }
        let links = system.root().get("Links");
        let chassis: Vec<String> =
            links.list("Chassis").filter_map(JsonNode::as_link).take(MAX_CHASSIS).collect();
        for path in chassis {
            if let Some(chassis) = self.link.find_or_skip(&path, &mut report.skipped).await? {
                self.examine(&chassis, &mut report).await?;
            }
        }
        report.unhealthy.sort_by(|a, b| b.health.cmp(&a.health).then_with(|| a.name.cmp(&b.name)));
        report.unhealthy.dedup();
        report.unhealthy.truncate(MAX_BAD);
        Ok(report)
    }

    async fn examine(&self, chassis: &Resource, report: &mut HealthReport) -> Result<()> {
        let part = chassis.root();
        for (name, lists) in
            [("Thermal", ["Temperatures", "Fans"]), ("Power", ["PowerSupplies", "Voltages"])]
        {
            let Some(doc) = self.find_linked(part, name, &mut report.skipped).await? else {
                continue;
            };
            for list in lists {
                report.components_read += doc.root().list(list).count();
                report.unhealthy.extend(doc.root().list(list).filter_map(unhealthy_component));
            }
            report.redundancy.extend(doc.root().list("Redundancy").map(redundancy));
        }
        for (name, field) in
            [("ThermalSubsystem", "FanRedundancy"), ("PowerSubsystem", "PowerSupplyRedundancy")]
        {
            let Some(doc) = self.find_linked(part, name, &mut report.skipped).await? else {
                continue;
            };
            report.unhealthy.extend(unhealthy_component(doc.root()));
            report.redundancy.extend(doc.root().list(field).map(redundancy));
        }
        self.read_sensors(part, report).await
    }

    async fn find_linked(
        &self,
        part: JsonNode<'_>,
        name: &str,
        skipped: &mut Skipped,
    ) -> Result<Option<Resource>> {
        match part.link(name) {
            Some(path) => self.link.find_or_skip(&path, skipped).await,
            None => Ok(None),
        }
    }

    /// Reads `Sensors` only if the device can expand it: one by one it would take minutes.
    async fn read_sensors(&self, chassis: JsonNode<'_>, report: &mut HealthReport) -> Result<()> {
        let Some(path) = chassis.link("Sensors").filter(|_| self.expands) else { return Ok(()) };
        let complete = format!("{path}?$expand=.($levels=1)");
        let Some(list) = self.link.find_or_skip(&complete, &mut report.skipped).await? else {
            return Ok(());
        };
        report.components_read += list.root().list("Members").take(MAX_MEMBERS).count();
        report
            .unhealthy
            .extend(list.root().list("Members").take(MAX_MEMBERS).filter_map(unhealthy_component));
        Ok(())
    }
}

fn unhealthy_component(part: JsonNode<'_>) -> Option<UnhealthyComponent> {
    let health = Health::of(part);
    match health {
        Health::Unknown | Health::Ok => None,
        Health::Warning | Health::Critical => {
            Some(UnhealthyComponent { name: component_name(part), health, reading: reading(part) })
        }
    }
}

fn redundancy(part: JsonNode<'_>) -> Redundancy {
    Redundancy { name: component_name(part), health: Health::of(part) }
}

fn component_name(part: JsonNode<'_>) -> String {
    let fields = ["Name", "FanName", "Id", "MemberId", "GroupName", "RedundancyType", "Mode"];
    fields.iter().find_map(|field| part.text(field)).unwrap_or_else(|| "unnamed".to_owned())
}

fn reading(part: JsonNode<'_>) -> Option<String> {
    let measured = [("ReadingCelsius", "Cel"), ("ReadingVolts", "V")];
    let fixed = measured.iter().find_map(|(field, unit)| Some((part.text(field)?, *unit)));
    if let Some((value, unit)) = fixed {
        return Some(format!("{value} {unit}"));
    }
    let value = part.text("Reading")?;
    let unit = part.text("ReadingUnits").unwrap_or_default();
    Some(format!("{value} {unit}").trim_end().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_a_bad_health_value_is_unhealthy() {
        for (status, health) in [
            (json!({"Health": "OK"}), Health::Ok),
            (json!({"Health": "OK", "HealthRollup": "Critical"}), Health::Critical),
            (json!({"Health": "Warning", "State": "Enabled"}), Health::Warning),
            (json!({"Health": "Critical", "State": "Absent"}), Health::Unknown),
            (json!({"Health": null}), Health::Unknown),
            (json!(null), Health::Unknown),
        ] {
            let part =
                json!({"Name": "Fan 1", "Reading": 0, "ReadingUnits": "RPM", "Status": status});
            assert_eq!(Health::of(JsonNode(&part)), health, "{status}");
            let expected = (health >= Health::Warning).then(|| UnhealthyComponent {
                name: "Fan 1".into(),
                health,
                reading: Some("0 RPM".into()),
            });
            assert_eq!(unhealthy_component(JsonNode(&part)), expected, "{status}");
        }
    }

    #[test]
    fn readings_have_their_unit() {
        assert_eq!(reading(JsonNode(&json!({"ReadingCelsius": 41}))).as_deref(), Some("41 Cel"));
        assert_eq!(reading(JsonNode(&json!({"ReadingVolts": 11.9}))).as_deref(), Some("11.9 V"));
        assert_eq!(reading(JsonNode(&json!({}))), None);
    }
}
