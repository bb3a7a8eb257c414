//! What engines have in common that are reached by a connection: the URL, TLS, mutexes, and the
//! subscription to what others write. What is an engine's own is in its folder.
//!
//! Tested in each file, and with the engines in `tests/stores`.

pub(crate) mod subscription;
pub(crate) mod tls;
#[cfg(any(feature = "etcd", feature = "redis", feature = "zookeeper"))]
pub(crate) mod url;

#[cfg(any(feature = "postgres", feature = "etcd", feature = "zookeeper"))]
use std::fmt::Display;
use std::sync::{Mutex, MutexGuard, PoisonError};

#[cfg(any(feature = "postgres", feature = "etcd", feature = "zookeeper"))]
use keylatch_core::store::StoreError;

/// That the server at this host and port cannot be reached.
#[cfg(any(feature = "postgres", feature = "etcd", feature = "zookeeper"))]
pub(crate) fn unreachable(server: impl Display, why: impl Display) -> StoreError {
    StoreError::Unreachable(format!("{server}: {why}").into())
}

/// What a mutex has. No holder of one of ours leaves it half changed, so that one which panicked is
/// ignored.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
