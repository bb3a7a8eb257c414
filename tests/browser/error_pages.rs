//! Goal: a person whose form was refused, or whose order is not known, reads so on a page, and the
//! shop behind keylatch is as without it.
//!
//! Method: a shop of the test's own behind keylatch, whole, with a form that has no key, in a real
//! browser.

use axum::http::Method;
use axum::response::{Html, IntoResponse as _};
use keylatch::app::{App, bind};
use keylatch::http::{
    DeriveKey, Guard, ListenerSettings, MissingKey, Part, PassThrough, ServedParts,
};
use keylatch_testkit::{Browser, Upstream, config};
use tokio_util::sync::CancellationToken;

const FORM: &str = "<form method='post' action='/orders'><input name='a' value='1'><button>Buy</button></form>\
                    <form id='other' method='post' action='/pay'><button>Pay</button></form>";

#[tokio::test]
async fn person_reads_on_a_page_what_became_of_an_order() {
    let upstream = Upstream::start().await;
    upstream.answers(|request| match request.method {
        Method::GET => Html(FORM).into_response(),
        _ => panic!("the connection breaks"),
    });
    let guard = |path: &str, missing_key| Guard {
        path: path.to_owned(),
        upstream: upstream.url(),
        missing_key,
        ..Guard::default()
    };
    let derive = DeriveKey { anonymous: true, ..DeriveKey::default() };
    let orders = Guard { derive, ..guard("/orders", MissingKey::Derive) };
    let mut config = config("memory:");
    config.guard = vec![orders, guard("/pay", MissingKey::Refuse)];
    config.gateway = PassThrough { upstream: upstream.url() };
    config.listener = vec![ListenerSettings {
        address: "127.0.0.1:0".to_owned(),
        serves: ServedParts::from(vec![Part::Guards]),
        ..ListenerSettings::default()
    }];
    let bound = bind(&mut config).await.expect("it listens");
    let url = format!("http://{}/", config.listener[0].address);
    let closing = CancellationToken::new();
    let _closing = closing.clone().drop_guard();
    tokio::spawn(
        App::new(config).await.expect("an app").serve_on(bound, closing.cancelled_owned()),
    );

    let browser = Browser::start().await;
    let page = browser.open(&url).await;
    page.click("#other button", 1).await;
    page.until("document.body.innerText.includes('Nothing was done.')").await;
    // Each click reads the same: the first one's order is not known, and no other is made.
    for _ in 0..2 {
        page.goto(&url).await;
        // The page before may have told that it is loaded only now.
        page.until("document.querySelector('button') !== null").await;
        page.click("button", 1).await;
        page.until("document.body.innerText.includes('We do not know yet whether this was done.')")
            .await;
    }
    assert_eq!(upstream.seen().iter().filter(|seen| seen.method == Method::POST).count(), 1);
}
