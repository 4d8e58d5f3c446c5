//! Power: reading and changing it.
//!
//! A BMC accepts a reset at once; the machine follows seconds or minutes later, or never. So
//! requesting ([`System::reset`]) and reading back ([`System::wait_for_power`]) are two calls, and
//! only the second confirms the change.

use super::client::RedfishClient;
use super::decode::{JsonNode, Resource};
use super::system::System;
use model::fault::{Fault, FaultCode, Result};
use model::time::Timestamp;
use serde_json::json;
use std::time::Duration;
use tokio::time::Instant;

pub(super) const ACTION: &str = "#ComputerSystem.Reset";

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Power {
    On,
    Off,
    PoweringOn,
    PoweringOff,
}

/// Redfish's `ResetType`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reset {
    On,
    ForceOn,
    ForceOff,
    GracefulShutdown,
    GracefulRestart,
    ForceRestart,
    PowerCycle,
    PushPowerButton,
    Nmi,
}

impl Power {
    pub const ALL: [Self; 4] = [Self::On, Self::Off, Self::PoweringOn, Self::PoweringOff];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::On => "On",
            Self::Off => "Off",
            Self::PoweringOn => "PoweringOn",
            Self::PoweringOff => "PoweringOff",
        }
    }

    pub(super) fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|power| power.as_str().eq_ignore_ascii_case(name))
    }
}

impl Reset {
    pub const ALL: [Self; 9] = [
        Self::On,
        Self::ForceOn,
        Self::ForceOff,
        Self::GracefulShutdown,
        Self::GracefulRestart,
        Self::ForceRestart,
        Self::PowerCycle,
        Self::PushPowerButton,
        Self::Nmi,
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::On => "On",
            Self::ForceOn => "ForceOn",
            Self::ForceOff => "ForceOff",
            Self::GracefulShutdown => "GracefulShutdown",
            Self::GracefulRestart => "GracefulRestart",
            Self::ForceRestart => "ForceRestart",
            Self::PowerCycle => "PowerCycle",
            Self::PushPowerButton => "PushPowerButton",
            Self::Nmi => "Nmi",
        }
    }
}

impl System {
    pub async fn power(&self) -> Result<Power> {
        let doc = self.read().await?;
        let name = doc.root().text("PowerState").ok_or_else(|| self.lacks("PowerState"))?;
        Power::parse(&name).ok_or_else(|| self.garbled(&format!("its power is {name:?}")))
    }

    /// The time of the last reset, if the device shows it. The Unix epoch counts as none.
    pub async fn last_reset(&self) -> Result<Option<Timestamp>> {
        let at = self.read().await?.root().time("LastResetTime");
        Ok(at.filter(|at| at.as_micros() > 0))
    }

    /// The resets that the device allows. A device that lists none is assumed to allow all.
    pub async fn resets(&self) -> Result<Vec<Reset>> {
        let doc = self.read().await?;
        resets_of(&self.link, &doc, ACTION).await
    }

    /// Requests a reset. On return the device has accepted it; whether it took effect is unknown.
    pub async fn reset(&self, kind: Reset) -> Result<()> {
        let doc = self.read().await?;
        let offered = resets_of(&self.link, &doc, ACTION).await?;
        if !offered.contains(&kind) {
            let names: Vec<&str> = offered.into_iter().map(Reset::as_str).collect();
            let what = format!("reset {}, only {},", kind.as_str(), names.join(", "));
            return Err(self.lacks(&what));
        }
        let target = doc.root().get("Actions").get(ACTION).link("target");
        let target = target.ok_or_else(|| self.lacks("Reset action"))?;
        self.link.post(&target, &json!({ "ResetType": kind.as_str() })).await.map(|_| ())
    }

    /// Reads until the power is as requested. Unreachable BMCs and invalid responses are retried
    /// until the time limit: some BMCs restart or lose their network together with the machine.
    pub async fn wait_for_power(&self, desired: Power, within: Duration) -> Result<()> {
        let deadline = Instant::now() + within;
        loop {
            let observed = self.power().await;
            match &observed {
                Ok(power) if *power == desired => return Ok(()),
                Err(fault) if !is_transient(fault.code) => return observed.map(|_| ()),
                Ok(_) | Err(_) => {}
            }
            if Instant::now() + self.poll_interval >= deadline {
                return Err(self.power_wait_fault(observed, desired, within));
            }
            tokio::time::sleep(self.poll_interval).await;
        }
    }

    fn power_wait_fault(&self, observed: Result<Power>, desired: Power, within: Duration) -> Fault {
        match observed {
            Err(fault) => fault,
            Ok(power) => {
                let message = format!(
                    "{} shows {} as {} and not {} after {} s",
                    self.link.endpoint(),
                    self.path,
                    power.as_str(),
                    desired.as_str(),
                    within.as_secs_f32()
                );
                Fault::new(FaultCode::ReadBackDiffers, message)
            }
        }
    }
}

/// The resets that a resource allows for this action; all of them if it lists none.
pub(super) async fn resets_of(
    link: &RedfishClient,
    doc: &Resource,
    action: &str,
) -> Result<Vec<Reset>> {
    let action = doc.root().get("Actions").get(action);
    let mut words = action.texts("ResetType@Redfish.AllowableValues");
    if words.is_empty()
        && let Some(info) = action.link("@Redfish.ActionInfo")
    {
        let info = link.find_or_skip(&info, &mut Vec::new()).await?;
        words = info.map(|info| allowed(info.root())).unwrap_or_default();
    }
    let offered = |kind: &Reset| words.is_empty() || words.iter().any(|name| name == kind.as_str());
    Ok(Reset::ALL.into_iter().filter(offered).collect())
}

/// True if a failed read may succeed when it is repeated.
const fn is_transient(code: FaultCode) -> bool {
    code.peer_unreachable() || matches!(code, FaultCode::AnswerGarbled | FaultCode::EffectFailed)
}

/// The values that an `ActionInfo` allows for `ResetType`.
fn allowed(info: JsonNode<'_>) -> Vec<String> {
    let is_kind = |parameter: &JsonNode<'_>| parameter.text("Name").as_deref() == Some("ResetType");
    info.list("Parameters")
        .find(is_kind)
        .map(|one| one.texts("AllowableValues"))
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_round_trips() {
        for power in Power::ALL {
            assert_eq!(Power::parse(power.as_str()), Some(power));
            assert_eq!(Power::parse(&power.as_str().to_lowercase()), Some(power));
        }
        assert_eq!(Power::parse("Paused"), None);
    }

    #[test]
    fn an_action_info_is_read() {
        let info = json!({"Parameters": [
            {"Name": "Other", "AllowableValues": ["A"]},
            {"Name": "ResetType", "AllowableValues": ["On", "ForceOff"]}]});
        assert_eq!(allowed(JsonNode(&info)), ["On", "ForceOff"]);
        assert!(allowed(JsonNode(&json!({}))).is_empty());
    }
}
