//! The frame of every page: landmarks, navigation, and the stream that keeps the page current.

use super::assets::{css_address, js_address};
use super::text::encode_query;
use axum::http::StatusCode;
use axum::response::{Html, IntoResponse, Response};
use maud::{DOCTYPE, Markup, html};
use model::id::PowerShelfId;
use model::target::{TargetId, TargetKind};
use store::Cursor;

/// The entry of the navigation that a page belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Section {
    Fleet,
    Racks,
    Nodes,
    Operations,
    Faults,
    Nowhere,
}

const NAVIGATION: [(Section, &str, &str); 5] = [
    (Section::Fleet, "/", "Fleet"),
    (Section::Racks, "/racks", "Racks"),
    (Section::Nodes, "/nodes", "Nodes"),
    (Section::Operations, "/operations", "Operations"),
    (Section::Faults, "/faults", "Faults"),
];

/// The stream that keeps a page current.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PageStream {
    /// The URL of the stream, with the cursor at which this page was rendered.
    pub stream: String,
    /// When a fetched page has another mode, the script switches to that page's stream.
    pub mode: &'static str,
}

impl PageStream {
    /// Reports every change of a run that matches the filter; empty: of any run.
    pub fn changes(filter: &str, drawn_at: Cursor) -> Self {
        let stream = match filter {
            "" => format!("/stream?after={drawn_at}"),
            filter => format!("/stream?after={drawn_at}&filter={}", encode_query(filter)),
        };
        Self { stream, mode: "changes" }
    }
}

pub(super) struct Frame<'a> {
    pub title: &'a str,
    pub section: Section,
    pub live: Option<PageStream>,
    pub body: Markup,
}

impl Frame<'_> {
    pub fn answer(self, status: StatusCode) -> Response {
        (status, Html(self.draw().into_string())).into_response()
    }

    fn draw(self) -> Markup {
        let live = self.live.as_ref();
        html! {
            (DOCTYPE)
            html lang="en" {
                head {
                    meta charset="utf-8";
                    meta name="viewport" content="width=device-width, initial-scale=1";
                    meta name="color-scheme" content="light dark";
                    title { (self.title) " · Farrier" }
                    link rel="icon" href="/favicon.svg" type="image/svg+xml";
                    link rel="stylesheet" href=(css_address());
                    script src=(js_address()) defer {}
                    @if live.is_some() {
                        // Without a script the browser reloads the page every 10 s.
                        noscript { meta http-equiv="refresh" content="10"; }
                    }
                }
                body {
                    a.skip href="#main" { "Skip to content" }
                    header.top {
                        a.brand href="/" { "Farrier" }
                        (self.navigation())
                        p #live role="status" {}
                        form.signout method="post" action="/sign-out" {
                            button type="submit" { "Sign out" }
                        }
                    }
                    main #main tabindex="-1" data-stream=[live.map(|live| live.stream.as_str())]
                        data-mode=[live.map(|live| live.mode)] {
                        (self.body)
                    }
                    footer.foot {
                        "Farrier " (env!("CARGO_PKG_VERSION"))
                        " · This console only reads; the commands shown are for your terminal. · All times are UTC."
                    }
                }
            }
        }
    }

    fn navigation(&self) -> Markup {
        html! {
            nav aria-label="Console" {
                @for (section, address, name) in NAVIGATION {
                    a href=(address) aria-current=[(section == self.section).then_some("page")] { (name) }
                }
            }
        }
    }
}

/// A command to type. The script makes its button copy it.
pub(super) fn command(typed: &str) -> Markup {
    html! {
        span.cmd {
            code { (typed) }
            button type="button" aria-label={ "Copy " (typed) } { "copy" }
        }
    }
}

/// A list of names and values; names without a value are left out.
pub(super) fn facts(facts: &[(&str, Option<Markup>)]) -> Markup {
    html! {
        dl.facts {
            @for (name, value) in facts {
                @if let Some(value) = value {
                    div { dt { (name) } dd { (value) } }
                }
            }
        }
    }
}

pub(super) fn machine_link(id: impl std::fmt::Display) -> Markup {
    html! { a.id href={ "/machines/" (id) } { (id) } }
}

pub(super) fn node_link(id: impl std::fmt::Display) -> Markup {
    html! { a.id href={ "/nodes/" (id) } { (id) } }
}

/// A link to the target of a run.
pub(super) fn target_link(target: &TargetId) -> Markup {
    let page = match target.kind {
        TargetKind::Machine => "machines",
        TargetKind::Switch => "switches",
        TargetKind::PowerShelf => "power-shelves",
        TargetKind::Rack => "racks",
    };
    html! { a.id href={ "/" (page) "/" (target) } { (target) } }
}

pub(super) fn shelf_links(shelves: &[PowerShelfId]) -> Markup {
    html! { @for id in shelves { (target_link(&TargetId::from(id))) " " } }
}

pub(super) fn run_link(id: impl std::fmt::Display) -> Markup {
    html! { a.id href={ "/operations/" (id) } { (id) } }
}

pub(super) fn fault_link(code: model::fault::FaultCode) -> Markup {
    html! { a href={ "/faults/" (code.as_str()) } { (code.as_str()) } }
}
