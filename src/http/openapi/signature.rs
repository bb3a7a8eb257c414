//! What the signature of a handler says of its operation: the parameters and the body that it
//! takes, and the problems with which these are refused.
//!
//! [`routes!`] asks each type of a handler's signature, so an extractor that a handler takes cannot
//! be missing from the document. What the handler's `utoipa::path` says itself stays as it is
//! there. `tests/api/openapi.rs` holds the service to it.

use std::sync::Arc;

use axum::extract::{Path, State};
use utoipa::ToSchema;
use utoipa::openapi::path::Operation;
use utoipa::openapi::request_body::RequestBody;
use utoipa::openapi::{ContentBuilder, Ref, RefOr, Required, Schema};
use utoipa_axum::router::UtoipaMethodRouter;

use super::problems::{self, BODY, CHANGE};
use super::{example, parameters};
use crate::http::api::Api;
use crate::http::api::{record_list::RecordQuery, records::RecordKeyPath};
use crate::http::audit::Auditor;
use crate::http::caller::Caller;
use crate::http::extract::{
    LeftEntry, ListQuery, Name, NamedSet, NoQuery, OptionalJson, OptionalToken, PreferredWait,
    RequiredToken, ResultJson, WatchLimit, WatchedName,
};
use crate::http::parts::ServedParts;
use crate::http::problem::Code::{self, *};
use crate::http::revocation::Revocation;

/// `routes!` of utoipa-axum, where the signatures of the handlers have their say.
macro_rules! routes {
    ($($($part:ident)::+),+) => {{
        let mut routes = utoipa_axum::routes!($($($part)::+),+);
        $($crate::http::openapi::describe(&mut routes, stringify!($($part)::+), $($part)::+);)+
        routes
    }};
}
pub(in crate::http) use routes;

/// An operation of a handler, as far as the types of its signature have said.
pub(crate) struct Draft<'a> {
    path: &'a str,
    operation: &'a mut Operation,
    problems: Vec<Code>,
    schemas: &'a mut Vec<(String, RefOr<Schema>)>,
}

impl Draft<'_> {
    /// Takes a JSON object, which may be absent where each of its members may.
    fn takes_body<T: ToSchema>(&mut self) {
        self.schemas.push((T::name().into_owned(), T::schema()));
        T::schemas(self.schemas);
        let RefOr::T(Schema::Object(schema)) = T::schema() else { return };
        let is_optional = schema.required.is_empty();
        let body = self.operation.request_body.get_or_insert_with(|| {
            let content = ContentBuilder::new().schema(Some(Ref::from_schema_name(T::name())));
            let what = is_optional.then_some("Every member has a default");
            let body = RequestBody::builder().description(what);
            RefOr::T(body.content("application/json", content.build()).build())
        });
        let RefOr::T(body) = body else { return };
        body.required = Some(if is_optional { Required::False } else { Required::True });
        for content in body.content.values_mut() {
            if let RefOr::T(content) = content {
                let own =
                    example("requests", self.operation.operation_id.as_deref().unwrap_or_default());
                content.example = own.or_else(|| example("schemas", &T::name()));
            }
        }
    }
}

/// What is taken from a request.
pub(crate) trait Part {
    fn describe(draft: &mut Draft<'_>);
}

/// A handler that takes these parts.
pub(crate) trait Signature<Extractors> {
    fn describe(draft: &mut Draft<'_>);
}

macro_rules! signatures {
    ($($($part:ident)+;)+) => {$(
        impl<H: Fn($($part),+) -> R, R, $($part: Part),+> Signature<($($part,)+)> for H {
            fn describe(draft: &mut Draft<'_>) {
                $($part::describe(draft);)+
            }
        }
    )+};
}
signatures! { A; A B; A B C; A B C D; A B C D E; A B C D E F; A B C D E F G; }

/// Has the signature of a handler complete its operation among the routes of its path.
pub(crate) fn describe<Extractors, H: Signature<Extractors>>(
    (schemas, paths, _): &mut UtoipaMethodRouter<Arc<Api>>,
    handler: &str,
    _: H,
) {
    let name = handler.rsplit("::").next().unwrap_or_default().trim();
    for (path, item) in &mut paths.paths {
        let changes = [&mut item.put, &mut item.post, &mut item.delete].map(|one| (one, CHANGE));
        let all = changes.into_iter().chain([(&mut item.get, &[][..])]);
        let all = all.filter_map(|(one, problems)| Some((one.as_mut()?, problems)));
        for (operation, problems) in all {
            if operation.operation_id.as_deref() == Some(name) {
                let (verb, words) = name.split_once('_').unwrap_or((name, ""));
                operation.operation_id = Some(operation_id(verb, words));
                let problems = [problems, problems::own(name)].concat();
                let mut draft = Draft { path, operation, problems, schemas };
                H::describe(&mut draft);
                for (parameter, component) in parameters::of_scope(name) {
                    parameters::add(draft.operation, parameter, component);
                }
                problems::add(draft.operation, &draft.problems);
            }
        }
    }
}

/// A verb and the words of a path or a name, such as `postV1Orders`.
pub(in crate::http) fn operation_id(verb: &str, words: &str) -> String {
    let words = words.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    words.fold(verb.to_owned(), |id, word| {
        let (first, rest) = word.split_at(1);
        id + &first.to_ascii_uppercase() + rest
    })
}

/// What leads to something in the store: the query is checked, and the identity may have to be.
const TARGET: &[Code] = &[InvalidQuery, Forbidden, StoreUnavailable];

macro_rules! parts {
    ($($part:ty: $problems:expr $(, $name:literal = $component:literal)*;)+) => {$(
        impl Part for $part {
            fn describe(draft: &mut Draft<'_>) {
                draft.problems.extend_from_slice(&$problems);
                $(parameters::add(draft.operation, $name, $component);)*
            }
        }
    )+};
}

parts! {
    State<Arc<Api>>: [];
    Auditor: [];
    Revocation: [];
    Path<String>: [];
    ServedParts: [];
    LeftEntry: [], "entry" = "Entry";
    WatchLimit: [], "limit" = "Events";
    Caller: [Unauthenticated, QuotaExceeded];
    NoQuery: TARGET;
    ListQuery: TARGET, "prefix" = "LockPrefix", "limit" = "Limit", "cursor" = "Cursor";
    NamedSet: TARGET, "name" = "Names";
    RecordQuery: [InvalidQuery, NotSupported, StoreUnavailable], "state" = "State", "path" = "RecordPath",
        "prefix" = "PathPrefix", "key_prefix" = "KeyPrefix", "limit" = "Limit", "cursor" = "Cursor";
    Name: [TARGET, &[InvalidName]].concat(), "name" = "Lock";
    WatchedName: [TARGET, &[InvalidName]].concat(), "name" = "Lock";
    RecordKeyPath: [TARGET, &[InvalidKey, NotSupported]].concat(), "key" = "Key";
    OptionalToken: [InvalidToken], "Lock-Token" = "OwnToken";
    PreferredWait: [], "Prefer" = "Prefer";
}

impl Part for RequiredToken {
    fn describe(draft: &mut Draft<'_>) {
        draft.problems.extend([InvalidToken, TokenRequired]);
        let component = match draft.path {
            path if path.contains("{key}") => "RunToken",
            path if path.contains("{name}") => "LeaseToken",
            _ => "LeaseSetToken",
        };
        parameters::add(draft.operation, "Lock-Token", component);
    }
}

impl<T: ToSchema> Part for OptionalJson<T> {
    fn describe(draft: &mut Draft<'_>) {
        draft.problems.extend_from_slice(BODY);
        draft.takes_body::<T>();
    }
}

impl<T: ToSchema> Part for ResultJson<T> {
    fn describe(draft: &mut Draft<'_>) {
        OptionalJson::<T>::describe(draft);
    }
}
