"""nginx, Caddy and Traefik with the files of this folder, in front of a keylatch with `behind-a-proxy.toml`.

Each proxy gets a port and a certificate of its own, and nothing else of its file changes. A lock is created through it,
and a hold has to show its events while it is open, and to end with its connection.

    check_proxies.py KEYLATCH      (nginx, caddy, traefik and openssl in PATH)
"""

import contextlib
import http.client
import json
import pathlib
import socket
import ssl
import subprocess
import sys
import tempfile

from processes import free_port, running

HERE = pathlib.Path(__file__).parent
HOST = "locks.example"


def nginx(scratch, port, upstream, certificate, key):
    site = (HERE / "nginx/keylatch.conf").read_text()
    site = site.replace("127.0.0.1:7070", f"127.0.0.1:{upstream}").replace("listen 443", f"listen 127.0.0.1:{port}")
    site = site.replace(f"/etc/nginx/{HOST}.pem", str(certificate)).replace(f"/etc/nginx/{HOST}.key", str(key))
    paths = "".join(f"{kind}_temp_path {scratch}/{kind};" for kind in ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"])
    configuration = scratch / "nginx.conf"
    configuration.write_text(f"pid {scratch}/pid; daemon off; events {{}} http {{ access_log off; {paths}\n{site}}}")
    return ["nginx", "-e", "stderr", "-c", str(configuration)]


def caddy(scratch, port, upstream, certificate, key):
    site = (HERE / "caddy/Caddyfile").read_text().replace("127.0.0.1:7070", f"127.0.0.1:{upstream}")
    site = site.replace(f"\n{HOST} {{", f"\nhttps://{HOST}:{port} {{\n\tbind 127.0.0.1\n\ttls {certificate} {key}")
    configuration = scratch / "Caddyfile"
    configuration.write_text(f"{{\n\tadmin off\n\tstorage file_system {scratch}\n\tauto_https disable_redirects\n}}\n{site}")
    return ["caddy", "run", "--adapter", "caddyfile", "--config", str(configuration)]


def traefik(scratch, port, upstream, certificate, key):
    routes = (HERE / "traefik/keylatch.yaml").read_text().replace("127.0.0.1:7070", f"127.0.0.1:{upstream}")
    routes = routes.replace("      tls:\n        certResolver: letsencrypt", "      tls: {}")
    dynamic = scratch / "keylatch.yaml"
    dynamic.write_text(f"{routes}\ntls:\n  certificates:\n    - {{certFile: {certificate}, keyFile: {key}}}\n")
    general = (HERE / "traefik/traefik.yaml").read_text().replace('":443"', f'"127.0.0.1:{port}"')
    general = general.replace("/etc/traefik/keylatch.yaml", str(dynamic))
    # No certificate is asked for here.
    general = general[: general.index("certificatesResolvers:")] + general[general.index("providers:") :]
    configuration = scratch / "traefik.yaml"
    configuration.write_text(general)
    return ["traefik", "--configfile", str(configuration)]


def connection(port):
    context = ssl._create_unverified_context()
    made = http.client.HTTPSConnection(HOST, port, timeout=15, context=context)
    made.sock = context.wrap_socket(socket.create_connection(("127.0.0.1", port), 15), server_hostname=HOST)
    return made


def ask(port, method, path, body=None):
    client = connection(port)
    client.request(method, path, body and json.dumps(body), {"Authorization": f"Bearer {KEY}"})
    answer = client.getresponse()
    return answer.status, answer.read()


def is_ready(port):
    """A proxy may listen before it knows its certificate and its routes. Its end is an error of the connection."""
    with contextlib.suppress(ssl.SSLError):
        return ask(port, "GET", "/readyz")[0] == 200


def check(name, port):
    while not is_ready(port):
        pass
    status, body = ask(port, "POST", f"/v1/locks/ci%2F{name}", {"ttl_ms": 60000})
    assert status == 201, (status, body)

    client = connection(port)
    client.request("POST", f"/v1/locks/ci%2F{name}-held/hold", "{}", {"Authorization": f"Bearer {KEY}"})
    answer = client.getresponse()
    assert answer.readline() == b"event: acquired\n"
    answer.close()
    client.close()
    # The queue has it as soon as the hold has ended.
    status, body = ask(port, "POST", f"/v1/locks/ci%2F{name}-held", {"wait_ms": 10000})
    assert status == 201, (status, body)
    print(f"{name}: a lock, a hold that showed its events, and its end")


with tempfile.TemporaryDirectory() as folder:
    scratch = pathlib.Path(folder)
    certificate, key = scratch / "cert.pem", scratch / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "1"]
        + ["-subj", f"/CN={HOST}", "-addext", f"subjectAltName=DNS:{HOST}", "-keyout", str(key), "-out", str(certificate)],
        check=True, capture_output=True,
    )
    made = subprocess.run([sys.argv[1], "apikey", "create", "ci"], check=True, capture_output=True, text=True).stdout
    KEY = made.splitlines()[0]
    (scratch / "identities.toml").write_text("\n".join(made.splitlines()[1:]))
    upstream = free_port()
    settings = (HERE / "behind-a-proxy.toml").read_text().replace(":7070", f":{upstream}")
    settings = settings.replace("/etc/keylatch", folder).replace("/var/lib/keylatch", f"{folder}/store")
    (scratch / "keylatch.toml").write_text(settings)
    with running([sys.argv[1], "--config", f"{folder}/keylatch.toml"], upstream, scratch / "keylatch.log"):
        for proxy in [nginx, caddy, traefik]:
            port = free_port()
            arguments = proxy(scratch, port, upstream, certificate, key)
            with running(arguments, port, scratch / f"{proxy.__name__}.log"):
                check(proxy.__name__, port)
