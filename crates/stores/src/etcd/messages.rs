//! The messages of etcd's gRPC API that keylatch uses, and the methods that take them.
//!
//! They are written out by hand after `rpc.proto` of etcd, so that building keylatch needs no `protoc`.
//! Fields that keylatch does not use are left out: what comes in them is skipped. The numbers are those of
//! the API's version 3, which etcd keeps. The tests on a real etcd are the proof.

use std::fmt;

use prost::Message;

/// A method: its path, what it takes and what it gives.
pub(super) trait Call: Message + Default + 'static {
    const PATH: &str;
    type Answer: Answer;
}

/// What a method gives.
pub(super) trait Answer: Message + Default + 'static {
    fn header(&self) -> Option<&Header>;
}

/// Says which message answers which.
macro_rules! call {
    ($request:ty, $path:literal, $answer:ty) => {
        impl Call for $request {
            const PATH: &str = $path;
            type Answer = $answer;
        }

        impl Answer for $answer {
            fn header(&self) -> Option<&Header> {
                self.header.as_ref()
            }
        }
    };
}

call!(RangeRequest, "/etcdserverpb.KV/Range", RangeResponse);
call!(TxnRequest, "/etcdserverpb.KV/Txn", TxnResponse);
call!(StatusRequest, "/etcdserverpb.Maintenance/Status", StatusResponse);
call!(AuthenticateRequest, "/etcdserverpb.Auth/Authenticate", AuthenticateResponse);
/// The one method with streams.
pub(super) const WATCH: &str = "/etcdserverpb.Watch/Watch";

/// What every answer begins with.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(super) struct Header {
    #[prost(uint64, tag = "1")]
    pub(super) cluster_id: u64,
    #[prost(uint64, tag = "2")]
    pub(super) member_id: u64,
    /// The number of the last write that the answer knows of.
    #[prost(int64, tag = "3")]
    pub(super) revision: i64,
    /// It rises with each election.
    #[prost(uint64, tag = "4")]
    pub(super) raft_term: u64,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct KeyValue {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) key: Vec<u8>,
    /// The number of the write that the value is of.
    #[prost(int64, tag = "3")]
    pub(super) mod_revision: i64,
    #[prost(bytes = "vec", tag = "5")]
    pub(super) value: Vec<u8>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct RangeRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) key: Vec<u8>,
    /// The first key that is not asked for; empty for `key` alone.
    #[prost(bytes = "vec", tag = "2")]
    pub(super) range_end: Vec<u8>,
    #[prost(int64, tag = "3")]
    pub(super) limit: i64,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct RangeResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) header: Option<Header>,
    #[prost(message, repeated, tag = "2")]
    pub(super) kvs: Vec<KeyValue>,
    /// How many keys the range has, whatever the limit was.
    #[prost(int64, tag = "4")]
    pub(super) count: i64,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct PutRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub(super) value: Vec<u8>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct DeleteRangeRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) key: Vec<u8>,
}

/// A step of a transaction.
#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct RequestOp {
    #[prost(oneof = "Step", tags = "1, 2, 3, 4")]
    pub(super) step: Option<Step>,
}

#[derive(Clone, PartialEq, Eq, prost::Oneof)]
pub(super) enum Step {
    #[prost(message, tag = "1")]
    Range(RangeRequest),
    #[prost(message, tag = "2")]
    Put(PutRequest),
    #[prost(message, tag = "3")]
    DeleteRange(DeleteRangeRequest),
    #[prost(message, tag = "4")]
    Txn(TxnRequest),
}

/// The answer to a step. Those that are not read are no members.
#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct ResponseOp {
    #[prost(oneof = "StepAnswer", tags = "1, 4")]
    pub(super) answer: Option<StepAnswer>,
}

#[derive(Clone, PartialEq, Eq, prost::Oneof)]
pub(super) enum StepAnswer {
    #[prost(message, tag = "1")]
    Range(RangeResponse),
    #[prost(message, tag = "4")]
    Txn(TxnResponse),
}

/// The condition that a key has a value of this write; of write 0 where there is no key.
#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct Compare {
    /// How the two are compared: 0 for equal.
    #[prost(int32, tag = "1")]
    pub(super) result: i32,
    /// What of the key is compared.
    #[prost(int32, tag = "2")]
    pub(super) target: i32,
    #[prost(bytes = "vec", tag = "3")]
    pub(super) key: Vec<u8>,
    /// Sent in any case: it is a member of a `oneof`, of which etcd takes none for 0.
    #[prost(int64, optional, tag = "6")]
    pub(super) mod_revision: Option<i64>,
}

impl Compare {
    /// [`Compare::target`] of the number of a key's last write.
    pub(super) const MOD: i32 = 2;
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct TxnRequest {
    #[prost(message, repeated, tag = "1")]
    pub(super) compare: Vec<Compare>,
    #[prost(message, repeated, tag = "2")]
    pub(super) success: Vec<RequestOp>,
    /// What is done where a condition does not hold.
    #[prost(message, repeated, tag = "3")]
    pub(super) failure: Vec<RequestOp>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct TxnResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) header: Option<Header>,
    /// Whether every condition held.
    #[prost(bool, tag = "2")]
    pub(super) succeeded: bool,
    #[prost(message, repeated, tag = "3")]
    pub(super) responses: Vec<ResponseOp>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct WatchRequest {
    #[prost(oneof = "WatchStep", tags = "1, 3")]
    pub(super) step: Option<WatchStep>,
}

#[derive(Clone, PartialEq, Eq, prost::Oneof)]
pub(super) enum WatchStep {
    #[prost(message, tag = "1")]
    Create(WatchCreateRequest),
    /// Asks how far the watch is.
    #[prost(message, tag = "3")]
    Progress(WatchProgressRequest),
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct WatchCreateRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub(super) range_end: Vec<u8>,
    /// Whether an answer that is too large comes in parts.
    #[prost(bool, tag = "8")]
    pub(super) fragment: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(super) struct WatchProgressRequest {}

#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct WatchResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) header: Option<Header>,
    #[prost(bool, tag = "3")]
    pub(super) created: bool,
    /// The watch is over.
    #[prost(bool, tag = "4")]
    pub(super) canceled: bool,
    #[prost(string, tag = "6")]
    pub(super) cancel_reason: String,
    #[prost(message, repeated, tag = "11")]
    pub(super) events: Vec<Event>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct Event {
    /// 0 for a new value, 1 for a removal.
    #[prost(int32, tag = "1")]
    pub(super) kind: i32,
    #[prost(message, optional, tag = "2")]
    pub(super) kv: Option<KeyValue>,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(super) struct StatusRequest {}

#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct StatusResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) header: Option<Header>,
    #[prost(string, tag = "2")]
    pub(super) version: String,
    /// How large the database is, in bytes, free pages included.
    #[prost(int64, tag = "3")]
    pub(super) db_size: i64,
    /// The member that leads; 0 for none.
    #[prost(uint64, tag = "4")]
    pub(super) leader: u64,
    /// How many entries of its log the member has applied.
    #[prost(uint64, tag = "7")]
    pub(super) raft_applied_index: u64,
    /// The alarms, and what else is wrong, in words.
    #[prost(string, repeated, tag = "8")]
    pub(super) errors: Vec<String>,
    /// Whether the member has no vote yet, and answers no reads.
    #[prost(bool, tag = "10")]
    pub(super) is_learner: bool,
    /// At which size etcd refuses writes; 0 where the version does not say it, or there is no limit.
    #[prost(int64, tag = "12")]
    pub(super) db_size_quota: i64,
}

#[derive(Clone, PartialEq, Eq, Message)]
#[prost(skip_debug)]
pub(super) struct AuthenticateRequest {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, tag = "2")]
    pub(super) password: String,
}

#[derive(Clone, PartialEq, Eq, Message)]
#[prost(skip_debug)]
pub(super) struct AuthenticateResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) header: Option<Header>,
    #[prost(string, tag = "2")]
    pub(super) token: String,
}

impl fmt::Debug for AuthenticateRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AuthenticateRequest").finish_non_exhaustive()
    }
}

impl fmt::Debug for AuthenticateResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AuthenticateResponse").finish_non_exhaustive()
    }
}
