//! The used fields of a kubeconfig. Of a field that is refused only its presence is read.

use secrecy::SecretString;
use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer};

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub struct Kubeconfig {
    pub current_context: Option<String>,
    contexts: Option<Vec<NamedContext>>,
    clusters: Option<Vec<NamedCluster>>,
    users: Option<Vec<NamedUser>>,
}

#[derive(Deserialize)]
struct NamedContext {
    name: String,
    context: Option<Context>,
}

#[derive(Deserialize)]
struct NamedCluster {
    name: String,
    cluster: Option<ClusterEntry>,
}

#[derive(Deserialize)]
struct NamedUser {
    name: String,
    user: Option<UserEntry>,
}

#[derive(Deserialize)]
pub struct Context {
    pub cluster: String,
    pub user: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub struct ClusterEntry {
    pub server: Option<String>,
    pub tls_server_name: Option<String>,
    pub certificate_authority_data: Option<String>,
    pub insecure_skip_tls_verify: Option<bool>,
    pub certificate_authority: Option<IgnoredAny>,
    pub proxy_url: Option<IgnoredAny>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub struct UserEntry {
    #[serde(deserialize_with = "secret")]
    pub token: Option<SecretString>,
    pub client_certificate_data: Option<String>,
    #[serde(deserialize_with = "secret")]
    pub client_key_data: Option<SecretString>,
    pub client_certificate: Option<IgnoredAny>,
    pub client_key: Option<IgnoredAny>,
    #[serde(rename = "tokenFile")]
    pub token_file: Option<String>,
    pub exec: Option<IgnoredAny>,
    pub auth_provider: Option<IgnoredAny>,
    pub username: Option<IgnoredAny>,
    pub password: Option<IgnoredAny>,
    #[serde(rename = "as")]
    pub impersonate: Option<IgnoredAny>,
    #[serde(rename = "as-groups")]
    pub impersonate_groups: Option<IgnoredAny>,
}

/// The text is not a kubeconfig. Has no reason: that could quote a key.
pub struct NotAKubeconfig;

impl Kubeconfig {
    /// Reads all documents of a text. On equal names the first one wins.
    pub fn parse(text: &str) -> Result<Self, NotAKubeconfig> {
        let documents: Vec<Self> = serde_saphyr::from_multiple(text).map_err(|_| NotAKubeconfig)?;
        Ok(documents.into_iter().fold(Self::default(), Self::merge))
    }

    fn merge(self, next: Self) -> Self {
        Self {
            current_context: self.current_context.or(next.current_context),
            contexts: append(self.contexts, next.contexts),
            clusters: append(self.clusters, next.clusters),
            users: append(self.users, next.users),
        }
    }

    pub fn context(&self, name: &str) -> Option<&Context> {
        let mut named = self.contexts.iter().flatten();
        named.find(|named| named.name == name)?.context.as_ref()
    }

    pub fn cluster(&self, name: &str) -> Option<&ClusterEntry> {
        let mut named = self.clusters.iter().flatten();
        named.find(|named| named.name == name)?.cluster.as_ref()
    }

    pub fn user(&self, name: &str) -> Option<&UserEntry> {
        let mut named = self.users.iter().flatten();
        named.find(|named| named.name == name)?.user.as_ref()
    }

    pub fn first_cluster(&self) -> Option<&ClusterEntry> {
        self.clusters.iter().flatten().find_map(|named| named.cluster.as_ref())
    }
}

fn append<T>(first: Option<Vec<T>>, next: Option<Vec<T>>) -> Option<Vec<T>> {
    Some([first.unwrap_or_default(), next.unwrap_or_default()].into_iter().flatten().collect())
}

fn secret<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<SecretString>, D::Error> {
    Ok(Option::<String>::deserialize(deserializer)?.map(SecretString::from))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_are_merged_and_the_first_wins() {
        let text = "current-context: a\nclusters: [{name: k, cluster: {server: one}}]\n---\n\
                    current-context: b\nclusters:\n- {name: k, cluster: {server: two}}\n\
                    - {name: l, cluster: {server: three}}\nusers: null\n---\n";
        let Ok(config) = Kubeconfig::parse(text) else { panic!("{text}") };
        assert_eq!(config.current_context.as_deref(), Some("a"));
        let server = |name| config.cluster(name).and_then(|cluster| cluster.server.as_deref());
        assert_eq!((server("k"), server("l"), server("m")), (Some("one"), Some("three"), None));
        let first = config.first_cluster().and_then(|cluster| cluster.server.as_deref());
        assert_eq!(first, Some("one"));
    }

    #[test]
    fn what_is_refused_may_have_any_form() {
        let text = "users: [{name: u, user: {exec: {command: id, args: [a]}, as: null}}]";
        let Ok(config) = Kubeconfig::parse(text) else { panic!("{text}") };
        let user = config.user("u").unwrap();
        assert!(user.exec.is_some() && user.impersonate.is_none());
    }
}
