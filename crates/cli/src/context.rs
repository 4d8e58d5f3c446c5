//! Contexts: the servers that the command line knows, each with its token.
//!
//! They are kept in one file that only its owner can read. A token is sent to the server of its
//! context and to no other; `--token-file` and the environment name one for a single command.

use crate::args::{ClientTlsArgs, ContextCommand, ContextNameArg};
use crate::exit::{Exit, Failure, Result};
use crate::output::Screen;
use crate::table::Table;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

pub const DEFAULT_SERVER: &str = "http://127.0.0.1:7411";
/// The context that `farrier serve` writes.
pub const LOCAL: &str = "local";
/// Names the file of the contexts, in place of the usual one.
const FILE_VARIABLE: &str = "FARRIER_CONTEXTS";
const TOKEN_VARIABLE: &str = "FARRIER_TOKEN";

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Contexts {
    /// The context of commands that name none.
    pub current: String,
    pub contexts: BTreeMap<String, Context>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Context {
    pub server: String,
    /// The file of the token; it is read at every command.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_file: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server_ca: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_certificate: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_key: Option<PathBuf>,
    /// Whether the token may be sent without TLS to another host.
    #[serde(skip_serializing_if = "is_false")]
    pub insecure: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_false(value: &bool) -> bool {
    !value
}

/// The server of a command, and the token for it.
#[derive(Debug, Clone)]
pub struct Connection {
    pub server: String,
    pub token: Option<String>,
    pub tls: ClientTlsArgs,
    /// Whether the token may be sent without TLS to another host.
    pub insecure: bool,
}

/// The options of the command line that choose a connection.
#[derive(Debug, Clone, Copy, Default)]
pub struct ConnectionOptions<'a> {
    pub context: Option<&'a str>,
    pub server: Option<&'a str>,
    pub token_file: Option<&'a Path>,
    pub tls: Option<&'a ClientTlsArgs>,
    pub insecure: bool,
}

impl Contexts {
    /// The file of this user; none if it has no home.
    fn path() -> Option<PathBuf> {
        let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        variable(FILE_VARIABLE).map(PathBuf::from).or_else(|| {
            let home = variable("XDG_CONFIG_HOME").map(PathBuf::from);
            let home =
                home.or_else(|| variable("HOME").map(|home| Path::new(&home).join(".config")));
            home.map(|home| home.join("farrier").join("contexts.toml"))
        })
    }

    pub fn load() -> Result<Self> {
        let Some(path) = Self::path() else { return Ok(Self::default()) };
        match fs::read_to_string(&path) {
            Ok(text) => toml::from_str(&text).map_err(|error| {
                let path = path.display();
                Failure::refused(format!("the contexts in {path} cannot be read: {error}"))
            }),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(Failure::refused(format!("{}: {error}", path.display()))),
        }
    }

    /// Replaces the file in one step, readable by its owner only.
    pub fn save(&self) -> Result<()> {
        let path = Self::path().ok_or_else(|| {
            Failure::refused(format!("there is no home directory; set {FILE_VARIABLE}"))
        })?;
        let text = toml::to_string(self).map_err(|error| Failure::bug(error.to_string()))?;
        let written = write_private(&path, &text);
        written
            .map_err(|error| Failure::refused(format!("cannot write {}: {error}", path.display())))
    }

    fn get(&self, name: &str) -> Result<&Context> {
        self.contexts.get(name).ok_or_else(|| {
            let known: Vec<&str> = self.contexts.keys().map(String::as_str).collect();
            let known = if known.is_empty() { "none".to_string() } else { known.join(", ") };
            Failure::refused(format!("there is no context {name}; known: {known}"))
        })
    }

    /// The context that applies. A server that is named has the context with its URL, if any.
    fn chosen(&self, options: &ConnectionOptions<'_>) -> Result<Option<&Context>> {
        match (options.context, options.server) {
            (Some(name), _) => self.get(name).map(Some),
            (None, Some(server)) => {
                let same = |one: &&Context| same_server(&one.server, server);
                Ok(self.contexts.values().find(same))
            }
            (None, None) if !self.current.is_empty() => self.get(&self.current).map(Some),
            (None, None) => Ok(self.contexts.get(LOCAL)),
        }
    }
}

fn same_server(one: &str, other: &str) -> bool {
    let plain = |url: &str| {
        let url = url.trim().trim_end_matches('/');
        let url = url.strip_prefix("http://").unwrap_or(url);
        url.to_ascii_lowercase()
    };
    plain(one) == plain(other)
}

/// Chooses the server and the token of a command.
pub fn connect(options: &ConnectionOptions<'_>) -> Result<Connection> {
    let contexts = Contexts::load()?;
    let context = contexts.chosen(options)?;
    let server = match (options.server, context) {
        (Some(server), _) => server.to_string(),
        (None, Some(context)) => context.server.clone(),
        (None, None) => DEFAULT_SERVER.to_string(),
    };
    // `--context` with another `--server` must not send the token there.
    let own = context.filter(|context| same_server(&context.server, &server));
    let token = match options.token_file {
        Some(path) => Some(read_token(path)?),
        None => match std::env::var(TOKEN_VARIABLE).ok().filter(|token| !token.is_empty()) {
            Some(token) => Some(token),
            None => own.map_or(Ok(None), Context::token)?,
        },
    };
    let tls = options.tls.cloned().unwrap_or_default();
    let tls = own.map_or_else(|| tls.clone(), |context| context.tls(&tls));
    let insecure = options.insecure || own.is_some_and(|context| context.insecure);
    Ok(Connection { server, token, tls, insecure })
}

impl Context {
    /// Its files for TLS, where the command line names none.
    fn tls(&self, given: &ClientTlsArgs) -> ClientTlsArgs {
        let pair = given.client_certificate.is_none() && given.client_key.is_none();
        let own = |file: &Option<PathBuf>| file.clone().filter(|_| pair);
        ClientTlsArgs {
            server_ca: given.server_ca.clone().or_else(|| self.server_ca.clone()),
            client_certificate: own(&self.client_certificate)
                .or_else(|| given.client_certificate.clone()),
            client_key: own(&self.client_key).or_else(|| given.client_key.clone()),
        }
    }

    /// A token file that is gone is no error: the server says what it needs.
    fn token(&self) -> Result<Option<String>> {
        match (&self.token, &self.token_file) {
            (Some(token), _) => Ok(Some(token.clone())),
            (None, Some(path)) if path.exists() => read_token(path).map(Some),
            (None, Some(_) | None) => Ok(None),
        }
    }
}

/// Reads a token from a file; `-` is stdin.
pub fn read_token(path: &Path) -> Result<String> {
    let text = match path.as_os_str() == "-" {
        true => std::io::read_to_string(std::io::stdin()),
        false => fs::read_to_string(path),
    };
    let text = text
        .map_err(|error| Failure::refused(format!("the token file {}: {error}", path.display())))?;
    match text.trim() {
        "" => Err(Failure::refused(format!("the token file {} is empty", path.display()))),
        token => Ok(token.to_string()),
    }
}

/// Remembers the server that this user has started, so that the next commands find it. Returns
/// the name of another context that is current.
pub fn remember_local(
    server: &str,
    token_file: &Path,
    server_ca: Option<PathBuf>,
) -> Result<Option<String>> {
    let mut contexts = Contexts::load()?;
    let whole = |path: &Path| fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
    let context = Context {
        server: server.to_string(),
        token_file: Some(whole(token_file)),
        server_ca: server_ca.as_deref().map(whole),
        ..Context::default()
    };
    contexts.contexts.insert(LOCAL.to_string(), context);
    if contexts.current.is_empty() {
        contexts.current = LOCAL.to_string();
    }
    contexts.save()?;
    Ok(Some(contexts.current).filter(|current| current != LOCAL))
}

fn write_private(path: &Path, text: &str) -> std::io::Result<()> {
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir)?;
    }
    let new = path.with_extension(format!("new-{}", std::process::id()));
    let mut options = File::options();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&new)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&new, path)
}

/// `farrier context`.
pub fn run(screen: &mut Screen, command: ContextCommand) -> Result<Exit> {
    let mut contexts = Contexts::load()?;
    match command {
        ContextCommand::List => list(screen, &contexts)?,
        ContextCommand::Use(ContextNameArg { name }) => {
            contexts.get(&name)?;
            contexts.current = name;
            contexts.save()?;
            let server = &contexts.get(&contexts.current)?.server;
            screen.print_line(&format!("{}: {server}", contexts.current))?;
        }
        ContextCommand::Delete(ContextNameArg { name }) => {
            contexts.get(&name)?;
            contexts.contexts.remove(&name);
            if contexts.current == name {
                contexts.current.clear();
            }
            contexts.save()?;
            screen.print_line(&format!("{name}: deleted"))?;
        }
    }
    Ok(Exit::Success)
}

/// The context as it is listed: without its token.
#[derive(Serialize)]
struct ListedContext<'a> {
    name: &'a str,
    server: &'a str,
    current: bool,
    has_token: bool,
}

fn list(screen: &mut Screen, contexts: &Contexts) -> Result<()> {
    let rows: Vec<ListedContext<'_>> = contexts
        .contexts
        .iter()
        .map(|(name, context)| ListedContext {
            name,
            server: &context.server,
            current: *name == contexts.current,
            has_token: context.token.is_some() || context.token_file.is_some(),
        })
        .collect();
    let colors = screen.color_mode();
    screen.print_value(&rows, |rows| {
        if rows.is_empty() {
            return "no context yet; `farrier login URL` makes one\n".into();
        }
        let mut table = Table::new(&["CURRENT", "NAME", "SERVER", "TOKEN"]);
        for row in rows {
            let current = if row.current { "*" } else { "" };
            let token = if row.has_token { "yes" } else { "no" };
            table.add_row(vec![current.into(), row.name.into(), row.server.into(), token.into()]);
        }
        table.render(colors)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contexts() -> Contexts {
        let context = |server: &str, token: &str| Context {
            server: server.into(),
            token: Some(token.into()),
            ..Context::default()
        };
        Contexts {
            current: "prod".into(),
            contexts: BTreeMap::from([
                (LOCAL.to_string(), context("http://127.0.0.1:7411", "l")),
                ("prod".to_string(), context("https://farrier.example", "p")),
            ]),
        }
    }

    #[test]
    fn a_command_takes_the_context_that_fits() {
        let all = contexts();
        let named = |context, server| {
            let options = ConnectionOptions { context, server, ..ConnectionOptions::default() };
            all.chosen(&options).map(|found| found.and_then(|one| one.token.clone()))
        };
        for (context, server, token) in [
            (None, None, Some("p")),
            (Some("local"), None, Some("l")),
            (None, Some("127.0.0.1:7411"), Some("l")),
            (None, Some("http://127.0.0.1:7411/"), Some("l")),
            (None, Some("https://farrier.example"), Some("p")),
            (None, Some("http://farrier.example"), None),
            (None, Some("http://127.0.0.1:9999"), None),
        ] {
            let found = named(context, server).unwrap();
            assert_eq!(found.as_deref(), token, "{context:?} {server:?}");
        }
        assert_eq!(named(Some("test"), None).unwrap_err().exit, Exit::Refused);
    }
}
