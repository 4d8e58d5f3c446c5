//! CredentialService: secrets are write-only.

use super::convert::{expected_version, initiator, time};
use super::page::{List, Page, unreadable_rows};
use super::status::OrStatus;
use super::{Answer, Call, GrpcServices};
use engine::secret::{CredentialInfo, CredentialRequest};
use model::credential::{BindingWrite, CredentialWrite, IdentityWrite};
use model::fault::FaultCode;
use model::filter::{Filter, FilterSubject};
use model::refusal::{Reason, Refusal};
use model::run::actions::Requester;
use model::text;
use proto::v1::credential_secret::Kind as Asked;
use proto::{v1, words};
use providers::kubernetes;
use providers::state_store::Secret;
use secrecy::SecretString;
use std::path::Path;
use store::IdentityRow;
use tonic::metadata::MetadataMap;
use tonic::{Request, Response};

/// The largest accepted secret, in bytes.
const MAX_SECRET: usize = 64 * 1024;

#[tonic::async_trait]
impl v1::credential_service_server::CredentialService for GrpcServices {
    async fn create_credential(
        &self,
        request: Request<v1::CreateCredentialRequest>,
    ) -> Answer<v1::Credential> {
        let call = self.call(&request).await?;
        let (metadata, _, requested) = request.into_parts();
        let v1::CreateCredentialRequest { name, secret, dry_run, peers, allow_plain_http } =
            requested;
        let binding = BindingWrite::parse(&peers, allow_plain_http).or_status()?;
        let services = call.with_dry_run(dry_run);
        let write = (CredentialWrite::Create, binding);
        services.write_credential(&metadata, &name, secret, write).await
    }

    async fn get_credential(
        &self,
        request: Request<v1::GetCredentialRequest>,
    ) -> Answer<v1::Credential> {
        let call = self.call(&request).await?;
        let found = call.secrets.get(&request.get_ref().name).await.or_status()?;
        Ok(Response::new(credential(found)))
    }

    async fn list_credentials(
        &self,
        request: Request<v1::ListCredentialsRequest>,
    ) -> Answer<v1::ListCredentialsResponse> {
        let call = self.call(&request).await?;
        let requested = request.into_inner();
        let filter = Filter::parse(&requested.filter, FilterSubject::Credential).or_status()?;
        let stamp = &requested.filter;
        let page = Page::new(List::Credentials, stamp, requested.page_size, &requested.page_token)
            .or_status()?;
        let found = call.secrets.list(filter, page.after(), page.size + 1).await.or_status()?;
        let unreadable_rows = unreadable_rows(&found.unreadable);
        let (found, next_page_token) = page.split_page(found.items, |one| &one.name);
        let credentials = found.into_iter().map(credential).collect();
        let page = v1::ListCredentialsResponse { credentials, next_page_token, unreadable_rows };
        Ok(Response::new(page))
    }

    async fn update_credential(
        &self,
        request: Request<v1::UpdateCredentialRequest>,
    ) -> Answer<v1::Credential> {
        let call = self.call(&request).await?;
        let (metadata, _, requested) = request.into_parts();
        let version = expected_version(requested.expected_version);
        let write = CredentialWrite::Update { version, allow_missing: requested.allow_missing };
        let binding = BindingWrite::parse(&requested.peers, requested.allow_plain_http);
        let write = (write, binding.or_status()?);
        let services = call.with_dry_run(requested.dry_run);
        services.write_credential(&metadata, &requested.name, requested.secret, write).await
    }

    async fn delete_credential(
        &self,
        request: Request<v1::DeleteCredentialRequest>,
    ) -> Answer<v1::Credential> {
        let call = self.call(&request).await?;
        let requester = requester(request.metadata());
        let v1::DeleteCredentialRequest { name, expected_version: version, dry_run } =
            request.into_inner();
        let version = expected_version(version);
        let secrets = call.secrets.with_dry_run(dry_run);
        let gone = secrets.delete(&name, version, requester).await.or_status()?;
        Ok(Response::new(credential(gone)))
    }

    async fn list_identities(
        &self,
        request: Request<v1::ListIdentitiesRequest>,
    ) -> Answer<v1::ListIdentitiesResponse> {
        let call = self.call(&request).await?;
        let requested = request.into_inner();
        let filter = Filter::parse(&requested.filter, FilterSubject::Identity).or_status()?;
        let stamp = &requested.filter;
        let page = Page::new(List::Identities, stamp, requested.page_size, &requested.page_token)
            .or_status()?;
        let found = call.secrets.identities(filter, page.after(), page.size + 1).await;
        let found = found.or_status()?;
        let unreadable_rows = unreadable_rows(&found.unreadable);
        let (found, next_page_token) = page.split_page(found.items, |one| &one.peer);
        let identities = found.into_iter().map(identity).collect();
        let page = v1::ListIdentitiesResponse { identities, next_page_token, unreadable_rows };
        Ok(Response::new(page))
    }

    async fn create_identity(
        &self,
        request: Request<v1::CreateIdentityRequest>,
    ) -> Answer<v1::Identity> {
        let call = self.call(&request).await?;
        let (metadata, _, requested) = request.into_parts();
        let v1::CreateIdentityRequest { peer, identity, dry_run } = requested;
        let services = call.with_dry_run(dry_run);
        services.write_identity(&metadata, (&peer, &identity), IdentityWrite::Create).await
    }

    async fn get_identity(&self, request: Request<v1::GetIdentityRequest>) -> Answer<v1::Identity> {
        let call = self.call(&request).await?;
        let found = call.secrets.get_identity(&request.get_ref().peer).await.or_status()?;
        Ok(Response::new(identity(found)))
    }

    async fn update_identity(
        &self,
        request: Request<v1::UpdateIdentityRequest>,
    ) -> Answer<v1::Identity> {
        let call = self.call(&request).await?;
        let (metadata, _, requested) = request.into_parts();
        let v1::UpdateIdentityRequest {
            peer,
            identity,
            allow_missing,
            expected_version: version,
            dry_run,
        } = requested;
        let write = IdentityWrite::Update { version: expected_version(version), allow_missing };
        let services = call.with_dry_run(dry_run);
        services.write_identity(&metadata, (&peer, &identity), write).await
    }

    async fn delete_identity(
        &self,
        request: Request<v1::DeleteIdentityRequest>,
    ) -> Answer<v1::Identity> {
        let call = self.call(&request).await?;
        let requester = requester(request.metadata());
        let v1::DeleteIdentityRequest { peer, expected_version: version, dry_run } =
            request.into_inner();
        let version = expected_version(version);
        let secrets = call.secrets.with_dry_run(dry_run);
        let gone = secrets.delete_identity(&peer, version, requester).await.or_status()?;
        Ok(Response::new(identity(gone)))
    }
}

impl Call {
    async fn write_credential(
        &self,
        metadata: &MetadataMap,
        name: &str,
        secret: Option<v1::CredentialSecret>,
        (write, binding): (CredentialWrite, BindingWrite),
    ) -> Answer<v1::Credential> {
        let requester = requester(metadata);
        text::check_name("name", name).or_status()?;
        let token_folder = self.token_folder.as_deref();
        let secret = secret.and_then(|secret| secret.kind);
        let secret = secret_from(secret, token_folder).or_status()?;
        let binding_required = self.binding_required;
        let request = CredentialRequest { write, binding, binding_required };
        let written = self.secrets.write(name, &secret, request, requester).await.or_status()?;
        Ok(Response::new(credential(written)))
    }

    async fn write_identity(
        &self,
        metadata: &MetadataMap,
        pin: (&str, &str),
        write: IdentityWrite,
    ) -> Answer<v1::Identity> {
        let requester = requester(metadata);
        let pinned = self.secrets.write_identity(pin, write, requester).await.or_status()?;
        Ok(Response::new(identity(pinned)))
    }
}

fn requester(metadata: &MetadataMap) -> Requester {
    Requester { by: initiator(metadata), reason: String::new() }
}

fn identity(row: IdentityRow) -> v1::Identity {
    let IdentityRow { peer, identity, first_seen, version } = row;
    v1::Identity { peer, identity, first_seen: Some(time(first_seen)), version }
}

fn credential(info: CredentialInfo) -> v1::Credential {
    v1::Credential {
        name: info.name,
        kind: words::value::<v1::CredentialKind>(&info.kind),
        user: info.login,
        version: info.version,
        updated_at: Some(time(info.updated_at)),
        expires_at: info.expires_at.map(time),
        peers: info.policy.peers.iter().map(ToString::to_string).collect(),
        allow_plain_http: info.policy.plain_http,
    }
}

/// Refuses a secret that is incomplete or too long.
fn secret_from(requested: Option<Asked>, token_folder: Option<&Path>) -> Result<Secret, Refusal> {
    Ok(match requested.ok_or_else(|| Refusal::missing("secret"))? {
        Asked::Password(v1::Password { user, password }) => Secret::Password {
            user: login("secret.password.user", user)?,
            password: given("secret.password.password", password)?.into(),
        },
        Asked::SshKey(v1::SshKey { user, private_key, passphrase }) => Secret::Key {
            user: login("secret.ssh_key.user", user)?,
            pem: given("secret.ssh_key.private_key", private_key)?.into(),
            passphrase: (!passphrase.is_empty()).then(|| passphrase.into()),
        },
        Asked::Kubeconfig(v1::Kubeconfig { text }) => {
            let text = given("secret.kubeconfig.text", text)?.into();
            check_kubeconfig("secret.kubeconfig.text", &text, token_folder)?;
            Secret::Kubeconfig { text }
        }
        Asked::MaasKey(v1::MaasKey { key }) => {
            Secret::MaasKey { key: maas_key("secret.maas_key.key", key)?.into() }
        }
    })
}

/// Refuses a kubeconfig that Farrier could not log in with. The refusal does not quote it.
fn check_kubeconfig(
    field: &str,
    text: &SecretString,
    token_folder: Option<&Path>,
) -> Result<(), Refusal> {
    let checked = kubernetes::check_kubeconfig(text, token_folder);
    checked.map(drop).map_err(|fault| {
        let problem = format!("cannot be used: {}", fault.message);
        if fault.code == FaultCode::CredentialMissing {
            let instead =
                "`kubectl config view --raw --flatten --minify` writes one with all its data";
            return Refusal::invalid(field, problem, instead);
        }
        // The fault of what is not supported or not trusted says what to do instead.
        let refusal = Refusal::new(Reason::FieldInvalid, format!("{field} {problem}"));
        Refusal { field: Some(field.to_string()), ..refusal }
    })
}

/// Checks for three parts. The refusal counts the parts, because it must not repeat the key.
fn maas_key(field: &str, key: String) -> Result<String, Refusal> {
    let key = given(field, key.trim().to_string())?;
    let parts: Vec<&str> = key.split(':').collect();
    let complete = |part: &&str| !part.is_empty() && part.chars().all(|c| c.is_ascii_graphic());
    let problem = match parts.len() {
        3 if parts.iter().all(complete) => return Ok(key),
        3 => "has a part that is empty, or that has blanks in it".to_string(),
        count => format!("has {count} parts and not 3"),
    };
    let instead = "give the API key as MAAS shows it, consumer:token:secret";
    Err(Refusal::invalid(field, problem, instead))
}

fn login(field: &str, user: String) -> Result<String, Refusal> {
    text::check_short(field, &user)?;
    given(field, user)
}

fn given(field: &str, value: String) -> Result<String, Refusal> {
    match value.len() {
        0 => Err(Refusal::missing(field)),
        length if length > MAX_SECRET => {
            let instead = format!("use at most {MAX_SECRET} bytes");
            Err(Refusal::invalid(field, format!("is {length} bytes long"), instead))
        }
        _ => Ok(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_secrets_are_refused_by_field() {
        let password = |user: &str, password: &str| {
            Some(Asked::Password(v1::Password { user: user.into(), password: password.into() }))
        };
        let maas = |key: &str| Some(Asked::MaasKey(v1::MaasKey { key: key.into() }));
        let kubeconfig = |text: &str| Some(Asked::Kubeconfig(v1::Kubeconfig { text: text.into() }));
        let long = "x".repeat(MAX_SECRET + 1);
        for (requested, field) in [
            (None, "secret"),
            (password("", "p"), "secret.password.user"),
            (password("u", ""), "secret.password.password"),
            (password("u", &long), "secret.password.password"),
            (kubeconfig(""), "secret.kubeconfig.text"),
            (kubeconfig(" \n"), "secret.kubeconfig.text"),
            (kubeconfig("xxx"), "secret.kubeconfig.text"),
            (kubeconfig("users: [{name: u, user: {token: xxx}}]"), "secret.kubeconfig.text"),
            (maas(""), "secret.maas_key.key"),
            (maas("xxx:yyy"), "secret.maas_key.key"),
            (maas("xxx::zzz"), "secret.maas_key.key"),
            (maas("xxx:y y:zzz"), "secret.maas_key.key"),
            (maas("xxx:yyy:zzz:four"), "secret.maas_key.key"),
        ] {
            let refusal = secret_from(requested, None).unwrap_err();
            assert_eq!(refusal.field.as_deref(), Some(field));
            assert!(!refusal.message.contains("xxx"), "{}", refusal.message);
        }
        assert!(secret_from(password("u", "p"), None).is_ok());
        assert!(secret_from(maas("consumer:token:secret\n"), None).is_ok());
    }

    /// `kubectl config view` would write the same program again.
    #[test]
    fn a_refused_kubeconfig_has_one_advice() {
        let text = |user: &str| {
            format!(
                "current-context: c\ncontexts: [{{name: c, context: {{cluster: k, user: u}}}}]\n\
                 clusters: [{{name: k, cluster: {{server: 'https://k'}}}}]\n\
                 users: [{{name: u, user: {{{user}}}}}]\n"
            )
        };
        for (text, advice) in [
            ("garbage".to_string(), "kubectl config view"),
            (text("exec: {command: aws}"), "kubectl create token"),
            (text("client-key: /key"), "kubectl config view"),
        ] {
            let asked = Some(Asked::Kubeconfig(v1::Kubeconfig { text }));
            let refusal = secret_from(asked, None).unwrap_err();
            assert_eq!(refusal.field.as_deref(), Some("secret.kubeconfig.text"));
            let advised = refusal.message.matches("`kubectl ").count();
            assert_eq!(advised, 1, "{}", refusal.message);
            assert!(refusal.message.contains(advice), "{}", refusal.message);
        }
    }
}
