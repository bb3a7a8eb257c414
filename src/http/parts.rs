//! The parts of the service, of which a listener serves some or all.
//!
//! A path of a part that a listener does not serve is 404 there, as one that does not exist is.
//! `/livez`, `/readyz` and the pages of the problems are of no part, and served everywhere; `/` is
//! the console's and leads to the docs. Tested in `tests/api/listeners.rs`.

use serde::Deserialize;

/// A part of the service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Part {
    /// `/v1/…`: locks and idempotency keys.
    Api = 1,
    /// The guarded routes, the shop, and the module that pages load for them.
    Guards = 2,
    /// The Swagger UI and the OpenAPI document.
    Docs = 4,
    /// `/metrics`.
    Metrics = 8,
    /// The console, at `/` and below `/console`.
    Console = 16,
}

/// Some parts of the service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(from = "Vec<Part>")]
pub struct ServedParts(u8);

impl ServedParts {
    /// Every part.
    pub const ALL: Self = Self(u8::MAX);

    /// Whether `part` is among them.
    pub fn have(self, part: Part) -> bool {
        self.0 & part as u8 != 0
    }

    /// Whether they are the guards and nothing else, so that other paths may be those of an app.
    pub(super) fn are_guards_alone(self) -> bool {
        self.0 == Part::Guards as u8
    }

    /// What of these is served with identities where pages of guarded services are: such a page has
    /// the origin of the console, and a browser that knows an operator's key for the one sends it
    /// for the other.
    pub(crate) fn beside_guarded_pages(self) -> Self {
        let own_pages = Part::Console as u8 | Part::Docs as u8;
        if self.have(Part::Guards) { Self(self.0 & !own_pages) } else { self }
    }

    /// Whether they have the route with this pattern, which is none of a guard.
    pub(super) fn have_route(self, route: &str) -> bool {
        match route {
            "/" => self.have(Part::Console) || self.have(Part::Docs),
            _ => part_of(route).is_none_or(|part| self.have(part)),
        }
    }
}

impl Default for ServedParts {
    fn default() -> Self {
        Self::ALL
    }
}

impl From<Vec<Part>> for ServedParts {
    fn from(parts: Vec<Part>) -> Self {
        Self(parts.into_iter().fold(0, |all, part| all | part as u8))
    }
}

/// The part that has a route; none where every listener serves it. A new route is one of the API,
/// unless it stands here.
fn part_of(route: &str) -> Option<Part> {
    match route {
        "/livez" | "/readyz" | "/problems" | "/problems/{code}" | "/assets/page.css" => None,
        "/metrics" => Some(Part::Metrics),
        "/docs" | "/openapi.json" => Some(Part::Docs),
        "/demo" => Some(Part::Guards),
        _ if route.starts_with("/docs/") => Some(Part::Docs),
        _ if route.starts_with("/console/") || route.starts_with("/assets/console/") => {
            Some(Part::Console)
        }
        _ if route.starts_with("/assets/") => Some(Part::Guards),
        _ => Some(Part::Api),
    }
}
