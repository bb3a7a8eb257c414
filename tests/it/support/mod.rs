//! What tests stand on: the service, real redis-servers, and a proxy that breaks connections.

mod proxy;
mod redis;
mod service;

pub(crate) use proxy::Proxy;
pub(crate) use redis::RedisServer;
pub(crate) use service::{Answer, Service, config};
