//! Goal: a person tries the API in Swagger UI, also where it asks for a key.
//!
//! Method: the page at `/docs/` in a real browser, by its own buttons.

use keylatch_testkit::{Browser, Keyring, Page, Service};
use serde_json::Value;

const READER: &str = "allow = [{ locks = \"\", may = [\"read\"] }]";
/// The operation that lists locks.
const LIST: &str = "#operations-locks-list";

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
    let mut keyring = Keyring::default();
    let key = keyring.add("reader", READER);
    let service = Service::start_with(keyring.config()).await;
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
