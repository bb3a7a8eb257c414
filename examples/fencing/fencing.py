"""Pays an invoice under a lock, in SQLite and in PostgreSQL. Each database refuses a holder that comes late.

    fencing.py shop.db postgresql://localhost/shop
"""

import sqlite3
import sys

import keylatch
import psycopg


def pay_in_sqlite(database, invoice, fencing_token):
    """Says whether the invoice is paid. It is not where a later holder has been."""
    update = "UPDATE invoice SET state = 'paid', fence = :fence WHERE id = :id AND fence <= :fence"
    return database.execute(update, {"id": invoice, "fence": fencing_token}).rowcount == 1


def pay_in_postgres(database, invoice, fencing_token):
    """The same, by the placeholders of psycopg."""
    update = "UPDATE invoice SET state = 'paid', fence = %(fence)s WHERE id = %(id)s AND fence <= %(fence)s"
    return database.execute(update, {"id": invoice, "fence": fencing_token}).rowcount == 1


def demonstrate(pay, database):
    # This holder is paused, its lease ends, and it does not know.
    with keylatch.lock("invoice-17", wait=30) as late:
        pass
    with keylatch.lock("invoice-17", wait=30) as lease:
        paid = pay(database, 17, lease.fencing_token)
    print("paid" if paid else "not paid")
    print("paid twice" if pay(database, 17, late.fencing_token) else "late holder refused")


file, url = sys.argv[1:]
demonstrate(pay_in_sqlite, sqlite3.connect(file, isolation_level=None))
demonstrate(pay_in_postgres, psycopg.connect(url, autocommit=True))
