//! Goal: a page of a guarded service does not act with the key of an operator whose browser knows
//! the same origin.
//!
//! Method: the headers that a browser adds to requests of a page, on a listener that serves guards
//! and the API, with identities.

use keylatch::config::Config;
use keylatch_testkit::{Answer, Keyring, LogCapture, Service, Shop, Upstream};
use reqwest::{Method, RequestBuilder};

const APP: &str = "https://app.example";
const ALL: &str = "allow = [{ locks = \"\", may = [\"acquire\", \"read\"] }]";

/// Identities, a guard, and a page elsewhere that may use the API.
fn behind_one_origin(keyring: &Keyring, upstream: &Upstream) -> Config {
    let mut config = keyring.config();
    config.guard = vec![Shop::guard(&upstream.url())];
    config.cors.allow_origins = vec![APP.to_owned()];
    config
}

/// The origin of the service, and a page there.
fn pages(service: &Service) -> (String, String) {
    let own = format!("http://{}", service.address);
    let page = format!("{own}/orders/17");
    (own, page)
}

#[tokio::test]
async fn page_behind_a_guard_gets_no_api() {
    let (mut keyring, upstream) = (Keyring::default(), Upstream::start().await);
    let key = keyring.add("op", ALL);
    let service = Service::start_with(behind_one_origin(&keyring, &upstream)).await;
    let (own, page) = pages(&service);
    let own_pages: [&[(&str, &str)]; 5] = [
        &[("Sec-Fetch-Site", "same-origin")],
        &[("Sec-Fetch-Site", "same-origin"), ("Origin", APP)],
        &[("Origin", &own)],
        &[("Referer", &page)],
        &[("Referer", &own)],
    ];
    let others: [&[(&str, &str)]; 6] = [
        &[],
        &[("Sec-Fetch-Site", "none")],
        &[("Sec-Fetch-Site", "cross-site"), ("Origin", APP)],
        &[("Origin", APP), ("Referer", "https://app.example/page")],
        &[("Sec-Fetch-Site", "cross-site"), ("Origin", APP), ("Referer", &page)],
        &[("Referer", "http://other.example/orders")],
    ];
    let send = async |method: Method, headers: &[(&str, &str)], is_basic: bool| {
        let request = service.request(method, "/v1/locks/a");
        let request = match is_basic {
            true => request.basic_auth("op", Some(&key)),
            false => request.bearer_auth(&key),
        };
        let add = |request: RequestBuilder, (name, value): &(_, _)| request.header(*name, *value);
        Answer::of(headers.iter().fold(request, add)).await
    };
    for is_basic in [true, false] {
        for headers in own_pages {
            for method in [Method::GET, Method::POST] {
                send(method, headers, is_basic).await.is_problem(403, "forbidden");
            }
        }
        for headers in others {
            send(Method::GET, headers, is_basic).await.is_problem(404, "lock-not-held");
        }
    }
    let create = send(Method::POST, others[2], false).await;
    assert_eq!(create.status, 201, "{create:?}");
}

#[tokio::test]
async fn page_behind_a_guard_reaches_its_own_service() {
    let (mut keyring, upstream) = (Keyring::default(), Upstream::start().await);
    keyring.add("op", ALL);
    let service = Service::start_with(behind_one_origin(&keyring, &upstream)).await;
    let (own, page) = pages(&service);
    let order = service.order("k-1").header("Sec-Fetch-Site", "same-origin").header("Origin", &own);
    Answer::of(order).await.is_run(1);
    let module = service.request(Method::GET, "/assets/keylatch.js").header("Referer", &page);
    assert_eq!(Answer::of(module).await.status, 200);
}

#[tokio::test]
async fn console_is_not_served_beside_guards() {
    let (mut keyring, upstream) = (Keyring::default(), Upstream::start().await);
    let key = keyring.add("op", ALL);
    let config = behind_one_origin(&keyring, &upstream);
    let log = LogCapture::start(&config, false);
    let beside = Service::start_with(config).await;
    let alone = Service::start_with(keyring.config()).await;
    assert_eq!(log.text().matches("serves").count(), 1, "{}", log.text());
    for path in ["/", "/console/glance", "/docs/", "/openapi.json"] {
        let get = async |service: &Service| {
            let get = service.request(Method::GET, path).bearer_auth(&key);
            Answer::of(get.header("Accept", "text/html")).await.status.as_u16()
        };
        assert_eq!(get(&beside).await, 404, "{path}");
        assert!(get(&alone).await < 400, "{path}");
    }
}
