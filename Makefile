# Everything runs from .venv, which `make setup` creates from requirements.lock.
PY := .venv/bin/python
# Compiled modules are kept, whatever the shell says: tests start some hundred processes, which else compile all again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup browser demo test lint types lock bench contention mlflow storm picture faults lint-deploy test-kafka test-cluster test-yarn test-kubernetes faults-door faults-hot faults-archive faults-journal faults-cluster faults-maintenance faults-replicas faults-flips faults-index fuzz slow sdks collector simulate simulate-all soak clean

setup: .venv/.ready

.venv/.ready: requirements.lock pyproject.toml scripts/setup
	scripts/setup

browser:
	scripts/setup-browser

demo: setup
	.venv/bin/tracelake demo

test: setup browser lint types
	$(PY) -m pytest -n 3 --dist loadfile --no-loadscope-reorder --ignore tests/kafka --ignore tests/cluster --ignore tests/yarn --ignore tests/kubernetes

# With a broker of Apache Kafka, started by the tests; one after the other, for some of them kill it.
test-kafka: setup
	scripts/setup-kafka
	$(PY) -m pytest -p no:xdist tests/kafka

# A standalone cluster of Spark, and a server of Spark Connect, started by the tests; some of them are killed.
test-cluster: setup
	$(PY) -m pytest -p no:xdist tests/cluster

# One node of YARN, whose containers get a packed environment; needs Maven and a JDK of 17.
test-yarn: setup
	scripts/setup-yarn
	$(PY) -m pytest -p no:xdist tests/yarn

# Spark on a stand-in of the API of Kubernetes, whose pods are processes; what it is told is of the schema of the real one.
test-kubernetes: setup
	$(PY) -m pytest -p no:xdist tests/kubernetes

lint: setup
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .

types: setup
	.venv/bin/mypy

lock: setup
	scripts/lock

# What is in deploy/, as BuildKit, Compose, Kubernetes and systemd read it; needs Go and systemd-analyze.
lint-deploy: setup
	scripts/lint-deploy

KILLS ?= 10
faults: setup
	$(PY) -m tests.faults.kill_ingest --kills $(KILLS) $(if $(SEED),--seed $(SEED))

faults-door: setup
	$(PY) -m tests.faults.kill_door --kills $(KILLS) $(if $(SEED),--seed $(SEED))

faults-hot: setup
	$(PY) -m tests.faults.kill_hot --kills $(KILLS) $(if $(SEED),--seed $(SEED)) $(if $(POSTGRES),--postgres)

faults-archive: setup
	$(PY) -m tests.faults.kill_archive --kills $(KILLS) $(if $(filter file,$(origin MINUTES)),,--minutes $(MINUTES)) $(if $(SEED),--seed $(SEED)) $(if $(LAYOUT),--layout $(LAYOUT)) $(if $(POSTGRES),--postgres)

faults-journal: setup
	scripts/setup-kafka
	$(PY) -m tests.faults.kill_journal $(if $(filter file,$(origin MINUTES)),,--minutes $(MINUTES)) $(if $(SEED),--seed $(SEED))

faults-cluster: setup
	scripts/setup-s3
	$(PY) -m tests.faults.kill_cluster $(if $(filter file,$(origin MINUTES)),,--minutes $(MINUTES)) $(if $(SEED),--seed $(SEED)) $(if $(CONNECT),--connect)

faults-maintenance: setup
	$(PY) -m tests.faults.kill_maintenance --seconds $(SECONDS) $(if $(SEED),--seed $(SEED))

faults-replicas: setup
	$(PY) -m tests.faults.kill_replicas --kills $(KILLS) $(if $(SEED),--seed $(SEED)) $(if $(SPARK),--spark)

faults-flips: setup
	$(PY) -m tests.faults.flip_everything --seconds $(SECONDS) $(if $(SEED),--seed $(SEED))
	$(PY) -m tests.faults.flip_tracking --seconds $(SECONDS) $(if $(SEED),--seed $(SEED))
	$(PY) -m tests.faults.flip_metadata --seconds $(SECONDS) $(if $(SEED),--seed $(SEED))

BUILDS ?= 40
faults-index: setup
	$(PY) -m tests.faults.kill_index --builds $(BUILDS) $(if $(SEED),--seed $(SEED))

N ?= 10000
fuzz: setup
	$(PY) -m tests.faults.fuzz_server --requests $(N) $(if $(filter command line environment,$(origin SECONDS)),--seconds $(SECONDS)) $(if $(SEED),--seed $(SEED))

CONNECTIONS ?= 200
slow: setup
	$(PY) -m tests.faults.slow_clients --connections $(CONNECTIONS)

SECONDS ?= 60
simulate: setup
	$(PY) -m tests.simulation.simulate --seconds $(SECONDS) $(if $(SEED),--seed $(SEED))

simulate-all: setup
	$(PY) -m tests.simulation.simulate --complete

MINUTES ?= 60
soak: setup
	$(PY) -m tests.faults.soak --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

bench: setup
	$(PY) benchmarks/ingest.py

contention: setup
	scripts/setup-bench
	$(PY) benchmarks/commit_contention.py

mlflow: setup
	scripts/setup-mlflow
	$(PY) -m pytest -p no:xdist tests/integration/mlflow_archive.py tests/integration/mlflow_client.py

# Python, JavaScript, Java and Go; writes docs/reference/sdks.md.
sdks: setup
	scripts/setup-sdks
	$(PY) -m pytest -p no:xdist tests/integration/sdks.py

# An OpenTelemetry Collector with the settings of docs/how-to/send-traces.md, through quotas and kills; needs Go.
collector: setup
	scripts/setup-collector
	$(PY) -m pytest -p no:xdist tests/integration/collector.py

RATE ?= 1,50
STALL ?= 10
storm: SECONDS = 30
storm: setup
	$(PY) -m tests.faults.storm --rate $(RATE) --stall $(STALL) --seconds $(SECONDS) $(if $(SEED),--seed $(SEED))

picture: setup browser
	$(PY) scripts/picture.py

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache
