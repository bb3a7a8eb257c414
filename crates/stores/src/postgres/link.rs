//! One connection to the server that takes writes, made when it is needed and made again when it is
//! lost.
//!
//! The driver keeps no deadline: a server that is stopped hangs every call until it runs again. So
//! each call has one here, and a connection on which a call failed is dropped. A server that was
//! demoted takes no writes, and what it reads is old; its connection is dropped too, and the next
//! is made to the first host that takes writes. Statements are prepared; a pooler that hands each
//! transaction to another server connection may not know them there, and from then on the link
//! sends them unnamed.
//!
//! Invariant: an error says that nothing was executed only where the server said so, or the call
//! was never sent (`failure.rs`). A commit whose wait for the standby was cut short is reported as
//! lost, not as done. Tested in `tests/stores/postgres`.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::stream::{FuturesOrdered, StreamExt as _};
use keylatch_core::store::{StoreError, chain};
use tokio::sync::{Mutex, OnceCell, mpsc};
use tokio::time::timeout;
use tokio_postgres::config::Host;
use tokio_postgres::types::ToSql;
use tokio_postgres::{AsyncMessage, Client, Config, Connection, Error, NoTls, Row, Socket};
use tokio_util::task::AbortOnDropHandle;

use super::Target;
use super::failure::{
    classify, is_of_a_cut_wait, is_of_a_part, is_of_another_connection, is_refusal,
};
use super::sql::{Statement, get};
use crate::conn::unreachable;

/// The class of the advisory lock that the listening session of each instance shares, so that they
/// can be counted.
pub(super) const INSTANCES: i32 = 0x6b6c;
/// How long a call may take before its connection is dropped.
const CALL_LIMIT: Duration = Duration::from_secs(4);

/// A connection that is made when it is needed.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) target: Arc<Target>,
    live: Mutex<Option<Arc<Session>>>,
    /// Whether statements are sent unnamed, since a pooler forgets them.
    is_pooled: AtomicBool,
}

#[derive(Debug)]
pub(super) struct Session {
    client: Client,
    prepared: OnceCell<tokio_postgres::Statement>,
    /// A commit may not be on the standby although the server answered that it is done.
    is_in_doubt: Arc<AtomicBool>,
    /// Reads what the server sends, for as long as the session lives.
    _connection: AbortOnDropHandle<()>,
}

pub(super) type Values<'a> = [&'a (dyn ToSql + Sync)];

impl Link {
    pub(super) fn new(target: &Arc<Target>) -> Self {
        Self {
            target: Arc::clone(target),
            live: Mutex::default(),
            is_pooled: AtomicBool::new(false),
        }
    }

    /// What `read` makes of the rows of a statement that commits by itself. There is none where it
    /// undid itself as a whole. The session is dropped after a failure; the next one looks at the
    /// table again if it was refused.
    pub(super) async fn query<T>(
        &self,
        statement: &Statement,
        values: &Values<'_>,
        read: impl FnOnce(&[Row]) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let session = self.session().await?;
        let rows = self.query_on(&session, statement, values).await;
        let result = rows.and_then(|rows| read(&rows));
        if let Err(error) = &result {
            if matches!(error, StoreError::Refused(_)) {
                self.target.is_prepared.store(false, Ordering::Release);
            }
            let mut live = self.live.lock().await;
            live.take_if(|live| Arc::ptr_eq(live, &session));
        }
        result
    }

    async fn query_on(
        &self,
        session: &Session,
        statement: &Statement,
        values: &Values<'_>,
    ) -> Result<Vec<Row>, StoreError> {
        let answer = timeout(CALL_LIMIT, self.send(session, statement, values)).await;
        let rows = match answer.map_err(|_| StoreError::Deadline(CALL_LIMIT))? {
            // All of it or none of it was asked for.
            Err(error) if is_of_a_part(&error) => Vec::new(),
            answer => answer.map_err(classify)?,
        };
        // Every response since then is in doubt: which of them the warning was about is not known.
        if session.is_in_doubt.load(Ordering::Acquire) {
            return Err(StoreError::Lost("the wait for the standby was cut short".into()));
        }
        Ok(rows)
    }

    async fn send(
        &self,
        session: &Session,
        statement: &Statement,
        values: &Values<'_>,
    ) -> Result<Vec<Row>, Error> {
        if statement.is_frequent && !self.is_pooled.load(Ordering::Relaxed) {
            match session.query_prepared(statement, values).await {
                Err(error) if is_of_another_connection(&error) => {
                    tracing::info!("a pooler forgets prepared statements; they are sent unnamed");
                    self.is_pooled.store(true, Ordering::Relaxed);
                }
                result => return result,
            }
        }
        let types = statement.types.iter().cloned();
        let typed: Vec<_> = values.iter().copied().zip(types).collect();
        session.client.query_typed(&statement.text, &typed).await
    }

    /// The live session, or a new one.
    pub(super) async fn session(&self) -> Result<Arc<Session>, StoreError> {
        let mut live = self.live.lock().await;
        match &*live {
            Some(session) if !session.client.is_closed() => Ok(Arc::clone(session)),
            _ => {
                let session = Arc::new(self.target.connect().await?);
                self.target.prepare(&session).await?;
                *live = Some(Arc::clone(&session));
                Ok(session)
            }
        }
    }
}

impl Target {
    /// Connects to the first host that takes writes.
    pub(super) async fn connect(&self) -> Result<Session, StoreError> {
        self.open(None).await
    }

    /// Connects, and passes on what is announced.
    pub(super) async fn listen(
        &self,
        announcements: mpsc::Sender<String>,
    ) -> Result<Session, StoreError> {
        let session = self.open(Some(announcements)).await?;
        let (channel, class) = (&self.sql.channel, INSTANCES);
        let listen = format!(
            "LISTEN \"{channel}\"; SELECT pg_try_advisory_lock_shared({class}, hashtext('{channel}'))"
        );
        session.run(&listen).await?;
        Ok(session)
    }

    /// Tries all hosts at once, so that those that are stopped cost one limit together, and takes
    /// the first in the order of the URL, so that all connections go to the same of two that take
    /// writes.
    async fn open(
        &self,
        announcements: Option<mpsc::Sender<String>>,
    ) -> Result<Session, StoreError> {
        let attempts = self.hosts.iter().map(|host| self.open_at(host, announcements.clone()));
        let mut attempts: FuturesOrdered<_> = attempts.collect();
        let mut failure = None;
        while let Some(attempt) = attempts.next().await {
            match attempt {
                Ok(session) => return Ok(session),
                // One that may be back soon counts for more than one that refuses.
                Err(error) if failure.as_ref().is_none_or(is_refusal) => failure = Some(error),
                Err(_) => {}
            }
        }
        Err(failure.unwrap_or_else(|| StoreError::Unreachable("there is no host".into())))
    }

    async fn open_at(
        &self,
        host: &Config,
        announcements: Option<mpsc::Sender<String>>,
    ) -> Result<Session, StoreError> {
        let opening = async {
            match &self.tls {
                None => {
                    let (client, connection) = host.connect(NoTls).await?;
                    Ok(Session::new(client, connection, announcements))
                }
                Some(tls) => {
                    let (client, connection) = host.connect(tls.clone()).await?;
                    Ok(Session::new(client, connection, announcements))
                }
            }
        };
        match timeout(self.connect_limit, opening).await {
            Ok(Ok(session)) => Ok(session),
            Ok(Err::<_, Error>(error)) if error.as_db_error().is_some() => {
                Err(StoreError::Unreachable(error.into()))
            }
            Ok(Err(error)) => Err(unreachable(place_of(host), chain(&error))),
            Err(late) => Err(unreachable(place_of(host), late)),
        }
    }
}

/// Where a host is, for people.
fn place_of(host: &Config) -> String {
    match (host.get_hosts().first(), host.get_ports().first()) {
        (Some(Host::Tcp(name)), port) => format!("{name}:{}", port.unwrap_or(&5432)),
        (Some(Host::Unix(path)), _) => path.display().to_string(),
        (None, _) => String::new(),
    }
}

impl Session {
    fn new<T>(
        client: Client,
        connection: Connection<Socket, T>,
        announcements: Option<mpsc::Sender<String>>,
    ) -> Self
    where
        T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
    {
        let is_in_doubt = Arc::new(AtomicBool::new(false));
        let reader = read_messages(connection, Arc::clone(&is_in_doubt), announcements);
        let connection = AbortOnDropHandle::new(tokio::spawn(reader));
        Self { client, prepared: OnceCell::new(), is_in_doubt, _connection: connection }
    }

    async fn query_prepared(
        &self,
        Statement { text, types, .. }: &Statement,
        values: &Values<'_>,
    ) -> Result<Vec<Row>, Error> {
        let prepare = || self.client.prepare_typed(text, types);
        let prepared = self.prepared.get_or_try_init(prepare).await?;
        self.client.query(prepared, values).await
    }

    /// Runs statements without parameters and without results.
    pub(super) async fn run(&self, statements: &str) -> Result<(), StoreError> {
        let running = timeout(CALL_LIMIT, self.client.batch_execute(statements)).await;
        running.map_err(|_| StoreError::Deadline(CALL_LIMIT))?.map_err(classify)
    }

    /// Whether the server answers, and takes writes.
    pub(super) async fn takes_writes(&self) -> bool {
        let asked = self.row("SELECT current_setting('transaction_read_only') = 'off'").await;
        asked.and_then(|row| get(&row, 0)).unwrap_or(false)
    }

    /// The one row of a statement without parameters.
    pub(super) async fn row(&self, statement: &str) -> Result<Row, StoreError> {
        let running = timeout(CALL_LIMIT, self.client.query_typed_one(statement, &[])).await;
        running.map_err(|_| StoreError::Deadline(CALL_LIMIT))?.map_err(classify)
    }
}

/// Reads what the server sends until the connection ends.
async fn read_messages<T>(
    mut connection: Connection<Socket, T>,
    is_in_doubt: Arc<AtomicBool>,
    announcements: Option<mpsc::Sender<String>>,
) where
    T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
{
    loop {
        match poll_fn(|cx| connection.poll_message(cx)).await {
            Some(Ok(AsyncMessage::Notification(message))) => {
                if let Some(announcements) = &announcements
                    && announcements.send(message.payload().to_owned()).await.is_err()
                {
                    return;
                }
            }
            // The server warns of it before it answers that the commit is done.
            Some(Ok(AsyncMessage::Notice(notice))) if is_of_a_cut_wait(&notice) => {
                is_in_doubt.store(true, Ordering::Release);
            }
            Some(Ok(_)) => {}
            // The calls on it fail with their own errors.
            Some(Err(_)) | None => return,
        }
    }
}
