//! A BMC after the login, by Redfish, or by IPMI where there is no Redfish.

use crate::power::{PowerCommand, PowerState};
use crate::redfish::Health;
use crate::{ipmi, redfish};
use model::effect::NetbootMode;
use model::fault::{Fault, FaultCode, Result};

pub enum Controller {
    Redfish(Box<redfish::System>),
    /// A power shelf: it has power and firmware, and nothing to boot.
    Shelf(Box<redfish::Shelf>),
    Ipmi(ipmi::Bmc),
}

/// The identity that a device reports.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Identity {
    pub vendor: Option<String>,
    pub model: Option<String>,
    pub serial: Option<String>,
}

impl Controller {
    pub async fn power(&self) -> Result<PowerState> {
        Ok(match self {
            Self::Redfish(system) => power_state(system.power().await?),
            Self::Shelf(shelf) => power_state(shelf.power().await?),
            Self::Ipmi(bmc) => match bmc.power().await? {
                ipmi::Power::On => PowerState::On,
                ipmi::Power::Off => PowerState::Off,
            },
        })
    }

    /// The unhealthy components that the BMC reports, the worst first.
    pub async fn unhealthy_components(&self) -> Result<Vec<String>> {
        match self {
            Self::Ipmi(bmc) => Ok(bmc.faults().await?.into_iter().map(str::to_owned).collect()),
            Self::Redfish(_) | Self::Shelf(_) => {
                let report = self.redfish("health")?.health().await?;
                Ok(list_unhealthy(report.overall, &report.unhealthy, &report.redundancy))
            }
        }
    }

    /// Closes the connection and keeps the session.
    pub fn close_idle(&self) {
        match self {
            Self::Redfish(system) => system.close_idle(),
            Self::Shelf(shelf) => shelf.place().close_idle(),
            // IPMI opens a session for each request.
            Self::Ipmi(_) => {}
        }
    }

    /// True if it supports a graceful shutdown.
    pub async fn can_shut_down(&self) -> Result<bool> {
        match self {
            Self::Redfish(system) => {
                Ok(system.resets().await?.contains(&redfish::Reset::GracefulShutdown))
            }
            // A shelf has no operating system.
            Self::Shelf(_) => Ok(false),
            Self::Ipmi(_) => Ok(true),
        }
    }

    /// Sends a power command. Success means that it was accepted, not that the state holds.
    pub async fn send_power_command(&self, request: PowerCommand) -> Result<()> {
        match self {
            Self::Redfish(system) => {
                let known = system.resets().await?;
                let kind = reset_for(request, &known)
                    .ok_or_else(|| unsupported_command(request, &known))?;
                system.reset(kind).await
            }
            Self::Shelf(shelf) => {
                let known = shelf.resets().await?;
                let kind = reset_for(request, &known)
                    .ok_or_else(|| unsupported_command(request, &known))?;
                shelf.reset(kind).await
            }
            Self::Ipmi(bmc) => {
                let kind = match request {
                    PowerCommand::Shutdown => ipmi::ChassisControl::Soft,
                    PowerCommand::ForceOff => ipmi::ChassisControl::Off,
                    PowerCommand::Start => ipmi::ChassisControl::On,
                };
                bmc.set_power(kind).await
            }
        }
    }

    /// The boot target of the next boot, in the device's words.
    pub async fn describe_boot(&self) -> Result<String> {
        match self {
            Self::Redfish(system) => Ok(describe_override(&system.boot().await?)),
            Self::Shelf(_) => Err(no_boot_target()),
            Self::Ipmi(bmc) => Ok(describe_boot_device(bmc.boot().await?.from)),
        }
    }

    /// True if the next boot uses this target; also the target that was read.
    pub async fn boots_from(&self, mode: NetbootMode) -> Result<(bool, String)> {
        match self {
            Self::Redfish(system) => {
                let desired = source(system, mode).await?;
                let observed = system.boot().await?;
                Ok((observed.boots_from(desired), describe_target(&observed)))
            }
            Self::Shelf(_) => Err(no_boot_target()),
            Self::Ipmi(bmc) => {
                let observed = bmc.boot().await?;
                let desired = ipmi::BootFrom::Device(device(mode));
                Ok((observed.from == desired, format!("{:?}", observed.from)))
            }
        }
    }

    /// Inserts an ISO as virtual media, and boots from it once.
    pub async fn boot_iso(&self, url: &str) -> Result<String> {
        let system = match self {
            Self::Redfish(system) => system,
            Self::Shelf(_) => return Err(no_boot_target()),
            Self::Ipmi(_) => {
                let message = "a BMC that speaks IPMI only cannot show a disc to its machine";
                return Err(Fault::new(FaultCode::NotSupported, message));
            }
        };
        system.insert_media(url).await?;
        let (source, span) = (redfish::BootSource::Cd, redfish::BootSpan::Once);
        Ok(describe_target(&system.set_boot(source, span).await?))
    }

    /// Ejects the ISO if it is inserted.
    pub async fn eject_iso(&self, url: &str) -> Result<()> {
        let Self::Redfish(system) = self else { return Ok(()) };
        for drive in system.media().await? {
            if drive.inserted && drive.image.as_deref() == Some(url) {
                system.eject_media(&drive.path).await?;
            }
        }
        Ok(())
    }

    /// Sets the target of the next boot and reads it back. Returns the target that was read.
    pub async fn boot_from(&self, mode: NetbootMode) -> Result<String> {
        match self {
            Self::Redfish(system) => {
                let desired = source(system, mode).await?;
                Ok(describe_target(&system.set_boot(desired, redfish::BootSpan::Once).await?))
            }
            Self::Shelf(_) => Err(no_boot_target()),
            Self::Ipmi(bmc) => {
                let observed = bmc.set_boot(device(mode), ipmi::BootDuration::Once).await?;
                Ok(format!("{:?}", observed.from))
            }
        }
    }
}

/// The functions that every Redfish device has.
impl Controller {
    fn redfish(&self, what: &str) -> Result<&redfish::System> {
        match self {
            Self::Redfish(system) => Ok(system),
            Self::Shelf(shelf) => Ok(shelf.place()),
            Self::Ipmi(_) => {
                let message = format!(
                    "a BMC that speaks IPMI only tells nothing of {what}; give its https:// address"
                );
                Err(Fault::new(FaultCode::NotSupported, message))
            }
        }
    }

    pub async fn components(&self) -> Result<redfish::Components> {
        self.redfish("firmware")?.components().await
    }

    pub fn updates(&self) -> Result<&redfish::UpdateService> {
        Ok(self.redfish("firmware updates")?.updates())
    }

    pub fn services(&self) -> Result<&redfish::Services> {
        Ok(self.redfish("accounts and telemetry")?.services())
    }

    /// The number of sensors, fans and power supplies that it reports.
    pub async fn readings(&self) -> Result<usize> {
        Ok(self.redfish("sensors")?.health().await?.components_read)
    }

    pub async fn identity(&self) -> Result<Identity> {
        let poll = self.redfish("a serial number")?.identity().await?;
        let redfish::SystemIdentity { vendor, model, serial, .. } = poll;
        Ok(Identity { vendor, model, serial })
    }
}

const fn power_state(power: redfish::Power) -> PowerState {
    match power {
        redfish::Power::On => PowerState::On,
        redfish::Power::Off => PowerState::Off,
        redfish::Power::PoweringOn | redfish::Power::PoweringOff => PowerState::Changing,
    }
}

fn no_boot_target() -> Fault {
    Fault::new(FaultCode::NotSupported, "a power shelf boots nothing")
}

/// Names components without their readings, so that the text stays the same between probes.
fn list_unhealthy(
    overall: Health,
    bad: &[redfish::UnhealthyComponent],
    redundancy: &[redfish::Redundancy],
) -> Vec<String> {
    let ill = |health: Health| health >= Health::Warning;
    let parts = bad.iter().map(|part| format!("{} {}", part.name, part.health.as_str()));
    let spare = redundancy.iter().filter(|spare| ill(spare.health));
    let spare = spare.map(|spare| format!("redundancy {} {}", spare.name, spare.health.as_str()));
    let named: Vec<String> = parts.chain(spare).collect();
    match (named.is_empty(), ill(overall)) {
        (true, true) => vec![format!("system {}", overall.as_str())],
        (true, false) | (false, _) => named,
    }
}

/// The preferred reset type that the device supports; some have no plain On.
fn reset_for(request: PowerCommand, known: &[redfish::Reset]) -> Option<redfish::Reset> {
    use redfish::Reset;
    let desired: &[Reset] = match request {
        PowerCommand::Shutdown => &[Reset::GracefulShutdown],
        PowerCommand::ForceOff => &[Reset::ForceOff],
        PowerCommand::Start => &[Reset::On, Reset::ForceOn, Reset::PushPowerButton],
    };
    desired.iter().copied().find(|kind| known.contains(kind))
}

fn unsupported_command(request: PowerCommand, known: &[redfish::Reset]) -> Fault {
    let desired = match request {
        PowerCommand::Shutdown => "shut down",
        PowerCommand::ForceOff => "power off",
        PowerCommand::Start => "power on",
    };
    let known: Vec<&str> = known.iter().map(|kind| kind.as_str()).collect();
    let message = format!("the BMC cannot {desired}; it knows {}", known.join(", "));
    Fault::new(FaultCode::NotSupported, message)
}

/// `Disk` means the machine's own boot order, which has its disk first.
async fn source(system: &redfish::System, mode: NetbootMode) -> Result<redfish::BootSource> {
    match mode {
        NetbootMode::Pxe => Ok(redfish::BootSource::Pxe),
        NetbootMode::Disk => system.disk_boot_source().await,
    }
}

const fn device(mode: NetbootMode) -> ipmi::BootDevice {
    match mode {
        NetbootMode::Pxe => ipmi::BootDevice::Pxe,
        NetbootMode::Disk => ipmi::BootDevice::None,
    }
}

/// A disabled override may still name its former target.
pub fn describe_override(observed: &redfish::BootOverride) -> String {
    match observed.boots_from(redfish::BootSource::None) {
        true => format!("its own boot order, by {}", describe_target(observed)),
        false => describe_target(observed),
    }
}

pub fn describe_boot_device(from: ipmi::BootFrom) -> String {
    match from {
        ipmi::BootFrom::Device(ipmi::BootDevice::None) => "its own boot order".into(),
        ipmi::BootFrom::Device(ipmi::BootDevice::Pxe) => "the network".into(),
        ipmi::BootFrom::Device(ipmi::BootDevice::Disk) => "the disk".into(),
        ipmi::BootFrom::Device(ipmi::BootDevice::Cdrom) => "the CD drive".into(),
        ipmi::BootFrom::Unlisted(number) => {
            format!("device {number:#04x} of the IPMI specification")
        }
    }
}

fn describe_target(observed: &redfish::BootOverride) -> String {
    match observed.span {
        Some(span) => format!("{} ({})", observed.target, span.as_str()),
        None => observed.target.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use redfish::Reset;

    #[test]
    fn unhealthy_components_are_named() {
        use redfish::{Redundancy, UnhealthyComponent};
        let fan = UnhealthyComponent {
            name: "Fan 3".into(),
            health: Health::Critical,
            reading: Some("0 RPM".into()),
        };
        let spare = |health| Redundancy { name: "Fans".into(), health };
        for (overall, bad, redundancy, expected) in [
            (Health::Ok, vec![], vec![spare(Health::Ok)], vec![]),
            (Health::Unknown, vec![], vec![], vec![]),
            (Health::Warning, vec![], vec![], vec!["system Warning"]),
            (Health::Critical, vec![fan.clone()], vec![], vec!["Fan 3 Critical"]),
            (
                Health::Ok,
                vec![fan],
                vec![spare(Health::Warning)],
                vec!["Fan 3 Critical", "redundancy Fans Warning"],
            ),
        ] {
            assert_eq!(list_unhealthy(overall, &bad, &redundancy), expected, "{overall:?} {bad:?}");
        }
    }

    #[test]
    fn the_preferred_reset_is_chosen() {
        let all = Reset::ALL;
        assert_eq!(reset_for(PowerCommand::Start, &all), Some(Reset::On));
        assert_eq!(
            reset_for(PowerCommand::Start, &[Reset::PushPowerButton]),
            Some(Reset::PushPowerButton)
        );
        assert_eq!(reset_for(PowerCommand::ForceOff, &all), Some(Reset::ForceOff));
        assert_eq!(reset_for(PowerCommand::Shutdown, &[Reset::ForceOff]), None);
        let fault = unsupported_command(PowerCommand::ForceOff, &[Reset::On, Reset::Nmi]);
        assert_eq!(fault.message, "the BMC cannot power off; it knows On, Nmi");
    }
}
