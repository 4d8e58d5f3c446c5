//! Selects the System of a machine.
//!
//! A BMC may show several Systems: the nodes of a chassis, or boards inside one machine. Taking the
//! first could wipe the wrong machine. So the System is named, or recognised by its serial number
//! or a MAC address, or is the only one; anything else is a fault that lists the Systems. If the
//! only System shows another serial number than expected, it is refused.

use super::Bmc;
use super::address::ROOT;
use super::client::{MAX_MEMBERS, RedfishClient};
use super::decode::{Resource, last_piece};
use super::monitoring::Services;
use super::quirks::Quirks;
use super::update::UpdateService;
use model::fault::{Fault, FaultCode, Result};
use std::sync::Arc;
use std::time::Duration;

/// The most Systems of one BMC that are read.
const MAX_SYSTEMS: usize = 64;

/// The properties by which a System is selected.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SystemSelector {
    /// The System's id, such as `System.Embedded.1`. The path in the address takes precedence.
    pub id: Option<String>,
    /// The machine's serial number or service tag.
    pub serial: Option<String>,
    pub macs: Vec<String>,
}

/// A System as a list shows it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SystemSummary {
    pub id: String,
    pub vendor: Option<String>,
    pub model: Option<String>,
    pub serial: Option<String>,
    pub sku: Option<String>,
    /// False for a board inside the machine that the BMC shows as a System.
    pub host: bool,
}

/// One computer behind a BMC.
pub struct System {
    pub(super) link: Arc<RedfishClient>,
    pub(super) path: String,
    pub(super) quirks: Quirks,
    pub(super) poll_interval: Duration,
    /// Boards of the same machine that the BMC shows as Systems; one of them has the GPUs.
    pub(super) boards: Vec<String>,
    /// True if the device can expand a collection in one response.
    pub(super) expands: bool,
    pub(super) updates: UpdateService,
    pub(super) services: Services,
    /// The chassis collection, if all its chassis belong to this System.
    pub(super) all_chassis: Option<String>,
}

struct Candidate {
    doc: Resource,
    overview: SystemSummary,
    quirks: Quirks,
}

impl Bmc {
    /// All Systems of the BMC, boards included.
    pub async fn systems(&self) -> Result<Vec<SystemSummary>> {
        Ok(self.candidates().await?.into_iter().map(|candidate| candidate.overview).collect())
    }

    /// Selects the System of the machine.
    pub async fn system(&self, desired: &SystemSelector) -> Result<System> {
        let candidates = self.candidates().await?;
        let named = self.system.as_deref().map(last_piece).or(desired.id.as_deref());
        let chosen = match named {
            Some(id) => self.named(&candidates, id).await?,
            None => self.recognise(&candidates, desired).await?,
        };
        Ok(self.built(&candidates, chosen))
    }

    /// All computers behind the BMC, or only the one that the address names.
    pub async fn hosts(&self) -> Result<Vec<System>> {
        let candidates = self.candidates().await?;
        if let Some(id) = self.system.as_deref().map(last_piece) {
            let chosen = self.named(&candidates, id).await?;
            return Ok(vec![self.built(&candidates, chosen)]);
        }
        let hosts = candidates.iter().filter(|candidate| candidate.overview.host);
        Ok(hosts.map(|host| self.built(&candidates, host.selected())).collect())
    }

    fn built(&self, candidates: &[Candidate], chosen: SelectedSystem) -> System {
        let board = |candidate: &&Candidate| !candidate.overview.host;
        let boards = candidates.iter().filter(board).map(|board| board.doc.path.clone()).collect();
        let hosts = candidates.iter().filter(|candidate| candidate.overview.host).count();
        let root = self.root.root();
        let expand = root.get("ProtocolFeaturesSupported").get("ExpandQuery");
        System {
            link: self.link.clone(),
            path: chosen.path,
            quirks: chosen.quirks,
            poll_interval: self.poll_interval,
            boards,
            expands: expand.flag("NoLinks") == Some(true),
            updates: self.updates(),
            services: self.services(),
            all_chassis: root.link("Chassis").filter(|_| hosts == 1),
        }
    }

    async fn candidates(&self) -> Result<Vec<Candidate>> {
        let path = self.root.root().link("Systems").unwrap_or_else(|| format!("{ROOT}/Systems"));
        // The list must be readable, otherwise another machine could look like the only one.
        let list = self.link.get(&path).await?;
        let mut skipped = Vec::new();
        let mut docs = self.link.members(&list.path, MAX_SYSTEMS, &mut skipped).await?;
        docs.retain(|doc| doc.value.is_object());
        match skipped.first() {
            Some(why) => {
                Err(self.ambiguous(&[], &format!("One of its Systems cannot be read: {why}")))
            }
            None => Ok(docs.into_iter().map(|doc| self.candidate(doc)).collect()),
        }
    }

    fn candidate(&self, doc: Resource) -> Candidate {
        let part = doc.root();
        let mut overview = SystemSummary {
            id: part.text("Id").unwrap_or_else(|| doc.name().to_owned()),
            vendor: part.text("Manufacturer"),
            model: part.text("Model"),
            serial: part.text("SerialNumber"),
            sku: part.text("SKU"),
            host: true,
        };
        let about = self.about();
        let makers: Vec<String> = overview.vendor.iter().chain(&about.vendor).cloned().collect();
        let quirks = Quirks::of(&makers, overview.model.as_deref().unwrap_or_default());
        overview.host = quirks.is_host(&overview.id);
        Candidate { doc, overview, quirks }
    }

    /// The System with this id, or with an alias that the list does not show.
    async fn named(&self, candidates: &[Candidate], id: &str) -> Result<SelectedSystem> {
        let by_id =
            |candidate: &&Candidate| candidate.overview.id == id || candidate.doc.name() == id;
        if let Some(found) = candidates.iter().find(by_id) {
            return Ok(found.selected());
        }
        let path = format!("{ROOT}/Systems/{id}");
        let aliased = self.link.find(&path).await?.and_then(|doc| doc.root().as_link());
        let by_path = |path: &String| candidates.iter().find(|one| one.doc.path == *path);
        aliased
            .as_ref()
            .and_then(by_path)
            .map(Candidate::selected)
            .ok_or_else(|| self.ambiguous(candidates, &format!("It has no System {id:?}")))
    }

    async fn recognise(
        &self,
        candidates: &[Candidate],
        desired: &SystemSelector,
    ) -> Result<SelectedSystem> {
        let hosts: Vec<&Candidate> = candidates.iter().filter(|one| one.overview.host).collect();
        if let Some(serial) = &desired.serial {
            let fitting: Vec<_> = hosts.iter().filter(|one| one.has_serial(serial)).collect();
            match fitting.as_slice() {
                [one] => return Ok(one.selected()),
                [] if hosts.iter().any(|one| !one.shows_serial()) => {}
                [] => return Err(self.ambiguous(candidates, &format!("None is {serial:?}"))),
                [_, _, ..] => {
                    let why = format!("Several have the serial number {serial:?}");
                    return Err(self.ambiguous(candidates, &why));
                }
            }
        }
        if let [one] = hosts.as_slice() {
            return Ok(one.selected());
        }
        let mut fitting = Vec::new();
        for host in hosts.into_iter().filter(|_| !desired.macs.is_empty()) {
            if self.has_mac(host, &desired.macs).await? {
                fitting.push(host);
            }
        }
        match fitting.as_slice() {
            [one] => Ok(one.selected()),
            [] => Err(self.ambiguous(candidates, "Nothing known of the machine tells which")),
            [_, _, ..] => Err(self.ambiguous(candidates, "Several have one of its MAC addresses")),
        }
    }

    async fn has_mac(&self, candidate: &Candidate, macs: &[String]) -> Result<bool> {
        let Some(path) = candidate.doc.root().link("EthernetInterfaces") else { return Ok(false) };
        let desired: Vec<String> = macs.iter().filter_map(|mac| plain_mac(mac)).collect();
        let mut skipped = Vec::new();
        let nics = self.link.members(&path, MAX_MEMBERS, &mut skipped).await?;
        Ok(nics.iter().any(|nic| {
            ["MACAddress", "PermanentMACAddress"]
                .iter()
                .filter_map(|field| candidate.quirks.mac(&nic.root().text(field)?))
                .any(|mac| desired.contains(&mac))
        }))
    }

    fn ambiguous(&self, candidates: &[Candidate], why: &str) -> Fault {
        let list: Vec<String> = candidates.iter().map(Candidate::shown).collect();
        let there = match list.as_slice() {
            [] => "no System".to_owned(),
            some => some.join(", "),
        };
        let message = format!("{} has {there}. {why}", self.endpoint());
        Fault::new(FaultCode::SystemAmbiguous, message)
    }
}

struct SelectedSystem {
    path: String,
    quirks: Quirks,
}

impl Candidate {
    fn selected(&self) -> SelectedSystem {
        SelectedSystem { path: self.doc.path.clone(), quirks: self.quirks.clone() }
    }

    fn has_serial(&self, serial: &str) -> bool {
        let same = |shown: &Option<String>| {
            shown.as_deref().is_some_and(|shown| shown.eq_ignore_ascii_case(serial.trim()))
        };
        // Dell shows its service tag as the SKU.
        same(&self.overview.serial) || same(&self.overview.sku)
    }

    fn shows_serial(&self) -> bool {
        self.overview.serial.is_some()
    }

    fn shown(&self) -> String {
        let SystemSummary { id, serial, host, .. } = &self.overview;
        match (serial, host) {
            (_, false) => format!("{id} (a board)"),
            (Some(serial), true) => format!("{id} (serial {serial})"),
            (None, true) => id.clone(),
        }
    }
}

impl System {
    /// The last segment of its path.
    pub fn id(&self) -> &str {
        last_piece(&self.path)
    }

    /// Its path on the BMC, which an update names as its target.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Closes the connection and keeps the session.
    pub fn close_idle(&self) {
        self.link.close_idle();
    }

    pub(super) async fn read(&self) -> Result<Resource> {
        self.link.get(&self.path).await
    }

    /// The fault for a property or action that the device does not have.
    pub(super) fn lacks(&self, what: &str) -> Fault {
        let message = format!("{} has no {what} on {}", self.link.endpoint(), self.path);
        Fault::new(FaultCode::NotSupported, message)
    }

    pub(super) fn garbled(&self, why: &str) -> Fault {
        let message = format!("{} says of {}: {why}", self.link.endpoint(), self.path);
        Fault::new(FaultCode::AnswerGarbled, message)
    }
}

/// A MAC address in lower case with colons, from any common notation.
pub(super) fn plain_mac(text: &str) -> Option<String> {
    const DIGITS: usize = 12;
    let digits: String =
        text.chars().filter(char::is_ascii_hexdigit).collect::<String>().to_ascii_lowercase();
    let punctuated = text.trim().chars().all(|c| c.is_ascii_hexdigit() || ":-.".contains(c));
    if digits.len() != DIGITS || !punctuated {
        return None;
    }
    let pairs: Vec<&str> = (0..DIGITS).step_by(2).map(|at| &digits[at..at + 2]).collect();
    Some(pairs.join(":"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mac_is_the_same_however_it_is_written() {
        for text in ["94:6D:AE:91:FB:22", "946dae91fb22", "94-6d-ae-91-fb-22", " 946d.ae91.fb22 "] {
            assert_eq!(plain_mac(text).as_deref(), Some("94:6d:ae:91:fb:22"), "{text}");
        }
        for text in ["", "N/A", "94:6D:AE:91:FB", "94:6D:AE:91:FB:22:00:00"] {
            assert_eq!(plain_mac(text), None, "{text}");
        }
    }
}
