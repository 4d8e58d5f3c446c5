//! Masks secrets before a text of MAAS is shown or stored. An installer log holds the keys of the
//! new system for MAAS, by name. An event or an answer may quote the password of the BMC.

use super::MaasProvider;
use super::machine::is_maas_endpoint;
use crate::port::Target;
use crate::secret_mask::SecretMask;
use model::effect::{CallResult, ProviderAnswer};
use model::fault::{FaultCode, Result};

/// The prefixes of the names of secrets.
const NAMES: [&str; 4] = ["oauth_", "consumer_key", "token_key", "token_secret"];
const COVER: &str = "***";

/// Masks the values of keys: `oauth_token_key=***`, `'token_secret': '***'`.
pub(super) fn masked(line: &str) -> String {
    let mut shown = String::with_capacity(line.len());
    let mut rest = line;
    while let Some(at) = NAMES.iter().filter_map(|name| rest.find(name)).min() {
        let part_of_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let behind = rest[at..].trim_start_matches(part_of_name);
        let value = behind.trim_start_matches(['\'', '"', ' ', ':', '=', '\\']);
        let between = &behind[..behind.len() - value.len()];
        shown.push_str(&rest[..rest.len() - value.len()]);
        rest = value;
        if between.contains(['=', ':']) {
            shown.push_str(COVER);
            let ends = |c: char| c.is_whitespace() || "&'\",;})\\".contains(c);
            rest = value.find(ends).map_or("", |end| &value[end..]);
        }
    }
    shown + rest
}

impl MaasProvider {
    /// Masks the password of the target's BMC. The client itself masks the API key. Fails when the
    /// password cannot be read: what MAAS says could not be masked.
    pub(super) async fn mask_for(&self, target: &Target) -> Result<SecretMask> {
        let spec = &target.spec;
        if spec.bmc_endpoint.is_empty() || is_maas_endpoint(spec) {
            return Ok(SecretMask::default());
        }
        match self.store.credential_facts(self.bmc_credential(spec)).await {
            Ok(credential) => Ok(credential.password_mask()),
            // There is no password; a node can be removed after its credential.
            Err(fault) if fault.code == FaultCode::CredentialMissing => Ok(SecretMask::default()),
            Err(fault) => Err(fault),
        }
    }
}

/// The answer of a call, with its texts masked.
pub(super) fn mask_answer(mask: &SecretMask, answer: CallResult) -> CallResult {
    let answer = answer.map_err(|mut fault| {
        fault.message = mask.text(&fault.message);
        fault
    })?;
    Ok(match answer {
        ProviderAnswer::Done(mut outcome) => {
            outcome.message = mask.text(&outcome.message);
            if let Some(maas) = outcome.facts.as_mut().and_then(|facts| facts.maas.as_mut()) {
                maas.upstream.message = mask.text(&maas.upstream.message);
            }
            ProviderAnswer::Done(outcome)
        }
        ProviderAnswer::Differs(text) => ProviderAnswer::Differs(mask.text(&text)),
        ProviderAnswer::Unknown(text) => ProviderAnswer::Unknown(mask.text(&text)),
        other @ (ProviderAnswer::UnderWay
        | ProviderAnswer::NeverStarted
        | ProviderAnswer::Stopped) => other,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_covered_and_nothing_else() {
        for (line, shown) in [
            (
                "string oauth_consumer_key=aaa&oauth_token_key=bbb&oauth_token_secret=ccc\\ncloud-init",
                "string oauth_consumer_key=***&oauth_token_key=***&oauth_token_secret=***\\ncloud-init",
            ),
            (
                "{'consumer_key': 'aaa', 'token_key': 'bbb', 'token_secret': 'ccc', 'a': 1}",
                "{'consumer_key': '***', 'token_key': '***', 'token_secret': '***', 'a': 1}",
            ),
            (
                r#"{"token_secret": "ccc"} oauth_signature="%26ccc""#,
                r#"{"token_secret": "***"} oauth_signature="***""#,
            ),
            ("oauth_token_secret=", "oauth_token_secret=***"),
            ("no token_key was given, ä", "no token_key was given, ä"),
            ("Command 'grub-install' failed", "Command 'grub-install' failed"),
            ("", ""),
        ] {
            assert_eq!(masked(line), shown);
        }
    }
}
