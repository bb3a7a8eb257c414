"""Orders that are taken once, in FastAPI, behind the gateway of keylatch.

    pip install fastapi uvicorn
    uvicorn app:app --port 8000
    keylatch --config keylatch.toml
    curl -i localhost:7070/orders -H 'Idempotency-Key: order-17' -H 'Content-Type: application/json' -d '{"item":"tea"}'

Sent twice, the same request makes one order, and reads the same answer. The app does nothing for it, but for one thing:
it keeps the fencing token of the run, so that a run that another one has overtaken changes nothing.
"""

import os
import sqlite3
from contextlib import closing
from typing import Annotated

from fastapi import FastAPI, Header, HTTPException
from pydantic import BaseModel

DATABASE = os.environ.get("DATABASE", "orders.sqlite")

with closing(sqlite3.connect(DATABASE)) as database:
    database.execute("CREATE TABLE IF NOT EXISTS orders (key TEXT PRIMARY KEY, fence INTEGER NOT NULL, item TEXT NOT NULL)")

app = FastAPI()


class Order(BaseModel):
    item: str


@app.post("/orders", status_code=201)
def place(
    order: Order,
    idempotency_key: Annotated[str, Header()],
    idempotency_fence: Annotated[int, Header()],
) -> dict:
    with closing(sqlite3.connect(DATABASE)) as database, database:
        changed = database.execute(
            "INSERT INTO orders VALUES (?, ?, ?) ON CONFLICT (key) DO UPDATE SET fence = excluded.fence"
            " WHERE fence < excluded.fence",
            (idempotency_key, idempotency_fence, order.item),
        ).rowcount
    if not changed:
        raise HTTPException(409, "a later run has taken this order")
    return {"key": idempotency_key, "item": order.item}


@app.get("/orders")
def orders() -> list[str]:
    with closing(sqlite3.connect(DATABASE)) as database:
        return [item for (item,) in database.execute("SELECT item FROM orders")]
