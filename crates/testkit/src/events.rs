//! Server-sent events, read while they come.
//!
//! A test reads the next event by its name; another event, or none in time, fails it. It is not the
//! client's reader, so that a defect there shows.

use reqwest::{RequestBuilder, Response};
use serde_json::Value;

use crate::{Answer, soon};

/// An answer of server-sent events. Dropping it closes the connection.
#[derive(Debug)]
pub struct EventStream {
    /// The head of the answer.
    pub response: Response,
    unread: String,
}

/// One event.
#[derive(Debug)]
pub struct Event {
    /// What happened, such as `acquired`.
    pub name: String,
    /// Its id; empty where there is none.
    pub id: String,
    /// Its JSON.
    pub data: Value,
}

impl EventStream {
    /// The stream that answers a request.
    #[track_caller]
    pub fn of(request: RequestBuilder) -> impl Future<Output = Self> {
        let opened = soon("the head of a stream", request.send());
        async {
            let response = opened.await.expect("the service answers");
            assert_eq!(response.status(), 200, "{response:?}");
            assert_eq!(response.headers()["content-type"], "text/event-stream");
            Self { response, unread: String::new() }
        }
    }

    /// The next event, which has to come; its name has to be `name`.
    #[track_caller]
    pub fn next(&mut self, name: &str) -> impl Future<Output = Event> {
        named(name, soon("an event", self.read()))
    }

    /// The next event that is no renewal, which has to come; its name has to be `name`.
    #[track_caller]
    pub fn after_renewals(&mut self, name: &str) -> impl Future<Output = Event> {
        let other = async {
            loop {
                match self.read().await {
                    Some(event) if event.name == "renewed" => {}
                    event => return event,
                }
            }
        };
        named(name, soon("another event", other))
    }

    /// Waits for the end of the stream; no event may come before.
    #[track_caller]
    pub fn ended(&mut self) -> impl Future<Output = ()> {
        let read = soon("the end of the stream", self.read());
        async { assert!(read.await.is_none(), "an event after the last") }
    }

    /// The next event, or `None` at the end of the stream. Comments are skipped.
    pub async fn read(&mut self) -> Option<Event> {
        loop {
            while let Some((block, rest)) = self.unread.split_once("\n\n") {
                let event = Event::of(block);
                self.unread = rest.to_owned();
                if event.is_some() {
                    return event;
                }
            }
            let chunk = self.response.chunk().await.ok().flatten()?;
            self.unread.push_str(std::str::from_utf8(&chunk).expect("events are text"));
        }
    }
}

impl Event {
    fn of(block: &str) -> Option<Self> {
        let field = |name: &str| block.lines().find_map(|line| line.strip_prefix(name));
        let data = serde_json::from_str(field("data: ")?).expect("data is JSON");
        let id = field("id: ").unwrap_or_default().to_owned();
        Some(Self { id, name: field("event: ")?.to_owned(), data })
    }

    /// The fencing token in it.
    pub fn fencing_token(&self) -> u64 {
        self.data["fencing_token"].as_u64().unwrap_or_else(|| panic!("a grant: {self:?}"))
    }

    /// The token in it.
    pub fn token(&self) -> &str {
        self.data["token"].as_str().unwrap_or_else(|| panic!("a lease: {self:?}"))
    }
}

/// An event that has to come, and to have this name.
async fn named(name: &str, read: impl Future<Output = Option<Event>>) -> Event {
    let event = read.await.unwrap_or_else(|| panic!("the stream ended before `{name}`"));
    assert_eq!(event.name, name, "{event:?}");
    event
}

/// The problem that answers a request for a stream.
pub async fn refusal_of(request: RequestBuilder) -> Answer {
    soon("a refusal", Answer::of(request)).await
}
