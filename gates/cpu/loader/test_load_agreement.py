# SPDX-License-Identifier: Apache-2.0
"""Any rank's failure ends the load on every rank, with its message: real processes, each store, each stage."""

import os
import signal
import time
from datetime import timedelta

import pytest
from processes import PROCESSES
from torch.distributed import FileStore, TCPStore

from vllm_gaudi.loader import agreement, pulse
from vllm_gaudi.loader.agreement import Agreement, Alone, PeerError

RANKS = 3


def _load(where, rank, what, says):
    """A load in small: plan, read, done. `what` is (rank, stage, kind of fault)."""
    if isinstance(where, int):
        store = TCPStore("127.0.0.1", where, RANKS, rank == 0, timedelta(seconds=60))
    else:
        store = FileStore(where, RANKS)
    load = Agreement(store, rank, RANKS)
    try:
        for stage in ("plan", "read"):
            if what == (rank, stage, "raise"):
                raise ValueError(f"tensor a is bad in {stage}")
            if what == (rank, stage, "kill"):
                time.sleep(0.3)
                os.kill(os.getpid(), signal.SIGKILL)
            load.meet(stage)
        says.put((rank, "served"))
        time.sleep(2.0)  # a server stays
    except Exception as error:
        load.fail(error)
        says.put((rank, f"{type(error).__name__}: {error}"))


def ranks(where, what):
    """What each rank that lived said."""
    says = PROCESSES.Queue()
    processes = [PROCESSES.Process(target=_load, args=(where, rank, what, says)) for rank in range(RANKS)]
    for process in processes:
        process.start()
    heard = {}
    try:
        for _ in range(RANKS - (what is not None and what[2] == "kill")):
            rank, words = says.get(timeout=90)
            heard[rank] = words
    finally:
        for process in processes:
            process.kill()
            process.join()
    return heard


@pytest.fixture
def place(request, tmp_path):
    if request.param == "file":
        return str(tmp_path / "store")
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.mark.parametrize("place", ["tcp"], indirect=True)
def test_ranks_that_all_load_serve(place):
    assert ranks(place, None) == dict.fromkeys(range(RANKS), "served")


@pytest.mark.parametrize(
    ("place", "what"),
    [
        ("tcp", (1, "plan", "raise")),
        pytest.param("file", (0, "read", "raise"), marks=pytest.mark.long),
        pytest.param("tcp", (0, "plan", "raise"), marks=pytest.mark.long),
    ],
    indirect=["place"],
)
def test_a_failure_is_heard_on_every_rank(place, what):
    heard = ranks(place, what)
    message = f"tensor a is bad in {what[1]}"
    assert heard.pop(what[0]) == f"ValueError: {message}"
    assert set(heard.values()) == {f"PeerError: rank {what[0]}: ValueError: {message}"}
    assert len(heard) == RANKS - 1


@pytest.mark.parametrize(
    ("place", "what"),
    [
        ("file", (1, "read", "kill")),
        pytest.param("tcp", (2, "plan", "kill"), marks=pytest.mark.long),
        pytest.param("tcp", (0, "read", "kill"), marks=pytest.mark.long),
    ],
    indirect=["place"],
)
def test_a_killed_rank_is_noticed(place, what):
    heard = ranks(place, what)
    assert len(heard) == RANKS - 1
    # With rank 0 the TCP store dies too.
    expected = (f"rank {what[0]} (process", "the store that the ranks share is gone", "PeerError: rank")
    assert all(words.startswith("PeerError") and any(e in words for e in expected) for words in heard.values()), heard


def test_the_first_failure_is_the_one_told(tmp_path, monkeypatch):
    monkeypatch.setattr(agreement, "LINGER", 0)
    store = FileStore(str(tmp_path / "s"), 2)
    first, second = Agreement(store, 0, 2), Agreement(store, 1, 2)
    first.fail(ValueError("one"))
    second.fail(PeerError("because of one"))
    with pytest.raises(PeerError, match=r"^rank 0: ValueError: one$"):
        second.meet("plan")


def test_one_rank_needs_nobody():
    Alone().meet("plan")
    Alone().check()


def test_progress_names_the_slowest_rank():
    from vllm_gaudi.loader.model_loader import progress

    line = progress([(3 * 10**9, 4 * 10**9), (10**9, 4 * 10**9)], 2.0)
    assert line == "4.0 of 8.0 GB on 2 ranks, 2.00 GB/s; slowest is rank 1 at 25 %, about 6 s left"
    assert "nothing read" in progress([(0, 5)], 1.0)
    assert progress([None, (10**9, 4 * 10**9)], 1.0).startswith("1.0 of 4.0 GB on 1 of 2 ranks, ")


def test_a_silent_rank_is_named_and_then_ends_the_load(tmp_path):
    """One that is stopped, or dies where its process cannot be looked at; one that counts is left alone."""
    store, now, lines = FileStore(str(tmp_path / "s"), 3), [0.0], []
    first, second = (pulse.Pulse(store, rank, 3, 100.0, lambda: now[0]) for rank in (0, 1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pulse.logger, "warning", lambda text, *values: lines.append(text % values))
        while not (late := first.late((1, 2))):
            assert not second.late([0])
            now[0] += 5.0
            assert now[0] < 1000
    assert (late, now[0]) == ("rank 2 (silent for 100 s)", 100.0)
    assert lines[0] == "loading: rank 0 waits for rank 2 (silent for 30 s); the load ends after 100 s"
    assert len(lines) == 3
    patient = pulse.Pulse(store, 0, 3, 0, lambda: now[0])
    now[0] += 10_000
    assert not patient.late((1, 2)), "0 is any time"


def test_agreement_ends_when_a_rank_is_silent(tmp_path, monkeypatch):
    monkeypatch.setattr(pulse, "BEAT", 0.0)
    monkeypatch.setattr(pulse, "NAMED", 0.0)
    store = FileStore(str(tmp_path / "s"), 2)
    first, _ = Agreement(store, 0, 2, 0.3), Agreement(store, 1, 2)
    with pytest.raises(PeerError, match=r"waited in vain for rank 1 \(silent for 0 s\): stopped, or lost"):
        first.meet("plan")
