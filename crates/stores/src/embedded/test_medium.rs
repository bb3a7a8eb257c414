//! The embedded store on a medium of a test: the seam for the fault disk in `tests/faults/`.
//!
//! The feature `test-medium`, which only the tests of this crate turn on, compiles it. The store is
//! the one of [`embedded`](super::embedded) in all but three points: a test says how its file is
//! reached, whether a commit was quick, and when what has expired is removed.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use rusqlite::Connection;
use tokio::sync::Mutex;

use super::directory::{Medium, check_log};
use super::row::{FORMAT, Head, lock_key};
use super::{Embedded, EmbeddedSweeper, tables};
use crate::error::OpenError;
use crate::sweeper::Sweeper as _;
use keylatch_core::lock::LockName;
use keylatch_core::store::{Store, StoreError};

/// How a test's disk is reached.
pub struct TestMedium {
    /// Connects to the data file, as often as the store opens it again.
    pub connect: Box<dyn Fn() -> rusqlite::Result<Connection> + Send + Sync>,
    /// Reads the file's log; empty where there is none.
    pub read_log: Box<dyn Fn() -> Vec<u8> + Send + Sync>,
    /// Whether a commit counts as quick. A test says so itself, because by the clock it depends on
    /// the machine.
    pub is_quick: Box<dyn Fn() -> bool + Send + Sync>,
}

impl fmt::Debug for TestMedium {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TestMedium(..)")
    }
}

impl TestMedium {
    /// As `Directory` does it with files.
    fn into_medium(self) -> Medium {
        let opened = Arc::new(self);
        let (looked, timed) = (Arc::clone(&opened), Arc::clone(&opened));
        let open = move || {
            check_log(&*(opened.read_log)())?;
            let connection = (opened.connect)()?;
            tables::prepare(&connection)?;
            Ok(connection)
        };
        let look = move || {
            let connection = (looked.connect)()?;
            tables::configure(&connection)?;
            Ok(connection)
        };
        Medium {
            name: "a disk".into(),
            open: Box::new(open),
            look: Box::new(look),
            is_quick: Box::new(move |_| (timed.is_quick)()),
            file: None,
            _directory: None,
        }
    }
}

/// The store on a test's medium. Nothing that has expired is removed before [`TestStore::sweep`].
#[derive(Debug)]
pub struct TestStore {
    store: Arc<Embedded>,
    sweeper: Mutex<EmbeddedSweeper>,
}

impl TestStore {
    /// Opens the store; it has to be called within a tokio runtime.
    ///
    /// # Errors
    ///
    /// As for [`embedded`](super::embedded).
    pub fn open(medium: TestMedium) -> Result<Self, OpenError> {
        let store = Embedded::open(medium.into_medium(), "a disk".into())?;
        Ok(Self { sweeper: Mutex::new(store.sweeper()), store: Arc::new(store) })
    }

    /// The store as the services use it.
    pub fn port(&self) -> &dyn Store {
        &*self.store
    }

    /// The same, for a service to own.
    pub fn shared(&self) -> Arc<dyn Store> {
        Arc::clone(&self.store) as Arc<dyn Store>
    }

    /// Removes what has expired, and returns the room that the file does not need.
    ///
    /// # Errors
    ///
    /// The disk did not keep it.
    pub async fn sweep(&self) -> Result<(), StoreError> {
        self.sweeper.lock().await.sweep(true).await.map(drop)
    }

    /// How many bytes of responses are in memory.
    pub fn answer_bytes_in_memory(&self) -> u64 {
        self.store.table.answer_bytes_in_memory()
    }

    /// Takes one step towards a file without room that it does not need. Whether there are more.
    ///
    /// # Errors
    ///
    /// The disk did not keep it.
    pub async fn compact(&self) -> Result<bool, StoreError> {
        self.store.writer.compact().await
    }
}

/// The format of the file.
pub const FILE_FORMAT: u64 = FORMAT;

/// Writes the tables of an empty store whose fencing tokens rise above `fence_limit`, and says of
/// them that they are of `format`.
///
/// # Errors
///
/// The disk did not take it.
pub fn create(
    connection: &Connection,
    format: u64,
    fence_limit: u64,
) -> Result<(), Box<dyn Error>> {
    tables::create(connection)?;
    Ok(tables::write_head(connection, &Head { format, fence_limit })?)
}

/// Makes a connection this process's alone, without which a test's disk has no log.
///
/// # Errors
///
/// The disk did not take it.
pub fn configure(connection: &Connection) -> Result<(), Box<dyn Error>> {
    Ok(tables::configure(connection)?)
}

/// Writes a row of a lock that has these bytes and the checksum of a row.
///
/// # Errors
///
/// The disk did not take it.
pub fn write_lock_row(
    connection: &Connection,
    name: &LockName,
    bytes: &[u8],
) -> Result<(), Box<dyn Error>> {
    tables::configure(connection)?;
    Ok(tables::put(connection, tables::LOCKS, &lock_key(name), bytes.to_vec())?)
}
