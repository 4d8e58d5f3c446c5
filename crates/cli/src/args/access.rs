//! `farrier login`, `context`, `whoami`, `console`, `token` and `role`.

use super::*;

#[derive(Debug, Subcommand)]
pub enum ContextCommand {
    /// List the servers that this user knows
    List,
    /// Choose the server of the next commands
    Use(ContextNameArg),
    /// Forget a server and its token
    Delete(ContextNameArg),
}

#[derive(Debug, Args)]
pub struct ContextNameArg {
    /// Name of the context, from `farrier context list`
    pub name: String,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  farrier login https://farrier.example:7411 --name prod-eu --token-file ./token\n  \
                  farrier login https://farrier.example:7411 --token-file - < token"
)]
pub struct LoginArgs {
    /// URL of the server
    pub url: String,
    /// Name of the context (default: the host of the URL)
    #[arg(long)]
    pub name: Option<String>,
}

#[derive(Debug, Subcommand)]
pub enum TokenCommand {
    /// Create an API token; its secret is printed once
    #[command(
        after_help = "Examples:\n  farrier token create --user ci --role operator --expires-in 90d\n  \
                      farrier token create --user ada --out ada.token"
    )]
    Create(TokenCreateArgs),
    /// List the API tokens, without their secrets
    List(TokenListArgs),
    /// Revoke a token; its streams and sessions end
    Revoke(TokenIdArg),
    /// Make an administrator's token without a server, on the host of its database
    #[command(
        after_help = "Example:\n  farrier token recover --database /var/lib/farrier --out admin.token"
    )]
    Recover(TokenRecoverArgs),
}

impl TokenCommand {
    /// True if the command opens a database itself and calls no server.
    pub fn is_offline(&self) -> bool {
        matches!(self, Self::Recover(_))
    }
}

#[derive(Debug, Args)]
pub struct TokenCreateArgs {
    /// User that the token stands for
    #[arg(long)]
    pub user: String,
    /// Role for the token itself, beside those of its user; may be repeated
    #[arg(long = "role", value_name = "ROLE")]
    pub roles: Vec<String>,
    /// What the token is for
    #[arg(long, default_value = "", hide_default_value = true)]
    pub description: String,
    /// How long it is valid, such as 12h or 90d (default: until it is revoked)
    #[arg(long, value_name = "DURATION", value_parser = parse_lifetime)]
    pub expires_in: Option<Duration>,
    /// Write the secret to this new file, readable by you only, in place of the screen
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
}

/// Durations of tokens are days, so `d` is allowed here.
pub(super) fn parse_lifetime(text: &str) -> Result<Duration, String> {
    match text.strip_suffix('d').map(str::parse::<u64>) {
        Some(Ok(days)) if days <= 3_660 => Ok(Duration::from_secs(days * 24 * 3_600)),
        Some(_) => Err(format!("{text:?} is not a number of days; write 90d, at most 3660d")),
        None => parse_duration(text),
    }
}

#[derive(Debug, Args)]
pub struct TokenListArgs {
    /// Maximum number of results (default: all)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: Option<u32>,
}

#[derive(Debug, Args)]
pub struct TokenIdArg {
    /// ID of the token, from `farrier token list`
    pub token_id: String,
}

#[derive(Debug, Args)]
pub struct TokenRecoverArgs {
    /// The database of the server: a data directory, or a postgres:// URL
    #[arg(long, value_name = "DIR|URL")]
    pub database: String,
    /// The new file for the token, readable by you only
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
}

#[derive(Debug, Subcommand)]
pub enum RoleCommand {
    /// List the roles with their permissions
    List,
    /// Create a role from permissions
    #[command(
        after_help = "Example:\n  farrier role create night-shift --permission view --permission operate"
    )]
    Create(RoleCreateArgs),
    /// Delete a role that nobody has
    Delete(RoleNameArg),
    /// List who has which role
    Bindings,
    /// Give a role to a user, a group or a token
    #[command(
        after_help = "Examples:\n  farrier role bind operator user:ada\n  farrier role bind operator group:ml --selector 'labels.team=ml AND labels.env!=prod'"
    )]
    Bind(RoleBindArgs),
    /// Take a role away
    Unbind(RoleUnbindArgs),
}

#[derive(Debug, Args)]
pub struct RoleCreateArgs {
    /// Name of the role
    pub name: String,
    /// A permission, from `farrier role list`; may be repeated
    #[arg(long = "permission", value_name = "PERMISSION", required = true)]
    pub permissions: Vec<String>,
}

#[derive(Debug, Args)]
pub struct RoleNameArg {
    /// Name of the role, from `farrier role list`
    pub name: String,
}

#[derive(Debug, Args)]
pub struct RoleBindArgs {
    /// Name of the role, from `farrier role list`
    pub role: String,
    /// The subject: user:NAME, group:NAME or token:ID
    pub subject: String,
    /// Only for objects with these labels, e.g. labels.team=ml (default: all)
    #[arg(long, value_name = "SELECTOR", default_value = "", hide_default_value = true)]
    pub selector: String,
}

#[derive(Debug, Args)]
pub struct RoleUnbindArgs {
    /// ID of the binding, from `farrier role bindings`
    pub role_binding_id: String,
}
