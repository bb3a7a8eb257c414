//! Goal: two requests that any reader of forms tells apart are never one request.
//!
//! Method: the rules by which Rack and PHP read fields and media types, written down here; pairs of
//! requests that are alike in all but order, escapes, separators or quotes; and for each pair of
//! which the second gets the first one's response the question whether both read the same.
//! `make readers` asks qs, Node, Python and Go themselves.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt::Write as _;

use axum::body::Body;
use axum::http::{Request, StatusCode};
use axum::routing::post;
use axum::{Router, routing::MethodRouter};
use keylatch_axum::IdempotencyLayer;
use percent_encoding::percent_decode;
use proptest::prelude::*;
use tokio::runtime::{Builder, Runtime};
use tower::ServiceExt as _;

const FORM: &str = "application/x-www-form-urlencoded";
/// How many fields PHP reads.
const MOST_FIELDS: usize = 1000;

/// A request by its media type, query and body.
type Parts<'a> = (&'a str, &'a str, &'a str);

/// Routes behind a layer, and how many keys were used there.
struct Guarded {
    runtime: Runtime,
    routes: Router,
    keys: Cell<u64>,
}

impl Guarded {
    fn new() -> Self {
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
        let layer = runtime.block_on(async { IdempotencyLayer::new(keylatch_stores::memory()) });
        let route: MethodRouter = post(async || "done");
        let routes = Router::new().route("/", route.route_layer(layer));
        Self { runtime, routes, keys: Cell::new(0) }
    }

    /// Whether the second request is the first one again.
    fn are_one(&self, first: Parts<'_>, second: Parts<'_>) -> bool {
        let key = self.keys.replace(self.keys.get() + 1);
        let send = |(kind, query, body): Parts<'_>| {
            let request = Request::post(format!("/?{query}")).header("Content-Type", kind);
            let request = request.header("Idempotency-Key", key).body(Body::from(body.to_owned()));
            let answer = self.routes.clone().oneshot(request.expect("a request"));
            self.runtime.block_on(answer).expect("an answer").status()
        };
        assert_eq!(send(first), StatusCode::OK, "{first:?}");
        match send(second) {
            StatusCode::OK => true,
            StatusCode::UNPROCESSABLE_ENTITY => false,
            other => panic!("{second:?} reads {other}"),
        }
    }
}

/// What a reader makes of fields: texts, lists and members in members.
#[derive(Debug, Clone, PartialEq)]
enum Node {
    Text(Vec<u8>),
    List(Vec<Node>),
    Members(BTreeMap<Vec<u8>, Node>),
}

impl Default for Node {
    fn default() -> Self {
        Self::Members(BTreeMap::new())
    }
}

/// A name and a value, decoded.
type Pair = (Vec<u8>, Vec<u8>);

fn decoded(text: &str) -> Vec<u8> {
    percent_decode(text.replace('+', " ").as_bytes()).collect()
}

fn pairs(text: &str, separators: &[char]) -> Vec<Pair> {
    let pairs = text.split(separators).filter(|pair| !pair.is_empty());
    let pairs = pairs.map(|pair| pair.split_once('=').unwrap_or((pair, "\0none")));
    pairs.map(|(name, value)| (decoded(name), decoded(value))).collect()
}

/// `a[b][]` as `a`, `b` and an empty step. What is behind a bracket without its end is a part of
/// the name.
fn steps(name: &[u8]) -> Vec<Vec<u8>> {
    let name = String::from_utf8_lossy(name).into_owned();
    let Some((first, mut rest)) = name.split_once('[') else { return vec![name.into_bytes()] };
    let mut steps = vec![first.as_bytes().to_vec()];
    while let Some((step, behind)) = rest.split_once(']') {
        steps.push(step.as_bytes().to_vec());
        rest = behind.strip_prefix('[').unwrap_or_default();
    }
    steps
}

/// The value for whoever takes the last of a name, and the next place of a list for an empty step.
fn put_last(node: &mut Node, steps: &[Vec<u8>], value: &[u8]) {
    let Some((step, rest)) = steps.split_first() else {
        *node = Node::Text(value.to_vec());
        return;
    };
    if !matches!(node, Node::Members(_)) {
        *node = Node::default();
    }
    let Node::Members(members) = node else { return };
    let next = || {
        let numbers = members.keys().filter_map(|key| str::from_utf8(key).ok()?.parse().ok());
        numbers.max().map_or(0, |last: u64| last + 1).to_string().into_bytes()
    };
    let step = if step.is_empty() { next() } else { step.clone() };
    put_last(members.entry(step).or_default(), rest, value);
}

/// PHP (`php_register_variable_ex`): a `.` and a blank in a name are `_`, and of one name the last
/// counts.
fn php(text: &str) -> Node {
    let mut all = Node::default();
    for (name, value) in pairs(text, &['&']).into_iter().take(MOST_FIELDS) {
        let mut steps = steps(name.trim_ascii_start());
        for byte in &mut steps[0] {
            *byte = if b" .[".contains(byte) { b'_' } else { *byte };
        }
        if !steps[0].is_empty() {
            put_last(&mut all, &steps, &value);
        }
    }
    all
}

/// Rack (`QueryParser#normalize_params`): `a[][b]` begins another element of `a` where the last one
/// has `b`. Versions below 3 take `;` for `&`.
fn rack(text: &str, separators: &[char]) -> Option<Node> {
    let mut all = Node::default();
    for (name, value) in pairs(text, separators) {
        let steps = steps(&name);
        if !steps[0].is_empty() {
            put_nested(&mut all, &steps, &value)?;
        }
    }
    Some(all)
}

fn put_nested(node: &mut Node, steps: &[Vec<u8>], value: &[u8]) -> Option<()> {
    match (node, steps) {
        (node, []) => *node = Node::Text(value.to_vec()),
        (node, [step, rest @ ..]) if step.is_empty() => {
            if *node == Node::default() {
                *node = Node::List(Vec::new());
            }
            let Node::List(list) = node else { return None };
            let is_open = |last: &Node| match (last, rest.first()) {
                (Node::Members(members), Some(step)) => !members.contains_key(step),
                _ => false,
            };
            if !list.last().is_some_and(is_open) {
                list.push(Node::default());
            }
            put_nested(list.last_mut()?, rest, value)?;
        }
        (Node::Members(members), [step, rest @ ..]) => {
            put_nested(members.entry(step.clone()).or_default(), rest, value)?;
        }
        _ => return None,
    }
    Some(())
}

/// All that the two read, as one text.
fn fields(text: &str) -> String {
    format!("{:?}{:?}{:?}", php(text), rack(text, &['&', ';']), rack(text, &['&']))
}

/// What Rack reads of a `Content-Type`: it splits at `;` and `,` in quotes too, and takes the last
/// of a name.
fn kind(text: &str) -> String {
    let bare = |value: &str| {
        let inner = value.strip_prefix('"').and_then(|value| value.strip_suffix('"'));
        inner.unwrap_or(value).to_owned()
    };
    let mut parameters = BTreeMap::new();
    let mut pieces = text.split([';', ',']).map(str::trim);
    let essence = pieces.next().unwrap_or_default().to_lowercase();
    for piece in pieces {
        let (name, value) = piece.split_once('=').unwrap_or((piece, "\0none"));
        parameters.insert(name.to_lowercase(), bare(value));
    }
    if let Some(charset) = parameters.get_mut("charset") {
        *charset = charset.to_lowercase();
    }
    // It is what a body has that says nothing.
    if parameters.get("charset").is_some_and(|charset| charset == "utf-8") {
        parameters.remove("charset");
    }
    format!("{essence} {parameters:?}")
}

/// The same fields in another spelling: in another order, with other escapes and separators.
fn respelt(fields: &[String], seed: u64) -> String {
    let mut seed = seed;
    let mut next = |below: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        usize::try_from(seed >> 33).unwrap_or_default() % below
    };
    let mut left = fields.to_vec();
    let mut text = String::new();
    while !left.is_empty() {
        let field = left.remove(if next(2) == 0 { 0 } else { next(left.len()) });
        for c in field.chars() {
            match c {
                ' ' => text.push_str(if next(2) == 0 { "+" } else { "%20" }),
                '[' | ']' | '.' | 'a' | '_' if next(3) == 0 => {
                    let _ = write!(text, "%{:02x}", u32::from(c));
                }
                c => text.push(c),
            }
        }
        if !left.is_empty() {
            text.push(if next(8) == 0 { ';' } else { '&' });
        }
    }
    text
}

fn field() -> impl Strategy<Value = String> {
    let name = prop::sample::select(vec![
        "a", "b", "a[]", "a[0]", "a[b]", "a[][b]", "a[][c]", "a.b", "a b", "a_b", " a", "a[", "",
        "[]", "A-1",
    ]);
    let value = prop::sample::select(vec!["=", "=1", "=2", "=a;b=1", "=a b", ""]);
    (name, value).prop_map(|(name, value)| format!("{name}{value}"))
}

fn media_type() -> impl Strategy<Value = String> {
    let name = prop::sample::select(vec!["a", "A", "b", "charset", "b "]);
    let value = prop::sample::select(vec![
        "=1",
        "=\"1\"",
        "=\"1;b=2\"",
        "=1,b=2",
        "=\"1",
        "=utf-8",
        "=\"UTF-8\"",
        "=koi8-r",
        "= 1",
        "=",
        "",
    ]);
    let parameter = (name, value).prop_map(|(name, value)| format!("{name}{value}"));
    (prop::collection::vec(parameter, 0..4), prop::bool::ANY).prop_map(|(all, spaced)| {
        all.iter()
            .fold("text/plain".to_owned(), |text, one| text + if spaced { "; " } else { ";" } + one)
    })
}

/// Runs a property on as many pairs.
fn hold<S: Strategy>(pairs: S, property: impl Fn(S::Value) -> Result<(), TestCaseError>) {
    let config = ProptestConfig { cases: 2048, failure_persistence: None, ..Default::default() };
    let mut runner = proptest::test_runner::TestRunner::new(config);
    runner.run(&pairs, property).unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn fields_that_a_reader_tells_apart_are_two_requests() {
    let guarded = Guarded::new();
    let respellings = (prop::collection::vec(field(), 1..6), any::<u64>(), any::<u64>());
    hold(respellings, |(all, one, other)| {
        let (one, other) = (respelt(&all, one), respelt(&all, other));
        if guarded.are_one((FORM, "", &one), (FORM, "", &other)) {
            prop_assert_eq!(fields(&one), fields(&other), "forms {} and {}", one, other);
        }
        if guarded.are_one(("text/plain", &one, ""), ("text/plain", &other, "")) {
            prop_assert_eq!(fields(&one), fields(&other), "queries {} and {}", one, other);
        }
        Ok(())
    });
}

#[test]
fn media_types_that_a_reader_tells_apart_are_two_requests() {
    let guarded = Guarded::new();
    hold((media_type(), media_type()), |(one, other)| {
        if guarded.are_one((&one, "", ""), (&other, "", "")) {
            prop_assert_eq!(kind(&one), kind(&other), "{} and {}", one, other);
        }
        Ok(())
    });
}

/// The properties would hold for a layer to which no two requests are one.
#[test]
fn plain_fields_are_one_request_in_every_order_and_spelling() {
    let guarded = Guarded::new();
    for (one, other) in [("b=x+y&a=1&a=2", "a=%31&a=2&b=x%20y"), ("A-1=&b_2=%5B", "b_2=%5b&A%2d1=")]
    {
        assert!(guarded.are_one((FORM, "", one), (FORM, "", other)), "{one} {other}");
        assert_eq!(fields(one), fields(other));
    }
    assert!(guarded.are_one((FORM, "b=1&a=2", ""), (FORM, "%61=2&b=1", "")));
    let [one, other] = ["text/plain; a=1;charset=UTF-8", "Text/Plain;CharSet=\"utf-8\"; A=\"1\""];
    assert!(guarded.are_one((one, "", ""), (other, "", "")));
    assert_eq!(kind(one), kind(other));
}
