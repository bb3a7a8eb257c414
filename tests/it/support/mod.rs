//! What tests stand on: the service, real redis-servers, a real browser, and a proxy that breaks
//! connections.

mod browser;
mod cluster;
mod dice;
mod events;
mod log;
mod nodes;
mod page;
mod process;
mod proxy;
mod redis;
mod running;
mod sentinels;
mod service;
mod shop;
mod stage;
mod upstream;
mod wire;

use std::time::Duration;

pub(crate) use browser::Browser;
pub(crate) use cluster::Cluster;
pub(crate) use dice::Dice;
pub(crate) use events::{Events, refused};
pub(crate) use log::Log;
pub(crate) use nodes::{Nodes, patient, store_of, url_of};
pub(crate) use page::{Held, Page};
pub(crate) use process::{Ended, Process, run, run_by, run_with};
pub(crate) use proxy::Proxy;
pub(crate) use redis::{RedisServer, free_port};
pub(crate) use running::Running;
pub(crate) use sentinels::Sentinels;
pub(crate) use service::{Answer, Api, Service, config};
pub(crate) use shop::{Shop, instance, with_each_store};
pub(crate) use stage::Stage;
pub(crate) use upstream::{Seen, Upstream, created, raw_upstream};
pub(crate) use wire::{Wire, get, post, soon};

/// Asks again and again until there is an answer, for what another process does in its own time.
pub(crate) async fn eventually<T>(mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    let mut tick = tokio::time::interval(Duration::from_millis(10));
    let asking = async {
        loop {
            tick.tick().await;
            if let Some(answer) = ask().await {
                return answer;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(20), asking).await.expect("it happens within 20 s")
}
