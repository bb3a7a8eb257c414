//! The orders of the toy shop, kept as records in the store of their keys.
//!
//! A shop whose orders live elsewhere than the keys forgets one of the two in a restart, and then a
//! repeat gets a 201 for an order that is gone. So each order has its own record: begun and
//! completed under its number, found by it, and forgotten later than the key that placed it. The
//! register of a path is one more record, which is begun again for each order with a lease of no
//! time; how often it was begun is the last number, one atomic step over all instances. A number
//! whose order was never completed stays a gap.
//!
//! Tested on each store in `tests/api/sandbox_orders.rs`.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};

use jiff::Timestamp;
use serde::{Deserialize, Deserializer, Serialize};
use utoipa::ToSchema;

use keylatch_wire::whole_number;

use keylatch_core::idempotency::{
    Answer, BeginCommand, BeginReply, CompleteReply, Fingerprint, IdempotencyError, IdempotencyKey,
    IdempotencyService, OnCrash, Principal, RecordKey, RecordScope, RecordStatus, RunEnd, Scope,
    StoredResponse,
};
use keylatch_core::lock::Token;
use keylatch_core::store::StoreError;

/// How many orders a list has.
pub(super) const LISTED: u32 = 100;
/// How long an order is kept: longer than the key that placed it, which is kept for 24 h.
const RETENTION: Duration = Duration::from_secs(25 * 60 * 60);
/// How long the register is kept: longer than every order in it.
const REGISTER_RETENTION: Duration = Duration::from_secs(50 * 60 * 60);
/// How long writing an order down may take.
const LEASE: Duration = Duration::from_secs(3);
/// How many numbers are tried where a register was lost and its orders were not.
const TRIES: u32 = LISTED;
/// How many orders of a list are read at once.
const READ_AT_ONCE: usize = 16;

/// An order or a payment.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(super) struct Order {
    /// Its number at this path, from 1.
    #[schema(example = "17")]
    pub(super) id: String,
    /// In the smallest unit.
    pub(super) amount: u64,
    /// The currency.
    pub(super) currency: String,
    /// What was bought.
    pub(super) items: Vec<Item>,
    /// When it was created.
    #[schema(value_type = String, format = DateTime)]
    pub(super) created_at: Timestamp,
    /// The fencing token of the run that created it.
    pub(super) fencing_token: u64,
}

/// Something that is bought.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Item {
    /// What.
    pub(super) name: String,
    /// How many.
    #[serde(default = "one", deserialize_with = "whole_or_one")]
    #[schema(value_type = u64, maximum = 4294967295_u64)]
    pub(super) quantity: u32,
}

fn one() -> u32 {
    1
}

fn whole_or_one<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    Ok(whole_number(deserializer)?.unwrap_or(1))
}

/// The orders that were placed at one path.
#[derive(Debug)]
pub(super) struct OrderBook {
    records: Arc<IdempotencyService>,
    path: String,
}

/// Why an order was not placed, or not surely.
#[derive(Debug)]
pub(super) enum OrderError {
    /// It was not placed.
    NotPlaced(IdempotencyError),
    /// The store did not answer the last step.
    InDoubt(StoreError),
}

impl<E: Into<IdempotencyError>> From<E> for OrderError {
    fn from(error: E) -> Self {
        Self::NotPlaced(error.into())
    }
}

impl OrderBook {
    pub(super) fn new(records: Arc<IdempotencyService>, path: String) -> Self {
        Self { records, path }
    }

    pub(super) fn path(&self) -> &str {
        &self.path
    }

    /// Places the order under the next number, which becomes its id. An error says whether the
    /// order may have been placed.
    pub(super) async fn place(&self, mut order: Order) -> Result<Order, OrderError> {
        for _ in 0..TRIES {
            let number = self.next_number().await?;
            let claim = self.begin(number, LEASE, RETENTION)?;
            let BeginReply::Started(_) = self.records.begin(claim.clone(), true).await? else {
                // The register was lost, and counts from 1 again.
                continue;
            };
            order.id = number.to_string();
            let json = serde_json::to_vec(&order).unwrap_or_default();
            let answer = Answer { status: 201, headers: Vec::new(), body: Bytes::from(json) };
            let end = RunEnd::Done(StoredResponse::Answer(Arc::new(answer)));
            let completed = self.records.complete(&claim.key, &claim.token, end).await;
            return match completed.map_err(OrderError::InDoubt)? {
                CompleteReply::Done(_) => Ok(order),
                CompleteReply::Refused(_) | CompleteReply::Absent => {
                    Err(refused("writing the order down took longer than its lease").into())
                }
            };
        }
        Err(refused("the register of orders was lost, and its numbers are taken").into())
    }

    /// The order of this number, if it is kept.
    pub(super) async fn find(&self, number: u32) -> Result<Option<Order>, StoreError> {
        let view = self.records.find(&self.key(number)).await?;
        Ok(view.and_then(|view| match view.phase {
            RecordStatus::Done { kept: StoredResponse::Answer(answer), .. } => {
                serde_json::from_slice(&answer.body).ok()
            }
            _ => None,
        }))
    }

    /// The last orders, newest first.
    pub(super) async fn latest(&self) -> Result<Vec<Order>, StoreError> {
        let register = self.records.find(&self.key(REGISTER)).await?;
        let last = register.map_or(0, |register| register.attempts);
        let numbers = (last.saturating_sub(LISTED)..last).rev().map(|before| before + 1);
        let orders = stream::iter(numbers).map(|number| self.find(number)).buffered(READ_AT_ONCE);
        orders.try_filter_map(async |order| Ok(order)).try_collect().await
    }

    /// A number that no other order has.
    async fn next_number(&self) -> Result<u32, OrderError> {
        let again = self.begin(REGISTER, Duration::ZERO, REGISTER_RETENTION)?;
        match self.records.begin(again, true).await? {
            BeginReply::Started(run) | BeginReply::Again(run) => Ok(run.attempts),
            BeginReply::Found(_) | BeginReply::Reused(_) | BeginReply::NoRoom => {
                Err(refused("the register of orders is not one").into())
            }
        }
    }

    fn begin(
        &self,
        number: u32,
        lease: Duration,
        retention: Duration,
    ) -> Result<BeginCommand, IdempotencyError> {
        let (scope, key) = (self.scope(), IdempotencyKey::from(number));
        Ok(BeginCommand {
            key: scope.record(&key),
            scope: RecordScope::new(&scope, &key),
            token: Token::generate()?.hash(),
            fingerprint: Fingerprint::of_text("order"),
            lease,
            retention,
            on_crash: OnCrash::Rerun,
            has_room: true,
        })
    }

    fn key(&self, number: u32) -> RecordKey {
        self.scope().record(&IdempotencyKey::from(number))
    }

    /// A scope that no request has.
    fn scope(&self) -> Scope<'_> {
        let (principal, source) = (&Principal::None, RecordScope::INTERNAL);
        Scope { principal, method: "", path: &self.path, source }
    }
}

/// In the place of a number: orders are numbered from 1.
const REGISTER: u32 = 0;

/// The order was not placed, for a reason that is not the store's.
fn refused(why: &'static str) -> StoreError {
    StoreError::Refused(why.into())
}
