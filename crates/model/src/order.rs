//! The order of a list: `created_at desc`. One field; the id is the tie-breaker, so a page
//! continues exactly after the last item of the page before.

use crate::filter::{Filter, FilterSubject};
use crate::refusal::{Reason, Refusal};

/// The field that a list is ordered by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OrderField {
    Id,
    CreatedAt,
    UpdatedAt,
    /// The end of a run. Only runs that have ended are listed.
    FinishedAt,
}

/// An order that is not the usual one of the list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListOrder {
    pub field: OrderField,
    pub descending: bool,
}

/// Filter and order of a list. Without an order: the default of the list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Selection {
    pub filter: Filter,
    pub order: Option<ListOrder>,
}

/// The position of an item in a list that is ordered by a time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TimePosition {
    pub micros: i64,
    pub id: String,
}

impl From<Filter> for Selection {
    fn from(filter: Filter) -> Self {
        Self { filter, order: None }
    }
}

impl Selection {
    pub fn parse(filter: &str, order_by: &str, subject: FilterSubject) -> Result<Self, Refusal> {
        let filter = Filter::parse(filter, subject)?;
        Ok(Self { filter, order: ListOrder::parse(order_by, subject)? })
    }
}

impl ListOrder {
    /// None for an empty text, and for the usual order of the list.
    pub fn parse(text: &str, subject: FilterSubject) -> Result<Option<Self>, Refusal> {
        let mut words = text.split_whitespace();
        let Some(name) = words.next() else { return Ok(None) };
        let descending = match (words.next(), words.next()) {
            (None, None) => false,
            (Some(word), None) if word.eq_ignore_ascii_case("asc") => false,
            (Some(word), None) if word.eq_ignore_ascii_case("desc") => true,
            (Some(_) | None, Some(_) | None) => return Err(wrong(text, subject)),
        };
        let known = fields(subject).iter().find(|(known, _)| *known == name);
        let (_, field) = known.ok_or_else(|| wrong(text, subject))?;
        let order = Self { field: *field, descending };
        Ok(Some(order).filter(|order| Some(*order) != usual(subject)))
    }

    /// The order in the form in which it is requested.
    pub const fn as_str(self) -> (&'static str, &'static str) {
        let field = match self.field {
            OrderField::Id => "id",
            OrderField::CreatedAt => "created_at",
            OrderField::UpdatedAt => "updated_at",
            OrderField::FinishedAt => "finished_at",
        };
        (field, if self.descending { "desc" } else { "asc" })
    }
}

impl TimePosition {
    /// The text for a page token.
    pub fn to_text(&self) -> String {
        format!("{} {}", self.micros, self.id)
    }

    pub fn parse(text: &str) -> Result<Self, Refusal> {
        let position = text.split_once(' ').and_then(|(micros, id)| {
            Some(Self { micros: micros.parse().ok()?, id: id.to_string() })
        });
        position.ok_or_else(|| {
            let instead = "use next_page_token of the page before, with the same order_by";
            Refusal::invalid("page_token", "was not given out by this server", instead)
        })
    }
}

fn wrong(text: &str, subject: FilterSubject) -> Refusal {
    let shown: String = text.chars().take(64).collect();
    let names: Vec<&str> = fields(subject).iter().map(|(name, _)| *name).collect();
    let message = match names.as_slice() {
        [] => format!("order_by is {shown:?}; this list has one order only: leave it out"),
        [first, ..] => format!(
            "order_by is {shown:?}; use one field, with desc for the reverse order, as in \
             \"{first} desc\"; the fields are {}",
            names.join(", ")
        ),
    };
    Refusal { field: Some("order_by".into()), ..Refusal::new(Reason::OrderInvalid, message) }
}

/// The fields that a list can be ordered by.
const fn fields(subject: FilterSubject) -> &'static [(&'static str, OrderField)] {
    use OrderField::{CreatedAt, FinishedAt, Id, UpdatedAt};
    match subject {
        FilterSubject::Machine => {
            &[("machine_id", Id), ("created_at", CreatedAt), ("updated_at", UpdatedAt)]
        }
        FilterSubject::Run => &[("created_at", CreatedAt), ("finished_at", FinishedAt)],
        FilterSubject::Rack => {
            &[("rack_id", Id), ("created_at", CreatedAt), ("updated_at", UpdatedAt)]
        }
        FilterSubject::Switch => {
            &[("switch_id", Id), ("created_at", CreatedAt), ("updated_at", UpdatedAt)]
        }
        FilterSubject::PowerShelf => {
            &[("power_shelf_id", Id), ("created_at", CreatedAt), ("updated_at", UpdatedAt)]
        }
        FilterSubject::Node => {
            &[("node_id", Id), ("created_at", CreatedAt), ("updated_at", UpdatedAt)]
        }
        FilterSubject::Site => {
            &[("site_id", Id), ("created_at", CreatedAt), ("updated_at", UpdatedAt)]
        }
        FilterSubject::FirmwareHistory => &[("at", CreatedAt)],
        FilterSubject::History => &[("ts", CreatedAt)],
        FilterSubject::Plan
        | FilterSubject::Health
        | FilterSubject::Firmware
        | FilterSubject::Image
        | FilterSubject::Credential
        | FilterSubject::Identity
        | FilterSubject::Replica
        | FilterSubject::SimFault
        | FilterSubject::SimEffect
        | FilterSubject::ComponentFirmware
        | FilterSubject::Selector
        | FilterSubject::Notice => &[],
    }
}

/// The order of a list that is requested without one.
const fn usual(subject: FilterSubject) -> Option<ListOrder> {
    match subject {
        FilterSubject::Machine
        | FilterSubject::Rack
        | FilterSubject::Switch
        | FilterSubject::PowerShelf
        | FilterSubject::Node
        | FilterSubject::Site => Some(ListOrder { field: OrderField::Id, descending: false }),
        FilterSubject::Run | FilterSubject::FirmwareHistory => {
            Some(ListOrder { field: OrderField::CreatedAt, descending: true })
        }
        FilterSubject::History => {
            Some(ListOrder { field: OrderField::CreatedAt, descending: false })
        }
        FilterSubject::Plan
        | FilterSubject::Health
        | FilterSubject::Firmware
        | FilterSubject::Image
        | FilterSubject::Credential
        | FilterSubject::Identity
        | FilterSubject::Replica
        | FilterSubject::SimFault
        | FilterSubject::SimEffect
        | FilterSubject::ComponentFirmware
        | FilterSubject::Selector
        | FilterSubject::Notice => None,
    }
}
