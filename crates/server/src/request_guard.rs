//! Refuses requests that a foreign web page may have caused. A browser on an operator's computer
//! reaches loopback and private networks too, so the address of a listener is no boundary.
//!
//! Four checks, on every listener, before a request is routed:
//!
//! - The host is an IP address, `localhost`, or a name of this server. A page whose own name was
//!   pointed at this address (DNS rebinding) sends another one.
//! - `Origin` and `Sec-Fetch-Site` name no other site. A link to a page of the console is allowed.
//! - A request that is not a plain read has the content type of the API. A page cannot send that
//!   type to another site without permission, and none is given. The forms of the console are an
//!   exception: the browser must say that they come from this server.
//! - The body is not compressed: nothing here would unpack it.

use crate::auth;
use axum::Router;
use axum::extract::Request;
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderName, Method, StatusCode, Uri, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const SEC_FETCH_MODE: HeaderName = HeaderName::from_static("sec-fetch-mode");
const SEC_FETCH_DEST: HeaderName = HeaderName::from_static("sec-fetch-dest");
const GRPC: &str = "application/grpc";
const FORM: &str = "application/x-www-form-urlencoded";
/// The paths that take the forms of the console.
const FORM_PATHS: [&str; 2] = [auth::SIGN_IN, auth::SIGN_OUT];

/// The protocol of the requests of a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ListenerApi {
    /// gRPC, and pages that are only read.
    Grpc,
    Json,
}

impl ListenerApi {
    const fn content_type(self) -> &'static str {
        match self {
            Self::Grpc => GRPC,
            Self::Json => "application/json",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum GuardRefusal {
    UnknownHost,
    CrossSite,
    ContentType,
    Compressed,
}

#[derive(Debug)]
struct RequestGuard {
    api: ListenerApi,
    /// The names of this server, in lower case.
    names: BTreeSet<String>,
}

/// Puts the guard in front of every route.
pub(crate) fn guarded(router: Router, api: ListenerApi, names: &[String]) -> Router {
    let names = names.iter().map(|name| name.to_ascii_lowercase()).collect();
    let guard = Arc::new(RequestGuard { api, names });
    router.layer(middleware::from_fn(move |request: Request, next: Next| {
        let guard = Arc::clone(&guard);
        async move {
            let (method, uri, headers) = (request.method(), request.uri(), request.headers());
            match guard.check(method, uri, headers) {
                Ok(()) => next.run(request).await,
                Err(refusal) => {
                    // The query of a sign-in link is a secret.
                    let path = uri.path();
                    tracing::debug!(%method, path, ?refusal, "request refused by the guard");
                    guard.answer(refusal, uri, headers)
                }
            }
        }
    }))
}

impl RequestGuard {
    fn check(&self, method: &Method, uri: &Uri, headers: &HeaderMap) -> Result<(), GuardRefusal> {
        let authority = authority(uri, headers);
        // Only a browser's request can be forged, and a browser always names the host.
        if let Some(authority) = &authority
            && !self.is_own(authority)
        {
            return Err(GuardRefusal::UnknownHost);
        }
        if is_cross_site(authority.as_deref(), headers) && !is_link(method, headers) {
            return Err(GuardRefusal::CrossSite);
        }
        if text(headers, &header::CONTENT_ENCODING).is_some_and(|coding| coding != "identity") {
            return Err(GuardRefusal::Compressed);
        }
        let reads = matches!(*method, Method::GET | Method::HEAD);
        let typed = text(headers, &header::CONTENT_TYPE)
            .is_some_and(|found| has_type(found, self.api.content_type()));
        if reads || typed || self.is_own_form(uri, headers) {
            return Ok(());
        }
        Err(GuardRefusal::ContentType)
    }

    /// True if a page of this server has sent a form. It is known not to be cross-site.
    fn is_own_form(&self, uri: &Uri, headers: &HeaderMap) -> bool {
        let form = text(headers, &header::CONTENT_TYPE).is_some_and(|found| has_type(found, FORM));
        let proven = headers.contains_key(header::ORIGIN) || headers.contains_key(&SEC_FETCH_SITE);
        self.api == ListenerApi::Grpc && FORM_PATHS.contains(&uri.path()) && form && proven
    }

    fn is_own(&self, authority: &str) -> bool {
        let Ok(authority) = authority.parse::<Authority>() else { return false };
        let after_host = authority.as_str().split(authority.host()).last().unwrap_or_default();
        if !after_host.is_empty() && authority.port_u16().is_none() {
            return false;
        }
        let host = authority.host().to_ascii_lowercase();
        let host = host.strip_suffix('.').unwrap_or(&host);
        let address = host.trim_start_matches('[').trim_end_matches(']');
        address.parse::<IpAddr>().is_ok() || host == "localhost" || self.names.contains(host)
    }

    fn answer(&self, refusal: GuardRefusal, uri: &Uri, headers: &HeaderMap) -> Response {
        let (status, message) = match refusal {
            GuardRefusal::UnknownHost => {
                let host = authority(uri, headers).unwrap_or_default();
                let message = format!(
                    "{host:?} is no name of this server; use its IP address, or add the name to \
                     allowed_hosts in its configuration"
                );
                (StatusCode::MISDIRECTED_REQUEST, message)
            }
            GuardRefusal::CrossSite => {
                (StatusCode::FORBIDDEN, "requests from pages of other sites are refused".into())
            }
            GuardRefusal::ContentType => {
                let message = format!("send the content type {}", self.api.content_type());
                (StatusCode::UNSUPPORTED_MEDIA_TYPE, message)
            }
            GuardRefusal::Compressed => {
                (StatusCode::UNSUPPORTED_MEDIA_TYPE, "send the body without compression".into())
            }
        };
        let grpc = text(headers, &header::CONTENT_TYPE).is_some_and(|found| has_type(found, GRPC));
        match grpc {
            // A gRPC client shows the message only of a gRPC status.
            true => tonic::Status::permission_denied(message).into_http::<axum::body::Body>(),
            false => (status, message + "\n").into_response(),
        }
    }
}

/// HTTP/2 has the host in the URI, HTTP/1.1 in a header.
fn authority(uri: &Uri, headers: &HeaderMap) -> Option<String> {
    let named = uri.authority().map(Authority::as_str);
    let named =
        named.or_else(|| headers.get(header::HOST).map(|host| host.to_str().unwrap_or("?")));
    named.map(str::to_ascii_lowercase)
}

fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

/// `application/grpc` has subtypes after a plus sign, and any type may have parameters.
fn has_type(found: &str, wanted: &str) -> bool {
    let found = found.split(['+', ';']).next().unwrap_or_default();
    found.trim().eq_ignore_ascii_case(wanted)
}

fn is_cross_site(authority: Option<&str>, headers: &HeaderMap) -> bool {
    let origin = headers.get(header::ORIGIN).map(|origin| {
        let uri = origin.to_str().ok().and_then(|origin| origin.parse::<Uri>().ok());
        uri.and_then(|uri| uri.authority().map(|one| one.as_str().to_ascii_lowercase()))
    });
    let foreign_origin = origin.is_some_and(|origin| origin.as_deref() != authority);
    let site = headers.get(&SEC_FETCH_SITE).map(|site| site.as_bytes());
    foreign_origin || site.is_some_and(|site| site != b"same-origin" && site != b"none")
}

/// True if a person follows a link to a page. A frame or a script is none.
fn is_link(method: &Method, headers: &HeaderMap) -> bool {
    method == Method::GET
        && !headers.contains_key(header::ORIGIN)
        && text(headers, &SEC_FETCH_MODE) == Some("navigate")
        && text(headers, &SEC_FETCH_DEST) == Some("document")
}

#[cfg(test)]
mod tests {
    use super::GuardRefusal::{Compressed, ContentType, CrossSite, UnknownHost};
    use super::*;

    fn check(request: &[&str]) -> Result<(), GuardRefusal> {
        let guard = RequestGuard {
            api: ListenerApi::Grpc,
            names: BTreeSet::from(["farrier.example".to_string()]),
        };
        let (method, uri) = request[0].split_once(' ').unwrap();
        let mut headers = HeaderMap::new();
        for line in &request[1..] {
            let (name, value) = line.split_once(": ").unwrap();
            headers.insert(name.parse::<HeaderName>().unwrap(), value.parse().unwrap());
        }
        guard.check(&method.parse().unwrap(), &uri.parse().unwrap(), &headers)
    }

    const CALL: &str = "POST /farrier.v1.MachineService/ReimageMachine";
    const GRPC_TYPE: &str = "content-type: application/grpc";
    const HERE: &str = "host: 127.0.0.1:7411";

    #[test]
    fn the_host_is_an_address_or_a_known_name() {
        for (host, expected) in [
            ("127.0.0.1:7411", Ok(())),
            ("10.0.0.7", Ok(())),
            ("[::1]:7411", Ok(())),
            ("localhost:7411", Ok(())),
            ("LOCALHOST", Ok(())),
            ("localhost.", Ok(())),
            ("Farrier.Example:7411", Ok(())),
            ("evil.example", Err(UnknownHost)),
            ("127.0.0.1.evil.example", Err(UnknownHost)),
            ("localhost.evil.example:7411", Err(UnknownHost)),
            ("127.0.0.1:7411.evil.example", Err(UnknownHost)),
            ("127.0.0.1@evil.example", Err(UnknownHost)),
            ("", Err(UnknownHost)),
            ("a b", Err(UnknownHost)),
        ] {
            let header = format!("host: {host}");
            assert_eq!(check(&["GET /", &header]), expected, "{host:?}");
            assert_eq!(check(&[CALL, &header, GRPC_TYPE]), expected, "{host:?}");
        }
        // HTTP/2, where the URI wins over a header.
        assert_eq!(check(&["GET http://evil.example/", HERE]), Err(UnknownHost));
        assert_eq!(check(&["GET http://127.0.0.1:7411/"]), Ok(()));
        assert_eq!(check(&["GET /healthz"]), Ok(()), "HTTP/1.0 of a load balancer");
    }

    #[test]
    fn other_sites_are_refused_but_for_links() {
        let link = ["sec-fetch-mode: navigate", "sec-fetch-dest: document"];
        for (lines, expected) in [
            (vec!["sec-fetch-site: same-origin"], Ok(())),
            (vec!["sec-fetch-site: none", link[0], link[1]], Ok(())),
            (vec!["sec-fetch-site: cross-site"], Err(CrossSite)),
            (vec!["sec-fetch-site: same-site"], Err(CrossSite)),
            (vec!["sec-fetch-site: new-word"], Err(CrossSite)),
            (vec!["sec-fetch-site: cross-site", link[0], link[1]], Ok(())),
            (vec!["sec-fetch-site: cross-site", link[0], "sec-fetch-dest: iframe"], Err(CrossSite)),
            (vec!["origin: http://127.0.0.1:7411"], Ok(())),
            (vec!["origin: http://127.0.0.1:8080"], Err(CrossSite)),
            (vec!["origin: https://evil.example"], Err(CrossSite)),
            (vec!["origin: null"], Err(CrossSite)),
            (vec!["origin: https://evil.example", link[0], link[1]], Err(CrossSite)),
        ] {
            let page: Vec<&str> = ["GET /", HERE].into_iter().chain(lines.clone()).collect();
            assert_eq!(check(&page), expected, "{lines:?}");
            let call = [CALL, HERE, GRPC_TYPE].into_iter().chain(lines.clone());
            let call: Vec<&str> = call.collect();
            let linked = lines.contains(&link[1]) && lines[0] == "sec-fetch-site: cross-site";
            let expected = if linked { Err(CrossSite) } else { expected };
            assert_eq!(check(&call), expected, "{lines:?}");
        }
    }

    #[test]
    fn a_form_is_accepted_from_a_page_of_this_server_only() {
        let form = "content-type: application/x-www-form-urlencoded";
        let own = "origin: http://127.0.0.1:7411";
        for (lines, expected) in [
            (["POST /sign-in", HERE, form, own], Ok(())),
            (["POST /sign-out", HERE, form, "sec-fetch-site: same-origin"], Ok(())),
            (["POST /sign-in", HERE, form, "accept: */*"], Err(ContentType)),
            (["POST /sign-in", HERE, form, "origin: https://evil.example"], Err(CrossSite)),
            (["POST /machines", HERE, form, own], Err(ContentType)),
            ([CALL, HERE, form, own], Err(ContentType)),
            (["POST /sign-in", HERE, "content-type: text/plain", own], Err(ContentType)),
        ] {
            assert_eq!(check(&lines), expected, "{lines:?}");
        }
    }

    #[test]
    fn a_compressed_body_is_refused() {
        for (coding, expected) in
            [("identity", Ok(())), ("gzip", Err(Compressed)), ("identity, br", Err(Compressed))]
        {
            let header = format!("content-encoding: {coding}");
            assert_eq!(check(&[CALL, HERE, GRPC_TYPE, &header]), expected, "{coding}");
        }
    }

    #[test]
    fn a_call_has_the_content_type_of_the_api() {
        for (content_type, expected) in [
            ("application/grpc", Ok(())),
            ("application/grpc+proto", Ok(())),
            ("Application/GRPC; a=b", Ok(())),
            ("text/plain", Err(ContentType)),
            ("text/plain; application/grpc", Err(ContentType)),
            ("application/x-www-form-urlencoded", Err(ContentType)),
            ("application/grpcx", Err(ContentType)),
            ("application/json", Err(ContentType)),
        ] {
            let header = format!("content-type: {content_type}");
            assert_eq!(check(&[CALL, HERE, &header]), expected, "{content_type}");
        }
        assert_eq!(check(&[CALL, HERE]), Err(ContentType));
        assert_eq!(check(&["OPTIONS /x", HERE]), Err(ContentType));
        assert_eq!(check(&["DELETE /x", HERE]), Err(ContentType));
        assert_eq!(check(&["HEAD /healthz", HERE]), Ok(()));
    }
}
