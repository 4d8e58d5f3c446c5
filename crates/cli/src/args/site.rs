//! `farrier site`.

use super::*;

const CREATE_HELP: &str = "\
Settings that are not given get their defaults. Creating the same site again changes nothing;
`farrier site update` changes an existing one.

Examples:
  farrier site create site-a --maas-url http://10.0.0.5:5240/MAAS --credential maas-a --pool gpu
  farrier site create site-a --maas-url http://10.0.0.5:5240/MAAS --credential maas-a \\
    --roce-interfaces ens --roce-mtu 9000 --roce-subnet fabric --cloud-init node.yaml
  farrier site create site-lab --provider sim

A cloud-init document may contain {{node_id}}, {{machine_id}}, {{hostname}}, {{site_id}},
{{farrier_url}}, {{farrier_urls}}, {{controllers}}, {{agent_sha256}} and {{enrollment_token}}.";

#[derive(Debug, Subcommand)]
pub enum SiteCommand {
    /// Create a site
    #[command(after_help = CREATE_HELP)]
    Create(Box<SiteCreateArgs>),
    /// Change a site; values not given stay
    #[command(
        after_help = "Example:\n  farrier site update site-a --image ubuntu/noble --calls-at-once 8"
    )]
    Update(Box<SiteUpdateArgs>),
    /// List sites with the reachability of their MAAS and their problems
    #[command(
        after_help = "Filters:\n  site_id, state, labels.KEY\n\nOrders: site_id, created_at, updated_at"
    )]
    List(SiteListArgs),
    /// Show one site with all details
    Get(SiteArg),
    /// Call the MAAS of a site now and show the result; exit with 1 on a problem
    Check(SiteArg),
    /// Delete a site that has no nodes
    Delete(SiteDeleteArgs),
}

#[derive(Debug, Args)]
pub struct SiteListArgs {
    #[command(flatten)]
    pub list: FilteredListArgs,
    #[command(flatten)]
    pub sort: SortArg,
}

#[derive(Debug, Args)]
pub struct SiteArg {
    /// ID of the site, from `farrier site list`
    pub site_id: String,
}

#[derive(Debug, Args)]
pub struct SiteDeleteArgs {
    /// ID of the site, from `farrier site list`
    pub site_id: String,
    #[command(flatten)]
    pub version: VersionArgs,
}

#[derive(Debug, Args)]
pub struct SiteCreateArgs {
    /// ID of the site, site-…
    pub site_id: String,
    #[command(flatten)]
    pub spec: SiteSpecArgs,
}

#[derive(Debug, Args)]
pub struct SiteUpdateArgs {
    /// ID of the site, from `farrier site list`
    pub site_id: String,
    #[command(flatten)]
    pub spec: SiteSpecArgs,
    /// Use the default cloud-init document again
    #[arg(long, conflicts_with = "cloud_init")]
    pub default_cloud_init: bool,
    /// Remove a label
    #[arg(long = "remove-label", value_name = "KEY")]
    pub remove_labels: Vec<String>,
    #[command(flatten)]
    pub version: VersionArgs,
}

/// The settings of a site that a client can set.
#[derive(Debug, Clone, Args, Default)]
pub struct SiteSpecArgs {
    /// URL of the MAAS: http://maas.example:5240/MAAS
    #[arg(long, value_name = "URL")]
    pub maas_url: Option<String>,
    /// Credential with the MAAS API key, from `farrier credential list`
    #[arg(long, value_name = "NAME")]
    pub credential: Option<String>,
    /// MAAS zone of the nodes
    #[arg(long)]
    pub zone: Option<String>,
    /// MAAS resource pool of the nodes
    #[arg(long)]
    pub pool: Option<String>,
    /// OS image, by its MAAS name (default: ubuntu/jammy)
    #[arg(long, value_name = "SYSTEM/RELEASE")]
    pub image: Option<String>,
    /// Storage layout: flat (default), lvm, bcache, vmfs6, blank or custom
    #[arg(long, value_name = "LAYOUT")]
    pub storage_layout: Option<String>,
    /// Part of the boot disk's model name (default: BOSS); '-' lets MAAS choose
    #[arg(long, value_name = "WORDS", allow_hyphen_values = true)]
    pub boot_disk_model: Option<String>,
    /// Name prefix of the RoCE network interfaces
    #[arg(long, value_name = "PREFIX")]
    pub roce_interfaces: Option<String>,
    /// MTU of the RoCE interfaces, in bytes
    #[arg(long, value_name = "BYTES")]
    pub roce_mtu: Option<i32>,
    /// MAAS subnet of the RoCE interfaces
    #[arg(long, value_name = "SUBNET")]
    pub roce_subnet: Option<String>,
    /// File with the cloud-init document of the nodes (default: the built-in one)
    #[arg(long, value_name = "FILE")]
    pub cloud_init: Option<PathBuf>,
    /// Number of new deployments after a datasource failure (default: 2)
    #[arg(long, value_name = "N")]
    pub datasource_retries: Option<i32>,
    /// Whether MAAS erases the disks when it releases a machine (default: true)
    #[arg(long, value_name = "BOOL")]
    pub erase_on_release: Option<bool>,
    /// How MAAS erases disks: default, secure, secure_or_quick, quick or zeroes
    #[arg(long, value_name = "METHOD")]
    pub erase_method: Option<String>,
    /// Kernel of deployments, by its MAAS name: hwe-22.04 (default: MAAS chooses)
    #[arg(long, value_name = "KERNEL")]
    pub hwe_kernel: Option<String>,
    /// Tag of the machines in MAAS; can be repeated. '-' removes all
    #[arg(long = "maas-tag", value_name = "TAG", allow_hyphen_values = true)]
    pub maas_tags: Vec<String>,
    /// Whether commissioning leaves the BMC without an account of MAAS (default: false)
    #[arg(long, value_name = "BOOL")]
    pub skip_bmc_config: Option<bool>,
    /// Commissioning script, or 'none'; can be repeated. '-' lets MAAS choose
    #[arg(long = "commission-script", value_name = "NAME", allow_hyphen_values = true)]
    pub commissioning_scripts: Vec<String>,
    /// Test after commissioning, or 'none'; can be repeated. '-' lets MAAS choose
    #[arg(long = "test-script", value_name = "NAME", allow_hyphen_values = true)]
    pub test_scripts: Vec<String>,
    /// Whether a decommission keeps the machine's record in MAAS (default: false)
    #[arg(long, value_name = "BOOL")]
    pub keep_in_maas: Option<bool>,
    /// Maximum number of concurrent calls to the MAAS (default: 16)
    #[arg(long, value_name = "N")]
    pub calls_at_once: Option<i32>,
    /// Maximum number of calls to the MAAS per second (default: 50)
    #[arg(long, value_name = "N")]
    pub calls_per_second: Option<i32>,
    /// Provider of the site: maas (default) or sim
    #[arg(long)]
    pub provider: Option<String>,
    /// Label; can be repeated
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = parse_pair)]
    pub labels: Vec<(String, String)>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_help_names_every_variable_of_a_template() {
        for name in model::site::VARIABLES {
            assert!(CREATE_HELP.contains(&format!("{{{{{name}}}}}")), "{name}");
        }
    }

    #[test]
    fn commands_parse() {
        let parse = |line: &str| Cli::try_parse_from(line.split(' '));
        for line in [
            "farrier site create site-a --maas-url http://m/MAAS --credential maas --boot-disk-model -",
            "farrier site create site-a --provider sim --label env=lab --erase-on-release false",
            "farrier site update site-a --default-cloud-init --remove-label env",
            "farrier site update site-a --keep-in-maas true --expected-version 3",
            "farrier site delete site-a --expected-version 3",
        ] {
            parse(line).unwrap_or_else(|error| panic!("{line}: {error}"));
        }
        for line in [
            "farrier site create",
            "farrier site create site-a --erase-on-release perhaps",
            "farrier site update site-a --default-cloud-init --cloud-init f",
            "farrier site delete site-a --expected-version 0",
        ] {
            assert_eq!(parse(line).unwrap_err().exit_code(), 2, "{line}");
        }
    }
}
