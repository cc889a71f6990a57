//! CORS: what a browser must be told before a page of another origin may call a route and read its answers. It stands
//! around everything else, so that replays and refusals carry the headers of the present request, and a preflight is
//! answered before anybody asks who calls.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::Arc;

use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{Method, Request};
use onced::core::key::Scope;
use onced::http::respond;
use tower::{Layer, ServiceExt, service_fn};
use tower_http::cors::{AllowMethods, AllowOrigin, CorsLayer};

use super::{Gateway, Incoming, Outgoing, host};
use crate::config::{Config, KeySource, Match, Origins, PartSource, Route, Tool};

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
const PREFER: HeaderName = HeaderName::from_static("prefer");

/// What the routes that have CORS say, by the routes' names.
pub(super) struct Cors(HashMap<Scope, Rules>);

#[derive(Clone)]
struct Rules {
    layer: CorsLayer,
    /// Whether the answer differs by origin.
    varies: bool,
}

impl Cors {
    pub(super) fn new<'r>(routes: impl Iterator<Item = &'r Route>) -> Self {
        Self(routes.filter_map(|route| Some((route.name.clone(), rules(route)?))).collect())
    }

    fn of(&self, config: &Config, method: &Method, path: &str) -> Option<&Rules> {
        match config.route_for(method, path) {
            Match::Route(route) | Match::Default(route) => self.0.get(&route.name),
            Match::None => None,
        }
    }
}

impl Gateway {
    /// Answers one request, as its route wants it told to browsers. A preflight belongs to the route of the method that
    /// it asks for; where that has no CORS it passes to the upstream like any other OPTIONS.
    pub(crate) async fn handle(self: &Arc<Self>, request: Incoming) -> Outgoing {
        if !host::is_said_once(&request) {
            return self.host_invalid();
        }
        let preflight = asked_for(&request);
        let method = preflight.as_ref().unwrap_or(request.method());
        let Some(rules) = self.cors.of(&self.config, method, request.uri().path()) else {
            return self.answer(request).await;
        };
        let head = head(preflight.is_some(), request.headers());
        let answer = if preflight.is_some() { Outgoing::default() } else { self.answer(request).await };
        rules.tell(head, answer).await
    }
}

/// The method that a preflight asks for; `None` where the request is none.
fn asked_for(request: &Incoming) -> Option<Method> {
    let asked = request.headers().get(header::ACCESS_CONTROL_REQUEST_METHOD)?;
    let is_preflight = request.method() == Method::OPTIONS && request.headers().contains_key(header::ORIGIN);
    is_preflight.then(|| Method::from_bytes(asked.as_bytes()).ok()).flatten()
}

/// What the layer looks at. It takes every OPTIONS for a preflight, so any other method stands for what is none.
fn head(is_preflight: bool, headers: &HeaderMap) -> Request<()> {
    let mut head = Request::new(());
    *head.method_mut() = if is_preflight { Method::OPTIONS } else { Method::GET };
    for name in [header::ORIGIN, header::ACCESS_CONTROL_REQUEST_METHOD] {
        if let Some(value) = headers.get(&name) {
            head.headers_mut().insert(name, value.clone());
        }
    }
    head
}

impl Rules {
    /// The answer with our word on CORS, and nobody else's.
    async fn tell(&self, head: Request<()>, mut answer: Outgoing) -> Outgoing {
        remove_all(answer.headers_mut());
        let mut answer = Some(answer);
        let inner = service_fn(move |_: Request<()>| {
            std::future::ready(Ok::<Outgoing, Infallible>(answer.take().unwrap_or_default()))
        });
        let Ok(mut answer) = self.layer.layer(inner).oneshot(head).await;
        let headers = answer.headers_mut();
        if !headers.contains_key(header::ACCESS_CONTROL_ALLOW_ORIGIN) {
            // Whoever may not call is not told what those may who do.
            remove_all(headers);
        }
        if self.varies && !varies_by_origin(headers) {
            headers.append(header::VARY, HeaderValue::from_name(header::ORIGIN));
        }
        answer
    }
}

fn remove_all(headers: &mut HeaderMap) {
    let names = headers.keys().filter(|name| name.as_str().starts_with("access-control-"));
    for name in names.cloned().collect::<Vec<_>>() {
        headers.remove(name);
    }
}

fn varies_by_origin(headers: &HeaderMap) -> bool {
    let lines = headers.get_all(header::VARY).iter();
    let mut names = lines.flat_map(|line| line.as_bytes().split(|&byte| byte == b',')).map(<[u8]>::trim_ascii);
    names.any(|name| name == b"*" || name.eq_ignore_ascii_case(b"origin"))
}

fn rules(route: &Route) -> Option<Rules> {
    let cors = route.cors.as_ref()?;
    let (origin, varies) = match &cors.origins {
        Origins::Any => (AllowOrigin::any(), false),
        Origins::Listed(origins) => (AllowOrigin::list(origins.iter().cloned()), true),
    };
    let methods = match &route.methods {
        Some(methods) => AllowMethods::list(methods.iter().cloned()),
        None => AllowMethods::mirror_request(),
    };
    let layer = CorsLayer::new()
        .allow_origin(origin)
        .allow_credentials(cors.credentials)
        .allow_methods(methods)
        .allow_headers(allowed(route, &cors.headers))
        .expose_headers(exposed(route))
        .max_age(cors.max_age)
        // Said by `tell`, once.
        .vary([]);
    Some(Rules { layer, varies })
}

/// The request headers that a page may send: the usual ones, those that the key is made from, and what the route adds.
fn allowed(route: &Route, also: &[HeaderName]) -> Vec<HeaderName> {
    let mut names = vec![header::CONTENT_TYPE, header::AUTHORIZATION, PREFER, IDEMPOTENCY_KEY];
    match &route.key.source {
        KeySource::Off | KeySource::Pointer(_) => {}
        KeySource::Header { name } => names.push(name.clone()),
        KeySource::Agent(parts) => {
            let tool = match &parts.tool {
                Tool::Fixed(_) => None,
                Tool::From(source) => Some(source),
            };
            names.extend(
                [Some(&parts.conversation), Some(&parts.step), tool].into_iter().flatten().filter_map(header_of),
            );
        }
    }
    with_others(names, also)
}

fn header_of(source: &PartSource) -> Option<HeaderName> {
    match source {
        PartSource::Header(name) => Some(name.clone()),
        PartSource::Pointer(_) => None,
    }
}

/// The headers of an answer that a page may read: ours, those that a created thing has, and what the route stores.
fn exposed(route: &Route) -> Vec<HeaderName> {
    let ours = [respond::REPLAYED, header::RETRY_AFTER, respond::KEY_EXPIRES, respond::BODY];
    with_others([&ours[..], &[header::LOCATION, header::ETAG]].concat(), &route.store_headers)
}

/// Each name once.
fn with_others(mut names: Vec<HeaderName>, also: &[HeaderName]) -> Vec<HeaderName> {
    names.extend_from_slice(also);
    let mut once = Vec::new();
    for name in names {
        if !once.contains(&name) {
            once.push(name);
        }
    }
    once
}
