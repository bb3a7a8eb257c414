//! The document as it is written: each path, and each operation of a path, stands where a reader needs it.
//!
//! The document of utoipa has the operations of a path in an order of its own, from `get` on. Swagger UI and generated
//! references show the order in which they are written. Tested in `tests/api/openapi_rules.rs`.

use std::io;

use serde::{Serialize, Serializer};
use utoipa::openapi::path::Operation;
use utoipa::openapi::{
    Components, Info, OpenApi, OpenApiVersion, PathItem, Server, path::Paths, tag::Tag,
};

/// The paths in the order of the story. The others follow as their routers declare them.
const STORY: [&str; 10] = [
    "/v1/locks/{name}",
    "/v1/locks/{name}/hold",
    "/v1/locks/{name}/events",
    "/v1/locks/{name}/history",
    "/v1/locks/{name}/break",
    "/v1/locks",
    "/v1/idempotency/{key}",
    "/v1/idempotency/{key}/renew",
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
    #[serde(serialize_with = "as_map")]
    paths: Vec<(String, Operations)>,
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
        Self { openapi, info, servers, paths: in_order(paths), components, tags }
    }
}

/// The operations of a path: create, renew and release it, and then look.
#[derive(Serialize)]
struct Operations {
    #[serde(skip_serializing_if = "Option::is_none")]
    post: Option<Operation>,
    #[serde(skip_serializing_if = "Option::is_none")]
    put: Option<Operation>,
    #[serde(skip_serializing_if = "Option::is_none")]
    patch: Option<Operation>,
    #[serde(skip_serializing_if = "Option::is_none")]
    delete: Option<Operation>,
    #[serde(skip_serializing_if = "Option::is_none")]
    get: Option<Operation>,
}

impl From<PathItem> for Operations {
    fn from(path: PathItem) -> Self {
        let PathItem { get, put, post, patch, delete, .. } = path;
        Self { post, put, patch, delete, get }
    }
}

fn in_order(paths: Paths) -> Vec<(String, Operations)> {
    let paths = paths.paths.into_iter().map(|(path, operations)| (path, operations.into()));
    let mut paths: Vec<_> = paths.collect();
    paths.sort_by_key(|(path, _)| STORY.iter().position(|one| one == path).unwrap_or(STORY.len()));
    paths
}

fn as_map<S: Serializer>(paths: &[(String, Operations)], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(paths.iter().map(|(path, operations)| (path, operations)))
}
