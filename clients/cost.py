"""Measures what a client costs: a lock and its release beside the same two requests by the language's HTTP client.

Usage: cost.py KEYLATCH [LANGUAGE…], with httpx and `clients/python/src` on the path, and `clients/typescript/dist`.
Rust is built with `--release`, unless RUST names the example `cost` that is built.
The two come in turn, 3000 times; it prints the ratio of the medians, which is to be 1.3 at most.
"""

import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

CLIENTS = Path(__file__).resolve().parent
PYTHON = """
import httpx, keylatch, time
http, client = httpx.Client(base_url="@"), keylatch.Client("@")
for at in range(3000):
    begun, headers = time.perf_counter(), {"Lock-Token": f"a-token-of-some-length-{at}"}
    http.post("/v1/locks/a", headers=headers, json={"ttl_ms": 30000, "owner": "me"}).json()
    http.delete("/v1/locks/a", headers=headers).raise_for_status()
    middle = time.perf_counter()
    client.lock("a").acquire().release()
    print(middle - begun, time.perf_counter() - middle)
"""
NODE = """
import { Client } from 'CLIENTS/typescript/dist/index.js';
const client = new Client({ url: '@' });
for (let at = 0; at < 3000; at++) {
  const [begun, headers] = [performance.now(), { 'Lock-Token': `a-token-of-some-length-${at}` }];
  const json = { ...headers, 'Content-Type': 'application/json' };
  await (await fetch('@/v1/locks/a', { method: 'POST', headers: json, body: '{"ttl_ms":30000,"owner":"me"}' })).json();
  await fetch('@/v1/locks/a', { method: 'DELETE', headers });
  const middle = performance.now();
  await (await client.lock('a')).release();
  console.log((middle - begun) / 1000, (performance.now() - middle) / 1000);
}
process.exit();
"""
GO = """package main
import ("context"; "fmt"; "io"; "net/http"; "strings"; "time"; keylatch "github.com/keylatch/keylatch/clients/go")
func must(err error) { if err != nil { panic(err) } }
func ask(method, body string, at int) {
	request, _ := http.NewRequest(method, "@/v1/locks/a", strings.NewReader(body))
	request.Header.Set("Lock-Token", fmt.Sprintf("a-token-of-some-length-%d", at))
	request.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultClient.Do(request)
	must(err)
	defer response.Body.Close()
	_, _ = io.ReadAll(response.Body)
}
func main() {
	client, _ := keylatch.New(keylatch.URL("@"))
	for at := 0; at < 3000; at++ {
		begun := time.Now()
		ask("POST", `{"ttl_ms":30000,"owner":"me"}`, at)
		ask("DELETE", "", at)
		middle := time.Now()
		lease, _ := client.Lock(context.Background(), "a")
		must(lease.Close())
		fmt.Println(middle.Sub(begun).Seconds(), time.Since(middle).Seconds())
	}
}
"""
JAVA = "mvn -q -B test-compile >&2 && exec java -cp target/classes:target/test-classes io.keylatch.client.Measure"
RUST = os.environ.get("RUST", "exec cargo run --quiet --release -p keylatch-client --example cost")
binary, *only = sys.argv[1:]
with socket.create_server(("127.0.0.1", 0)) as server:
    address = f"127.0.0.1:{server.getsockname()[1]}"
with tempfile.TemporaryDirectory() as folder:
    module = "module cost\nrequire M v0.0.0\nreplace M => CLIENTS/go\n".replace("M", "github.com/keylatch/keylatch/clients/go")
    for name, text in {"main.py": PYTHON, "main.mjs": NODE, "main.go": GO, "go.mod": module}.items():
        Path(folder, name).write_text(text.replace("CLIENTS", str(CLIENTS)).replace("@", f"http://{address}"))
    commands = {
        "python": [sys.executable, "main.py"],
        "node": ["node", "main.mjs"],
        "go": ["go", "run", "-mod=mod", "."],
        "rust": ["sh", "-c", f"cd {CLIENTS}/.. && {RUST}"],
        "java": ["sh", "-c", f"cd {CLIENTS}/java/keylatch-client && {JAVA}"],
    }
    service = subprocess.Popen([binary, "--store", "memory:", "--listen", address], cwd=folder, stderr=subprocess.DEVNULL)
    try:
        time.sleep(2)
        os.environ["KEYLATCH_URL"] = f"http://{address}"
        for language in only or commands:
            out = subprocess.check_output(commands[language], cwd=folder, text=True)
            hand, mine = (median(map(float, each)) for each in zip(*map(str.split, out.splitlines())))
            print(f"{language}: {mine * 1e6:.0f} us, by hand {hand * 1e6:.0f} us: {mine / hand:.2f}", flush=True)
    finally:
        service.kill()
