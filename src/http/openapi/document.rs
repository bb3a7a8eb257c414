//! The document as it is written: each path, and each operation of a path, stands where a reader
//! needs it.
//!
//! The document of utoipa has the operations of a path in an order of its own, from `get` on.
//! Swagger UI and generated references show the order in which they are written. Tested in
//! `tests/api/openapi_rules.rs`.

use std::io;

use serde::{Serialize, Serializer};
use utoipa::openapi::path::Operation;
use utoipa::openapi::{Components, Info, OpenApi, OpenApiVersion, PathItem, Server, tag::Tag};

/// The paths in the order of the story. The others follow as their routers declare them.
const PATH_ORDER: [&str; 12] = [
    "/v1/locks/{name}",
    "/v1/locks/{name}/hold",
    "/v1/locks/{name}/events",
    "/v1/locks/{name}/history",
    "/v1/locks/{name}/break",
    "/v1/locks/{name}/end-wait",
    "/v1/locks",
    "/v1/idempotency/{key}",
    "/v1/idempotency/{key}/renew",
    "/v1/idempotency/{key}/fail",
    "/v1/idempotency/{key}/resolve",
    "/v1/idempotency/{key}/answer",
];

/// The OpenAPI document of a service. It is written in the order of the story.
#[derive(Serialize)]
#[expect(missing_debug_implementations, reason = "the types of utoipa have none")]
pub struct Document {
    openapi: OpenApiVersion,
    info: Info,
    servers: Option<Vec<Server>>,
    paths: InOrder<InOrder<Operation>>,
    components: Option<Components>,
    tags: Option<Vec<Tag>>,
}

impl Document {
    /// The document as text for people to read.
    pub fn to_pretty_json(&self) -> io::Result<String> {
        Ok(serde_json::to_string_pretty(self)?)
    }
}

impl From<OpenApi> for Document {
    fn from(document: OpenApi) -> Self {
        let OpenApi { openapi, info, servers, paths, components, tags, .. } = document;
        let mut paths: Vec<_> = paths.paths.into_iter().collect();
        let place = |path: &str| PATH_ORDER.iter().position(|one| *one == path);
        paths.sort_by_key(|(path, _)| place(path).unwrap_or(PATH_ORDER.len()));
        let paths = paths.into_iter().map(|(path, item)| (path, in_order(item)));
        Self { openapi, info, servers, paths: InOrder(paths.collect()), components, tags }
    }
}

/// The operations of a path: create, renew and release it, and then look.
fn in_order(path: PathItem) -> InOrder<Operation> {
    let PathItem { get, put, post, patch, delete, .. } = path;
    let all = [("post", post), ("put", put), ("patch", patch), ("delete", delete), ("get", get)];
    InOrder(all.into_iter().filter_map(|(method, one)| Some((method.to_owned(), one?))).collect())
}

/// A map that is written in the order of its entries.
struct InOrder<T>(Vec<(String, T)>);

impl<T: Serialize> Serialize for InOrder<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(key, value)| (key, value)))
    }
}
