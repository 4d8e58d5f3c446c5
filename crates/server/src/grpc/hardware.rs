//! HardwareService: reads hardware now, and tests and discovers BMCs that are not registered.

use super::convert::{initiator, machine, time};
use super::page::{List, Page};
use super::status::{OrStatus, store_error_status};
use super::stream::Streaming;
use super::{Answer, GrpcServices};
use engine::machine::hardware::{
    BmcTestResult, DiscoveryOutcome, DiscoveryRequest, DiscoveryResult, MAX_LOG, RegistrationStatus,
};
use futures_util::stream::{StreamExt, TryStreamExt};
use model::access::Permission;
use model::fault::FaultCode;
use model::id::MachineId;
use model::machine::Labels;
use model::refusal::{Reason, Refusal};
use model::time::Timestamp;
use model::{address_range, text};
use proto::{v1, words};
use providers::bmc_discovery::{BmcAccess, CheckOutcome, DiscoveredSystem};
use providers::http_client::Trust;
use providers::inspect::Inspection;
use providers::power::PowerState;
use providers::redfish::{LogEntry, SystemSelector};
use tonic::{Request, Response};

/// The default number of addresses that are tried concurrently.
const AT_ONCE: usize = 64;
const MAX_AT_ONCE: i32 = 256;
/// The largest accepted file of certificates, in bytes.
const MAX_PEM: usize = 256 * 1024;

#[tonic::async_trait]
impl v1::hardware_service_server::HardwareService for GrpcServices {
    async fn inspect_machine(
        &self,
        request: Request<v1::InspectMachineRequest>,
    ) -> Answer<v1::Inspection> {
        let call = self.call(&request).await?;
        let id = MachineId::parse(&request.get_ref().machine_id).or_status()?;
        let observed = call.engine.machines().inspect(&id).await.or_status()?;
        Ok(Response::new(inspection(&id, observed, call.engine.now())))
    }

    async fn get_console_log(
        &self,
        request: Request<v1::GetConsoleLogRequest>,
    ) -> Answer<v1::ConsoleLog> {
        let call = self.call(&request).await?;
        let requested = request.into_inner();
        let id = MachineId::parse(&requested.machine_id).or_status()?;
        let since = requested.since.as_ref().map(timestamp_from);
        let filter = format!("{id} {since:?}");
        let page = Page::new(List::ConsoleLog, &filter, requested.page_size, &requested.page_token)
            .or_status()?;
        let found = call.engine.machines().event_log(&id).await.or_status()?;
        let (entries, next_page_token) = log_page(found, since, &page).or_status()?;
        Ok(Response::new(v1::ConsoleLog { entries, next_page_token }))
    }

    async fn get_power(&self, request: Request<v1::GetPowerRequest>) -> Answer<v1::PowerReading> {
        let call = self.call(&request).await?;
        let id = MachineId::parse(&request.get_ref().machine_id).or_status()?;
        let observed = call.engine.machines().power(&id).await.or_status()?;
        Ok(Response::new(v1::PowerReading {
            machine_id: id.to_string(),
            power: power(Some(observed)).into(),
            seen_at: Some(time(call.engine.now())),
        }))
    }

    async fn test_bmc(&self, request: Request<v1::TestBmcRequest>) -> Answer<v1::BmcReport> {
        let call = self.call(&request).await?;
        let request = request.into_inner();
        if !request.ca_pem.is_empty() {
            // Another authority could present a BMC of its own and receive the password.
            let what = "a test with another authority (ca_pem)";
            call.caller().require(Permission::Trust, what).or_status()?;
        }
        let approach = approach_from(request).or_status()?;
        let tested = call.engine.machines().test_bmc(&approach).await.or_status()?;
        Ok(Response::new(report(&tested)))
    }

    async fn unlock_bmc(
        &self,
        request: Request<v1::UnlockBmcRequest>,
    ) -> Answer<v1::UnlockBmcResponse> {
        let call = self.call(&request).await?;
        let v1::UnlockBmcRequest { endpoint, dry_run } = request.get_ref();
        let endpoint = endpoint_from(endpoint).or_status()?;
        let peer = call.engine.machines().bmc_peer(&endpoint).or_status()?;
        let secrets = call.secrets.with_dry_run(*dry_run);
        let was_locked = secrets.unlock(&peer).await.or_status()?;
        let by = initiator(request.metadata());
        if !dry_run {
            tracing::info!(%peer, %by, was_locked, "BMC lockout cleared");
        }
        Ok(Response::new(v1::UnlockBmcResponse { peer, was_locked }))
    }

    type DiscoverStream = Streaming<v1::Discovered>;

    async fn discover(
        &self,
        request: Request<v1::DiscoverRequest>,
    ) -> Answer<Streaming<v1::Discovered>> {
        let call = self.call(&request).await?;
        let actor = initiator(request.metadata());
        let search = search_from(request.into_inner(), actor).or_status()?;
        let found = call.engine.machines().discover(search).await.or_status()?;
        Ok(Response::new(found.map_ok(discovered).map_err(store_error_status).boxed()))
    }
}

/// A page of a log. The log is read again for each page, which begins after the last entry of the
/// previous one.
fn log_page(
    found: Vec<LogEntry>,
    since: Option<Timestamp>,
    page: &Page,
) -> Result<(Vec<v1::ConsoleLogEntry>, String), Refusal> {
    let recent =
        |entry: &LogEntry| since.is_none_or(|since| entry.at.is_some_and(|at| at >= since));
    let mut desired: Vec<LogEntry> = found.into_iter().filter(recent).collect();
    if let Some(last) = &page.from {
        let at = desired.iter().position(|entry| entry_key(entry) == *last).ok_or_else(|| {
            let text = "the BMC's log was cleared while it was read; read it from the beginning";
            Refusal::new(Reason::LogCleared, text)
        })?;
        desired.drain(..=at);
    }
    let size = usize::try_from(page.size).unwrap_or(MAX_LOG);
    let more = desired.len() > size;
    desired.truncate(size);
    let next = desired.last().filter(|_| more).map(|last| page.token(&entry_key(last)));
    let entries = desired.into_iter().map(|entry| v1::ConsoleLogEntry {
        id: entry.id,
        log: entry.log,
        ts: entry.at.map(time),
        severity: entry.severity.unwrap_or_default(),
        message: entry.message,
    });
    Ok((entries.collect(), next.unwrap_or_default()))
}

/// Identifies an entry of the log in a page token.
fn entry_key(entry: &LogEntry) -> String {
    let short: String = entry.id.chars().take(text::MAX_SHORT).collect();
    format!("{}/{short}", entry.log)
}

fn timestamp_from(at: &proto::Timestamp) -> Timestamp {
    let micros = at.seconds.saturating_mul(1_000_000).saturating_add(i64::from(at.nanos) / 1_000);
    Timestamp::from_micros(micros)
}

fn endpoint_from(endpoint: &str) -> Result<String, Refusal> {
    let endpoint = endpoint.trim();
    if endpoint.is_empty() {
        return Err(Refusal::missing("endpoint"));
    }
    // The endpoint may contain a password, so the refusal does not repeat it. The provider checks
    // the rest.
    if endpoint.len() > text::MAX_ENDPOINT {
        let instead = format!("use at most {} bytes", text::MAX_ENDPOINT);
        return Err(Refusal::invalid("endpoint", "is too long", instead));
    }
    Ok(endpoint.to_string())
}

fn approach_from(requested: v1::TestBmcRequest) -> Result<BmcAccess, Refusal> {
    text::check_optional_name("credential", &requested.credential)?;
    text::check_short("serial", &requested.serial)?;
    let trust = match requested.ca_pem.as_str() {
        "" => None,
        pem if pem.len() > MAX_PEM => {
            let instead = format!("use at most {MAX_PEM} bytes");
            return Err(Refusal::invalid("ca_pem", "is too long", instead));
        }
        pem => Some(Trust::ca_from_pem(pem.as_bytes()).map_err(|fault| {
            Refusal::invalid("ca_pem", fault.message, "give certificates as PEM")
        })?),
    };
    let macs = requested.mac_addresses.iter().enumerate();
    let macs =
        macs.map(|(index, mac)| text::normalize_mac(&format!("mac_addresses[{index}]"), mac));
    let serial = Some(requested.serial).filter(|serial| !serial.is_empty());
    let desired = SystemSelector { id: None, serial, macs: macs.collect::<Result<_, _>>()? };
    let endpoint = endpoint_from(&requested.endpoint)?;
    Ok(BmcAccess { endpoint, credential: requested.credential, trust, selector: desired })
}

fn search_from(requested: v1::DiscoverRequest, actor: String) -> Result<DiscoveryRequest, Refusal> {
    text::check_optional_name("credential", &requested.credential)?;
    text::check_short("provider", &requested.provider)?;
    let labels: Labels = requested.labels.into_iter().collect();
    text::check_labels("labels", &labels)?;
    let at_once = match requested.concurrency {
        0 => AT_ONCE,
        some @ 1..=MAX_AT_ONCE => some as usize,
        other => {
            let instead = format!("use 1 to {MAX_AT_ONCE}, or 0 for {AT_ONCE}");
            return Err(Refusal::invalid("concurrency", format!("is {other}"), instead));
        }
    };
    Ok(DiscoveryRequest {
        endpoints: address_range::expand_endpoints("addresses", &requested.addresses)?,
        credential: requested.credential,
        provider: requested.provider,
        import: requested.import.then_some(labels),
        at_once,
        actor,
    })
}

fn power(observed: Option<PowerState>) -> v1::PowerState {
    match observed {
        None => v1::PowerState::Unspecified,
        Some(PowerState::On) => v1::PowerState::On,
        Some(PowerState::Off) => v1::PowerState::Off,
        Some(PowerState::Changing) => v1::PowerState::Changing,
    }
}

fn count(number: Option<u64>) -> i64 {
    number.and_then(|number| i64::try_from(number).ok()).unwrap_or_default()
}

fn inspection(id: &MachineId, observed: Inspection, now: Timestamp) -> v1::Inspection {
    let Inspection { inventory: parts, power: power_seen, boot, health } = observed;
    let overall = health.as_ref().map_or("Unknown", |health| health.overall.as_str());
    let skipped = parts.skipped.into_iter();
    let skipped = skipped.chain(health.iter().flat_map(|health| health.skipped.clone()));
    let bad = health.iter().flat_map(|health| &health.unhealthy).map(|part| v1::BadPart {
        name: part.name.clone(),
        health: words::value::<v1::HardwareHealth>(part.health.as_str()),
        reading: part.reading.clone().unwrap_or_default(),
    });
    v1::Inspection {
        machine_id: id.to_string(),
        seen_at: Some(time(now)),
        vendor: parts.vendor.unwrap_or_default(),
        model: parts.model.unwrap_or_default(),
        serial: parts.serial.unwrap_or_default(),
        sku: parts.sku.unwrap_or_default(),
        uuid: parts.uuid.unwrap_or_default(),
        bios_version: parts.bios_version.unwrap_or_default(),
        bmc_version: parts.bmc_version.unwrap_or_default(),
        power: power(power_seen).into(),
        boot: boot.unwrap_or_default(),
        health: words::value::<v1::HardwareHealth>(overall),
        bad: bad.collect(),
        cpus: parts.cpus.into_iter().map(cpu).collect(),
        memory_mib: count(parts.memory_mib),
        memory: parts.memory.into_iter().map(module).collect(),
        disks: parts.disks.into_iter().map(disk).collect(),
        nics: parts.nics.into_iter().map(nic).collect(),
        gpus: parts.gpus.into_iter().map(gpu).collect(),
        firmware: parts.firmware.into_iter().map(firmware).collect(),
        skipped: skipped.collect(),
    }
}

fn cpu(part: providers::redfish::Cpu) -> v1::Cpu {
    v1::Cpu {
        id: part.id,
        vendor: part.vendor.unwrap_or_default(),
        model: part.model.unwrap_or_default(),
        cores: count(part.cores),
        threads: count(part.threads),
    }
}

fn module(part: providers::redfish::Memory) -> v1::MemoryModule {
    v1::MemoryModule {
        id: part.id,
        capacity_mib: count(Some(part.capacity_mib)),
        kind: part.kind.unwrap_or_default(),
        serial: part.serial.unwrap_or_default(),
    }
}

fn disk(part: providers::redfish::Disk) -> v1::Disk {
    v1::Disk {
        id: part.id,
        model: part.model.unwrap_or_default(),
        serial: part.serial.unwrap_or_default(),
        capacity_bytes: count(part.capacity_bytes),
        media: part.media.unwrap_or_default(),
        protocol: part.protocol.unwrap_or_default(),
    }
}

fn nic(part: providers::redfish::Nic) -> v1::Nic {
    v1::Nic {
        id: part.id,
        mac_address: part.mac,
        link_up: part.link_up,
        speed_mbps: count(part.speed_mbps),
    }
}

fn gpu(part: providers::redfish::Gpu) -> v1::Gpu {
    v1::Gpu {
        id: part.id,
        vendor: part.vendor.unwrap_or_default(),
        model: part.model.unwrap_or_default(),
        serial: part.serial.unwrap_or_default(),
    }
}

fn firmware(part: providers::redfish::Firmware) -> v1::FirmwareVersion {
    v1::FirmwareVersion { id: part.id, name: part.name.unwrap_or_default(), version: part.version }
}

fn report(tested: &BmcTestResult) -> v1::BmcReport {
    use v1::bmc_finding::Outcome as V;
    let findings = tested.report.findings.iter().map(|finding| {
        let classification = match finding.outcome {
            CheckOutcome::Ok => V::Ok,
            CheckOutcome::Cannot => V::Cannot,
            CheckOutcome::NotTried => V::NotTried,
        };
        v1::BmcFinding {
            step: finding.check.as_str().into(),
            outcome: classification.into(),
            message: finding.message.clone(),
        }
    });
    let fault = tested.report.ended_by.as_ref().map(|fault| fault.code.as_str().to_string());
    v1::BmcReport {
        peer: tested.peer.clone(),
        findings: findings.collect(),
        usable: tested.report.usable(),
        summary: tested.report.summary(),
        next_command: tested.next(),
        fault: fault.unwrap_or_default(),
    }
}

fn discovered(reported: DiscoveryResult) -> v1::Discovered {
    use v1::discovered::Outcome as O;
    let number = |count: usize| i32::try_from(count).unwrap_or(i32::MAX);
    let (outcome, message, fault, systems) = match reported.outcome {
        DiscoveryOutcome::NoAnswer(message) => (O::Unreachable, message, None, Vec::new()),
        DiscoveryOutcome::Failed(fault) if fault.code == FaultCode::LoginRefused => {
            (O::LoginRefused, fault.message, Some(fault.code), Vec::new())
        }
        DiscoveryOutcome::Failed(fault) => (O::Failed, fault.message, Some(fault.code), Vec::new()),
        DiscoveryOutcome::Found(all) => {
            let systems = all.into_iter().map(|(found, status)| system(found, status));
            (O::Found, String::new(), None, systems.collect())
        }
    };
    v1::Discovered {
        address: reported.address,
        outcome: outcome.into(),
        message,
        fault: fault.map(|code| code.as_str().to_string()).unwrap_or_default(),
        systems,
        probed: number(reported.probed),
        total: number(reported.total),
    }
}

fn system(found: DiscoveredSystem, status: RegistrationStatus) -> v1::FoundSystem {
    use v1::found_system::Status as S;
    let (status, machine_id, message, registered) = match status {
        RegistrationStatus::New => (S::New, String::new(), String::new(), None),
        RegistrationStatus::Known(id, mark) => (S::Known, id.to_string(), mark.to_string(), None),
        RegistrationStatus::Doubtful(id, message) => (S::Doubtful, id.to_string(), message, None),
        RegistrationStatus::Registered(done) => {
            (S::Registered, done.id.to_string(), String::new(), Some(machine(*done)))
        }
        RegistrationStatus::Refused(message) => (S::Refused, String::new(), message, None),
    };
    let DiscoveredSystem { system: discovered, power: power_seen } = found;
    v1::FoundSystem {
        endpoint: discovered.endpoint,
        vendor: discovered.vendor,
        model: discovered.model,
        serial: discovered.serial,
        mac_addresses: discovered.macs,
        power: power(power_seen).into(),
        status: status.into(),
        machine_id,
        message,
        registered,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(id: u64, at_s: Option<i64>) -> LogEntry {
        LogEntry {
            id: id.to_string(),
            log: "SEL".into(),
            at: at_s.map(|seconds| Timestamp::from_millis(seconds * 1_000)),
            severity: None,
            message: format!("entry {id}"),
        }
    }

    fn ids(entries: &[v1::ConsoleLogEntry]) -> Vec<&str> {
        entries.iter().map(|entry| entry.id.as_str()).collect()
    }

    #[test]
    fn a_log_is_paged_from_its_newest_entry() {
        let log =
            || vec![entry(4, Some(40)), entry(3, Some(30)), entry(2, Some(20)), entry(1, None)];
        let page = |token: &str| Page::new(List::ConsoleLog, "m-1", 2, token).unwrap();
        let (first, next) = log_page(log(), None, &page("")).unwrap();
        assert_eq!(ids(&first), ["4", "3"]);
        // A new entry between two pages does not shift the second page.
        let mut grown = log();
        grown.insert(0, entry(5, Some(50)));
        let (second, end) = log_page(grown, None, &page(&next)).unwrap();
        assert_eq!((ids(&second), end.as_str()), (vec!["2", "1"], ""));
        let refusal = log_page(Vec::new(), None, &page(&next)).unwrap_err();
        assert_eq!(refusal.reason.as_str(), "LOG_CLEARED");
        let since = Some(Timestamp::from_millis(30_000));
        assert_eq!(ids(&log_page(log(), since, &page("")).unwrap().0), ["4", "3"]);
    }

    #[test]
    fn invalid_requests_are_refused_by_field() {
        let test = v1::TestBmcRequest { endpoint: "10.0.0.5".into(), ..Default::default() };
        assert!(approach_from(test.clone()).is_ok());
        for (requested, field) in [
            (v1::TestBmcRequest::default(), "endpoint"),
            (v1::TestBmcRequest { ca_pem: "no".into(), ..test.clone() }, "ca_pem"),
            (v1::TestBmcRequest { credential: "A b".into(), ..test.clone() }, "credential"),
            (v1::TestBmcRequest { mac_addresses: vec!["x".into()], ..test }, "mac_addresses[0]"),
        ] {
            assert_eq!(approach_from(requested).unwrap_err().field.as_deref(), Some(field));
        }
        let search =
            v1::DiscoverRequest { addresses: vec!["10.0.0.5".into()], ..Default::default() };
        assert_eq!(search_from(search.clone(), String::new()).unwrap().at_once, AT_ONCE);
        for (requested, field) in [
            (v1::DiscoverRequest::default(), "addresses"),
            (v1::DiscoverRequest { concurrency: -1, ..search.clone() }, "concurrency"),
            (v1::DiscoverRequest { concurrency: 257, ..search.clone() }, "concurrency"),
            (
                v1::DiscoverRequest { addresses: vec!["10.0.0.0/8".into()], ..search },
                "addresses[0]",
            ),
        ] {
            assert_eq!(
                search_from(requested, String::new()).unwrap_err().field.as_deref(),
                Some(field)
            );
        }
    }
}
