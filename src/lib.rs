//! The keylatch service: locks and idempotency keys over HTTP.
//!
//! Most people run the command `keylatch`. This crate is the same service for a program that serves
//! it itself: [`App`](app::App) puts the parts together over a [`Config`](config::Config), as a
//! router beside routes of your own or on a listener.
//!
//! # A service within a program
//!
//! ```
//! use keylatch::app::App;
//! use keylatch::config::{Config, Flags};
//! use tokio::net::TcpListener;
//! use tokio_util::sync::CancellationToken;
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // The defaults, with locks in memory. A file and variables are read in the same way.
//! let flags = Flags { store: Some("memory:".to_owned()), ..Flags::default() };
//! let config = Config::load(&flags, [])?;
//!
//! let app = App::new(config).await?;
//! let listener = TcpListener::bind("127.0.0.1:0").await?;
//! let address = listener.local_addr()?;
//! let closing = CancellationToken::new();
//! let serving = tokio::spawn(app.serve(listener, closing.clone().cancelled_owned()));
//!
//! let client = keylatch_client::Client::new(&format!("http://{address}"))?;
//! # client.close().await;
//! // The service finishes what is under way, and ends.
//! closing.cancel();
//! serving.await??;
//! # Ok(())
//! # }
//! ```
//!
//! # The other crates
//!
//! | crate | what it is for |
//! | --- | --- |
//! | [`keylatch_client`] | to use the service from Rust |
//! | [`keylatch_axum`] | the idempotency layer for routes of your own |
//! | [`keylatch_core`] | the rules, the services and the store port, without HTTP |
//! | [`keylatch_stores`] | the engines |
//! | [`keylatch_wire`] | the JSON of the API |
//!
//! `ARCHITECTURE.md` in the repository is the map of the code, and `docs/` says how to use it.

pub mod access;
pub mod app;
mod audit;
pub mod command;
pub mod config;
mod encryption;
pub mod error;
pub mod failure;
mod followed_files;
mod grant_ends;
mod guard_comparison;
pub mod healthcheck;
pub mod http;
mod instrumented;
mod issuing;
mod kept_lock;
pub mod metrics;
mod observed;
mod past_grants;
pub mod plain;
mod rolling_stats;
pub mod run;
mod serde_words;
pub mod signals;
pub mod telemetry;
pub mod traces;
