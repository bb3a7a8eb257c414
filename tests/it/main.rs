//! Everything that is tested against a whole service or a whole store, as one binary.

mod bad_days;
mod conformance;
mod differential;
mod fences;
mod stores;
mod support;
