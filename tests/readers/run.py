"""Asks real readers of forms whether they read two requests alike that keylatch takes for one: Python's own, Node's two and
qs, and Go's. `tests/api/lenient_readers.rs` asks the same of the rules of Rack and PHP.

    run.py KEYLATCH NODE_MODULES [PAIRS]
"""

import email.message
import http.client
import http.server
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import threading
import urllib.parse

HERE = pathlib.Path(__file__).parent
FORM = "application/x-www-form-urlencoded"
NAMES = ["a", "b", "A-1", "a_b"] * 3 + ["a[]", "a[0]", "a[b]", "a[][b]", "a[][c]", "a.b", "a b", "", "[]"]
VALUES = ["=", "=1", "=2", "=a b"] * 3 + ["=a;b=1", ""]
PARAMETERS = ["a=1", 'a="1"', "A=1", "b=2", "charset=utf-8", 'charset="UTF-8"'] * 2
PARAMETERS += ['a="1;b=2"', "a=1,b=2", 'a="1', "charset=koi8-r", "a= 1", "a =1", "a=", "a"]


class Upstream(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(201)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


def serve(keylatch, directory, upstream):
    """Starts the service on a free port of this machine, and gives it and its port."""
    config = directory / "keylatch.toml"
    config.write_text(f'listen = "127.0.0.1:0"\n[[guard]]\npath = "/f"\nupstream = "{upstream}"\n')
    environment = {k: v for k, v in os.environ.items() if not k.startswith("KEYLATCH_")}
    log = open(directory / "log", "w+b")
    arguments = [keylatch, "--store", "memory:", "--config", config]
    service = subprocess.Popen(arguments, stdout=log, stderr=log, env=environment)
    while True:
        text = (directory / "log").read_text()
        found = re.search(r'"listening","address":"127.0.0.1:([0-9]+)"', text)
        if found:
            return service, int(found[1])
        if service.poll() is not None:
            sys.exit("the service did not start:\n" + text)


def respelt(fields, chance):
    """The same fields in another order, and with other escapes and separators."""
    left, text = list(fields), ""
    while left:
        field = left.pop(0 if chance.random() < 0.5 else chance.randrange(len(left)))
        for c in field:
            escaped = c in "[]._a" and chance.random() < 0.3
            blank = chance.choice("+ ").replace(" ", "%20")
            text += blank if c == " " else f"%{ord(c):02x}" if escaped else c
        text += (";" if chance.random() < 0.1 else "&") if left else ""
    return text


def pairs(count):
    """Pairs of forms, and pairs of media types."""
    chance = random.Random(7)
    for _ in range(count):
        fields = [chance.choice(NAMES) + chance.choice(VALUES) for _ in range(chance.randint(1, 5))]
        yield "form", respelt(fields, chance), respelt(fields, chance)
        names = [chance.choice(PARAMETERS) for _ in range(chance.randint(0, 3))]
        other = chance.sample(names, len(names)) if chance.random() < 0.5 else [chance.choice(PARAMETERS)]
        yield "type", "; ".join(["text/plain", *names]), "; ".join(["text/plain", *other])


def is_replayed(connection, key, kind, text):
    headers = {"Idempotency-Key": str(key), "Content-Type": FORM if kind == "form" else text}
    connection.request("POST", "/f", text if kind == "form" else "", headers)
    answer = connection.getresponse()
    answer.read()
    assert answer.status in (201, 422), (answer.status, kind, text)
    return answer.headers["Idempotent-Replayed"] == "true"


def python(cases):
    for kind, text in cases:
        if kind == "form":
            read = {}
            for name, value in urllib.parse.parse_qsl(text, keep_blank_values=True):
                read.setdefault(name, []).append(value)
        else:
            message = email.message.Message()
            message["Content-Type"] = text
            read = {name.lower(): value for name, value in message.get_params()}
            if read.get("charset", "").lower() == "utf-8":
                del read["charset"]
        yield read


def program(*command):
    def ask(cases):
        asked = json.dumps(cases).encode()
        return json.loads(subprocess.run(command, input=asked, stdout=subprocess.PIPE, check=True).stdout)

    return ask


def main():
    keylatch, modules = map(os.path.abspath, sys.argv[1:3])
    count = int((sys.argv[3:] or ["2000"])[0])
    upstream = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Upstream)
    threading.Thread(target=upstream.serve_forever, daemon=True).start()
    alike = []
    with tempfile.TemporaryDirectory() as name:
        url = f"http://127.0.0.1:{upstream.server_port}"
        service, port = serve(keylatch, pathlib.Path(name), url)
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port)
            for key, (kind, one, other) in enumerate(pairs(count)):
                assert not is_replayed(connection, key, kind, one)
                if one != other and is_replayed(connection, key, kind, other):
                    alike.append((kind, one, other))
        finally:
            service.terminate()
            service.wait()
    readers = {
        "Python": python,
        "Node": program("node", str(HERE / "read.js"), modules),
        "Go": program("go", "run", str(HERE / "read.go")),
    }
    failed = len(alike) < count / 20
    for reader, ask in readers.items():
        ones, others = (list(ask([(case[0], case[side]) for case in alike])) for side in (1, 2))
        for (kind, one, other), read, reread in zip(alike, ones, others):
            if read != reread:
                failed = True
                print(f"{reader} tells two {kind}s apart that are one request: {one} and {other}")
    print(f"{len(alike)} pairs of {2 * count} are one request")
    sys.exit(failed)


if __name__ == "__main__":
    main()
