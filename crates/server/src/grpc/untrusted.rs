//! Reads arbitrary bytes as requests and page tokens, as the services do.

use super::call::describe;
use super::page::{List, Page};
use super::{convert, firmware, health, power_shelf, rollout, simulator, site, switch};
use model::audit::{AuditEntry, MAX_OBJECTS};
use model::refusal::Refusal;
use model::time::Timestamp;
use proto::{Message, Name, json_form, v1};
use store::AuditDraft;

/// The first byte chooses the message. What the services would convert is converted; a refusal must
/// name a field.
pub(crate) fn read_request(bytes: &[u8]) {
    let Some((kind, body)) = bytes.split_first() else { return };
    match kind % 11 {
        0 => read::<v1::Machine, _>(body, |machine| convert::machine_from(Some(machine))),
        1 => read::<v1::Plan, _>(body, convert::plan_from),
        2 => read::<v1::SimFault, _>(body, simulator::rule_from),
        3 => read::<v1::Switch, _>(body, |one| switch::switch_from(Some(one))),
        4 => read::<v1::PowerShelf, _>(body, |one| power_shelf::shelf_from(Some(one))),
        5 => read::<v1::SiteSpec, _>(body, site::spec_from),
        6 => read::<v1::Firmware, _>(body, firmware::firmware_from),
        7 => read::<v1::HealthAlert, _>(body, |alert| {
            health::alerts_from(vec![alert], Timestamp::default())
        }),
        10 => read::<v1::RolloutSpec, _>(body, rollout::spec_from),
        8 => read::<v1::ReimageMachineRequest, _>(body, |request| {
            convert::request_id_from(&request.request_id, request.dry_run)
        }),
        _ => read::<v1::DiscoverRequest, _>(body, Ok),
    }
}

fn read<M: Message + Name + Default, T>(
    body: &[u8],
    convert: impl FnOnce(M) -> Result<T, Refusal>,
) {
    let Ok(message) = M::decode(body) else { return };
    let form = json_form::to_json(&message);
    let draft = AuditDraft::new(AuditEntry::of(None, "", Timestamp::default()));
    describe(&draft, &form);
    assert!(draft.entry().objects.len() <= MAX_OBJECTS);
    if let Err(refusal) = convert(message) {
        assert!(!refusal.message.is_empty(), "a refusal without a word");
    }
}

/// The token of a page. A token that is accepted is one that this server gives out.
pub(crate) fn read_page_token(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let (filter, token) = text.split_once('\n').unwrap_or(("", &text));
    if let Ok(page) = Page::new(List::Machines, filter, 0, token) {
        let given_out = page.from.as_ref().map(|from| page.token(from)).unwrap_or_default();
        assert_eq!(given_out, token);
    }
    // Every token that is given out is accepted, up to the length of an identifier.
    if let Ok(page) = Page::new(List::Machines, filter, 0, "") {
        let last: String = text.chars().take(64).collect();
        let again = Page::new(List::Machines, filter, 0, &page.token(&last));
        assert_eq!(again.ok().and_then(|page| page.from), Some(last));
        assert!(Page::new(List::Runs, filter, 0, &page.token("x")).is_err());
    }
}
