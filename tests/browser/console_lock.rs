//! Goal: an operator sees who holds a lock and who waits for it, and breaks a lease once a reason
//! is given and the question is answered twice; by keyboard as well. Reasons and labels are text.
//!
//! Method: the page of one lock in a real browser, and what the service says of the lock after it.

use keylatch_testkit::{Answer, Keyring, Service, soon};
use reqwest::Method;
use serde_json::json;

use crate::console::{Console, MARKUP, fits_a_phone, runs_no_markup, shows, sign_in, tab_to};

async fn history(service: &Service, name: &str) -> serde_json::Value {
    service.get(&format!("/v1/locks/{name}/history")).await.json["ends"].clone()
}

#[tokio::test]
async fn holder_and_queue_are_shown_in_order() {
    let console = Console::open().await;
    let service = &console.service;
    let held = service.create("deploy", &json!({"owner": "alice", "ttl_ms": 60_000})).await;
    let wait = async |owner: &str| {
        let body = json!({"owner": owner, "wait_ms": 60_000});
        Answer::of(service.request(Method::POST, "/v1/locks/deploy").json(&body)).await
    };
    let queued = async |count: u64| {
        service.has_waiting("deploy", count).await;
    };
    let (first, second) = (wait("first in line"), wait("second in line"));
    let look = async {
        queued(2).await;
        let page = console.visit("#/locks/deploy").await;
        shows(&page, "alice").await;
        let names = "[...document.querySelectorAll('.queue b')].map(({ textContent }) => textContent).join()";
        page.until(&format!("{names} === 'first in line,second in line'")).await;
        page.until("[...document.querySelectorAll('.queue time')].every((time) => /^for [0-9]+ s$/.test(time.textContent) && time.dateTime)").await;
        service.release("deploy", &held.token()).await;
        page.until(&format!("{names} === 'second in line'")).await;
    };
    let second = async {
        queued(1).await;
        tokio::select! {
            answer = second => panic!("{answer:?}"),
            () = std::future::pending() => {}
        }
    };
    tokio::select! {
        () = look => {}
        () = second => {}
        () = async { first.await; std::future::pending().await } => {}
    }
}

#[tokio::test]
async fn earlier_grants_are_shown_with_their_releases() {
    let console = Console::open().await;
    let service = &console.service;
    let held = service.create("deploy", &json!({"owner": MARKUP})).await;
    let page = console.visit_until("#/locks/deploy", "No earlier grant is remembered.").await;
    service.release("deploy", &held.token()).await;
    page.until("document.querySelector('.ends .badge')?.textContent === 'released'").await;
    let owner = page.eval("document.querySelector('.ends b').textContent").await;
    assert_eq!(owner, MARKUP);
    shows(&page, &format!("fencing token {}", held.fencing_token())).await;
    shows(&page, "releases only from this instance, which started").await;
    runs_no_markup(&page).await;
}

#[tokio::test]
async fn break_needs_a_reason_and_is_asked_twice() {
    let console = Console::open().await;
    let held = console.service.create("deploy", &json!({"owner": "runner 7"})).await;
    let page = console.visit_until("#/locks/deploy", "Break the lease…").await;
    page.click("section .buttons button", 1).await;
    let button = "dialog .danger";
    page.click(button, 1).await;
    // The browser asks for the reason, and nothing was sent.
    page.until("document.querySelector('dialog :invalid') !== null").await;
    page.eval("document.querySelector('#reason').focus()").await;
    page.type_text(&format!("gone {MARKUP}")).await;
    page.click(button, 1).await;
    shows(&page, "may still be at work").await;
    assert!(console.service.look("deploy").await.json["broken"].is_null());
    page.click(button, 1).await;
    shows(&page, &format!("gone {MARKUP}")).await;
    page.until("document.querySelector('dialog') === null").await;
    let broken = console.service.look("deploy").await.json["broken"].clone();
    assert_eq!(broken["reason"], format!("gone {MARKUP}"));
    let renewed = console.service.renew("deploy", &held.token(), &json!({})).await;
    renewed.is_problem(409, "lock-broken");
    runs_no_markup(&page).await;
}

#[tokio::test]
async fn lease_is_broken_by_keyboard_alone() {
    let console = Console::open().await;
    console.service.create("deploy", &json!({"owner": "runner 7"})).await;
    let page = console.visit_until("#/locks/deploy", "Break the lease…").await;
    tab_to(&page, "at.textContent === 'Break the lease…'").await;
    page.press("Enter").await;
    page.until("document.activeElement.id === 'reason'").await;
    page.press("Escape").await;
    page.until("document.querySelector('dialog') === null").await;
    tab_to(&page, "at.textContent === 'Break the lease…'").await;
    page.press("Enter").await;
    page.until("document.activeElement.id === 'reason'").await;
    page.type_text("runner 7 is gone").await;
    tab_to(&page, "at.id === 'at-once'").await;
    page.press(" ").await;
    for text in ["Break the lease", "Yes, break it"] {
        tab_to(&page, &format!("at.textContent === '{text}'")).await;
        page.press("Enter").await;
    }
    soon("the end of the lease", async {
        while history(&console.service, "deploy").await[0]["reason"] != "runner 7 is gone" {
            tokio::task::yield_now().await;
        }
    })
    .await;
    shows(&page, "No client holds the lock.").await;
    shows(&page, "runner 7 is gone").await;
}

#[tokio::test]
async fn reader_has_no_button_to_break() {
    let mut keyring = Keyring::default();
    let key = keyring.add("reader", "allow = [{ locks = \"\", may = [\"read\"] }]");
    let worker = keyring.add("worker", "allow = [{ locks = \"\", may = [\"acquire\"] }]");
    let console = Console::over(Service::start_with(keyring.config()).await).await;
    let create = console.service.request(Method::POST, "/v1/locks/deploy").bearer_auth(worker);
    assert_eq!(Answer::of(create).await.status, 201);
    let page = console.visit("livez").await;
    page.goto(&console.url("#/locks/deploy")).await;
    sign_in(&page, &key).await;
    shows(&page, "worker").await;
    shows(&page, "No client waits.").await;
    assert_eq!(page.eval("document.querySelectorAll('main section .buttons').length").await, 0);
}

#[tokio::test]
async fn lock_with_a_name_of_markup_is_shown_as_text() {
    let console = Console::open().await;
    let name = "%3Cimg%20src%3Dx%20onerror%3D%22window.hacked%20%3D%20true%22%3E";
    console.service.create(name, &json!({"owner": MARKUP})).await;
    let page = console.visit(&format!("#/locks/{name}")).await;
    page.until("document.querySelector('h1')?.textContent.startsWith('<img') ?? false").await;
    page.until("document.querySelector('.holder .big')?.textContent.startsWith('<img') ?? false")
        .await;
    runs_no_markup(&page).await;
    page.eval("document.querySelector('.commands').open = true").await;
    fits_a_phone(&page, name).await;
}
