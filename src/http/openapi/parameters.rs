//! The parameters of operations, which are components of `base.json`.
//!
//! Their patterns are those of ECMA-262, which JSON Schema uses, for the rules that `LockName`,
//! `Token` and `IdempotencyKey` check. A schema counts characters where `LockName` counts bytes.
//! The component of an operation whose parameter has words of its own is called
//! `operation.parameter`. Tested in `tests/api/openapi_rules.rs`.

use serde_json::Value;
use utoipa::openapi::path::{Operation, Parameter};
use utoipa::openapi::{Ref, RefOr, Schema};

use super::BASE;
use super::members::{STATES, codes};
use keylatch_core::idempotency::PhaseName;

const COMPONENT: &str = "#/components/parameters/";

/// Adds the parameter `name`, which is this component unless the operation has one of its own.
pub(in crate::http) fn add(operation: &mut Operation, name: &str, component: &str) {
    let own = format!("{}.{name}", operation.operation_id.as_deref().unwrap_or_default());
    let has_own = BASE["components"]["parameters"].get(&own).is_some();
    let location = COMPONENT.to_owned() + if has_own { &own } else { component };
    operation.parameters.get_or_insert_default().push(RefOr::Ref(Ref::new(location)));
}

/// The component that a parameter is, if it is one.
pub(super) fn component(parameter: &RefOr<Parameter>) -> Option<&str> {
    let RefOr::Ref(reference) = parameter else { return None };
    reference.ref_location.strip_prefix(COMPONENT)
}

/// The scope of a key, where the document has it.
pub(super) fn of_scope(handler: &str) -> &'static [(&'static str, &'static str)] {
    match handler {
        "begin_idempotency"
        | "get_idempotency"
        | "resolve_idempotency"
        | "erase_idempotency_answer" => &[
            ("method", "Method"),
            ("path", "Path"),
            ("principal", "Principal"),
            ("source", "Source"),
        ],
        _ => &[],
    }
}

/// Adds the words that a parameter may have.
pub(super) fn describe<'a>(parameters: impl IntoIterator<Item = &'a mut RefOr<Parameter>>) {
    for parameter in parameters {
        let RefOr::T(parameter) = parameter else { continue };
        let words = match parameter.name.as_str() {
            "state" => STATES.map(PhaseName::as_str).to_vec(),
            "code" => codes(),
            _ => continue,
        };
        if let Some(RefOr::T(Schema::Object(schema))) = &mut parameter.schema {
            schema.enum_values = Some(words.into_iter().map(Value::from).collect());
        }
    }
}
