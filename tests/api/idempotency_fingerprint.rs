//! Goal: two requests under one key are the same exactly if they ask for the same; another one is
//! refused.
//!
//! Method: pairs of requests in every media type, on each store.

use keylatch::http::FieldName;
use keylatch_testkit::{Answer, Shop, TestStore, store_test};
use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};

const JSON: &str = "application/json";
const FORM: &str = "application/x-www-form-urlencoded";

/// A request by its path, media type and body.
type OrderParts<'a> = (&'a str, &'a str, &'a str);

fn order_request(shop: &Shop, key: &str, (path, kind, body): OrderParts<'_>) -> RequestBuilder {
    let request = shop.request(Method::POST, path).header("Idempotency-Key", key);
    request.header("Content-Type", kind).body(body.to_owned())
}

/// Asserts that the `same` requests are one with the `first`, and the `others` are not.
async fn are_told_apart(
    shop: &Shop,
    first: OrderParts<'_>,
    same: &[OrderParts<'_>],
    others: &[OrderParts<'_>],
) {
    let run = shop.upstream.runs() + 1;
    let key = format!("k-{run}");
    Answer::of(order_request(shop, &key, first)).await.is_run(run);
    for asked in others {
        let refused = Answer::of(order_request(shop, &key, *asked)).await;
        assert_eq!(refused.status, 422, "{asked:?}: {refused:?}");
        refused.is_refusal(422, "idempotency-key-reused", "new-key");
    }
    for asked in [&[first], same].concat() {
        let repeat = Answer::of(order_request(shop, &key, asked)).await;
        assert_eq!(repeat.status, 201, "{asked:?}: {repeat:?}");
        repeat.is_replay_of(run);
    }
    assert_eq!(shop.upstream.runs(), run);
}

#[store_test(memory)]
async fn large_numbers_and_absent_members_count_in_json_of_every_name(shop: &Shop) {
    let of = |body| ("/orders", JSON, body);
    let others = [of(r#"{"a":1,"x":null}"#), of(r#"{"a":"1"}"#), of("")];
    are_told_apart(shop, of(r#"{"a":1}"#), &[], &others).await;
    // Two amounts that a float cannot tell apart are two amounts.
    let (one, two) = (of(r#"{"a":9007199254740993}"#), of(r#"{"a":9007199254740992}"#));
    are_told_apart(shop, one, &[], &[two]).await;
    let problem = |body| ("/orders", "application/vnd.shop+json", body);
    are_told_apart(shop, problem(r#"{"a":1,"b":2}"#), &[problem(r#"{"b":2, "a":1}"#)], &[]).await;
}

#[store_test(memory)]
async fn ambiguous_or_broken_json_is_compared_by_bytes(shop: &Shop) {
    let of = |body| ("/orders", JSON, body);
    for (first, other) in [
        (r#"{"a":1,"a":2}"#, r#"{"a":1, "a":2}"#),
        (r#"{"a":1,"a":2}"#, r#"{"a":2,"a":1}"#),
        (r#"{"x":{"a":1,"a":1}}"#, r#"{"x": {"a":1,"a":1}}"#),
        (r#"{"a":1"#, r#"{"a": 1"#),
        ("{'a':1}", "{'a': 1}"),
        (r#"{"a":1}{}"#, r#"{"a":1} {}"#),
        ("nonsense", "nonsense "),
    ] {
        are_told_apart(shop, of(first), &[], &[of(other)]).await;
    }
    let deep = |inner: &str| format!("{}{inner}{}", "[".repeat(100), "]".repeat(100));
    are_told_apart(shop, of(&deep("1")), &[], &[of(&deep(" 1"))]).await;
}

/// PHP and qs read a thousand fields, and Django and Rack refuse more.
#[store_test(memory)]
async fn order_of_more_than_a_thousand_fields_counts(shop: &Shop) {
    let many = vec!["x=1"; 1000].join("&");
    let (first, last) = (format!("a=1&{many}"), format!("{many}&a=1"));
    are_told_apart(shop, ("/orders", FORM, &first), &[], &[("/orders", FORM, &last)]).await;
}

/// `curl -d` calls everything a form, and a form reader splits JSON at `&`.
#[store_test(memory)]
async fn json_that_is_called_a_form_is_compared_by_bytes(shop: &Shop) {
    let of = |body| ("/orders", FORM, body);
    for (first, other) in [
        (r#"{"language":"C++","n":1}"#, r#"{"language":"C  ","n":1}"#),
        (r#"{"x":"&b=1&","y":"&b=2&"}"#, r#"{"y":"&b=2&","x":"&b=1&"}"#),
        (r#"["x&y&"]"#, r#"["y&x&"]"#),
    ] {
        are_told_apart(shop, of(first), &[], &[of(other), ("/orders", JSON, first)]).await;
    }
}

/// Text that `curl -d` sends is no form either.
#[store_test(memory)]
async fn text_that_is_called_a_form_is_compared_by_bytes(shop: &Shop) {
    let of = |body| ("/orders", FORM, body);
    for (first, other) in [
        ("C++", "C  "),
        ("&x&y&", "&y&x&"),
        ("a&b", "a&&b"),
        ("a", "a="),
        ("a=1&", "a=1"),
        ("a=1&b=x+y z", "a=1&b=x y+z"),
        ("a=%", "a=%25"),
        ("\"a+b\"", "\"a b\""),
    ] {
        are_told_apart(shop, of(first), &[], &[of(other)]).await;
    }
}

#[store_test(memory)]
async fn what_is_not_utf8_is_compared_byte_by_byte(shop: &Shop) {
    let of = |path| (path, JSON, "{}");
    let others = [of("/orders?a=%FE"), of("/orders?a=%EF%BF%BD")];
    are_told_apart(shop, of("/orders?a=%FF"), &[], &others).await;
    let of = |body| ("/orders", FORM, body);
    are_told_apart(shop, of("a=%FF"), &[], &[of("a=%FE"), of("a=%EF%BF%BD")]).await;
}

#[store_test(memory)]
async fn query_is_compared_as_written(shop: &Shop) {
    let of = |path| (path, JSON, "{}");
    are_told_apart(shop, of("/orders?"), &[of("/orders")], &[of("/orders?&")]).await;
    are_told_apart(shop, of("/orders?x"), &[], &[of("/orders?x="), of("/orders?x&")]).await;
    let others = [of("/orders?a=x%20y"), of("/orders?a=x%2By"), of("/orders?a=x%252By")];
    are_told_apart(shop, of("/orders?a=x+y"), &[of("/orders?a=%78+y")], &others).await;
    are_told_apart(shop, of("/orders?a=%2"), &[], &[of("/orders?a=%252")]).await;
}

#[store_test(memory)]
async fn number_is_compared_as_written(shop: &Shop) {
    let of = |body| ("/orders", JSON, body);
    let others = [of(r#"{"a":5000}"#), of(r#"{"a":5e3}"#), of(r#"{"a":5000.00}"#)];
    are_told_apart(shop, of(r#"{"a":5000.0}"#), &[of(r#"{ "a": 5000.0 }"#)], &others).await;
}

#[store_test(memory)]
async fn media_type_and_coding_of_the_body_count(shop: &Shop) {
    let of = |kind| ("/orders", kind, "{}");
    let latin = of("text/plain; charset=ISO-8859-1");
    let same = [of("Text/Plain;CHARSET=\"iso-8859-1\"")];
    let others =
        [of("text/plain"), of("text/plain; charset=utf-16"), of("text/plain; format=flowed")];
    are_told_apart(shop, latin, &same, &others).await;
    let plain = shop.upstream.runs() + 1;
    let send = |headers: &[(&'static str, &'static str)]| {
        let mut request = shop.request(Method::POST, "/orders").header("Idempotency-Key", "coded");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        Answer::of(request.body("{}"))
    };
    let json = ("Content-Type", JSON);
    send(&[json]).await.is_run(plain);
    let coded = send(&[json, ("Content-Encoding", "br")]).await;
    coded.is_refusal(422, "idempotency-key-reused", "never");
    for headers in [&[json, ("Content-Type", "text/plain")], &[json, json]] {
        send(headers).await.is_refusal(422, "idempotency-key-reused", "new-key");
    }
    send(&[json, ("Content-Encoding", "identity")]).await.is_replay_of(plain);
}

#[store_test(memory)]
async fn parameters_of_two_media_types_are_not_joined(shop: &Shop) {
    let of = |kind| ("/orders", kind, "{}");
    for (first, other) in [
        ("text/plain; a=\"1;charset=koi8-r\"", "text/plain; a=1; charset=koi8-r"),
        ("text/plain; a=\"1\"; b=2", "text/plain; a=\"1;b=2\""),
        ("text/plain; charset=utf-8; charset=koi8-r", "text/plain; charset=koi8-r"),
        ("text/plain; charset=koi8-r; charset=utf-8", "text/plain; charset=utf-8; charset=koi8-r"),
        ("text/plain; a", "text/plain; a="),
        ("text/plain; a=\"x", "text/plain; a=x"),
        ("text/plain; a=1,b=2", "text/plain; a=\"1,b=2\""),
    ] {
        are_told_apart(shop, of(first), &[], &[of(other)]).await;
    }
    let same = [of("text/plain; B=\"2\";a=1")];
    are_told_apart(shop, of("text/plain;a=1; b=2"), &same, &[of("text/plain; a=1; b=3")]).await;
    // A reader that decodes by it reads other fields.
    let utf16 = "application/x-www-form-urlencoded; charset=utf-16";
    are_told_apart(shop, ("/orders", utf16, "a=%31"), &[], &[("/orders", utf16, "a=1")]).await;
}

/// Readers differ in which of these is the boundary, and so in what the parts are.
#[store_test(memory)]
async fn parts_are_compared_by_bytes_where_readers_see_others(shop: &Shop) {
    let part = |boundary: &str, content: &str| {
        format!(
            "--{boundary}\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n{content}\r\n\
             --{boundary}--\r\n"
        )
    };
    let inner = "1\n--x\nContent-Disposition: form-data; name=\"b\"\n\n2";
    let [x, y] = ["multipart/form-data; boundary=x", "multipart/form-data; boundary=y"];
    let (one, other) = (part("x", inner), part("y", inner));
    are_told_apart(shop, ("/orders", x, &one), &[], &[("/orders", y, &other)]).await;
    let of = |more: &str| format!("multipart/form-data; xboundary={more}; boundary=x");
    let (one, other, body) = (of("p"), of("q"), part("x", "1"));
    are_told_apart(shop, ("/orders", &one, &body), &[], &[("/orders", &other, &body)]).await;
}

/// They say what is asked, and do not differ between two tries.
#[store_test(memory)]
async fn headers_that_say_what_is_asked_count(shop: &Shop) {
    let send = |key: &str, header: &'static str, value: &'static str| {
        Answer::of(shop.order(key).header(header, value))
    };
    for (run, header) in (1..).zip([
        "SOAPAction",
        "X-Amz-Target",
        "If-Match",
        "Content-Range",
        "Destination",
        "Content-Disposition",
    ]) {
        send(header, header, "\"a\"").await.is_run(run);
        send(header, header, "\"b\"").await.is_refusal(422, "idempotency-key-reused", "new-key");
        shop.buy(header).await.is_refusal(422, "idempotency-key-reused", "new-key");
        send(header, header, "\"a\"").await.is_replay_of(run);
    }
    send("k", "Accept", "a/b").await.is_run(7);
    send("k", "Accept", "c/d").await.is_replay_of(7);
}

#[tokio::test]
async fn fingerprint_headers_are_those_of_the_guard() {
    let own = vec!["X-Step".to_owned()];
    let shop = Shop::open_with("memory:", |guard| guard.fingerprint_headers = own).await;
    let send = |key: &str, header: &'static str, value: &'static str| {
        Answer::of(shop.order(key).header(header, value))
    };
    send("k-1", "X-Step", "1").await.is_run(1);
    send("k-1", "X-Step", "2").await.is_refusal(422, "idempotency-key-reused", "new-key");
    send("k-2", "If-Match", "1").await.is_run(2);
    send("k-2", "If-Match", "2").await.is_replay_of(2);
}

#[store_test(memory)]
async fn everything_in_a_multipart_form_counts(shop: &Shop) {
    let kind = "multipart/form-data; boundary=x";
    let of =
        |head: &str| format!("--x\r\nContent-Disposition: form-data; {head}\r\n\r\n1\r\n--x--\r\n");
    let bodies = [
        of("name=\"a\""),
        of("name=\"a\"; filename=\"f\"; filename*=UTF-8''g"),
        of("name=\"a\"; filename=\"f\"; filename*=UTF-8''h"),
        of("name=\"a\"; filename=\"f\""),
        of("name=\"a\"; filename=\"\""),
        of("name=\"a\"\r\nContent-Transfer-Encoding: base64"),
        of("name=\"a\"\r\nContent-Type: text/plain"),
        of("name=\"a\"\r\nContent-Type: ?"),
        of("name=\"a\"\r\nX-Mine: 1"),
        format!("preamble\r\n{}", of("name=\"a\"")),
        format!("{}epilogue", of("name=\"a\"")),
    ];
    for (place, body) in bodies.iter().enumerate() {
        let others = bodies.iter().enumerate().filter(|(other, _)| *other != place);
        let others: Vec<_> = others.map(|(_, body)| ("/orders", kind, body.as_str())).collect();
        are_told_apart(shop, ("/orders", kind, body), &[], &others).await;
    }
    // A client library that adds such a header is repeated under another boundary.
    let coded = |boundary: &str| {
        format!(
            "--{boundary}\r\nContent-Disposition: form-data; name=\"a\"\r\n\
             Content-Transfer-Encoding: 8bit\r\n\r\n1\r\n--{boundary}--\r\n"
        )
    };
    let (one, other) = (coded("x"), coded("y"));
    let same = [("/orders", "multipart/form-data; boundary=y", &*other)];
    are_told_apart(shop, ("/orders", kind, &one), &same, &[]).await;
}

#[store_test(memory)]
async fn ignored_fields_may_differ(store: &TestStore) {
    let ignored = fields(["sent_at", "nonce"]);
    let shop = Shop::open_with(store.url(), |guard| guard.ignore_fields = ignored).await;
    let json = |body| ("/orders", JSON, body);
    are_told_apart(
        &shop,
        json(r#"{"amount":1,"sent_at":1}"#),
        &[json(r#"{"amount":1,"sent_at":2,"nonce":"x"}"#), json(r#"{"amount":1}"#)],
        &[json(r#"{"amount":2,"sent_at":1}"#), json(r#"{"amount":1,"x":{"nonce":1}}"#)],
    )
    .await;
    let form = |body| ("/orders", FORM, body);
    let same = [form("amount=1"), form("nonce=2&amount=1&nonce=3")];
    are_told_apart(&shop, form("amount=1&nonce=1"), &same, &[form("amount=2&nonce=1")]).await;
    let part = |name: &str, value: &str| {
        format!("--x\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n")
    };
    let body = |amount: &str, nonce: &str| part("amount", amount) + &part("nonce", nonce) + "--x--";
    let kind = "multipart/form-data; boundary=x";
    let [first, same, other] = [body("1", "1"), body("1", "2"), body("2", "1")];
    let (first, same) = (("/orders", kind, first.as_str()), ("/orders", kind, same.as_str()));
    are_told_apart(&shop, first, &[same], &[("/orders", kind, &other)]).await;
}

/// The names of fields, as a guard has them.
fn fields<const N: usize>(names: [&str; N]) -> Vec<FieldName> {
    names.map(|name| name.to_owned().try_into().expect("the name of a field")).to_vec()
}

#[tokio::test]
async fn pointer_ignores_what_it_leads_to_and_nothing_else() {
    let ignored = fields(["/meta/sent_at", "/items/0/id", "/a~1b", "/x~0y", "/list/01"]);
    let shop = Shop::open_with("memory:", |guard| guard.ignore_fields = ignored).await;
    let json = |body| ("/orders", JSON, body);
    are_told_apart(
        &shop,
        json(r#"{"meta":{"sent_at":1,"by":"a"},"n":1}"#),
        &[
            json(r#"{"n":1,"meta":{"by":"a","sent_at":{"at":2}}}"#),
            json(r#"{"n":1,"meta":{"by":"a"}}"#),
        ],
        &[
            json(r#"{"meta":{"sent_at":1,"by":"b"},"n":1}"#),
            json(r#"{"meta":{"by":"a"},"n":1,"sent_at":1}"#),
            json(r#"{"meta":{"by":"a","x":{"sent_at":1}},"n":1}"#),
            json(r#"{"n":1}"#),
        ],
    )
    .await;
    are_told_apart(
        &shop,
        json(r#"{"items":[{"id":1,"n":2},{"id":3}]}"#),
        &[json(r#"{"items":[{"id":9,"n":2},{"id":3}]}"#)],
        &[json(r#"{"items":[{"id":1,"n":2},{"id":4}]}"#), json(r#"{"items":[{"id":1},{"id":3}]}"#)],
    )
    .await;
    let escaped = json(r#"{"a/b":1,"x~y":1,"n":1}"#);
    are_told_apart(&shop, escaped, &[json(r#"{"n":1}"#)], &[json(r#"{"n":1,"a":{"b":1}}"#)]).await;
    // A place in an array has no leading zero (RFC 6901), and a form has no pointers.
    are_told_apart(&shop, json(r#"{"list":[1,2]}"#), &[], &[json(r#"{"list":[1,3]}"#)]).await;
    let form = |body| ("/orders", FORM, body);
    are_told_apart(&shop, form("a%2Fb=1"), &[], &[form("a%2Fb=2")]).await;
}

#[tokio::test]
async fn compared_fields_alone_count() {
    let compared = fields(["order_no", "/pay/amount"]);
    let shop = Shop::open_with("memory:", |guard| guard.compare_fields = compared).await;
    let json = |body| ("/orders", JSON, body);
    are_told_apart(
        &shop,
        json(r#"{"order_no":1,"pay":{"amount":5,"at":1},"x":1}"#),
        &[json(r#"{"pay":{"at":2,"amount":5},"order_no":1}"#)],
        &[
            json(r#"{"order_no":2,"pay":{"amount":5}}"#),
            json(r#"{"order_no":1,"pay":{"amount":6}}"#),
            json(r#"{"order_no":1}"#),
            json(r#"{"order_no":5,"pay":{"amount":1}}"#),
        ],
    )
    .await;
    let form = |body| ("/orders", FORM, body);
    let (same, other) = (form("x=2&order_no=1"), form("order_no=2&x=1"));
    are_told_apart(&shop, form("order_no=1&x=1"), &[same], &[other]).await;
    // A body that has none of them is not the same as every other.
    for (one, other) in [
        (json(r#"{"a":1}"#), json(r#"{"a":2}"#)),
        (json("[1]"), json("[2]")),
        (json("{"), json("{ ")),
        (form("a=1"), form("a=2")),
    ] {
        are_told_apart(&shop, one, &[], &[other]).await;
    }
    let part = |name: &str, value: &str| {
        format!("--x\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n--x--")
    };
    let kind = "multipart/form-data; boundary=x";
    let [one, other] = ["1", "2"].map(|value| part("a", value));
    are_told_apart(&shop, ("/orders", kind, &one), &[], &[("/orders", kind, &other)]).await;
}

#[store_test(memory)]
async fn other_body_is_refused_while_the_run_is_in_flight(shop: &Shop) {
    let first = shop.upstream.holding(shop.order("k-1")).await;
    let before = lasting(shop.record("k-1").await);
    assert_eq!((&before["state"], &before["attempts"]), (&json!("in-flight"), &json!(1)));
    for wait in ["", "wait=20"] {
        let other = shop.order("k-1").json(&json!({"amount": 1})).header("Prefer", wait);
        let refused = Answer::of(other).await;
        refused.is_refusal(422, "idempotency-key-reused", "new-key");
        assert_ne!(refused.header("idempotency-key-expires"), "", "{refused:?}");
    }
    assert_eq!(lasting(shop.record("k-1").await), before);
    shop.upstream.resume();
    first.await.expect("an answer").is_run(1);
    shop.buy("k-1").await.is_replay_of(1);
    assert_eq!(shop.upstream.runs(), 1);
}

/// A record without what changes as time goes by.
fn lasting(mut record: Value) -> Value {
    let members = record.as_object_mut().expect("a record");
    members.retain(|name, _| !name.ends_with("expires_in_ms"));
    record
}
