//! Tests a BMC step by step: how far a connection gets, and what the BMC supports. Nothing is
//! changed and no identity is pinned; a refused login counts as everywhere.

use super::Datacenter;
use super::bmcs::{Visited, peer_at};
use super::controller::{device_shown, override_shown};
use super::scout::{glanced, ipmi_found, knock};
use crate::governor::Priority;
use crate::http_client::{Certificate, Endpoint, Fingerprint, Trust};
use crate::ipmi;
use crate::ipmi::is_ipmi;
use crate::redfish::{self, Bmc, BmcAddress, Reset, System, UnauthenticatedBmc};
use crate::scout::{Approach, Found, Report, Scout, Step};
use model::fault::{Code, Fault};
use model::time::Timestamp;
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::net::lookup_host;
use tokio::time::timeout;

/// For name resolution and for the TCP connection.
const PATIENCE: Duration = Duration::from_secs(10);
/// How many addresses, and how many unhealthy components, are named.
const MAX_NAMED: usize = 5;

impl Datacenter {
    pub(super) async fn try_out(&self, approach: &Approach) -> Report {
        let mut report = Report::default();
        match peer_at(&approach.endpoint) {
            Err(fault) => report.end(Step::Address, fault),
            Ok(peer) => {
                report.note(Step::Address, Ok(peer.clone()));
                if self.reach(approach, &mut report).await {
                    self.converse(&peer, approach, &mut report).await;
                }
            }
        }
        report.close();
        report
    }

    /// Checks the network path, without an admission by the governor. False: there is none.
    async fn reach(&self, approach: &Approach, report: &mut Report) -> bool {
        if is_ipmi(&approach.endpoint) {
            report.skip(
                Step::Port,
                "IPMI is asked by packets, which nobody takes or refuses; the login shows it",
            );
            report.skip(Step::Tls, "IPMI has no TLS; its sessions are encrypted in their own way");
            report.skip(Step::Root, "IPMI has no such thing");
            return true;
        }
        let endpoint = match BmcAddress::parse(&approach.endpoint) {
            Ok(address) => address.endpoint,
            Err(fault) => return report.needs(Step::Address, Err(fault)),
        };
        if !report.needs(Step::Name, resolved(&endpoint).await) {
            return false;
        }
        let knocked = knock(&endpoint, PATIENCE).await;
        let port = format!("{} takes connections", endpoint.port());
        let unreachable = |said| Fault::new(Code::BmcUnreachable, said);
        report.needs(Step::Port, knocked.map(|()| port).map_err(unreachable))
    }

    async fn converse(&self, peer: &str, approach: &Approach, report: &mut Report) {
        let limit = self.settings.call;
        let talk = async {
            self.talk(peer, approach, report).await;
            report.ended_by.clone().map_or(Ok(()), Err)
        };
        let talked = self.bmcs.governor.call(peer, Priority::Operator, limit, talk).await;
        // A timeout of the governor is not in the report yet.
        report.ended_by = talked.err();
    }

    async fn talk(&self, peer: &str, approach: &Approach, report: &mut Report) {
        let trust = match &approach.trust {
            Some(trust) => Ok((trust.clone(), None)),
            None => self.bmcs.trust(peer).await,
        };
        let (trust, known) = match trust {
            Ok(trust) => trust,
            Err(fault) => return report.end(Step::Tls, fault),
        };
        if !is_ipmi(&approach.endpoint) && !self.greet(approach, &trust, known, report).await {
            return;
        }
        if let Err(fault) = self.credential(&approach.credential).await {
            return report.end(Step::Login, fault);
        }
        let visit = self.bmcs.visit(peer, &approach.endpoint, &approach.credential, Some(trust));
        match visit.await {
            Err(fault) => report.end(Step::Login, fault),
            Ok(Visited::Redfish(bmc)) => {
                report.note(Step::Login, Ok("the credential is right".into()));
                try_redfish(&bmc, approach, report).await;
                bmc.close().await;
            }
            Ok(Visited::Ipmi(bmc)) => {
                report.note(Step::Login, Ok("the credential is right".into()));
                try_ipmi(&approach.endpoint, &bmc, report).await;
            }
        }
    }

    /// The checks that need no login.
    async fn greet(
        &self,
        approach: &Approach,
        trust: &Trust,
        known: Option<Fingerprint>,
        report: &mut Report,
    ) -> bool {
        let door = BmcAddress::parse(&approach.endpoint).and_then(|address| {
            UnauthenticatedBmc::new(address.endpoint, trust.clone(), &self.settings.redfish)
        });
        let door = match door {
            Ok(door) => door,
            Err(fault) => return report.needs(Step::Tls, Err(fault)),
        };
        let knocked = door.open_connection().await;
        match (knocked, door.certificate()) {
            (Ok(()), None) => {
                report.skip(
                    Step::Tls,
                    "http:// has none: whoever is on the way reads along, the password too",
                );
            }
            (Ok(()), Some(shown)) => {
                let believed = believed(trust, known);
                report.note(Step::Tls, Ok(format!("{believed}: {}", described(&shown))));
            }
            (Err(fault), shown) => {
                let shown = shown.map(|shown| format!("; it is {}", described(&shown)));
                let said = format!("{}{}", fault.said, shown.unwrap_or_default());
                return report.needs(Step::Tls, Err(Fault::new(fault.code, said)));
            }
        }
        let about = door.about().await.map(|about| match about {
            None => "it speaks only to those who are logged in".to_string(),
            Some(about) => {
                let vendor =
                    [about.vendor, about.product].into_iter().flatten().collect::<Vec<_>>();
                let version = about.redfish_version.unwrap_or_else(|| "of no version".into());
                format!("Redfish {version}, {}", listed(&vendor, "no vendor named"))
            }
        });
        report.needs(Step::Root, about)
    }
}

async fn try_redfish(bmc: &Bmc, approach: &Approach, report: &mut Report) {
    let system = match chosen(bmc, approach).await {
        Ok((system, found, said)) => {
            report.note(Step::Systems, Ok(said));
            report.chosen = Some(found.sighting);
            system
        }
        Err(fault) => return report.end(Step::Systems, fault),
    };
    report.note(Step::Power, system.power().await.map(|power| power.as_str().to_string()));
    report.note(Step::Resets, resets(&system).await);
    report.note(Step::Boot, boot(&system).await);
    report.note(Step::Media, media(&system).await);
    report.note(
        Step::Bios,
        system.bios().await.map(|bios| format!("{} settings", bios.current.len())),
    );
    let protocols = system.update_protocols().await;
    report.note(
        Step::Update,
        protocols.map(|all| format!("over {}", listed(&all, "whatever it knows"))),
    );
    report.note(Step::Tasks, bmc.tasks().await.map(|count| format!("it knows of {count}")));
    report.note(Step::Log, log(&system).await);
    report.note(Step::Sensors, sensors(&system).await);
    let quirks = match system.quirks().as_slice() {
        [] => "none that are known".to_string(),
        some => some.join("; "),
    };
    report.note(Step::Quirks, Ok(quirks));
}

/// The System that would be used, and a description of all, which the fault contains too.
async fn chosen(bmc: &Bmc, approach: &Approach) -> Result<(System, Found, String), Fault> {
    let hosts = bmc.hosts().await?;
    let alone = hosts.len() == 1;
    let mut told = Vec::new();
    for host in &hosts {
        let Found { sighting, .. } = glanced(bmc, host, alone).await?;
        let serial = Some(sighting.serial).filter(|serial| !serial.is_empty());
        let serial = serial.map_or("no serial".into(), |serial| format!("serial {serial}"));
        told.push(format!(
            "{} ({serial}, {})",
            host.id(),
            listed(&sighting.macs, "no MAC address")
        ));
    }
    let system = bmc.system(&approach.wanted).await.map_err(|fault| {
        let said = format!(
            "{}. Found: {}; name one by --serial or --mac, or by its path in the endpoint",
            fault.said,
            told.join("; ")
        );
        Fault::new(fault.code, said)
    })?;
    let found = glanced(bmc, &system, alone).await?;
    let said = format!("{}; {} would be chosen", told.join("; "), system.id());
    Ok((system, found, said))
}

async fn resets(system: &System) -> Result<String, Fault> {
    let resets = system.resets().await?;
    let words: Vec<String> = resets.iter().map(|kind| kind.as_str().to_string()).collect();
    let graceful = match resets.contains(&Reset::GracefulShutdown) {
        true => "",
        false => "; it cannot ask the system to shut down, only cut it off",
    };
    Ok(format!("{}{graceful}", listed(&words, "none")))
}

async fn boot(system: &System) -> Result<String, Fault> {
    let (now, sources) = (system.boot().await?, system.boot_sources().await?);
    let from_network =
        sources.is_empty() || sources.iter().any(|word| word == redfish::BootSource::Pxe.as_str());
    let offered = listed(&sources, "whatever it is asked for");
    match from_network {
        true => Ok(format!("{offered}; now {}", override_shown(&now))),
        false => {
            Err(Fault::new(Code::NotSupported, format!("it offers only {offered}, and not Pxe")))
        }
    }
}

async fn media(system: &System) -> Result<String, Fault> {
    let drives = system.media().await?;
    let told: Vec<String> = drives
        .iter()
        .map(|drive| match &drive.image {
            Some(image) if drive.inserted => format!("{} (with {image})", drive.id),
            Some(_) | None => format!("{} (empty)", drive.id),
        })
        .collect();
    Ok(listed(&told, "no drive"))
}

async fn log(system: &System) -> Result<String, Fault> {
    let logs = system.logs().await?;
    Ok(match system.log(1).await?.first() {
        Some(entry) => format!("newest in {}: {}", entry.log, entry.message),
        None => format!("{}, empty", logs.join(", ")),
    })
}

async fn sensors(system: &System) -> Result<String, Fault> {
    let health = system.health().await?;
    let bad: Vec<String> = health
        .bad
        .iter()
        .take(MAX_NAMED)
        .map(|part| format!("{} is {}", part.name, part.health.as_str()))
        .collect();
    let all = format!("health {}, {} looked at", health.overall.as_str(), health.looked_at);
    match health.looked_at {
        0 if health.overall == redfish::Health::Unknown => {
            Err(Fault::new(Code::NotSupported, "it shows neither health nor sensors"))
        }
        _ => Ok(format!("{all}; {}", listed(&bad, "nothing is bad"))),
    }
}

async fn try_ipmi(endpoint: &str, bmc: &ipmi::Bmc, report: &mut Report) {
    let found = ipmi_found(endpoint, bmc).await;
    let said = |found: &Found| format!("one, {}, {}", found.sighting.vendor, found.sighting.model);
    let told = found.as_ref().map(said).map_err(Clone::clone);
    if !report.needs(Step::Systems, told) {
        return;
    }
    report.chosen = found.ok().map(|found| found.sighting);
    let power = bmc.power().await;
    report.note(Step::Power, power.map(|power| format!("{power:?}")));
    report.note(Step::Resets, Ok("on, off, cycle, and asking the system to shut down".into()));
    let boot = bmc.boot().await.map(|boot| device_shown(boot.from));
    report.note(Step::Boot, boot.map(|from| format!("network, disk, CD; now {from}")));
    let log = bmc.events(1).await;
    let newest = |events: Vec<ipmi::Event>| events.first().map(ipmi::Event::said);
    report.note(Step::Log, log.map(|events| newest(events).unwrap_or_else(|| "empty".into())));
    for step in [Step::Media, Step::Bios, Step::Update, Step::Tasks, Step::Sensors] {
        report
            .note(step, Err(Fault::new(Code::NotSupported, "Farrier does this over Redfish only")));
    }
}

async fn resolved(endpoint: &Endpoint) -> Result<String, Fault> {
    let unreachable = |why: String| {
        let said = format!("{} has no address: {why}", endpoint.host());
        Fault::new(Code::BmcUnreachable, said)
    };
    let found = timeout(PATIENCE, lookup_host((endpoint.host(), endpoint.port()))).await;
    let found = found.map_err(|_| unreachable("no answer came".into()))?;
    let found = found.map_err(|error| unreachable(error.to_string()))?;
    let all: BTreeSet<String> = found.map(|address| address.ip().to_string()).collect();
    if all.contains(endpoint.host()) {
        return Ok("it is an address".into());
    }
    let all: Vec<String> = all.into_iter().take(MAX_NAMED).collect();
    Ok(format!("{} is {}", endpoint.host(), all.join(", ")))
}

/// Why a certificate is trusted.
fn believed(trust: &Trust, known: Option<Fingerprint>) -> &'static str {
    match (trust, known) {
        (Trust::Ca(_), _) => "signed by an authority that is trusted",
        (Trust::Pinned(_), _) => "it is the one that is pinned",
        (Trust::FirstUse(_), Some(_)) => "it is the one that was trusted before",
        (Trust::FirstUse(_), None) => "not known yet; it would be trusted on first use",
    }
}

fn described(certificate: &Certificate) -> String {
    let Certificate { fingerprint, issuer, subject, self_signed, expires_at } = certificate;
    let nameless = || "somebody without a name".to_string();
    let by = match self_signed {
        true => "by itself".to_string(),
        false => format!("by {}", issuer.clone().unwrap_or_else(nameless)),
    };
    let until = expires_at.map_or("a time it does not say".into(), day);
    let now: Timestamp = crate::clock::now();
    let expired = if expires_at.is_some_and(|at| at < now) { ", which is over" } else { "" };
    let whose = subject.clone().unwrap_or_else(nameless);
    format!("the certificate of {whose}, signed {by}, until {until}{expired}, {fingerprint}")
}

fn day(at: Timestamp) -> String {
    let instant = jiff::Timestamp::from_microsecond(at.as_micros());
    instant.map_or("a time out of all range".into(), |at| at.strftime("%Y-%m-%d").to_string())
}

fn listed(words: &[String], none: &str) -> String {
    if words.is_empty() { none.to_string() } else { words.join(", ") }
}
