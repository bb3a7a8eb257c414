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
    let (fsync, full_page_writes, commit, names) = (text(1)?, text(2)?, text(3)?, text(4)?);
    let standbys: i64 = get(row, 5)?;
    // `remote_write` waits until a standby has it in memory, and `local` for none.
    let waits_for_standby = !names.is_empty() && ["on", "remote_apply"].contains(&&*commit);
    let tier = if fsync != "on" || full_page_writes != "on" || commit == "off" {
        Tier::BestEffort
    } else if standbys > 0 && !waits_for_standby {
        Tier::Fenced
    } else {
        Tier::Strict
    };
    // Each instance listens in one session, which shares a lock. While this one does not listen,
    // that is not known.
    let instances = match get::<i64>(row, 6)? {
        listening @ 1.. => listening.to_string(),
        _ => "not known".to_owned(),
    };
    let facts = BTreeMap::from([
        ("version", text(0)?),
        ("instances", instances),
        ("fsync", fsync),
        ("synchronous_commit", commit),
        ("synchronous_standby_names", names),
        ("standbys", standbys.to_string()),
    ]);
    Ok(StoreHealth { id: None, tier, facts, advice: Vec::new(), is_full: false })
}
