//! Racks: a hundred of them run a whole maintenance at once: firmware, fabric, power and
//! validation, with one run per device and rack step. With hardware that takes no time it measures
//! devices per second. With slow hardware it shows that a hundred racks take no longer than one.

use crate::client::ClientPool;
use crate::fleet::{Channel, Fleet, Hardware, Setup};
use crate::table::{Report, Row, Target, Unit};
use crate::{Bench, Outcome, Store, Wrong};
use proto::v1;
use proto::v1::firmware_service_client::FirmwareServiceClient;
use proto::v1::machine_service_client::MachineServiceClient;
use proto::v1::power_shelf_service_client::PowerShelfServiceClient;
use proto::v1::rack_service_client::RackServiceClient;
use proto::v1::switch_service_client::SwitchServiceClient;
use proto::words;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

const RACKS: usize = 100;
const MACHINES: usize = 18;
const SWITCHES: usize = 9;
const SHELVES: usize = 8;
const DEVICES: usize = MACHINES + SWITCHES + SHELVES;
/// Child runs per rack. Each device has firmware, off, on and a check. The fabric adds, for each
/// switch, off and a report, and for one switch the manager.
const CHILD_RUNS: usize = 4 * DEVICES + 2 * SWITCHES + 1;
/// A run of one step has three commits: acceptance, intent and end.
const COMMITS: f64 = 3.0 * CHILD_RUNS as f64 / DEVICES as f64;
/// The number of concurrent requests.
const CLIENTS: usize = 32;
/// A hundred racks take at most this many times as long as one; the rest is the CPU time of the two
/// cores.
const FLAT: f64 = 1.3;
const HARDWARE_TYPE: &str = "bench";
const FIRMWARE: &str = "fw-bench";
const POLL_INTERVAL: Duration = Duration::from_millis(100);
const TIMEOUT: Duration = Duration::from_secs(900);

pub async fn measure(bench: &Bench, store: Store, report: &mut Report) -> Outcome<()> {
    let prompt = maintained(bench, store, Hardware::Prompt, RACKS).await?;
    let devices = (RACKS * DEVICES) as f64;
    report.add(
        Row::new("100 racks maintained, devices", devices / prompt.as_secs_f64(), Unit::PerSecond)
            .store(store)
            .limit(bench.limits.commits(store, CLIENTS) / COMMITS, "raw commits ÷ 14")
            .note(format!("{devices} devices, {} runs", RACKS * (CHILD_RUNS + 1))),
    );
    let alone = maintained(bench, store, Hardware::Realistic, 1).await?.as_secs_f64();
    let together = maintained(bench, store, Hardware::Realistic, RACKS).await?.as_secs_f64();
    report.add(
        Row::new("100 racks beside one, time", together / alone, Unit::Times)
            .store(store)
            .target(Target::AtMost(FLAT))
            .note(format!("one {alone:.0} s, a hundred {together:.0} s")),
    );
    Ok(())
}

/// The time from the first request to the last end, for this many racks.
async fn maintained(
    bench: &Bench,
    store: Store,
    hardware: Hardware,
    racks: usize,
) -> Outcome<Duration> {
    let fleet = Fleet::start(bench, Setup::new(store).hardware(hardware)).await?;
    let channel = fleet.channel().await?;
    publish(channel.clone()).await?;
    each(racks, &channel, |channel, rack| async move { create_rack(channel, rack).await }).await?;
    ready(channel.clone(), racks).await?;
    each(racks, &channel, until_released).await?;
    let crew = fleet.client_pool(CLIENTS).await?;
    let begun = Instant::now();
    let ids = each(racks, &channel, maintain).await?;
    succeed(&crew, &ids).await?;
    let taken = begun.elapsed();
    match fleet.complaints() {
        message if message.is_empty() => Ok(taken),
        message => Err(message.into()),
    }
}

/// Does the work for every rack at once.
async fn each<T, F>(
    racks: usize,
    channel: &Channel,
    work: impl Fn(Channel, String) -> F,
) -> Outcome<Vec<T>>
where
    T: Send + 'static,
    F: Future<Output = Outcome<T>> + Send + 'static,
{
    let mut works = JoinSet::new();
    for rack in 0..racks {
        works.spawn(work(channel.clone(), format!("rack-{rack}")));
    }
    let mut done = Vec::new();
    while let Some(joined) = works.join_next().await {
        done.push(joined??);
    }
    Ok(done)
}

async fn publish(channel: Channel) -> Outcome<()> {
    let component = |device_type: &str| v1::FirmwareComponent {
        device_type: words::value::<v1::TargetKind>(device_type),
        name: "BMC".into(),
        version: "2.0".into(),
        url: "https://firmware.example/bmc.bin".into(),
        sha256: "0".repeat(64),
    };
    let firmware = v1::Firmware {
        firmware_id: FIRMWARE.into(),
        hardware_type: HARDWARE_TYPE.into(),
        components: ["machine", "switch", "power_shelf"].map(component).into(),
        ..Default::default()
    };
    let mut client = FirmwareServiceClient::new(channel);
    client
        .create_firmware(v1::CreateFirmwareRequest { firmware: Some(firmware), dry_run: false })
        .await?;
    Ok(())
}

/// Creates a rack and registers its devices.
async fn create_rack(channel: Channel, rack: String) -> Outcome<()> {
    let counted = |count: usize| i32::try_from(count).unwrap_or_default();
    let expected = v1::RackCounts {
        machines: counted(MACHINES),
        switches: counted(SWITCHES),
        power_shelves: counted(SHELVES),
    };
    let described = v1::Rack {
        rack_id: rack.clone(),
        hardware_type: HARDWARE_TYPE.into(),
        expected: Some(expected),
        ..Default::default()
    };
    let request = v1::CreateRackRequest { rack: Some(described), dry_run: false };
    RackServiceClient::new(channel.clone()).create_rack(request).await?;
    let spec = |slot: usize| v1::DeviceSpec {
        provider: "sim".into(),
        rack_id: rack.clone(),
        slot: i32::try_from(slot).ok(),
        ..Default::default()
    };
    for slot in 1..=SHELVES {
        let power_shelf = v1::PowerShelf {
            power_shelf_id: format!("ps-{rack}-{slot}"),
            spec: Some(spec(slot)),
            ..Default::default()
        };
        let request =
            v1::RegisterPowerShelfRequest { power_shelf: Some(power_shelf), dry_run: false };
        PowerShelfServiceClient::new(channel.clone()).register_power_shelf(request).await?;
    }
    for slot in 1..=SWITCHES {
        let switch = v1::Switch {
            switch_id: format!("sw-{rack}-{slot}"),
            spec: Some(spec(SHELVES + slot)),
            ..Default::default()
        };
        let request = v1::RegisterSwitchRequest { switch: Some(switch), dry_run: false };
        SwitchServiceClient::new(channel.clone()).register_switch(request).await?;
    }
    for slot in 1..=MACHINES {
        let machine = v1::Machine {
            machine_id: format!("m-{rack}-{slot}"),
            spec: Some(v1::MachineSpec {
                provider: "sim".into(),
                rack_id: rack.clone(),
                slot: i32::try_from(SHELVES + SWITCHES + slot).ok(),
                ..Default::default()
            }),
            ..Default::default()
        };
        let request = v1::RegisterMachineRequest { machine: Some(machine), ..Default::default() };
        MachineServiceClient::new(channel.clone()).register_machine(request).await?;
    }
    Ok(())
}

/// Waits until all racks are in service, which is not part of the figure.
async fn ready(channel: Channel, racks: usize) -> Outcome<()> {
    let mut client = RackServiceClient::new(channel);
    let begun = Instant::now();
    loop {
        let request = v1::ListRacksRequest { page_size: 500, ..Default::default() };
        let listed = client.list_racks(request).await?.into_inner().racks;
        let states = || listed.iter().filter_map(|rack| Some((rack, rack.status.as_ref()?)));
        if states().filter(|(_, status)| status.state() == v1::RackState::Ready).count() == racks {
            return Ok(());
        }
        if let Some((rack, status)) = states().find(|(_, status)| status.error.is_some()) {
            return Err(format!("{}: {:?}", rack.rack_id, status.error).into());
        }
        if begun.elapsed() > TIMEOUT {
            return Err("the racks did not get ready".into());
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Waits until no operation holds a device of the rack: each switch runs one more check after the
/// rack's work on it.
async fn until_released(channel: Channel, rack: String) -> Outcome<()> {
    let mut client = RackServiceClient::new(channel);
    let begun = Instant::now();
    loop {
        let request = v1::GetRackRequest { rack_id: rack.clone() };
        let status = client.get_rack(request).await?.into_inner().status.unwrap_or_default();
        if status.devices.iter().all(|device| device.active_operation_id.is_empty()) {
            return Ok(());
        }
        if begun.elapsed() > TIMEOUT {
            return Err(format!("the devices of {rack} were not let go").into());
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Requests a maintenance with all activities. Returns the operation.
async fn maintain(channel: Channel, rack: String) -> Outcome<String> {
    let power = v1::PowerSequenceActivity { sequence: v1::PowerSequence::Reset.into() };
    let firmware = v1::FirmwareUpgradeActivity { firmware_version: FIRMWARE.into() };
    use v1::maintenance_activity_config::Activity;
    let activities = [
        Activity::FirmwareUpgrade(firmware),
        Activity::ConfigureNmxCluster(v1::ConfigureNmxClusterActivity {}),
        Activity::PowerSequence(power),
    ];
    let config = |activity| v1::MaintenanceActivityConfig { activity: Some(activity) };
    let scope = v1::RackMaintenanceScope {
        activities: activities.map(config).into(),
        ..Default::default()
    };
    let request = v1::RackMaintenanceOnDemandRequest {
        request_id: format!("bench-{rack}"),
        rack_id: Some(v1::RackId { id: rack }),
        scope: Some(scope),
        gate_override: Some(v1::GateOverride {
            gates: vec!["in-service".into(), "health".into()],
            reason: "bench".into(),
        }),
        ..Default::default()
    };
    let answer = RackServiceClient::new(channel).on_demand_rack_maintenance(request).await?;
    Ok(answer.into_inner().operation_id)
}

async fn succeed(crew: &ClientPool, ids: &[String]) -> Outcome<()> {
    for id in ids {
        let ended = tokio::time::timeout(TIMEOUT, crew.first().ended(id)).await;
        let run = ended.map_err(|_| Wrong::from(format!("{id} did not end")))??;
        if !run.succeeded() {
            return Err(format!("{id} did not succeed").into());
        }
    }
    Ok(())
}
