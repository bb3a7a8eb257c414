//! Goal: every button, link and field of the console does what it is there for.
//!
//! Method: each view is opened in a real browser, its controls are listed, and each is pressed in a
//! view that was just loaded. A row of [`VIEWS`] says what a press brings about; that is not so
//! before. A control without a row fails the test, and so does a row without a control.

use std::collections::BTreeSet;

use keylatch_testkit::{Answer, Page, eventually};
use reqwest::Method;
use serde_json::{Value, json};

use crate::console::{Console, note_violations, shows};

/// A view, and what its controls do.
struct View {
    /// The address behind the `/`.
    at: &'static str,
    /// A text that is there once the view is.
    shows: &'static str,
    /// What is pressed first, one after the other.
    before: &'static [&'static str],
    /// Controls, each with a script that is true after its press and not before. The view is there
    /// once all are, so one of them has to be what the last press of `before` brings.
    presses: &'static [(&'static str, &'static str)],
}

const NO_DIALOG: &str = "document.querySelector('dialog') === null";
const DIALOG: &str = "document.querySelector('dialog') !== null";
const COPIED: &str = "document.querySelector('#said').textContent === 'Copied.'";
/// The head of this column says that the rows are in this order.
macro_rules! sorts {
    ($order:literal, $column:literal) => {
        concat!(
            "document.querySelector('[aria-sort=",
            $order,
            "]')?.textContent === '",
            $column,
            "'"
        )
    };
}

const FOLDED: &str = "document.querySelector('details').open === false";
const ASKS_WHY: &str = "document.querySelector('#reason').matches(':user-invalid')";
const NONE: &str =
    "document.querySelector('#keys-status').textContent.startsWith('There is none.')";
const IN_LOCKS: &str = "document.querySelector('h1')?.textContent === 'Locks'";
const IN_KEYS: &str = "document.querySelector('h1')?.textContent === 'Keys'";
const KEY: &str = "#/keys/payment-7?method=POST&path=%2Fpayments&principal=";

const VIEWS: &[View] = &[
    View {
        at: "",
        shows: "1 unknown outcome",
        before: &[],
        presses: &[
            ("Skip to the content", "document.activeElement.id === 'main'"),
            ("At a glance", "location.hash === '#/'"),
            ("Locks", IN_LOCKS),
            ("Keys", IN_KEYS),
            ("Problems", "location.pathname === '/problems'"),
            ("API", "location.pathname === '/docs/'"),
            ("Demo", "location.pathname === '/demo'"),
            ("61 locks held", IN_LOCKS),
            ("Review 1", IN_KEYS),
            ("Do this with curl", FOLDED),
            ("Copy", COPIED),
        ],
    },
    View {
        at: "#/locks",
        shows: "61 held",
        before: &[],
        presses: &[
            ("#prefix", "document.querySelector('#locks-status').textContent === '0 held'"),
            ("Lock", sorts!("ascending", "Lock")),
            ("Holder", sorts!("ascending", "Holder")),
            ("Time left", sorts!("ascending", "Time left")),
            ("Held for", sorts!("ascending", "Held for")),
            ("Queue", sorts!("descending", "Queue")),
            ("#pause", "document.querySelector('#pause').checked"),
            ("deploy", "document.querySelector('h1')?.textContent === 'deploy'"),
            ("Next", "document.body.innerText.includes('51 to 61 shown')"),
            ("Do this with curl", FOLDED),
            ("Copy", COPIED),
        ],
    },
    View {
        at: "#/locks",
        shows: "61 held",
        before: &["Next"],
        presses: &[
            ("Previous", "document.body.innerText.includes('1 to 50 shown')"),
            ("jobs/49", "document.querySelector('h1')?.textContent === 'jobs/49'"),
        ],
    },
    View {
        at: "#/locks/deploy",
        shows: "alice",
        before: &[],
        presses: &[
            ("‹ All locks", IN_LOCKS),
            ("Break the lease…", DIALOG),
            ("Do this with curl", FOLDED),
            ("Copy", COPIED),
        ],
    },
    View {
        at: "#/locks/deploy",
        shows: "alice",
        before: &["Break the lease…"],
        presses: &[
            ("#reason", "document.querySelector('#reason').value !== ''"),
            ("#by", "document.querySelector('#by').value !== ''"),
            ("#at-once", "document.querySelector('#at-once').checked"),
            ("Break the lease", ASKS_WHY),
            ("Keep it", NO_DIALOG),
        ],
    },
    View {
        at: "#/keys",
        shows: "payment-7",
        before: &[],
        presses: &[
            ("state=in-flight", "document.body.innerText.includes('order-1')"),
            ("state=done", "document.body.innerText.includes('paid-1')"),
            ("#key-prefix", NONE),
            ("#path-prefix", NONE),
            ("Key", sorts!("ascending", "Key")),
            ("Request", sorts!("ascending", "Request")),
            ("User", sorts!("ascending", "User")),
            ("Attempts", sorts!("descending", "Attempts")),
            ("When", sorts!("descending", "When")),
            ("Result", sorts!("ascending", "Result")),
            (
                "Select all that are shown",
                "document.body.innerText.includes('Settle the key that')",
            ),
            ("Select payment-7", "document.body.innerText.includes('Settle the key that')"),
            ("payment-7", "document.querySelector('h1')?.textContent === 'payment-7'"),
            ("Do this with curl", FOLDED),
            ("Copy", COPIED),
        ],
    },
    View {
        at: "#/keys",
        shows: "payment-7",
        before: &["state=done"],
        presses: &[
            ("paid-1", "document.querySelector('h1')?.textContent === 'paid-1'"),
            (
                "state=unknown",
                "document.querySelector('[value=unknown]').checked
                    && document.querySelector('tbody').innerText.includes('payment-7')",
            ),
        ],
    },
    View {
        at: "#/keys",
        shows: "payment-7",
        before: &["Select payment-7"],
        presses: &[("Settle the key that is selected…", DIALOG)],
    },
    View {
        at: KEY,
        shows: "the run was cut off",
        before: &[],
        presses: &[
            ("‹ All keys", IN_KEYS),
            ("Settle it…", DIALOG),
            ("outcome-unknown", "location.pathname === '/problems/outcome-unknown'"),
            ("Do this with curl", FOLDED),
            ("Copy", COPIED),
        ],
    },
    View {
        at: KEY,
        shows: "the run was cut off",
        before: &["Settle it…"],
        presses: &[
            ("outcome=not-executed", "document.querySelector('[value=not-executed]').checked"),
            ("outcome=completed", "document.querySelector('#status').checkVisibility()"),
            ("#reason", "document.querySelector('#reason').value !== ''"),
            ("#by", "document.querySelector('#by').value !== ''"),
            ("Settle it", "document.querySelector('dialog :user-invalid') !== null"),
            ("Cancel", NO_DIALOG),
        ],
    },
    View {
        at: KEY,
        shows: "the run was cut off",
        before: &["Settle it…", "outcome=completed"],
        presses: &[
            ("#status", "document.querySelector('#status').value !== '200'"),
            ("#body", "document.querySelector('#body').value !== ''"),
        ],
    },
];

/// The controls that a user can press; of the rows of a table those of the first. All commands are
/// unfolded.
const CONTROLS: &str = "
    const controlsIn = (scope) => {
        document.querySelectorAll('details').forEach((details) => { details.open = true; });
        const place = document.querySelector('dialog[open]') ?? document.querySelector(scope);
        const all = [...place.querySelectorAll('a[href], button, input, select, textarea, summary')];
        return all.filter((element) => element.checkVisibility() && !element.disabled
            && !element.closest('tbody tr:not(:first-child)'));
    };
    const labelOf = (element) => element.id ? `#${element.id}`
        : element.type === 'radio' ? `${element.name}=${element.value}`
        : (element.getAttribute('aria-label') ?? element.labels?.[0]?.innerText ?? element.innerText).trim();
    const control = (scope, label) => controlsIn(scope).find((element) => labelOf(element) === label);
";

/// A script with the functions above.
fn with_controls(script: &str) -> String {
    format!("(() => {{ {CONTROLS} return {script}; }})()")
}

/// The element with this label.
fn control(scope: &str, label: &str) -> String {
    with_controls(&format!("control({}, {})", Value::from(scope), Value::from(label)))
}

async fn labels(page: &Page, scope: &str) -> BTreeSet<String> {
    let script = format!("controlsIn({}).map(labelOf)", Value::from(scope));
    let labels = page.eval(&with_controls(&script)).await;
    let labels = labels.as_array().expect("labels").iter();
    labels.map(|label| label.as_str().expect("a label").to_owned()).collect()
}

/// Presses a control as a user does: a field is typed into, and a choice made by the keyboard.
async fn press(page: &Page, scope: &str, label: &str) {
    let element = control(scope, label);
    page.until(&format!("Boolean({element})")).await;
    let kind =
        format!("{element}.matches('select, textarea') ? {element}.tagName : {element}.type ?? ''");
    let kind = page.eval(&kind).await;
    match kind.as_str().expect("a kind") {
        "SELECT" => {
            page.eval(&format!("{element}.focus()")).await;
            page.press("ArrowDown").await;
        }
        "TEXTAREA" | "search" | "text" | "number" => {
            page.eval(&format!("{element}.focus()")).await;
            page.type_text("7").await;
        }
        // It is out of sight until it has the focus.
        _ if label.starts_with("Skip") => {
            page.eval(&format!("{element}.focus()")).await;
            page.press("Enter").await;
        }
        _ => page.click_on(&element, 1).await,
    }
}

impl View {
    /// The part of the page whose controls are listed, where no dialog is open: the menu with the
    /// first view.
    const fn scope(&self) -> &'static str {
        if self.at.is_empty() { "body" } else { "main" }
    }

    /// Loads the view again, presses what comes before, and waits for each control that has a row.
    async fn open(&self, console: &Console, page: &Page) {
        page.goto(&console.url("livez")).await;
        page.goto(&console.url(self.at)).await;
        shows(page, self.shows).await;
        for label in self.before {
            press(page, self.scope(), label).await;
        }
        for (label, _) in self.presses {
            page.until(&format!("Boolean({})", control(self.scope(), label))).await;
        }
    }

    /// Presses everything, and gives the labels of all controls.
    async fn press_all(&self, console: &Console, page: &Page) -> BTreeSet<String> {
        self.open(console, page).await;
        let labels = labels(page, self.scope()).await;
        for (index, (label, brings_about)) in self.presses.iter().enumerate() {
            if index > 0 {
                self.open(console, page).await;
            }
            assert_eq!(page.eval(brings_about).await, false, "{} {label}: before", self.at);
            press(page, self.scope(), label).await;
            page.until(brings_about).await;
        }
        labels
    }
}

/// 61 locks, and a key in each state.
async fn open() -> Console {
    let console = Console::open().await;
    let service = &console.service;
    service.create("deploy", &json!({"owner": "alice", "ttl_ms": 600_000})).await;
    for number in 0..60 {
        service.create(&format!("jobs%2F{number:02}"), &json!({"ttl_ms": 600_000})).await;
    }
    for (key, path, lease_ms) in [
        ("payment-7", "/payments", 1500),
        ("order-1", "/orders", 600_000),
        ("paid-1", "/payments", 60_000),
    ] {
        let url = format!("/v1/idempotency/{key}?method=POST&path={path}");
        let begun =
            Answer::of(service.request(Method::POST, &url).json(&json!({"lease_ms": lease_ms})))
                .await;
        if key == "paid-1" {
            let complete = service.request(Method::PUT, &url).header("Lock-Token", begun.token());
            assert_eq!(Answer::of(complete.json(&json!({"status": 201}))).await.status, 200);
        }
    }
    eventually(async || {
        let unknown = service.get("/v1/idempotency?state=unknown").await.json;
        (unknown["records"].as_array().map(Vec::len) == Some(1)).then_some(())
    })
    .await;
    console
}

#[tokio::test]
async fn every_control_is_pressed_and_does_something() {
    let console = open().await;
    let page = console.visit("livez").await;
    page.allow_clipboard().await;
    for view in VIEWS {
        let found = view.press_all(&console, &page).await;
        let of_view = VIEWS.iter().filter(|other| other.at == view.at);
        let pressed: BTreeSet<_> =
            of_view.flat_map(|view| view.presses).map(|(label, _)| (*label).to_owned()).collect();
        let forgotten: Vec<_> = found.difference(&pressed).collect();
        assert!(forgotten.is_empty(), "{}: no press of {forgotten:?}", view.at);
    }
}

/// The roles of what a user presses or reads as a picture.
const NAMED: [&str; 10] = [
    "button",
    "link",
    "textbox",
    "searchbox",
    "combobox",
    "checkbox",
    "radio",
    "spinbutton",
    "image",
    "dialog",
];

#[tokio::test]
async fn screen_reader_finds_a_name_for_every_control() {
    let console = open().await;
    let page = console.visit("livez").await;
    for view in VIEWS {
        view.open(&console, &page).await;
        let nodes = page.accessible_nodes().await;
        let named: Vec<_> =
            nodes.iter().filter(|(role, _)| NAMED.contains(&role.as_str())).collect();
        assert!(named.len() > 3, "{}: {nodes:?}", view.at);
        for (role, name) in named {
            assert!(
                !name.trim().is_empty(),
                "{} {:?}: a {role} without a name",
                view.at,
                view.before
            );
        }
    }
}

/// The texts whose contrast to what is behind them is below that of WCAG 2.2 AA.
const FAINT: &str = "(() => {
    const channels = (color) => color.match(/[\\d.]+/g).map(Number);
    const light = ([r, g, b]) => [r, g, b].map((c) => c / 255)
        .map((c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
        .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
    const behind = (element) => {
        for (let at = element; at; at = at.parentElement) {
            const color = channels(getComputedStyle(at).backgroundColor);
            if (color[3] === undefined || color[3] === 1) return color;
        }
        throw new Error('nothing is behind it');
    };
    const faint = [];
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
        const element = walker.currentNode.parentElement;
        const text = walker.currentNode.textContent.trim();
        if (!text || !element.checkVisibility() || element.matches(':disabled, option, noscript, .skip')) continue;
        const [one, other] = [light(channels(getComputedStyle(element).color)), light(behind(element))];
        const contrast = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
        if (contrast < 4.5) faint.push(`${text}: ${contrast.toFixed(2)}`);
    }
    return faint;
})()";

#[tokio::test]
async fn every_view_is_readable_in_the_light_and_in_the_dark() {
    let console = open().await;
    let page = console.visit("livez").await;
    let mut grounds = BTreeSet::new();
    for scheme in ["light", "dark"] {
        page.emulate_scheme(scheme).await;
        for view in VIEWS {
            view.open(&console, &page).await;
            let faint = page.eval(FAINT).await;
            assert_eq!(faint, json!([]), "{scheme} {} {:?}", view.at, view.before);
        }
        let ground = page.eval("getComputedStyle(document.documentElement).backgroundColor").await;
        grounds.insert(ground.as_str().expect("a color").to_owned());
    }
    assert_eq!(grounds.len(), 2, "{grounds:?}");
}

#[tokio::test]
async fn no_view_breaks_its_policy_or_asks_another_host() {
    let console = open().await;
    let page = console.visit("livez").await;
    note_violations(&page).await;
    for view in VIEWS {
        view.open(&console, &page).await;
        assert_eq!(page.eval("violations").await, json!([]), "{}", view.at);
        let origins =
            "performance.getEntriesByType('resource').map(({ name }) => new URL(name).origin)";
        let own = format!(
            "{origins}.length > 5 && {origins}.every((origin) => origin === location.origin)"
        );
        assert_eq!(page.eval(&own).await, true, "{}", view.at);
    }
    // The policy is in force.
    page.eval("document.body.append(Object.assign(new Image(), {src: 'http://evil.example/a'}))")
        .await;
    page.until("violations.length === 1").await;
}
