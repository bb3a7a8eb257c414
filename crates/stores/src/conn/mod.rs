//! What engines have in common that are reached by a connection: the URL, TLS, and the
//! subscription to what others write. What is an engine's own is in its folder.
//!
//! Tested in each file, and with the engines in `tests/stores`.

pub(crate) mod subscription;
pub(crate) mod tls;
#[cfg(any(feature = "etcd", feature = "redis", feature = "zookeeper"))]
pub(crate) mod url;
