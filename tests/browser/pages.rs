//! Goal: whatever a person does on `/demo`, one intent is one order.
//!
//! Method: clicks, reloads, lost networks and copied tabs in a real browser, and a count of the
//! orders at the service. Its visitors have no key of keylatch, so it is the same where the API
//! asks for one.

use keylatch_testkit::{Browser, Keyring, Page, PausedRequest, Proxy, Service, eventually, soon};
use serde_json::Value;

use crate::console::note_violations;

const POST: &str = "*/v1/orders";

/// A shop, and a browser to visit it.
struct Shop {
    service: Service,
    browser: Browser,
    _keyring: Option<Keyring>,
}

impl Shop {
    async fn open() -> Self {
        let (service, browser) = (Service::start("memory:").await, Browser::start().await);
        Self { service, browser, _keyring: None }
    }

    /// A shop beside an API that asks for a key.
    async fn open_with_identities() -> Self {
        let mut keyring = Keyring::default();
        keyring.add("ci", "allow = []");
        let service = Service::start_with(keyring.config()).await;
        service.get("/v1/locks").await.is_problem(401, "unauthenticated");
        Self { service, browser: Browser::start().await, _keyring: Some(keyring) }
    }

    fn url(&self) -> String {
        format!("http://{}/demo", self.service.address)
    }

    /// The page, with a shop that takes no time.
    async fn visit(&self) -> Page {
        let page = self.browser.open(&self.url()).await;
        ready(&page).await;
        page
    }

    async fn orders(&self) -> usize {
        let orders = self.service.get("/v1/orders").await;
        orders.json["orders"].as_array().expect("a list").len()
    }
}

async fn visited() -> (Shop, Page) {
    let shop = Shop::open().await;
    let page = shop.visit().await;
    (shop, page)
}

async fn ready(page: &Page) {
    page.until("!document.querySelector('#hammer').hidden").await;
    set(page, "delay_ms", "0").await;
}

async fn set(page: &Page, field: &str, value: &str) {
    page.eval(&format!("document.querySelector('[name={field}]').value = '{value}'")).await;
}

async fn buy(page: &Page) {
    page.click("#buy button", 1).await;
}

/// Waits until the page says it.
async fn says(page: &Page, text: &str) {
    page.until(&format!("document.querySelector('#answer').textContent.includes('{text}')")).await;
}

/// Waits until the newest attempt has become this.
async fn attempt_is(page: &Page, text: &str) {
    let badge = "document.querySelector('#attempts .badge')";
    page.until(&format!("{badge}?.textContent.includes('{text}') ?? false")).await;
}

/// Buys, and waits until the attempt has no answer; gives its key.
async fn buys_unheard(page: &Page) -> String {
    buy(page).await;
    let key = page.next_key().await;
    attempt_is(page, "no answer").await;
    key
}

async fn bought(page: &Page) -> String {
    buy(page).await;
    let key = page.next_key().await;
    says(page, "is placed").await;
    key
}

#[tokio::test]
async fn double_click_is_one_order() {
    click_twice(&Shop::open().await).await;
}

#[tokio::test]
async fn double_click_is_one_order_with_identities() {
    click_twice(&Shop::open_with_identities().await).await;
}

async fn click_twice(shop: &Shop) {
    let page = shop.visit().await;
    page.hold(POST).await;
    page.click("#buy button", 2).await;
    let first = post_of(&page).await;
    attempt_is(&page, "joined, not sent").await;
    let key = first.header("Idempotency-Key").to_owned();
    page.let_go(first).await;
    says(&page, "is placed").await;
    assert_eq!(shop.orders().await, 1);

    // The next request is of the next click: the second one has sent nothing.
    buy(&page).await;
    let next = post_of(&page).await;
    assert_ne!(next.header("Idempotency-Key"), key);
    page.hold_nothing().await;
    eventually(async || (shop.orders().await == 2).then_some(())).await;
}

/// The next POST that is held; the page also asks for the list.
async fn post_of(page: &Page) -> PausedRequest {
    let found = soon("a POST", async {
        loop {
            let held = page.held().await;
            if held.request["method"] == "POST" {
                return held;
            }
            page.let_go(held).await;
        }
    });
    found.await
}

#[tokio::test]
async fn concurrent_requests_are_one_order() {
    let (shop, page) = visited().await;
    page.click("#hammer", 1).await;
    says(&page, "One of the ten ran").await;
    assert_eq!(page.eval("document.querySelectorAll('#attempts li').length").await, 10);
    assert_eq!(shop.orders().await, 1);
}

#[tokio::test]
async fn reload_in_flight_is_one_order() {
    let (shop, page) = visited().await;
    set(&page, "delay_ms", "3000").await;
    page.click("[name=amount][value='8900']", 1).await;
    // The page must not read an answer before its reload, however slow the test is.
    page.hold_answers(POST).await;
    buy(&page).await;
    let key = page.next_key().await;
    let record = format!("/v1/idempotency/{}?method=POST&path=/v1/orders", key.trim_matches('"'));
    eventually(async || shop.service.get(&record).await.status.is_success().then_some(())).await;
    page.reload().await;
    page.hold_nothing().await;
    says(&page, "You left the page").await;
    buy(&page).await;
    assert_eq!(page.next_key().await, key);
    says(&page, "is placed. This is what the first attempt was answered").await;
    assert_eq!(shop.orders().await, 1);
}

#[tokio::test]
async fn offline_and_back_is_one_order() {
    let (shop, page) = visited().await;
    page.go_offline(true).await;
    let key = buys_unheard(&page).await;
    assert_eq!(shop.orders().await, 0);
    page.go_offline(false).await;
    assert_eq!(bought(&page).await, key);
    assert_eq!(shop.orders().await, 1);

    assert_ne!(bought(&page).await, key);
    assert_eq!(shop.orders().await, 2);
}

#[tokio::test]
async fn retry_reads_an_answer_that_was_lost_or_truncated() {
    let shop = Shop::open().await;
    let (page, proxy) = visit_by_proxy(&shop).await;
    for (orders, lose) in [(1, Proxy::lose_answers as fn(&Proxy)), (2, Proxy::lose_ends)] {
        lose(&proxy);
        let key = buys_unheard(&page).await;
        assert_eq!(shop.orders().await, orders);
        proxy.forward();
        assert_eq!(bought(&page).await, key);
        attempt_is(&page, "placed, replayed").await;
        assert_eq!(shop.orders().await, orders);
    }
}

#[tokio::test]
async fn order_edited_after_a_lost_answer_is_refused_visibly() {
    let shop = Shop::open().await;
    let (page, proxy) = visit_by_proxy(&shop).await;
    proxy.lose_answers();
    let key = buys_unheard(&page).await;
    proxy.forward();
    page.click("[name=amount][value='8900']", 1).await;
    buy(&page).await;
    assert_eq!(page.next_key().await, key);
    says(&page, "You changed the order").await;
    attempt_is(&page, "422 key reused").await;
    assert_eq!(shop.orders().await, 1);

    // A user that has read this and buys all the same wants both.
    assert_ne!(bought(&page).await, key);
    assert_eq!(shop.orders().await, 2);
}

#[tokio::test]
async fn unknown_order_is_not_placed_again_until_resolved() {
    let (shop, page) = visited().await;
    set(&page, "fail", "503").await;
    buy(&page).await;
    let key = page.next_key().await;
    attempt_is(&page, "503 failed").await;
    for _ in 0..2 {
        buy(&page).await;
        assert_eq!(page.next_key().await, key);
        attempt_is(&page, "409 outcome unknown").await;
    }
    page.click("#settle", 1).await;
    says(&page, "Settled").await;
    set(&page, "fail", "").await;
    assert_eq!(bought(&page).await, key);
    assert_eq!(shop.orders().await, 1);
}

#[tokio::test]
async fn other_cart_is_another_order() {
    let (shop, page) = visited().await;
    page.go_offline(true).await;
    let key = buys_unheard(&page).await;
    page.go_offline(false).await;
    page.eval("document.querySelector('#new-order').click()").await;
    assert_ne!(bought(&page).await, key);
    assert_eq!(shop.orders().await, 1);
}

#[tokio::test]
async fn page_loads_nothing_foreign_and_keeps_to_its_policy() {
    let shop = Shop::open().await;
    let page = shop.browser.open("about:blank").await;
    note_violations(&page).await;
    page.goto(&shop.url()).await;
    ready(&page).await;
    bought(&page).await;
    assert_eq!(page.eval("violations").await, serde_json::json!([]));
    let resources =
        "performance.getEntriesByType('resource').map(({name}) => new URL(name).origin)";
    let elsewhere = format!("{resources}.filter((origin) => origin !== location.origin)");
    assert_eq!(page.eval(&elsewhere).await, serde_json::json!([]));
    assert!(page.eval(&format!("{resources}.length >= 3")).await == true, "it loads its own");

    let answer = shop.service.get("/demo").await;
    assert!(answer.header("content-security-policy").starts_with("default-src 'self';"));
    assert!(!answer.text.contains("{{"), "every placeholder is filled in");
    assert_ne!(answer.text, shop.service.get("/demo").await.text, "each page has its own key");
}

/// The page by way of a proxy.
async fn visit_by_proxy(shop: &Shop) -> (Page, Proxy) {
    let proxy = Proxy::start(shop.service.address.to_string()).await;
    let page = shop.browser.open(&format!("http://{}/demo", proxy.address())).await;
    ready(&page).await;
    (page, proxy)
}

#[tokio::test]
async fn page_from_the_back_forward_cache_places_the_next_order() {
    let (shop, page) = visited().await;
    let field = "document.querySelector('[name=idempotency_key]').value";
    let served = page.eval(field).await;
    let key = bought(&page).await;
    page.goto(&format!("http://{}/livez", shop.service.address)).await;
    assert_eq!(page.back().await, "BackForwardCacheRestore");
    page.until("document.querySelector('#answer').textContent.includes('is placed')").await;
    assert_ne!(page.eval(field).await, served);
    assert_ne!(bought(&page).await, key);
    eventually(async || (shop.orders().await == 2).then_some(())).await;
}

#[tokio::test]
async fn order_in_flight_is_not_placed_again_after_leaving_the_page() {
    let (shop, page) = visited().await;
    page.hold_answers(POST).await;
    buy(&page).await;
    let key = page.next_key().await;
    eventually(async || (shop.orders().await == 1).then_some(())).await;
    page.goto(&format!("http://{}/livez", shop.service.address)).await;
    assert_eq!(page.back().await, "BackForwardCacheRestore");
    says(&page, "You left the page").await;
    // The first answer is still held, and the page does not wait for it.
    buy(&page).await;
    assert_eq!(page.next_key().await, key);
    page.hold_nothing().await;
    says(&page, "is placed").await;
    assert_eq!(shop.orders().await, 1);
}

#[tokio::test]
async fn page_opened_twice_is_two_orders() {
    let shop = Shop::open().await;
    let (one, other) = (shop.visit().await, shop.visit().await);
    assert_ne!(bought(&one).await, bought(&other).await);
    assert_eq!(shop.orders().await, 2);
}

#[tokio::test]
async fn duplicated_tab_is_the_same_order() {
    let (shop, page) = visited().await;
    page.go_offline(true).await;
    let key = buys_unheard(&page).await;
    page.go_offline(false).await;
    page.eval("void window.open('/demo')").await;
    let copy = shop.browser.opened_by_script(&shop.url()).await;
    ready(&copy).await;
    assert_eq!(bought(&copy).await, key);
    assert_eq!(bought(&page).await, key);
    assert_eq!(shop.orders().await, 1);
}

#[tokio::test]
async fn plain_form_is_one_order() {
    send_plain_form(&Shop::open().await).await;
}

#[tokio::test]
async fn plain_form_is_one_order_with_identities() {
    send_plain_form(&Shop::open_with_identities().await).await;
}

async fn send_plain_form(shop: &Shop) {
    let page = shop.browser.open("about:blank").await;
    page.disable_javascript().await;
    page.goto(&shop.url()).await;
    set(&page, "delay_ms", "0").await;
    buy(&page).await;
    page.until("location.search.startsWith('?order=')").await;
    let order = page.eval("location.search").await;
    page.until(
        "document.querySelector('main > .note').innerText.includes(location.search.slice(7))",
    )
    .await;
    page.reload().await;
    assert_eq!(shop.orders().await, 1);

    // Sent again by the page before, the same form leads to the same order.
    page.back().await;
    page.until("location.search === ''").await;
    set(&page, "delay_ms", "0").await;
    buy(&page).await;
    page.until("location.search.startsWith('?order=')").await;
    assert_eq!(page.eval("location.search").await, order);
    assert_eq!(shop.orders().await, 1);

    // A reload gives a new form.
    set(&page, "delay_ms", "0").await;
    buy(&page).await;
    let query = order.as_str().expect("a query").to_owned();
    page.until(&format!("location.search.length > 1 && location.search !== '{query}'")).await;
    assert_eq!(shop.orders().await, 2);
}

#[tokio::test]
async fn form_without_key_and_javascript_is_one_order_when_it_is_clicked_twice() {
    let shop = Shop::open().await;
    let page = shop.browser.open("about:blank").await;
    page.disable_javascript().await;
    page.goto(&shop.url()).await;
    assert_eq!(
        page.eval("document.querySelector('.keyless [name=idempotency_key]')").await,
        Value::Null
    );
    page.click(".keyless button", 2).await;
    page.until("location.search.startsWith('?order=')").await;
    assert_eq!(shop.orders().await, 1);
    let order = page.eval("location.search").await;
    // Nor does a third click on the next page make another.
    page.click(".keyless button", 1).await;
    page.until("location.search.startsWith('?order=')").await;
    assert_eq!((page.eval("location.search").await, shop.orders().await), (order, 1));
}

#[tokio::test]
async fn reloaded_refusal_of_a_plain_form_stays_the_same() {
    let shop = Shop::open().await;
    let page = shop.browser.open("about:blank").await;
    page.disable_javascript().await;
    page.goto(&shop.url()).await;
    set(&page, "delay_ms", "0").await;
    set(&page, "fail", "402").await;
    buy(&page).await;
    page.until("location.pathname === '/v1/orders'").await;
    let refusal = page.eval("document.body.textContent").await;
    // The browser posts the form again.
    page.reload().await;
    assert_eq!(page.eval("document.body.textContent").await, refusal);
    assert_ne!(refusal, Value::Null);
    assert_eq!(shop.orders().await, 0);
}
