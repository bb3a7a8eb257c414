"""Sends a build of keylatch what most clients send, so that it counts what runs how often (`optimize.sh`).

It serves from memory, from disk and from a Redis, and guards the shop that is built into a second one.
"""

import http.client
import pathlib
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

from processes import free_port, running

PORT, SHOP, REDIS = free_port(), free_port(), free_port()
LIMIT = 3600  # In seconds: a build that counts is slow, and slower still where another processor is emulated.
LOCK = '{"owner":"trainer","ttl_ms":30000}'
ORDER = '{"amount":1999,"currency":"EUR","items":[{"name":"coffee","quantity":2}]}'


def send(number):
    """Sends 200 rounds of requests on one connection. A refused load would train the wrong code, so it fails."""
    connection = http.client.HTTPConnection("127.0.0.1", PORT)
    for name in [f"training-{number:03}-{turn:07}" for turn in range(200)]:
        lock, token = f"/v1/locks/{name}", {"Lock-Token": name}
        order = "/v1/orders", ORDER, {"Idempotency-Key": name, "Content-Type": "application/json"}
        for status, *request in [
            (201, "POST", lock, LOCK, token),
            (409, "POST", lock, LOCK),
            (200, "GET", lock),
            (200, "PUT", lock, '{"ttl_ms":30000}', token),
            (204, "DELETE", lock, None, token),
            (201, "POST", *order),
            (201, "POST", *order),
        ]:
            connection.request(*request)
            response = connection.getresponse()
            body = response.read()
            assert response.status == status, (request, response.status, body)


with tempfile.TemporaryDirectory() as name:
    directory = pathlib.Path(name)
    config = directory / "keylatch.toml"
    config.write_text(f'[[guard]]\npath = "/v1/orders"\nupstream = "http://127.0.0.1:{SHOP}"\n')
    redis = ["redis-server", "--bind", "127.0.0.1", "--port", str(REDIS), "--save", ""]
    shop = [sys.argv[1], "serve", "--listen", f"127.0.0.1:{SHOP}", "--store", "memory:"]
    with running(redis, REDIS, directory / "redis.log", LIMIT), running(shop, SHOP, directory / "shop.log", LIMIT):
        for store in "memory:", f"embedded:{name}/data", f"redis://127.0.0.1:{REDIS}":
            guard = [*shop[:3], f"127.0.0.1:{PORT}", "--store", store, "--config", config]
            with running(guard, PORT, directory / "log", LIMIT), ThreadPoolExecutor(32) as clients:
                list(clients.map(send, range(32)))
                send(32)
