# SPDX-License-Identifier: Apache-2.0
# Every target is one line into a tool; `make` alone prints them. PYTHON names the interpreter to build with.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
GIVEN   = $(filter command line,$(origin PYTHON))
DEV     = build/venv/environment.stamp
TOOL    = @build/venv/bin/python -m scripts

.DEFAULT_GOAL := help
.PHONY: help env trees wheels test test-long lint verify guard rebase image image-check gates report gate-controls demo serve bench-stack clean

# What a target cannot do without is asked for before anything is built.
lacks = $(strip $(foreach name,$(1),$(if $(strip $($(name))),,$(name))))
needs = $(if $(filter $(1),$(MAKECMDGOALS)),$(if $(call lacks,$(2)),$(error `make $(1)` also wants $(call lacks,$(2)): make $(1) $(3))))
$(call needs,rebase,UPSTREAM TO,UPSTREAM=vllm-gaudi TO=v0.27.0rc0)
$(call needs,gates,URL,URL=http://localhost:8000 PROFILE=quick)

help: ## this list
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

env: $(DEV) ## build or repair the virtual environments below build/
	$(TOOL) env $(if $(GIVEN),--python "$(PYTHON)")

trees: $(DEV) ## patched sources as git repositories in build/trees/, to read or to change
	$(TOOL) trees

wheels: $(DEV) ## both wheels, their record and bill of materials in dist/
	$(TOOL) wheels

test: $(DEV) ## every suite that needs no Gaudi, in its environment
	$(TOOL) test

test-long: $(DEV) ## the suites left out of `make test` because they take minutes each
	$(TOOL) test --long

lint: $(DEV) ## formatter, linter, types, patch rules, Dockerfile
	@build/venv/bin/ruff format --check . && build/venv/bin/ruff check . && build/venv/bin/mypy && build/venv/bin/python -m scripts lint && build/venv/bin/hadolint Dockerfile

verify: $(DEV) ## prove that patches, overlay, lock and trees belong together
	$(TOOL) verify

guard: $(DEV) ## drop each patch in turn and see its guard fail: make guard PATCH=name
	$(TOOL) guard --make-env $(PATCH)

rebase: $(DEV) ## rehearse another upstream: make rebase UPSTREAM=vllm-gaudi TO=v0.27.0rc0
	$(TOOL) rebase --upstream "$(UPSTREAM)" --to "$(TO)"

image: $(DEV) ## the container image: make image BASE_IMAGE=…@sha256:…
	$(TOOL) image $(if $(BASE_IMAGE),--base "$(BASE_IMAGE)")

image-check: $(DEV) ## build the Dockerfile over a small local base and let its checks judge good and bad images
	$(TOOL) image --check

gates: $(DEV) ## judge a running server: make gates URL=http://host:8000 PROFILE=node (REFERENCE=, SERVER_ARGS=, SERVER_LOG=)
	$(TOOL) env gates >/dev/null && exec build/gates/bin/python -m gates run --base-url "$(URL)" --profile "$(or $(PROFILE),quick)" \
	  $(if $(REFERENCE),--reference "$(REFERENCE)") $(if $(SERVER_ARGS),--server-args="$(SERVER_ARGS)") $(if $(SERVER_LOG),--server-log "$(SERVER_LOG)")

report: $(DEV) ## the gates' ledger as a page: build/report/report.html
	$(TOOL) env gates >/dev/null && exec build/gates/bin/python -m gates report

gate-controls: $(DEV) ## every gate against every known fault: red on its own, green elsewhere
	$(TOOL) env gates >/dev/null && exec build/gates/bin/python -m gates.controls.matrix

demo: $(DEV) ## from nothing to the rebuilt server on the emulated Gaudi, answering
	$(TOOL) demo

serve: $(DEV) ## the same, left running until Ctrl-C
	$(TOOL) demo --serve

bench-stack: $(DEV) ## laying the stack against git am and quilt push, as ratios of one run
	@build/venv/bin/python -m gates.build.bench_stack

clean: ## remove what was built; the user cache stays
	rm -rf build dist

# Looked at again only when something of it is newer than its stamp, or PYTHON is given: that saves each target a start
# of Python. A package that came or went leaves its mark on the folder.
$(DEV): requirements/dev.txt scripts/environment.py scripts/dev_environment.sh build/venv/bin/python $(wildcard build/venv/lib/python3*/site-packages) $(if $(GIVEN),FORCE)
	@sh scripts/dev_environment.sh "$(PYTHON)"

build/venv/bin/python FORCE: ;
