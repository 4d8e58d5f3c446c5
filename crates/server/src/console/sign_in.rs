//! The page that a browser without a session gets.

use super::assets::css_address;
use axum::response::Html;
use maud::{DOCTYPE, html};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

/// The link to the sign-in with an identity provider.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ProviderLink<'a> {
    pub path: &'a str,
    /// The name of the provider.
    pub name: &'a str,
}

/// `next` is the path to open afterwards, `problem` why the last try failed.
pub(crate) fn sign_in_page(
    next: &str,
    problem: &str,
    provider: Option<ProviderLink<'_>>,
) -> Html<String> {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { "Sign in · Farrier" }
                link rel="icon" href="/favicon.svg" type="image/svg+xml";
                link rel="stylesheet" href=(css_address());
            }
            body {
                header.top { a.brand href="/" { "Farrier" } }
                main #main {
                    h1 { "Sign in" }
                    @if !problem.is_empty() {
                        section.why.red role="alert" aria-label="What happened" { p { (problem) } }
                    }
                    @if let Some(ProviderLink { path, name }) = provider {
                        // A form would not do: the policy of the page forbids forms that end at
                        // another site.
                        p { a.button href={ (path) "?next=" (encoded(next)) } { "Sign in with " (name) } }
                    }
                    p { "In a terminal, " code { "farrier console" } " prints a link that signs you in." }
                    form.filter method="post" action="/sign-in" {
                        label for="token" { "Or paste an API token:" }
                        input #token type="password" name="token" required autocomplete="off"
                            autofocus size="40";
                        input type="hidden" name="next" value=(next);
                        button type="submit" { "Sign in" }
                    }
                }
            }
        }
    };
    Html(page.into_string())
}

/// The page after a sign-in with the identity provider. It opens `next`, a path of this server, at
/// once.
pub(crate) fn signed_in_page(next: &str) -> Html<String> {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta http-equiv="refresh" content={ "0;url=" (next) };
                title { "Signed in · Farrier" }
                link rel="icon" href="/favicon.svg" type="image/svg+xml";
                link rel="stylesheet" href=(css_address());
            }
            body { main #main { p { "Signed in. " a href=(next) { "Continue" } } } }
        }
    };
    Html(page.into_string())
}

fn encoded(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}
