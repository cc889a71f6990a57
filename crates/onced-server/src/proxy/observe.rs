//! Routes that are only watched (`observe = true`): everything is decided and recorded, and nothing is withheld. What
//! would have been stopped goes on as it came, and is written down so.

use http::request::Parts;
use onced::http::respond::Problem;

use super::body::AnyBody;
use super::transport::Target;
use super::{Delivery, Outgoing, passing};
use crate::config::Route;

/// Passes on what the guard would have stopped.
pub(super) async fn pass_on(target: &Target, delivery: &Delivery) -> Outgoing {
    let mut parts = http::Request::new(()).into_parts().0;
    parts.method = delivery.method.clone();
    parts.uri = delivery.uri.clone();
    parts.version = delivery.version;
    parts.headers = delivery.headers.clone();
    passing::pass_watched_whole(target, &delivery.route, parts, delivery.body.clone()).await
}

/// Passes on what would have been refused before its record was looked for.
pub(super) async fn pass_refused(
    target: &Target,
    route: &Route,
    problem: &Problem,
    parts: Parts,
    body: AnyBody,
) -> Outgoing {
    let code = problem.code();
    tracing::info!(target: "onced::deliver", scope = %route.name, code, "observed: this would have been refused");
    passing::pass_watched(target, route, parts, body).await
}
