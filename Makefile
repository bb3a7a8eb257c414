# The commands of this project. Each installs what it needs on Debian and Ubuntu.

.PHONY: run test campaign mutants lint bench openapi redis-server chromium

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
