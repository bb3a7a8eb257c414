//! What a person reads in a browser in place of a problem: a small page that says whether anything
//! was done.
//!
//! A page follows from the code of the problem and what the request did, and has nothing of the
//! request in it. A guard may have a template of its own, which may also have the messages in its
//! own language. Tested in `tests/api/error_pages.rs` and in a browser in
//! `tests/browser/error_pages.rs`.

use std::borrow::Cow;
use std::io;

use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::Response;

use crate::{Code, ProblemCode};
use keylatch_wire::Effect;

/// Where the message stands in a template.
const MESSAGE: &str = "{{message}}";

/// The pages of a guard.
#[derive(Debug)]
pub struct ErrorPage {
    template: Cow<'static, str>,
}

/// What a person wants to know of a request that was refused or has failed: what begins a message
/// of a template, and the message.
fn outcome_of(code: Code, effect: Option<Effect>) -> (&'static str, &'static str) {
    let unknown = (
        "unknown",
        "We do not know yet whether this was done. Please do not send it again before you have \
         asked us.",
    );
    match (code, effect) {
        (Code::RequestInProgress, _) => (
            "under-way",
            "We have your order and are still working on it. Please do not send it again.",
        ),
        (Code::AlreadyDone | Code::AnswerNotKept | Code::AnswerUnreadable, _) => {
            ("done", "This was done before, and it was not done again.")
        }
        (Code::KeyExpired | Code::IdempotencyKeyReused, _) => (
            "not-now",
            "Nothing was done now. If you sent this before, it may have been done then: please \
             look before you send it again.",
        ),
        (Code::OutcomeUnknown | Code::UpstreamSilent, _) => unknown,
        (_, Some(Effect::Unknown)) | (Code::Internal, None) => unknown,
        _ => {
            ("not-done", "Nothing was done. Please go back, load the page again and try once more.")
        }
    }
}

impl Default for ErrorPage {
    fn default() -> Self {
        Self { template: include_str!("error_page.html").into() }
    }
}

impl ErrorPage {
    /// The page of the template in this file, or keylatch's own where no file is named.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or has no place for the message.
    pub fn read(file: &str) -> io::Result<Self> {
        if file.is_empty() {
            return Ok(Self::default());
        }
        let template = std::fs::read_to_string(file)?;
        if !template.contains(MESSAGE) {
            return Err(io::Error::other("it has no {{message}}"));
        }
        Ok(Self { template: template.into() })
    }

    /// The response with a page as its body, if it is a problem.
    pub fn show(&self, mut response: Response) -> Response {
        if let Some(ProblemCode(code, effect)) = response.extensions().get().copied() {
            *response.body_mut() = self.page(code, effect).into();
            let headers = response.headers_mut();
            let html = HeaderValue::from_static("text/html; charset=utf-8");
            headers.insert(header::CONTENT_TYPE, html);
            headers.remove(header::CONTENT_LENGTH);
        }
        response
    }

    fn page(&self, code: Code, effect: Option<Effect>) -> String {
        let (name, message) = outcome_of(code, effect);
        let status = code.status().to_string();
        let message = self.own_message(name).unwrap_or(message);
        let parts = [
            ("{{outcome}}", name),
            ("{{code}}", code.slug()),
            ("{{status}}", &status),
            (MESSAGE, message),
        ];
        let filled = |page: String, (place, text)| page.replace(place, &escaped(text));
        parts.into_iter().fold(self.template.clone().into_owned(), filled)
    }

    /// The message of the template itself: `<!-- under-way: … -->`.
    fn own_message(&self, outcome: &str) -> Option<&str> {
        let (_, rest) = self.template.split_once(&format!("<!-- {outcome}:"))?;
        Some(rest.split_once("-->")?.0.trim())
    }
}

fn escaped(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    text.replace('"', "&quot;").replace('\'', "&#39;")
}

/// Whether a client would rather show a page than read a document: it takes HTML, and does not name
/// JSON.
pub fn wants_page(headers: &HeaderMap) -> bool {
    let (mut html, mut json) = (false, false);
    for list in headers.get_all(header::ACCEPT).iter().filter_map(|list| list.to_str().ok()) {
        html |= list.contains("text/html");
        json |= list.contains("json");
    }
    html && !json
}
