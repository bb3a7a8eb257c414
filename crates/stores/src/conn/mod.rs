//! What engines have in common that are reached by a connection: the URL, TLS, and the subscription to what others
//! write. Each engine says what is its own in a folder of its own, and its tests in `tests/stores` hold these as well.

pub(crate) mod tls;
#[cfg(any(feature = "etcd", feature = "redis", feature = "zookeeper"))]
pub(crate) mod url;
