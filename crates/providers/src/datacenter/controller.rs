//! A BMC after the login, by Redfish, or by IPMI where there is no Redfish.

use crate::power::{PowerCommand, PowerState};
use crate::redfish::Health;
use crate::{ipmi, redfish};
use model::effect::NetbootMode;
use model::fault::{Code, Fault};

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
    pub async fn power(&self) -> Result<PowerState, Fault> {
        Ok(match self {
            Self::Redfish(system) => seen(system.power().await?),
            Self::Shelf(shelf) => seen(shelf.power().await?),
            Self::Ipmi(bmc) => match bmc.power().await? {
                ipmi::Power::On => PowerState::On,
                ipmi::Power::Off => PowerState::Off,
            },
        })
    }

    /// The unhealthy components that the BMC reports, the worst first.
    pub async fn ailments(&self) -> Result<Vec<String>, Fault> {
        match self {
            Self::Ipmi(bmc) => Ok(bmc.faults().await?.into_iter().map(str::to_owned).collect()),
            Self::Redfish(_) | Self::Shelf(_) => {
                let report = self.redfish("health")?.health().await?;
                Ok(ailments(report.overall, &report.bad, &report.redundancy))
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

    /// Whether it supports a graceful shutdown.
    pub async fn can_shut_down(&self) -> Result<bool, Fault> {
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
    pub async fn ask(&self, ask: PowerCommand) -> Result<(), Fault> {
        match self {
            Self::Redfish(system) => {
                let known = system.resets().await?;
                let kind = reset_for(ask, &known).ok_or_else(|| lacks(ask, &known))?;
                system.reset(kind).await
            }
            Self::Shelf(shelf) => {
                let known = shelf.resets().await?;
                let kind = reset_for(ask, &known).ok_or_else(|| lacks(ask, &known))?;
                shelf.reset(kind).await
            }
            Self::Ipmi(bmc) => {
                let kind = match ask {
                    PowerCommand::Shutdown => ipmi::PowerKind::Soft,
                    PowerCommand::Cut => ipmi::PowerKind::Off,
                    PowerCommand::Start => ipmi::PowerKind::On,
                };
                bmc.set_power(kind).await
            }
        }
    }

    /// The boot target of the next boot, in the device's words.
    pub async fn boot_shown(&self) -> Result<String, Fault> {
        match self {
            Self::Redfish(system) => Ok(override_shown(&system.boot().await?)),
            Self::Shelf(_) => Err(boots_nothing()),
            Self::Ipmi(bmc) => Ok(device_shown(bmc.boot().await?.from)),
        }
    }

    /// Whether the next boot uses this target, and the target that was read.
    pub async fn boots_from(&self, mode: NetbootMode) -> Result<(bool, String), Fault> {
        match self {
            Self::Redfish(system) => {
                let wanted = source(system, mode).await?;
                let seen = system.boot().await?;
                Ok((seen.leads_to(wanted), shown(&seen)))
            }
            Self::Shelf(_) => Err(boots_nothing()),
            Self::Ipmi(bmc) => {
                let seen = bmc.boot().await?;
                let wanted = ipmi::BootFrom::Device(device(mode));
                Ok((seen.from == wanted, format!("{:?}", seen.from)))
            }
        }
    }

    /// Inserts an ISO as virtual media, and boots from it once.
    pub async fn boot_disc(&self, url: &str) -> Result<String, Fault> {
        let system = match self {
            Self::Redfish(system) => system,
            Self::Shelf(_) => return Err(boots_nothing()),
            Self::Ipmi(_) => {
                let said = "a BMC that speaks IPMI only cannot show a disc to its machine";
                return Err(Fault::new(Code::NotSupported, said));
            }
        };
        system.insert_media(url).await?;
        let (source, span) = (redfish::BootSource::Cd, redfish::BootSpan::Once);
        Ok(shown(&system.set_boot(source, span).await?))
    }

    /// Ejects the ISO if it is inserted.
    pub async fn take_disc_out(&self, url: &str) -> Result<(), Fault> {
        let Self::Redfish(system) = self else { return Ok(()) };
        for drive in system.media().await? {
            if drive.inserted && drive.image.as_deref() == Some(url) {
                system.eject_media(&drive.path).await?;
            }
        }
        Ok(())
    }

    /// Sets the target of the next boot and reads it back. Returns the target that was read.
    pub async fn boot_from(&self, mode: NetbootMode) -> Result<String, Fault> {
        match self {
            Self::Redfish(system) => {
                let wanted = source(system, mode).await?;
                Ok(shown(&system.set_boot(wanted, redfish::BootSpan::Once).await?))
            }
            Self::Shelf(_) => Err(boots_nothing()),
            Self::Ipmi(bmc) => {
                let seen = bmc.set_boot(device(mode), ipmi::Lasts::Once).await?;
                Ok(format!("{:?}", seen.from))
            }
        }
    }
}

/// The functions that every Redfish device has.
impl Controller {
    fn redfish(&self, what: &str) -> Result<&redfish::System, Fault> {
        match self {
            Self::Redfish(system) => Ok(system),
            Self::Shelf(shelf) => Ok(shelf.place()),
            Self::Ipmi(_) => {
                let said = format!(
                    "a BMC that speaks IPMI only tells nothing of {what}; give its https:// address"
                );
                Err(Fault::new(Code::NotSupported, said))
            }
        }
    }

    pub async fn components(&self) -> Result<redfish::Components, Fault> {
        self.redfish("firmware")?.components().await
    }

    pub fn updates(&self) -> Result<&redfish::Updates, Fault> {
        Ok(self.redfish("firmware updates")?.updates())
    }

    pub fn services(&self) -> Result<&redfish::Services, Fault> {
        Ok(self.redfish("accounts and telemetry")?.services())
    }

    /// The number of sensors, fans and power supplies that it reports.
    pub async fn readings(&self) -> Result<usize, Fault> {
        Ok(self.redfish("sensors")?.health().await?.looked_at)
    }

    pub async fn identity(&self) -> Result<Identity, Fault> {
        let glance = self.redfish("a serial number")?.glance().await?;
        let redfish::Glance { vendor, model, serial, .. } = glance;
        Ok(Identity { vendor, model, serial })
    }
}

const fn seen(power: redfish::Power) -> PowerState {
    match power {
        redfish::Power::On => PowerState::On,
        redfish::Power::Off => PowerState::Off,
        redfish::Power::PoweringOn | redfish::Power::PoweringOff => PowerState::Changing,
    }
}

fn boots_nothing() -> Fault {
    Fault::new(Code::NotSupported, "a power shelf boots nothing")
}

/// Names components without their readings, so that the text stays the same between probes.
fn ailments(
    overall: Health,
    bad: &[redfish::BadPart],
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
fn reset_for(ask: PowerCommand, known: &[redfish::Reset]) -> Option<redfish::Reset> {
    use redfish::Reset;
    let wanted: &[Reset] = match ask {
        PowerCommand::Shutdown => &[Reset::GracefulShutdown],
        PowerCommand::Cut => &[Reset::ForceOff],
        PowerCommand::Start => &[Reset::On, Reset::ForceOn, Reset::PushPowerButton],
    };
    wanted.iter().copied().find(|kind| known.contains(kind))
}

fn lacks(ask: PowerCommand, known: &[redfish::Reset]) -> Fault {
    let wanted = match ask {
        PowerCommand::Shutdown => "shut down",
        PowerCommand::Cut => "power off",
        PowerCommand::Start => "power on",
    };
    let known: Vec<&str> = known.iter().map(|kind| kind.as_str()).collect();
    let said = format!("the BMC cannot {wanted}; it knows {}", known.join(", "));
    Fault::new(Code::NotSupported, said)
}

/// `Disk` means the machine's own boot order, which has its disk first.
async fn source(system: &redfish::System, mode: NetbootMode) -> Result<redfish::BootSource, Fault> {
    match mode {
        NetbootMode::Pxe => Ok(redfish::BootSource::Pxe),
        NetbootMode::Disk => system.back_to_disk().await,
    }
}

const fn device(mode: NetbootMode) -> ipmi::BootDevice {
    match mode {
        NetbootMode::Pxe => ipmi::BootDevice::Pxe,
        NetbootMode::Disk => ipmi::BootDevice::None,
    }
}

/// A disabled override may still name its former target.
pub fn override_shown(seen: &redfish::BootOverride) -> String {
    match seen.leads_to(redfish::BootSource::None) {
        true => format!("its own boot order, by {}", shown(seen)),
        false => shown(seen),
    }
}

pub fn device_shown(from: ipmi::BootFrom) -> String {
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

fn shown(seen: &redfish::BootOverride) -> String {
    match seen.span {
        Some(span) => format!("{} ({})", seen.word, span.as_str()),
        None => seen.word.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use redfish::Reset;

    #[test]
    fn what_is_not_well_is_named() {
        use redfish::{BadPart, Redundancy};
        let fan = BadPart {
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
            assert_eq!(ailments(overall, &bad, &redundancy), expected, "{overall:?} {bad:?}");
        }
    }

    #[test]
    fn the_best_way_is_taken() {
        let all = Reset::ALL;
        assert_eq!(reset_for(PowerCommand::Start, &all), Some(Reset::On));
        assert_eq!(
            reset_for(PowerCommand::Start, &[Reset::PushPowerButton]),
            Some(Reset::PushPowerButton)
        );
        assert_eq!(reset_for(PowerCommand::Cut, &all), Some(Reset::ForceOff));
        assert_eq!(reset_for(PowerCommand::Shutdown, &[Reset::ForceOff]), None);
        let fault = lacks(PowerCommand::Cut, &[Reset::On, Reset::Nmi]);
        assert_eq!(fault.said, "the BMC cannot power off; it knows On, Nmi");
    }
}
