//! `farrier import`.

use super::*;

const IMPORT_HELP: &str = "\
Examples:
  farrier import 36                 machine-1 … machine-36, simulated
  farrier import fleet.csv
  farrier import fleet.csv --dry-run
  farrier list -o json > fleet.json; farrier import fleet.json

CSV columns, by a header line; only machine_id is required:
  machine_id,ssh_endpoint,bmc_endpoint,target_cluster_ref,mac_addresses,provider,serial,customer_id,
  bmc_credential,ssh_credential,root_disk,rack_id,slot,height_u,feeds,node_name, and labels.KEY for each
  label; several MAC addresses, and several power shelves in feeds, are separated by ';'
JSON and YAML: a list of machines, or {machines: [...]}, with the fields of `farrier get -o json`.

A file registers new machines, and replaces spec and labels of known ones. The server checks all
machines first: if one is refused, none is registered. A number leaves known machines as they are.";

#[derive(Debug, Args)]
#[command(after_help = IMPORT_HELP)]
pub struct ImportArgs {
    /// Number of simulated machines, or a .csv, .yaml or .json file
    #[arg(value_name = "N|FILE")]
    pub source: String,
}
