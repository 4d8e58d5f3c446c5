//! The page that a browser without a session gets.

use super::assets::css_address;
use axum::response::Html;
use maud::{DOCTYPE, html};

/// `next` is the path to open afterwards, `problem` why the last try failed.
pub(crate) fn sign_in_page(next: &str, problem: &str) -> Html<String> {
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
                    p { "In a terminal, " code { "farrier console" } " prints a link that signs you in." }
                    form.signin method="post" action="/sign-in" {
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
