//! Pays an invoice under a lock, in SQLite and in PostgreSQL. Each database refuses a holder that
//! comes late.
//!
//! ```text
//! cargo run --example fencing shop.db postgresql://localhost/shop
//! ```

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::env;
use std::time::Duration;

use keylatch_client::{AcquireOptions, Client, LockGuard};
use rusqlite::Connection;
use tokio_postgres::NoTls;

type Failure = Box<dyn std::error::Error>;

/// Changes no row where a later holder has been.
const PAY: &str = "UPDATE invoice SET state = 'paid', fence = $1 WHERE id = $2 AND fence <= $1";

async fn lock(client: &Client) -> Result<LockGuard, Failure> {
    let options = AcquireOptions::waiting(Duration::from_secs(30));
    Ok(client.lock("invoice-17", &options).await?)
}

/// Says what becomes of a payment by its holder, and by one that comes late.
async fn demonstrate(
    client: &Client,
    pay: impl AsyncFn(i64, i64) -> Result<bool, Failure>,
) -> Result<(), Failure> {
    // This holder is paused, its lease ends, and it does not know.
    let late = lock(client).await?;
    let late_token = i64::try_from(late.fencing_token().get())?;
    late.close().await?;

    let guard = lock(client).await?;
    let lost = guard.lost();
    let paid = tokio::select! {
        paid = pay(17, i64::try_from(guard.fencing_token().get())?) => paid?,
        () = lost.cancelled() => return Err("the lease is lost".into()),
    };
    println!("{}", if paid { "paid" } else { "not paid" });
    let twice = pay(17, late_token).await?;
    println!("{}", if twice { "paid twice" } else { "late holder refused" });
    guard.close().await?;
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let url = env::var("KEYLATCH_URL").unwrap_or_else(|_| "http://127.0.0.1:7070".to_owned());
    let client = Client::new(&url)?;
    let [file, postgres] =
        env::args().skip(1).collect::<Vec<_>>().try_into().map_err(|_| "usage")?;

    let sqlite = Connection::open(file)?;
    demonstrate(&client, async |id, fence| Ok(sqlite.execute(PAY, [fence, id])? == 1)).await?;

    let (postgres, connection) = tokio_postgres::connect(&postgres, NoTls).await?;
    tokio::spawn(connection);
    demonstrate(&client, async |id, fence| Ok(postgres.execute(PAY, &[&fence, &id]).await? == 1))
        .await
}
