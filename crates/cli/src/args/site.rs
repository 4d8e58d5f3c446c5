//! `farrier site`.

use super::*;

const PUT_HELP: &str = "\
What is not given is as by default: the site becomes what this command says. `farrier site update` changes only what it names.

Examples:
  farrier site put site-a --maas-url http://10.0.0.5:5240/MAAS --credential maas-a --pool gpu
  farrier site put site-a --maas-url http://10.0.0.5:5240/MAAS --credential maas-a \\
    --roce-interfaces ens --roce-mtu 9000 --roce-subnet fabric --cloud-init node.yaml
  farrier site put site-lab --provider sim

A cloud-init document may name {{node_id}}, {{machine_id}}, {{hostname}}, {{site_id}}, {{farrier_url}}, {{farrier_urls}}, {{controllers}}, {{agent_sha256}} and {{enrollment_token}}.";

#[derive(Debug, Subcommand)]
pub enum SiteCommand {
    /// Make a site, or replace what is said of a known one
    #[command(after_help = PUT_HELP)]
    Put(Box<SitePutArgs>),
    /// Change a site; what is not given stays
    #[command(
        after_help = "Example:\n  farrier site update site-a --image ubuntu/noble --calls-at-once 8"
    )]
    Update(Box<SiteUpdateArgs>),
    /// List sites, whether their MAAS answers, and what is wrong with them
    List,
    /// Show one site in full
    Get(SiteArg),
    /// Ask its MAAS now, and show how the site is then; exits with 1 when something is wrong
    Check(SiteArg),
    /// Delete a site that no node belongs to
    Delete(SiteArg),
}

#[derive(Debug, Args)]
pub struct SiteArg {
    /// The site, as `farrier site list` names it
    pub site_id: String,
}

#[derive(Debug, Args)]
pub struct SitePutArgs {
    /// site-…; the rest is yours to choose
    pub site_id: String,
    #[command(flatten)]
    pub spec: SiteSpecArgs,
}

#[derive(Debug, Args)]
pub struct SiteUpdateArgs {
    /// The site, as `farrier site list` names it
    pub site_id: String,
    #[command(flatten)]
    pub spec: SiteSpecArgs,
    /// Back to the cloud-init document that comes with Farrier
    #[arg(long, conflicts_with = "cloud_init")]
    pub default_cloud_init: bool,
    /// Remove a label
    #[arg(long = "remove-label", value_name = "KEY")]
    pub remove_labels: Vec<String>,
}

/// What its owner says of a site.
#[derive(Debug, Clone, Args, Default)]
pub struct SiteSpecArgs {
    /// Where its MAAS answers: http://maas.example:5240/MAAS
    #[arg(long, value_name = "URL")]
    pub maas_url: Option<String>,
    /// The credential with its API key, as `farrier credential list` names it
    #[arg(long, value_name = "NAME")]
    pub credential: Option<String>,
    /// The zone that its nodes are put into
    #[arg(long)]
    pub zone: Option<String>,
    /// The resource pool that its nodes are put into
    #[arg(long)]
    pub pool: Option<String>,
    /// What is installed, as MAAS calls it; ubuntu/jammy by default
    #[arg(long, value_name = "SYSTEM/RELEASE")]
    pub image: Option<String>,
    /// How disks are laid out: flat (by default), lvm, bcache, vmfs6, blank or custom
    #[arg(long, value_name = "LAYOUT")]
    pub storage_layout: Option<String>,
    /// How the boot disk is recognized: a part of its model, BOSS by default; '-' leaves it to MAAS
    #[arg(long, value_name = "WORDS", allow_hyphen_values = true)]
    pub boot_disk_model: Option<String>,
    /// The fabric's network cards are those whose names begin so
    #[arg(long, value_name = "PREFIX")]
    pub roce_interfaces: Option<String>,
    /// Their MTU
    #[arg(long, value_name = "BYTES")]
    pub roce_mtu: Option<i32>,
    /// What their subnet is called in MAAS
    #[arg(long, value_name = "SUBNET")]
    pub roce_subnet: Option<String>,
    /// A file with the cloud-init document of its nodes; by default one that installs the agent
    #[arg(long, value_name = "FILE")]
    pub cloud_init: Option<PathBuf>,
    /// How often a deployment that failed for its datasource is made again; 2 by default
    #[arg(long, value_name = "N")]
    pub datasource_retries: Option<i32>,
    /// Whether MAAS erases disks when a machine is released; true by default
    #[arg(long, value_name = "BOOL")]
    pub erase_on_release: Option<bool>,
    /// Whether the record of a machine stays in MAAS when its node is decommissioned; false by default
    #[arg(long, value_name = "BOOL")]
    pub keep_in_maas: Option<bool>,
    /// How many calls its MAAS gets at once; 16 by default
    #[arg(long, value_name = "N")]
    pub calls_at_once: Option<i32>,
    /// How many calls its MAAS gets in a second; 50 by default
    #[arg(long, value_name = "N")]
    pub calls_per_second: Option<i32>,
    /// Who speaks to it: maas (by default), or sim
    #[arg(long)]
    pub provider: Option<String>,
    /// A label; may be given several times
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = parse_pair)]
    pub labels: Vec<(String, String)>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_help_names_every_variable_of_a_template() {
        for name in model::site::VARIABLES {
            assert!(PUT_HELP.contains(&format!("{{{{{name}}}}}")), "{name}");
        }
    }

    #[test]
    fn commands_parse() {
        let parse = |line: &str| Cli::try_parse_from(line.split(' '));
        for line in [
            "farrier site put site-a --maas-url http://m/MAAS --credential maas --boot-disk-model -",
            "farrier site put site-a --provider sim --label env=lab --erase-on-release false",
            "farrier site update site-a --default-cloud-init --remove-label env",
            "farrier site update site-a --keep-in-maas true",
        ] {
            parse(line).unwrap_or_else(|error| panic!("{line}: {error}"));
        }
        for line in [
            "farrier site put",
            "farrier site put site-a --erase-on-release perhaps",
            "farrier site update site-a --default-cloud-init --cloud-init f",
        ] {
            assert_eq!(parse(line).unwrap_err().exit_code(), 2, "{line}");
        }
    }
}
