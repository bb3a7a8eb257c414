//! What the name of a member says of it, wherever it stands.
//!
//! A member that may be absent is never null, so that a generated client has one way to leave it
//! out. A request may have null there all the same, and means that it is absent. A fencing token is
//! a whole number that every JSON reader keeps, and a word is one of those that the service writes.

use serde_json::Value;
use utoipa::Number;
use utoipa::openapi::schema::{
    Array, ArrayBuilder, ArrayItems, Object, ObjectBuilder, SchemaType, Type,
};
use utoipa::openapi::{RefOr, Schema};

use strum::VariantArray as _;

use super::example;
use keylatch_core::idempotency::{PhaseName, UnknownReason};
use keylatch_core::lock::LockName;
use keylatch_core::store::Tier;
use keylatch_stores::ENGINES;
use keylatch_wire::Code;

/// A name without control characters.
const NAME: &str = r"^[^\u0000-\u001F\u007F-\u009F]+$";
/// The same, or nothing.
const LABEL: &str = r"^[^\u0000-\u001F\u007F-\u009F]*$";
/// The longest name.
const MAX_NAME: usize = LockName::MAX_BYTES;
/// The largest whole number up to which a float tells all apart: 2^53 - 1.
const MAX_EXACT: usize = 9_007_199_254_740_991;
/// A token (RFC 9110, section 5.6.2), as a header's name is.
const HEADER_NAME: &str = r"^[!#$%&'*+.^_`|~0-9A-Za-z-]+$";
/// What a header's value has: no control character but a tab.
const HEADER_VALUE: &str = r"^[^\u0000-\u0008\u000A-\u001F\u007F]*$";
/// The last slot: as many as this and one hold a lock together.
const MAX_SLOT: usize = 999;

/// Completes the schema of this name with what the names of its members say.
pub(super) fn describe(name: &str, schema: &mut RefOr<Schema>) {
    if let RefOr::T(Schema::Object(object)) = schema {
        describe_object(name, object);
        object.example = object.example.take().or_else(|| example("schemas", name));
    }
}

fn describe_object(schema: &str, object: &mut Object) {
    let required = std::mem::take(&mut object.required);
    for (name, member) in &mut object.properties {
        let is_optional = !required.contains(name);
        if is_optional {
            remove_null(member);
        }
        let example = example("members", &format!("{schema}.{name}"));
        match member {
            RefOr::T(Schema::Object(member)) => {
                describe_object(schema, member);
                member.example = member.example.take().or(example);
                describe_member(schema, name, member);
                tell_default(member, is_optional);
            }
            RefOr::T(Schema::Array(list)) => {
                // An absent list is an empty one.
                list.default = None;
                list.example = example;
                if name == "names" {
                    describe_names(list);
                }
            }
            _ => {}
        }
    }
    object.required = required;
}

fn describe_names(names: &mut Array) {
    names.unique_items = true;
    if let ArrayItems::RefOrSchema(items) = &mut names.items
        && let RefOr::T(Schema::Object(item)) = &mut **items
    {
        item.pattern = Some(NAME.to_owned());
        (item.min_length, item.max_length) = (Some(1), Some(MAX_NAME));
    }
}

/// Moves the default of a member into its description: by a `default` some generators have a client
/// always send the member, and so decide for a service that is set up otherwise.
fn tell_default(member: &mut Object, is_optional: bool) {
    // That of one that is required is serde's way to find out that it is absent.
    if let Some(default) = member.default.take().filter(|one| is_optional && !one.is_null()) {
        let description = member.description.take().unwrap_or_default();
        member.description = Some(format!("{description} Absent, it is {default}."));
    }
}

fn describe_member(schema: &str, name: &str, member: &mut Object) {
    match name {
        "fencing_token" => member.maximum = Some(Number::UInt(MAX_EXACT)),
        "content_type" => member.pattern = Some(HEADER_VALUE.to_owned()),
        "headers" if matches!(schema, "CompleteRecord" | "DescribedRequest") => {
            let names = ObjectBuilder::new().schema_type(Type::String).pattern(Some(HEADER_NAME));
            member.property_names = Some(Box::new(Schema::Object(names.build())));
            let value = ObjectBuilder::new().schema_type(Type::String).pattern(Some(HEADER_VALUE));
            let values = ArrayBuilder::new().items(value);
            member.additional_properties = Some(Box::new(values.into()));
        }
        "owner" | "by" | "reason" | "entry" if member.max_length.is_some() => {
            member.pattern = Some(LABEL.to_owned());
        }
        "slot" => member.maximum = Some(Number::UInt(MAX_SLOT)),
        _ => {}
    }
    if let Some(words) = words(schema, name) {
        let null = is_nullable(member).then_some(Value::Null);
        member.enum_values = Some(words.into_iter().map(Value::from).chain(null).collect());
    }
}

/// What a record may be.
pub(super) const STATES: [PhaseName; 3] =
    [PhaseName::InFlight, PhaseName::Done, PhaseName::Unknown];

/// The words that a member may have.
fn words(schema: &str, member: &str) -> Option<Vec<&'static str>> {
    Some(match (schema, member) {
        ("Problem" | "LostLock", "code") => codes(),
        ("LossEvent", "reason") => [vec!["max-hold", "shutdown"], codes()].concat(),
        ("ResolveRecord", "outcome") => vec!["completed", "not-executed", "undone"],
        ("StoreInfo", "tier") => {
            [Tier::Strict, Tier::Process, Tier::BestEffort, Tier::Fenced].map(Tier::as_str).to_vec()
        }
        ("StoreInfo", "kind") => ENGINES.iter().flat_map(|engine| engine.kinds).copied().collect(),
        (_, "state") => STATES.map(PhaseName::as_str).to_vec(),
        ("IdempotencyRecord" | "ListedRecord", "reason") => {
            UnknownReason::VARIANTS.iter().map(|reason| reason.as_str()).collect()
        }
        _ => return None,
    })
}

/// The codes of all problems. Two may share a word, with a status each.
pub(super) fn codes() -> Vec<&'static str> {
    let mut codes: Vec<_> = Code::all().map(Code::slug).collect();
    codes.sort_unstable();
    codes.dedup();
    codes
}

fn is_nullable(member: &Object) -> bool {
    matches!(&member.schema_type, SchemaType::Array(types) if types.contains(&Type::Null))
}

/// Takes null from what a schema allows. Gives whether it did.
fn remove_null(schema: &mut RefOr<Schema>) -> bool {
    match schema {
        RefOr::T(Schema::Object(object)) => {
            let SchemaType::Array(types) = &mut object.schema_type else { return false };
            types.retain(|kind| *kind != Type::Null);
            if types.len() == 1 {
                object.schema_type = SchemaType::Type(types.remove(0));
            }
            true
        }
        RefOr::T(Schema::OneOf(any)) => {
            let all = any.items.len();
            any.items.retain(|one| !is_null(one));
            let has_null = any.items.len() < all;
            if has_null && any.items.len() == 1 {
                let mut alone = any.items.remove(0);
                if let RefOr::T(Schema::Object(alone)) = &mut alone {
                    alone.description = any.description.take().or_else(|| alone.description.take());
                }
                *schema = alone;
            }
            has_null
        }
        _ => false,
    }
}

fn is_null(schema: &RefOr<Schema>) -> bool {
    let RefOr::T(Schema::Object(object)) = schema else { return false };
    matches!(object.schema_type, SchemaType::Type(Type::Null))
}
