//! The resource that the locks protect, and the log of the writes that it took.
//!
//! Goal: fencing tokens alone stop a late write (I3).
//!
//! Method: a redis-server that no fault touches runs one script for each write. The script compares
//! the fencing token, takes the write and logs it in one step, so the log has the true order of
//! writes. The cases of `Fenced` in `guilt.rs` show that the checker reads this log.

use keylatch_testkit::RedisServer;
use redis::Script;
use redis::aio::MultiplexedConnection;

use super::history::Taken;

/// Takes a write unless a higher fencing token was here, or the same one from another client.
const TAKE: &str = r"
local fencing_token, token = ARGV[1], ARGV[2]
local last = redis.call('HMGET', KEYS[1], 'fencing_token', 'token')
if last[1] then
  local before = tonumber(last[1])
  if tonumber(fencing_token) < before or (tonumber(fencing_token) == before and token ~= last[2]) then
    return 0
  end
end
redis.call('HSET', KEYS[1], 'fencing_token', fencing_token, 'token', token)
redis.call('RPUSH', 'log', ARGV[3] .. ' ' .. fencing_token .. ' ' .. token)
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
    pub(super) async fn taken(&self) -> Vec<Taken> {
        let log: Vec<String> = self.server.run(&["LRANGE", "log", "0", "-1"]).await;
        log.iter().map(|line| parse(line).expect("a line of the log")).collect()
    }
}

impl Access {
    /// Whether a write was taken; `None` when the resource did not say.
    pub(super) async fn write(&mut self, write: Taken) -> Option<bool> {
        let mut call = self.script.prepare_invoke();
        call.key(write.lock).arg(write.fencing_token).arg(write.token).arg(write.lock);
        let taken: Result<u8, _> = call.invoke_async(&mut self.connection).await;
        taken.ok().map(|taken| taken == 1)
    }
}

fn parse(line: &str) -> Option<Taken> {
    let mut numbers = line.split(' ').map(str::parse);
    let mut next = || numbers.next()?.ok();
    let (lock, fencing_token, token) = (next()?, next()?, next()?);
    Some(Taken { lock: usize::try_from(lock).ok()?, token, fencing_token })
}
