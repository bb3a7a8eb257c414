//! What an etcd promises, and what an operator should know of it.
//!
//! etcd answers a write when a majority has it on disk, so its tier is `strict`. Versions in which
//! a member could lose or skip what was committed are served, with an advice; so is a database that
//! is half full, because a full one takes no writes until somebody acts.

use std::collections::BTreeMap;

use keylatch_core::store::{StoreError, StoreHealth, Tier};

use super::Etcd;
use super::cluster::version_of;
use super::messages::etcdserverpb::StatusResponse;
use crate::optimistic::conditional::Key;

/// The quota that a member has unless it is started with another one.
const DEFAULT_QUOTA: i64 = 2 * 1024 * 1024 * 1024;
/// The first patches of 3.4 and 3.5 that lose nothing in a known way.
const FIRST_SOUND: [(u32, u32, u32); 2] = [(3, 4, 36), (3, 5, 16)];

/// Asks the member in use what it is, after a majority has answered a read.
pub(super) async fn health(etcd: &Etcd) -> Result<StoreHealth, StoreError> {
    etcd.cluster.call(|| etcd.keys.one(&Key::Floor(0))).await?;
    let session = etcd.cluster.session().await?;
    let status = session.status().await?;
    let mut facts = BTreeMap::from([
        ("version", status.version.clone()),
        ("instances", "not known".to_owned()),
        ("member", etcd.hosts[session.member].clone()),
        ("members", etcd.hosts.len().to_string()),
        ("db_size", status.db_size.to_string()),
    ]);
    if status.db_size_quota > 0 {
        facts.insert("db_quota", status.db_size_quota.to_string());
    }
    if !status.errors.is_empty() {
        facts.insert("alarms", status.errors.join(", "));
    }
    let (advice, is_full) = (advice(&status), is_full(&status));
    Ok(StoreHealth { id: None, tier: Tier::Strict, facts, advice, is_full })
}

fn advice(status: &StatusResponse) -> Vec<String> {
    let mut advice = Vec::new();
    let version = version_of(&status.version);
    let is_older = |sound: &(u32, u32, u32)| {
        version.is_some_and(|version| version < *sound && version >= (sound.0, sound.1, 0))
    };
    if let Some((major, minor, patch)) = FIRST_SOUND.into_iter().find(is_older) {
        advice.push(format!(
            "etcd {} has known ways to lose writes or watch events: upgrade to {major}.{minor}.{patch} or newer",
            status.version
        ));
    }
    if is_full(status) {
        advice.push(
            "etcd's database is full and takes no writes but releases: compact, defragment, and disarm the alarm".into(),
        );
    } else if status.db_size > quota(status) / 2 {
        advice.push(format!(
            "etcd's database has {} MiB, and at {} MiB it takes no writes any more: set \
             --auto-compaction-retention, and defragment",
            mebibytes(status.db_size),
            mebibytes(quota(status)),
        ));
    }
    if status.errors.iter().any(|error| error.contains("CORRUPT")) {
        advice.push("a member of etcd has other data than the others: replace it".into());
    }
    advice
}

fn is_full(status: &StatusResponse) -> bool {
    status.errors.iter().any(|error| error.contains("NOSPACE"))
}

/// At which size the member takes no writes any more, as far as it says so.
fn quota(status: &StatusResponse) -> i64 {
    if status.db_size_quota > 0 { status.db_size_quota } else { DEFAULT_QUOTA }
}

fn mebibytes(bytes: i64) -> i64 {
    bytes / 1024 / 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIBIBYTE: i64 = 1024 * 1024 * 1024;

    fn advice_of(version: &str, db_size: i64, quota: i64, errors: &[&str]) -> String {
        let status = StatusResponse {
            version: version.to_owned(),
            db_size,
            db_size_quota: quota,
            errors: errors.iter().map(ToString::to_string).collect(),
            ..StatusResponse::default()
        };
        advice(&status).join("; ")
    }

    #[test]
    fn versions_that_lose_nothing_have_no_advice() {
        for sound in ["3.4.36", "3.5.16", "3.5.21", "3.6.0", "3.7.0-alpha.0", "4.0.0", "main"] {
            assert_eq!(advice_of(sound, 0, 0, &[]), "", "{sound}");
        }
        for (old, sound) in [("3.4.0", "3.4.36"), ("3.4.35", "3.4.36"), ("3.5.15", "3.5.16")] {
            let advice = advice_of(old, 0, 0, &[]);
            assert!(advice.contains(old) && advice.contains(sound), "{advice}");
        }
    }

    #[test]
    fn half_full_database_has_an_advice() {
        assert_eq!(advice_of("3.6.0", GIBIBYTE, 0, &[]), "");
        assert!(advice_of("3.6.0", GIBIBYTE + 1, 0, &[]).contains("at 2048 MiB"));
        assert_eq!(advice_of("3.6.0", GIBIBYTE + 1, 4 * GIBIBYTE, &[]), "");
        let full = advice_of("3.6.0", 2 * GIBIBYTE, 0, &["memberID:1 alarm:NOSPACE "]);
        assert!(full.contains("takes no writes") && full.contains("disarm"), "{full}");
    }
}
