//! Sites: a MAAS, and how the nodes behind it are to be.
//!
//! A site says where its MAAS is and with which key it is asked, and what every node there is given: image, zone and pool, storage and
//! network layout, and a cloud-init document with the agent in it. It has a state of its own, for those who ask why nothing moves:
//! whether its MAAS answers, and whether its nodes are cut off.

use crate::id::SiteId;
use crate::lifecycle::{Head, Lifecycle, Next, SubjectKind, Why};
use crate::machine::Labels;
use crate::refusal::Refusal;
use crate::text;
use crate::time::Timestamp;
use crate::why::Explanation;
use serde::{Deserialize, Serialize};

/// The longest cloud-init template.
pub const MAX_TEMPLATE: usize = 64 * 1_024;
/// The most calls at once, and a second, that a site may ask for.
pub const MAX_CALLS: u32 = 1_000;
const MAX_DATASOURCE_RETRIES: u32 = 5;
/// What a template may name, in double braces.
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

/// What every node of a site is given.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SiteSpec {
    /// Who speaks to its MAAS: `maas`, or `sim`.
    pub provider: String,
    /// Where its MAAS answers, up to and with `/MAAS`.
    pub maas_url: String,
    /// The credential with its API key.
    pub maas_credential: String,
    pub zone: String,
    pub pool: String,
    /// `ubuntu/jammy`: what MAAS calls the operating system and the release.
    pub image: String,
    /// What MAAS calls the layout: flat, lvm, bcache, vmfs6, blank, custom.
    pub storage_layout: String,
    /// How the boot disk is recognized: part of its model. Empty: MAAS's own choice.
    pub boot_disk_model: String,
    pub network: Network,
    /// Empty: [`DEFAULT_TEMPLATE`].
    pub cloud_init: String,
    /// How often a deployment that failed for its datasource is made again.
    pub datasource_retries: u32,
    /// Whether MAAS erases disks when a machine is released.
    pub erase_on_release: bool,
    /// Whether the record of a machine stays in MAAS when its node is decommissioned.
    pub keep_in_maas: bool,
    /// How many calls its MAAS gets at once, and a second.
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
            keep_in_maas: false,
            calls_at_once: 16,
            calls_per_second: 50,
        }
    }
}

/// How the network cards of a node are set up.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Network {
    /// The fabric's cards are those whose names begin so; empty: there are none.
    pub roce_interfaces: String,
    pub roce_mtu: u32,
    /// What their subnet is called in MAAS; empty: they are left without a link.
    pub roce_subnet: String,
}

const MTUS: std::ops::RangeInclusive<u32> = 576..=65_535;

impl SiteSpec {
    pub fn checked(self) -> Result<Self, Refusal> {
        let field = |name: &str| format!("site.spec.{name}");
        match self.provider.as_str() {
            "maas" => {
                text::web_url(&field("maas_url"), &self.maas_url)?;
                text::name(&field("maas_credential"), &self.maas_credential)?;
            }
            "sim" => {}
            other => {
                let problem = format!("is {other:?}");
                return Err(Refusal::invalid(&field("provider"), problem, "write maas, or sim"));
            }
        }
        text::short(&field("zone"), &self.zone)?;
        text::short(&field("pool"), &self.pool)?;
        text::short(&field("storage_layout"), &self.storage_layout)?;
        text::short(&field("boot_disk_model"), &self.boot_disk_model)?;
        text::short(&field("network.roce_interfaces"), &self.network.roce_interfaces)?;
        text::short(&field("network.roce_subnet"), &self.network.roce_subnet)?;
        self.check_image(&field("image"))?;
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
        text::short(field, &self.image)?;
        match self.image.split_once('/') {
            Some((system, release)) if !system.is_empty() && !release.is_empty() => Ok(()),
            Some(_) | None => Err(Refusal::invalid(
                field,
                format!("is {:?}", self.image),
                "write what MAAS calls it: ubuntu/jammy, custom/gpu-22.04",
            )),
        }
    }

    /// What MAAS calls the operating system, and the release of it.
    pub fn system_and_release(&self) -> (&str, &str) {
        self.image.split_once('/').unwrap_or(("", &self.image))
    }

    pub fn template(&self) -> &str {
        if self.cloud_init.is_empty() { DEFAULT_TEMPLATE } else { &self.cloud_init }
    }
}

/// What stands in a template for its variables.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Values<'a> {
    pub node_id: &'a str,
    pub machine_id: &'a str,
    pub hostname: &'a str,
    pub site_id: &'a str,
    /// One of Farrier's addresses, to fetch from.
    pub farrier_url: &'a str,
    /// All of them with blanks between them, for a shell.
    pub farrier_urls: &'a str,
    /// All of them, as the agent's configuration has them.
    pub controllers: &'a str,
    /// The checksum of the agent that Farrier gives out.
    pub agent_sha256: &'a str,
    pub enrollment_token: &'a str,
}

impl Values<'_> {
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

/// Farrier's addresses, as they are written behind each other with commas between them.
pub fn addresses(urls: &str) -> Vec<&str> {
    urls.split(',').map(str::trim).filter(|url| !url.is_empty()).collect()
}

/// The same as the agent's configuration has them.
pub fn controllers(urls: &str) -> String {
    format!("{:?}", addresses(urls))
}

/// Whether a template names a variable.
pub fn names(template: &str, variable: &str) -> bool {
    let mut named = template.split("{{").skip(1).filter_map(|rest| rest.split_once("}}"));
    named.any(|(name, _)| name.trim() == variable)
}

/// Fills a template in. An error names what it does not know.
pub fn render(template: &str, values: &Values<'_>) -> Result<String, String> {
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
    render(template, &Values::default())
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

/// How a site is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SiteState {
    /// Nobody has looked yet.
    New,
    Connected,
    /// Its MAAS does not answer, or not to us.
    Unreachable,
    /// So many of its nodes are silent, or otherwise than expected, that the site or the way to it is to blame.
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

/// Something that is wrong with a site, and since when.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Alarm {
    pub said: String,
    pub since: Timestamp,
}

/// What somebody who has looked at a site has to say: that something is wrong, or that it is not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Report {
    /// Its MAAS has so many machines.
    Answered(usize),
    Unreachable(String),
    Silence(Option<String>),
    Drift(Option<String>),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Site {
    pub head: Head,
    pub spec: SiteSpec,
    /// How many machines its MAAS had when it last answered; none before it did.
    #[serde(default)]
    pub machines: Option<usize>,
    #[serde(default)]
    pub unreachable: Option<Alarm>,
    /// Too many of its nodes are silent at once.
    #[serde(default)]
    pub silence: Option<Alarm>,
    /// Too many of its nodes are otherwise than expected at once.
    #[serde(default)]
    pub drift: Option<Alarm>,
}

impl Site {
    pub fn new(id: &SiteId, spec: SiteSpec, labels: Labels, now: Timestamp) -> Self {
        let head = Head::new(id.as_str(), labels, now);
        Self { head, spec, machines: None, unreachable: None, silence: None, drift: None }
    }

    pub fn id(&self) -> SiteId {
        SiteId::trusted(&self.head.id)
    }

    pub const fn state(&self) -> SiteState {
        match (&self.unreachable, &self.silence, &self.drift) {
            (Some(_), _, _) => SiteState::Unreachable,
            (None, Some(_), _) | (None, None, Some(_)) => SiteState::CutOff,
            (None, None, None) if self.machines.is_some() => SiteState::Connected,
            (None, None, None) => SiteState::New,
        }
    }

    /// Everything that is wrong with it.
    pub fn alarms(&self) -> Vec<&Alarm> {
        [&self.unreachable, &self.silence, &self.drift].into_iter().flatten().collect()
    }

    /// The site after somebody has looked. Each takes back only what it has said itself.
    #[must_use]
    pub fn told(&self, report: &Report, now: Timestamp) -> Self {
        let mut after = self.clone();
        match report {
            Report::Answered(machines) => {
                after.machines = Some(*machines);
                after.unreachable = None;
            }
            Report::Unreachable(said) => set(&mut after.unreachable, Some(said), now),
            Report::Silence(said) => set(&mut after.silence, said.as_ref(), now),
            Report::Drift(said) => set(&mut after.drift, said.as_ref(), now),
        }
        after
    }
}

/// What is said again has been so since it was first said; its counts move from look to look.
fn set(known: &mut Option<Alarm>, said: Option<&String>, now: Timestamp) {
    match (known.is_some(), said) {
        (_, None) => *known = None,
        (true, Some(_)) => {}
        (false, Some(said)) => *known = Some(Alarm { said: said.clone(), since: now }),
    }
}

impl Lifecycle for Site {
    const KIND: SubjectKind = SubjectKind::Site;
    const STATES: &'static [&'static str] = &["New", "Connected", "Unreachable", "CutOff"];
    type Seen = ();

    fn head(&self) -> &Head {
        &self.head
    }

    fn head_mut(&mut self) -> &mut Head {
        &mut self.head
    }

    fn word(&self) -> &'static str {
        self.state().as_str()
    }

    /// It is moved by who looks at it.
    fn next(&self, _seen: &(), _now: Timestamp) -> Next<Self> {
        Next::Rest(Why::new("the next look at its MAAS"))
    }
}

/// Why a site is as it is.
pub fn explain_site(site: &Site) -> Explanation {
    let id = &site.head.id;
    let said: Vec<&str> = site.alarms().iter().map(|alarm| alarm.said.as_str()).collect();
    let headline = match (site.state(), site.machines) {
        (SiteState::New, _) => format!("{id} is new: its MAAS was not asked yet"),
        (SiteState::Connected, Some(machines)) => {
            format!("{id} is connected: its MAAS has {machines} machines")
        }
        (state, _) => format!("{id} is {}: {}", state.as_str(), said.join("; ")),
    };
    let next = match site.state() {
        SiteState::New | SiteState::Connected => format!("farrier node list --site {id}"),
        SiteState::Unreachable => format!("farrier site check {id}"),
        SiteState::CutOff => format!("farrier node list --site {id} --state active"),
    };
    Explanation {
        headline,
        since: Some(site.head.since),
        failed: said.join("; "),
        next_commands: vec![next, format!("farrier site get {id}")],
        ..Explanation::default()
    }
}
