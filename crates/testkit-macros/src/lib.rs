//! The store matrix, the attribute that runs a test on every store of it, and the one of a test
//! that starts a Redis.
//!
//! A test says what it needs, the matrix says what each store can do, and `#[store_test]` makes an
//! ordinary test for each store that can do all of it. So nothing lists test functions: a function
//! is a test by its attribute, as with `#[test]`.
//!
//! To add a store, add a line to [`MATRIX`] and a function of that name to
//! `keylatch_testkit::stores`.

use std::fmt::Write as _;

use proc_macro::{TokenStream, TokenTree};

/// Each store, and what a test may need of it.
///
/// - `locks`: locks and their listing.
/// - `ordered`: the listing is in the order of names.
/// - `queue`: waiters are served in the order in which they came.
/// - `modes`: locks of every kind, and breaks.
/// - `sets`: several locks at once.
/// - `records`: records of idempotency keys, and their listing.
/// - `restart`: what it knows outlives a process of keylatch.
/// - `url`: a service opens it by its URL.
/// - `service`: the tests over HTTP run on it.
/// - `memory`: it is the one for a test in which the store has no part.
/// - `shared`: several instances have it at once.
const MATRIX: [(&str, &str); 13] = [
    ("memory", "locks ordered url queue modes sets records service memory"),
    ("conditional", "locks ordered queue modes sets records"),
    ("clockless", "locks ordered queue modes sets records"),
    ("forgetful", "locks ordered queue modes sets records"),
    ("divided", "locks ordered queue modes"),
    ("embedded", "locks ordered url queue modes sets records service restart"),
    ("postgres", "locks ordered url queue modes sets records service restart shared"),
    ("etcd", "locks ordered url queue modes sets records service restart shared"),
    ("zookeeper", "locks url queue modes sets records service restart shared"),
    ("redis", "locks url queue modes sets records service restart shared"),
    ("sentinel", "locks url queue modes sets records shared"),
    ("cluster", "locks url queue modes records shared"),
    ("redlock", "locks url"),
];

/// The stores that need no server, and so no feature.
const ALONE: [&str; 6] = ["memory", "conditional", "clockless", "forgetful", "divided", "embedded"];

/// The feature of the tests on a store, where it needs one.
fn feature_of(store: &str) -> Option<&'static str> {
    match store {
        "redis" => Some("test-redis"),
        store => (!ALONE.contains(&store)).then_some("test-engines"),
    }
}

/// Makes a `#[tokio::test]` of a function where the tests have a Redis (the feature `test-redis`),
/// with the same arguments. Elsewhere it is compiled and not run.
#[proc_macro_attribute]
pub fn redis_test(arguments: TokenStream, function: TokenStream) -> TokenStream {
    let attributes = format!(
        "#[cfg_attr(feature = \"test-redis\", ::tokio::test({arguments}))]
        #[cfg_attr(not(feature = \"test-redis\"), expect(dead_code, reason = \"there is no Redis\"))]"
    );
    attributes.parse::<TokenStream>().unwrap_or_default().into_iter().chain(function).collect()
}

/// Makes a test of a function for every store that can do what it needs and that the features of
/// the crate have.
///
/// ```text
/// #[store_test(queue)]
/// async fn release_wakes_first_waiter(store: &Locks) { … }
/// ```
///
/// makes the tests `release_wakes_first_waiter::memory`, `release_wakes_first_waiter::embedded` and
/// so on. The function takes one reference, to anything that is `FromStore`. A function that is not
/// `async` takes the future that starts the store, for tests with a runtime of their own.
///
/// A test that needs `service`, `restart` or `shared` runs on two threads, since a service runs
/// beside it. All others run on one thread, where time can be stopped.
#[proc_macro_attribute]
pub fn store_test(needs: TokenStream, function: TokenStream) -> TokenStream {
    let expanded = expand(&needs.to_string(), function);
    expanded.unwrap_or_else(|error| {
        let error = format!("compile_error!({error:?});");
        error.parse().unwrap_or_default()
    })
}

fn expand(needs: &str, function: TokenStream) -> Result<TokenStream, String> {
    let needs: Vec<_> = needs.split(',').map(str::trim).collect();
    let has = |abilities: &str, need: &str| abilities.split(' ').any(|ability| ability == need);
    let known = |need: &&str| MATRIX.iter().any(|(_, abilities)| has(abilities, need));
    if let Some(unknown) = needs.iter().find(|need| !known(need)) {
        return Err(format!("no store of the matrix has `{unknown}`"));
    }
    let (name, is_async) = name(function.clone()).ok_or("only a function can be a test")?;
    let on_two_threads = needs.iter().any(|need| ["service", "restart", "shared"].contains(need));
    let flavor =
        if on_two_threads { "(flavor = \"multi_thread\", worker_threads = 2)" } else { "" };
    let mut tests = String::new();
    let stores = MATRIX.iter().filter(|(_, can)| needs.iter().all(|need| has(can, need)));
    for (store, _) in stores {
        let module =
            if feature_of(store) == Some("test-engines") { "engines::stores" } else { "stores" };
        let start = format!("::keylatch_testkit::{module}::{store}()");
        if let Some(feature) = feature_of(store) {
            let _ = writeln!(tests, "#[cfg(feature = {feature:?})]");
        }
        let test = if is_async {
            format!(
                "#[::tokio::test{flavor}]
                async fn {store}() {{
                    ::keylatch_testkit::stores::run({start}, super::{name}).await;
                }}"
            )
        } else {
            format!("#[test] fn {store}() {{ super::{name}({start}); }}")
        };
        let _ = writeln!(tests, "{test}");
    }
    let tests = format!("mod {name} {{ {tests} }}").parse::<TokenStream>();
    Ok(function.into_iter().chain(tests.map_err(|error| error.to_string())?).collect())
}

/// The function's name, and whether it is `async`.
fn name(function: TokenStream) -> Option<(String, bool)> {
    let mut is_async = false;
    let mut tokens = function.into_iter();
    while let Some(token) = tokens.next() {
        match token {
            TokenTree::Ident(word) if word.to_string() == "async" => is_async = true,
            TokenTree::Ident(word) if word.to_string() == "fn" => {
                return tokens.next().map(|name| (name.to_string(), is_async));
            }
            _ => {}
        }
    }
    None
}
