//! What a PostgreSQL promises, asked of the server itself.
//!
//! `strict` where a commit that was answered is on disk, and on the standby as well if there is
//! one; `fenced` where a promotion may forget the last commits; `best-effort` where a crash may.

use std::collections::BTreeMap;

use keylatch_core::store::{StoreError, StoreHealth, Tier};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::link::{INSTANCES, Link};
use super::sql::{Statement, get};

/// The settings that decide the tier.
const SETTINGS: &str = "SELECT current_setting('server_version'), current_setting('fsync'),
    current_setting('full_page_writes'), current_setting('synchronous_commit'),
    current_setting('synchronous_standby_names'), (SELECT count(*) FROM pg_stat_replication),
    (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 2
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
        AND classid::bigint = $1 AND objid::bigint = (hashtext($2)::bigint & 4294967295))";

pub(super) async fn health(link: &Link) -> Result<StoreHealth, StoreError> {
    let (class, channel) = (i64::from(INSTANCES), &link.target.sql.channel);
    let statement = Statement::new(SETTINGS, [Type::INT8, Type::TEXT]);
    link.query(&statement, &[&class, &channel], health_of).await
}

fn health_of(rows: &[Row]) -> Result<StoreHealth, StoreError> {
    let row = rows.first().ok_or_else(|| StoreError::Lost("there was no row".into()))?;
    let text = |column| get::<String>(row, column);
    let durability = Durability {
        fsync: text(1)? == "on",
        full_page_writes: text(2)? == "on",
        synchronous_commit: text(3)?,
        has_synchronous_standbys: !text(4)?.is_empty(),
        standbys: get(row, 5)?,
    };
    let facts = BTreeMap::from([
        ("version", text(0)?),
        ("instances", instances(get(row, 6)?)),
        ("fsync", text(1)?),
        ("synchronous_commit", text(3)?),
        ("synchronous_standby_names", text(4)?),
        ("standbys", durability.standbys.to_string()),
    ]);
    Ok(StoreHealth { id: None, tier: durability.tier(), facts, advice: Vec::new(), is_full: false })
}

/// Each instance listens in one session, which shares a lock. While this one does not listen, that
/// is not known.
fn instances(listening: i64) -> String {
    if listening > 0 { listening.to_string() } else { "not known".to_owned() }
}

/// What the server does before it answers a commit.
#[derive(Debug, Clone)]
struct Durability {
    fsync: bool,
    full_page_writes: bool,
    synchronous_commit: String,
    has_synchronous_standbys: bool,
    standbys: i64,
}

impl Durability {
    fn tier(&self) -> Tier {
        // `remote_write` waits until a standby has it in memory, and `local` for none.
        let waits_for_standby = self.has_synchronous_standbys
            && ["on", "remote_apply"].contains(&&*self.synchronous_commit);
        if !self.fsync || !self.full_page_writes || self.synchronous_commit == "off" {
            Tier::BestEffort
        } else if self.standbys > 0 && !waits_for_standby {
            Tier::Fenced
        } else {
            Tier::Strict
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tier_is_what_the_weakest_setting_leaves() {
        let strict = Durability {
            fsync: true,
            full_page_writes: true,
            synchronous_commit: "on".to_owned(),
            has_synchronous_standbys: false,
            standbys: 0,
        };
        let with = |change: fn(&mut Durability)| {
            let mut durability = strict.clone();
            change(&mut durability);
            durability.tier()
        };
        assert_eq!(strict.tier(), Tier::Strict);
        assert_eq!(with(|it| it.fsync = false), Tier::BestEffort);
        assert_eq!(with(|it| it.full_page_writes = false), Tier::BestEffort);
        assert_eq!(with(|it| it.synchronous_commit = "off".to_owned()), Tier::BestEffort);
        assert_eq!(with(|it| it.standbys = 1), Tier::Fenced);
        let synchronous =
            |it: &mut Durability| (it.standbys, it.has_synchronous_standbys) = (1, true);
        assert_eq!(with(synchronous), Tier::Strict);
        let in_memory_there =
            |it: &mut Durability| it.synchronous_commit = "remote_write".to_owned();
        assert_eq!(with(in_memory_there), Tier::Strict);
        for shorter in ["local", "remote_write"] {
            let mut durability = strict.clone();
            synchronous(&mut durability);
            durability.synchronous_commit = shorter.to_owned();
            assert_eq!(durability.tier(), Tier::Fenced, "{shorter}");
        }
    }
}
