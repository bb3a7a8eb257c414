//! Chromium, driven by the DevTools protocol over its pipe: as JSON, each message ended by a NUL.

use std::collections::HashMap;
use std::process::Stdio;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{ChildStdin, ChildStdout, Command};
use tokio::sync::{mpsc, oneshot};

use super::page::Page;
use super::wire::soon;

/// A browser of its own for one test, without a window; it ends with the test, since it ends when
/// its pipe does.
#[derive(Debug)]
pub(crate) struct Browser {
    pipe: Arc<Pipe>,
}

/// An event of a page: its name and what it says.
pub(super) type Event = (String, Value);

/// The way to the browser.
#[derive(Debug)]
pub(super) struct Pipe {
    commands: tokio::sync::Mutex<ChildStdin>,
    last_id: AtomicU64,
    heard: Mutex<Heard>,
}

/// Who waits for what the browser says.
#[derive(Debug, Default)]
struct Heard {
    answers: HashMap<u64, oneshot::Sender<Value>>,
    /// By session, one for each page.
    events: HashMap<String, mpsc::UnboundedSender<Event>>,
}

impl Browser {
    /// Starts `chromium`, or what the variable `CHROMIUM` names.
    pub(crate) async fn start() -> Self {
        let mut process = command().spawn().expect("sh runs");
        let mut log = process.stderr.take().expect("its log");
        let commands = process.stdin.take().expect("its input");
        let messages = process.stdout.take().expect("its output");
        let pipe = Arc::new(Pipe {
            commands: tokio::sync::Mutex::new(commands),
            last_id: AtomicU64::new(0),
            heard: Mutex::default(),
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
    pub(crate) async fn open(&self, url: &str) -> Page {
        let target = self.pipe.call("", "Target.createTarget", json!({"url": "about:blank"})).await;
        let page = self.attach(&target["targetId"]).await;
        page.goto(url).await;
        page
    }

    /// The tab that a script has opened.
    pub(crate) async fn opened_by_script(&self, url: &str) -> Page {
        let target = super::eventually(async || {
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
        self.pipe.heard.lock().unwrap().events.insert(session.to_owned(), sender);
        Page::new(Arc::clone(&self.pipe), session, events).await
    }
}

impl Pipe {
    /// The result of a command, which has to succeed.
    pub(super) async fn call(&self, session: &str, method: &str, params: Value) -> Value {
        let result = self.try_call(session, method, params).await;
        result.unwrap_or_else(|error| panic!("{method}: {error}"))
    }

    /// The result of a command, or the error.
    pub(super) async fn try_call(
        &self,
        session: &str,
        method: &str,
        params: Value,
    ) -> Result<Value, Value> {
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
        self.heard.lock().unwrap().answers.insert(id, sender);
        let mut command = json!({"id": id, "method": method, "params": params});
        if !session.is_empty() {
            command["sessionId"] = session.into();
        }
        let bytes = [command.to_string().as_bytes(), b"\0"].concat();
        // Where it has ended, there will be no answer.
        let _ = self.commands.lock().await.write_all(&bytes).await;
        soon(method, answer).await.ok()
    }

    /// Hands on what the browser says.
    fn hear(&self, mut message: Value) {
        let mut heard = self.heard.lock().unwrap();
        if let Some(waiting) = message["id"].as_u64().and_then(|id| heard.answers.remove(&id)) {
            // Who gave up waiting needs no answer.
            let _ = waiting.send(message);
            return;
        }
        let session = message["sessionId"].as_str().unwrap_or_default();
        if let Some(events) = heard.events.get(session) {
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
        pipe.hear(serde_json::from_slice(&message).expect("a message of JSON"));
        message.clear();
    }
    // Nobody will be answered any more.
    *pipe.heard.lock().unwrap() = Heard::default();
}

/// The browser reads commands from 3 and writes to 4. All that it writes down goes with it.
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
        // A name of somebody else's that leads to this machine.
        .arg("--host-resolver-rules=MAP evil.example 127.0.0.1")
        .args(["--disable-extensions", "--window-size=1280,900", "about:blank"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}
