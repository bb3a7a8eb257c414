//! The resource that the locks protect, and the log of the writes that it took.
//!
//! Goal: fencing tokens alone stop a late write (I3).
//!
//! Method: a redis-server that no fault touches runs one script for each write. The script compares
//! the fencing token as `docs/modes.md` says for each mode, takes the write and logs it in one
//! step, so the log has the true order of writes. The cases of `Fenced` in `guilt.rs` show that the
//! checker reads this log.

use std::fmt;

use keylatch_testkit::RedisServer;
use redis::Script;
use redis::aio::MultiplexedConnection;

use super::history::AcceptedWrite;
use super::mode::{Mode, SLOTS, Share};

/// Takes a write unless a higher fencing token was here, or the same one from another grant. The
/// registers are those of the modes: what is compared for readers and writers, and for each slot.
const TAKE: &str = r"
local fencing_token, grant = tonumber(ARGV[1]), ARGV[2]
for number = 4, #ARGV do
  local last = redis.call('HMGET', KEYS[1], ARGV[number], ARGV[number] .. ' grant')
  local before = tonumber(last[1] or 0)
  if fencing_token < before or (fencing_token == before and grant ~= last[2]) then
    return 0
  end
end
for number = 4, #ARGV do
  redis.call('HSET', KEYS[1], ARGV[number], ARGV[1], ARGV[number] .. ' grant', grant)
end
redis.call('RPUSH', 'log', ARGV[3])
return 1";

/// What the locks protect: a separate process that no fault touches. It refuses late writes by
/// fencing tokens alone.
#[derive(Debug)]
pub(super) struct Resource {
    server: RedisServer,
}

/// A way to the resource.
#[derive(Debug, Clone)]
pub(super) struct Access {
    connection: MultiplexedConnection,
    script: Script,
}

impl Resource {
    pub(super) async fn start() -> Self {
        Self { server: RedisServer::start().await }
    }

    pub(super) async fn access(&self) -> Access {
        let client = redis::Client::open(self.server.url()).expect("a Redis URL");
        let connection = client.get_multiplexed_async_connection().await;
        Access { connection: connection.expect("it runs"), script: Script::new(TAKE) }
    }

    /// What was taken, in order.
    pub(super) async fn taken(&self) -> Vec<AcceptedWrite> {
        let log: Vec<String> = self.server.run(&["LRANGE", "log", "0", "-1"]).await;
        log.iter().map(|line| parse(line).expect("a line of the log")).collect()
    }
}

impl Access {
    /// Whether a write was taken; `None` when the resource did not say.
    pub(super) async fn write(&mut self, write: AcceptedWrite) -> Option<bool> {
        let mut call = self.script.prepare_invoke();
        let AcceptedWrite { lock, share: Share { fencing_token, .. }, .. } = write;
        call.key(lock).arg(fencing_token).arg(write.grant()).arg(line(write));
        call.arg(write.registers().iter().map(ToString::to_string).collect::<Vec<_>>());
        let taken: Result<u8, _> = call.invoke_async(&mut self.connection).await;
        taken.ok().map(|taken| taken == 1)
    }
}

/// A fencing token that the resource keeps and compares.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Register {
    /// That of readers and writers.
    Whole,
    Slot(u64),
}

impl fmt::Display for Register {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole => f.write_str("whole"),
            Self::Slot(slot) => write!(f, "slot {slot}"),
        }
    }
}

impl AcceptedWrite {
    /// What is compared for it: an exclusive holder raises all, a counted one its slot's.
    pub(super) fn registers(&self) -> Vec<Register> {
        let slots = (0..u64::from(SLOTS)).map(Register::Slot);
        match self.share {
            Share { mode: Mode::Exclusive, .. } => {
                [Register::Whole].into_iter().chain(slots).collect()
            }
            Share { mode: Mode::Counted(_), slot: Some(slot), .. } => vec![Register::Slot(slot)],
            _ => vec![Register::Whole],
        }
    }

    /// What may write with one fencing token: one holder, or the readers of an era.
    pub(super) fn grant(&self) -> String {
        match self.share.mode {
            Mode::Shared => "readers".to_owned(),
            _ => self.token.to_string(),
        }
    }
}

/// A write as the log has it.
fn line(write: AcceptedWrite) -> String {
    let AcceptedWrite { lock, token, share: Share { fencing_token, mode, slot } } = write;
    let slot = slot.map_or_else(|| "-".to_owned(), |slot| slot.to_string());
    format!("{lock} {token} {fencing_token} {mode} {slot}")
}

fn parse(line: &str) -> Option<AcceptedWrite> {
    let mut words = line.split(' ');
    let (lock, token) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    let (fencing_token, mode) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    let slot = words.next()?.parse().ok();
    Some(AcceptedWrite { lock, token, share: Share { fencing_token, mode, slot } })
}
