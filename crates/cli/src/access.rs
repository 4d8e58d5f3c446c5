//! Commands for access: `farrier whoami`, `login`, `console`, `token` and `role`.

use crate::args::{
    ClientTlsArgs, LoginArgs, RoleBindArgs, RoleCommand, RoleCreateArgs, RoleNameArg,
    RoleUnbindArgs, TokenCommand, TokenCreateArgs, TokenIdArg, TokenListArgs, TokenRecoverArgs,
};
use crate::client::{Client, fetch_pages};
use crate::context::{Connection, Context, Contexts};
use crate::exit::{Exit, Failure, Result};
use crate::output::Screen;
use crate::table::Table;
use crate::text::one_line;
use crate::time::Clock;
use proto::v1::{
    CreateRoleBindingRequest, CreateRoleRequest, CreateSignInLinkRequest, CreateTokenRequest,
    CreateTokenResponse, DeleteRoleBindingRequest, DeleteRoleRequest, GetCallerRequest,
    GetCallerResponse, LimitedPermissions, ListRoleBindingsRequest, ListRolesRequest,
    ListTokensRequest, Permission, RevokeTokenRequest, Role, RoleBinding, Token, TokenState,
};
use proto::words::{self, WireEnum};
use server::OfflineDatabase;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

pub async fn whoami(client: &Client, screen: &mut Screen) -> Result<Exit> {
    let caller = client.call(client.access().get_caller(GetCallerRequest {})).await?;
    screen.print_record(&caller, describe_caller)?;
    Ok(Exit::Success)
}

fn describe_caller(caller: &GetCallerResponse) -> String {
    let mut lines = format!("{} at {}\n", one_line(&caller.user), words_of_method(caller));
    if !caller.groups.is_empty() {
        lines += &format!("Groups:      {}\n", one_line(&caller.groups.join(", ")));
    }
    lines += &format!("Permissions: {}\n", permission_words(&caller.permissions));
    for LimitedPermissions { selector, permissions } in &caller.limited_permissions {
        let selector = one_line(selector);
        lines += &format!("For {selector}: {}\n", permission_words(permissions));
    }
    lines
}

fn words_of_method(caller: &GetCallerResponse) -> String {
    match (caller.method().word(), caller.token_id.as_str()) {
        (method, "") => method.to_string(),
        (method, id) => format!("{method} {id}"),
    }
}

pub fn permission_words(values: &[i32]) -> String {
    let all: Vec<&str> = values.iter().map(|value| words::word::<Permission>(*value)).collect();
    if all.is_empty() { "none".into() } else { all.join(", ") }
}

/// Checks the token or the certificate at the server, then remembers both.
pub async fn login(screen: &mut Screen, args: LoginArgs, to: Connection) -> Result<Exit> {
    if to.token.is_none() && to.tls.client_certificate.is_none() {
        return Err(Failure::refused(
            "no token; pass --token-file FILE, or --token-file - to read it from stdin, or \
             --client-certificate and --client-key",
        ));
    }
    let client = Client::open(&to)?;
    let caller = client.call(client.access().get_caller(GetCallerRequest {})).await?;
    let server = client.server().to_string();
    let host = server.split("://").last().unwrap_or_default();
    let host = host.split([':', '/']).next().unwrap_or_default();
    let name = args.name.unwrap_or_else(|| host.to_string());
    let mut contexts = Contexts::load()?;
    let ClientTlsArgs { server_ca, client_certificate, client_key } = to.tls;
    let context = Context {
        server: server.clone(),
        token: to.token,
        token_file: None,
        server_ca: server_ca.map(absolute),
        client_certificate: client_certificate.map(absolute),
        client_key: client_key.map(absolute),
        insecure: to.insecure,
    };
    contexts.contexts.insert(name.clone(), context);
    contexts.current.clone_from(&name);
    contexts.save()?;
    screen.print_line(&format!("{name}: {} at {server}", one_line(&caller.user)))?;
    Ok(Exit::Success)
}

/// A context is used from other folders too.
fn absolute(path: PathBuf) -> PathBuf {
    std::path::absolute(&path).unwrap_or(path)
}

/// Prints a link that signs a browser in.
pub async fn console(client: &Client, screen: &mut Screen) -> Result<Exit> {
    let request = CreateSignInLinkRequest { dry_run: client.is_dry_run() };
    let link = client.call(client.access().create_sign_in_link(request)).await?;
    screen.print_record(&link, |link| format!("{}{}\n", client.server(), one_line(&link.path)))?;
    screen.print_line("The link works once, and for 15 minutes.")?;
    Ok(Exit::Success)
}

pub async fn run_token(
    client: &Client,
    screen: &mut Screen,
    command: TokenCommand,
) -> Result<Exit> {
    match command {
        TokenCommand::Create(args) => create_token(client, screen, args).await,
        TokenCommand::List(args) => list_tokens(client, screen, &args).await,
        TokenCommand::Revoke(TokenIdArg { token_id }) => {
            let request = RevokeTokenRequest { token_id, dry_run: client.is_dry_run() };
            let token = client.call(client.access().revoke_token(request)).await?;
            let done = client.outcome("revoked");
            screen
                .print_record(&token, |token| format!("{}: {done}\n", one_line(&token.token_id)))?;
            Ok(Exit::Success)
        }
        TokenCommand::Recover(args) => recover_token(client, screen, args).await,
    }
}

async fn create_token(client: &Client, screen: &mut Screen, args: TokenCreateArgs) -> Result<Exit> {
    let request = CreateTokenRequest {
        user: args.user,
        description: args.description,
        roles: args.roles,
        lifetime_seconds: args.expires_in.map_or(0, |life| life.as_secs()),
        dry_run: client.is_dry_run(),
    };
    // The file is made first: a token whose secret cannot be kept would be lost.
    let file = match (&args.out, client.is_dry_run()) {
        (Some(path), false) => Some((path, create_private(path)?)),
        (Some(_) | None, _) => None,
    };
    let made = client.call(client.access().create_token(request)).await;
    let mut made = match (made, &file) {
        (Err(failure), Some((path, _))) => {
            let _ = std::fs::remove_file(path);
            return Err(failure);
        }
        (made, _) => made?,
    };
    let done = client.outcome("created");
    let mut kept = String::new();
    if let Some((path, mut file)) = file {
        writeln!(file, "{}", made.secret)
            .and_then(|()| file.sync_all())
            .map_err(|error| Failure::refused(format!("{}: {error}", path.display())))?;
        made.secret.clear();
        kept = format!("The secret is in {}.\n", path.display());
    }
    screen.print_record(&made, |made| describe_new_token(made, &done, &kept))?;
    Ok(Exit::Success)
}

fn describe_new_token(made: &CreateTokenResponse, done: &str, kept: &str) -> String {
    let token = made.token.clone().unwrap_or_default();
    let (id, user) = (one_line(&token.token_id).into_owned(), one_line(&token.user).into_owned());
    match (made.secret.as_str(), kept) {
        ("", kept) => format!("{id} of {user}: {done}\n{kept}"),
        (secret, _) => {
            format!("{id} of {user}: {done}. Keep its secret, it is not shown again:\n{secret}\n")
        }
    }
}

/// A new file that only its owner can read.
fn create_private(path: &Path) -> Result<File> {
    let mut options = File::options();
    let made = options.write(true).create_new(true).mode(0o600).open(path);
    made.map_err(|error| {
        Failure::refused(format!("--out {}: {error}; name a new file", path.display()))
    })
}

async fn recover_token(
    client: &Client,
    screen: &mut Screen,
    args: TokenRecoverArgs,
) -> Result<Exit> {
    if client.is_dry_run() {
        return Err(Failure::refused("token recover has no dry run; leave --dry-run out"));
    }
    let database = OfflineDatabase::open(&args.database, client.initiator()).await?;
    let mut file = create_private(&args.out)?;
    let made = match database.recover_administrator().await {
        Ok(made) => made,
        Err(status) => {
            let _ = std::fs::remove_file(&args.out);
            return Err(status.into());
        }
    };
    writeln!(file, "{}", made.expose())
        .and_then(|()| file.sync_all())
        .map_err(|error| Failure::refused(format!("{}: {error}", args.out.display())))?;
    let path = args.out.display();
    screen.print_line(&format!(
        "{} of {}, an administrator's token, is in {path}. A running server knows it within 2 seconds.",
        made.token_id, made.user
    ))?;
    Ok(Exit::Success)
}

async fn list_tokens(client: &Client, screen: &mut Screen, args: &TokenListArgs) -> Result<Exit> {
    let tokens = fetch_pages(args.limit, async |page_size, page_token| {
        let request = ListTokensRequest { page_size, page_token };
        let answer = client.call(client.access().list_tokens(request)).await?;
        Ok((answer.tokens, answer.next_page_token))
    })
    .await?;
    let clock = Clock::system();
    screen.print_list(&tokens, |tokens, _| token_table(tokens, &clock), "no tokens")?;
    Ok(Exit::Success)
}

fn token_table(tokens: &[Token], clock: &Clock) -> Table {
    let mut table =
        Table::new(&["TOKEN", "USER", "STATE", "CREATED", "BY", "EXPIRES", "DESCRIPTION"]);
    for token in tokens {
        table.add_row(vec![
            (&token.token_id).into(),
            (&token.user).into(),
            words::word::<TokenState>(token.state).into(),
            clock.absolute(token.created_at.as_ref()).into(),
            (&token.created_by).into(),
            clock.absolute(token.expires_at.as_ref()).into(),
            (&token.description).into(),
        ]);
    }
    table
}

pub async fn run_role(client: &Client, screen: &mut Screen, command: RoleCommand) -> Result<Exit> {
    let (mut access, dry_run) = (client.access(), client.is_dry_run());
    match command {
        RoleCommand::List => {
            let roles = client.call(access.list_roles(ListRolesRequest {})).await?.roles;
            screen.print_list(&roles, |roles, _| role_table(roles), "no roles")?;
        }
        RoleCommand::Create(RoleCreateArgs { name, permissions }) => {
            let permissions = permissions.iter().map(|word| permission_from(word));
            let permissions = permissions.collect::<Result<Vec<_>>>()?;
            let request = CreateRoleRequest { name, permissions, dry_run };
            let role = client.call(access.create_role(request)).await?;
            print_role(screen, &role, &client.outcome("created"))?;
        }
        RoleCommand::Delete(RoleNameArg { name }) => {
            let request = DeleteRoleRequest { name, dry_run };
            let role = client.call(access.delete_role(request)).await?;
            print_role(screen, &role, &client.outcome("deleted"))?;
        }
        RoleCommand::Bindings => {
            let request = ListRoleBindingsRequest {};
            let found = client.call(access.list_role_bindings(request)).await?.role_bindings;
            screen.print_list(&found, |found, _| binding_table(found), "no role bindings")?;
        }
        RoleCommand::Bind(RoleBindArgs { role, subject, selector }) => {
            let request = CreateRoleBindingRequest { subject, role, dry_run, selector };
            let made = client.call(access.create_role_binding(request)).await?;
            print_binding(screen, &made, &client.outcome("bound"))?;
        }
        RoleCommand::Unbind(RoleUnbindArgs { role_binding_id }) => {
            let request = DeleteRoleBindingRequest { role_binding_id, dry_run };
            let gone = client.call(access.delete_role_binding(request)).await?;
            print_binding(screen, &gone, &client.outcome("removed"))?;
        }
    }
    Ok(Exit::Success)
}

pub fn permission_from(word: &str) -> Result<i32> {
    match words::value::<Permission>(word) {
        0 => {
            let known = Permission::WORDS.join(", ");
            Err(Failure::refused(format!("--permission {word:?} is unknown; use one of {known}")))
        }
        value => Ok(value),
    }
}

fn print_role(screen: &mut Screen, role: &Role, done: &str) -> Result<()> {
    screen.print_record(role, |role| {
        format!("{}: {done} ({})\n", one_line(&role.name), permission_words(&role.permissions))
    })
}

fn print_binding(screen: &mut Screen, binding: &RoleBinding, done: &str) -> Result<()> {
    screen.print_record(binding, |binding| {
        let RoleBinding { role_binding_id, subject, role, selector } = binding;
        let (subject, role) = (one_line(subject), one_line(role));
        let part = match selector.as_str() {
            "" => String::new(),
            selector => format!(" for {}", one_line(selector)),
        };
        format!("{}: {role} of {subject}{part} {done}\n", one_line(role_binding_id))
    })
}

fn role_table(roles: &[Role]) -> Table {
    let mut table = Table::new(&["ROLE", "BUILT_IN", "PERMISSIONS"]);
    for role in roles {
        let built_in = if role.built_in { "yes" } else { "no" };
        let permissions = permission_words(&role.permissions);
        table.add_row(vec![(&role.name).into(), built_in.into(), permissions.into()]);
    }
    table
}

fn binding_table(bindings: &[RoleBinding]) -> Table {
    let mut table = Table::new(&["BINDING", "SUBJECT", "ROLE", "SELECTOR"]);
    for one in bindings {
        table.add_row(vec![
            (&one.role_binding_id).into(),
            (&one.subject).into(),
            (&one.role).into(),
            (&one.selector).into(),
        ]);
    }
    table
}
