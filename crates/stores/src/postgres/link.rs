//! One connection to the server that takes writes, made when it is needed and made again when it is lost.
//!
//! The driver keeps no deadline: a server that is stopped hangs every call until it runs again. So each
//! call has one here, and a connection on which a call was late is dropped. A server that was demoted
//! answers that it is read-only; its connection is dropped too, and the next is made to the first host that
//! takes writes. Statements are prepared; behind a pooler that hands each transaction to another server
//! connection they are unknown there, and from then on the link sends them unnamed.
//!
//! Invariant: an error says that nothing was executed only where the server said so, or the call was never
//! sent. A commit whose wait for the standby was cut short is reported as lost, not as done. Tested in
//! `tests/stores/postgres.rs`.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use keylatch_core::store::StoreError;
use tokio::sync::{Mutex, OnceCell, mpsc};
use tokio::time::timeout;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{AsyncMessage, Client, Connection, Error, NoTls, Row, Socket, Statement};
use tokio_util::task::AbortOnDropHandle;

use super::Target;

/// How long a call may take before its connection is dropped.
const CALL_LIMIT: Duration = Duration::from_secs(4);

/// A connection that is made when it is needed.
#[derive(Debug)]
pub(super) struct Link {
    target: Arc<Target>,
    live: Mutex<Option<Arc<Session>>>,
    /// Whether statements are sent unnamed, since a pooler forgets them.
    is_pooled: AtomicBool,
}

/// A connection.
#[derive(Debug)]
pub(super) struct Session {
    client: Client,
    statement: OnceCell<Statement>,
    /// A commit may not be on the standby although the server answered that it is done.
    is_in_doubt: Arc<AtomicBool>,
    /// Reads what the server sends, for as long as the session lives.
    _connection: AbortOnDropHandle<()>,
}

/// A statement and its parameters.
#[derive(Debug, Clone, Copy)]
pub(super) struct Query<'a> {
    pub(super) sql: &'a str,
    pub(super) types: &'a [Type],
    pub(super) values: &'a [&'a (dyn ToSql + Sync)],
    /// Whether the statement is the one of this link, which is worth preparing.
    pub(super) is_frequent: bool,
}

impl Link {
    pub(super) fn new(target: &Arc<Target>) -> Self {
        Self {
            target: Arc::clone(target),
            live: Mutex::default(),
            is_pooled: AtomicBool::new(false),
        }
    }

    /// Runs a statement that commits by itself.
    ///
    /// # Errors
    ///
    /// The server cannot be reached, refused the statement, or did not answer in time.
    pub(super) async fn query(&self, query: Query<'_>) -> Result<Vec<Row>, StoreError> {
        let session = self.session().await?;
        let rows = match timeout(CALL_LIMIT, self.query_on(&session, query)).await {
            Ok(Ok(rows)) => rows,
            Ok(Err(error)) => {
                let error = classify(error);
                if !matches!(error, StoreError::Refused(_)) || session.client.is_closed() {
                    self.drop_session(&session).await;
                }
                return Err(error);
            }
            Err(_) => {
                self.drop_session(&session).await;
                return Err(StoreError::Deadline(CALL_LIMIT));
            }
        };
        if session.is_in_doubt.swap(false, Ordering::AcqRel) {
            return Err(StoreError::Lost("the wait for the standby was cut short".into()));
        }
        Ok(rows)
    }

    async fn query_on(&self, session: &Session, query: Query<'_>) -> Result<Vec<Row>, Error> {
        let Query { sql, types, values, is_frequent } = query;
        if is_frequent && !self.is_pooled.load(Ordering::Relaxed) {
            let prepare = || session.client.prepare_typed(sql, types);
            let statement = session.statement.get_or_try_init(prepare).await?;
            match session.client.query(statement, values).await {
                Err(error) if is_forgotten(&error) => {
                    tracing::info!("a pooler forgets prepared statements; they are sent unnamed");
                    self.is_pooled.store(true, Ordering::Relaxed);
                }
                result => return result,
            }
        }
        let typed: Vec<_> = values.iter().copied().zip(types.iter().cloned()).collect();
        session.client.query_typed(sql, &typed).await
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

    async fn drop_session(&self, session: &Arc<Session>) {
        let mut live = self.live.lock().await;
        if live.as_ref().is_some_and(|live| Arc::ptr_eq(live, session)) {
            *live = None;
        }
    }
}

impl Target {
    /// Connects to the first host that takes writes.
    ///
    /// # Errors
    ///
    /// There is none, or it does not let this role in.
    pub(super) async fn connect(&self) -> Result<Session, StoreError> {
        self.open(None).await
    }

    /// Connects, and passes on what is announced.
    ///
    /// # Errors
    ///
    /// As [`Target::connect`], or the server does not take the subscription.
    pub(super) async fn listen(
        &self,
        announcements: mpsc::Sender<String>,
    ) -> Result<Session, StoreError> {
        let session = self.open(Some(announcements)).await?;
        let listen = format!("LISTEN \"{}\"", self.sql.channel);
        let listening = timeout(CALL_LIMIT, session.client.batch_execute(&listen)).await;
        listening.map_err(|_| StoreError::Deadline(CALL_LIMIT))?.map_err(classify)?;
        Ok(session)
    }

    async fn open(
        &self,
        announcements: Option<mpsc::Sender<String>>,
    ) -> Result<Session, StoreError> {
        let opening = async {
            match &self.tls {
                None => {
                    let (client, connection) = self.config.connect(NoTls).await?;
                    Ok(Session::new(client, connection, announcements))
                }
                Some(tls) => {
                    let (client, connection) = self.config.connect(tls.clone()).await?;
                    Ok(Session::new(client, connection, announcements))
                }
            }
        };
        match timeout(self.connect_limit, opening).await {
            Ok(Ok(session)) => Ok(session),
            Ok(Err::<_, Error>(error)) => Err(StoreError::Unreachable(error.into())),
            Err(late) => Err(StoreError::Unreachable(late.into())),
        }
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
        Self { client, statement: OnceCell::new(), is_in_doubt, _connection: connection }
    }

    /// Runs statements without parameters and without results.
    ///
    /// # Errors
    ///
    /// The server refused one, or did not answer in time.
    pub(super) async fn run(&self, statements: &str) -> Result<(), StoreError> {
        let running = timeout(CALL_LIMIT, self.client.batch_execute(statements)).await;
        running.map_err(|_| StoreError::Deadline(CALL_LIMIT))?.map_err(classify)
    }

    /// The one row of a statement without parameters.
    ///
    /// # Errors
    ///
    /// As [`Session::run`].
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
            // The server answers that a commit is done whose wait for the standby was cut short, and says
            // so in a warning before that.
            Some(Ok(AsyncMessage::Notice(notice))) if *notice.code() == SqlState::WARNING => {
                is_in_doubt.store(true, Ordering::Release);
            }
            Some(Ok(_)) => {}
            // The calls on it fail with their own errors.
            Some(Err(_)) | None => return,
        }
    }
}

/// What an error of a statement that commits by itself says of it.
fn classify(error: Error) -> StoreError {
    let Some(code) = error.code() else {
        return StoreError::Lost(error.into());
    };
    let shutdowns = [SqlState::ADMIN_SHUTDOWN, SqlState::CRASH_SHUTDOWN, SqlState::QUERY_CANCELED];
    if shutdowns.contains(code) {
        // It may have been committed and waiting for its standby.
        StoreError::Lost(error.into())
    } else if *code == SqlState::READ_ONLY_SQL_TRANSACTION || *code == SqlState::CANNOT_CONNECT_NOW
    {
        StoreError::Unreachable(error.into())
    } else {
        StoreError::Refused(error.into())
    }
}

/// Whether a pooler handed the statement to a server connection that does not know it. Nothing was executed.
fn is_forgotten(error: &Error) -> bool {
    let codes = [SqlState::INVALID_SQL_STATEMENT_NAME, SqlState::DUPLICATE_PSTATEMENT];
    error.code().is_some_and(|code| codes.contains(code))
}
