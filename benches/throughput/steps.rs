//! How many steps of its store a request takes, as the service itself counts them.
//!
//! The counts are read from `/metrics` before and after a load. A request that takes more steps
//! than it needs is slow on every engine, which a rate on one machine does not show.

use std::collections::BTreeMap;
use std::fmt;

use crate::Result;
use crate::processes::Process;

const STEPS: &str = "keylatch_store_operation_duration_seconds_count{operation=\"";
const REQUESTS: &str = "keylatch_http_request_duration_seconds_count{";
const ORDERS: &str = "route=\"/v1/orders\"";
/// What the service does by itself.
const OWN: [&str; 1] = ["health"];

/// Steps of the store by operation, and the orders that they were for.
#[derive(Debug, Default)]
pub(crate) struct Steps {
    by_operation: BTreeMap<String, f64>,
    orders: f64,
}

impl Steps {
    /// Since the service started.
    pub(crate) fn of(service: &Process) -> Result<Self> {
        let mut steps = Self::default();
        for line in service.metrics()?.lines() {
            let count = || line.rsplit(' ').next().unwrap_or_default().parse::<f64>();
            if line.starts_with(REQUESTS) && line.contains(ORDERS) {
                steps.orders += count()?;
            } else if let Some(rest) = line.strip_prefix(STEPS) {
                let operation = rest.split('"').next().unwrap_or_default();
                if !OWN.contains(&operation) {
                    *steps.by_operation.entry(operation.to_owned()).or_default() += count()?;
                }
            }
        }
        Ok(steps)
    }

    /// How many orders there were.
    pub(crate) fn orders(&self) -> f64 {
        self.orders
    }

    /// How many steps one order took.
    pub(crate) fn each(&self) -> f64 {
        self.by_operation.values().sum::<f64>() / self.orders
    }
}

impl fmt::Display for Steps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.2}", self.each())?;
        for (place, (operation, count)) in self.by_operation.iter().enumerate() {
            let comma = if place == 0 { " (" } else { ", " };
            write!(f, "{comma}{} {:.2}", operation.to_lowercase(), count / self.orders)?;
        }
        if self.by_operation.is_empty() { Ok(()) } else { f.write_str(")") }
    }
}
