//! Goal: an operator reads in the console what is there, by eye, keyboard or phone, and with or
//! without scripts; and what clients wrote is text there.
//!
//! Method: the page at `/` in a real browser, by its own links and fields.

use keylatch_testkit::{Answer, Browser, Keyring, Page, Service};
use reqwest::Method;
use serde_json::json;

/// What a page must not run: it stands in names, labels and reasons.
pub(crate) const MARKUP: &str = "<img src=x onerror=\"window.hacked = true\">";

/// A console, and the service that it shows.
pub(crate) struct Console {
    pub(crate) service: Service,
    browser: Browser,
}

impl Console {
    pub(crate) async fn open() -> Self {
        Self::over(Service::start("memory:").await).await
    }

    pub(crate) async fn over(service: Service) -> Self {
        Self { service, browser: Browser::start().await }
    }

    /// Ends the service; the browser stays.
    pub(crate) async fn stop(self) -> Browser {
        self.service.stop().await;
        self.browser
    }

    pub(crate) fn url(&self, view: &str) -> String {
        format!("http://{}/{view}", self.service.address)
    }

    /// A new tab with this view.
    pub(crate) async fn visit(&self, view: &str) -> Page {
        self.browser.open(&self.url(view)).await
    }

    /// The same, once it shows a text.
    pub(crate) async fn visit_until(&self, view: &str, text: &str) -> Page {
        let page = self.visit(view).await;
        shows(&page, text).await;
        page
    }

    async fn hold(&self, name: &str, owner: &str) {
        let name = name.replace('%', "%25").replace('/', "%2F").replace(' ', "%20");
        let name = name.replace('<', "%3C").replace('>', "%3E").replace('"', "%22");
        let held = self.service.create(&name, &json!({"owner": owner, "ttl_ms": 60_000})).await;
        assert_eq!(held.status, 201, "{held:?}");
    }
}

/// Waits until the page shows a text.
pub(crate) async fn shows(page: &Page, text: &str) {
    let text = serde_json::Value::from(text);
    page.until(&format!("document.body.innerText.includes({text})")).await;
}

/// Asserts that markup in what clients wrote has become no element and no script.
pub(crate) async fn runs_no_markup(page: &Page) {
    assert_eq!(page.eval("document.querySelectorAll('main img').length").await, 0);
    assert_eq!(page.eval("typeof window.hacked").await, "undefined");
}

/// Asserts that nothing of the page is wider than a phone.
pub(crate) async fn fits_a_phone(page: &Page, view: &str) {
    page.resize(375, 812).await;
    page.until("innerWidth === 375").await;
    let width = page.eval("document.documentElement.scrollWidth").await;
    assert!(width.as_u64().is_some_and(|width| width <= 375), "{view}: {width}");
}

/// Has every page that comes keep what breaks its content policy, in `violations`.
pub(crate) async fn note_violations(page: &Page) {
    page.prepare(
        "window.violations = [];
         addEventListener('securitypolicyviolation', (event) =>
             violations.push(`${event.violatedDirective} ${event.blockedURI}`));",
    )
    .await;
}

/// Gives an API key to the page that asks for one.
pub(crate) async fn sign_in(page: &Page, key: &str) {
    shows(page, "Paste an API key").await;
    page.click("#api-key", 1).await;
    page.type_text(key).await;
    page.press("Enter").await;
}

/// Goes from element to element by Tab until the one that a script describes has the focus.
pub(crate) async fn tab_to(page: &Page, is_there: &str) {
    for _ in 0..80 {
        page.press("Tab").await;
        if page
            .eval(&format!("(() => {{ const at = document.activeElement; return {is_there}; }})()"))
            .await
            == true
        {
            return;
        }
    }
    panic!("Tab does not lead to {is_there}");
}

#[tokio::test]
async fn held_locks_come_and_go_without_a_reload() {
    let console = Console::open().await;
    console.hold("deploy/shop", "ci runner 7").await;
    let page = console.visit_until("#/locks", "deploy/shop").await;
    shows(&page, "ci runner 7").await;
    let held = console.service.create("short", &json!({"owner": "alice"})).await;
    shows(&page, "alice").await;
    shows(&page, "2 held").await;
    console.service.release("short", &held.token()).await;
    shows(&page, "1 held").await;
    assert_eq!(page.eval("document.body.innerText.includes('alice')").await, false);
}

#[tokio::test]
async fn filter_and_order_choose_among_many_locks() {
    let console = Console::open().await;
    for number in 0..120 {
        console.hold(&format!("jobs/{number:03}"), "worker").await;
    }
    console.hold("deploy/shop", "ci").await;
    let page = console.visit_until("#/locks", "121 held, 1 to 50 shown").await;
    assert_eq!(page.eval("document.querySelectorAll('tbody tr').length").await, 50);
    page.click("thead th:first-child button", 1).await;
    page.until("document.querySelector('tbody th').textContent === 'deploy/shop'").await;
    page.eval("document.querySelector('#prefix').focus()").await;
    page.type_text("jobs/11").await;
    shows(&page, "10 held").await;
    page.until("document.querySelectorAll('tbody tr').length === 10").await;
}

#[tokio::test]
async fn list_is_turned_page_by_page_and_stands_still() {
    let console = Console::open().await;
    for number in 0..60 {
        console.hold(&format!("jobs/{number:03}"), "worker").await;
    }
    let page = console.visit_until("#/locks", "60 held, 1 to 50 shown").await;
    page.click("#pause", 1).await;
    console.hold("new", "late comer").await;
    // What the user asks for is drawn, with what has come until then.
    page.until(
        "(async () => (await import('/assets/console/feed.js')).locks.size)().then(size => size === 61)",
    )
    .await;
    shows(&page, "60 held, 1 to 50 shown").await;
    page.click("section .buttons button:last-child", 1).await;
    shows(&page, "61 held, 51 to 61 shown").await;
    shows(&page, "late comer").await;
}

#[tokio::test]
async fn names_and_labels_are_text() {
    let console = Console::open().await;
    console.hold(&format!("lock {MARKUP}"), &format!("owner {MARKUP}")).await;
    let page = console.visit_until("#/locks", &format!("lock {MARKUP}")).await;
    shows(&page, &format!("owner {MARKUP}")).await;
    runs_no_markup(&page).await;
}

#[tokio::test]
async fn no_view_scrolls_sideways_on_a_phone() {
    let console = Console::open().await;
    console.hold(&"a-name-without-an-end-".repeat(8), &"an-owner-likewise-".repeat(8)).await;
    for (view, text) in [("", "lock held"), ("#/locks", "a-name-without-an-end")] {
        let page = console.visit(view).await;
        shows(&page, text).await;
        fits_a_phone(&page, view).await;
    }
}

/// A short row beside a long one has its one line, or two where it has a sentence.
#[tokio::test]
async fn long_names_break_in_their_own_column_alone() {
    let console = Console::open().await;
    let long = "a-name-without-an-end-".repeat(8);
    for name in ["deploy", &long] {
        console.hold(name, name).await;
        let url = format!("/v1/idempotency/{name}?method=POST&path=/v1/payments");
        let begin = console.service.request(Method::POST, &url);
        assert_eq!(Answer::of(begin.json(&json!({"lease_ms": 60_000}))).await.status, 201);
    }
    for (view, most) in [("#/locks", 45), ("#/keys", 80)] {
        let page = console.visit(view).await;
        for width in [1280, 1920] {
            page.resize(width, 900).await;
            if view == "#/keys" {
                shows(&page, "In flight").await;
                page.click("[value=in-flight]", 1).await;
            }
            let row = "[...document.querySelectorAll('tbody tr')].find((row) => row.textContent.startsWith('deploy'))";
            page.until(&format!("{row}?.offsetHeight > 0 && innerWidth === {width}")).await;
            let height = page.eval(&format!("{row}.offsetHeight")).await;
            assert!(height.as_u64().is_some_and(|height| height < most), "{view}: {height}");
        }
    }
}

#[tokio::test]
async fn keyboard_leads_from_the_glance_to_the_locks() {
    let console = Console::open().await;
    console.hold("deploy/shop", "ci runner 7").await;
    let page = console.visit_until("", "1 lock held").await;
    tab_to(&page, "at.getAttribute('href') === '#/locks'").await;
    page.press("Enter").await;
    shows(&page, "deploy/shop").await;
    // A screen reader reads on from the heading of the view.
    page.until("document.activeElement.textContent === 'Locks'").await;
    tab_to(&page, "at.id === 'prefix'").await;
    tab_to(&page, "at.textContent === 'deploy/shop'").await;
    assert_eq!(
        page.eval("document.querySelector('nav [aria-current]').textContent").await,
        "Locks"
    );
}

#[tokio::test]
async fn without_scripts_the_page_leads_to_the_same_facts() {
    let console = Console::open().await;
    let page = console.visit("livez").await;
    page.disable_javascript().await;
    page.goto(&console.url("")).await;
    shows(&page, "live by JavaScript").await;
    for path in ["v1/info", "v1/locks", "v1/idempotency?state=unknown", "metrics", "problems"] {
        let link = format!("document.querySelector('main a[href=\"{path}\"]')?.offsetHeight > 0");
        assert_eq!(page.eval(&link).await, true, "{path}");
    }
}

#[tokio::test]
async fn card_takes_the_key_and_the_console_shows_what_it_may_read() {
    let mut keyring = Keyring::default();
    let key =
        keyring.add("team", "allow = [{ locks = \"team-a/\", may = [\"read\", \"acquire\"] }]");
    let console = Console::over(Service::start_with(keyring.config()).await).await;
    let page = console.visit("livez").await;
    page.goto(&console.url("#/locks")).await;
    sign_in(&page, "wrong").await;
    shows(&page, "This API key is not valid.").await;
    sign_in(&page, &key).await;
    shows(&page, "team").await;
    shows(&page, "0 held").await;
    assert_eq!(page.eval("document.querySelector('#prefix').value").await, "team-a/");
    page.eval("document.querySelector('#prefix').value = ''").await;
    page.eval("document.querySelector('#prefix').dispatchEvent(new Event('input'))").await;
    shows(&page, "You may not read all locks of this prefix").await;
    page.click("#who summary", 1).await;
    shows(&page, "read, acquire locks that begin with team-a/").await;
    // The tab remembers the key, and no other tab does.
    page.reload().await;
    shows(&page, "0 held").await;
    let other = console.visit_until("#/locks", "Paste an API key").await;
    assert_eq!(other.eval("sessionStorage.length").await, 0);
    page.click("#who summary", 1).await;
    page.click("#who button", 1).await;
    shows(&page, "Paste an API key").await;
}

#[tokio::test]
async fn keys_search_move_in_the_list_and_help() {
    let console = Console::open().await;
    for number in 0..3 {
        console.hold(&format!("jobs/{number}"), "worker").await;
    }
    let page = console.visit_until("#/locks", "3 held").await;
    page.eval("document.activeElement.blur()").await;
    let at = "document.activeElement.textContent";
    for (key, name) in [("j", "jobs/0"), ("j", "jobs/1"), ("j", "jobs/2"), ("k", "jobs/1")] {
        page.press(key).await;
        page.until(&format!("{at} === '{name}'")).await;
    }
    page.press("/").await;
    page.until("document.activeElement.id === 'prefix'").await;
    // In a field it is a character.
    page.press("j").await;
    page.until("document.activeElement.value === 'j'").await;
    page.eval("document.activeElement.blur()").await;
    page.press("?").await;
    shows(&page, "search in this view").await;
    page.press("Escape").await;
    page.until("document.querySelector('dialog') === null").await;
}
