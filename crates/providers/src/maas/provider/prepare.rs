//! Checks before any change at MAAS: whether the site fits its region, how the BMC is reached, and
//! the cloud-init of the new system.

use super::executor::StageExecutor;
use super::machine;
use crate::ipmi::is_ipmi;
use crate::maas::{Address, Bmc, PowerConfig, StorageLayout, Whoami};
use crate::peer_login::{Login, login_peer};
use crate::port::{Target, hostname};
use crate::redfish::BmcAddress;
use crate::state_store::{Credential, no_credential};
use model::credential::{AllowedAddresses, Peer};
use model::effect::{CallOutcome, CallResult};
use model::fault::{Fault, FaultCode, Result};
use model::node::NodeState;
use model::site::{
    SiteSpec, TemplateValues, addresses, controllers, render_template, uses_variable,
};
use secrecy::{ExposeSecret, SecretString};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::path::Path;

const IPMI: &str = "ipmi://";
/// The template variables with Farrier's address.
const URLS: [&str; 3] = ["farrier_url", "farrier_urls", "controllers"];
/// The template variable with the agent's checksum, and the path of its download.
const SHA256: &str = "agent_sha256";
const BINARY: &str = "/agent/v1/binary";

impl StageExecutor<'_> {
    pub async fn load_site(&self) -> CallResult {
        self.run_read_only(async {
            // A node that is removed is installed no more: the site's image may be gone, too.
            let installs = self.node.state != NodeState::Removing;
            let (id, address) = (&self.site.head.id, self.call.maas().address());
            let (problems, text) = match installs {
                true => {
                    let text = format!("{id} fits {address}: {} installs", self.site.spec.image);
                    (self.install_problems().await?, text)
                }
                false => {
                    let whoami = self.call.maas().whoami().await?;
                    let text = format!("{address} answers, and {} may remove it", whoami.username);
                    (whoami.administrator_problem().into_iter().collect(), text)
                }
            };
            match problems[..] {
                [] => Ok(CallOutcome { message: text, ..CallOutcome::default() }),
                _ => {
                    let text = format!("{id} does not fit {address}: {}", problems.join("; "));
                    Err(Fault::new(FaultCode::SiteUnfit, text))
                }
            }
        })
        .await
    }

    /// The problems that keep a node of the site from being installed.
    async fn install_problems(&self) -> Result<Vec<String>> {
        let offers = self.read_catalog().await?;
        let mut problems =
            problems(&self.site.spec, &offers, &self.call.provider.settings.farrier_url);
        if let Err(fault) = self.agent_sha256().await {
            problems.push(fault.message);
        }
        Ok(problems)
    }

    /// Reads the offers of the region. Lists that the site does not use are not read.
    async fn read_catalog(&self) -> Result<RegionCatalog> {
        let (maas, spec) = (self.call.maas(), &self.site.spec);
        let whoami = maas.whoami().await?;
        let names =
            |all: Vec<crate::maas::NamedResource>| all.into_iter().map(|one| one.name).collect();
        let mut offers = RegionCatalog {
            whoami: Some(whoami),
            images: maas.images().await?,
            ..RegionCatalog::default()
        };
        if !spec.zone.is_empty() {
            offers.zones = names(maas.zones().await?);
        }
        if !spec.pool.is_empty() {
            offers.pools = names(maas.pools().await?);
        }
        if !spec.network.roce_subnet.is_empty() {
            let subnets = maas.subnets().await?;
            offers.subnets = subnets.into_iter().flat_map(|one| [one.name, one.cidr]).collect();
        }
        Ok(offers)
    }

    pub async fn resolve_power(&self, target: &Target) -> CallResult {
        self.run_read_only(async {
            let text = match self.power_config(target).await? {
                None => "MAAS has its BMC already".into(),
                Some(PowerConfig::Manual) => {
                    "the machine has no bmc_endpoint: MAAS leaves its power to a person".into()
                }
                Some(PowerConfig::Redfish(bmc) | PowerConfig::Ipmi(bmc)) => {
                    format!("MAAS reaches its BMC at {} as {}", bmc.address, bmc.user)
                }
            };
            Ok(CallOutcome { message: text, ..CallOutcome::default() })
        })
        .await
    }

    /// The power configuration for MAAS. `None`: MAAS has it already.
    pub async fn power_config(&self, target: &Target) -> Result<Option<PowerConfig>> {
        let spec = &target.spec;
        if spec.bmc_endpoint.is_empty() {
            return Ok(Some(PowerConfig::Manual));
        }
        if machine::is_maas_endpoint(spec) {
            return Ok(None);
        }
        let name = self.call.provider.bmc_credential(spec);
        let id = &target.id;
        let instead = format!("`farrier machine update {id} --bmc-credential NAME`");
        if name.is_empty() {
            let message =
                format!("the machine names no bmc_credential for its BMC; name one: {instead}");
            return Err(Fault::new(FaultCode::CredentialMissing, message));
        }
        let missing = |fault: Fault| {
            if fault.code != FaultCode::CredentialMissing {
                return fault;
            }
            let message = format!(
                "{}; add it with `farrier credential set {name} …`, or name another: {instead}",
                no_credential(name).message
            );
            Fault::new(FaultCode::CredentialMissing, message)
        };
        // The password goes to MAAS, and from there to the BMC: both must be allowed.
        let region = Address::parse(&self.site.spec.maas_url)
            .map_err(|refusal| Fault::new(FaultCode::SiteUnfit, refusal.message))?;
        self.power_credential(name, &region.peer()).await.map_err(missing)?;
        let bmc_peer = login_peer(&spec.bmc_endpoint)?;
        let credential = self.power_credential(name, &bmc_peer).await?;
        let login = Login::of(&credential)?;
        bmc(target, login.user, login.password).map(Some)
    }

    /// The credential for a peer whose name others resolve, so that a binding to networks cannot be
    /// checked for a name.
    async fn power_credential(&self, name: &str, peer: &Peer) -> Result<Credential> {
        let credential = self.call.provider.store.credential(name, peer).await?;
        match credential.allowed {
            AllowedAddresses::Any => Ok(credential),
            AllowedAddresses::Within(_) => {
                let fault = AllowedAddresses::fault(peer);
                Err(fault.with(|facts| facts.credential = Some(name.into())))
            }
        }
    }

    pub async fn render_cloud_init(&self) -> CallResult {
        self.run_read_only(async {
            let text = self.cloud_init().await?;
            let text = text.expose_secret();
            let sum = sum(text.as_bytes());
            let said =
                format!("cloud-init for {}: {} bytes, sha256 {sum}", self.node.head.id, text.len());
            Ok(CallOutcome { message: said, ..CallOutcome::default() })
        })
        .await
    }

    async fn agent_sha256(&self) -> Result<String> {
        agent_sha256(self.site.spec.template(), &self.call.provider.settings.agent_binary).await
    }

    /// The cloud-init of the new system. It holds an enrollment token.
    pub async fn cloud_init(&self) -> Result<SecretString> {
        let token = self.call.provider.store.enrollment_token(&self.node.id()).await?;
        let urls = &self.call.provider.settings.farrier_url;
        let values = TemplateValues {
            node_id: &self.node.head.id,
            machine_id: self.node.machine.as_str(),
            hostname: &hostname(self.node.machine.as_str()),
            site_id: &self.site.head.id,
            farrier_url: addresses(urls).first().copied().unwrap_or_default(),
            farrier_urls: &addresses(urls).join(" "),
            controllers: &controllers(urls),
            agent_sha256: &self.agent_sha256().await?,
            enrollment_token: token.expose_secret(),
        };
        let text = render_template(self.site.spec.template(), &values);
        text.map(SecretString::from).map_err(|problem| {
            Fault::new(FaultCode::SiteUnfit, format!("site.spec.cloud_init {problem}"))
        })
    }
}

/// The offers of a region, as far as the site uses them.
#[derive(Debug, Clone, Default)]
struct RegionCatalog {
    whoami: Option<Whoami>,
    images: Vec<String>,
    zones: Vec<String>,
    pools: Vec<String>,
    subnets: Vec<String>,
}

/// All mismatches, each with its field.
fn problems(spec: &SiteSpec, offers: &RegionCatalog, farrier_url: &str) -> Vec<String> {
    let user = offers.whoami.as_ref();
    let mut found: Vec<String> = user.and_then(Whoami::administrator_problem).into_iter().collect();
    let mut say = |field: &str, problem: String| found.push(format!("site.spec.{field} {problem}"));
    for (field, desired, there) in [
        ("image", &spec.image, &offers.images),
        ("zone", &spec.zone, &offers.zones),
        ("pool", &spec.pool, &offers.pools),
        ("network.roce_subnet", &spec.network.roce_subnet, &offers.subnets),
    ] {
        if !desired.is_empty() && !there.contains(desired) {
            say(
                field,
                format!("is {desired:?}, which MAAS does not have; it has {}", there.join(", ")),
            );
        }
    }
    if !spec.storage_layout.is_empty() && StorageLayout::parse(&spec.storage_layout).is_none() {
        let known: Vec<&str> = StorageLayout::ALL.iter().map(|layout| layout.as_str()).collect();
        say("storage_layout", format!("is {:?}; write {}", spec.storage_layout, known.join(", ")));
    }
    if let Err(problem) = render_template(spec.template(), &TemplateValues::default()) {
        say("cloud_init", problem);
    }
    let named = URLS.iter().find(|name| uses_variable(spec.template(), name));
    if let (Some(name), "") = (named, farrier_url) {
        let problem = format!(
            "names {name}, and agents have no address; set nodes.listen or nodes.url in the configuration"
        );
        say("cloud_init", problem);
    }
    found
}

/// The checksum of the agent binary; empty when the template does not fetch it. Read each time,
/// because the file may have been replaced.
async fn agent_sha256(template: &str, binary: &Path) -> Result<String> {
    if !fetches_agent(template) {
        return Ok(String::new());
    }
    let unfit = |problem: String| {
        let message = format!(
            "site.spec.cloud_init fetches the agent from Farrier, and nodes.agent_binary {problem}; set it in the configuration to the static farrier-agent"
        );
        Fault::new(FaultCode::SiteUnfit, message)
    };
    if binary.as_os_str().is_empty() {
        return Err(unfit("is not set".into()));
    }
    let read = tokio::fs::read(binary).await;
    let bytes = read.map_err(|error| unfit(format!("{}: {error}", binary.display())))?;
    Ok(sum(&bytes))
}

fn fetches_agent(template: &str) -> bool {
    uses_variable(template, SHA256) || template.contains(BINARY)
}

fn sum(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The BMC for MAAS: Redfish, unless its address says IPMI.
fn bmc(target: &Target, user: String, password: SecretString) -> Result<PowerConfig> {
    let (id, endpoint) = (&target.id, &target.spec.bmc_endpoint);
    let mut more = BTreeMap::new();
    if is_ipmi(endpoint) {
        let position = endpoint.trim_start_matches(IPMI);
        more.insert("power_driver".to_owned(), "LAN_2_0".to_owned());
        return Ok(PowerConfig::Ipmi(Bmc {
            address: position.to_owned(),
            user,
            password,
            extra_parameters: more,
        }));
    }
    let address = BmcAddress::parse(endpoint)?;
    if !address.endpoint.tls() {
        let message = format!(
            "the machine's bmc_endpoint is {endpoint}, and MAAS speaks only https to a Redfish BMC; \
             give the BMC https, or let MAAS use IPMI: `farrier machine update {id} --bmc-endpoint ipmi://HOST`"
        );
        return Err(Fault::new(FaultCode::NotSupported, message));
    }
    // Without it MAAS uses the first System of the BMC.
    let system = address.system.as_deref();
    if let Some(id) = system.and_then(|path| path.trim_end_matches('/').rsplit('/').next()) {
        more.insert("node_id".to_owned(), id.to_owned());
    }
    Ok(PowerConfig::Redfish(Bmc {
        // MAAS takes HOST or HOST:PORT. It fails over a URL with a 500, for ever.
        address: address.endpoint.authority(),
        user,
        password,
        extra_parameters: more,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::id::MachineId;
    use model::machine::MachineSpec;
    use model::site::Network;
    use model::target::TargetId;

    fn offers() -> RegionCatalog {
        let all = |names: &[&str]| names.iter().map(ToString::to_string).collect();
        RegionCatalog {
            whoami: Some(whoami(true)),
            images: all(&["ubuntu/jammy"]),
            zones: all(&["east"]),
            pools: all(&["gpu"]),
            subnets: all(&["roce"]),
        }
    }

    fn whoami(is_superuser: bool) -> Whoami {
        Whoami { username: "farrier".into(), is_superuser }
    }

    #[test]
    fn what_does_not_fit_is_named_with_its_field() {
        let spec = SiteSpec {
            zone: "east".into(),
            pool: "gpu".into(),
            network: Network { roce_subnet: "roce".into(), ..Network::default() },
            ..SiteSpec::default()
        };
        assert_eq!(problems(&spec, &offers(), "http://f"), [""; 0]);
        let image = SiteSpec { image: "ubuntu/noble".into(), ..spec.clone() };
        let zone = SiteSpec { zone: "west".into(), ..spec.clone() };
        let pool = SiteSpec { pool: "cpu".into(), ..spec.clone() };
        let layout = SiteSpec { storage_layout: "zfs".into(), ..spec.clone() };
        let template = SiteSpec { cloud_init: "{{who}}".into(), ..spec.clone() };
        let mut subnet = spec.clone();
        subnet.network.roce_subnet = "fabric".into();
        for (spec, words) in [
            (
                image,
                "site.spec.image is \"ubuntu/noble\", which MAAS does not have; it has ubuntu/jammy",
            ),
            (zone, "site.spec.zone is \"west\""),
            (pool, "site.spec.pool is \"cpu\""),
            (subnet, "site.spec.network.roce_subnet is \"fabric\""),
            (layout, "site.spec.storage_layout is \"zfs\"; write flat"),
            (template, "site.spec.cloud_init names \"who\""),
        ] {
            let found = problems(&spec, &offers(), "http://f");
            assert!(found.len() == 1 && found[0].starts_with(words), "{found:?}");
        }
        let user = RegionCatalog { whoami: Some(whoami(false)), ..offers() };
        let found = problems(&spec, &user, "http://f");
        assert!(
            found[0].starts_with("site.spec.maas_credential is the key of farrier"),
            "{found:?}"
        );
        let found = problems(&spec, &offers(), "");
        assert!(found[0].contains("set nodes.listen or nodes.url"), "{found:?}");
        let own = SiteSpec { cloud_init: "#cloud-config\n".into(), ..spec };
        assert_eq!(problems(&own, &offers(), ""), [""; 0]);
    }

    #[tokio::test]
    async fn a_missing_agent_binary_is_reported_first() {
        let own = "#cloud-config\n";
        assert_eq!(agent_sha256(own, Path::new("")).await.unwrap(), "");
        for template in [SiteSpec::default().template(), "{{agent_sha256}}"] {
            for (path, words) in [("", "is not set"), ("/nowhere", "/nowhere: ")] {
                let fault = agent_sha256(template, Path::new(path)).await.unwrap_err();
                assert_eq!(fault.code, FaultCode::SiteUnfit);
                assert!(fault.message.contains("nodes.agent_binary"), "{}", fault.message);
                assert!(fault.message.contains(words), "{}", fault.message);
            }
            let sum = agent_sha256(template, Path::new("/dev/null")).await.unwrap();
            assert!(sum.starts_with("e3b0c44298fc1c14"), "{sum}");
        }
    }

    #[test]
    fn a_bmc_is_reached_as_its_address_says() {
        for (endpoint, kind, address, more) in [
            ("10.0.0.5", "redfish", "10.0.0.5", ""),
            ("https://bmc-7:8443", "redfish", "bmc-7:8443", ""),
            ("https://[fe80::1]", "redfish", "[fe80::1]", ""),
            ("https://[fe80::1]:8443", "redfish", "[fe80::1]:8443", ""),
            ("https://10.0.0.5/redfish/v1/Systems/2", "redfish", "10.0.0.5", "2"),
            ("ipmi://10.0.0.7", "ipmi", "10.0.0.7", ""),
        ] {
            let power = bmc(&target(endpoint), "root".into(), "x".into()).unwrap();
            let (PowerConfig::Redfish(bmc) | PowerConfig::Ipmi(bmc)) = &power else {
                panic!("{power:?}")
            };
            let node = bmc.extra_parameters.get("node_id").map_or("", String::as_str);
            assert_eq!((power.kind(), bmc.address.as_str(), node), (kind, address, more));
        }
        let fault = bmc(&target("http://10.0.0.5:8000"), "root".into(), "x".into()).unwrap_err();
        assert_eq!(fault.code, FaultCode::NotSupported);
        assert!(fault.message.contains("speaks only https"), "{fault}");
        assert!(
            fault.message.contains("`farrier machine update m-1 --bmc-endpoint ipmi://HOST`"),
            "{fault}"
        );
    }

    fn target(endpoint: &str) -> Target {
        let spec = MachineSpec { bmc_endpoint: endpoint.into(), ..MachineSpec::default() };
        Target { id: TargetId::from(&MachineId::trusted("m-1")), spec }
    }

    #[test]
    fn hostnames_are_valid_dns_labels() {
        let long = "x".repeat(80);
        for (machine, name) in [
            ("m-1", "m-1"),
            ("GPU_7.rack2", "gpu-7-rack2"),
            ("a.", "a"),
            (long.as_str(), &long[..63]),
        ] {
            assert_eq!(hostname(machine), name);
        }
    }
}
