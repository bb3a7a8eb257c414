//! The pages and the script for pages in a real browser (`make test-all`).

#![warn(clippy::disallowed_methods)]
#![expect(clippy::expect_used, reason = "a test fails by panicking")]

mod console;
mod console_keys;
mod console_lock;
mod foreign_pages;
mod keys;
mod openapi_page;
mod pages;
mod problem_pages;
