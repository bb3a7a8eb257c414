//! A connection to one member, and how long a call on it may take.
//!
//! The client's own balancer sends each request to another member, dead ones included, and waits
//! for an answer for ever. So there is one connection to one member at a time (`cluster.rs`), and a
//! call that takes long has the member asked, on the same connection, whether it still is there and
//! has the same leader. If it is stopped, or there was an election since, the call is given up as
//! lost: what was proposed to the leader before is not always proposed to the next one. Tested in
//! `tests/stores/etcd_faults.rs`.

use std::fmt;
use std::time::Duration;

use keylatch_core::store::StoreError;
use prost::Message;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::Channel;
use tonic::{IntoStreamingRequest, Request, Status, Streaming};
use tonic_prost::ProstCodec;

use super::failure::classify;
use super::messages::etcdserverpb::{
    AuthenticateRequest, AuthenticateResponse, RangeRequest, RangeResponse, ResponseHeader,
    StatusRequest, StatusResponse, TxnRequest, TxnResponse, WatchRequest, WatchResponse,
};

const CALL_LIMIT: Duration = Duration::from_secs(4);
/// After how long the member of a call is asked whether it still is there, and how often.
const PATIENCE: Duration = Duration::from_millis(250);
/// How long it may take to response that, which it does without asking others. On a loaded machine
/// that was over a second.
const SIGN_LIMIT: Duration = Duration::from_secs(2);

/// The one method with streams.
const WATCH: &str = "/etcdserverpb.Watch/Watch";

/// The request of a method.
pub(super) trait Call: Message + Default + 'static {
    const PATH: &str;
    type Response: Message + Default + 'static;

    fn header(response: &Self::Response) -> Option<ResponseHeader>;
}

macro_rules! call {
    ($request:ty, $path:literal, $response:ty) => {
        impl Call for $request {
            const PATH: &str = $path;
            type Response = $response;

            fn header(response: &$response) -> Option<ResponseHeader> {
                response.header
            }
        }
    };
}

call!(RangeRequest, "/etcdserverpb.KV/Range", RangeResponse);
call!(TxnRequest, "/etcdserverpb.KV/Txn", TxnResponse);
call!(StatusRequest, "/etcdserverpb.Maintenance/Status", StatusResponse);
call!(AuthenticateRequest, "/etcdserverpb.Auth/Authenticate", AuthenticateResponse);

// Without the password.
impl fmt::Debug for AuthenticateRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AuthenticateRequest").finish_non_exhaustive()
    }
}

/// A connection to one member that has a leader.
#[derive(Debug)]
pub(super) struct Session {
    channel: Channel,
    token: Option<MetadataValue<Ascii>>,
    /// Which of the URL's hosts it is to.
    pub(super) member: usize,
    /// Which cluster it is of.
    pub(super) cluster_id: u64,
    /// By how many entries the member's log was ahead of its revision: some entries are no writes,
    /// so this grows, but begins again in a log that was made from a backup.
    pub(super) log_lead: i64,
    /// Cancelled when calls go to another member.
    pub(super) left: CancellationToken,
}

impl Session {
    pub(super) fn new(channel: Channel, member: usize) -> Self {
        Self {
            channel,
            token: None,
            member,
            cluster_id: 0,
            log_lead: 0,
            left: CancellationToken::new(),
        }
    }

    /// Has later calls carry `token`.
    pub(super) fn authorize(&mut self, token: &str) -> Result<(), StoreError> {
        let token = token.parse().map_err(|_| StoreError::Refused("the token is not ASCII".into()));
        let mut token: MetadataValue<Ascii> = token?;
        token.set_sensitive(true);
        self.token = Some(token);
        Ok(())
    }

    /// Calls a method, within the time that a call may take. Says as well when it was sent. It is
    /// an error too if the member is of another cluster than it was.
    pub(super) async fn call<C: Call>(
        &self,
        request: C,
    ) -> Result<(C::Response, ResponseHeader, Instant), StoreError> {
        let asked = Instant::now();
        let answer = tokio::select! {
            biased;
            answer = self.send(request) => answer.map_err(classify)?,
            why = self.end() => return Err(StoreError::Lost(why.into())),
        };
        match C::header(&answer) {
            Some(header) if header.cluster_id == self.cluster_id || self.cluster_id == 0 => {
                Ok((answer, header, asked))
            }
            _ => Err(StoreError::Lost("another cluster answered".into())),
        }
    }

    /// Ends when the response to a call that was just sent is not worth waiting for.
    async fn end(&self) -> &'static str {
        let (sent, mut term) = (Instant::now(), None);
        while sent.elapsed() < CALL_LIMIT {
            sleep(PATIENCE).await;
            match timeout(SIGN_LIMIT, self.send(StatusRequest {})).await {
                Ok(Ok(status)) if status.leader != 0 => {
                    let now = status.header.map(|header| header.raft_term);
                    if *term.get_or_insert(now) != now {
                        return "a leader was elected meanwhile";
                    }
                }
                Ok(Ok(_)) => return "the member has no leader",
                Ok(Err(_)) => return "the connection to the member ended",
                Err(_) => return "the member gives no sign",
            }
        }
        "there was no answer in time"
    }

    pub(super) async fn status(&self) -> Result<StatusResponse, StoreError> {
        self.call(StatusRequest {}).await.map(|(status, ..)| status)
    }

    /// Begins a stream of requests and answers.
    pub(super) async fn watch(
        &self,
        requests: impl IntoStreamingRequest<Message = WatchRequest>,
    ) -> Result<Streaming<WatchResponse>, StoreError> {
        let (mut client, mut request) = (self.client(), requests.into_streaming_request());
        self.add_metadata(&mut request);
        client.ready().await.map_err(|error| StoreError::Unreachable(error.into()))?;
        let path = PathAndQuery::from_static(WATCH);
        let answers = client.streaming(request, path, ProstCodec::default()).await;
        answers.map(tonic::Response::into_inner).map_err(classify)
    }

    async fn send<C: Call>(&self, request: C) -> Result<C::Response, Status> {
        let (mut client, mut request) = (self.client(), Request::new(request));
        self.add_metadata(&mut request);
        client.ready().await.map_err(|error| Status::from_error(error.into()))?;
        let path = PathAndQuery::from_static(C::PATH);
        let answer = client.unary(request, path, ProstCodec::default()).await;
        answer.map(tonic::Response::into_inner)
    }

    fn client(&self) -> Grpc<Channel> {
        // The response to a read is as large as the rows are.
        Grpc::new(self.channel.clone()).max_decoding_message_size(usize::MAX)
    }

    fn add_metadata<T>(&self, request: &mut Request<T>) {
        let metadata = request.metadata_mut();
        // A member without a leader is to refuse the call, and not to keep it.
        metadata.insert("hasleader", MetadataValue::from_static("true"));
        if let Some(token) = &self.token {
            metadata.insert("token", token.clone());
        }
    }
}
