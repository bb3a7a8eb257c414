//! Goal: the console says what is wrong and what to do about it, and shows what only some services
//! have: charts, several holders, a store without records.
//!
//! Method: each of these services, or an answer in place of one where that would take 20,000 locks.

use std::time::{Duration, Instant};

use keylatch::http::{Guard, Mode};
use keylatch_testkit::{
    EventStream, Page, RedisServer, RedlockNodes, Service, Upstream, config, eventually,
    guard_orders,
};
use reqwest::Method;
use serde_json::json;

use crate::console::{Console, shows, sign_in};

/// Waits until the page does not show a text any more.
async fn hides(page: &Page, text: &str) {
    page.until(&format!("!document.body.innerText.includes('{text}')")).await;
}

/// The names in the first column of the table.
async fn first_lock(page: &Page, name: &str) {
    page.until(&format!("document.querySelector('tbody th')?.textContent === '{name}'")).await;
}

/// Presses the head of a column.
async fn sort_by(page: &Page, column: &str) {
    let head = format!(
        "[...document.querySelectorAll('th button')].find(({{ textContent }}) => textContent === '{column}')"
    );
    page.click_on(&head, 1).await;
}

#[tokio::test]
async fn locks_are_sorted_by_the_heads_of_their_columns() {
    let console = Console::open().await;
    let service = &console.service;
    for (name, ttl_ms) in
        [("c-oldest", 600_000), ("b-shortest", 60_000), ("d-queue", 600_000), ("a-last", 600_000)]
    {
        service.create(name, &json!({"ttl_ms": ttl_ms})).await;
        // Dates have milliseconds, and the next lock is to be younger.
        let created = Instant::now();
        eventually(async || (created.elapsed() >= Duration::from_millis(2)).then_some(())).await;
    }
    let body = json!({"wait_ms": 60_000});
    let waits = service.create("d-queue", &body);
    let look = async {
        let page = console.visit("#/locks").await;
        shows(&page, "4 held").await;
        first_lock(&page, "c-oldest").await;
        for (column, first) in [
            ("Time left", "b-shortest"),
            ("Queue", "d-queue"),
            ("Lock", "a-last"),
            ("Lock", "d-queue"),
            ("Held for", "c-oldest"),
        ] {
            sort_by(&page, column).await;
            first_lock(&page, first).await;
        }
    };
    tokio::select! {
        () = look => {}
        answer = waits => panic!("{answer:?}"),
    }
}

#[tokio::test]
async fn glance_shows_store_instances_keys_and_charts() {
    let console = Console::open().await;
    let page = console.visit_until("", "Grants are gone with the process").await;
    for (fact, value) in
        [("Instances that share it", "1"), ("Keys in flight", "0"), ("Keys done", "0")]
    {
        let found = format!(
            "[...document.querySelectorAll('.facts div')].find((row) => row.querySelector('dt').textContent === '{fact}')
                ?.querySelector('dd').textContent"
        );
        assert_eq!(page.eval(&found).await, value, "{fact}");
    }
    shows(&page, "This instance:").await;
    // The first sample is there after five seconds.
    for chart in ["Requests: now", "Refusals: now", "Responses: now", "Store: now"] {
        let drawn = format!(
            "[...document.querySelectorAll('.chart svg')].some((chart) =>
                chart.getAttribute('aria-label').startsWith('{chart}')
                && [...chart.querySelectorAll('path')].some((line) => line.getAttribute('d').startsWith('M')))"
        );
        page.until(&drawn).await;
    }
}

#[tokio::test]
async fn page_says_what_an_observing_guard_would_have_done() {
    let upstream = Upstream::start().await;
    let observe = |guard: &mut Guard| guard.mode = Mode::Observe;
    let service = guard_orders("memory:", &upstream.url(), observe).await;
    let console = Console::over(service).await;
    let page = console.visit_until("", "What observing guards would have done").await;
    page.click("main a[href='#/observed']", 1).await;
    shows(&page, "0 duplicates would have run once today").await;
    for _ in 0..2 {
        assert_eq!(console.service.buy("k-1").await.status, 201);
    }
    shows(&page, "1 duplicate would have run once today").await;
}

#[tokio::test]
async fn store_that_is_away_is_shown_and_its_return_too() {
    let mut redis = RedisServer::start().await;
    let console = Console::over(Service::by_default(&redis.url()).await).await;
    console.service.create("deploy", &json!({"ttl_ms": 600_000})).await;
    let page = console.visit_until("#/locks", "1 held").await;
    redis.kill().await;
    shows(&page, "The store does not respond: what is shown may be old.").await;
    shows(&page, "1 held").await;
    redis.restart_empty(&[]).await;
    shows(&page, "0 held").await;
    hides(&page, "The store does not respond").await;
    page.click("a[href='#/']", 1).await;
    shows(&page, "0 locks held").await;
    redis.kill().await;
    shows(&page, "not reachable").await;
    redis.restart_empty(&[]).await;
    hides(&page, "not reachable").await;
}

#[tokio::test]
async fn console_without_a_stream_says_that_there_is_no_room() {
    let mut config = config("memory:");
    config.stream.max_streams = 1;
    let console = Console::over(Service::start_with(config).await).await;
    let mut other = EventStream::of(console.service.request(Method::GET, "/console/locks")).await;
    other.next("changes").await;
    let _page = console.visit_until("#/locks", "The service has too many streams of events.").await;
}

#[tokio::test]
async fn locks_beyond_the_most_that_a_page_has_are_spoken_of() {
    let console = Console::open().await;
    console.service.create("deploy", &json!({})).await;
    let lock = console.service.look("deploy").await.json;
    let changes = json!({"held": [lock], "gone": [], "more": true});
    let page = console.visit("livez").await;
    page.prepare(&format!(
        "const real = window.fetch;
         const event = new TextEncoder().encode('event: changes\\ndata: ' + JSON.stringify({changes}) + '\\n\\n');
         window.fetch = (url, init) => url.includes('/console/locks?')
             ? Promise.resolve(new Response(new ReadableStream({{ start: (stream) => stream.enqueue(event) }})))
             : real(url, init);"
    ))
    .await;
    page.goto(&console.url("#/locks")).await;
    shows(&page, "There are more locks than this page shows: type the beginning of a name.").await;
    shows(&page, "1 and more held").await;
}

#[tokio::test]
async fn each_of_several_holders_is_shown_and_broken_alone() {
    let console = Console::open().await;
    for owner in ["ann", "ben", "cat"] {
        let body = json!({"owner": owner, "mode": "shared", "limit": 3, "ttl_ms": 600_000});
        assert_eq!(console.service.create("pool", &body).await.status, 201);
    }
    let page = console.visit_until("#/locks", "ann and 2 more").await;
    shows(&page, "shared").await;
    // Anywhere in the row.
    page.click("tbody [data-label='Held for']", 1).await;
    page.until("document.querySelectorAll('.holder').length === 3").await;
    page.click_on(
        "[...document.querySelectorAll('button')].find(({ ariaLabel }) => ariaLabel?.includes('of ben'))",
        1,
    )
    .await;
    shows(&page, "Break the lease of ben?").await;
    page.type_text("ben is gone").await;
    page.eval("document.querySelector('#by').focus()").await;
    page.type_text("dora").await;
    page.click("dialog .danger", 1).await;
    shows(&page, "ben loses pool").await;
    page.click("dialog .danger", 1).await;
    shows(&page, "Broken by dora: ben is gone").await;
    let lock = console.service.look("pool").await.json;
    let broken = |owner: &str| {
        let holders = lock["holders"].as_array().expect("holders").iter();
        let mut of_owner = holders.filter(|holder| holder["owner"] == owner);
        of_owner.any(|holder| holder["broken"]["by"] == "dora")
    };
    assert_eq!([broken("ann"), broken("ben"), broken("cat")], [false, true, false], "{lock}");
}

#[tokio::test]
async fn service_without_an_answer_is_tried_again() {
    let console = Console::open().await;
    let page = console.visit("livez").await;
    page.hold("*/console/glance").await;
    page.eval("location.href = '/'").await;
    let held = page.held().await;
    page.break_off(held).await;
    shows(&page, "keylatch does not respond").await;
    page.hold_nothing().await;
    page.click("#view button", 1).await;
    shows(&page, "0 locks held").await;
}

#[tokio::test]
async fn stranger_is_asked_to_sign_in() {
    let console = Console::open().await;
    let page = console.visit("livez").await;
    page.hold("*/console/glance").await;
    page.eval("location.href = '/'").await;
    let held = page.held().await;
    page.answer(held, 401, "application/problem+json", "{\"detail\": \"Say who you are.\"}").await;
    shows(&page, "Paste an API key").await;
    page.hold_nothing().await;
    sign_in(&page, "a-key-that-nobody-asks-for").await;
    shows(&page, "0 locks held").await;
}

#[tokio::test]
async fn console_freezes_once_the_service_is_gone_and_says_since_when() {
    for (view, text) in [
        ("#/locks", "1 held"),
        ("#/locks/deploy", "alice"),
        ("#/keys", "Nothing needs you."),
        ("#/observed", "No guard observes."),
        ("", "1 lock held"),
    ] {
        let console = Console::open().await;
        console.service.create("deploy", &json!({"owner": "alice", "ttl_ms": 600_000})).await;
        let page = console.visit_until(view, text).await;
        let _browser = console.stop().await;
        shows(&page, "Connection lost at").await;
        shows(&page, "This was the state then.").await;
        shows(&page, text).await;
        page.until("document.querySelector('.frozen') !== null").await;
    }
}

#[tokio::test]
async fn store_without_records_has_no_keys_to_show() {
    let nodes = RedlockNodes::start().await;
    let console = Console::over(Service::start_with(nodes.config()).await).await;
    let page =
        console.visit_until("#/keys", "This store keeps no records of idempotency keys.").await;
    page.goto(&console.url("livez")).await;
    page.goto(&console.url("")).await;
    shows(&page, "0 locks held").await;
    shows(&page, "not known").await;
    assert_eq!(page.eval("document.body.innerText.includes('unknown outcome')").await, false);
}
