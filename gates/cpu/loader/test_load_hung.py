# SPDX-License-Identifier: Apache-2.0
"""A read that never returns and a rank that never comes: the others hear of the one, and the log of the other."""

import threading

import pytest
from rank_model import load
from torch.distributed import FileStore

from vllm_gaudi.loader import agreement, assemble, pool, reader
from vllm_gaudi.loader.agreement import Agreement, Alone, PeerError
from vllm_gaudi.loader.host_memory import HostMemory
from vllm_gaudi.loader.model_loader import MAX_THREADS, LoadSettings


def test_the_others_hear_of_a_failure_while_a_read_hangs(checkpoint, monkeypatch):
    release, heard, calls, real = threading.Event(), [], iter(range(1 << 30)), reader.Files.read
    hung = threading.Event()

    def read(self, file, buffers, offset):
        number = next(calls)
        if number == 0:
            hung.set()
            release.wait(30)
        elif number == 1:
            hung.wait(30)
            raise OSError(5, "Input/output error")
        return real(self, file, buffers, offset)

    class Told(Alone):
        def fail(self, error):
            heard.append((str(error), release.is_set()))

    monkeypatch.setattr(reader.Files, "read", read)
    monkeypatch.setattr(assemble, "HUNG", 0.2)
    monkeypatch.setattr(agreement, "join", lambda patience: Told())
    ended = []

    def run():
        try:
            load(checkpoint(fp8=True), "beam")
        except Exception as error:
            ended.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(25)
    try:
        assert heard, "nobody was told while a read hung"
        assert "Input/output error" in heard[0][0]
        assert not heard[0][1], "told only after the read"
        assert ended, "the load did not end while a read hung"
    finally:
        release.set()
        thread.join()


def test_a_rank_that_does_not_come_is_named_in_the_log(tmp_path, monkeypatch):
    lines = []
    monkeypatch.setattr(agreement, "AWAITED", 0.0)
    monkeypatch.setattr(agreement.logger, "warning", lambda text, *values: lines.append(text % values))
    first, third = (Agreement(FileStore(str(tmp_path / "s"), 3), rank, 3) for rank in (0, 2))

    def fail():
        while not lines:
            pass
        third.fail(ValueError("enough"))

    monkeypatch.setattr(agreement, "LINGER", 0)
    thread = threading.Thread(target=fail)
    thread.start()
    with pytest.raises(PeerError, match="enough"):
        first.meet("plan")
    thread.join()
    assert lines[0].startswith("load awaits rank 1, 2 at stage plan, since ")


@pytest.mark.parametrize("text", ["name \udcff.safetensors", "x" * (9 << 20), "\U0001f600" * (9 << 20)])
def test_any_message_reaches_the_others(tmp_path, monkeypatch, text):
    monkeypatch.setattr(agreement, "LINGER", 0)
    store = FileStore(str(tmp_path / "s"), 2)
    first, second = Agreement(store, 0, 2), Agreement(store, 1, 2)
    first.fail(ValueError(text))
    with pytest.raises(PeerError, match=r"^rank 0: ValueError: ") as told:
        second.meet("plan")
    assert len(str(told.value)) < 10_000
    assert ("cut; " in str(told.value)) == (len(text) > 10_000)


def test_threads_that_did_start_end_when_one_cannot(monkeypatch):
    real, started = threading.Thread.start, []

    def start(self):
        if len(started) == 3:
            raise RuntimeError("can't start new thread")
        started.append(self)
        real(self)

    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(RuntimeError, match="can't start"):
        pool.Pool(8, HostMemory(1 << 20), lambda error: None)
    assert len(started) == 3
    assert not any(thread.is_alive() for thread in started)


def test_threads_have_a_bound():
    assert LoadSettings.of({"threads": MAX_THREADS}).threads == MAX_THREADS
    with pytest.raises(ValueError, match=f"threads is {MAX_THREADS + 1}, must be at most {MAX_THREADS}"):
        LoadSettings.of({"threads": MAX_THREADS + 1})
