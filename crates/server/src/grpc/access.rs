//! AccessService.

use super::convert::time;
use super::page::{List, Page};
use super::status::OrStatus;
use super::{Answer, GrpcServices};
use crate::auth::sign_in_path;
use engine::access::{NewToken, TokenRequest};
use model::access::{
    BindingReach, Permission, PermissionSet, Role, RoleBinding, Subject, TokenRecord,
};
use model::id::{BindingId, TokenId};
use model::refusal::Refusal;
use model::time::Timestamp;
use proto::{v1, words};
use secrecy::ExposeSecret;
use std::time::Duration;
use tonic::{Request, Response};

#[tonic::async_trait]
impl v1::access_service_server::AccessService for GrpcServices {
    async fn get_caller(
        &self,
        request: Request<v1::GetCallerRequest>,
    ) -> Answer<v1::GetCallerResponse> {
        let call = self.call(&request).await?;
        let (principal, grants) = (call.caller().principal(), call.caller().grants());
        let limited = grants.limited.iter().map(|one| v1::LimitedPermissions {
            selector: one.selector.to_string(),
            permissions: permissions(one.permissions),
        });
        Ok(Response::new(v1::GetCallerResponse {
            user: principal.user.clone(),
            groups: principal.groups.clone(),
            method: words::value::<v1::AuthMethod>(principal.method.as_str()),
            token_id: principal.token_id.clone().unwrap_or_default(),
            permissions: permissions(grants.everywhere),
            limited_permissions: limited.collect(),
        }))
    }

    async fn create_sign_in_link(
        &self,
        request: Request<v1::CreateSignInLinkRequest>,
    ) -> Answer<v1::SignInLink> {
        let call = self.call(&request).await?;
        if request.get_ref().dry_run {
            return Ok(Response::new(v1::SignInLink::default()));
        }
        let made = call.access.create_sign_in_code(call.caller()).await.or_status()?;
        Ok(Response::new(v1::SignInLink {
            path: sign_in_path(&made),
            expires_at: made.token.expires_at.map(time),
        }))
    }

    async fn create_token(
        &self,
        request: Request<v1::CreateTokenRequest>,
    ) -> Answer<v1::CreateTokenResponse> {
        let call = self.call(&request).await?;
        let v1::CreateTokenRequest { user, description, roles, lifetime_seconds, dry_run } =
            request.into_inner();
        let lifetime = (lifetime_seconds > 0).then(|| Duration::from_secs(lifetime_seconds));
        let wanted = TokenRequest { user, description, roles, lifetime };
        let admin = call.access.for_caller(call.caller(), dry_run);
        let NewToken { token: made, secret } = admin.create_token(wanted).await.or_status()?;
        // A token that was not stored is worth nothing.
        let secret = if dry_run { String::new() } else { secret.expose_secret().to_string() };
        let token = Some(token(&made, call.engine.now()));
        Ok(Response::new(v1::CreateTokenResponse { token, secret }))
    }

    async fn list_tokens(
        &self,
        request: Request<v1::ListTokensRequest>,
    ) -> Answer<v1::ListTokensResponse> {
        let call = self.call(&request).await?;
        let v1::ListTokensRequest { page_size, page_token } = request.into_inner();
        let page = Page::new(List::Tokens, "", page_size, &page_token).or_status()?;
        let admin = call.access.for_caller(call.caller(), false);
        let found = admin.list_tokens(page.after(), page.size + 1).await.or_status()?;
        let (found, next_page_token) = page.split_page(found, |one| &one.id);
        let now = call.engine.now();
        let tokens = found.iter().map(|one| token(one, now)).collect();
        Ok(Response::new(v1::ListTokensResponse { tokens, next_page_token }))
    }

    async fn revoke_token(&self, request: Request<v1::RevokeTokenRequest>) -> Answer<v1::Token> {
        let call = self.call(&request).await?;
        let v1::RevokeTokenRequest { token_id, dry_run } = request.into_inner();
        let id = TokenId::parse(&token_id).or_status()?;
        let admin = call.access.for_caller(call.caller(), dry_run);
        let gone = admin.revoke_token(&id).await.or_status()?;
        Ok(Response::new(token(&gone, call.engine.now())))
    }

    async fn list_roles(
        &self,
        request: Request<v1::ListRolesRequest>,
    ) -> Answer<v1::ListRolesResponse> {
        let call = self.call(&request).await?;
        let found = call.access.for_caller(call.caller(), false).list_roles();
        let roles = found.into_iter().map(|(one, built_in)| role(one, built_in)).collect();
        Ok(Response::new(v1::ListRolesResponse { roles }))
    }

    async fn create_role(&self, request: Request<v1::CreateRoleRequest>) -> Answer<v1::Role> {
        let call = self.call(&request).await?;
        let v1::CreateRoleRequest { name, permissions, dry_run } = request.into_inner();
        if permissions.is_empty() {
            return Err(Refusal::missing("permissions")).or_status();
        }
        let permissions = permissions_from("permissions", &permissions).or_status()?;
        let admin = call.access.for_caller(call.caller(), dry_run);
        let made = admin.create_role(Role { name, permissions }).await.or_status()?;
        Ok(Response::new(role(made, false)))
    }

    async fn delete_role(&self, request: Request<v1::DeleteRoleRequest>) -> Answer<v1::Role> {
        let call = self.call(&request).await?;
        let v1::DeleteRoleRequest { name, dry_run } = request.into_inner();
        let admin = call.access.for_caller(call.caller(), dry_run);
        Ok(Response::new(role(admin.delete_role(&name).await.or_status()?, false)))
    }

    async fn list_role_bindings(
        &self,
        request: Request<v1::ListRoleBindingsRequest>,
    ) -> Answer<v1::ListRoleBindingsResponse> {
        let call = self.call(&request).await?;
        let found = call.access.for_caller(call.caller(), false).list_bindings().or_status()?;
        let role_bindings = found.into_iter().map(binding).collect();
        Ok(Response::new(v1::ListRoleBindingsResponse { role_bindings }))
    }

    async fn create_role_binding(
        &self,
        request: Request<v1::CreateRoleBindingRequest>,
    ) -> Answer<v1::RoleBinding> {
        let call = self.call(&request).await?;
        let v1::CreateRoleBindingRequest { subject, role, dry_run, selector } =
            request.into_inner();
        let subject = Subject::parse("subject", &subject).or_status()?;
        let reach = BindingReach::parse("selector", &selector).or_status()?;
        let admin = call.access.for_caller(call.caller(), dry_run);
        Ok(Response::new(binding(admin.bind(subject, role, reach).await.or_status()?)))
    }

    async fn delete_role_binding(
        &self,
        request: Request<v1::DeleteRoleBindingRequest>,
    ) -> Answer<v1::RoleBinding> {
        let call = self.call(&request).await?;
        let v1::DeleteRoleBindingRequest { role_binding_id, dry_run } = request.into_inner();
        let id = BindingId::parse(&role_binding_id).or_status()?;
        let admin = call.access.for_caller(call.caller(), dry_run);
        Ok(Response::new(binding(admin.unbind(&id).await.or_status()?)))
    }
}

fn token(token: &TokenRecord, now: Timestamp) -> v1::Token {
    v1::Token {
        token_id: token.id.clone(),
        user: token.user.clone(),
        description: token.description.clone(),
        state: words::value::<v1::TokenState>(token.state(now).as_str()),
        created_at: Some(time(token.created_at)),
        created_by: token.created_by.clone(),
        expires_at: token.expires_at.map(time),
        revoked_at: token.revoked_at.map(time),
    }
}

fn role(role: Role, built_in: bool) -> v1::Role {
    v1::Role { name: role.name, permissions: permissions(role.permissions), built_in }
}

fn binding(binding: RoleBinding) -> v1::RoleBinding {
    let RoleBinding { id, subject, role, reach } = binding;
    let (subject, selector) = (subject.to_string(), reach.text());
    v1::RoleBinding { role_binding_id: id, subject, role, selector }
}

pub(super) fn permissions(granted: PermissionSet) -> Vec<i32> {
    granted.iter().map(|one| words::value::<v1::Permission>(one.as_str())).collect()
}

pub(super) fn permissions_from(field: &str, values: &[i32]) -> Result<PermissionSet, Refusal> {
    let known = values.iter().map(|value| {
        let word = words::word::<v1::Permission>(*value);
        Permission::parse(word).ok_or_else(|| {
            let problem = format!("has the value {value}, which is unknown");
            Refusal::invalid(field, problem, "see `farrier role list`")
        })
    });
    Ok(PermissionSet::of(&known.collect::<Result<Vec<_>, _>>()?))
}
