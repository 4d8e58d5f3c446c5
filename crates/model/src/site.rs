//! Sites: a MAAS, and the desired configuration of the nodes that it manages.
//!
//! A site has the address and API key of its MAAS, and what every node gets: image, zone and pool,
//! storage and network layout, and a cloud-init document that installs the agent. Its state shows
//! whether the MAAS answers and whether the nodes are cut off.

mod options;

pub use options::{Commissioning, EraseMethod};

use crate::id::SiteId;
use crate::lifecycle::{Lifecycle, LifecycleDecision, RecordHeader, SubjectKind, head_in_field};
use crate::machine::Labels;
use crate::refusal::Refusal;
use crate::text;
use crate::time::Timestamp;
use crate::why::Explanation;
use serde::{Deserialize, Serialize};

/// The length limit of a cloud-init template, in bytes.
pub const MAX_TEMPLATE: usize = 64 * 1_024;
/// The limit of concurrent calls, and of calls per second, that a site may configure.
pub const MAX_CALLS: u32 = 1_000;
const MAX_DATASOURCE_RETRIES: u32 = 5;
/// The variables of a template, written in double braces.
pub const VARIABLES: [&str; 9] = [
    "node_id",
    "machine_id",
    "hostname",
    "site_id",
    "farrier_url",
    "farrier_urls",
    "controllers",
    "agent_sha256",
    "enrollment_token",
];

/// The template of a site that has none: it installs the agent and gives it its token.
pub const DEFAULT_TEMPLATE: &str = include_str!("site/cloud-init.yaml");

/// The configuration of a site and its nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SiteSpec {
    /// The provider that calls its MAAS: `maas` or `sim`.
    pub provider: String,
    /// The URL of its MAAS, up to and including `/MAAS`.
    pub maas_url: String,
    /// The name of the credential with the API key.
    pub maas_credential: String,
    pub zone: String,
    pub pool: String,
    /// The operating system and release as MAAS names them, such as `ubuntu/jammy`.
    pub image: String,
    /// The storage layout as MAAS names it: flat, lvm, bcache, vmfs6, blank, custom.
    pub storage_layout: String,
    /// A part of the boot disk's model name. Empty: MAAS chooses.
    pub boot_disk_model: String,
    pub network: Network,
    /// Empty: [`DEFAULT_TEMPLATE`].
    pub cloud_init: String,
    /// The number of retries of a deployment that failed because of its datasource.
    pub datasource_retries: u32,
    /// True if MAAS erases disks when a machine is released.
    pub erase_on_release: bool,
    pub erase_method: EraseMethod,
    /// The kernel of deployments, as MAAS names it, such as `hwe-22.04`. Empty: MAAS's default.
    pub hwe_kernel: String,
    /// The tags that every machine of the site gets in MAAS.
    pub tags: Vec<String>,
    pub commissioning: Commissioning,
    /// True if the machine's record stays in MAAS when its node is decommissioned.
    pub keep_in_maas: bool,
    /// The limits of the calls to its MAAS: concurrent, and per second.
    pub calls_at_once: u32,
    pub calls_per_second: u32,
}

impl Default for SiteSpec {
    fn default() -> Self {
        Self {
            provider: "maas".into(),
            maas_url: String::new(),
            maas_credential: String::new(),
            zone: String::new(),
            pool: String::new(),
            image: "ubuntu/jammy".into(),
            storage_layout: "flat".into(),
            boot_disk_model: "BOSS".into(),
            network: Network::default(),
            cloud_init: String::new(),
            datasource_retries: 2,
            erase_on_release: true,
            erase_method: EraseMethod::Default,
            hwe_kernel: String::new(),
            tags: Vec::new(),
            commissioning: Commissioning::default(),
            keep_in_maas: false,
            calls_at_once: 16,
            calls_per_second: 50,
        }
    }
}

/// The configuration of a node's network interfaces.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Network {
    /// The name prefix of the fabric interfaces; empty: there are none.
    pub roce_interfaces: String,
    pub roce_mtu: u32,
    /// The name of their subnet in MAAS; empty: they get no link.
    pub roce_subnet: String,
}

const MTUS: std::ops::RangeInclusive<u32> = 576..=65_535;

impl SiteSpec {
    pub fn checked(self) -> Result<Self, Refusal> {
        let field = |name: &str| format!("site.spec.{name}");
        match self.provider.as_str() {
            "maas" => {
                text::check_web_url(&field("maas_url"), &self.maas_url)?;
                text::check_name(&field("maas_credential"), &self.maas_credential)?;
            }
            "sim" => {}
            other => {
                let problem = format!("is {other:?}");
                return Err(Refusal::invalid(&field("provider"), problem, "write maas, or sim"));
            }
        }
        text::check_short(&field("zone"), &self.zone)?;
        text::check_short(&field("pool"), &self.pool)?;
        text::check_short(&field("storage_layout"), &self.storage_layout)?;
        text::check_short(&field("boot_disk_model"), &self.boot_disk_model)?;
        text::check_short(&field("network.roce_interfaces"), &self.network.roce_interfaces)?;
        text::check_short(&field("network.roce_subnet"), &self.network.roce_subnet)?;
        self.check_image(&field("image"))?;
        text::check_short(&field("hwe_kernel"), &self.hwe_kernel)?;
        options::check_tags(&field("tags"), &self.tags)?;
        self.commissioning.check(&field("commissioning"))?;
        check_template(&field("cloud_init"), &self.cloud_init)?;
        let mtu = self.network.roce_mtu;
        if mtu != 0 && !MTUS.contains(&mtu) {
            let instead = format!("use {} to {}, or leave it out", MTUS.start(), MTUS.end());
            let problem = format!("is {mtu}");
            return Err(Refusal::invalid(&field("network.roce_mtu"), problem, instead));
        }
        for (name, value, least, most) in [
            ("datasource_retries", self.datasource_retries, 0, MAX_DATASOURCE_RETRIES),
            ("calls_at_once", self.calls_at_once, 1, MAX_CALLS),
            ("calls_per_second", self.calls_per_second, 1, MAX_CALLS),
        ] {
            if value < least || value > most {
                let instead = format!("use {least} to {most}");
                return Err(Refusal::invalid(&field(name), format!("is {value}"), instead));
            }
        }
        Ok(self)
    }

    fn check_image(&self, field: &str) -> Result<(), Refusal> {
        text::check_short(field, &self.image)?;
        match self.image.split_once('/') {
            Some((system, release)) if !system.is_empty() && !release.is_empty() => Ok(()),
            Some(_) | None => Err(Refusal::invalid(
                field,
                format!("is {:?}", self.image),
                "write what MAAS calls it: ubuntu/jammy, custom/gpu-22.04",
            )),
        }
    }

    pub fn template(&self) -> &str {
        if self.cloud_init.is_empty() { DEFAULT_TEMPLATE } else { &self.cloud_init }
    }
}

/// The values of a template's variables.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TemplateValues<'a> {
    pub node_id: &'a str,
    pub machine_id: &'a str,
    pub hostname: &'a str,
    pub site_id: &'a str,
    /// One of Farrier's addresses, for downloads.
    pub farrier_url: &'a str,
    /// All of Farrier's addresses, separated by blanks, for a shell.
    pub farrier_urls: &'a str,
    /// All of Farrier's addresses, in the format of the agent's configuration.
    pub controllers: &'a str,
    /// The checksum of the agent binary that Farrier serves.
    pub agent_sha256: &'a str,
    pub enrollment_token: &'a str,
}

impl TemplateValues<'_> {
    fn of(&self, name: &str) -> Option<&str> {
        let all = [
            self.node_id,
            self.machine_id,
            self.hostname,
            self.site_id,
            self.farrier_url,
            self.farrier_urls,
            self.controllers,
            self.agent_sha256,
            self.enrollment_token,
        ];
        VARIABLES.iter().position(|one| *one == name).map(|at| all[at])
    }
}

/// Splits Farrier's addresses, which are separated by commas.
pub fn addresses(urls: &str) -> Vec<&str> {
    urls.split(',').map(str::trim).filter(|url| !url.is_empty()).collect()
}

/// Farrier's addresses in the format of the agent's configuration.
pub fn controllers(urls: &str) -> String {
    format!("{:?}", addresses(urls))
}

/// True if a template uses a variable.
pub fn uses_variable(template: &str, variable: &str) -> bool {
    let mut named = template.split("{{").skip(1).filter_map(|rest| rest.split_once("}}"));
    named.any(|(name, _)| name.trim() == variable)
}

/// Fills in a template. The error names an unknown variable.
pub fn render_template(template: &str, values: &TemplateValues<'_>) -> Result<String, String> {
    let mut text = String::with_capacity(template.len());
    let mut rest = template;
    while let Some((before, after)) = rest.split_once("{{") {
        let Some((name, after)) = after.split_once("}}") else {
            return Err("has a {{ without its }}".into());
        };
        let name = name.trim();
        let value = values.of(name).ok_or_else(|| format!("names {name:?}, which is unknown"))?;
        text.push_str(before);
        text.push_str(value);
        rest = after;
    }
    text.push_str(rest);
    Ok(text)
}

fn check_template(field: &str, template: &str) -> Result<(), Refusal> {
    if template.len() > MAX_TEMPLATE {
        let problem = format!("is {} bytes long", template.len());
        return Err(Refusal::invalid(field, problem, format!("use at most {MAX_TEMPLATE} bytes")));
    }
    let instead = || format!("use {}, in double braces", VARIABLES.join(", "));
    render_template(template, &TemplateValues::default())
        .map_err(|problem| Refusal::invalid(field, problem, instead()))?;
    let bad = |c: &char| c.is_control() && !matches!(c, '\n' | '\r' | '\t');
    match template.chars().find(bad) {
        None => Ok(()),
        Some(bad) => {
            let problem = format!("contains the control character {bad:?}");
            Err(Refusal::invalid(field, problem, "use printable characters and line breaks"))
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SiteState {
    /// The MAAS has not been polled yet.
    New,
    Connected,
    /// The MAAS does not answer, or refuses Farrier.
    Unreachable,
    /// A mass outage: so many nodes are silent, or drift, that the site or the connection to it is
    /// to blame.
    CutOff,
}

impl SiteState {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::New => "New",
            Self::Connected => "Connected",
            Self::Unreachable => "Unreachable",
            Self::CutOff => "CutOff",
        }
    }
}

/// A problem with a site, and the time since which it lasts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SiteAlarm {
    #[serde(rename = "said")]
    pub message: String,
    pub since: Timestamp,
}

/// The result of a poll. An alarm without a text is over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SiteReport {
    /// The MAAS has this many machines.
    Answered(usize),
    Unreachable(String),
    Silence(Option<String>),
    Drift(Option<String>),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Site {
    pub head: RecordHeader,
    pub spec: SiteSpec,
    /// The number of machines in MAAS at its last answer; none before its first answer.
    #[serde(default)]
    pub machines: Option<usize>,
    #[serde(default)]
    pub unreachable: Option<SiteAlarm>,
    /// Too many nodes are silent at once.
    #[serde(default)]
    pub silence: Option<SiteAlarm>,
    /// Too many nodes drift at once.
    #[serde(default)]
    pub drift: Option<SiteAlarm>,
}

impl Site {
    pub fn new(id: &SiteId, spec: SiteSpec, labels: Labels, now: Timestamp) -> Self {
        let head = RecordHeader::new(id.as_str(), labels, now);
        Self { head, spec, machines: None, unreachable: None, silence: None, drift: None }
    }

    pub fn id(&self) -> SiteId {
        SiteId::trusted(&self.head.id)
    }

    /// The site after an update, in which the requested spec and labels replace the stored ones.
    /// A changed site has to be polled again before its MAAS counts as reachable.
    pub fn updated(&self, spec: &SiteSpec, labels: &Labels) -> Result<Self, Refusal> {
        let spec = spec.clone().checked()?;
        let mut after = self.clone();
        if (&self.spec, &self.head.labels) != (&spec, labels) {
            after.spec = spec;
            after.head.labels = labels.clone();
            (after.machines, after.unreachable) = (None, None);
        }
        Ok(after)
    }

    pub const fn state(&self) -> SiteState {
        match (&self.unreachable, &self.silence, &self.drift) {
            (Some(_), _, _) => SiteState::Unreachable,
            (None, Some(_), _) | (None, None, Some(_)) => SiteState::CutOff,
            (None, None, None) if self.machines.is_some() => SiteState::Connected,
            (None, None, None) => SiteState::New,
        }
    }

    /// All current problems.
    pub fn alarms(&self) -> Vec<&SiteAlarm> {
        [&self.unreachable, &self.silence, &self.drift].into_iter().flatten().collect()
    }

    /// The site after a report. Each kind of report clears only its own alarm.
    #[must_use]
    pub fn apply_report(&self, report: &SiteReport, now: Timestamp) -> Self {
        let mut after = self.clone();
        match report {
            SiteReport::Answered(machines) => {
                after.machines = Some(*machines);
                after.unreachable = None;
            }
            SiteReport::Unreachable(message) => set(&mut after.unreachable, Some(message), now),
            SiteReport::Silence(message) => set(&mut after.silence, message.as_ref(), now),
            SiteReport::Drift(message) => set(&mut after.drift, message.as_ref(), now),
        }
        after
    }
}

/// A repeated alarm keeps its first text and time: the counts in the text change with every poll.
fn set(known: &mut Option<SiteAlarm>, message: Option<&String>, now: Timestamp) {
    match (known.is_some(), message) {
        (_, None) => *known = None,
        (true, Some(_)) => {}
        (false, Some(message)) => *known = Some(SiteAlarm { message: message.clone(), since: now }),
    }
}

impl Lifecycle for Site {
    const KIND: SubjectKind = SubjectKind::Site;
    const STATES: &'static [&'static str] = &["New", "Connected", "Unreachable", "CutOff"];
    type TurnInput = ();

    head_in_field!();

    fn state_name(&self) -> &'static str {
        self.state().as_str()
    }

    /// A site has no turn of its own: polls change it.
    fn next(&self, _seen: &(), _now: Timestamp) -> LifecycleDecision<Self> {
        LifecycleDecision::idle("the next look at its MAAS")
    }
}

/// Explains the state of a site.
pub fn explain_site(site: &Site) -> Explanation {
    let id = &site.head.id;
    let message: Vec<&str> = site.alarms().iter().map(|alarm| alarm.message.as_str()).collect();
    let headline = match (site.state(), site.machines) {
        (SiteState::New, _) => format!("{id} is new: its MAAS was not asked yet"),
        (SiteState::Connected, Some(machines)) => {
            format!("{id} is connected: its MAAS has {machines} machines")
        }
        (
            state @ (SiteState::Connected | SiteState::Unreachable | SiteState::CutOff),
            Some(_) | None,
        ) => format!("{id} is {}: {}", state.as_str(), message.join("; ")),
    };
    let next = match site.state() {
        SiteState::New | SiteState::Connected => format!("farrier node list --site {id}"),
        SiteState::Unreachable => format!("farrier site check {id}"),
        SiteState::CutOff => format!("farrier node list --site {id} --state active"),
    };
    Explanation {
        headline,
        since: Some(site.head.since),
        failed: message.join("; "),
        next_commands: vec![next, format!("farrier site get {id}")],
        ..Explanation::default()
    }
}
