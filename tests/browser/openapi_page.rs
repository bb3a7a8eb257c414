//! Goal: a person tries the API in Swagger UI, in the order of the story, also where it asks for a
//! key.
//!
//! Method: the page at `/docs/` in a real browser, by its own buttons.

use keylatch_testkit::{Browser, Keyring, Page, Service};
use serde_json::Value;

const READER: &str = "allow = [{ locks = \"\", may = [\"read\"] }]";
/// The operation that lists locks.
const LIST: &str = "#operations-locks-listLocks";

/// Presses Execute and gives the status that the page shows.
async fn execute(page: &Page) -> Value {
    page.click(&format!("{LIST} .execute"), 1).await;
    let status = format!(
        "document.querySelector('{LIST} .live-responses-table .response .response-col_status')"
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
    assert_eq!(execute(&page).await, 200);
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
