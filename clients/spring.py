"""Runs examples/spring: a flash sale on two instances of a shop, each behind a keylatch, and orders behind the gateway.

    spring.py KEYLATCH SHOP      (SHOP: the example, compiled, with its class path in target/classpath)
"""

import collections
import concurrent.futures
import contextlib
import http.client
import json
import os
import pathlib
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "deploy"))
from processes import free_port, running  # noqa: E402

KEYLATCH, SHOP = (pathlib.Path(argument).resolve() for argument in sys.argv[1:])
BUYERS = [f"user-{number}" for number in range(500)]
JAVA = ["java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m"]


def ask(port, method, path, user, body=None):
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=100)
    headers = {"X-User": user, "Content-Type": "application/json"}
    client.request(method, path, body and json.dumps(body), headers)
    answer = client.getresponse()
    return answer.status, answer.read().decode()


@contextlib.contextmanager
def shops(folder):
    """Two shops on one database, each behind a keylatch of its own on one Redis; gives their ports."""
    redis, apps, gateways = free_port(), [free_port(), free_port()], [free_port(), free_port()]
    with contextlib.ExitStack() as stack:

        def start(command, port, **environment):
            log = folder / f"{port}.log"
            stack.enter_context(running(command, port, log, 300, cwd=folder, env={**os.environ, **environment}))

        start(["redis-server", "--port", str(redis), "--bind", "127.0.0.1", "--save", ""], redis)
        for app, gateway in zip(apps, gateways):
            file = folder / f"{gateway}.toml"
            text = (SHOP / "keylatch.toml").read_text()
            for old, new in {7070: gateway, 6379: redis, 8000: app}.items():
                text = text.replace(f"127.0.0.1:{old}", f"127.0.0.1:{new}")
            file.write_text(text)
            start([KEYLATCH, "--config", file], gateway)
            classes = f"{SHOP}/target/classes:{(SHOP / 'target/classpath').read_text().strip()}"
            command = [*JAVA, "-cp", classes, "shop.Shop", f"--server.port={app}"]
            start(command, app, KEYLATCH_URL=f"http://127.0.0.1:{gateway}")
        yield apps, gateways


def sale(path, ports):
    """Every buyer clicks once at each instance, all at once; gives how often there was which status."""
    with concurrent.futures.ThreadPoolExecutor(2 * len(BUYERS)) as pool:
        clicks = [pool.submit(ask, port, "POST", path, user) for user in BUYERS for port in ports]
        return collections.Counter(click.result()[0] for click in clicks)


def bought(app, item):
    """Who bought it, in order."""
    return [order["BUYER"] for order in json.loads(ask(app, "GET", "/orders", "")[1]) if order["ITEM"] == item]


def main():
    with tempfile.TemporaryDirectory() as folder, shops(pathlib.Path(folder)) as (apps, gateways):
        for item, ports in {"locked": apps, "guarded": gateways}.items():
            answers = sale(f"/sale/{item}", ports)
            buyers = bought(apps[0], item)
            assert len(buyers) == 100 == len(set(buyers)), (item, len(buyers), len(set(buyers)), answers)

        tea = {"item": "tea"}
        for port in apps:
            assert ask(port, "POST", "/orders", "ann", tea)[0] == 201
        with concurrent.futures.ThreadPoolExecutor(50) as pool:
            clicks = set(pool.map(lambda n: ask(gateways[n % 2], "POST", "/orders", "bob", tea), range(50)))
        assert len(clicks) == 1 and clicks.pop()[0] == 201, clicks
        # Two clicks at the controller are two orders. 50 behind the gateway are one.
        assert bought(apps[0], "tea") == ["ann", "ann", "bob"], bought(apps[0], "tea")
    print("A flash sale of 100 pieces on two instances: 500 buyers click twice, 100 get one each, by lock and by guard")


main()
