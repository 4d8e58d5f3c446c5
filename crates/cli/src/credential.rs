//! Credentials and trust: the logins that Farrier uses, and the peer identities that it trusts.

use crate::args::{CredentialCommand, CredentialSetArgs, TrustCommand};
use crate::client::{Client, fetch_pages};
use crate::exit::{Exit, Failure, Result};
use crate::output::Screen;
use crate::table::Table;
use crate::text::one_line;
use crate::time::Clock;
use proto::v1::set_credential_request::Secret;
use proto::v1::{
    Credential, DeleteCredentialRequest, ForgetIdentityRequest, Identity, Kubeconfig,
    ListCredentialsRequest, ListIdentitiesRequest, MaasKey, Password, SetCredentialRequest,
    SetIdentityRequest, SshKey,
};
use proto::words::WireEnum;
use std::io::{IsTerminal, Read};
use std::path::Path;

/// The maximum size of a secret, in bytes.
const MAX_SECRET: u64 = 64 * 1024;

pub async fn run(client: &Client, screen: &mut Screen, command: CredentialCommand) -> Result<Exit> {
    match command {
        CredentialCommand::Set(args) => {
            let request =
                SetCredentialRequest { name: args.name.clone(), secret: Some(read_secret(args)?) };
            let set = client.call(client.credentials().set_credential(request)).await?;
            screen.print_record(&set, |set| {
                format!("credential {} set, {}\n", one_line(&set.name), set.kind().word())
            })?;
        }
        CredentialCommand::List => {
            let credentials = fetch_pages(None, async |page_size, page_token| {
                let request = ListCredentialsRequest { page_size, page_token };
                let page = client.call(client.credentials().list_credentials(request)).await?;
                Ok((page.credentials, page.next_page_token))
            })
            .await?;
            let none = "no credentials; make one with `farrier credential set NAME --user USER`";
            screen.print_list(&credentials, credentials_table, none)?;
        }
        CredentialCommand::Delete(args) => {
            let request = DeleteCredentialRequest { name: args.name };
            let gone = client.call(client.credentials().delete_credential(request)).await?;
            screen.print_record(&gone, |gone| {
                format!("credential {} deleted\n", one_line(&gone.name))
            })?;
        }
    }
    Ok(Exit::Success)
}

pub async fn run_trust(client: &Client, screen: &mut Screen, trust: TrustCommand) -> Result<Exit> {
    match trust {
        TrustCommand::List => {
            let identities = fetch_pages(None, async |page_size, page_token| {
                let request = ListIdentitiesRequest { page_size, page_token };
                let page = client.call(client.credentials().list_identities(request)).await?;
                Ok((page.identities, page.next_page_token))
            })
            .await?;
            screen.print_list(&identities, identities_table, "no peer is pinned yet")?;
        }
        TrustCommand::Set(args) => {
            let request = SetIdentityRequest { peer: args.peer, identity: args.identity };
            let set = client.call(client.credentials().set_identity(request)).await?;
            screen.print_record(&set, |set| {
                format!("{} is trusted as {}\n", one_line(&set.peer), one_line(&set.identity))
            })?;
        }
        TrustCommand::Forget(args) => {
            let request = ForgetIdentityRequest { peer: args.peer.clone() };
            let done = client.call(client.credentials().forget_identity(request)).await?;
            let message = format!(
                "{} forgotten; the next identity seen there is trusted\n",
                one_line(&args.peer)
            );
            screen.print_record(&done, |_| message.clone())?;
        }
    }
    Ok(Exit::Success)
}

fn credentials_table(credentials: &[Credential], _wide: bool) -> Table {
    let clock = Clock::system();
    let mut table = Table::new(&["NAME", "KIND", "USER", "VERSION", "CHANGED"]);
    for one in credentials {
        table.add_row(vec![
            (&one.name).into(),
            one.kind().word().into(),
            (&one.user).into(),
            one.version.to_string().into(),
            clock.ago(one.updated_at.as_ref()).into(),
        ]);
    }
    table
}

fn identities_table(identities: &[Identity], _wide: bool) -> Table {
    let clock = Clock::system();
    let mut table = Table::new(&["ADDRESS", "IDENTITY", "FIRST SEEN"]);
    for one in identities {
        table.add_row(vec![
            (&one.peer).into(),
            (&one.identity).into(),
            clock.ago(one.first_seen.as_ref()).into(),
        ]);
    }
    table
}

/// Reads the secret from its file or from stdin. It is never an argument, because other users can
/// read the arguments of a process.
fn read_secret(args: CredentialSetArgs) -> Result<Secret> {
    let user = args.user.unwrap_or_default();
    if let Some(path) = &args.kubeconfig {
        return Ok(Secret::Kubeconfig(Kubeconfig { text: read_file(path)? }));
    }
    if let Some(path) = &args.maas_key {
        return Ok(Secret::MaasKey(MaasKey { key: read_first_line(path)? }));
    }
    if let Some(path) = &args.ssh_key {
        let passphrase = args.passphrase_file.as_deref().map(read_first_line).transpose()?;
        let (private_key, passphrase) = (read_file(path)?, passphrase.unwrap_or_default());
        return Ok(Secret::SshKey(SshKey { user, private_key, passphrase }));
    }
    let password = match &args.password_file {
        Some(path) => read_first_line(path)?,
        None => read_password()?,
    };
    Ok(Secret::Password(Password { user, password }))
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
