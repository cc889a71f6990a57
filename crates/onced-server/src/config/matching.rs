//! Which route a request belongs to.

use http::Method;

use super::path::normalise;
use super::{Config, Route};

/// Where a request belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Match<'a> {
    /// To this route.
    Route(&'a Route),
    /// To no route, but there is an upstream for all the rest.
    Default(&'a Route),
    /// Nowhere.
    None,
}

impl Config {
    /// The route of a request, by its method and its path without the query. Of several the most particular wins: an
    /// exact path, then the longest beginning, then the one that lists its methods, then the first in the file.
    pub(crate) fn route_for(&self, method: &Method, path: &str) -> Match<'_> {
        // `OPTIONS *` has no path, and belongs to no route.
        let normal = if path.starts_with('/') { normalise(path) } else { path.to_owned() };
        let candidates = self.routes.iter().filter(|route| route.takes(method) && route.path.matches(&normal));
        // `max_by_key` gives the last of equals, so the file is read backwards.
        match candidates.rev().max_by_key(|route| (route.path.rank(), route.methods.is_some())) {
            Some(route) => Match::Route(route),
            None => self.default_route.as_ref().map_or(Match::None, Match::Default),
        }
    }
}
