//! Reads arbitrary bytes as every kind of input that the server does not trust. The fuzz targets
//! and the replay of their corpora call these functions; they panic when a promise is broken, and
//! do nothing else.

use crate::agents::convert as agents;
use crate::netboot::convert as netboot;
use crate::{grpc, listener, oidc};
use model::filter::{Filter, FilterSubject};
pub use providers::maas::read_maas_answer;
pub use providers::redfish::read_redfish_answer;
use wire::deploy::{Claim, Report};

/// A filter, for every kind of object. The first byte chooses the kind.
pub fn read_filter(bytes: &[u8]) {
    let Some((kind, text)) = bytes.split_first() else { return };
    let subjects = [
        FilterSubject::Machine,
        FilterSubject::Run,
        FilterSubject::Plan,
        FilterSubject::Rack,
        FilterSubject::Node,
        FilterSubject::Site,
        FilterSubject::Rollout,
        FilterSubject::Health,
        FilterSubject::Firmware,
    ];
    let subject = subjects[usize::from(*kind) % subjects.len()];
    let text = String::from_utf8_lossy(text);
    match Filter::parse(&text, subject) {
        Ok(filter) => {
            let (fixed, states) = (filter.fixed_terms(), filter.without_machine_states());
            assert!(fixed.names_state() <= filter.names_state(), "{text:?}");
            drop((states, filter.rack().map(str::len), filter.needs_machine()));
        }
        Err(refusal) => assert!(!refusal.message.is_empty(), "a refusal without a word"),
    }
}

pub fn read_page_token(bytes: &[u8]) {
    grpc::read_page_token(bytes);
}

/// A protobuf request, and its conversion to the model.
pub fn read_request(bytes: &[u8]) {
    grpc::read_request(bytes);
}

/// Certificates and lists of revoked ones, as PEM and as a client shows them.
pub fn read_certificate(bytes: &[u8]) {
    listener::read_certificate(bytes);
}

/// A token of an identity provider, its claims, and a set of keys.
pub fn read_web_token(bytes: &[u8]) {
    oidc::read_web_token(bytes);
}

/// The body of a request of an agent.
pub fn read_agent_body(bytes: &[u8]) {
    let enrolled = agents::read(bytes).and_then(agents::enrollment);
    if let Ok((token, agent)) = enrolled {
        assert!(!token.is_empty() && !agent.hostname.contains('\n'));
    }
    if let Ok(problems) = agents::read(bytes).and_then(|beat| agents::problems(&beat)) {
        assert!(!problems.contains('\n'));
    }
    let _ = agents::read(bytes).and_then(agents::renewal);
    if let Ok(report) = agents::read(bytes).and_then(agents::report) {
        assert!(!report.key.is_empty() && !report.message.contains('\n'));
    }
}

/// The body of a request of a machine that boots over the network.
pub fn read_netboot_body(bytes: &[u8]) {
    if let Ok(claim) = serde_json::from_slice::<Claim>(bytes)
        && let Ok(macs) = netboot::macs(&claim)
    {
        assert!(macs.iter().all(|mac| mac.len() == 17), "{macs:?}");
    }
    if let Ok(report) = serde_json::from_slice::<Report<String>>(bytes)
        && let Ok(report) = netboot::report(report)
    {
        assert!(!report.message.chars().any(char::is_control), "{:?}", report.message);
    }
}
