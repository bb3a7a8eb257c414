//! Draws the console with a browser, in the light and in the dark, into the directory of its
//! argument: every view on a screen, the first on a phone as well, and the shop of `/demo`.
//!
//! `make console-pictures` calls it. The pictures are in `docs/console.md` and in the README.
#![expect(clippy::print_stdout, reason = "it prints what it draws")]
#![expect(clippy::expect_used, reason = "it fails by panicking")]

use std::fs;
use std::path::Path;
use std::time::Duration;

use futures_util::future::join_all;
use keylatch_testkit::{Answer, Browser, Page, Service};
use reqwest::Method;
use serde_json::json;
use tokio::time::sleep;

#[tokio::main]
async fn main() {
    match std::env::args().nth(1) {
        Some(directory) => draw(Path::new(&directory)).await,
        None => println!("usage: console DIRECTORY"),
    }
}

/// The views, each with a text that it shows once it is whole.
const VIEWS: [(&str, &str, &str); 6] = [
    ("glance", "", "4 unknown outcomes"),
    ("locks", "#/locks", "deploy/shop"),
    ("lock", "#/locks/deploy%2Fshop", "release bot"),
    ("keys", "#/keys", "payment-1"),
    ("key", KEY, "is not known whether this was done"),
    ("settle", KEY, "is not known whether this was done"),
];
const KEY: &str = "#/keys/payment-1?method=POST&path=%2Fv1%2Fpayments&principal=";
/// The size of a screen, and that of a phone.
const SCREEN: (u64, u64) = (1280, 860);
const PHONE: (u64, u64) = (375, 812);

async fn draw(directory: &Path) {
    let data = tempfile::tempdir().expect("a temporary directory");
    let service = Service::start(&format!("embedded:{}", data.path().display())).await;
    fill(&service).await;
    let browser = Browser::start().await;
    draw_shop(&browser, directory).await;
    let pictures = async {
        // The charts have the time that passes until here.
        sleep(Duration::from_secs(90)).await;
        let page = browser.open(&format!("http://{}/livez", service.address)).await;
        for (view, path, shows) in VIEWS {
            let sizes = if view == "glance" { &[SCREEN, PHONE][..] } else { &[SCREEN] };
            for &(width, height) in sizes {
                for scheme in ["light", "dark"] {
                    page.emulate_scheme(scheme).await;
                    page.resize(width, height).await;
                    open(&page, &service, path, shows).await;
                    if view == "settle" {
                        ask(&page).await;
                    }
                    page.eval("scrollTo(0, 0)").await;
                    let name = format!("{view}-{width}-{scheme}.png");
                    fs::write(directory.join(&name), page.picture(height).await).expect("a file");
                    println!("{name}");
                }
            }
        }
    };
    tokio::select! {
        () = pictures => {}
        () = async { tokio::join!(wait_in_line(&service), work(&service)); } => {}
    }
}

/// The shop after a double click: one order, and an attempt that joined it.
async fn draw_shop(browser: &Browser, directory: &Path) {
    for scheme in ["light", "dark"] {
        let service = Service::start("memory:").await;
        let page = browser.open(&format!("http://{}/demo", service.address)).await;
        page.emulate_scheme(scheme).await;
        page.resize(1280, 900).await;
        page.click("#buy .buttons button", 2).await;
        page.until("document.body.innerText.includes('is placed')").await;
        let name = format!("demo-1280-{scheme}.png");
        fs::write(directory.join(&name), page.picture(900).await).expect("a file");
        println!("{name}");
    }
}

async fn open(page: &Page, service: &Service, path: &str, shows: &str) {
    page.goto(&format!("http://{}/livez", service.address)).await;
    page.goto(&format!("http://{}/{path}", service.address)).await;
    page.until(&format!("document.body.innerText.includes('{shows}')")).await;
    page.until("!document.body.innerText.includes('Connecting')").await;
    // Bars run, and have come to where they are after a second.
    sleep(Duration::from_millis(1200)).await;
}

/// Opens the dialog that settles, and fills it in.
async fn ask(page: &Page) {
    page.click("section .buttons button", 1).await;
    page.click("[value=completed]", 1).await;
    for (field, text) in [
        ("#body", "{\"id\": \"17\"}"),
        ("#reason", "The bank has it: transfer 4711"),
        ("#by", "ann"),
    ] {
        page.click(field, 1).await;
        page.type_text(text).await;
    }
}

/// Locks and keys as a team has them.
async fn fill(service: &Service) {
    let done = json!({"owner": "release bot, run 8121", "ttl_ms": 300_000});
    let done = service.create("deploy%2Fshop", &done).await;
    service.release("deploy%2Fshop", &done.token()).await;
    let late = json!({"owner": "release bot, run 8122", "ttl_ms": 300_000});
    let fencing_token = service.create("deploy%2Fshop", &late).await.fencing_token();
    let why = json!({
        "reason": "Its runner was shut down", "by": "ann", "grace_ms": 0,
        "fencing_token": fencing_token,
    });
    let broken = service.request(Method::POST, "/v1/locks/deploy%2Fshop/break").json(&why);
    assert_eq!(Answer::of(broken).await.status, 200, "the lease is broken");
    let shop = json!({"owner": "release bot, run 8123", "ttl_ms": 300_000});
    service.create("deploy%2Fshop", &shop).await;
    for (number, worker) in (0..75).zip(["berlin", "oslo", "porto"].iter().cycle()) {
        let ttl_ms = 600_000 + number * 7_000;
        let body = json!({"owner": format!("worker {worker}-{}", number % 9), "ttl_ms": ttl_ms});
        service.create(&format!("invoices%2F2026-11%2F{number:03}"), &body).await;
    }
    for owner in ["reader ann", "reader ben", "reader cat"] {
        let body = json!({"owner": owner, "mode": "shared", "ttl_ms": 900_000});
        service.create("catalogue", &body).await;
    }
    for number in 1..=40 {
        let fail = if number <= 4 { json!(500) } else { json!(null) };
        let body = json!({"amount": 1999, "currency": "EUR", "fail": fail});
        let payment = service.request(Method::POST, "/v1/payments");
        let key = format!("payment-{number}");
        Answer::of(payment.header("Idempotency-Key", key).json(&body)).await;
    }
}

/// Clients that wait for a lock for as long as the pictures take.
async fn wait_in_line(service: &Service) {
    let waiting =
        ["hotfix 812", "nightly build", "release bot, run 8124"].map(|owner| async move {
            loop {
                let body = json!({"owner": owner, "wait_ms": 60_000});
                Answer::of(service.request(Method::POST, "/v1/locks/deploy%2Fshop").json(&body))
                    .await;
            }
        });
    join_all(waiting).await;
}

/// Something for the charts: now more and now less.
async fn work(service: &Service) {
    for round in 0_u64.. {
        let held = service.create("jobs%2Fsync", &json!({})).await;
        service.create("jobs%2Fsync", &json!({})).await;
        service.release("jobs%2Fsync", &held.token()).await;
        sleep(Duration::from_millis(10 + (round / 40 % 7) * 9)).await;
    }
}
