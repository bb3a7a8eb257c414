#!/bin/sh
# Checks the clients and builds what is published of them, and then plays every scenario with all of them.
# Usage: check.sh KEYLATCH TOOLS RUST, from the top of the repository: the binary, a virtual environment, and the
# folder with the examples of the Rust client.
set -eu
keylatch=$(realpath "$1") tools=$(realpath "$2") examples=$(realpath "$3") built=$(realpath "$2")/built
rm -rf "$built" && mkdir -p "$built"

echo "Python: ruff, mypy, sdist and wheel"
cd clients/python
"$tools/bin/ruff" check --quiet . && "$tools/bin/ruff" format --quiet --check src conformance.py
"$tools/bin/mypy" --no-error-summary --cache-dir "$tools/mypy" src conformance.py misspelt.py
"$tools/bin/python" -m build --no-isolation --outdir "$built/python" . >/dev/null
"$tools/bin/pip" install --quiet --disable-pip-version-check --no-deps --force-reinstall "$built"/python/*.whl

echo "TypeScript: tsc, npm pack"
cd ../typescript
npm ci --silent --no-fund --no-audit
npm pack --silent --pack-destination "$built" >/dev/null
javascript=$tools/javascript/node_modules/.bin
npm install --silent --no-fund --no-audit --prefix "$tools/javascript" deno@2.9.6 bun@1.4.5
mkdir "$built/npm" && npm install --silent --no-fund --no-audit --prefix "$built/npm" "$built"/keylatch-client-*.tgz

echo "Go: gofmt, vet, test, build"
cd ../go
test -z "$(gofmt -l .)"
go vet ./...
GOOS=darwin go vet .
go test ./...
go build -o "$built/go-conformance" ./conformance

cd ../..
npm install --silent --no-fund --no-audit --prefix "$built/npm" pg@8.23.1 node-sqlite3-wasm@0.8.60
python3 clients/fencing.py "$keylatch" "$tools/bin/python" "$built" "$examples/fencing"
"$tools/bin/python" clients/conformance/run.py "$keylatch" \
	"python=$tools/bin/python clients/python/conformance.py" \
	"asyncio=$tools/bin/python clients/python/conformance.py --asyncio" \
	"node=node clients/typescript/conformance.mjs" \
	"deno=$javascript/deno run --quiet --allow-all clients/typescript/conformance.mjs" \
	"bun=$javascript/bun clients/typescript/conformance.mjs" \
	"go=$built/go-conformance" \
	"rust=$examples/conformance" \
	--page "chromium=node clients/typescript/browser.mjs"
