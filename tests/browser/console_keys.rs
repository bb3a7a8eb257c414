//! Goal: an operator who has only the console finds the one payment whose outcome is unknown, and
//! settles it; and settles many at once. What clients wrote is text.
//!
//! Method: records of all states at a service (10,000 payments, one of which failed), the page of
//! the keys in a real browser, and what the service says of the keys after it.

use std::time::{Duration, Instant};

use keylatch_core::idempotency::{
    BeginCommand, Fingerprint, IdempotencyKey, OnCrash, Principal, RecordScope, RunEnd, Scope,
    StoredResponse,
};
use keylatch_core::lock::Token;
use keylatch_testkit::{Answer, Keyring, Page, Service, eventually};
use reqwest::Method;
use serde_json::{Value, json};

use crate::console::{Console, fits_a_phone, runs_no_markup, shows, sign_in, tab_to};

/// How many keys the table has until the user wants more.
const PAGE: usize = 200;
const MARKUP: &str = "%3Cimg%20src%3Dx%20onerror%3D%22window.hacked%20%3D%20true%22%3E";

async fn send(service: &Service, method: Method, key: &str, path: &str, body: &Value) -> Answer {
    let url = format!("/v1/idempotency/{key}?method=POST&path={path}");
    Answer::of(service.request(method, &url).json(body)).await
}

/// A run that is under way for so long, and then nothing is known of it.
async fn begin(service: &Service, key: &str, path: &str, lease_ms: u64) {
    let begun = send(service, Method::POST, key, path, &json!({"lease_ms": lease_ms})).await;
    assert_eq!(begun.status, 201, "{begun:?}");
}

/// Waits until so many outcomes are unknown.
async fn lost(service: &Service, count: usize) {
    eventually(async || {
        let page = service.get("/v1/idempotency?state=unknown&limit=1000").await.json;
        (page["records"].as_array().map(Vec::len) == Some(count)).then_some(())
    })
    .await;
}

async fn state_of(service: &Service, key: &str, path: &str) -> Value {
    let found = service.get(&format!("/v1/idempotency/{key}?method=POST&path={path}")).await;
    found.json["state"].clone()
}

async fn choose(page: &Page, outcome: &str) {
    page.until("document.querySelector('dialog') !== null").await;
    page.click(&format!("dialog [value={outcome}]"), 1).await;
}

async fn say_why(page: &Page, reason: &str) {
    page.eval("document.querySelector('#reason').focus()").await;
    page.type_text(reason).await;
}

/// How many payments were made.
const PAYMENTS: usize = 10_000;
/// The one that failed behind keylatch.
const FAILED: usize = 6_171;

/// A service with records of all other payments, as its guarded route leaves them.
async fn paid() -> Service {
    let store = keylatch_stores::memory();
    let scope =
        Scope { principal: &Principal::None, method: "POST", path: "/v1/payments", source: "" };
    let token = Token::generate().expect("randomness").hash();
    for number in (0..PAYMENTS).filter(|number| *number != FAILED) {
        let key = IdempotencyKey::parse(&format!("payment-{number}")).expect("a key");
        let ask = BeginCommand {
            key: scope.record(&key),
            scope: RecordScope::new(&scope, &key),
            token,
            fingerprint: Fingerprint::of_text("a payment"),
            lease: Duration::from_secs(60),
            retention: Duration::from_secs(3600),
            on_crash: OnCrash::Unknown,
            has_room: true,
        };
        store.begin(&ask).await.expect("it begins");
        let end = RunEnd::Done(StoredResponse::Mark(201));
        store.complete(&ask.key, &token, end).await.expect("it ends");
    }
    Service::over(store).await
}

/// Makes the payment that fails behind keylatch, by the guarded route.
async fn pay(service: &Service) -> Answer {
    let payment = service.request(Method::POST, "/v1/payments");
    let payment = payment.header("Idempotency-Key", format!("payment-{FAILED}"));
    let payment = payment.header("X-Request-Id", "request-7f3a");
    Answer::of(payment.json(&json!({"amount": 1999, "currency": "EUR", "fail": 500}))).await
}

#[tokio::test]
#[expect(clippy::print_stderr, reason = "how long it takes is said and not asserted")]
async fn one_unknown_payment_among_ten_thousand_is_found_and_settled() {
    let console = Console::over(paid().await).await;
    assert_eq!(pay(&console.service).await.status, 500);
    let page = console.visit("").await;
    let began = Instant::now();
    shows(&page, "1 unknown outcome").await;
    shows(&page, "9,999").await;
    page.click(".banner a", 1).await;
    page.until("document.querySelectorAll('tbody tr').length === 1").await;
    page.click_on(
        "[...document.links].find(({ textContent }) => textContent.startsWith('payment-'))",
        1,
    )
    .await;
    // The list has the words of the key's own page too.
    shows(&page, "‹ All keys").await;
    shows(&page, "POST /v1/payments").await;
    shows(&page, "the upstream responded with 500").await;
    shows(&page, "request-7f3a").await;
    assert_eq!(
        page.eval("document.querySelector('.facts a').pathname").await,
        "/problems/outcome-unknown"
    );
    page.click("section .buttons button", 1).await;
    choose(&page, "completed").await;
    page.click("#body", 1).await;
    page.type_text("{\"id\": 7}").await;
    page.click("#reason", 1).await;
    page.type_text("the bank has it").await;
    page.click("dialog .buttons button", 1).await;
    shows(&page, "The response that retries get").await;
    eprintln!(
        "found and settled by 7 presses and 2 texts in {:.1} s",
        began.elapsed().as_secs_f64()
    );
    shows(&page, "Settled by an operator: the bank has it").await;
    shows(&page, "application/json").await;
    let repeat = pay(&console.service).await;
    assert_eq!((repeat.status.as_u16(), &repeat.json), (200, &json!({"id": 7})), "{repeat:?}");
    assert_eq!(repeat.header("idempotent-replayed"), "true");
}

#[tokio::test]
async fn keys_are_found_by_their_beginnings_in_each_state() {
    let console = Console::open().await;
    let service = &console.service;
    for key in ["payment-1", "payment-2", "order-1"] {
        begin(service, key, "/payments", 1500).await;
    }
    lost(service, 3).await;
    begin(service, "payment-3", "/payments", 60_000).await;
    let page = console.visit_until("#/keys", "3 shown, the oldest first.").await;
    page.click("#key-prefix", 1).await;
    page.type_text("payment-").await;
    shows(&page, "2 shown").await;
    page.type_text("2").await;
    shows(&page, "1 shown").await;
    assert_eq!(page.eval("document.querySelector('tbody a').textContent").await, "payment-2");
    page.type_text("2").await;
    shows(&page, "There is none.").await;
    for _ in 0..2 {
        page.press("Backspace").await;
    }
    page.click("[value=in-flight]", 1).await;
    shows(&page, "1 shown").await;
    assert_eq!(page.eval("document.querySelector('tbody a').textContent").await, "payment-3");
}

#[tokio::test]
async fn oldest_of_many_unknown_keys_are_first() {
    let console = Console::open().await;
    let service = &console.service;
    begin(service, "oldest", "/payments", 1500).await;
    lost(service, 1).await;
    // More than fit into the table at first, and all of them younger by more than the clock's step.
    for number in 0..PAGE + 20 {
        begin(service, &format!("payment-{number}"), "/payments", 1500).await;
    }
    lost(service, PAGE + 21).await;
    let page = console.visit_until("#/keys", "200 of 221 shown, the oldest first.").await;
    assert_eq!(page.eval("document.querySelector('tbody a').textContent").await, "oldest");
    page.click("section .buttons .small", 1).await;
    shows(&page, "221 shown, the oldest first.").await;
    assert_eq!(page.eval("document.querySelectorAll('tbody a').length").await, 221);
}

#[tokio::test]
async fn many_keys_are_settled_at_once() {
    let console = Console::open().await;
    for number in 0..30 {
        begin(&console.service, &format!("payment-{number}"), "/payments", 1500).await;
    }
    lost(&console.service, 30).await;
    let page = console.visit_until("#/keys", "30 shown").await;
    page.click("tbody input", 1).await;
    shows(&page, "Settle the key that is selected…").await;
    page.click(".select-all input", 1).await;
    shows(&page, "Settle the 30 keys that are selected…").await;
    page.click("section .buttons button", 1).await;
    choose(&page, "not-executed").await;
    say_why(&page, "the bank was down").await;
    page.click("dialog .buttons button", 1).await;
    shows(&page, "Nothing needs you.").await;
    for key in ["payment-0", "payment-29"] {
        assert_eq!(
            state_of(&console.service, key, "/payments").await,
            Value::Null,
            "{key} is free"
        );
    }
}

#[tokio::test]
async fn keys_in_flight_are_shown_page_by_page() {
    let console = Console::open().await;
    for number in 0..210 {
        begin(&console.service, &format!("order-{number}"), "/orders", 60_000).await;
    }
    let page = console.visit_until("#/keys", "Nothing needs you.").await;
    page.click("[value=in-flight]", 1).await;
    shows(&page, "200 and more shown").await;
    page.click("section .buttons .small", 1).await;
    shows(&page, "210 shown").await;
    assert_eq!(page.eval("document.querySelectorAll('tbody a').length").await, 210);
    assert_eq!(page.eval("document.querySelectorAll('tbody input').length").await, 0);
}

#[tokio::test]
async fn refusal_is_shown_and_the_others_are_settled() {
    let console = Console::open().await;
    for key in ["payment-1", "payment-2"] {
        begin(&console.service, key, "/payments", 1500).await;
    }
    lost(&console.service, 2).await;
    let page = console.visit_until("#/keys", "2 shown").await;
    page.click(".select-all input", 1).await;
    page.click("section .buttons button", 1).await;
    // Another operator is faster, and the next run is lost as well: that one is not meant.
    let url = "/v1/idempotency/payment-1/resolve?method=POST&path=/payments";
    let freed = console.service.request(Method::POST, url);
    assert_eq!(Answer::of(freed.json(&json!({"outcome": "not-executed"}))).await.status, 204);
    begin(&console.service, "payment-1", "/payments", 1500).await;
    lost(&console.service, 2).await;
    choose(&page, "not-executed").await;
    say_why(&page, "the bank was down").await;
    page.click("dialog .buttons button", 1).await;
    shows(&page, "1 settled, 1 not. payment-1: Only an unknown outcome can be resolved").await;
    assert_eq!(state_of(&console.service, "payment-1", "/payments").await, "unknown");
    assert_eq!(state_of(&console.service, "payment-2", "/payments").await, Value::Null);
}

#[tokio::test]
async fn key_is_settled_by_keyboard_alone() {
    let console = Console::open().await;
    begin(&console.service, "payment-7", "/payments", 1500).await;
    lost(&console.service, 1).await;
    let page = console.visit_until("", "1 unknown outcome").await;
    for text in ["Keys", "payment-7", "Settle it…"] {
        page.until(&format!(
            "document.querySelector('main').innerText.includes('{text}') || '{text}' === 'Keys'"
        ))
        .await;
        tab_to(&page, &format!("at.textContent === '{text}'")).await;
        page.press("Enter").await;
    }
    page.until("document.querySelector('dialog') !== null").await;
    tab_to(&page, "at.name === 'outcome'").await;
    page.press(" ").await;
    tab_to(&page, "at.id === 'reason'").await;
    page.type_text("the bank has nothing").await;
    tab_to(&page, "at.textContent === 'Settle it'").await;
    page.press("Enter").await;
    shows(&page, "There is no record of this key").await;
    assert_eq!(state_of(&console.service, "payment-7", "/payments").await, Value::Null);
}

#[tokio::test]
async fn glance_that_is_drawn_again_leaves_the_focus_where_it_is() {
    let console = Console::open().await;
    begin(&console.service, "payment-7", "/payments", 1500).await;
    lost(&console.service, 1).await;
    let page = console.visit_until("", "1 unknown outcome").await;
    tab_to(&page, "at.textContent === 'Review 1'").await;
    begin(&console.service, "payment-8", "/payments", 1500).await;
    shows(&page, "2 unknown outcomes").await;
    assert_eq!(page.eval("document.activeElement.textContent").await, "Review 2");
}

#[tokio::test]
async fn keys_and_paths_are_text_and_fit_a_phone() {
    let console = Console::open().await;
    let key = "%3Cimg/src=x/onerror=window.hacked=1%3E";
    let key = key.replace('/', "%2F").replace('=', "%3D");
    begin(&console.service, &key, MARKUP, 100).await;
    lost(&console.service, 1).await;
    for view in ["#/keys".to_owned(), format!("#/keys/{key}?method=POST&path={MARKUP}&principal=")]
    {
        let page = console.visit(&view).await;
        page.until("document.querySelector('main').innerText.includes('<img/src=x')").await;
        page.until("document.querySelector('main').innerText.includes('the run was cut off')")
            .await;
        runs_no_markup(&page).await;
        fits_a_phone(&page, &view).await;
    }
}

#[tokio::test]
async fn reader_has_no_button_to_settle() {
    let mut keyring = Keyring::default();
    let shop = keyring.add("shop", "allow = [{ keys = \"\", may = [\"use\"] }]");
    let lines = "act_for = [\"*\"]\nallow = [{ keys = \"\", may = [\"read\"] }]";
    let reader = keyring.add("reader", lines);
    let console = Console::over(Service::start_with(keyring.config()).await).await;
    let begin = console.service.request(Method::POST, "/v1/idempotency/payment-7");
    let begun = begin.bearer_auth(&shop).json(&json!({"lease_ms": 1500}));
    assert_eq!(Answer::of(begun).await.status, 201);
    let page = console.visit("livez").await;
    page.goto(&console.url("#/keys/payment-7?principal=shop")).await;
    sign_in(&page, &reader).await;
    shows(&page, "the run was cut off").await;
    assert_eq!(page.eval("document.querySelectorAll('main .buttons').length").await, 0);
}
