//! Goal: `/assets/keylatch.js` sends one intent under one key until its outcome is final.
//!
//! Method: the module in a real browser, whose requests the test pauses, answers and breaks.

use keylatch_testkit::{Browser, Page, PausedRequest, Service};
use serde_json::json;

/// A page that does nothing by itself, and the module in it.
struct Site {
    page: Page,
    service: Service,
    browser: Browser,
}

const PROBLEM: &str = "application/problem+json";
const JSON: &str = "application/json";

impl Site {
    async fn open() -> Self {
        Self::prepared("").await
    }

    /// The same, with a script that each page runs first.
    async fn prepared(script: &str) -> Self {
        let (service, browser) = (Service::start("memory:").await, Browser::start().await);
        let page = browser.open("about:blank").await;
        page.prepare(script).await;
        let site = Self { page, service, browser };
        site.load(&site.page).await;
        site
    }

    async fn load(&self, page: &Page) {
        page.goto(&format!("http://{}/livez", self.service.address)).await;
        page.eval(
            "import('/assets/keylatch.js').then((module) => void Object.assign(window, module))",
        )
        .await;
        page.hold("*/played*").await;
    }

    /// Begins `fetchOnce` of a text.
    async fn begin(&self, body: &str, init: &str) -> PausedRequest {
        self.call(body, init).await;
        self.page.held().await
    }

    /// Calls `fetchOnce`, and keeps what comes of it as `window.answers`.
    async fn call(&self, body: &str, init: &str) {
        let script = format!(
            "window.answers ??= [];
             answers.push(fetchOnce('/played', {{method: 'POST', body: '{body}', {init}}}).then(
                 async (response) => `${{response.status}} ${{await response.text()}}`,
                 (error) => `none: ${{error.name}}`,
             ));
             0"
        );
        self.page.eval(&script).await;
    }

    /// Begins `fetchOnce` of what a script makes of `n`.
    async fn begin_with(&self, script: &str, n: u8) -> PausedRequest {
        self.call_with(script, n).await;
        self.page.held().await
    }

    /// Calls `fetchOnce` of what a script makes of `n`.
    async fn call_with(&self, script: &str, n: u8) {
        let script = format!(
            "{{
                {FORM_OF}
                const n = {n};
                window.answers ??= [];
                const init = {{method: 'POST', body: {script}, duplex: 'half'}};
                answers.push(fetchOnce('/played', init).then(
                    async (response) => `${{response.status}} ${{await response.text()}}`,
                    (error) => `none: ${{error.name}}`,
                ));
                0;
            }}"
        );
        self.page.eval(&script).await;
    }

    /// What came of all calls so far.
    async fn answers(&self) -> Vec<String> {
        let answers = self.page.eval("Promise.all(answers.splice(0))").await;
        serde_json::from_value(answers).expect("texts")
    }

    /// The key under which a text is sent, when this is what comes of it.
    async fn key(&self, status: u16, media_type: &str, body: &str) -> String {
        let held = self.begin("a", "").await;
        let key = held.header("Idempotency-Key").to_owned();
        if status == 0 {
            self.page.break_off(held).await;
        } else {
            self.page.answer(held, status, media_type, body).await;
        }
        self.answers().await;
        key
    }
}

#[tokio::test]
async fn module_is_below_6_kb() {
    let service = Service::start("memory:").await;
    let module = service.get("/assets/keylatch.js").await;
    assert_eq!(module.header("content-type"), "text/javascript; charset=utf-8");
    assert!(module.text.len() < 6000, "{} bytes", module.text.len());
    assert!(!module.text.contains("import"), "it depends on nothing");
    for name in ["fetchOnce", "submitOnce"] {
        assert!(module.text.contains(&format!("export async function {name}(")), "{name}");
        let types = service.get("/assets/keylatch.d.ts").await;
        assert!(types.text.contains(&format!("export function {name}(")), "{name}");
    }
}

#[tokio::test]
async fn transient_answer_is_retried_under_the_same_key() {
    let site = Site::open().await;
    let first = site.key(0, "", "").await;
    for status in [401, 403, 407, 408, 421, 425, 426, 429, 500, 502, 503, 504, 599] {
        assert_eq!(site.key(status, JSON, "{}").await, first, "after {status}");
    }
    for (status, retry) in [(409, "same-key"), (503, "same-key"), (409, "never"), (504, "never")] {
        let problem = json!({"code": "any", "retry": retry}).to_string();
        assert_eq!(site.key(status, PROBLEM, &problem).await, first, "after {status} {retry}");
    }
    assert_eq!(site.key(500, PROBLEM, "not JSON").await, first);
    assert_eq!(site.key(500, PROBLEM, "{}").await, first);
    assert_eq!(site.key(200, JSON, "{}").await, first);
    assert_ne!(site.key(200, JSON, "{}").await, first);
}

#[tokio::test]
async fn final_answer_is_followed_by_a_new_key() {
    let site = Site::open().await;
    let mut last = String::new();
    for status in [200, 201, 204, 304, 400, 402, 404, 409, 410, 418, 422, 499] {
        let key = site.key(status, JSON, "").await;
        assert_ne!(key, last, "before {status}");
        last = key;
    }
    for (status, code) in [
        (400, "invalid-key"),
        (422, "idempotency-key-reused"),
        (422, "validation-failed"),
        (503, "whatever-says-so"),
    ] {
        let problem = json!({"code": code, "retry": "new-key"}).to_string();
        let key = site.key(status, "application/problem+json; charset=utf-8", &problem).await;
        assert_ne!(key, last, "before {code}");
        last = key;
    }
    let key = site.key(422, PROBLEM, r#"{"title": "Of another service"}"#).await;
    assert_ne!(key, last);
    assert_ne!(site.key(200, JSON, "").await, key);
}

#[tokio::test]
async fn key_is_stored_before_sending() {
    let site = Site::open().await;
    let held = site.begin("a", "").await;
    let key = held.header("Idempotency-Key").trim_matches('"').to_owned();
    assert!(key.len() >= 20, "{key}");
    let kept = "Object.entries(sessionStorage).filter(([name]) => name.startsWith('keylatch:'))";
    let name = format!("keylatch:POST http://{}/played ", site.service.address);
    assert_eq!(site.page.eval(kept).await, json!([[name, key]]));
    site.page.answer(held, 200, JSON, "{}").await;
    assert_eq!(site.answers().await, ["200 {}"]);
    assert_eq!(site.page.eval(kept).await, json!([]));
}

#[tokio::test]
async fn key_survives_reload_and_is_not_shared_between_tabs() {
    let site = Site::open().await;
    let held = site.begin("a", "").await;
    let key = held.header("Idempotency-Key").to_owned();
    site.load(&site.page).await;
    assert_eq!(site.key(0, "", "").await, key);

    let other = site.browser.open("about:blank").await;
    site.load(&other).await;
    other.eval("void fetchOnce('/played', {method: 'POST', body: 'a'})").await;
    assert_ne!(other.held().await.header("Idempotency-Key"), key);
}

#[tokio::test]
async fn concurrent_calls_share_one_request() {
    let site = Site::open().await;
    let held = site.begin("a", "").await;
    site.call("a", "").await;
    site.call("a", "").await;
    site.page.answer(held, 201, JSON, "the answer").await;
    assert_eq!(site.answers().await, ["201 the answer"; 3]);

    // Had another been sent, it would be the next to be held.
    let next = site.begin("the next", "").await;
    assert_eq!(next.request["postData"], "the next");
}

#[tokio::test]
async fn other_content_is_refused_and_keeps_the_key() {
    let site = Site::open().await;
    let first = site.begin("a", "").await;
    let edited = site.begin("b", "").await;
    let key = first.header("Idempotency-Key").to_owned();
    assert_eq!(edited.header("Idempotency-Key"), key);
    let refusal = r#"{"code":"idempotency-key-reused","retry":"new-key"}"#;
    site.page.answer(edited, 422, PROBLEM, refusal).await;
    site.page.until("Promise.race([answers[1], 0]).then((answer) => answer !== 0)").await;
    site.page.break_off(first).await;
    assert_eq!(site.answers().await, ["none: TypeError".to_owned(), format!("422 {refusal}")]);
    // The outcome of the first request is not known yet.
    assert_eq!(site.key(0, "", "").await, key);
}

/// Bodies that are other content each time that they are made, by a number.
const BODIES: [&str; 8] = [
    // Files that only their content tells apart.
    "formOf(new File([`${n}`], 'photo.png', {lastModified: 7}))",
    "formOf(new File(['same'], `photo-${n}.png`, {lastModified: 7}))",
    "formOf(new File(['a'.repeat(3e6) + n], 'photo.png'))",
    "(window.form ??= new FormData(), form.set('n', n), form)",
    "new Blob([`${n}`])",
    "new Blob(['same'], {type: `text/x-${n}`})",
    "(window.bytes ??= new Uint8Array(1), bytes.fill(n))",
    "new URLSearchParams({n})",
];
const FORM_OF: &str = "const formOf = (file) => {
        const form = new FormData();
        form.set('file', file);
        return form;
    };";

#[tokio::test]
async fn same_files_or_bytes_share_one_request_and_others_do_not() {
    for body in BODIES {
        let site = Site::open().await;
        let first = site.begin_with(body, 1).await;
        site.call_with(body, 1).await;
        let other = site.begin_with(body, 2).await;
        let key = first.header("Idempotency-Key");
        assert_eq!(other.header("Idempotency-Key"), key, "the service could not refuse {body}");
        site.page.answer(other, 422, JSON, "refused").await;
        site.page.answer(first, 201, JSON, "done").await;
        assert_eq!(site.answers().await, ["201 done", "201 done", "422 refused"], "{body}");
        // Had another been sent, it would be the next to be held.
        let next = site.begin("the next", "").await;
        assert_eq!(next.request["postData"], "the next", "{body}");
    }
}

/// What counts for the service counts for the page: an order as JSON is another one than as text.
#[tokio::test]
async fn call_with_other_headers_is_not_taken_for_the_one_under_way() {
    for (one, other) in [
        ("", "headers: {'Content-Type': 'application/json'}"),
        ("headers: {'If-Match': '1'}", "headers: {'If-Match': '2'}"),
        ("headers: {'X-Mine': '1'}", "headers: new Headers({'X-Mine': '2'})"),
        ("headers: {'X-Mine': '1'}", ""),
    ] {
        let site = Site::open().await;
        let first = site.begin("a", one).await;
        site.call("a", one).await;
        let second = site.begin("a", other).await;
        let key = first.header("Idempotency-Key");
        assert_eq!(second.header("Idempotency-Key"), key, "the service could not refuse {other}");
        site.page.answer(second, 422, JSON, "refused").await;
        site.page.answer(first, 201, JSON, "done").await;
        assert_eq!(site.answers().await, ["201 done", "201 done", "422 refused"], "{one} {other}");
    }
}

#[tokio::test]
async fn body_of_a_request_object_is_compared() {
    let site = Site::open().await;
    let call = async |body: &str| {
        let script = format!(
            "window.answers ??= [];
             answers.push(fetchOnce(new Request('/played', {{method: 'POST', body: '{body}'}})).then(
                 async (response) => `${{response.status}} ${{await response.text()}}`));
             0"
        );
        site.page.eval(&script).await;
    };
    call("a").await;
    let first = site.page.held().await;
    call("a").await;
    call("b").await;
    let other = site.page.held().await;
    assert_eq!(other.request["postData"], "b");
    site.page.answer(other, 422, JSON, "refused").await;
    site.page.answer(first, 201, JSON, "done").await;
    assert_eq!(site.answers().await, ["201 done", "201 done", "422 refused"]);
}

#[tokio::test]
async fn stream_shares_no_request() {
    let site = Site::open().await;
    let stream = "new Blob(['same']).stream()";
    let first = site.begin_with(stream, 1).await;
    let second = site.begin_with(stream, 1).await;
    site.page.answer(first, 201, JSON, "first").await;
    site.page.answer(second, 409, JSON, "second").await;
    assert_eq!(site.answers().await, ["201 first", "409 second"]);
}

#[tokio::test]
async fn late_answer_settles_only_its_own_key() {
    let site = Site::open().await;
    let late = site.begin("a", "").await;
    // The page comes back from where it was left, and waits for nothing.
    site.page.eval("dispatchEvent(new PageTransitionEvent('pageshow', {persisted: true}))").await;
    let again = site.begin("a", "").await;
    assert_eq!(again.header("Idempotency-Key"), late.header("Idempotency-Key"));
    site.page.answer(again, 200, JSON, "").await;
    site.page.eval("answers[1]").await;

    let next = site.begin("a", "").await;
    let key = next.header("Idempotency-Key").to_owned();
    assert_ne!(key, late.header("Idempotency-Key"));
    site.page.answer(late, 200, JSON, "").await;
    site.page.eval("answers[0]").await;
    site.page.break_off(next).await;
    assert_eq!(site.answers().await, ["200 ", "200 ", "none: TypeError"]);
    assert_eq!(site.key(200, JSON, "").await, key);
}

#[tokio::test]
async fn allowed_origin_orders_once() {
    let shop = Service::start("memory:").await;
    let origin = shop.url();
    let service = Service::set(|config| config.cors.allow_origins = vec![origin.clone()]).await;
    let page = Browser::start().await.open(&format!("{origin}/livez")).await;
    let api = service.url();
    let script = format!(
        "(async () => {{
            const {{ fetchOnce }} = await import('{api}/assets/keylatch.js');
            const headers = {{'Content-Type': 'application/json'}};
            const order = (body) => fetchOnce('{api}/v1/orders', {{method: 'POST', headers, body}});
            await order(JSON.stringify({{amount: 1, currency: 'EUR', fail: 429}}));
            const answers = await Promise.all(
                [1, 2].map(() => order(JSON.stringify({{amount: 1, currency: 'EUR'}}))),
            );
            return answers.map((answer) => [answer.status, answer.headers.has('Location')]);
        }})()"
    );
    assert_eq!(page.eval(&script).await, json!([[201, true], [201, true]]));
    let orders = service.get("/v1/orders").await;
    assert_eq!(orders.json["orders"].as_array().expect("a list").len(), 1);
}

#[tokio::test]
async fn intent_is_method_url_and_name() {
    let site = Site::open().await;
    let held = site.begin("a", "").await;
    let key = held.header("Idempotency-Key").to_owned();
    for init in ["intent: 'cart-1'", "method: 'PATCH'"] {
        let other = site.begin("a", init).await;
        assert_ne!(other.header("Idempotency-Key"), key, "{init}");
    }
    let script = "void fetchOnce(new URL('/played?b', location), {method: 'POST', body: 'a'})";
    site.page.eval(script).await;
    assert_ne!(site.page.held().await.header("Idempotency-Key"), key);
    site.page.break_off(held).await;
}

#[tokio::test]
async fn key_is_kept_in_memory_without_session_storage() {
    for script in [
        "Storage.prototype.setItem = () => { throw new DOMException('', 'QuotaExceededError'); }",
        "Object.defineProperty(window, 'sessionStorage', {
             get() { throw new DOMException('', 'SecurityError'); }
         })",
    ] {
        let site = Site::prepared(script).await;
        let key = site.key(0, "", "").await;
        assert_eq!(site.key(200, JSON, "{}").await, key, "{script}");
        assert_ne!(site.key(200, JSON, "{}").await, key, "{script}");
    }
}

#[tokio::test]
async fn aborted_call_keeps_the_key() {
    let site = Site::open().await;
    site.page.eval("window.patience = new AbortController(); 0").await;
    let held = site.begin("a", "signal: patience.signal").await;
    site.page.eval("patience.abort()").await;
    assert_eq!(site.answers().await, ["none: AbortError"]);
    assert_eq!(site.key(200, JSON, "").await, held.header("Idempotency-Key"));
}

#[tokio::test]
async fn form_is_sent_under_the_key_that_was_issued_for_it() {
    let site = Site::open().await;
    let form = r#"<form method="post" action="/played"><input name="idempotency_key" value="issued-1">
            <input name="id" value="7"></form>"#;
    site.page.eval(&format!("document.body.innerHTML = `{form}`")).await;
    site.page.eval("window.answer = submitOnce(document.forms[0]); 0").await;
    let held = site.page.held().await;
    assert_eq!(held.header("Idempotency-Key"), "\"issued-1\"");
    assert_eq!(held.request["postData"], "id=7");
    site.page.answer(held, 201, JSON, "").await;
    assert_eq!(site.page.eval("answer.then((answer) => answer.status)").await, 201);
    // Only the service can make another.
    site.page.eval("dispatchEvent(new PageTransitionEvent('pageshow', {persisted: true}))").await;
    let field = "document.querySelector('[name=idempotency_key]').value";
    assert_eq!(site.page.eval(field).await, "issued-1");
}

#[tokio::test]
async fn form_is_sent_as_the_browser_sends_it() {
    let site = Site::open().await;
    let form = r#"<form method="post" action="/played" id="shop">
            <input name="idempotency_key" value="of-the-server"><input name="id" value="7">
            <input name="off" value="x" disabled><input name="note" value="ä &amp; b">
            <button name="how" value="now">Buy</button>
            <button name="how" value="later" formaction="/played/later"
                formenctype="multipart/form-data">Save</button>
        </form>"#;
    site.page.eval(&format!("document.body.innerHTML = `{form}`")).await;
    let submit = |button: usize| {
        format!(
            "{{
                const form = document.forms[0];
                const button = form.querySelectorAll('button')[{button}];
                window.answer = submitOnce(form, button);
                form.getAttribute('aria-busy');
            }}"
        )
    };
    assert_eq!(site.page.eval(&submit(0)).await, "true");
    let now = site.page.held().await;
    assert_eq!(now.request["method"], "POST");
    assert_eq!(now.request["postData"], "id=7&note=%C3%A4+%26+b&how=now");
    assert_eq!(now.header("Content-Type"), "application/x-www-form-urlencoded;charset=UTF-8");
    site.page.answer(now, 201, JSON, "").await;
    assert_eq!(site.page.eval("answer.then((answer) => answer.status)").await, 201);
    assert_eq!(site.page.eval("document.forms[0].ariaBusy").await, json!(null));

    site.page.eval(&submit(1)).await;
    let later = site.page.held().await;
    assert!(later.request["url"].as_str().is_some_and(|url| url.ends_with("/played/later")));
    assert!(later.header("Content-Type").starts_with("multipart/form-data; boundary="));
    site.page.break_off(later).await;
    let error = site.page.eval("answer.catch((error) => error.name)").await;
    assert_eq!(error, "TypeError");
    assert_eq!(site.page.eval("document.forms[0].ariaBusy").await, json!(null));
}

#[tokio::test]
async fn urlencoded_form_has_the_names_of_its_files() {
    let site = Site::open().await;
    let script = "{
            document.body.innerHTML = `<form method=post action=/played>
                <input type=file name=scan><input name=id value=7></form>`;
            const files = new DataTransfer();
            files.items.add(new File(['bytes'], 'a b.png'));
            document.querySelector('[type=file]').files = files.files;
            void submitOnce(document.forms[0]).catch(() => 0);
        }";
    site.page.eval(script).await;
    assert_eq!(site.page.held().await.request["postData"], "scan=a+b.png&id=7");
}

#[tokio::test]
async fn two_forms_are_two_intents() {
    let site = Site::open().await;
    let form = r#"<form method="post" action="/played"><button>Buy</button></form>"#;
    site.page.eval(&format!("document.body.innerHTML = `{form}{form}`")).await;
    let mut keys = Vec::new();
    for form in [0, 1, 0, 1] {
        site.page.eval(&format!("void submitOnce(document.forms[{form}]).catch(() => 0)")).await;
        let held = site.page.held().await;
        keys.push(held.header("Idempotency-Key").to_owned());
        site.page.break_off(held).await;
        site.page.until(&format!("!document.forms[{form}].hasAttribute('aria-busy')")).await;
    }
    assert_eq!((&keys[0], &keys[1]), (&keys[2], &keys[3]));
    assert_ne!(keys[0], keys[1]);
}
