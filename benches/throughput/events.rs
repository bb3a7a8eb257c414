//! How many server-sent events came, by their names, and no more of them.
//!
//! The stream is not taken apart: a line that begins with the name of an event is one, and all else
//! passes.

use std::sync::atomic::{AtomicUsize, Ordering};

/// What came on many streams together.
#[derive(Debug, Default)]
pub(crate) struct Events {
    pub(crate) snapshots: AtomicUsize,
    pub(crate) acquired: AtomicUsize,
    pub(crate) renewed: AtomicUsize,
    pub(crate) lagged: AtomicUsize,
    /// Those that say that a stream is of no more use.
    pub(crate) ends: AtomicUsize,
}

/// What was read of one stream and has no end of a line yet.
#[derive(Debug)]
pub(crate) struct Unread(pub(crate) Vec<u8>);

impl Events {
    /// Counts the events in the lines that have come whole, and keeps the rest.
    pub(crate) fn count(&self, unread: &mut Unread) {
        let bytes = &mut unread.0;
        let mut at = 0;
        while let Some(end) = bytes[at..].iter().position(|byte| *byte == b'\n') {
            if let Some(name) = bytes[at..at + end].strip_prefix(b"event: ") {
                self.add(name);
            }
            at += end + 1;
        }
        bytes.drain(..at);
    }

    fn add(&self, name: &[u8]) {
        let counter = match name {
            b"snapshot" => &self.snapshots,
            b"acquired" => &self.acquired,
            b"renewed" => &self.renewed,
            b"lagged" => &self.lagged,
            b"lost" | b"refused" | b"closing" => &self.ends,
            _ => return,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

/// What a counter has.
pub(crate) fn seen(counter: &AtomicUsize) -> usize {
    counter.load(Ordering::Relaxed)
}
