//! Goal: a person reads what a problem means and what to do, on any device and without scripts.
//!
//! Method: the list of problems and each page that it leads to, in a real browser.

use crate::console::{Console, shows};

#[tokio::test]
async fn list_leads_to_every_problem_on_a_phone_without_scripts() {
    let console = Console::open().await;
    let page = console.visit("livez").await;
    page.disable_javascript().await;
    page.resize(375, 812).await;
    page.goto(&console.url("problems")).await;
    let links =
        page.eval("[...document.querySelectorAll('tbody a')].map(({ href }) => href)").await;
    let links = links.as_array().expect("links");
    assert!(links.len() > 40, "{links:?}");
    let fits = "document.documentElement.scrollWidth <= 375";
    assert_eq!(page.eval(fits).await, true, "the list");
    for link in ["lock-held", "outcome-unknown", "unauthenticated"] {
        page.goto(&console.url("problems")).await;
        page.click(&format!("a[href$='/problems/{link}']"), 1).await;
        shows(&page, "What to do").await;
        shows(&page, "curl ").await;
        assert_eq!(page.eval(fits).await, true, "{link}");
    }
}

#[tokio::test]
async fn problems_and_unknown_paths_keep_the_menu() {
    let console = Console::open().await;
    for path in ["problems", "problems/lock-held", "no/such/page"] {
        let page = console.visit(path).await;
        page.click("nav a[href$='#/locks']", 1).await;
        page.until("document.querySelector('h1')?.textContent === 'Locks'").await;
    }
    shows(&console.visit("no/such/page").await, "There is no such page").await;
}

#[tokio::test]
async fn commands_are_for_the_service_that_shows_them_and_are_copied() {
    let console = Console::open().await;
    let page = console.visit("problems/lock-held").await;
    page.allow_clipboard().await;
    shows(&page, &format!("curl {}/v1/locks/deploy", console.service.address)).await;
    page.click("pre + button", 1).await;
    page.until("document.querySelector('#said').textContent === 'Copied.'").await;
}
