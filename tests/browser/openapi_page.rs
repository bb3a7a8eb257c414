//! Goal: a person tries the API in Swagger UI, in the order of the story, also where it asks for a
//! key.
//!
//! Method: the page at `/docs/` in a real browser, by its own buttons.

use keylatch_testkit::{Browser, Keyring, Page, Service};
use serde_json::{Value, json};

use crate::console::shows;

const READER: &str = "allow = [{ locks = \"\", may = [\"read\"] }]";
/// The operation that lists locks.
const LIST: &str = "#operations-locks-listLocks";

/// Presses Execute and gives the status that the page shows.
async fn execute(page: &Page, operation: &str) -> Value {
    page.click(&format!("{operation} .execute"), 1).await;
    let status = format!(
        "document.querySelector('{operation} .live-responses-table .response .response-col_status')"
    );
    page.until(&format!("Boolean({status})")).await;
    page.eval(&format!("parseInt({status}.textContent)")).await
}

/// Waits for an element and clicks it.
async fn press(page: &Page, selector: &str) {
    page.until(&format!("Boolean(document.querySelector('{selector}'))")).await;
    page.click(selector, 1).await;
}

#[tokio::test]
async fn authorize_button_sends_the_key() {
    let (service, _keyring, key) = Keyring::serve("reader", READER).await;
    let browser = Browser::start().await;
    let page = browser.open(&format!("http://{}/docs/", service.address)).await;
    press(&page, ".auth-wrapper .authorize").await;
    let field = "#auth-bearer-value";
    page.until(&format!("Boolean(document.querySelector('{field}'))")).await;
    // The page takes what is typed, and not what a script sets.
    page.eval(&format!("document.querySelector('{field}').focus()")).await;
    page.type_text(&key).await;
    press(&page, ".auth-container .authorize").await;
    press(&page, ".auth-container .btn-done").await;
    press(&page, &format!("{LIST} .opblock-summary-control")).await;
    press(&page, &format!("{LIST} .try-out__btn")).await;
    assert_eq!(execute(&page, LIST).await, 200);
}

const CREATE: &str = "#operations-locks-createLock";

/// A page whose operation `selector` is open and can be tried.
async fn tried(browser: &Browser, service: &Service, selector: &str) -> Page {
    let page = browser.open(&format!("http://{}/docs/", service.address)).await;
    press(&page, &format!("{selector} .opblock-summary-control")).await;
    press(&page, &format!("{selector} .try-out__btn")).await;
    page
}

/// What a field of the operation is filled with.
async fn value(page: &Page, selector: &str, parameter: &str) -> String {
    let field = format!(
        "document.querySelector('{selector} tr[data-param-name={parameter:?}] input')?.value"
    );
    page.until(&format!("Boolean({field})")).await;
    page.eval(&field).await.as_str().expect("a text").to_owned()
}

#[tokio::test]
async fn two_browsers_share_no_lease() {
    let service = Service::start("memory:").await;
    let browser = Browser::start().await;
    let [ann, bob] =
        [tried(&browser, &service, CREATE).await, tried(&browser, &service, CREATE).await];
    let tokens = [value(&ann, CREATE, "Lock-Token").await, value(&bob, CREATE, "Lock-Token").await];
    assert_ne!(tokens[0], tokens[1]);
    assert_eq!(execute(&ann, CREATE).await, 201);
    assert_eq!(execute(&bob, CREATE).await, 409);
}

#[tokio::test]
async fn key_of_an_order_is_found_by_what_is_filled_in() {
    let service = Service::start("memory:").await;
    let browser = Browser::start().await;
    let order = "#operations-guarded-createOrder";
    let page = tried(&browser, &service, order).await;
    assert_eq!(execute(&page, order).await, 201);
    let look = "#operations-idempotency-getIdempotency";
    press(&page, &format!("{look} .opblock-summary-control")).await;
    press(&page, &format!("{look} .try-out__btn")).await;
    let filled = [value(&page, look, "method").await, value(&page, look, "path").await];
    assert_eq!(filled, ["POST", "/v1/orders"]);
    assert_eq!(execute(&page, look).await, 200);
}

#[tokio::test]
async fn page_says_what_to_try_and_what_each_call_is_about() {
    let service = Service::start("memory:").await;
    let browser = Browser::start().await;
    let page = browser.open(&format!("http://{}/docs/", service.address)).await;
    shows(&page, "Try these in order").await;
    shows(&page, "Create an order").await;
    let bare = "[...document.querySelectorAll('.opblock-summary-description')]
        .map(({ textContent }) => textContent).filter((text) => !text.includes(' '))";
    page.until("document.querySelectorAll('.opblock').length > 10").await;
    assert_eq!(page.eval(bare).await, json!([]));
    for (scheme, is_dark) in [("dark", true), ("light", false)] {
        page.emulate_scheme(scheme).await;
        let dark = "getComputedStyle(document.querySelector('.swagger-ui')).backgroundColor === 'rgb(28, 32, 34)'";
        page.until(&format!("({dark}) === {is_dark}")).await;
    }
}

#[tokio::test]
async fn padlocks_are_for_a_service_with_identities() {
    const PADLOCKS: &str = "document.querySelectorAll('.authorize, .authorization__btn').length";
    let (guarded, _keyring, _) = Keyring::serve("reader", READER).await;
    let open = Service::start("memory:").await;
    let browser = Browser::start().await;
    for (service, has_padlocks) in [(&open, false), (&guarded, true)] {
        let page = browser.open(&format!("http://{}/docs/", service.address)).await;
        page.until("document.querySelectorAll('.opblock').length > 10").await;
        assert_eq!(page.eval(&format!("{PADLOCKS} > 0")).await, has_padlocks);
    }
}

#[tokio::test]
async fn page_has_the_title_the_order_and_the_width_of_the_service() {
    let service = Service::start("memory:").await;
    let browser = Browser::start().await;
    let page = browser.open(&format!("http://{}/docs/", service.address)).await;
    page.resize(375, 812).await;
    page.until("document.querySelectorAll('#operations-tag-locks').length + document.querySelectorAll('.opblock').length > 10").await;
    assert_eq!(page.eval("document.title").await, "API · keylatch");
    assert_eq!(page.eval("innerWidth").await, 375);
    let of_locks = "[...document.querySelectorAll('[id^=operations-locks-]')].map(({ id }) => id.slice(17)).join()";
    let order = page.eval(of_locks).await;
    let order = order.as_str().expect("operations");
    assert!(
        order.starts_with("createLock,renewLock,releaseLock,getLock,holdLock,watchLock"),
        "{order}"
    );
}
