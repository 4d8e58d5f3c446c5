//! TLS towards the server, and `farrier tls`.

use super::*;

const HEADING: &str = "Global options";

/// How a client proves the server's identity and its own.
#[derive(Debug, Clone, Default, Args)]
pub struct ClientTlsArgs {
    /// Certificates of the authorities that the server's certificate may come from (PEM)
    ///
    /// Without it, those of this host.
    #[arg(
        long,
        global = true,
        help_heading = HEADING,
        value_name = "FILE",
        env = "FARRIER_SERVER_CA",
        hide_env_values = true
    )]
    pub server_ca: Option<PathBuf>,
    /// Client certificate to show to the server (PEM)
    #[arg(
        long,
        global = true,
        help_heading = HEADING,
        value_name = "FILE",
        env = "FARRIER_CLIENT_CERTIFICATE",
        hide_env_values = true,
        requires = "client_key"
    )]
    pub client_certificate: Option<PathBuf>,
    /// Private key of the client certificate (PEM)
    #[arg(
        long,
        global = true,
        help_heading = HEADING,
        value_name = "FILE",
        env = "FARRIER_CLIENT_KEY",
        hide_env_values = true,
        requires = "client_certificate"
    )]
    pub client_key: Option<PathBuf>,
}

const INIT_HELP: &str = "\
The directory gets ca.pem and ca.key, server.pem and server.key, client.pem and client.key. Nothing
is overwritten. The server's certificate is for localhost, the name of this host and every --name.

Example:
  farrier tls init /etc/farrier/tls --name farrier.example.com --name 10.0.0.7";

const RENEW_HELP: &str = "\
The certificates and keys of server and client are replaced by new ones of the same authority, which
needs its ca.key in the directory. A running server reads the new files by itself. Repeat the names:
they are not taken from the old certificate.

Example:
  farrier tls renew /etc/farrier/tls --name farrier.example.com --name 10.0.0.7";

#[derive(Debug, Subcommand)]
pub enum TlsCommand {
    /// Make a certificate authority, a server certificate and a client certificate
    #[command(after_help = INIT_HELP)]
    Init(TlsFilesArgs),
    /// Replace the certificates of server and client before they expire
    #[command(after_help = RENEW_HELP)]
    Renew(TlsFilesArgs),
}

#[derive(Debug, Args)]
pub struct TlsFilesArgs {
    /// Directory of the files
    pub dir: PathBuf,
    /// Name or IP address under which clients reach the server (repeatable)
    #[arg(long = "name", value_name = "HOST")]
    pub names: Vec<String>,
    /// Common name of the client certificate
    #[arg(long, value_name = "NAME", default_value = "admin")]
    pub client: String,
}
