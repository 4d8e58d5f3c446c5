//! `farrier credential` and `farrier trust`.

use super::*;

#[derive(Debug, Subcommand)]
pub enum CredentialCommand {
    /// Create a credential
    Create(CredentialSecretArgs),
    /// Replace the secret of a credential
    Update(CredentialUpdateArgs),
    /// Create a credential, or replace its secret
    Set(CredentialSecretArgs),
    /// Show one credential, without its secret
    Get(CredentialArg),
    /// List credentials, without their secrets
    #[command(
        after_help = "Filters:\n  kind=ssh-key    password, ssh-key, kubeconfig, maas-key\n  name, user"
    )]
    List(FilteredListArgs),
    /// Delete a credential
    Delete(CredentialDeleteArgs),
}

#[derive(Debug, Args)]
pub struct CredentialArg {
    /// Name of the credential, from `farrier credential list`
    pub name: String,
}

#[derive(Debug, Args)]
pub struct CredentialDeleteArgs {
    /// Name of the credential, from `farrier credential list`
    pub name: String,
    #[command(flatten)]
    pub version: VersionArgs,
}

#[derive(Debug, Args)]
pub struct CredentialUpdateArgs {
    #[command(flatten)]
    pub secret: CredentialSecretArgs,
    #[command(flatten)]
    pub version: VersionArgs,
}

const CREDENTIAL_HELP: &str = "\
A password is read from a file or from standard input, never from the command line.

Examples:
  farrier credential create bmc --user root --password-file bmc.txt --for 10.1.0.0/24
  pass show bmc | farrier credential set bmc --user root --for bmc-7.lan --for 10.1.0.0/24
  farrier credential create hosts --user ubuntu --ssh-key ~/.ssh/id_ed25519 --for 10.2.0.0/16
  farrier credential update cluster-a --kubeconfig admin.conf
  farrier credential set maas --maas-key maas.key --for site:site-a

`create` refuses a name that exists, `update` one that does not; `set` takes both. The secret is
sent to the peers of --for and to no other; without --for, `update` and `set` keep the stored ones.";

#[derive(Debug, Args)]
#[command(after_help = CREDENTIAL_HELP)]
pub struct CredentialSecretArgs {
    /// Name of the credential, used by machines and by the configuration
    pub name: String,
    /// User name to log in with
    #[arg(long, required_unless_present_any = ["kubeconfig", "maas_key"], conflicts_with_all = ["kubeconfig", "maas_key"])]
    pub user: Option<String>,
    /// File whose first line is the password
    #[arg(long, value_name = "FILE", conflicts_with_all = ["ssh_key", "kubeconfig", "maas_key"])]
    pub password_file: Option<PathBuf>,
    /// File with an SSH private key
    #[arg(long, value_name = "FILE", conflicts_with_all = ["kubeconfig", "maas_key"])]
    pub ssh_key: Option<PathBuf>,
    /// File whose first line is the passphrase of the private key
    #[arg(long, value_name = "FILE", requires = "ssh_key")]
    pub passphrase_file: Option<PathBuf>,
    /// Kubeconfig file of a Kubernetes cluster
    #[arg(long, value_name = "FILE", conflicts_with = "maas_key")]
    pub kubeconfig: Option<PathBuf>,
    /// File whose first line is the API key of a MAAS, consumer:token:secret
    #[arg(long, value_name = "FILE")]
    pub maas_key: Option<PathBuf>,
    /// Peer that may get the secret: network, address, host name or site:ID
    #[arg(long = "for", value_name = "PEER", conflicts_with = "kubeconfig")]
    pub peers: Vec<String>,
    /// Send the secret over plain http:// too
    #[arg(long, conflicts_with = "kubeconfig")]
    pub allow_plain_http: bool,
}

#[derive(Debug, Subcommand)]
pub enum TrustCommand {
    /// Pin the identity of a peer; no other identity is trusted at that address
    Create(TrustIdentityArgs),
    /// Replace the pinned identity of a peer
    Update(TrustUpdateArgs),
    /// Pin the identity of a peer, or replace its pinned identity
    Set(TrustIdentityArgs),
    /// Show the pinned identity of a peer
    Get(TrustPeerArg),
    /// List the pinned peer identities
    #[command(after_help = "Filters:\n  peer=https://10.0.0.5")]
    List(FilteredListArgs),
    /// Remove a pin; the next identity seen at that address is trusted
    #[command(alias = "forget")]
    Delete(TrustDeleteArgs),
}

#[derive(Debug, Args)]
pub struct TrustIdentityArgs {
    /// Address: https://HOST[:PORT] of a BMC, or ssh://HOST[:PORT] of a host
    pub peer: String,
    /// SHA-256 fingerprint of the BMC's certificate, or the host key as in a .pub file
    pub identity: String,
}

#[derive(Debug, Args)]
pub struct TrustUpdateArgs {
    #[command(flatten)]
    pub pin: TrustIdentityArgs,
    #[command(flatten)]
    pub version: VersionArgs,
}

#[derive(Debug, Args)]
pub struct TrustDeleteArgs {
    /// Address, from `farrier trust list`
    pub peer: String,
    #[command(flatten)]
    pub version: VersionArgs,
}

#[derive(Debug, Args)]
pub struct TrustPeerArg {
    /// Address, from `farrier trust list`
    pub peer: String,
}
