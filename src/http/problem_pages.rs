//! The pages of the problems: what happened, what to do, and the command that helps.
//!
//! They are made from the table of `crates/wire/src/problem.rs`, need no script, and are open on
//! every listener, because every problem leads to its page. Invariant: however many clients do not
//! read a page, it is in memory once. Tested in `tests/api/system.rs`, `slow_readers.rs` and
//! `tests/browser/problem_pages.rs`.

use std::collections::HashMap;
use std::sync::LazyLock;

use axum::body::Bytes;
use axum::extract::Path;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{Html, IntoResponse, Response};

use super::assets::POLICY;
use super::parts::{Part, ServedParts};
use super::problem::{Code, Problem};
use keylatch_axum::status_code;
use keylatch_wire::Retry;

/// What a problem means
///
/// The page that a problem's `type` leads to: what happened, and what to do.
#[utoipa::path(get, path = "/problems/{code}",
    params(("code" = String, Path, example = "lock-held", description = "The `code` of a problem")),
    responses((status = 200, description = "A page for people", body = String, content_type = "text/html")))]
pub(super) async fn get_problem_page(
    Path(slug): Path<String>,
    serves: ServedParts,
) -> Result<impl IntoResponse, Problem> {
    static PAGES: LazyLock<HashMap<&str, Page>> = LazyLock::new(|| {
        // Two codes with one slug have the page of the first.
        let codes: Vec<_> = Code::all().collect();
        codes.into_iter().rev().map(|code| (code.slug(), page_of(code))).collect()
    });
    let unknown = || Problem::new(Code::NotFound, "There is no such problem.");
    Ok(PAGES.get(&*slug).ok_or_else(unknown)?.served(serves))
}

fn page_of(code: Code) -> Page {
    let slug = code.slug();
    let others = Code::all().filter(|other| other.slug() == slug && *other != code);
    let others: String = others.map(|other| format!(" or {}", status_code(other))).collect();
    let body = format!(
        "<p><a href=\"../problems\">‹ All problems</a></p>\n<h1>{title}</h1>\n\
         <section>\n<p>HTTP status {status}{others}, code <code>{slug}</code></p>\n\
         <h2>What to do</h2>\n<p>{advice}</p>\n<p>{retry}</p>\n\
         <h2>With curl</h2>\n<pre tabindex=\"0\"><code>{command}</code></pre>\n</section>\n",
        title = code.title(),
        status = status_code(code),
        advice = with_code(code.advice()),
        retry = next_request(code.retry()),
        command = escaped(command_for(code)),
    );
    Page::new(code.title(), "..", &body)
}

/// All problems, in the order of their statuses.
pub(super) async fn list(serves: ServedParts) -> impl IntoResponse {
    static LIST: LazyLock<Page> = LazyLock::new(page_of_all);
    LIST.served(serves)
}

/// The page of a browser that follows a link to nowhere.
pub(super) fn no_page(path: &str, serves: ServedParts) -> Response {
    let root = ["."].into_iter().chain(path.split('/').skip(2).map(|_| "..")).collect::<Vec<_>>();
    let body = format!(
        "<h1>There is no such page</h1>\n<section>\n<p>Nothing is at <code>{}</code>.</p>\n\
         </section>\n",
        escaped(path)
    );
    let page = Page::new("There is no such page", &root.join("/"), &body);
    (StatusCode::NOT_FOUND, page.served(serves)).into_response()
}

fn page_of_all() -> Page {
    let row = |code: Code| {
        format!(
            "<tr><td data-label=\"Status\">{status}</td>\
             <th scope=\"row\"><a href=\".{page}\">{slug}</a></th>\
             <td data-label=\"What happened\">{title}</td></tr>\n",
            status = code.status(),
            page = code.page(),
            slug = code.slug(),
            title = code.title(),
        )
    };
    let rows: String = Code::all().map(row).collect();
    let body = format!(
        "<h1>Problems</h1>\n<p class=\"lead\">Every error is a document of JSON (RFC 9457) with a \
         <code>code</code>. This is every code.</p>\n<section>\n<table class=\"list\">\n<thead><tr>\
         <th scope=\"col\">Status</th><th scope=\"col\">Code</th><th scope=\"col\">What happened</th>\
         </tr></thead>\n<tbody>\n{rows}</tbody>\n</table>\n</section>\n",
    );
    Page::new("Problems", ".", &body)
}

/// A whole page: on a listener that serves the console with its menu, and without it.
struct Page {
    with_menu: Bytes,
    without: Bytes,
}

impl Page {
    /// `body` is HTML. Beside an app behind keylatch `root` is below a path, so that links are
    /// relative.
    fn new(title: &str, root: &str, body: &str) -> Self {
        let frame = include_str!("../../assets/problem.html").replace("{{title}}", title);
        let of = |menu: &str| -> Bytes {
            let page = frame.replace("{{menu}}", menu).replace("{{root}}", root);
            page.replace("{{body}}", body).into()
        };
        Self { with_menu: of(include_str!("../../assets/menu.html")), without: of("") }
    }

    fn served(&self, serves: ServedParts) -> impl IntoResponse + use<> {
        let page = if serves.have(Part::Console) { &self.with_menu } else { &self.without };
        ([(header::CONTENT_SECURITY_POLICY, POLICY)], Html(page.clone()))
    }
}

/// Whether the first media type that the client takes is HTML, as that of a browser is.
pub(super) fn prefers_html(headers: &HeaderMap) -> bool {
    let accept = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok());
    let first = accept.unwrap_or_default().split([',', ';']).next().unwrap_or_default();
    first.trim().eq_ignore_ascii_case("text/html")
}

/// What a client sends next, in words.
fn next_request(retry: Retry) -> &'static str {
    match retry {
        Retry::SameKey => {
            "<b>Next:</b> the same request again, with the same <code>Idempotency-Key</code> or \
             <code>Lock-Token</code>."
        }
        Retry::NewKey => {
            "<b>Next:</b> another request. What was wrong is changed, so the key or the token is a \
             new one."
        }
        _ => {
            "<b>Next:</b> nothing. No retry helps, or a person has to find out first what happened."
        }
    }
}

/// The text as HTML, with what stands in backticks as code.
fn with_code(text: &str) -> String {
    let parts = text.split('`').enumerate();
    let html = parts.map(|(i, part)| {
        let part = escaped(part);
        if i % 2 == 1 { format!("<code>{part}</code>") } else { part }
    });
    html.collect()
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// The command that shows more, or does what helps: that of the block that names the code, or the
/// last.
fn command_for(code: Code) -> &'static str {
    let blocks = include_str!("../../assets/problem-commands.txt").trim_end().split("\n\n");
    let mut blocks = blocks.filter_map(|block| block.split_once('\n'));
    let is_of =
        |names: &str| names == "any other" || names.split(' ').any(|name| name == code.slug());
    blocks.find(|(names, _)| is_of(names)).map_or("", |(_, command)| command)
}
