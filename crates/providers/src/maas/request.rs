//! The parameters of requests about machines, and their form encoding.

use crate::http_client::form::Form;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use secrecy::SecretString;
use std::collections::BTreeMap;
use std::fmt;

/// Selects the machines of a list. Unset fields match all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MachineFilter {
    /// System ids; empty: any.
    pub ids: Vec<String>,
    /// MAC addresses, as MAAS writes them; empty: any.
    pub macs: Vec<String>,
    pub hostname: Option<String>,
    pub pool: Option<String>,
    pub zone: Option<String>,
}

impl MachineFilter {
    pub fn by_mac(mac: &str) -> Self {
        Self { macs: vec![mac.to_owned()], ..Self::default() }
    }
}

/// The power driver of a machine in MAAS, with its parameters.
#[derive(Debug, Clone)]
pub enum PowerConfig {
    /// Not at all: a person does it.
    Manual,
    Redfish(Bmc),
    Ipmi(Bmc),
}

/// The address and login of a BMC.
#[derive(Clone)]
pub struct Bmc {
    pub address: String,
    pub user: String,
    pub password: SecretString,
    /// Other parameters by MAAS's names: `node_id`, `power_driver`, `cipher_suite_id`.
    pub extra_parameters: BTreeMap<String, String>,
}

impl fmt::Debug for Bmc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Bmc");
        shown.field("address", &self.address).field("user", &self.user).finish_non_exhaustive()
    }
}

impl PowerConfig {
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Manual => "manual",
            Self::Redfish(_) => "redfish",
            Self::Ipmi(_) => "ipmi",
        }
    }

    fn add_to_form(&self, form: Form) -> Form {
        let form = form.with("power_type", self.kind());
        let bmc = match self {
            Self::Manual => return form,
            Self::Redfish(bmc) | Self::Ipmi(bmc) => bmc,
        };
        let form = form
            .with("power_parameters_power_address", &bmc.address)
            .with("power_parameters_power_user", &bmc.user)
            .secret("power_parameters_power_pass", &bmc.password);
        let more = bmc.extra_parameters.iter();
        more.fold(form, |form, (name, value)| form.with(&format!("power_parameters_{name}"), value))
    }
}

/// A machine record to create.
#[derive(Debug, Clone)]
pub struct NewMachine {
    /// `amd64/generic`.
    pub architecture: String,
    pub macs: Vec<String>,
    pub hostname: Option<String>,
    pub power: PowerConfig,
    pub pool: Option<String>,
    pub zone: Option<String>,
    pub description: Option<String>,
    /// MAAS commissions a new machine at once unless this is false.
    pub commission: bool,
}

impl NewMachine {
    pub(super) fn form(&self) -> Form {
        let form = Form::default()
            .with("architecture", &self.architecture)
            .each("mac_addresses", &self.macs)
            .with_optional("hostname", self.hostname.as_ref())
            .with_optional("pool", self.pool.as_ref())
            .with_optional("zone", self.zone.as_ref())
            .with_optional("description", self.description.as_ref())
            .with("commission", self.commission);
        self.power.add_to_form(form)
    }
}

/// A change of a machine record. Unset fields stay.
#[derive(Debug, Clone, Default)]
pub struct MachineChange {
    pub hostname: Option<String>,
    pub description: Option<String>,
    pub architecture: Option<String>,
    pub power: Option<PowerConfig>,
    pub pool: Option<String>,
    pub zone: Option<String>,
}

impl MachineChange {
    pub(super) fn form(&self) -> Form {
        let form = Form::default()
            .with_optional("hostname", self.hostname.as_ref())
            .with_optional("description", self.description.as_ref())
            .with_optional("architecture", self.architecture.as_ref())
            .with_optional("pool", self.pool.as_ref())
            .with_optional("zone", self.zone.as_ref());
        match &self.power {
            Some(power) => power.add_to_form(form),
            None => form,
        }
    }
}

/// The image to install, with its options. MAAS allocates a Ready machine first.
#[derive(Clone, Default)]
pub struct DeployRequest {
    /// `OS/RELEASE`, `custom/NAME` for an uploaded image. Unset: the region's default.
    pub image: Option<String>,
    /// For cloud-init; sent in base64. It may hold tokens.
    pub user_data: Option<SecretString>,
    /// As MAAS names it, `hwe-22.04`. Unset: MAAS's default.
    pub hwe_kernel: Option<String>,
    /// The deployed system reports its hardware to MAAS periodically.
    pub enable_hw_sync: bool,
    /// For MAAS's event log.
    pub comment: Option<String>,
}

impl fmt::Debug for DeployRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Deploy")
            .field("image", &self.image)
            .field("enable_hw_sync", &self.enable_hw_sync)
            .finish_non_exhaustive()
    }
}

impl DeployRequest {
    pub(super) fn form(&self) -> Form {
        use secrecy::ExposeSecret;
        let encoded = |data: &SecretString| STANDARD.encode(data.expose_secret());
        Form::default()
            // MAAS ignores `osystem` and takes a release without one for that of any system.
            .with_optional("distro_series", self.image.as_ref())
            .with_optional("hwe_kernel", self.hwe_kernel.as_ref())
            .with_optional("user_data", self.user_data.as_ref().map(encoded))
            .with("enable_hw_sync", self.enable_hw_sync)
            .with_optional("comment", self.comment.as_ref())
    }
}

/// The options with which a machine is commissioned.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CommissionRequest {
    /// MAAS makes no account of its own in the BMC.
    pub skip_bmc_config: bool,
    /// Names or tags of scripts; empty: MAAS chooses.
    pub scripts: Vec<String>,
    pub tests: Vec<String>,
}

impl CommissionRequest {
    pub(super) fn form(&self) -> Form {
        let list = |names: &[String]| (!names.is_empty()).then(|| names.join(","));
        Form::default()
            .with_optional("skip_bmc_config", self.skip_bmc_config.then_some(1))
            .with_optional("commissioning_scripts", list(&self.scripts))
            .with_optional("testing_scripts", list(&self.tests))
    }
}

/// The options with which a machine is released, and whether its disks are erased.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReleaseRequest {
    pub comment: Option<String>,
    pub erase: bool,
    /// Unset: the region's default. Both false: zeroes over every disk, which takes hours.
    pub secure_erase: Option<bool>,
    pub quick_erase: Option<bool>,
}

impl ReleaseRequest {
    pub(super) fn form(&self) -> Form {
        Form::default()
            .with_optional("comment", self.comment.as_ref())
            .with("erase", self.erase)
            .with_optional("secure_erase", self.secure_erase)
            .with_optional("quick_erase", self.quick_erase)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopMode {
    /// The operating system shuts down.
    Soft,
    Hard,
}

impl StopMode {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Soft => "soft",
            Self::Hard => "hard",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bmc() -> Bmc {
        let more = [("node_id".to_owned(), "1".to_owned())].into();
        Bmc {
            address: "10.0.0.5".into(),
            user: "root".into(),
            password: "hidden".into(),
            extra_parameters: more,
        }
    }

    #[test]
    fn a_new_machine_is_not_commissioned_by_default() {
        let new = NewMachine {
            architecture: "amd64/generic".into(),
            macs: vec!["aa:00".into(), "bb:00".into()],
            hostname: None,
            power: PowerConfig::Redfish(bmc()),
            pool: Some("gpu".into()),
            zone: None,
            description: None,
            commission: false,
        };
        assert_eq!(
            new.form().encoded(),
            "architecture=amd64%2Fgeneric&mac_addresses=aa%3A00&mac_addresses=bb%3A00&pool=gpu&commission=false\
             &power_type=redfish&power_parameters_power_address=10.0.0.5&power_parameters_power_user=root\
             &power_parameters_power_pass=hidden&power_parameters_node_id=1"
        );
    }

    #[test]
    fn the_region_chooses_the_erase_method_by_default() {
        let plain = ReleaseRequest { erase: true, ..ReleaseRequest::default() };
        assert_eq!(plain.form().encoded(), "erase=true");
        let quick = ReleaseRequest { quick_erase: Some(true), ..plain };
        assert_eq!(quick.form().encoded(), "erase=true&quick_erase=true");
    }

    #[test]
    fn maas_chooses_what_it_commissions_with_by_default() {
        assert!(CommissionRequest::default().form().is_empty());
        let chosen = CommissionRequest {
            skip_bmc_config: true,
            scripts: vec!["none".into()],
            tests: vec!["a".into(), "b".into()],
        };
        assert_eq!(
            chosen.form().encoded(),
            "skip_bmc_config=1&commissioning_scripts=none&testing_scripts=a%2Cb"
        );
    }

    #[test]
    fn only_what_is_set_is_changed() {
        assert!(MachineChange::default().form().is_empty());
        let manual = MachineChange { power: Some(PowerConfig::Manual), ..MachineChange::default() };
        assert_eq!(manual.form().encoded(), "power_type=manual");
    }

    #[test]
    fn secrets_are_not_in_debug_output() {
        let deploy = DeployRequest { user_data: Some("hidden".into()), ..DeployRequest::default() };
        assert!(deploy.form().encoded().starts_with("user_data=aGlkZGVu&"));
        let shown = format!("{deploy:?} {:?}", PowerConfig::Ipmi(bmc()));
        assert!(shown.contains("10.0.0.5") && !shown.contains("hidden"), "{shown}");
    }
}
