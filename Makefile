# Two commands are enough on a fresh machine (Python >= 3.11 and make): `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
JOBS ?= 2
EXTRAS := audit backup clock console otlp proxy spans tls dev
LOCK := uv pip compile pyproject.toml -c constraints.txt --generate-hashes --universal --python-version 3.11 \
    --no-header --no-emit-index-url --no-emit-find-links --quiet
BUILT_BY := import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"], sep="\n")
BENCH ?= send
TESTS ?= tests
EXECUTIONS ?= 1000000
SECONDS ?= 600
# What compose.yaml mounts, each of its own making; readable in there by uid 10001, and out here behind
# a closed directory. Each is whole or not there: an empty one would be taken for made.
SECRETS := deploy/secrets/raft deploy/secrets/ha deploy/secrets/peers

TOXIPROXY := github.com/Shopify/toxiproxy/v2/cmd/server@v2.12.0

PROMTOOL := github.com/prometheus/prometheus/cmd/promtool@v0.316.0

HELM := helm.sh/helm/v3/cmd/helm@v3.22.0

.PHONY: setup docs demo test interop jitter quick check checked format bench facts lock sbom release fuzz hostile campaign toxiproxy promtool helm secrets clean

setup: $(VENV)/.ready $(VENV)/.compiled

$(VENV)/.ready: pyproject.toml requirements.lock requirements-build.lock
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "keelmq needs Python 3.11 or newer: set PYTHON=/path/to/python3.11")'
	@echo "setting up $(VENV): about a minute, once"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	@$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements-build.lock
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps -e .
	@touch $@

# Where there is no C compiler it says so, and everything takes the Python path.
$(VENV)/.compiled: $(VENV)/.ready $(wildcard runtime/native/*)
	-@$(BIN)/python runtime/native/build.py
	@touch $@

demo: setup
	$(BIN)/keelmq demo

# Four workers wait for real processes. Two more than there are cores compute: many of these tests wait, too.
test: setup
	$(BIN)/pytest -n $$(($(JOBS) + 5)) --at-once $$(($(JOBS) + 2))

# With what make test leaves out: what the real RocketMQ alone does, further cases, and what promtool and helm say.
# Notes how it ended in docs/compatibility.md.
interop: setup
	-@$(MAKE) --no-print-directory promtool helm
	KEELMQ_INTEROP=all $(BIN)/pytest -n $(JOBS) -m "interop or more" --junitxml=.interop.xml; ended=$$?; \
	    $(BIN)/python -m tests.interop.compatibility --junit .interop.xml && exit $$ended

# What waits in real time, on a machine made to stand still now and then. KEELMQ_JITTER=17: the same again.
jitter: setup
	$(BIN)/pytest -p tests.jitter -n $$(($(JOBS) + 4)) --at-once $$(($(JOBS) + 2)) \
	    -m "not sim and not live and not interop and not spark and not slow" $(TESTS)

quick: setup
	$(BIN)/pytest -n $(JOBS) -m quick

# The compiled path with each access to memory checked (gcc's or clang's sanitizers).
checked: setup
	$(BIN)/python -m tests.checked_native

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python bench/facts.py

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: setup
	$(BIN)/python bench/$(BENCH).py --json bench/out-$(BENCH).json

facts: setup
	$(BIN)/python bench/facts.py

# After a change of pyproject.toml or constraints.txt: every package with the hashes of its files.
lock:
	$(LOCK) $(foreach extra,$(EXTRAS),--extra $(extra)) -o requirements.lock
	$(LOCK) --extra tls -o requirements-server.lock
	$(LOCK) --extra audit --extra tls -o requirements-audit.lock
	$(LOCK) --extra otlp --extra tls -o requirements-otlp.lock
	$(PYTHON) -c '$(BUILT_BY)' | $(subst pyproject.toml,-,$(LOCK)) -o requirements-build.lock

# What is installed, as CycloneDX.
sbom: setup
	$(BIN)/python deploy/sbom.py > sbom.json

# sdist, wheel, SBOM, changelog section and checksums; DATE=YYYY-MM-DD dates the section, URL=https://... is
# where the repository lies.
release: setup
	rm -rf dist
	KEELMQ_URL=$(URL) $(BIN)/python deploy/release.py $(if $(DATE),--date $(DATE))

# Every decoder, so many executions; goes on where a run that was stopped left off (.fuzz).
fuzz: setup
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-build-isolation -c constraints.txt -e '.[fuzz]'
	$(BIN)/python -m tests.fuzz --executions $(EXECUTIONS) --json .fuzz/result.json

# A live group beside a hostile client.
hostile: setup
	$(BIN)/python -m tests.fuzz.hostile --seconds $(SECONDS) --json hostile.json

# Every fault on real processes as often as its plan asks, beside RocketMQ; goes on where it was interrupted.
campaign: setup toxiproxy
	$(BIN)/keelmq drill campaign build/campaign --page docs/results/live.md

# The real proxy for faults on links; without it drills and tests use the relay (chaos/links). Not optimized:
# Go compiles it, and the drivers of tests/interop beside it, in 40 s of CPU instead of 63.
toxiproxy: .tools/toxiproxy-server

.tools/toxiproxy-server:
	@mkdir -p .tools
	@CGO_ENABLED=0 GOBIN=$(CURDIR)/.tools/gobin go install -gcflags='all=-N -l' $(TOXIPROXY)
	@mv .tools/gobin/server $@ && rmdir .tools/gobin

# Plays the alert rules; for make interop. Minutes to compile, once.
promtool: .tools/promtool

.tools/promtool:
	@mkdir -p .tools
	@GOBIN=$(CURDIR)/.tools go install $(PROMTOOL)

# Renders deploy/helm/keelmq; for make interop. Minutes to compile, once.
helm: .tools/helm

.tools/helm:
	@mkdir -p .tools
	@GOBIN=$(CURDIR)/.tools go install $(HELM)

# The pages as a site in build/site; a link that leads nowhere fails it.
docs: setup
	$(BIN)/mkdocs build --strict

secrets: $(SECRETS)

deploy/secrets/%:
	@mkdir -p -m 700 deploy/secrets
	@$(PYTHON) -c 'import secrets; print(secrets.token_hex(32))' > $@.new
	@chmod 444 $@.new && mv $@.new $@

deploy/secrets/peers:
	@mkdir -p -m 700 deploy/secrets
	@$(PYTHON) -c 'import json, secrets; print(json.dumps({"accessKey": "peers", "secretKey": secrets.token_hex(32)}))' > $@.new
	@chmod 444 $@.new && mv $@.new $@

clean:
	rm -rf runtime/native/*.so
	rm -rf $(VENV) demo build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
