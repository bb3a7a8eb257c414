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
use axum::http::header;
use axum::response::{Html, IntoResponse};

use super::assets::POLICY;
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
) -> Result<impl IntoResponse, Problem> {
    static PAGES: LazyLock<HashMap<&str, Bytes>> = LazyLock::new(|| {
        // Two codes with one slug have the page of the first.
        let codes: Vec<_> = Code::all().collect();
        codes.into_iter().rev().map(|code| (code.slug(), page_of(code))).collect()
    });
    let unknown = || Problem::new(Code::NotFound, "There is no such problem.");
    Ok(served(PAGES.get(&*slug).ok_or_else(unknown)?))
}

fn page_of(code: Code) -> Bytes {
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
    page(code.title(), "..", &body)
}

/// All problems, in the order of their statuses.
pub(super) async fn list() -> impl IntoResponse {
    static LIST: LazyLock<Bytes> = LazyLock::new(page_of_all);
    served(&LIST)
}

fn page_of_all() -> Bytes {
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
    page("Problems", ".", &body)
}

/// A whole page; `body` is HTML. Beside an app behind keylatch `root` is below a path, so that
/// links are relative.
fn page(title: &str, root: &str, body: &str) -> Bytes {
    let frame = include_str!("../../assets/problem.html");
    frame.replace("{{root}}", root).replace("{{title}}", title).replace("{{body}}", body).into()
}

fn served(page: &Bytes) -> impl IntoResponse + use<> {
    ([(header::CONTENT_SECURITY_POLICY, POLICY)], Html(page.clone()))
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
