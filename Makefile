# SPDX-License-Identifier: Apache-2.0
# Every target is one line into a tool; `make` alone prints them. PYTHON names the interpreter to build with.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
DEV     = $(PYTHON) -m scripts.environment dev >/dev/null
TOOL    = @$(DEV) && build/venv/bin/python -m scripts

.DEFAULT_GOAL := help
.PHONY: help env trees wheels test test-long lint verify guard rebase image image-check gates report gate-controls demo serve bench-stack clean

help: ## this list
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

env: ## build or repair the virtual environments below build/
	$(TOOL) env $(if $(filter command line,$(origin PYTHON)),--python $(PYTHON))

trees: ## patched sources as git repositories in build/trees/, to read or to change
	$(TOOL) trees

wheels: ## both wheels, their record and bill of materials in dist/
	$(TOOL) wheels

test: ## every suite that needs no Gaudi, in its environment
	$(TOOL) test

test-long: ## the suites left out of `make test` because they take minutes each
	$(TOOL) test --long

lint: ## formatter, linter, types, patch rules, Dockerfile
	@$(DEV) && build/venv/bin/ruff format --check . && build/venv/bin/ruff check . && build/venv/bin/mypy && build/venv/bin/python -m scripts lint && build/venv/bin/hadolint Dockerfile

verify: ## prove that patches, overlay, lock and trees belong together
	$(TOOL) verify

guard: ## drop each patch in turn and see its guard fail: make guard PATCH=name
	$(TOOL) guard $(PATCH)

rebase: ## rehearse another upstream: make rebase UPSTREAM=vllm-gaudi TO=v0.27.0rc0
	$(TOOL) rebase --upstream $(UPSTREAM) --to $(TO)

image: ## the container image: make image BASE_IMAGE=…@sha256:…
	$(TOOL) image $(if $(BASE_IMAGE),--base $(BASE_IMAGE))

image-check: ## build the Dockerfile over a small local base and let its checks judge good and bad images
	$(TOOL) image --check

gates: ## judge a running server: make gates URL=http://host:8000 PROFILE=node
	$(TOOL) env serve >/dev/null && build/serve/bin/python -m gates run --base-url $(URL) --profile $(or $(PROFILE),quick)

report: ## the gates' ledger as a page: build/report/report.html
	$(TOOL) env serve >/dev/null && build/serve/bin/python -m gates report

gate-controls: ## every gate against every known fault: red on its own, green elsewhere
	$(TOOL) env serve >/dev/null && build/serve/bin/python -m gates.controls.matrix

demo: ## from nothing to the rebuilt server on the emulated Gaudi, answering
	$(TOOL) demo

serve: ## the same, left running until Ctrl-C
	$(TOOL) demo --serve

bench-stack: ## laying the stack against git am and quilt push, as ratios of one run
	@$(DEV) && build/venv/bin/python -m gates.build.bench_stack

clean: ## remove what was built; the user cache stays
	rm -rf build dist
