#![doc = include_str!("../ARCHITECTURE.md")]

pub mod app;
pub mod config;
pub mod error;
pub mod healthcheck;
pub mod http;
mod instrumented;
pub mod metrics;
pub mod run;
pub mod telemetry;
