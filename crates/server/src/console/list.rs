//! The common parts of the list pages: the filter box, the answer to an invalid filter, and the
//! link to the next page. A page begins after an id, so nothing is skipped or repeated while the
//! list changes.

use super::QueryParams;
use super::error_page::draw_message;
use super::frame::{Frame, Section, command};
use super::text::{clean_text, encode_query};
use axum::http::StatusCode;
use axum::response::Response;
use maud::{Markup, html};
use model::filter::{Filter, FilterSubject};
use model::refusal::Refusal;
use store::UnreadableRow;

pub(super) const PAGE_SIZE: i64 = 100;

/// Says that a list leaves rows out, and where to look.
pub(super) fn unreadable_note(rows: &[UnreadableRow]) -> Markup {
    html! {
        @if let Some(first) = rows.first() {
            p role="status" {
                @if rows.len() == 1 { "1 row cannot be read and is left out: " }
                @else { (rows.len()) " rows cannot be read and are left out, the first: " }
                (clean_text(&first.to_string()))
            }
            (command("farrier db check"))
        }
    }
}

/// The properties of a list.
pub(super) struct List {
    pub title: &'static str,
    pub section: Section,
    pub address: &'static str,
    pub subject: FilterSubject,
    pub example: &'static str,
    /// The query parameter with the id at which a page begins.
    pub from: &'static str,
}

impl List {
    pub fn filter(&self, requested: &QueryParams) -> Result<Filter, Refusal> {
        Filter::parse(requested.get("filter").map_or("", String::as_str), self.subject)
    }

    pub fn filter_box(&self, text: &str) -> Markup {
        html! {
            form.filter role="search" action=(self.address) method="get" {
                label for="filter" { "Filter" }
                input #filter name="filter" type="text" value=(text) placeholder=(self.example)
                    autocomplete="off" autocapitalize="off" spellcheck="false";
                button type="submit" { "Show" }
                @if !text.is_empty() { a href=(self.address) { "clear" } }
            }
        }
    }

    pub fn next_page(&self, filter: &str, next: Option<&str>, first: bool) -> Markup {
        html! {
            nav.pages aria-label="Pages" {
                @if !first { a href=(self.with_filter(filter)) { "« first page" } }
                @if let Some(next) = next {
                    a rel="next" href={ (self.with_filter(filter)) (if filter.is_empty() { "?" } else { "&" })
                        (self.from) "=" (encode_query(next)) } { "next " (PAGE_SIZE) " »" }
                }
            }
        }
    }

    pub fn with_filter(&self, filter: &str) -> String {
        match filter {
            "" => self.address.to_string(),
            filter => format!("{}?filter={}", self.address, encode_query(filter)),
        }
    }

    /// The page of a list whose filter has an error.
    pub fn not_understood(&self, requested: &QueryParams, refusal: &Refusal) -> Response {
        let text = requested.get("filter").map_or("", String::as_str);
        let body = html! {
            h1 { (self.title) }
            (self.filter_box(text))
            section.why.red role="alert" aria-label="The filter" {
                (draw_message(&refusal.message))
                p { "For example: " code { (self.example) } }
            }
        };
        let title = format!("{}: filter not understood", self.title);
        Frame { title: &title, section: self.section, live: None, body }
            .answer(StatusCode::BAD_REQUEST)
    }
}
