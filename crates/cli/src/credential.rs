//! Credentials and trust: the logins that Farrier uses, and the peer identities that it trusts.

use crate::args::{
    CredentialCommand, CredentialSecretArgs, CredentialUpdateArgs, TrustCommand, TrustIdentityArgs,
    VersionArgs,
};
use crate::client::{Client, fetch_pages};
use crate::exit::{Exit, Failure, Result};
use crate::filter::empty_list_note;
use crate::output::Screen;
use crate::table::{Table, format_pairs};
use crate::text::one_line;
use crate::time::Clock;
use proto::v1::credential_secret::Kind;
use proto::v1::{
    CreateCredentialRequest, CreateIdentityRequest, Credential, CredentialSecret,
    DeleteCredentialRequest, DeleteIdentityRequest, GetCredentialRequest, GetIdentityRequest,
    Identity, Kubeconfig, ListCredentialsRequest, ListIdentitiesRequest, MaasKey, Password, SshKey,
    UpdateCredentialRequest, UpdateIdentityRequest,
};
use proto::words::WireEnum;
use std::io::{IsTerminal, Read};
use std::path::Path;

/// The peers of a credential in a table that is not wide.
const MAX_PEERS_SHOWN: usize = 2;
/// The maximum size of a secret, in bytes.
const MAX_SECRET: u64 = 64 * 1024;

pub async fn run(client: &Client, screen: &mut Screen, command: CredentialCommand) -> Result<Exit> {
    match command {
        CredentialCommand::Create(args) => {
            let request = CreateCredentialRequest {
                name: args.name.clone(),
                peers: args.peers.clone(),
                allow_plain_http: args.allow_plain_http,
                secret: Some(read_secret(args)?),
                dry_run: client.is_dry_run(),
            };
            let created = client.call(client.credentials().create_credential(request)).await?;
            print_change(screen, &created, &client.outcome("created"))?;
        }
        CredentialCommand::Update(CredentialUpdateArgs { secret, version }) => {
            let request = update_request(secret, version, false, client.is_dry_run())?;
            let updated = client.call(client.credentials().update_credential(request)).await?;
            print_change(screen, &updated, &client.outcome("updated"))?;
        }
        CredentialCommand::Set(args) => {
            let request = update_request(args, VersionArgs::default(), true, client.is_dry_run())?;
            let set = client.call(client.credentials().update_credential(request)).await?;
            print_change(screen, &set, &client.outcome("set"))?;
        }
        CredentialCommand::Get(args) => {
            let request = GetCredentialRequest { name: args.name };
            let found = client.call(client.credentials().get_credential(request)).await?;
            screen.print_record(&found, describe)?;
        }
        CredentialCommand::List(args) => {
            let credentials = fetch_pages(args.limit, async |page_size, page_token| {
                let filter = args.filter.clone();
                let request = ListCredentialsRequest { page_size, page_token, filter };
                let page = client.call(client.credentials().list_credentials(request)).await?;
                Ok((page.credentials, page.next_page_token, page.unreadable_rows))
            })
            .await?;
            let none = "no credentials; create one with `farrier credential create NAME --user USER --for PEER`";
            let none = empty_list_note(&args.filter, none);
            screen.print_list(&credentials, credentials_table, none)?;
        }
        CredentialCommand::Delete(args) => {
            let expected_version = args.version.or_any();
            let request = DeleteCredentialRequest {
                name: args.name,
                expected_version,
                dry_run: client.is_dry_run(),
            };
            let gone = client.call(client.credentials().delete_credential(request)).await?;
            screen.print_record(&gone, |gone| {
                format!("credential {} {}\n", one_line(&gone.name), client.outcome("deleted"))
            })?;
        }
    }
    Ok(Exit::Success)
}

fn update_request(
    args: CredentialSecretArgs,
    version: VersionArgs,
    allow_missing: bool,
    dry_run: bool,
) -> Result<UpdateCredentialRequest> {
    Ok(UpdateCredentialRequest {
        name: args.name.clone(),
        peers: args.peers.clone(),
        allow_plain_http: args.allow_plain_http,
        secret: Some(read_secret(args)?),
        expected_version: version.or_any(),
        allow_missing,
        dry_run,
    })
}

fn print_change(screen: &mut Screen, credential: &Credential, what: &str) -> Result<()> {
    screen.print_record(credential, |one| {
        let expiry = match one.expires_at.as_ref() {
            None => String::new(),
            at => match Clock::system().expiry(at) {
                past if past.starts_with("expired") => format!(", {past}"),
                future => format!(", expires {future}"),
            },
        };
        format!("credential {} {what}, {}{expiry}\n", one_line(&one.name), one.kind().word())
    })
}

fn describe(one: &Credential) -> String {
    let mut facts = vec![
        ("Credential:", one.name.clone()),
        ("Kind:", one.kind().word().to_string()),
        ("User:", one.user.clone()),
        ("For:", format_peers(one)),
        ("Version:", one.version.to_string()),
        ("Changed:", Clock::system().ago(one.updated_at.as_ref())),
    ];
    if one.expires_at.is_some() {
        facts.push(("Expires:", Clock::system().expiry(one.expires_at.as_ref())));
    }
    facts.retain(|(_, value)| !value.is_empty());
    format_pairs(&facts)
}

pub async fn run_trust(client: &Client, screen: &mut Screen, trust: TrustCommand) -> Result<Exit> {
    match trust {
        TrustCommand::List(args) => {
            let identities = fetch_pages(args.limit, async |page_size, page_token| {
                let filter = args.filter.clone();
                let request = ListIdentitiesRequest { page_size, page_token, filter };
                let page = client.call(client.credentials().list_identities(request)).await?;
                Ok((page.identities, page.next_page_token, page.unreadable_rows))
            })
            .await?;
            let none = empty_list_note(&args.filter, "no peer is pinned yet");
            screen.print_list(&identities, identities_table, none)?;
        }
        TrustCommand::Create(args) => {
            let TrustIdentityArgs { peer, identity } = args;
            let request = CreateIdentityRequest { peer, identity, dry_run: client.is_dry_run() };
            let created = client.call(client.credentials().create_identity(request)).await?;
            screen.print_record(&created, |one| format_trusted(one, client.is_dry_run()))?;
        }
        TrustCommand::Update(args) => {
            let updated = update_identity(client, args.pin, args.version, false).await?;
            screen.print_record(&updated, |one| format_trusted(one, client.is_dry_run()))?;
        }
        TrustCommand::Set(args) => {
            let set = update_identity(client, args, VersionArgs::default(), true).await?;
            screen.print_record(&set, |one| format_trusted(one, client.is_dry_run()))?;
        }
        TrustCommand::Get(args) => {
            let request = GetIdentityRequest { peer: args.peer };
            let found = client.call(client.credentials().get_identity(request)).await?;
            screen.print_record(&found, describe_identity)?;
        }
        TrustCommand::Delete(args) => {
            let request = DeleteIdentityRequest {
                peer: args.peer,
                expected_version: args.version.or_any(),
                dry_run: client.is_dry_run(),
            };
            let gone = client.call(client.credentials().delete_identity(request)).await?;
            screen.print_record(&gone, |gone| {
                let (peer, deleted) = (one_line(&gone.peer), client.outcome("deleted"));
                format!("pin of {peer} {deleted}; the next identity seen there is trusted\n")
            })?;
        }
    }
    Ok(Exit::Success)
}

async fn update_identity(
    client: &Client,
    args: TrustIdentityArgs,
    version: VersionArgs,
    allow_missing: bool,
) -> Result<Identity> {
    let TrustIdentityArgs { peer, identity } = args;
    let request = UpdateIdentityRequest {
        peer,
        identity,
        allow_missing,
        expected_version: version.or_any(),
        dry_run: client.is_dry_run(),
    };
    client.call(client.credentials().update_identity(request)).await
}

fn format_trusted(one: &Identity, dry_run: bool) -> String {
    let is = if dry_run { "would be" } else { "is" };
    format!("{} {is} trusted as {}\n", one_line(&one.peer), one_line(&one.identity))
}

fn describe_identity(one: &Identity) -> String {
    format_pairs(&[
        ("Address:", one.peer.clone()),
        ("Identity:", one.identity.clone()),
        ("Version:", one.version.to_string()),
        ("First seen:", Clock::system().ago(one.first_seen.as_ref())),
    ])
}

/// The peers that may get the secret.
fn format_peers(one: &Credential) -> String {
    let peers = match one.peers.is_empty() {
        true => "no peer".to_string(),
        false => one.peers.join(", "),
    };
    if one.allow_plain_http { format!("{peers} (also over plain http://)") } else { peers }
}

/// The same for a table: the first peers and how many more there are.
fn format_first_peers(one: &Credential, wide: bool) -> String {
    match one.peers.len() {
        0 => "-".into(),
        count if count > MAX_PEERS_SHOWN && !wide => {
            let more = count - MAX_PEERS_SHOWN;
            format!("{}, {more} more", one.peers[..MAX_PEERS_SHOWN].join(", "))
        }
        _ => one.peers.join(", "),
    }
}

fn credentials_table(credentials: &[Credential], wide: bool) -> Table {
    let clock = Clock::system();
    let mut table = Table::new(&["NAME", "KIND", "USER", "FOR", "VERSION", "CHANGED", "EXPIRES"]);
    for one in credentials {
        table.add_row(vec![
            (&one.name).into(),
            one.kind().word().into(),
            (&one.user).into(),
            format_first_peers(one, wide).into(),
            one.version.to_string().into(),
            clock.ago(one.updated_at.as_ref()).into(),
            clock.expiry(one.expires_at.as_ref()).into(),
        ]);
    }
    table
}

fn identities_table(identities: &[Identity], _wide: bool) -> Table {
    let clock = Clock::system();
    let mut table = Table::new(&["ADDRESS", "IDENTITY", "VERSION", "FIRST SEEN"]);
    for one in identities {
        table.add_row(vec![
            (&one.peer).into(),
            (&one.identity).into(),
            one.version.to_string().into(),
            clock.ago(one.first_seen.as_ref()).into(),
        ]);
    }
    table
}

fn read_secret(args: CredentialSecretArgs) -> Result<CredentialSecret> {
    Ok(CredentialSecret { kind: Some(read_kind(args)?) })
}

/// Reads the secret from its file or from stdin. It is never an argument, because other users can
/// read the arguments of a process.
fn read_kind(args: CredentialSecretArgs) -> Result<Kind> {
    let user = args.user.unwrap_or_default();
    if let Some(path) = &args.kubeconfig {
        return Ok(Kind::Kubeconfig(Kubeconfig { text: read_file(path)? }));
    }
    if let Some(path) = &args.maas_key {
        return Ok(Kind::MaasKey(MaasKey { key: read_first_line(path)? }));
    }
    if let Some(path) = &args.ssh_key {
        let passphrase = args.passphrase_file.as_deref().map(read_first_line).transpose()?;
        let (private_key, passphrase) = (read_file(path)?, passphrase.unwrap_or_default());
        return Ok(Kind::SshKey(SshKey { user, private_key, passphrase }));
    }
    let password = match &args.password_file {
        Some(path) => read_first_line(path)?,
        None => read_password()?,
    };
    Ok(Kind::Password(Password { user, password }))
}

fn read_file(path: &Path) -> Result<String> {
    let wrong =
        |message: String| Failure::new(Exit::Refused, format!("{}: {message}", path.display()));
    let file = std::fs::File::open(path).map_err(|error| wrong(error.to_string()))?;
    read_bounded(file).map_err(wrong)
}

/// Returns the first line of a file, because editors end a file with a newline.
fn read_first_line(path: &Path) -> Result<String> {
    Ok(read_file(path)?.lines().next().unwrap_or_default().to_string())
}

/// Reads a password from stdin. A terminal is refused, because it would echo the password.
fn read_password() -> Result<String> {
    let wrong = |message: String| Failure::new(Exit::Refused, message);
    let input = std::io::stdin();
    if input.is_terminal() {
        return Err(wrong(
            "the password would be shown while you type it; give --password-file FILE, \
             or send it on standard input: pass show bmc | farrier credential set …"
                .into(),
        ));
    }
    let text =
        read_bounded(input).map_err(|message| wrong(format!("standard input: {message}")))?;
    Ok(text.lines().next().unwrap_or_default().to_string())
}

fn read_bounded(input: impl Read) -> Result<String, String> {
    let mut text = String::new();
    let read =
        input.take(MAX_SECRET + 1).read_to_string(&mut text).map_err(|error| error.to_string())?;
    match read as u64 > MAX_SECRET {
        true => Err(format!("is longer than {MAX_SECRET} bytes")),
        false => Ok(text),
    }
}
