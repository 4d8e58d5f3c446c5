//! Services of a BMC beside its hardware: the privileges of the login, and telemetry.

use super::Bmc;
use super::client::{MAX_MEMBERS, RedfishClient, Skipped};
use super::decode::Resource;
use super::system::System;
use model::fault::{Fault, FaultCode, Result};
use serde_json::json;
use std::sync::Arc;

/// The privilege that switching power and updating firmware needs.
const NEEDED: &str = "ConfigureComponents";

/// The privilege of the login.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LoginPrivilege {
    /// It may change the device; with its role.
    Configure(String),
    /// It may only read; with its role.
    ReadOnly(String),
    /// The device does not show it.
    Unknown,
}

/// The state of the telemetry service of a device.
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
    link: Arc<RedfishClient>,
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
    pub async fn login_privilege(&self) -> Result<LoginPrivilege> {
        let mut skipped = Skipped::new();
        let Some(path) = &self.accounts else { return Ok(LoginPrivilege::Unknown) };
        let Some(service) = self.read_if_permitted(path, &mut skipped).await? else {
            return Ok(LoginPrivilege::Unknown);
        };
        let Some(list) = service.root().link("Accounts") else {
            return Ok(LoginPrivilege::Unknown);
        };
        if self.read_if_permitted(&list, &mut skipped).await?.is_none() {
            return Ok(LoginPrivilege::Unknown);
        }
        let accounts = self.link.members(&list, MAX_MEMBERS, &mut skipped).await?;
        let user = self.link.login().user.as_str();
        let own = accounts.iter().find(|one| one.root().text("UserName").as_deref() == Some(user));
        let Some(own) = own else { return Ok(LoginPrivilege::Unknown) };
        let role = own.root().text("RoleId").unwrap_or_else(|| "no role".into());
        let rights = match own.root().get("Links").link("Role") {
            Some(path) => self.read_if_permitted(&path, &mut skipped).await?,
            None => None,
        };
        let rights = rights.map(|role| role.root().texts("AssignedPrivileges"));
        Ok(classify_role(role, rights.as_deref().unwrap_or_default()))
    }

    /// Reads a resource that may be forbidden to this login, which is not a refused login.
    async fn read_if_permitted(
        &self,
        path: &str,
        skipped: &mut Skipped,
    ) -> Result<Option<Resource>> {
        match self.link.find_or_skip(path, skipped).await {
            Err(fault) if fault.code == FaultCode::LoginRefused => Ok(None),
            other => other,
        }
    }

    /// Reads the state of the telemetry service. With `change` it is switched on where possible.
    pub async fn telemetry(&self, change: bool) -> Result<Telemetry> {
        let Some(path) = &self.telemetry else { return Ok(Telemetry::Absent) };
        let Some(service) = self.link.find_or_skip(path, &mut Skipped::new()).await? else {
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
                let message =
                    format!("{} was told to enable {path}, and did not", self.link.endpoint());
                Err(Fault::new(FaultCode::ReadBackDiffers, message))
            }
        }
    }
}

/// Decides by the privileges of the role, or by the role's standard name if none are shown.
fn classify_role(role: String, rights: &[String]) -> LoginPrivilege {
    let may = match rights {
        [] => match role.as_str() {
            "Administrator" | "Operator" => true,
            "ReadOnly" | "NoAccess" => false,
            _ => return LoginPrivilege::Unknown,
        },
        some => some.iter().any(|right| right == NEEDED),
    };
    if may { LoginPrivilege::Configure(role) } else { LoginPrivilege::ReadOnly(role) }
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
            ("Administrator", rights(&[]), LoginPrivilege::Configure("Administrator".into())),
            ("ReadOnly", rights(&[]), LoginPrivilege::ReadOnly("ReadOnly".into())),
            ("Custom3", rights(&[]), LoginPrivilege::Unknown),
            ("Custom3", rights(&["Login", NEEDED]), LoginPrivilege::Configure("Custom3".into())),
            ("Administrator", rights(&["Login"]), LoginPrivilege::ReadOnly("Administrator".into())),
        ] {
            assert_eq!(classify_role(role.into(), &some), expected);
        }
    }
}
