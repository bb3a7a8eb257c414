use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};
use tokio::sync::{Mutex, mpsc};

use super::browser::{Event, Pipe};
use super::wire::soon;

/// A tab of a [`Browser`](super::Browser).
#[derive(Debug)]
pub(crate) struct Page {
    pipe: Arc<Pipe>,
    session: String,
    events: Mutex<mpsc::UnboundedReceiver<Event>>,
}

/// A request that was stopped on its way.
#[derive(Debug)]
pub(crate) struct Held {
    id: Value,
    /// The request: its method, headers and body.
    pub(crate) request: Value,
}

impl Held {
    /// A header's value; empty where there is none.
    pub(crate) fn header(&self, name: &str) -> &str {
        header(&self.request, name)
    }
}

impl Page {
    pub(super) async fn new(
        pipe: Arc<Pipe>,
        session: &str,
        events: mpsc::UnboundedReceiver<Event>,
    ) -> Self {
        let page = Self { pipe, session: session.to_owned(), events: Mutex::new(events) };
        page.call("Page.enable", json!({})).await;
        page.call("Network.enable", json!({})).await;
        page
    }

    /// Loads `url`.
    pub(crate) async fn goto(&self, url: &str) {
        self.forget_events().await;
        self.call("Page.navigate", json!({"url": url})).await;
        self.event("Page.loadEventFired").await;
    }

    /// F5.
    pub(crate) async fn reload(&self) {
        self.forget_events().await;
        self.call("Page.reload", json!({})).await;
        self.event("Page.loadEventFired").await;
    }

    /// The back button. Gives how the page that was left came back: `Navigation` when it was loaded
    /// again, `BackForwardCacheRestore` when it was as it had been left.
    pub(crate) async fn back(&self) -> String {
        let history = self.call("Page.getNavigationHistory", json!({})).await;
        let current = history["currentIndex"].as_u64().expect("a place in the history");
        let before = usize::try_from(current - 1).expect("a page before this one");
        self.forget_events().await;
        let entry = json!({"entryId": history["entries"][before]["id"]});
        self.call("Page.navigateToHistoryEntry", entry).await;
        let how = self.event("Page.frameNavigated").await["type"].clone();
        if how == "Navigation" {
            self.event("Page.loadEventFired").await;
        }
        how.as_str().expect("a kind of navigation").to_owned()
    }

    /// The value of a script, awaited.
    pub(crate) async fn eval(&self, script: &str) -> Value {
        let value = self.try_eval(script).await;
        value.unwrap_or_else(|error| panic!("{script}: {error}"))
    }

    /// Asks a script until its value is true.
    #[track_caller]
    pub(crate) fn until<'a>(&'a self, script: &'a str) -> impl Future<Output = ()> + 'a {
        soon(script, async move {
            let mut tick = tokio::time::interval(Duration::from_millis(10));
            // Between two pages there is nobody to ask.
            while self.try_eval(script).await != Ok(Value::Bool(true)) {
                tick.tick().await;
            }
        })
    }

    /// Clicks in the middle of an element, so often and as fast as can be.
    pub(crate) async fn click(&self, selector: &str, times: u64) {
        let selector = Value::from(selector);
        let script = format!(
            "(() => {{
                const element = document.querySelector({selector});
                element.scrollIntoView({{block: 'center'}});
                const box = element.getBoundingClientRect();
                return {{x: box.x + box.width / 2, y: box.y + box.height / 2}};
            }})()"
        );
        let place = self.eval(&script).await;
        for count in 1..=times {
            for kind in ["mousePressed", "mouseReleased"] {
                let mut event = json!({"type": kind, "button": "left", "clickCount": count});
                (event["x"], event["y"]) = (place["x"].clone(), place["y"].clone());
                self.call("Input.dispatchMouseEvent", event).await;
            }
        }
    }

    pub(crate) async fn go_offline(&self, offline: bool) {
        let network = json!({
            "offline": offline, "latency": 0, "downloadThroughput": -1, "uploadThroughput": -1
        });
        self.call("Network.emulateNetworkConditions", network).await;
    }

    pub(crate) async fn disable_javascript(&self) {
        self.call("Emulation.setScriptExecutionDisabled", json!({"value": true})).await;
    }

    /// Runs a script in each page that is loaded from now on, before its own.
    pub(crate) async fn prepare(&self, script: &str) {
        self.call("Page.addScriptToEvaluateOnNewDocument", json!({"source": script})).await;
    }

    /// The `Idempotency-Key` of the next request that has one.
    #[track_caller]
    pub(crate) fn next_key(&self) -> impl Future<Output = String> + '_ {
        soon("a request with a key", async {
            loop {
                let sent = self.event("Network.requestWillBeSent").await;
                let key = header(&sent["request"], "Idempotency-Key");
                if !key.is_empty() {
                    return key.to_owned();
                }
            }
        })
    }

    /// Stops each request to a URL that fits before it is sent.
    pub(crate) async fn hold(&self, url: &str) {
        self.call("Fetch.enable", json!({"patterns": [{"urlPattern": url}]})).await;
    }

    /// Sends each request to a URL that fits, and stops it before the page reads the answer.
    pub(crate) async fn hold_answers(&self, url: &str) {
        let pattern = json!({"urlPattern": url, "requestStage": "Response"});
        self.call("Fetch.enable", json!({"patterns": [pattern]})).await;
    }

    /// Stops nothing, and lets go of what was stopped.
    pub(crate) async fn hold_nothing(&self) {
        self.call("Fetch.disable", json!({})).await;
    }

    /// The next request that was stopped.
    pub(crate) async fn held(&self) -> Held {
        let held = self.event("Fetch.requestPaused").await;
        Held { id: held["requestId"].clone(), request: held["request"].clone() }
    }

    /// Answers a request in place of the service.
    pub(crate) async fn answer(&self, held: Held, status: u16, media_type: &str, body: &str) {
        let answer = json!({
            "requestId": held.id,
            "responseCode": status,
            "responsePhrase": "as the test says",
            "responseHeaders": [{"name": "Content-Type", "value": media_type}],
            "body": BASE64_STANDARD.encode(body),
        });
        self.call("Fetch.fulfillRequest", answer).await;
    }

    /// Lets a request go on.
    pub(crate) async fn let_go(&self, held: Held) {
        self.call("Fetch.continueRequest", json!({"requestId": held.id})).await;
    }

    /// Breaks the connection of a request.
    pub(crate) async fn break_off(&self, held: Held) {
        let failure = json!({"requestId": held.id, "errorReason": "ConnectionReset"});
        self.call("Fetch.failRequest", failure).await;
    }

    /// The next event of this name; those before it are forgotten.
    #[track_caller]
    fn event<'a>(&'a self, method: &'a str) -> impl Future<Output = Value> + 'a {
        soon(method, async move {
            let mut events = self.events.lock().await;
            loop {
                let (name, params) = events.recv().await.expect("the browser runs");
                if name == method {
                    return params;
                }
            }
        })
    }

    /// Forgets what has happened so far, so that only what comes is waited for.
    async fn forget_events(&self) {
        let mut events = self.events.lock().await;
        while events.try_recv().is_ok() {}
    }

    async fn try_eval(&self, script: &str) -> Result<Value, Value> {
        let how = json!({
            "expression": script, "awaitPromise": true, "returnByValue": true, "userGesture": true
        });
        let answer = self.pipe.try_call(&self.session, "Runtime.evaluate", how).await?;
        match &answer["exceptionDetails"] {
            Value::Null => Ok(answer["result"]["value"].clone()),
            error => Err(error.clone()),
        }
    }

    async fn call(&self, method: &str, params: Value) -> Value {
        self.pipe.call(&self.session, method, params).await
    }
}

fn header<'a>(request: &'a Value, name: &str) -> &'a str {
    let headers = request["headers"].as_object().expect("headers");
    let found = headers.iter().find(|(found, _)| found.eq_ignore_ascii_case(name));
    found.and_then(|(_, value)| value.as_str()).unwrap_or_default()
}
