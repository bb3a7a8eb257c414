//! A JSON body, which ends with a newline.
//!
//! People read answers in a terminal, and without the newline the shell's prompt follows the last brace.
//! Every handler answers with this [`Json`] in the place of axum's, and problems end alike; the data of
//! an event stream has its own frame and ends as that says. Tested in `tests/api/json.rs`.

use axum::http::header;
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use super::problem::{Code, Problem};

/// A value as the body of an answer.
#[derive(Debug)]
pub(super) struct Json<T>(pub(super) T);

impl<T: Serialize> IntoResponse for Json<T> {
    fn into_response(self) -> Response {
        let mut body = Vec::with_capacity(256);
        if let Err(error) = serde_json::to_writer(&mut body, &self.0) {
            let detail = "The answer could not be written as JSON.";
            return Problem::new(Code::Internal, detail).caused_by(error).into_response();
        }
        body.push(b'\n');
        ([(header::CONTENT_TYPE, "application/json")], body).into_response()
    }
}
