//! Pages: sizes, and tokens that are valid for one list and one filter only.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use model::order::ListOrder;
use model::refusal::Refusal;
use model::retry::fnv1a;
use store::UnreadableRow;

pub(super) const DEFAULT_SIZE: i64 = 100;
pub(super) const MAX_SIZE: i64 = 1_000;

/// The list that a token belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum List {
    Machines,
    Operations,
    Runs,
    Plans,
    History,
    Credentials,
    Identities,
    ConsoleLog,
    Images,
    Switches,
    PowerShelves,
    Firmware,
    FirmwareHistory,
    Health,
    Racks,
    Nodes,
    Sites,
    Replicas,
    SimFaults,
    SimEffects,
    Tokens,
    Audit,
    Approvals,
    Notifiers,
    DeadLetters,
    ComponentFirmware,
}

impl List {
    const fn name(self) -> &'static str {
        match self {
            Self::Machines => "machines",
            Self::Operations => "operations",
            Self::Runs => "runs",
            Self::Plans => "plans",
            Self::History => "history",
            Self::Credentials => "credentials",
            Self::Identities => "identities",
            Self::ConsoleLog => "console-log",
            Self::Images => "images",
            Self::Switches => "switches",
            Self::PowerShelves => "power-shelves",
            Self::Firmware => "firmware",
            Self::FirmwareHistory => "firmware-history",
            Self::Health => "health",
            Self::Racks => "racks",
            Self::Nodes => "nodes",
            Self::Sites => "sites",
            Self::Replicas => "replicas",
            Self::SimFaults => "sim-faults",
            Self::SimEffects => "sim-effects",
            Self::Tokens => "tokens",
            Self::Audit => "audit",
            Self::Approvals => "approvals",
            Self::Notifiers => "notifiers",
            Self::DeadLetters => "dead-letters",
            Self::ComponentFirmware => "component-firmware",
        }
    }
}

/// The number of rows that a list left out.
pub(super) fn unreadable_rows(left_out: &[UnreadableRow]) -> i32 {
    i32::try_from(left_out.len()).unwrap_or(i32::MAX)
}

/// The list that a page token belongs to: its filter, and an order that is not the usual one.
pub(super) fn scope(filter: &str, order: Option<ListOrder>) -> String {
    match order.map(ListOrder::as_str) {
        None => filter.to_string(),
        Some((field, direction)) => format!("{filter}\norder by {field} {direction}"),
    }
}

/// A validated request for a page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Page {
    list: List,
    filter: String,
    pub size: i64,
    /// The key of the last item of the previous page.
    pub from: Option<String>,
}

impl Page {
    /// `filter` is everything else that selects the list; a token of another filter is refused.
    pub fn new(list: List, filter: &str, size: i32, token: &str) -> Result<Self, Refusal> {
        let size = match i64::from(size) {
            0 => DEFAULT_SIZE,
            size if size < 0 => {
                let instead = format!("use 1 to {MAX_SIZE}, or 0 for {DEFAULT_SIZE}");
                return Err(Refusal::invalid("page_size", format!("is {size}"), instead));
            }
            size => size.min(MAX_SIZE),
        };
        let mut page = Self { list, filter: filter.to_string(), size, from: None };
        if !token.is_empty() {
            page.from = Some(page.parse_token(token)?);
        }
        Ok(page)
    }

    /// The number of items to read: one more than the page has tells whether another page follows.
    pub fn limit(&self) -> usize {
        usize::try_from(self.size + 1).unwrap_or(usize::MAX)
    }

    /// The key after which the page begins; empty for the first page.
    pub fn after(&self) -> &str {
        self.from.as_deref().unwrap_or_default()
    }

    /// Cuts `found`, which may hold one item more than the page, and makes the token of the next
    /// page.
    pub fn split_page<T>(
        &self,
        mut found: Vec<T>,
        name: impl Fn(&T) -> &String,
    ) -> (Vec<T>, String) {
        let size = usize::try_from(self.size).unwrap_or(usize::MAX);
        let more = found.len() > size;
        found.truncate(size);
        let next = found.last().filter(|_| more).map(|last| self.token(name(last)));
        (found, next.unwrap_or_default())
    }

    /// The token of the page that begins after `last`.
    pub fn token(&self, last: &str) -> String {
        URL_SAFE_NO_PAD.encode(format!("{} {last}", self.token_scope()))
    }

    fn token_scope(&self) -> String {
        format!("{}:{:016x}", self.list.name(), fnv1a(&self.filter, 1))
    }

    fn parse_token(&self, token: &str) -> Result<String, Refusal> {
        let wrong = |problem: &str| {
            let instead = "use next_page_token of the page before, with the same filter and order";
            Refusal::invalid("page_token", problem, instead)
        };
        if token.len() > 512 {
            return Err(wrong("is too long to be a token of this server"));
        }
        let text = URL_SAFE_NO_PAD.decode(token).ok().and_then(|raw| String::from_utf8(raw).ok());
        let text = text.ok_or_else(|| wrong("was not given out by this server"))?;
        let (stamp, last) =
            text.split_once(' ').ok_or_else(|| wrong("was not given out by this server"))?;
        if stamp != self.token_scope() {
            return Err(wrong("belongs to another list, another filter or another order"));
        }
        Ok(last.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_fit_their_own_list_and_filter_only() {
        let page = Page::new(List::Machines, "phase=READY", 0, "").unwrap();
        assert_eq!((page.size, &page.from), (DEFAULT_SIZE, &None));
        let token = page.token("m-7");
        let next = Page::new(List::Machines, "phase=READY", 5_000, &token).unwrap();
        assert_eq!((next.size, next.from.as_deref()), (MAX_SIZE, Some("m-7")));
        for (list, filter, token) in [
            (List::Runs, "phase=READY", token.as_str()),
            (List::Machines, "", token.as_str()),
            (List::Machines, "phase=READY", "garbage!"),
            (List::Machines, "phase=READY", "Z2FyYmFnZQ"),
        ] {
            let refusal = Page::new(list, filter, 0, token).unwrap_err();
            assert_eq!(refusal.field.as_deref(), Some("page_token"));
        }
        assert!(Page::new(List::Plans, "", -1, "").is_err());
    }
}
