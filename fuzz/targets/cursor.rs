//! The cursor of a list: one that the service did not give is refused, or is a position; what a
//! list then gives is behind that position, and each page's own cursor is read.
//!
//! The lists are those of a memory store with a few locks.

#![no_main]

use std::sync::{Arc, LazyLock};

use keylatch_core::idempotency::RecordFilter;
use keylatch_core::lock::{AcquireCommand, Attempt, LockCommand, LockName, Token, Ttl};
use keylatch_core::store::{Command, Cursor, ListLocks, ListRecords, Store};
use libfuzzer_sys::fuzz_target;
use tokio::runtime::Runtime;

struct Service {
    runtime: Runtime,
    store: Arc<dyn Store>,
}

static SERVICE: LazyLock<Service> = LazyLock::new(|| {
    let runtime = Runtime::new().unwrap();
    let store = runtime.block_on(async {
        let store = keylatch_stores::memory();
        for name in ["a", "a/b", "b", "é", "z"] {
            let token = Token::generate().unwrap().hash();
            let command = AcquireCommand::new(token, Ttl::MAX, Attempt::new(1));
            let name = LockName::parse(name).unwrap();
            store.execute(Command::Lock(name.into(), LockCommand::Acquire(command))).await.unwrap();
        }
        store
    });
    Service { runtime, store }
});

fuzz_target!(|text: &str| {
    let Ok(cursor) = Cursor::parse(text) else { return };
    let locks = ListLocks { prefix: String::new(), limit: 2, cursor: Some(cursor.clone()) };
    if let Some(page) = SERVICE.runtime.block_on(SERVICE.store.list_locks(&locks)).unwrap() {
        assert!(page.entries.is_sorted_by(|one, next| one.first.name < next.first.name));
        if let Some(next) = page.next {
            assert!(Cursor::parse(next.as_str()).is_ok(), "{next:?}");
        }
    }
    let filter = RecordFilter::default();
    let records = ListRecords { filter, limit: 2, cursor: Some(cursor) };
    SERVICE.runtime.block_on(SERVICE.store.list_records(&records)).unwrap();
});
