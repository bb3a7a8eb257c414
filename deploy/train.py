"""Sends a build of keylatch the requests that most clients send, so that it counts what runs how often.

`deploy/optimize.sh` calls it with the path of the build. keylatch serves from memory, from disk and from a Redis, and
guards an upstream. Each answer has to have the status that it should have: a load that is refused would train the wrong
code.
"""

import http.client
import http.server
import json
import pathlib
import sys
import tempfile
import threading

from processes import free_port, running

CONNECTIONS = 32
ROUNDS = 200
# A build that counts is slow, and slower still where another processor is emulated.
LIMIT = 1200
ORDER = json.dumps({"amount": 1999, "currency": "EUR", "items": [{"name": "coffee", "quantity": 2}]})


class Upstream(http.server.BaseHTTPRequestHandler):
    """The service behind the guard."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        body = json.dumps({"id": "9f86d081884c7d65", "amount": 1999, "currency": "EUR"}).encode()
        self.send_response(201)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def exchange(connections, status, requests):
    """Sends one request on each connection, and then reads the answers."""
    for connection, (method, path, headers, body) in zip(connections, requests):
        connection.request(method, path, body, headers)
    answers = []
    for connection in connections[: len(requests)]:
        response = connection.getresponse()
        answers.append(response.read())
        if response.status != status:
            sys.exit(f"{response.status} in place of {status}: {answers[-1].decode()}")
    return answers


def lock(connections, names):
    """Creates, refuses, shows, renews and releases a lock on each connection."""
    paths = [f"/v1/locks/{name}" for name in names]
    create = [("POST", path, {}, '{"owner":"trainer","ttl_ms":30000}') for path in paths]
    tokens = [json.loads(answer)["token"] for answer in exchange(connections, 201, create)]
    exchange(connections, 409, create)
    exchange(connections, 200, [("GET", path, {}, None) for path in paths])
    proofs = [(path, {"Lock-Token": token}) for path, token in zip(paths, tokens)]
    exchange(connections, 200, [("PUT", path, proof, '{"ttl_ms":30000}') for path, proof in proofs])
    exchange(connections, 204, [("DELETE", path, proof, None) for path, proof in proofs])


def order(connections, names):
    """Submits an order twice on each connection: a first run, and a replay."""
    requests = [
        ("POST", "/v1/orders", {"Idempotency-Key": name, "Content-Type": "application/json"}, ORDER)
        for name in names
    ]
    exchange(connections, 201, requests)
    exchange(connections, 201, requests)


def train(build, store, upstream, directory):
    """Runs the load on one store, with many connections and with one."""
    port = free_port()
    config = directory / "keylatch.toml"
    config.write_text(f'[[guard]]\npath = "/v1/orders"\nupstream = "http://127.0.0.1:{upstream}"\n')
    serve = [build, "serve", "--store", store, "--config", config, "--listen", f"127.0.0.1:{port}"]
    with running(serve, port, directory / "log", LIMIT):
        connections = [http.client.HTTPConnection("127.0.0.1", port) for _ in range(CONNECTIONS)]
        for used in (connections, connections[:1]):
            for turn in range(ROUNDS):
                names = [f"training-{len(used):03}-{turn:04}-{one:06}" for one in range(len(used))]
                lock(used, names)
                order(used, names)
        for connection in connections:
            connection.close()


def main():
    build = sys.argv[1]
    upstream = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Upstream)
    threading.Thread(target=upstream.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory() as directory:
        directory = pathlib.Path(directory)
        redis = free_port()
        serve = ["redis-server", "--bind", "127.0.0.1", "--port", str(redis), "--save", ""]
        with running(serve, redis, directory / "redis.log", 3 * LIMIT):
            for store in ("memory:", f"embedded:{directory}/data", f"redis://127.0.0.1:{redis}"):
                train(build, store, upstream.server_port, directory)


main()
