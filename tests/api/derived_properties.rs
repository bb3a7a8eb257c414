//! Goal: two requests that differ in what the fingerprint covers never share a derived key, and one
//! that is sent again always does.
//!
//! Method: proptest makes requests of every media type, and each has neighbours that differ in one
//! place. All are sent over HTTP, the first of them in two spellings. Of all requests together,
//! those of one meaning have one run, and those of one run have one meaning.

use std::collections::{BTreeMap, HashMap};
use std::io::Write as _;

use flate2::{Compression, GzBuilder};
use keylatch::http::{DeriveKey, MissingKey};
use keylatch_testkit::{Answer, Shop};
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use proptest::sample::select;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::TestRunner;
use reqwest::{Method, RequestBuilder};
use tokio::runtime::Runtime;

/// Names, each with its values in their order.
type Pairs = BTreeMap<&'static str, Vec<&'static str>>;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Meaning {
    user: &'static str,
    method: Method,
    path: &'static str,
    query: Pairs,
    body: Content,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Content {
    Nothing,
    Json(&'static str, Tree),
    Form(Pairs),
    /// A form whose first name some readers nest by, so that the order of all counts.
    NestedForm(Vec<(&'static str, &'static str)>),
    Parts(Vec<(&'static str, &'static str)>),
    Bytes(&'static str, &'static str),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Tree {
    Written(&'static str),
    Text(&'static str),
    List(Vec<Tree>),
    Object(BTreeMap<&'static str, Tree>),
}

impl Meaning {
    /// Requests that differ in one place, and some that are the same.
    fn neighbours(&self) -> Vec<Self> {
        let query = near_pairs(&self.query);
        let query = query.into_iter().map(|query| Self { query, ..self.clone() });
        let bodies = self.body.neighbours().into_iter();
        let bodies = bodies.map(|body| Self { body, ..self.clone() });
        let other_user = if self.user == "ann" { "ben" } else { "ann" };
        let other_method = if self.method == Method::POST { Method::PATCH } else { Method::POST };
        let others = [
            Self { user: other_user, ..self.clone() },
            Self { method: other_method, ..self.clone() },
            Self { path: "/orders/a/b", ..self.clone() },
        ];
        query.chain(bodies).chain(others).collect()
    }
}

/// Pairs with one value elsewhere, one more, one less, or in another order.
fn near_pairs(pairs: &Pairs) -> Vec<Pairs> {
    let mut near = Vec::new();
    for name in ["a", "b"] {
        let mut changed = pairs.clone();
        changed.entry(name).or_default().reverse();
        changed.retain(|_, values| !values.is_empty());
        near.push(changed.clone());
        changed.entry(name).or_default().push("");
        near.push(changed.clone());
        if let Some(values) = changed.remove(name) {
            near.push(changed.clone());
            changed.entry("a_b").or_default().extend(values);
            near.push(changed);
        }
    }
    near
}

/// A list in another order, with one more, and with one less.
fn near_lists<T: Clone>(list: &[T], more: T) -> Vec<Vec<T>> {
    let backwards = list.iter().rev().cloned().collect();
    let longer = list.iter().cloned().chain([more]).collect();
    vec![backwards, longer, list[..list.len().saturating_sub(1)].to_vec()]
}

impl Content {
    fn neighbours(&self) -> Vec<Self> {
        let bytes = ["text/plain", "application/xml"].map(|kind| Self::Bytes(kind, "a"));
        let near = match self {
            Self::Nothing => vec![Self::Form(Pairs::new())],
            &Self::Json(kind, ref tree) => {
                let trees = tree.neighbours().into_iter().map(|tree| Self::Json(kind, tree));
                trees.chain([Self::Json("application/json", tree.clone())]).collect()
            }
            Self::Form(pairs) => near_pairs(pairs).into_iter().map(Self::Form).collect(),
            Self::NestedForm(pairs) => {
                near_lists(pairs, ("b", "1")).into_iter().map(Self::NestedForm).collect()
            }
            Self::Parts(parts) => {
                let near = near_lists(parts, ("b", "1")).into_iter();
                near.filter(|parts| !parts.is_empty()).map(Self::Parts).collect()
            }
            &Self::Bytes(kind, _) => vec![Self::Bytes(kind, ""), Self::Bytes(kind, "a b")],
        };
        near.into_iter().chain(bytes).collect()
    }
}

impl Tree {
    fn neighbours(&self) -> Vec<Self> {
        let wrapped = Self::List(vec![self.clone()]);
        let near: Vec<_> = match self {
            &Self::Written(text) => vec![Self::Text(text), Self::Written("1.0")],
            &Self::Text(text) => vec![Self::Written("null"), Self::Text(text.trim_matches('a'))],
            Self::List(all) => {
                let more = near_lists(all, Self::Written("0")).into_iter().map(Self::List);
                let first = all.first().into_iter().flat_map(Self::neighbours);
                let within = first.map(|one| {
                    Self::List([one].into_iter().chain(all.iter().skip(1).cloned()).collect())
                });
                more.chain(within).collect()
            }
            Self::Object(members) => {
                let values = members.values().rev().cloned();
                let swapped = members.keys().copied().zip(values).collect();
                let mut longer = members.clone();
                longer.entry("b").or_insert(Self::Object(BTreeMap::new()));
                vec![Self::Object(swapped), Self::Object(longer)]
            }
        };
        near.into_iter().chain([wrapped]).collect()
    }
}

/// One way to write a request. Each bit that is taken decides once.
struct Spelling(u64);

impl Spelling {
    fn flip(&mut self) -> bool {
        self.0 = self.0.rotate_right(1);
        self.0 & 1 == 1
    }

    fn one_of<'a>(&mut self, one: &'a str, other: &'a str) -> &'a str {
        if self.flip() { one } else { other }
    }

    /// The same in another order.
    fn order<T>(&mut self, all: impl Iterator<Item = T>) -> Vec<T> {
        let mut all: Vec<_> = all.collect();
        if self.flip() {
            all.reverse();
        }
        all
    }

    /// A text in which letters are escapes, and what has to be.
    fn escaped(&mut self, text: &str) -> String {
        let all = self.flip();
        let escape = |byte: u8| match byte {
            byte if byte.is_ascii_alphanumeric() && !all => char::from(byte).to_string(),
            byte => format!("%{byte:02X}"),
        };
        text.bytes().map(escape).collect()
    }

    fn pairs(&mut self, pairs: &Pairs) -> String {
        let mut written = Vec::new();
        for (name, values) in self.order(pairs.iter()) {
            for value in values {
                written.push(format!("{}={}", self.escaped(name), self.escaped(value)));
            }
        }
        written.join("&")
    }

    fn tree(&mut self, tree: &Tree) -> String {
        let space = self.one_of("", " \n");
        let inner = match tree {
            Tree::Written(text) => (*text).to_owned(),
            Tree::Text(text) => self.quoted(text),
            Tree::List(all) => {
                let all: Vec<_> = all.iter().map(|one| self.tree(one)).collect();
                format!("[{}]", all.join(","))
            }
            Tree::Object(members) => {
                let members = self.order(members.iter()).into_iter().map(|(name, value)| {
                    format!("{}{space}:{}", self.quoted(name), self.tree(value))
                });
                format!("{{{}{space}}}", members.collect::<Vec<_>>().join(","))
            }
        };
        format!("{space}{inner}{space}")
    }

    fn quoted(&mut self, text: &str) -> String {
        if self.flip() {
            let escapes = text.encode_utf16().map(|unit| format!("\\u{unit:04x}"));
            return format!("\"{}\"", escapes.collect::<String>());
        }
        serde_json::to_string(text).expect("a text")
    }

    /// The media type and the body.
    fn body(&mut self, content: &Content) -> Option<(String, String)> {
        let (kind, body) = match content {
            Content::Nothing => return None,
            Content::Json(kind, tree) => (*kind, self.tree(tree)),
            Content::Form(pairs) => ("application/x-www-form-urlencoded", self.pairs(pairs)),
            Content::NestedForm(pairs) => {
                let pairs = pairs.iter().map(|(name, value)| format!("{name}={value}"));
                let written = ["a[]=1".to_owned()].into_iter().chain(pairs).collect::<Vec<_>>();
                ("application/x-www-form-urlencoded", written.join("&"))
            }
            Content::Parts(parts) => {
                let boundary = self.one_of("x", "a-2");
                let parts = parts.iter().map(|(name, value)| {
                    let head = format!("Content-Disposition: form-data; name=\"{name}\"");
                    format!("--{boundary}\r\n{head}\r\n\r\n{value}\r\n")
                });
                let body = parts.collect::<String>() + &format!("--{boundary}--\r\n");
                return Some((format!("multipart/form-data; boundary={boundary}"), body));
            }
            Content::Bytes(kind, text) => (*kind, (*text).to_owned()),
        };
        let kind = if self.flip() { kind.to_uppercase() } else { kind.to_owned() };
        Some((kind + self.one_of("", "; charset=\"UTF-8\""), body))
    }

    fn request(&mut self, shop: &Shop, asked: &Meaning) -> RequestBuilder {
        let path = asked.path.replace("/a", self.one_of("/a", "/%61")) + self.one_of("", "/");
        let query = self.pairs(&asked.query);
        let mark = if query.is_empty() { "" } else { "?" };
        let request = shop.request(asked.method.clone(), &format!("{path}{mark}{query}"));
        let request = request.header("X-User", asked.user);
        let Some((kind, body)) = self.body(&asked.body) else { return request };
        let request = request.header("Content-Type", kind);
        if self.flip() {
            return request.body(body);
        }
        let mut stream =
            GzBuilder::new().mtime(self.0 as u32).write(Vec::new(), Compression::fast());
        stream.write_all(body.as_bytes()).expect("memory");
        request.header("Content-Encoding", "gzip").body(stream.finish().expect("memory"))
    }
}

fn words() -> impl Strategy<Value = &'static str> {
    select(&["", "a", "b", "ab", "1", "a b", "a+b", "\u{e9}", "a=1&b=2", "%61", "\"a\""][..])
}

fn names() -> impl Strategy<Value = &'static str> {
    select(&["a", "b", "a_b"][..])
}

fn pairs() -> impl Strategy<Value = Pairs> {
    btree_map(names(), vec(words(), 1..3), 0..3)
}

fn trees() -> impl Strategy<Value = Tree> {
    let written = select(&["null", "true", "0", "1", "-1", "1.0", "1e2", "100"][..]);
    let leaf = prop_oneof![written.prop_map(Tree::Written), words().prop_map(Tree::Text)];
    leaf.prop_recursive(3, 12, 3, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..3).prop_map(Tree::List),
            btree_map(words(), inner, 0..3).prop_map(Tree::Object),
        ]
    })
}

fn contents() -> impl Strategy<Value = Content> {
    let json = select(&["application/json", "application/vnd.shop+json"][..]);
    let bytes = select(&["text/plain", "application/octet-stream", "application/xml"][..]);
    let plain = || (names(), select(&["1", "2", "12"][..]));
    prop_oneof![
        Just(Content::Nothing),
        (json, trees()).prop_map(|(kind, tree)| Content::Json(kind, tree)),
        pairs().prop_map(Content::Form),
        vec(plain(), 0..4).prop_map(Content::NestedForm),
        vec((names(), words()), 1..3).prop_map(Content::Parts),
        (bytes, words()).prop_map(|(kind, text)| Content::Bytes(kind, text)),
    ]
}

fn requests() -> impl Strategy<Value = Meaning> {
    let methods = select(&[Method::POST, Method::PATCH][..]);
    let paths = select(&["/orders", "/orders/a", "/orders/ab"][..]);
    let query = prop_oneof![3 => Just(Pairs::new()), 1 => pairs()];
    let parts = (select(&["ann", "ben"][..]), methods, paths, query, contents());
    parts.prop_map(|(user, method, path, query, body)| Meaning { user, method, path, query, body })
}

#[test]
fn requests_share_a_derived_key_exactly_if_they_ask_for_the_same() {
    let runtime = Runtime::new().expect("a runtime");
    let shop = runtime.block_on(Shop::open_with("memory:", |guard| {
        guard.missing_key = MissingKey::Derive;
        guard.principal_header = "X-User".to_owned();
        guard.derive = DeriveKey { window_ms: 86_400_000, ..DeriveKey::default() };
    }));
    let (mut runs, mut meanings) = (HashMap::new(), HashMap::new());
    let mut runner = TestRunner::default();
    let asked = (requests(), any::<u64>(), any::<u64>());
    for _ in 0..100 {
        let (meaning, one, other) = asked.new_tree(&mut runner).expect("a request").current();
        let near = meaning.neighbours().into_iter().map(|near| (near, one ^ other));
        for (meaning, spelling) in
            [(meaning.clone(), one), (meaning, other)].into_iter().chain(near)
        {
            let request = Spelling(spelling).request(&shop, &meaning);
            let answer = runtime.block_on(Answer::of(request));
            assert_eq!(answer.status, 201, "{meaning:?} {spelling} {answer:?}");
            let run = answer.json["run"].as_u64().expect("a number");
            let first = *runs.entry(meaning.clone()).or_insert(run);
            assert_eq!(first, run, "it has two keys: {meaning:?} {spelling}");
            let of_run = meanings.entry(run).or_insert_with(|| meaning.clone());
            assert_eq!(*of_run, meaning, "two share a key");
        }
    }
    assert_eq!(shop.upstream.runs(), meanings.len());
}
