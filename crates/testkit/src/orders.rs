//! A service that guards `POST /orders`, with what the idempotency tests send and assert.
//!
//! A [`Shop`] is the service, its upstream and its store together. Its upstream counts the orders
//! that it got, which is what says whether one ran twice.

use std::ops::Deref;

use keylatch::http::Guard;
use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};

use crate::{Answer, Api, Service, Upstream, config, eventually};

/// A service that guards `/orders` in front of an [`Upstream`].
#[derive(Debug)]
pub struct Shop {
    service: Service,
    /// What runs the orders.
    pub upstream: Upstream,
}

impl Shop {
    /// A shop over the store at a URL.
    pub async fn open(store: &str) -> Self {
        Self::open_with(store, |_| {}).await
    }

    /// A shop whose guard has other settings.
    pub async fn open_with(store: &str, set: impl FnOnce(&mut Guard)) -> Self {
        let upstream = Upstream::start().await;
        Self { service: guard_orders(store, &upstream.url(), set).await, upstream }
    }

    /// The guard of `/orders` in front of the upstream at a URL.
    pub fn guard(upstream: &str) -> Guard {
        let (path, upstream) = ("/orders".to_owned(), upstream.to_owned());
        Guard { path, upstream, ..Guard::default() }
    }
}

impl Deref for Shop {
    type Target = Api;

    fn deref(&self) -> &Api {
        &self.service
    }
}

/// A service that guards `/orders` in front of the upstream at a URL.
pub async fn guard_orders(store: &str, upstream: &str, set: impl FnOnce(&mut Guard)) -> Service {
    let mut guard = Shop::guard(upstream);
    set(&mut guard);
    let mut config = config(store);
    config.guard = vec![guard];
    Service::start_with(config).await
}

impl Api {
    /// A request `POST /orders` whose `Idempotency-Key` header is `key`.
    pub fn order(&self, key: &str) -> RequestBuilder {
        let request = self.request(Method::POST, "/orders").header("Idempotency-Key", key);
        request.json(&json!({"amount": 1999, "currency": "EUR"}))
    }

    /// The answer to [`Api::order`].
    pub async fn buy(&self, key: &str) -> Answer {
        Answer::of(self.order(key)).await
    }

    /// The answer to [`Api::order`] once it is not 409 any more.
    #[track_caller]
    pub fn until_done(&self, key: &str) -> impl Future<Output = Answer> {
        eventually(async move || Some(self.buy(key).await).filter(|answer| answer.status != 409))
    }

    /// The record under a key of `POST /orders`; `Null` where there is none.
    pub async fn record(&self, key: &str) -> Value {
        let path = format!("/v1/idempotency/{key}?method=POST&path=/orders");
        let answer = self.get(&path).await;
        if answer.status == 404 { Value::Null } else { answer.json }
    }

    /// Waits until the service handles so many requests, besides the one that asks.
    pub async fn has_in_hand(&self, requests: usize) {
        self.reaches("keylatch_http_in_flight", requests as u64 + 1).await;
    }
}

impl Answer {
    /// Asserts that the upstream was run for this request, as its run of this number.
    #[track_caller]
    pub fn is_run(&self, run: usize) {
        assert_eq!((self.status.as_u16(), &self.json), (201, &json!({"run": run})), "{self:?}");
        assert_eq!(self.header("idempotent-replayed"), "", "{self:?}");
    }

    /// Asserts that this is the answer of an earlier run.
    #[track_caller]
    pub fn is_replay_of(&self, run: usize) {
        assert_eq!((self.status.as_u16(), &self.json), (201, &json!({"run": run})), "{self:?}");
        assert_eq!(self.header("idempotent-replayed"), "true", "{self:?}");
    }

    /// Asserts that this is a refusal of the layer's, which says which key to use next.
    #[track_caller]
    pub fn is_refusal(&self, status: u16, code: &str, retry: &str) {
        self.is_problem(status, code);
        assert_eq!(self.json["retry"], retry, "{self:?}");
        let link = format!("</problems/{code}>; rel=\"describedby\"; type=\"text/html\"");
        assert_eq!(self.header("link"), link, "{self:?}");
        assert_eq!(self.header("idempotent-replayed"), "", "{self:?}");
    }
}
