//! Tests a BMC step by step: how far a connection gets, and what the BMC supports. Nothing is
//! changed and no identity is pinned; a refused login counts as everywhere.

use super::Datacenter;
use super::bmc_discovery::{check_port, describe_ipmi_system, describe_system};
use super::bmcs::{ConnectedBmc, peer_of_endpoint};
use super::controller::{describe_boot_device, describe_override};
use crate::bmc_discovery::{BmcAccess, BmcCheck, BmcDiscovery, BmcTestReport, DiscoveredSystem};
use crate::fault::LocalShortage;
use crate::governor::Priority;
use crate::http_client::{Certificate, Endpoint, Fingerprint, Trust};
use crate::ipmi;
use crate::ipmi::is_ipmi;
use crate::redfish::{self, Bmc, BmcAddress, Reset, System, UnauthenticatedBmc};
use model::fault::{Fault, FaultCode, Result};
use model::time::Timestamp;
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::net::lookup_host;
use tokio::time::timeout;

/// For name resolution and for the TCP connection.
const NETWORK_TIMEOUT: Duration = Duration::from_secs(10);
/// The most addresses, and the most unhealthy components, that are named.
const MAX_NAMED: usize = 5;

impl Datacenter {
    pub(super) async fn run_bmc_test(&self, approach: &BmcAccess) -> BmcTestReport {
        let mut report = BmcTestReport::default();
        match peer_of_endpoint(&approach.endpoint) {
            Err(fault) => report.end(BmcCheck::Address, fault),
            Ok(peer) => {
                report.record(BmcCheck::Address, Ok(peer.clone()));
                if self.check_network(approach, &mut report).await {
                    self.check_bmc(&peer, approach, &mut report).await;
                }
            }
        }
        report.add_missing_checks();
        report
    }

    /// Checks the network path, without an admission by the governor. False: there is none.
    async fn check_network(&self, approach: &BmcAccess, report: &mut BmcTestReport) -> bool {
        if is_ipmi(&approach.endpoint) {
            report.skip(
                BmcCheck::Port,
                "IPMI uses UDP, which has no connection; the login shows whether it answers",
            );
            report.skip(
                BmcCheck::Tls,
                "IPMI has no TLS; its sessions are encrypted in their own way",
            );
            report.skip(BmcCheck::Root, "IPMI has no such thing");
            return true;
        }
        let endpoint = match BmcAddress::parse(&approach.endpoint) {
            Ok(address) => address.endpoint,
            Err(fault) => return report.require(BmcCheck::Address, Err(fault)),
        };
        if !report.require(BmcCheck::Name, resolve_name(&endpoint).await) {
            return false;
        }
        let knocked = check_port(&endpoint, NETWORK_TIMEOUT).await;
        let port = format!("{} takes connections", endpoint.port());
        report.require(BmcCheck::Port, knocked.map(|()| port))
    }

    async fn check_bmc(&self, peer: &str, approach: &BmcAccess, report: &mut BmcTestReport) {
        let limit = self.settings.call_timeout;
        let talk = async {
            self.check_session(peer, approach, report).await;
            report.ended_by.clone().map_or(Ok(()), Err)
        };
        let talked = self.bmcs.governor.call(peer, Priority::Operator, limit, talk).await;
        // A timeout of the governor is not in the report yet.
        report.ended_by = talked.err();
    }

    async fn check_session(&self, peer: &str, approach: &BmcAccess, report: &mut BmcTestReport) {
        let trust = match &approach.trust {
            Some(trust) => Ok((trust.clone(), None)),
            None => self.bmcs.trust(peer).await,
        };
        let (trust, known) = match trust {
            Ok(trust) => trust,
            Err(fault) => return report.end(BmcCheck::Tls, fault),
        };
        if !is_ipmi(&approach.endpoint)
            && !self.check_unauthenticated(approach, &trust, known, report).await
        {
            return;
        }
        if let Err(fault) = self.credential(&approach.credential).await {
            return report.end(BmcCheck::Login, fault);
        }
        let visit = self.bmcs.connect_unregistered(
            peer,
            &approach.endpoint,
            &approach.credential,
            Some(trust),
        );
        match visit.await {
            Err(fault) => report.end(BmcCheck::Login, fault),
            Ok(ConnectedBmc::Redfish(bmc)) => {
                report.record(BmcCheck::Login, Ok("the credential is right".into()));
                check_redfish(&bmc, approach, report).await;
                bmc.close().await;
            }
            Ok(ConnectedBmc::Ipmi(bmc)) => {
                report.record(BmcCheck::Login, Ok("the credential is right".into()));
                check_ipmi(&approach.endpoint, &bmc, report).await;
            }
        }
    }

    /// The checks that need no login.
    async fn check_unauthenticated(
        &self,
        approach: &BmcAccess,
        trust: &Trust,
        known: Option<Fingerprint>,
        report: &mut BmcTestReport,
    ) -> bool {
        let client = BmcAddress::parse(&approach.endpoint).and_then(|address| {
            UnauthenticatedBmc::new(address.endpoint, trust.clone(), &self.settings.redfish)
        });
        let client = match client {
            Ok(client) => client,
            Err(fault) => return report.require(BmcCheck::Tls, Err(fault)),
        };
        let knocked = client.open_connection().await;
        match (knocked, client.certificate()) {
            (Ok(()), None) => {
                report.skip(
                    BmcCheck::Tls,
                    "http:// has none: anyone on the network path can read the password",
                );
            }
            (Ok(()), Some(shown)) => {
                let believed = trust_reason(trust, known);
                report.record(
                    BmcCheck::Tls,
                    Ok(format!("{believed}: {}", describe_certificate(&shown))),
                );
            }
            (Err(fault), shown) => {
                let shown = shown.map(|shown| format!("; it is {}", describe_certificate(&shown)));
                let message = format!("{}{}", fault.message, shown.unwrap_or_default());
                return report.require(BmcCheck::Tls, Err(Fault::new(fault.code, message)));
            }
        }
        let about = client.about().await.map(|about| match about {
            None => "it speaks only to those who are logged in".to_string(),
            Some(about) => {
                let vendor =
                    [about.vendor, about.product].into_iter().flatten().collect::<Vec<_>>();
                let version = about.redfish_version.unwrap_or_else(|| "of no version".into());
                format!("Redfish {version}, {}", join_or(&vendor, "no vendor named"))
            }
        });
        report.require(BmcCheck::Root, about)
    }
}

async fn check_redfish(bmc: &Bmc, approach: &BmcAccess, report: &mut BmcTestReport) {
    let system = match choose_system(bmc, approach).await {
        Ok((system, found, message)) => {
            report.record(BmcCheck::Systems, Ok(message));
            report.chosen = Some(found.system);
            system
        }
        Err(fault) => return report.end(BmcCheck::Systems, fault),
    };
    report.record(BmcCheck::Power, system.power().await.map(|power| power.as_str().to_string()));
    report.record(BmcCheck::Resets, resets(&system).await);
    report.record(BmcCheck::Boot, boot(&system).await);
    report.record(BmcCheck::Media, media(&system).await);
    report.record(
        BmcCheck::Bios,
        system.bios().await.map(|bios| format!("{} settings", bios.current.len())),
    );
    let methods = system.update_methods().await;
    report.record(BmcCheck::Update, methods.map(|all| format!("by {}", all.join(", "))));
    report.record(BmcCheck::Tasks, bmc.tasks().await.map(|count| format!("it knows of {count}")));
    report.record(BmcCheck::Log, log(&system).await);
    report.record(BmcCheck::Sensors, sensors(&system).await);
    let quirks = match system.quirks().as_slice() {
        [] => "none that are known".to_string(),
        some => some.join("; "),
    };
    report.record(BmcCheck::Quirks, Ok(quirks));
}

/// The System that would be used, and a description of all, which the fault contains too.
async fn choose_system(
    bmc: &Bmc,
    approach: &BmcAccess,
) -> Result<(System, DiscoveredSystem, String)> {
    let hosts = bmc.hosts().await?;
    let alone = hosts.len() == 1;
    let mut reported = Vec::new();
    for host in &hosts {
        let DiscoveredSystem { system: discovered, .. } = describe_system(bmc, host, alone).await?;
        let serial = Some(discovered.serial).filter(|serial| !serial.is_empty());
        let serial = serial.map_or("no serial".into(), |serial| format!("serial {serial}"));
        reported.push(format!(
            "{} ({serial}, {})",
            host.id(),
            join_or(&discovered.macs, "no MAC address")
        ));
    }
    let system = bmc.system(&approach.selector).await.map_err(|fault| {
        let message = format!(
            "{}. Found: {}; name one by --serial or --mac, or by its path in the endpoint",
            fault.message,
            reported.join("; ")
        );
        Fault::new(fault.code, message)
    })?;
    let found = describe_system(bmc, &system, alone).await?;
    let message = format!("{}; {} would be chosen", reported.join("; "), system.id());
    Ok((system, found, message))
}

async fn resets(system: &System) -> Result<String> {
    let resets = system.resets().await?;
    let words: Vec<String> = resets.iter().map(|kind| kind.as_str().to_string()).collect();
    let graceful = match resets.contains(&Reset::GracefulShutdown) {
        true => "",
        false => "; it cannot ask the system to shut down, only cut it off",
    };
    Ok(format!("{}{graceful}", join_or(&words, "none")))
}

async fn boot(system: &System) -> Result<String> {
    let (now, sources) = (system.boot().await?, system.boot_sources().await?);
    let from_network =
        sources.is_empty() || sources.iter().any(|name| name == redfish::BootSource::Pxe.as_str());
    let offered = join_or(&sources, "whatever it is asked for");
    match from_network {
        true => Ok(format!("{offered}; now {}", describe_override(&now))),
        false => Err(Fault::new(
            FaultCode::NotSupported,
            format!("it offers only {offered}, and not Pxe"),
        )),
    }
}

async fn media(system: &System) -> Result<String> {
    let drives = system.media().await?;
    let reported: Vec<String> = drives
        .iter()
        .map(|drive| match &drive.image {
            Some(image) if drive.inserted => format!("{} (with {image})", drive.id),
            Some(_) | None => format!("{} (empty)", drive.id),
        })
        .collect();
    Ok(join_or(&reported, "no drive"))
}

async fn log(system: &System) -> Result<String> {
    let logs = system.logs().await?;
    Ok(match system.log(1).await?.first() {
        Some(entry) => format!("newest in {}: {}", entry.log, entry.message),
        None => format!("{}, empty", logs.join(", ")),
    })
}

async fn sensors(system: &System) -> Result<String> {
    let health = system.health().await?;
    let bad: Vec<String> = health
        .unhealthy
        .iter()
        .take(MAX_NAMED)
        .map(|part| format!("{} is {}", part.name, part.health.as_str()))
        .collect();
    let all = format!("health {}, {} looked at", health.overall.as_str(), health.components_read);
    match health.components_read {
        0 if health.overall == redfish::Health::Unknown => {
            Err(Fault::new(FaultCode::NotSupported, "it shows neither health nor sensors"))
        }
        _ => Ok(format!("{all}; {}", join_or(&bad, "nothing is bad"))),
    }
}

async fn check_ipmi(endpoint: &str, bmc: &ipmi::Bmc, report: &mut BmcTestReport) {
    let found = describe_ipmi_system(endpoint, bmc).await;
    let message =
        |found: &DiscoveredSystem| format!("one, {}, {}", found.system.vendor, found.system.model);
    let reported = found.as_ref().map(message).map_err(Clone::clone);
    if !report.require(BmcCheck::Systems, reported) {
        return;
    }
    report.chosen = found.ok().map(|found| found.system);
    let power = bmc.power().await;
    report.record(BmcCheck::Power, power.map(|power| format!("{power:?}")));
    report
        .record(BmcCheck::Resets, Ok("on, off, cycle, and asking the system to shut down".into()));
    let boot = bmc.boot().await.map(|boot| describe_boot_device(boot.from));
    report.record(BmcCheck::Boot, boot.map(|from| format!("network, disk, CD; now {from}")));
    let log = bmc.events(1).await;
    let newest = |events: Vec<ipmi::Event>| events.first().map(ipmi::Event::describe);
    report
        .record(BmcCheck::Log, log.map(|events| newest(events).unwrap_or_else(|| "empty".into())));
    for step in
        [BmcCheck::Media, BmcCheck::Bios, BmcCheck::Update, BmcCheck::Tasks, BmcCheck::Sensors]
    {
        report.record(
            step,
            Err(Fault::new(FaultCode::NotSupported, "Farrier does this over Redfish only")),
        );
    }
}

async fn resolve_name(endpoint: &Endpoint) -> Result<String> {
    let unreachable = |why: String| {
        let message = format!("{} has no address: {why}", endpoint.host());
        Fault::new(FaultCode::BmcUnreachable, message)
    };
    let found = timeout(NETWORK_TIMEOUT, lookup_host((endpoint.host(), endpoint.port()))).await;
    let found = found.map_err(|_| unreachable("no answer came".into()))?;
    let found = found.map_err(|error| match LocalShortage::of(&error) {
        Some(shortage) => shortage.fault(endpoint),
        None => unreachable(error.to_string()),
    })?;
    let all: BTreeSet<String> = found.map(|address| address.ip().to_string()).collect();
    if all.contains(endpoint.host()) {
        return Ok("it is an IP address already".into());
    }
    let all: Vec<String> = all.into_iter().take(MAX_NAMED).collect();
    Ok(format!("{} is {}", endpoint.host(), all.join(", ")))
}

/// The reason why a certificate is trusted.
fn trust_reason(trust: &Trust, known: Option<Fingerprint>) -> &'static str {
    match (trust, known) {
        (Trust::Ca(_), _) => "signed by an authority that is trusted",
        (Trust::Pinned(_), _) => "it is the one that is pinned",
        (Trust::FirstUse(_), Some(_)) => "it is the one that was trusted before",
        (Trust::FirstUse(_), None) => "not known yet; it would be trusted on first use",
    }
}

fn describe_certificate(certificate: &Certificate) -> String {
    let Certificate { fingerprint, issuer, subject, self_signed, expires_at } = certificate;
    let nameless = || "a certificate without a name".to_string();
    let by = match self_signed {
        true => "by itself".to_string(),
        false => format!("by {}", issuer.clone().unwrap_or_else(nameless)),
    };
    let until = expires_at.map_or("a time it does not say".into(), day);
    let now: Timestamp = crate::clock::now();
    let expired = if expires_at.is_some_and(|at| at < now) { ", which is over" } else { "" };
    let owner = subject.clone().unwrap_or_else(nameless);
    format!("the certificate of {owner}, signed {by}, until {until}{expired}, {fingerprint}")
}

fn day(at: Timestamp) -> String {
    let instant = jiff::Timestamp::from_microsecond(at.as_micros());
    instant.map_or("a time out of all range".into(), |at| at.strftime("%Y-%m-%d").to_string())
}

fn join_or(words: &[String], none: &str) -> String {
    if words.is_empty() { none.to_string() } else { words.join(", ") }
}
