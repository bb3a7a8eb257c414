//! Chromium, driven by the DevTools protocol over its pipe: JSON messages, each ended by a NUL
//! byte.
//!
//! A pipe needs no port and ends with the process, so no browser outlives its test. Every wait for
//! a page has an end, and its failure says what the page showed. Used by `tests/browser`.

use std::collections::HashMap;
use std::process::Stdio;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{ChildStdin, ChildStdout, Command};
use tokio::sync::{mpsc, oneshot};

use crate::{answer, eventually, soon};

/// A headless browser for one test. It ends when its pipe is closed, so it ends with the test.
#[derive(Debug)]
pub struct Browser {
    pipe: Arc<Pipe>,
}

/// An event of a page: its name and what it says.
type Event = (String, Value);

/// The way to the browser.
#[derive(Debug)]
struct Pipe {
    commands: tokio::sync::Mutex<ChildStdin>,
    last_id: AtomicU64,
    receivers: Mutex<Receivers>,
}

/// The receivers of what the browser says.
#[derive(Debug, Default)]
struct Receivers {
    answers: HashMap<u64, oneshot::Sender<Value>>,
    /// By session, one for each page.
    events: HashMap<String, mpsc::UnboundedSender<Event>>,
}

impl Browser {
    /// Starts `chromium`, or what the variable `CHROMIUM` names.
    pub async fn start() -> Self {
        let mut process = command().spawn().expect("sh runs");
        let mut log = process.stderr.take().expect("its log");
        let commands = process.stdin.take().expect("its input");
        let messages = process.stdout.take().expect("its output");
        let pipe = Arc::new(Pipe {
            commands: tokio::sync::Mutex::new(commands),
            last_id: AtomicU64::new(0),
            receivers: Mutex::default(),
        });
        tokio::spawn(listen(messages, Arc::clone(&pipe)));
        let log = tokio::spawn(async move {
            let mut text = Vec::new();
            let _ = log.read_to_end(&mut text).await;
            String::from_utf8_lossy(&text).into_owned()
        });
        if pipe.answer("", "Browser.getVersion", json!({})).await.is_none() {
            let log = soon("the end of chromium", log).await.expect("a log");
            panic!("chromium does not run; `make test` installs it on Debian. It said: {log}");
        }
        Self { pipe }
    }

    /// A new tab that has loaded `url`.
    pub async fn open(&self, url: &str) -> Page {
        let target = self.pipe.call("", "Target.createTarget", json!({"url": "about:blank"})).await;
        let page = self.attach(&target["targetId"]).await;
        page.goto(url).await;
        page
    }

    /// The tab that a script has opened.
    pub async fn opened_by_script(&self, url: &str) -> Page {
        let target = eventually(async || {
            let targets = self.pipe.call("", "Target.getTargets", json!({})).await;
            let targets = targets["targetInfos"].as_array().cloned().unwrap_or_default();
            let wanted = |target: &Value| target["type"] == "page" && target["url"] == url;
            targets.into_iter().rfind(|target| wanted(target) && target["attached"] == false)
        });
        self.attach(&target.await["targetId"]).await
    }

    async fn attach(&self, target: &Value) -> Page {
        let how = json!({"targetId": target, "flatten": true});
        let session = self.pipe.call("", "Target.attachToTarget", how).await;
        let session = session["sessionId"].as_str().expect("a session");
        let (sender, events) = mpsc::unbounded_channel();
        self.pipe.receivers.lock().unwrap().events.insert(session.to_owned(), sender);
        Page::new(Arc::clone(&self.pipe), session, events).await
    }
}

impl Pipe {
    /// The result of a command, which has to succeed.
    async fn call(&self, session: &str, method: &str, params: Value) -> Value {
        let result = self.try_call(session, method, params).await;
        result.unwrap_or_else(|error| panic!("{method}: {error}"))
    }

    /// The result of a command, or the error.
    async fn try_call(&self, session: &str, method: &str, params: Value) -> Result<Value, Value> {
        let answer = self.answer(session, method, params).await;
        let mut answer = answer.unwrap_or_else(|| panic!("chromium ended before {method}"));
        match answer["error"].take() {
            Value::Null => Ok(answer["result"].take()),
            error => Err(error),
        }
    }

    async fn answer(&self, session: &str, method: &str, params: Value) -> Option<Value> {
        let id = self.last_id.fetch_add(1, Ordering::Relaxed) + 1;
        let (sender, answer) = oneshot::channel();
        self.receivers.lock().unwrap().answers.insert(id, sender);
        let mut command = json!({"id": id, "method": method, "params": params});
        if !session.is_empty() {
            command["sessionId"] = session.into();
        }
        let bytes = [command.to_string().as_bytes(), b"\0"].concat();
        // A browser that has ended gives no answer.
        let _ = self.commands.lock().await.write_all(&bytes).await;
        soon(method, answer).await.ok()
    }

    /// Gives a message to its receiver.
    fn dispatch(&self, mut message: Value) {
        let mut receivers = self.receivers.lock().unwrap();
        if let Some(waiting) = message["id"].as_u64().and_then(|id| receivers.answers.remove(&id)) {
            // A caller that no longer waits needs no answer.
            let _ = waiting.send(message);
            return;
        }
        let session = message["sessionId"].as_str().unwrap_or_default();
        if let Some(events) = receivers.events.get(session) {
            let method = message["method"].as_str().unwrap_or_default().to_owned();
            let _ = events.send((method, message["params"].take()));
        }
    }
}

async fn listen(messages: ChildStdout, pipe: Arc<Pipe>) {
    let mut messages = BufReader::new(messages);
    let mut message = Vec::new();
    while messages.read_until(0, &mut message).await.is_ok_and(|bytes| bytes > 0) {
        message.pop();
        pipe.dispatch(serde_json::from_slice(&message).expect("a message of JSON"));
        message.clear();
    }
    // Every caller that waits learns that there will be no answer.
    *pipe.receivers.lock().unwrap() = Receivers::default();
}

/// The browser reads commands from descriptor 3 and writes to 4. Its files are deleted when it
/// ends.
const SCRIPT: &str = r#"
    directory=$(mktemp -d) || exit
    TMPDIR="$directory" "${CHROMIUM:-chromium}" "$@" --user-data-dir="$directory/profile" \
        3<&0 4>&1 0</dev/null 1>&2
    rm -rf "$directory"
"#;

fn command() -> Command {
    let mut command = Command::new("sh");
    command
        .args(["-c", SCRIPT, "sh"])
        .args(["--headless=new", "--remote-debugging-pipe", "--no-first-run", "--disable-gpu"])
        // Root has no sandbox, and containers have a small /dev/shm.
        .args(["--no-sandbox", "--disable-dev-shm-usage", "--no-proxy-server"])
        .args(["--disable-background-networking", "--disable-component-update", "--disable-sync"])
        // A name of a stranger that leads to this machine.
        .arg("--host-resolver-rules=MAP evil.example 127.0.0.1")
        .args(["--disable-extensions", "--window-size=1280,900", "about:blank"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// A tab of a [`Browser`].
#[derive(Debug)]
pub struct Page {
    pipe: Arc<Pipe>,
    session: String,
    events: tokio::sync::Mutex<mpsc::UnboundedReceiver<Event>>,
}

/// A request that was stopped on its way.
#[derive(Debug)]
pub struct PausedRequest {
    id: Value,
    /// The request: its method, headers and body.
    pub request: Value,
}

impl PausedRequest {
    /// A header's value; empty where there is none.
    pub fn header(&self, name: &str) -> &str {
        header(&self.request, name)
    }
}

impl Page {
    async fn new(pipe: Arc<Pipe>, session: &str, events: mpsc::UnboundedReceiver<Event>) -> Self {
        let page =
            Self { pipe, session: session.to_owned(), events: tokio::sync::Mutex::new(events) };
        page.call("Page.enable", json!({})).await;
        page.call("Network.enable", json!({})).await;
        page
    }

    /// Loads `url`.
    pub async fn goto(&self, url: &str) {
        self.forget_events().await;
        self.call("Page.navigate", json!({"url": url})).await;
        self.event("Page.loadEventFired").await;
    }

    /// F5.
    pub async fn reload(&self) {
        self.forget_events().await;
        self.call("Page.reload", json!({})).await;
        self.event("Page.loadEventFired").await;
    }

    /// The back button. Gives how the page that was left came back: `Navigation` when it was loaded
    /// again, `BackForwardCacheRestore` when it was as it had been left.
    pub async fn back(&self) -> String {
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
    pub async fn eval(&self, script: &str) -> Value {
        let value = self.try_eval(script).await;
        value.unwrap_or_else(|error| panic!("{script}: {error}"))
    }

    /// Asks a script until its value is true.
    #[track_caller]
    pub fn until<'a>(&'a self, script: &'a str) -> impl Future<Output = ()> + 'a {
        // Between two pages no document answers.
        let is_true = async || (self.try_eval(script).await == Ok(Value::Bool(true))).then_some(());
        soon(script, answer(is_true))
    }

    /// Clicks in the middle of an element, so often and as fast as can be.
    pub async fn click(&self, selector: &str, times: u64) {
        let selector = Value::from(selector);
        self.click_on(&format!("document.querySelector({selector})"), times).await;
    }

    /// The same in the middle of the element that a script gives.
    pub async fn click_on(&self, element: &str, times: u64) {
        let script = format!(
            "(() => {{
                const element = {element};
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

    /// Presses a key of the keyboard, such as `Tab` or `j`, in the element that has the focus.
    pub async fn press(&self, key: &str) {
        let (code, text) = match key {
            "Tab" => (9, ""),
            "Enter" => (13, "\r"),
            "Escape" => (27, ""),
            "Backspace" => (8, ""),
            " " => (32, " "),
            "ArrowDown" => (40, ""),
            character => (character.to_ascii_uppercase().as_bytes()[0], character),
        };
        let mut event =
            json!({"type": "keyDown", "key": key, "windowsVirtualKeyCode": code, "text": text});
        self.call("Input.dispatchKeyEvent", event.clone()).await;
        event["type"] = "keyUp".into();
        self.call("Input.dispatchKeyEvent", event).await;
    }

    /// Gives the page another size, as on another device.
    pub async fn resize(&self, width: u64, height: u64) {
        let size =
            json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        self.call("Emulation.setDeviceMetricsOverride", size).await;
    }

    /// Gives the page the light or the dark of another device.
    pub async fn emulate_scheme(&self, scheme: &str) {
        let feature = json!({"name": "prefers-color-scheme", "value": scheme});
        self.call("Emulation.setEmulatedMedia", json!({"features": [feature]})).await;
    }

    /// What a screen reader makes of the page: each node with its role and its name.
    pub async fn accessible_nodes(&self) -> Vec<(String, String)> {
        let tree = self.call("Accessibility.getFullAXTree", json!({})).await;
        let nodes = tree["nodes"].as_array().expect("nodes").iter();
        let text = |node: &Value, member: &str| {
            node[member]["value"].as_str().unwrap_or_default().to_owned()
        };
        let nodes = nodes.filter(|node| node["ignored"] != true);
        nodes.map(|node| (text(node, "role"), text(node, "name"))).collect()
    }

    /// The page from its top as a PNG, at the width that it has and at most so high.
    pub async fn picture(&self, most: u64) -> Vec<u8> {
        let width = self.eval("innerWidth").await;
        let height = self.eval("document.documentElement.scrollHeight").await;
        let height = height.as_u64().expect("a height").min(most);
        let clip = json!({"x": 0, "y": 0, "width": width, "height": height, "scale": 1});
        let how = json!({"format": "png", "captureBeyondViewport": true, "clip": clip});
        let picture = self.call("Page.captureScreenshot", how).await;
        BASE64_STANDARD.decode(picture["data"].as_str().expect("a picture")).expect("base64")
    }

    /// Lets the page read and write the clipboard.
    pub async fn allow_clipboard(&self) {
        let permissions = json!(["clipboardReadWrite", "clipboardSanitizedWrite"]);
        let grant = json!({"permissions": permissions});
        self.pipe.call("", "Browser.grantPermissions", grant).await;
        self.call("Emulation.setFocusEmulationEnabled", json!({"enabled": true})).await;
    }

    /// Types into the element that has the focus.
    pub async fn type_text(&self, text: &str) {
        self.call("Input.insertText", json!({"text": text})).await;
    }

    /// Takes the tab off the network, or back to it.
    pub async fn go_offline(&self, offline: bool) {
        let network = json!({
            "offline": offline, "latency": 0, "downloadThroughput": -1, "uploadThroughput": -1
        });
        self.call("Network.emulateNetworkConditions", network).await;
    }

    /// Turns scripts off.
    pub async fn disable_javascript(&self) {
        self.call("Emulation.setScriptExecutionDisabled", json!({"value": true})).await;
    }

    /// Runs a script in each page that is loaded from now on, before its own.
    pub async fn prepare(&self, script: &str) {
        self.call("Page.addScriptToEvaluateOnNewDocument", json!({"source": script})).await;
    }

    /// The `Idempotency-Key` of the next request that has one.
    #[track_caller]
    pub fn next_key(&self) -> impl Future<Output = String> + '_ {
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
    pub async fn hold(&self, url: &str) {
        self.call("Fetch.enable", json!({"patterns": [{"urlPattern": url}]})).await;
    }

    /// Sends each request to a URL that fits, and stops it before the page reads the answer.
    pub async fn hold_answers(&self, url: &str) {
        let pattern = json!({"urlPattern": url, "requestStage": "Response"});
        self.call("Fetch.enable", json!({"patterns": [pattern]})).await;
    }

    /// Stops nothing, and lets go of what was stopped.
    pub async fn hold_nothing(&self) {
        self.call("Fetch.disable", json!({})).await;
    }

    /// The next request that was stopped.
    pub async fn held(&self) -> PausedRequest {
        let held = self.event("Fetch.requestPaused").await;
        PausedRequest { id: held["requestId"].clone(), request: held["request"].clone() }
    }

    /// Answers a request in place of the service.
    pub async fn answer(&self, held: PausedRequest, status: u16, media_type: &str, body: &str) {
        let answer = json!({
            "requestId": held.id,
            "responseCode": status,
            "responsePhrase": "as the test says",
            "responseHeaders": [{"name": "Content-Type", "value": media_type}],
            "body": BASE64_STANDARD.encode(body),
        });
        self.call("Fetch.fulfillRequest", answer).await;
    }

    /// Continues a request.
    pub async fn let_go(&self, held: PausedRequest) {
        self.call("Fetch.continueRequest", json!({"requestId": held.id})).await;
    }

    /// Breaks the connection of a request.
    pub async fn break_off(&self, held: PausedRequest) {
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
