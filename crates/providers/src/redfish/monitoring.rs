//! Services of a BMC beside its hardware: the privileges of the login, and telemetry.

use super::Bmc;
use super::client::{Link, MAX_MEMBERS, Skipped};
use super::decode::Doc;
use super::system::System;
use model::fault::{Code, Fault};
use serde_json::json;
use std::sync::Arc;

/// The privilege that switching power and updating firmware needs.
const NEEDED: &str = "ConfigureComponents";

/// What the login may do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// It may change the device; with its role.
    Administers(String),
    /// It may only read; with its role.
    Looks(String),
    /// The device does not show it.
    Untold,
}

/// Whether a device collects telemetry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Telemetry {
    Absent,
    Off,
    On,
    /// It was off and has been switched on.
    SwitchedOn,
}

#[derive(Clone)]
pub struct Services {
    link: Arc<Link>,
    accounts: Option<String>,
    telemetry: Option<String>,
}

impl Bmc {
    pub(super) fn services(&self) -> Services {
        let root = self.root.root();
        let (accounts, telemetry) = (root.link("AccountService"), root.link("TelemetryService"));
        Services { link: self.link.clone(), accounts, telemetry }
    }
}

impl Services {
    /// The privileges of the login; unknown if it may not read accounts.
    pub async fn standing(&self) -> Result<Standing, Fault> {
        let mut skipped = Skipped::new();
        let Some(path) = &self.accounts else { return Ok(Standing::Untold) };
        let Some(service) = self.open_to_us(path, &mut skipped).await? else {
            return Ok(Standing::Untold);
        };
        let Some(list) = service.root().link("Accounts") else { return Ok(Standing::Untold) };
        if self.open_to_us(&list, &mut skipped).await?.is_none() {
            return Ok(Standing::Untold);
        }
        let accounts = self.link.members(&list, MAX_MEMBERS, &mut skipped).await?;
        let user = self.link.login().user.as_str();
        let own = accounts.iter().find(|one| one.root().text("UserName").as_deref() == Some(user));
        let Some(own) = own else { return Ok(Standing::Untold) };
        let role = own.root().text("RoleId").unwrap_or_else(|| "no role".into());
        let rights = match own.root().get("Links").link("Role") {
            Some(path) => self.open_to_us(&path, &mut skipped).await?,
            None => None,
        };
        let rights = rights.map(|role| role.root().texts("AssignedPrivileges"));
        Ok(judged(role, rights.as_deref().unwrap_or_default()))
    }

    /// Reads a resource that may be forbidden to this login, which is not a refused login.
    async fn open_to_us(&self, path: &str, skipped: &mut Skipped) -> Result<Option<Doc>, Fault> {
        match self.link.glance(path, skipped).await {
            Err(fault) if fault.code == Code::LoginRefused => Ok(None),
            other => other,
        }
    }

    /// Whether the device collects telemetry. With `change` it is switched on where possible.
    pub async fn telemetry(&self, change: bool) -> Result<Telemetry, Fault> {
        let Some(path) = &self.telemetry else { return Ok(Telemetry::Absent) };
        let Some(service) = self.link.glance(path, &mut Skipped::new()).await? else {
            return Ok(Telemetry::Absent);
        };
        if service.root().flag("ServiceEnabled") != Some(false) {
            return Ok(Telemetry::On);
        }
        if !change {
            return Ok(Telemetry::Off);
        }
        self.link.patch(&service, &json!({ "ServiceEnabled": true })).await?;
        match self.link.get(path).await?.root().flag("ServiceEnabled") {
            Some(true) => Ok(Telemetry::SwitchedOn),
            Some(false) | None => {
                let said =
                    format!("{} was told to enable {path}, and did not", self.link.endpoint());
                Err(Fault::new(Code::ReadBackDiffers, said))
            }
        }
    }
}

/// Decides by the privileges of the role, or by the role's standard name if none are shown.
fn judged(role: String, rights: &[String]) -> Standing {
    let may = match rights {
        [] => match role.as_str() {
            "Administrator" | "Operator" => true,
            "ReadOnly" | "NoAccess" => false,
            _ => return Standing::Untold,
        },
        some => some.iter().any(|right| right == NEEDED),
    };
    if may { Standing::Administers(role) } else { Standing::Looks(role) }
}

impl System {
    pub const fn services(&self) -> &Services {
        &self.services
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_role_is_judged_by_its_rights() {
        let rights = |some: &[&str]| some.iter().map(|one| (*one).to_owned()).collect::<Vec<_>>();
        for (role, some, expected) in [
            ("Administrator", rights(&[]), Standing::Administers("Administrator".into())),
            ("ReadOnly", rights(&[]), Standing::Looks("ReadOnly".into())),
            ("Custom3", rights(&[]), Standing::Untold),
            ("Custom3", rights(&["Login", NEEDED]), Standing::Administers("Custom3".into())),
            ("Administrator", rights(&["Login"]), Standing::Looks("Administrator".into())),
        ] {
            assert_eq!(judged(role.into(), &some), expected);
        }
    }
}
