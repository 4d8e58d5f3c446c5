//! Reads recordings of real BMCs with the Redfish client, one line per recording and kind of thing.
//!
//! Each folder in the one that is named holds the resources of one BMC, as `<path>/index.json`. It
//! is served over HTTP by this process, so the client meets it as it would meet the device. A
//! recording may lack resources; then they are counted as skipped. What is there and cannot be
//! decoded is a failure.

#![allow(
    clippy::expect_used,
    clippy::too_many_lines,
    clippy::unwrap_used,
    clippy::wildcard_enum_match_arm,
    reason = "a bench or an example stops by panicking"
)]

#[allow(dead_code, reason = "the tests' server does more than a recording needs")]
#[path = "../tests/peers/http.rs"]
mod http;

use http::{Call, Peer, Response};
use model::credential::AllowedAddresses;
use model::fault::{Fault, FaultCode};
use model::id::MachineId;
use model::machine::MachineSpec;
use providers::Target;
use providers::bmc_discovery::{BmcAccess, BmcDiscovery};
use providers::datacenter::{self, Datacenter};
use providers::http_client::Trust;
use providers::inspect::Inspector;
use providers::redfish::{Auth, Bmc, BmcAddress, Login, Settings, System, SystemSelector};
use providers::state_store::{InMemoryStateStore, Secret};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

/// The most entries of a log that are read.
const LOG_ENTRIES: usize = 50;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let Some(folder) = std::env::args_os().nth(1).map(PathBuf::from) else {
        eprintln!("usage: conformance DIR");
        return ExitCode::from(2);
    };
    let trees = match recordings(&folder) {
        Ok(trees) if !trees.is_empty() => trees,
        Ok(_) => {
            eprintln!("{}: no folder in it has a redfish/v1/index.json", folder.display());
            return ExitCode::FAILURE;
        }
        Err(error) => {
            eprintln!("{}: {error}", folder.display());
            return ExitCode::FAILURE;
        }
    };
    let mut wrong = 0;
    for tree in &trees {
        wrong += Reading::of(tree).await;
    }
    println!("{} recordings, {wrong} things could not be read", trees.len());
    if wrong == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn recordings(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut trees = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let tree = entry?.path();
        if tree.join("redfish/v1/index.json").is_file() {
            trees.push(tree);
        }
    }
    trees.sort();
    Ok(trees)
}

/// One recording while it is read.
struct Reading {
    name: String,
    wrong: usize,
}

impl Reading {
    /// Reads everything, and says how many things could not be.
    async fn of(tree: &Path) -> usize {
        let name = tree.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let mut reading = Self { name, wrong: 0 };
        let root = tree.to_owned();
        let peer = Peer::start(move |call| serve(&root, call)).await;
        if let Err(fault) = reading.all(&peer).await {
            reading.fail("recording", &fault);
        }
        reading.wrong
    }

    async fn all(&mut self, peer: &Peer) -> Result<(), Fault> {
        let endpoint = BmcAddress::parse(&peer.url())?;
        let login = Login {
            user: "reader".into(),
            password: "of recordings".into(),
            allowed: AllowedAddresses::Any,
        };
        let settings = Settings { auth: Auth::Basic, ..Settings::default() };
        let bmc = Bmc::connect(endpoint, login, Trust::FirstUse(None), settings).await?;
        let about = bmc.about();
        self.say(
            "service",
            format!("{:?} {:?} {:?}", about.vendor, about.product, about.redfish_version),
        );
        let systems = bmc.systems().await?;
        let ids: Vec<&str> = systems.iter().map(|system| system.id.as_str()).collect();
        self.say("systems", ids.join(", "));
        let system = bmc.system(&SystemSelector::default()).await?;
        self.say("chosen", system.id().to_owned());
        // By its serial number it must be the same one.
        if let Some(one) = systems.iter().find(|one| one.host && one.serial.is_some()) {
            let by_serial =
                SystemSelector { serial: one.serial.clone(), ..SystemSelector::default() };
            self.say("by serial", bmc.system(&by_serial).await?.id().to_owned());
        }
        self.state(&system).await;
        self.parts(&system).await;
        self.firmware(&system).await;
        self.tools(peer).await;
        Ok(())
    }

    /// The same as an operator sees it, through the provider.
    async fn tools(&mut self, peer: &Peer) {
        let store = Arc::new(InMemoryStateStore::default());
        let password = "of recordings".to_string().into();
        store.set_credential("bmc", Secret::Password { user: "reader".into(), password });
        let settings = datacenter::Settings { bmc_credential: "bmc".into(), ..Default::default() };
        let datacenter = Datacenter::new(store, settings);
        let spec = MachineSpec { bmc_endpoint: peer.url(), ..MachineSpec::default() };
        let target =
            Target { id: model::target::TargetId::from(&MachineId::trusted("recording")), spec };
        let observed = datacenter.inspect(&target).await;
        let reported =
            observed.map(|observed| format!("{:?}, next boot {:?}", observed.power, observed.boot));
        self.tell("inspection", reported);
        let approach = BmcAccess { endpoint: peer.url(), ..BmcAccess::default() };
        let report = datacenter.test_bmc(&approach).await;
        match report.usable() {
            true => self.say("bmc test", report.summary()),
            false => self.fail("bmc test", &Fault::new(FaultCode::NotSupported, report.summary())),
        }
    }

    /// Reports the components that can be updated, and how. Each must be found again by its id.
    async fn firmware(&mut self, system: &System) {
        let reported = system.components().await.and_then(|all| {
            for one in &all.list {
                all.find(&one.id)?;
            }
            let found = ["BIOS", "BMC"].map(|name| match all.find(name) {
                Ok(one) => format!("{name} is {} {}", one.id, one.version),
                Err(fault) => fault.message.chars().take(60).collect(),
            });
            Ok(format!("{}; {}", all.list.len(), found.join("; ")))
        });
        self.tell("components", reported);
        let offer = system.updates().read_state().await;
        let ways = |offer: providers::redfish::UpdateServiceState| {
            offer.methods().iter().map(|way| way.as_str()).collect::<Vec<_>>().join(", ")
        };
        self.tell("updates by", offer.map(ways));
    }

    async fn state(&mut self, system: &System) {
        let power = system.power().await.map(|power| power.as_str().to_owned());
        self.tell("power", power);
        let reset =
            system.last_reset().await.map(|at| format!("{:?}", at.map(|at| at.as_millis())));
        self.tell("last reset", reset);
        let resets = system.resets().await;
        let names = |kinds: Vec<providers::redfish::Reset>| {
            kinds.into_iter().map(|kind| kind.as_str()).collect::<Vec<_>>().join(", ")
        };
        self.tell("resets", resets.map(names));
        let boot = system.boot().await;
        self.tell(
            "boot",
            boot.map(|boot| format!("{} {:?} {:?}", boot.target, boot.span, boot.mode)),
        );
        match system.health().await {
            Err(fault) => self.fail("health", &fault),
            Ok(report) => {
                self.say(
                    "health",
                    format!(
                        "{} · {} ill · {} redundancies · {} skipped",
                        report.overall.as_str(),
                        report.unhealthy.len(),
                        report.redundancy.len(),
                        report.skipped.len()
                    ),
                );
                self.fail_broken("health", &report.skipped);
            }
        }
        let log = system.log(LOG_ENTRIES).await;
        self.tell("log", log.map(|entries| format!("{} entries", entries.len())));
    }

    async fn parts(&mut self, system: &System) {
        match system.inventory().await {
            Err(fault) => self.fail("inventory", &fault),
            Ok(found) => {
                self.say(
                    "machine",
                    format!("{:?} {:?} {:?}", found.vendor, found.model, found.serial),
                );
                self.say("inventory", format!(
                    "{} cpus · {} MiB in {} modules · {} disks · {} nics · {} gpus · {} skipped",
                    found.cpus.len(), found.memory_mib.unwrap_or_default(), found.memory.len(),
                    found.disks.len(), found.nics.len(), found.gpus.len(), found.skipped.len()));
                self.say(
                    "firmware",
                    format!("{} versions, BIOS {:?}", found.firmware.len(), found.bios_version),
                );
                self.fail_broken("inventory", &found.skipped);
            }
        }
        let bios = system.bios().await;
        self.tell(
            "bios",
            bios.map(|bios| {
                format!("{} settings, {} pending", bios.current.len(), bios.pending.len())
            }),
        );
        let media = system.media().await;
        self.tell("media", media.map(|drives| format!("{} drives", drives.len())));
    }

    /// A resource that was not recorded is nobody's fault; one that is there must be readable.
    fn fail_broken(&mut self, kind: &str, skipped: &[String]) {
        for why in skipped.iter().filter(|why| !why.ends_with("is not there")) {
            self.fail(kind, &Fault::new(FaultCode::AnswerGarbled, why.clone()));
        }
    }

    fn tell(&mut self, kind: &str, result: Result<String, Fault>) {
        match result {
            Ok(text) => self.say(kind, text),
            // The recording lacks the resource, as a device may.
            Err(fault) if fault.code == FaultCode::NotSupported => self.say(kind, "none".into()),
            Err(fault) => self.fail(kind, &fault),
        }
    }

    fn say(&self, kind: &str, text: String) {
        println!("{:16} {kind:10} {text}", self.name);
    }

    fn fail(&mut self, kind: &str, fault: &Fault) {
        self.wrong += 1;
        println!("{:16} {kind:10} FAILED: {fault}", self.name);
    }
}

/// A resource of the recording. Queries are not recorded, so they are left away.
fn serve(root: &Path, call: &Call) -> Response {
    let path = call.path.split('?').next().unwrap_or_default().trim_matches('/');
    let inside = !path.split('/').any(|piece| piece == "..");
    let file = root.join(path).join("index.json");
    match std::fs::read_to_string(file) {
        Ok(body) if inside && call.method == "GET" => Response::json(body),
        Ok(_) | Err(_) => Response::status(404, "{}"),
    }
}
