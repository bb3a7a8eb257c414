//! The pages and the script for pages in a real browser (`make test-all`).
//!
//! Each test starts a service and a headless Chromium of its own, and asserts what a person sees or
//! what the service got. `keylatch_testkit::Browser` drives it.

#![warn(clippy::disallowed_methods)]
#![expect(clippy::expect_used, reason = "a test fails by panicking")]

mod console;
mod console_keys;
mod console_lock;
mod console_presses;
mod console_states;
mod error_pages;
mod foreign_pages;
mod keys;
mod openapi_page;
mod pages;
mod path_prefix;
mod problem_pages;
