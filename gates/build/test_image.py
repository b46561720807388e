# SPDX-License-Identifier: Apache-2.0
"""The Dockerfile says what `make image` and `make image-check` rely on; the linter is seen finding faults in it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import image
from scripts.errors import ToolError
from scripts.paths import open_project

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = ROOT / "Dockerfile"
HADOLINT = Path(sys.executable).with_name("hadolint")


def lint(path: Path) -> str:
    if not HADOLINT.exists():
        pytest.skip("hadolint is not in this environment; `make env` installs it")
    return subprocess.run([HADOLINT, "--no-color", path], capture_output=True, text=True, check=False).stdout


def instructions() -> list[tuple[str, str]]:
    """Instruction and its words, continuation lines joined, comments dropped."""
    text = re.sub(r"^\s*#.*\n", "", DOCKERFILE.read_text(), flags=re.M).replace("\\\n", " ")
    return [tuple(line.split(None, 1)) for line in text.splitlines() if line.strip()]  # type: ignore[misc]


def test_dockerfile_passes_the_linter() -> None:
    assert lint(DOCKERFILE) == ""


@pytest.mark.parametrize(
    ("good", "bad", "rule"),
    [
        ("USER 10001", "USER root", "DL3002"),
        ("WORKDIR /home/vllm", "RUN cd /home/vllm", "DL3003"),
        ('SHELL ["/bin/bash", "-euo", "pipefail", "-c"]', "RUN ls | wc -l", "DL4006"),
        ("EXPOSE 8000", "EXPOSE 80000", "DL3011"),
        ('ENTRYPOINT ["vllm", "serve"]', "ENTRYPOINT vllm serve", "DL3025"),
    ],
)
def test_control_the_linter_finds_known_faults(tmp_path: Path, good: str, bad: str, rule: str) -> None:
    text = DOCKERFILE.read_text()
    assert good in text
    spoiled = tmp_path / "Dockerfile"
    spoiled.write_text(text.replace(good, bad))
    assert rule in lint(spoiled)


def test_what_is_copied_is_in_the_build_context() -> None:
    """.dockerignore leaves everything out but what it names."""
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    for name, words in instructions():
        if name == "COPY" and "--from" not in words and not words.startswith(". "):
            for source in words.split()[:-1]:
                assert source.split("/")[0] in kept, f"COPY {source} is ignored by .dockerignore"
    for needed in ("Makefile", "upstream.lock", "patches", "overlay", "scripts", "requirements", "dist"):
        assert needed in kept, f"`make wheels` inside the image needs {needed}"


def test_build_arguments_are_declared_and_reach_the_labels() -> None:
    told = image.build_arguments(open_project(None, []))[1::2]
    declared = {words.split("=")[0] for name, words in instructions() if name == "ARG"}
    labels = next(words for name, words in instructions() if name == "LABEL")
    for argument in told:
        name, _, value = argument.partition("=")
        assert value
        assert name in declared
        assert f"${{{name}}}" in labels
    assert {"BASE_IMAGE", "WHEELS"} <= declared


def test_image_runs_as_a_user_with_a_health_check_and_constraints() -> None:
    last = dict(instructions())
    assert last["USER"] != "root"
    assert "/health" in last["HEALTHCHECK"]
    assert "PIP_CONSTRAINT=/opt/frontier/constraints.txt" in last["ENV"]
    installs = [
        words for name, words in instructions() if name == "RUN" for words in words.split("&&") if " install " in words
    ]
    assert len(installs) == 2
    assert all("--no-deps" in words for words in installs), "no step may resolve dependencies"


def test_without_a_builder_the_next_step_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ToolError, match="no container builder") as caught:
        image.builder()
    assert "install docker, podman or buildah" in caught.value.action
    fake = tmp_path / "podman"
    fake.write_text("#!/bin/sh\n")
    fake.chmod(0o755)
    assert image.builder()[0] == "podman"
