//! JSON as one text for all its spellings: without white space, and the members of each object in
//! order.
//!
//! Numbers stay as they are written: two amounts that differ beyond what a float can tell are not
//! the same, and `5000.0` is not `5000` to a reader who counts digits. The text is read once,
//! whatever its depth: a check first, and then one walk over what is known to be JSON. What is too
//! deep, or has a member twice, has no canonical form. Tested in `fingerprint` and, over HTTP, in
//! `tests/api/idempotency_fingerprint.rs`.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::fields::{CountedFields, JsonPointer};

/// How deep canonical JSON goes; what is deeper is compared byte by byte.
const MAX_DEPTH: usize = 64;

/// The canonical form of what counts of a body.
pub(crate) fn canonical_json(body: &[u8], fields: &CountedFields) -> Option<Vec<u8>> {
    let whole: &RawValue = parse(std::str::from_utf8(body).ok()?)?;
    let mut value = Walk { rest: whole.get() }.value(MAX_DEPTH)?;
    let mut canon = Vec::with_capacity(body.len());
    if !fields.need_one() {
        value.remove(&fields.ways());
        value.write(&mut canon)?;
        return Some(canon);
    }
    let found: Vec<_> = fields.ways().into_iter().map(|way| value.find(way)).collect();
    found.iter().any(Option::is_some).then_some(())?;
    for one in found {
        one.map_or(Some(()), |one| one.write(&mut canon))?;
        // None is within canonical JSON.
        canon.push(b'\n');
    }
    Some(canon)
}

/// What a JSON pointer finds in a body.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Found {
    Nothing,
    /// A text, or a number as it is written.
    Text(String),
    /// An object, an array, `true`, `false` or `null`.
    Other,
}

/// What stands at a place of a body; `None` where readers may read the body in different ways.
pub(crate) fn find_json(body: &[u8], pointer: &JsonPointer) -> Option<Found> {
    let whole: &RawValue = parse(std::str::from_utf8(body).ok()?)?;
    let value = Walk { rest: whole.get() }.value(MAX_DEPTH)?;
    Some(match value.find(pointer.steps()) {
        None => Found::Nothing,
        Some(Value::Text(text)) => Found::Text(text.clone().into_owned()),
        Some(Value::Written(text))
            if text.starts_with(|c: char| c == '-' || c.is_ascii_digit()) =>
        {
            Found::Text((*text).to_owned())
        }
        Some(_) => Found::Other,
    })
}

/// Has serde read a text. All that is read goes through here or [`Walk::take`], so that a test can
/// count it.
fn parse<'a, T: Deserialize<'a>>(text: &'a str) -> Option<T> {
    #[cfg(test)]
    tests::count(text.len());
    serde_json::from_str(text).ok()
}

enum Value<'a> {
    /// Its members by their names, each of which it has once.
    Object(Vec<(Cow<'a, str>, Value<'a>)>),
    Array(Vec<Value<'a>>),
    Text(Cow<'a, str>),
    /// A number or a word, as it is written.
    Written(&'a str),
}

/// Whether a step of a pointer leads to this place in an array.
fn leads_to(step: &str, place: usize) -> bool {
    step.parse() == Ok(place) && (step == "0" || step.starts_with(|c| matches!(c, '1'..='9')))
}

impl Value<'_> {
    /// What a way leads to.
    fn find(&self, way: &[String]) -> Option<&Self> {
        let Some((step, rest)) = way.split_first() else { return Some(self) };
        let next = match self {
            Self::Object(members) => {
                members.iter().find(|(name, _)| name == step).map(|(_, member)| member)
            }
            Self::Array(values) => {
                let place = step.parse().ok().filter(|place| leads_to(step, *place));
                place.and_then(|place: usize| values.get(place))
            }
            Self::Text(_) | Self::Written(_) => None,
        };
        next?.find(rest)
    }

    /// Removes what these ways lead to.
    fn remove(&mut self, ways: &[&[String]]) {
        if ways.is_empty() {
            return;
        }
        // What is left of the ways that lead through a member; none where one leads to it.
        let rest = |leads: &dyn Fn(&str) -> bool| -> Option<Vec<&[String]>> {
            let firsts = ways.iter().filter_map(|way| way.split_first());
            let rests = firsts.filter(|(step, _)| leads(step)).map(|(_, rest)| rest);
            rests.map(|rest| (!rest.is_empty()).then_some(rest)).collect()
        };
        let keep = |value: &mut Self, rest: Option<Vec<&[String]>>| {
            rest.map(|rest| value.remove(&rest)).is_some()
        };
        match self {
            Self::Object(members) => {
                members.retain_mut(|(name, value)| keep(value, rest(&|step| step == name)));
            }
            Self::Array(values) => {
                let mut places = 0..;
                values.retain_mut(|value| {
                    let place = places.next().unwrap_or_default();
                    keep(value, rest(&|step| leads_to(step, place)))
                });
            }
            Self::Text(_) | Self::Written(_) => {}
        }
    }

    fn write(&self, canon: &mut Vec<u8>) -> Option<()> {
        match self {
            Self::Object(members) => {
                canon.push(b'{');
                for (name, value) in members {
                    serde_json::to_writer(&mut *canon, name).ok()?;
                    canon.push(b':');
                    value.write(canon)?;
                    canon.push(b',');
                }
                canon.push(b'}');
            }
            Self::Array(values) => {
                canon.push(b'[');
                for value in values {
                    value.write(canon)?;
                    canon.push(b',');
                }
                canon.push(b']');
            }
            Self::Text(text) => serde_json::to_writer(&mut *canon, text).ok()?,
            Self::Written(text) => canon.extend_from_slice(text.as_bytes()),
        }
        Some(())
    }
}

struct Walk<'a> {
    rest: &'a str,
}

impl<'a> Walk<'a> {
    fn value(&mut self, depth: usize) -> Option<Value<'a>> {
        let depth = depth.checked_sub(1)?;
        match self.peek()? {
            b'{' => self.object(depth),
            b'[' => self.all_until(b']', |walk| walk.value(depth)).map(Value::Array),
            b'"' => self.text().map(Value::Text),
            _ => {
                let ends = |c: char| matches!(c, ',' | ']' | '}') || c.is_ascii_whitespace();
                self.take(self.rest.find(ends).unwrap_or(self.rest.len())).map(Value::Written)
            }
        }
    }

    fn object(&mut self, depth: usize) -> Option<Value<'a>> {
        let mut members = self.all_until(b'}', |walk| {
            let name = walk.text()?;
            (walk.peek()? == b':').then_some(())?;
            walk.take(1)?;
            Some((name, walk.value(depth)?))
        })?;
        members.sort_by(|one, other| one.0.cmp(&other.0));
        let is_twice = members.windows(2).any(|pair| pair[0].0 == pair[1].0);
        (!is_twice).then_some(Value::Object(members))
    }

    /// What stands with commas between until this bracket, which ends it.
    fn all_until<T>(&mut self, end: u8, next: impl Fn(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let mut all = Vec::new();
        self.take(1)?;
        while self.peek()? != end {
            all.push(next(self)?);
            if self.peek()? == b',' {
                self.take(1)?;
            }
        }
        self.take(1)?;
        Some(all)
    }

    fn text(&mut self) -> Option<Cow<'a, str>> {
        self.peek()?;
        let mut bytes = self.rest.bytes().enumerate().skip(1);
        let mut has_escapes = false;
        let end = loop {
            match bytes.next()? {
                (end, b'"') => break end,
                (_, b'\\') => {
                    has_escapes = true;
                    bytes.next()?;
                }
                _ => {}
            }
        };
        let text = self.take(end + 1)?;
        if has_escapes { parse(text).map(Cow::Owned) } else { Some(Cow::Borrowed(&text[1..end])) }
    }

    /// The next byte that is no white space.
    fn peek(&mut self) -> Option<u8> {
        self.rest = self.rest.trim_ascii_start();
        self.rest.bytes().next()
    }

    fn take(&mut self, bytes: usize) -> Option<&'a str> {
        #[cfg(test)]
        tests::count(bytes);
        let (taken, rest) = self.rest.split_at_checked(bytes)?;
        self.rest = rest;
        Some(taken)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    thread_local! {
        static READ: Cell<usize> = const { Cell::new(0) };
    }

    pub(super) fn count(bytes: usize) {
        READ.set(READ.get() + bytes);
    }

    /// How many bytes are read to make a text canonical, for each that it has.
    fn reads(text: &str) -> usize {
        READ.set(0);
        assert!(canonical_json(text.as_bytes(), &CountedFields::AllBut(Vec::new())).is_some());
        READ.get().div_ceil(text.len())
    }

    #[test]
    fn deep_text_is_read_no_more_often_than_a_flat_one() {
        let bytes = 1024 * 1024;
        let flat = format!("[{}1]", "\"a text\", ".repeat(bytes / 10));
        assert!((1..=3).contains(&reads(&flat)));
        for depth in [1, 20, 60] {
            let objects = r#"{"a": "#.repeat(depth) + &flat + &"}".repeat(depth);
            let arrays = "[".repeat(depth) + &flat + &"]".repeat(depth);
            assert!(reads(&objects) <= 3 && reads(&arrays) <= 3, "{depth}");
        }
    }
}
