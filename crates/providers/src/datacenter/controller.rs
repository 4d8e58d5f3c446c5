//! A BMC that one is logged in at, whatever it speaks: Redfish, or IPMI where there is nothing better.

use super::power::{Ask, Power};
use crate::{ipmi, redfish};
use model::effect::NetbootMode;
use model::fault::{Code, Fault};

pub enum Controller {
    Redfish(Box<redfish::System>),
    Ipmi(ipmi::Bmc),
}

impl Controller {
    pub async fn power(&self) -> Result<Power, Fault> {
        Ok(match self {
            Self::Redfish(system) => match system.power().await? {
                redfish::Power::On => Power::On,
                redfish::Power::Off => Power::Off,
                redfish::Power::PoweringOn | redfish::Power::PoweringOff => Power::Changing,
            },
            Self::Ipmi(bmc) => match bmc.power().await? {
                ipmi::Power::On => Power::On,
                ipmi::Power::Off => Power::Off,
            },
        })
    }

    /// Whether it can ask the operating system to shut down.
    pub async fn can_shut_down(&self) -> Result<bool, Fault> {
        match self {
            Self::Redfish(system) => {
                Ok(system.resets().await?.contains(&redfish::Reset::GracefulShutdown))
            }
            Self::Ipmi(_) => Ok(true),
        }
    }

    /// Asks for a change of power. That it was taken does not mean that it happened.
    pub async fn ask(&self, ask: Ask) -> Result<(), Fault> {
        match self {
            Self::Redfish(system) => {
                let known = system.resets().await?;
                let kind = reset_for(ask, &known).ok_or_else(|| lacks(ask, &known))?;
                system.reset(kind).await
            }
            Self::Ipmi(bmc) => {
                let kind = match ask {
                    Ask::Shutdown => ipmi::PowerKind::Soft,
                    Ask::Cut => ipmi::PowerKind::Off,
                    Ask::Start => ipmi::PowerKind::On,
                };
                bmc.set_power(kind).await
            }
        }
    }

    /// What the next boot leads to, in the device's words.
    pub async fn boot_shown(&self) -> Result<String, Fault> {
        match self {
            Self::Redfish(system) => Ok(override_shown(&system.boot().await?)),
            Self::Ipmi(bmc) => Ok(device_shown(bmc.boot().await?.from)),
        }
    }

    /// Whether the next boot leads there. The text is what was seen.
    pub async fn boots_from(&self, mode: NetbootMode) -> Result<(bool, String), Fault> {
        match self {
            Self::Redfish(system) => {
                let wanted = source(system, mode).await?;
                let seen = system.boot().await?;
                Ok((seen.leads_to(wanted), shown(&seen)))
            }
            Self::Ipmi(bmc) => {
                let seen = bmc.boot().await?;
                let wanted = ipmi::BootFrom::Device(device(mode));
                Ok((seen.from == wanted, format!("{:?}", seen.from)))
            }
        }
    }

    /// Shows the machine a disc, and boots from it once.
    pub async fn boot_disc(&self, url: &str) -> Result<String, Fault> {
        let Self::Redfish(system) = self else {
            let said = "a BMC that speaks IPMI only cannot show a disc to its machine";
            return Err(Fault::new(Code::NotSupported, said));
        };
        system.insert_media(url).await?;
        let (source, span) = (redfish::BootSource::Cd, redfish::BootSpan::Once);
        Ok(shown(&system.set_boot(source, span).await?))
    }

    /// Takes the disc out again, if it is in.
    pub async fn take_disc_out(&self, url: &str) -> Result<(), Fault> {
        let Self::Redfish(system) = self else { return Ok(()) };
        for drive in system.media().await? {
            if drive.inserted && drive.image.as_deref() == Some(url) {
                system.eject_media(&drive.path).await?;
            }
        }
        Ok(())
    }

    /// Sets what the next boot leads to, and reads it back. The text is what was seen.
    pub async fn boot_from(&self, mode: NetbootMode) -> Result<String, Fault> {
        match self {
            Self::Redfish(system) => {
                let wanted = source(system, mode).await?;
                Ok(shown(&system.set_boot(wanted, redfish::BootSpan::Once).await?))
            }
            Self::Ipmi(bmc) => {
                let seen = bmc.set_boot(device(mode), ipmi::Lasts::Once).await?;
                Ok(format!("{:?}", seen.from))
            }
        }
    }
}

/// The best of what the device has; some have no plain On.
fn reset_for(ask: Ask, known: &[redfish::Reset]) -> Option<redfish::Reset> {
    use redfish::Reset;
    let wanted: &[Reset] = match ask {
        Ask::Shutdown => &[Reset::GracefulShutdown],
        Ask::Cut => &[Reset::ForceOff],
        Ask::Start => &[Reset::On, Reset::ForceOn, Reset::PushPowerButton],
    };
    wanted.iter().copied().find(|kind| known.contains(kind))
}

fn lacks(ask: Ask, known: &[redfish::Reset]) -> Fault {
    let wanted = match ask {
        Ask::Shutdown => "shut down",
        Ask::Cut => "power off",
        Ask::Start => "power on",
    };
    let known: Vec<&str> = known.iter().map(|kind| kind.as_str()).collect();
    let said = format!("the BMC cannot {wanted}; it knows {}", known.join(", "));
    Fault::new(Code::NotSupported, said)
}

/// Back to the disk means back to the machine's own boot order, which has its disk first.
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

/// An override that is switched off may still name what it led to.
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
    fn the_best_way_is_taken() {
        let all = Reset::ALL;
        assert_eq!(reset_for(Ask::Start, &all), Some(Reset::On));
        assert_eq!(reset_for(Ask::Start, &[Reset::PushPowerButton]), Some(Reset::PushPowerButton));
        assert_eq!(reset_for(Ask::Cut, &all), Some(Reset::ForceOff));
        assert_eq!(reset_for(Ask::Shutdown, &[Reset::ForceOff]), None);
        let fault = lacks(Ask::Cut, &[Reset::On, Reset::Nmi]);
        assert_eq!(fault.said, "the BMC cannot power off; it knows On, Nmi");
    }
}
