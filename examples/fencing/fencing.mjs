// Pays an invoice under a lock, in SQLite and in PostgreSQL. Each database refuses a holder that comes late.
//
//     node fencing.mjs shop.db postgresql://localhost/shop

import { keylatch } from '@keylatch/client';
import sqlite from 'node-sqlite3-wasm';
import pg from 'pg';

// Changes no row where a later holder has been.
const PAY = "UPDATE invoice SET state = 'paid', fence = $1 WHERE id = $2 AND fence <= $1";

async function demonstrate(pay) {
  // This holder is paused, its lease ends, and it does not know.
  const late = await keylatch.lock('invoice-17', { wait: 30_000 });
  await late.release();
  const lease = await keylatch.lock('invoice-17', { wait: 30_000 });
  try {
    console.log((await pay(17, lease.fencingToken)) === 1 ? 'paid' : 'not paid');
  } finally {
    await lease.release();
  }
  console.log((await pay(17, late.fencingToken)) === 1 ? 'paid twice' : 'late holder refused');
}

const [file, url] = process.argv.slice(2);
const lite = new sqlite.Database(file);
await demonstrate(async (invoice, fencingToken) => lite.run(PAY, [fencingToken, invoice]).changes);
lite.close();

const postgres = new pg.Client(url);
await postgres.connect();
await demonstrate(async (invoice, fencingToken) => (await postgres.query(PAY, [fencingToken, invoice])).rowCount);
await postgres.end();
