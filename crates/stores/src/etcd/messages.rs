//! What keylatch uses of etcd's API, version 3: a subset of etcd's own `rpc.proto` and `kv.proto`,
//! with their names and numbers. A field that is not here is skipped when it arrives.
//!
//! @generated: `make etcd-messages` writes `messages.rs` from `rpc.proto` and `kv.proto`.
pub mod mvccpb {
    #[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
    pub struct KeyValue {
        #[prost(bytes = "vec", tag = "1")]
        pub key: ::prost::alloc::vec::Vec<u8>,
        #[prost(int64, tag = "3")]
        pub mod_revision: i64,
        #[prost(bytes = "vec", tag = "5")]
        pub value: ::prost::alloc::vec::Vec<u8>,
    }
    #[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
    pub struct Event {
        #[prost(enumeration = "event::EventType", tag = "1")]
        pub r#type: i32,
        #[prost(message, optional, tag = "2")]
        pub kv: ::core::option::Option<KeyValue>,
    }
    pub mod event {
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, ::prost::Enumeration,
        )]
        #[repr(i32)]
        pub enum EventType {
            Put = 0,
            Delete = 1,
        }
    }
}
pub mod etcdserverpb {
    #[derive(Clone, Copy, PartialEq, Eq, Hash, ::prost::Message)]
    pub struct ResponseHeader {
        #[prost(uint64, tag = "1")]
        pub cluster_id: u64,
        #[prost(int64, tag = "3")]
        pub revision: i64,
        #[prost(uint64, tag = "4")]
        pub raft_term: u64,
    }
    #[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
    pub struct RangeRequest {
        #[prost(bytes = "vec", tag = "1")]
        pub key: ::prost::alloc::vec::Vec<u8>,
        #[prost(bytes = "vec", tag = "2")]
        pub range_end: ::prost::alloc::vec::Vec<u8>,
        #[prost(int64, tag = "3")]
        pub limit: i64,
    }
    #[derive(Clone, PartialEq, ::prost::Message)]
    pub struct RangeResponse {
        #[prost(message, optional, tag = "1")]
        pub header: ::core::option::Option<ResponseHeader>,
        #[prost(message, repeated, tag = "2")]
        pub kvs: ::prost::alloc::vec::Vec<super::mvccpb::KeyValue>,
        #[prost(int64, tag = "4")]
        pub count: i64,
    }
    #[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
    pub struct PutRequest {
        #[prost(bytes = "vec", tag = "1")]
        pub key: ::prost::alloc::vec::Vec<u8>,
        #[prost(bytes = "vec", tag = "2")]
        pub value: ::prost::alloc::vec::Vec<u8>,
    }
    #[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
    pub struct DeleteRangeRequest {
        #[prost(bytes = "vec", tag = "1")]
        pub key: ::prost::alloc::vec::Vec<u8>,
    }
    #[derive(Clone, PartialEq, ::prost::Message)]
    pub struct RequestOp {
        #[prost(oneof = "request_op::Request", tags = "1, 2, 3, 4")]
        pub request: ::core::option::Option<request_op::Request>,
    }
    pub mod request_op {
        #[derive(Clone, PartialEq, ::prost::Oneof)]
        pub enum Request {
            #[prost(message, tag = "1")]
            RequestRange(super::RangeRequest),
            #[prost(message, tag = "2")]
            RequestPut(super::PutRequest),
            #[prost(message, tag = "3")]
            RequestDeleteRange(super::DeleteRangeRequest),
            #[prost(message, tag = "4")]
            RequestTxn(super::TxnRequest),
        }
    }
    #[derive(Clone, PartialEq, ::prost::Message)]
    pub struct ResponseOp {
        #[prost(oneof = "response_op::Response", tags = "1, 4")]
        pub response: ::core::option::Option<response_op::Response>,
    }
    pub mod response_op {
        #[derive(Clone, PartialEq, ::prost::Oneof)]
        pub enum Response {
            #[prost(message, tag = "1")]
            ResponseRange(super::RangeResponse),
            #[prost(message, tag = "4")]
            ResponseTxn(super::TxnResponse),
        }
    }
    #[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
    pub struct Compare {
        #[prost(enumeration = "compare::CompareTarget", tag = "2")]
        pub target: i32,
        #[prost(bytes = "vec", tag = "3")]
        pub key: ::prost::alloc::vec::Vec<u8>,
        #[prost(oneof = "compare::TargetUnion", tags = "6")]
        pub target_union: ::core::option::Option<compare::TargetUnion>,
    }
    pub mod compare {
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, ::prost::Enumeration,
        )]
        #[repr(i32)]
        pub enum CompareTarget {
            Version = 0,
            Mod = 2,
        }
        #[derive(Clone, Copy, PartialEq, Eq, Hash, ::prost::Oneof)]
        pub enum TargetUnion {
            #[prost(int64, tag = "6")]
            ModRevision(i64),
        }
    }
    #[derive(Clone, PartialEq, ::prost::Message)]
    pub struct TxnRequest {
        #[prost(message, repeated, tag = "1")]
        pub compare: ::prost::alloc::vec::Vec<Compare>,
        #[prost(message, repeated, tag = "2")]
        pub success: ::prost::alloc::vec::Vec<RequestOp>,
        #[prost(message, repeated, tag = "3")]
        pub failure: ::prost::alloc::vec::Vec<RequestOp>,
    }
    #[derive(Clone, PartialEq, ::prost::Message)]
    pub struct TxnResponse {
        #[prost(message, optional, tag = "1")]
        pub header: ::core::option::Option<ResponseHeader>,
        #[prost(bool, tag = "2")]
        pub succeeded: bool,
        #[prost(message, repeated, tag = "3")]
        pub responses: ::prost::alloc::vec::Vec<ResponseOp>,
    }
    #[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
    pub struct WatchRequest {
        #[prost(oneof = "watch_request::RequestUnion", tags = "1, 3")]
        pub request_union: ::core::option::Option<watch_request::RequestUnion>,
    }
    pub mod watch_request {
        #[derive(Clone, PartialEq, Eq, Hash, ::prost::Oneof)]
        pub enum RequestUnion {
            #[prost(message, tag = "1")]
            CreateRequest(super::WatchCreateRequest),
            #[prost(message, tag = "3")]
            ProgressRequest(super::WatchProgressRequest),
        }
    }
    #[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
    pub struct WatchCreateRequest {
        #[prost(bytes = "vec", tag = "1")]
        pub key: ::prost::alloc::vec::Vec<u8>,
        #[prost(bytes = "vec", tag = "2")]
        pub range_end: ::prost::alloc::vec::Vec<u8>,
        #[prost(bool, tag = "8")]
        pub fragment: bool,
    }
    #[derive(Clone, Copy, PartialEq, Eq, Hash, ::prost::Message)]
    pub struct WatchProgressRequest {}
    #[derive(Clone, PartialEq, ::prost::Message)]
    pub struct WatchResponse {
        #[prost(message, optional, tag = "1")]
        pub header: ::core::option::Option<ResponseHeader>,
        #[prost(bool, tag = "3")]
        pub created: bool,
        #[prost(bool, tag = "4")]
        pub canceled: bool,
        #[prost(string, tag = "6")]
        pub cancel_reason: ::prost::alloc::string::String,
        #[prost(message, repeated, tag = "11")]
        pub events: ::prost::alloc::vec::Vec<super::mvccpb::Event>,
    }
    #[derive(Clone, Copy, PartialEq, Eq, Hash, ::prost::Message)]
    pub struct StatusRequest {}
    #[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
    pub struct StatusResponse {
        #[prost(message, optional, tag = "1")]
        pub header: ::core::option::Option<ResponseHeader>,
        #[prost(string, tag = "2")]
        pub version: ::prost::alloc::string::String,
        #[prost(int64, tag = "3")]
        pub db_size: i64,
        #[prost(uint64, tag = "4")]
        pub leader: u64,
        #[prost(uint64, tag = "7")]
        pub raft_applied_index: u64,
        #[prost(string, repeated, tag = "8")]
        pub errors: ::prost::alloc::vec::Vec<::prost::alloc::string::String>,
        #[prost(bool, tag = "10")]
        pub is_learner: bool,
        #[prost(int64, tag = "12")]
        pub db_size_quota: i64,
    }
    #[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
    #[prost(skip_debug)]
    pub struct AuthenticateRequest {
        #[prost(string, tag = "1")]
        pub name: ::prost::alloc::string::String,
        #[prost(string, tag = "2")]
        pub password: ::prost::alloc::string::String,
    }
    #[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
    #[prost(skip_debug)]
    pub struct AuthenticateResponse {
        #[prost(message, optional, tag = "1")]
        pub header: ::core::option::Option<ResponseHeader>,
        #[prost(string, tag = "2")]
        pub token: ::prost::alloc::string::String,
    }
}
