//! What the name of a parameter says of it, in every operation that has it.
//!
//! The patterns are those of ECMA-262, which JSON Schema uses, for the rules that `LockName`, `Token` and
//! `IdempotencyKey` check. A schema counts characters where `LockName` counts bytes.

use serde_json::Value;
use utoipa::openapi::path::{Parameter, ParameterIn};
use utoipa::openapi::schema::{ArrayItems, Object};
use utoipa::openapi::{Ref, RefOr, Schema};

use super::members::{LABEL, MAX_NAME, NAME, STATES, codes, remove_null};
use keylatch_core::idempotency::{IdempotencyKey, PhaseName};
use keylatch_core::lock::{EntryName, Token};

/// Visible ASCII and spaces, but not spaces alone.
const KEY: &str = r"^ *[!-~][ -~]*$";
/// The same in quotes, or bare without a character that means something in a header.
const KEY_OF_HEADER: &str = r#"^("( |\\["\\]|[!#-\[\]-~])*(\\["\\]|[!#-\[\]-~])( |\\["\\]|[!#-\[\]-~])*"|[!#-+\-.\/0-:<-~]{1,255})$"#;
const TOKEN: &str = "^[A-Za-z0-9_-]+$";

const COMPONENT: &str = "#/components/parameters/";

/// The parameter of `base.json` with this name.
pub(in crate::http) fn reference(component: &str) -> RefOr<Parameter> {
    RefOr::Ref(Ref::new(format!("{COMPONENT}{component}")))
}

/// The component that a parameter is, if it is one.
pub(super) fn component(parameter: &RefOr<Parameter>) -> Option<&str> {
    let RefOr::Ref(reference) = parameter else { return None };
    reference.ref_location.strip_prefix(COMPONENT)
}

/// The scope of a key, where an operator names it.
pub(super) fn of_scope(handler: &str) -> &'static [(&'static str, &'static str)] {
    match handler {
        "get_idempotency" | "resolve_idempotency" | "erase_idempotency_answer" => {
            &[("method", "Method"), ("path", "Path"), ("principal", "Principal")]
        }
        _ => &[],
    }
}

/// Completes parameters with what their names say.
pub(super) fn describe<'a>(parameters: impl IntoIterator<Item = &'a mut RefOr<Parameter>>) {
    for parameter in parameters {
        let RefOr::T(parameter) = parameter else { continue };
        let rule = rule(parameter);
        let Some(schema) = &mut parameter.schema else { continue };
        remove_null(schema);
        if let (Some(words), RefOr::T(Schema::Object(schema))) =
            (words(&parameter.name), &mut *schema)
        {
            schema.enum_values = Some(words.into_iter().map(Value::from).collect());
        }
        let Some((pattern, lengths)) = rule else { continue };
        match schema {
            RefOr::T(Schema::Object(schema)) => write(schema, pattern, lengths),
            RefOr::T(Schema::Array(all)) => {
                all.unique_items = true;
                if let ArrayItems::RefOrSchema(item) = &mut all.items
                    && let RefOr::T(Schema::Object(item)) = &mut **item
                {
                    write(item, pattern, lengths);
                }
            }
            _ => {}
        }
    }
}

/// The words that a parameter may have.
fn words(name: &str) -> Option<Vec<&'static str>> {
    match name {
        "state" => Some(STATES.map(PhaseName::as_str).to_vec()),
        "code" => Some(codes()),
        _ => None,
    }
}

/// The pattern of a parameter, and the least and the most characters that it has.
fn rule(parameter: &Parameter) -> Option<(&'static str, Option<[usize; 2]>)> {
    match (&parameter.parameter_in, parameter.name.as_str()) {
        (ParameterIn::Header, "Lock-Token") => {
            Some((TOKEN, Some([Token::MIN_CHARS, Token::MAX_CHARS])))
        }
        (ParameterIn::Header, "Idempotency-Key") => Some((KEY_OF_HEADER, None)),
        (ParameterIn::Query, "entry") => Some((LABEL, Some([1, EntryName::MAX_BYTES]))),
        (ParameterIn::Path | ParameterIn::Query, "name") => Some((NAME, Some([1, MAX_NAME]))),
        (ParameterIn::Path, "key") => Some((KEY, Some([1, IdempotencyKey::MAX_CHARS]))),
        _ => None,
    }
}

fn write(schema: &mut Object, pattern: &str, lengths: Option<[usize; 2]>) {
    schema.pattern = Some(pattern.to_owned());
    if let Some([least, most]) = lengths {
        (schema.min_length, schema.max_length) = (Some(least), Some(most));
    }
}
