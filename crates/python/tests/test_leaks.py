"""What a call took is given back. With TWEEDIE_LONG_TESTS=1 each call is made twenty times as often, 10,000 times to classify."""

from __future__ import annotations

import gc
import os
import threading

import numpy as np
import pytest

import tweedie
from wishes import LONG

PAGE = os.sysconf("SC_PAGE_SIZE")


def resident() -> int:
    """Bytes of this process in memory."""
    gc.collect()
    with open("/proc/self/statm", encoding="ascii") as f:
        return int(f.read().split()[1]) * PAGE


def growth(call, count: int) -> int:
    """By how many bytes a call more makes the process grow, once it has been made often. The least of three stretches counts: what
    leaks, leaks in each."""
    for _ in range(max(count // 3, 5)):
        call()
    grown = []
    for _ in range(3):
        before = resident()
        for _ in range(count):
            call()
        grown.append((resident() - before) // count)
    return min(grown)


def raising(call, kind):
    def again():
        with pytest.raises(kind):
            call()

    return again


def fail(*_):
    raise KeyError("mine")


DIGIT, SCENE = tweedie.example("digits"), tweedie.example("shapes")

#: A call, and how often it is made.
CALLS = {
    "classify": (lambda m: m["digits"].classify(DIGIT, steps=2), 500),
    "classify many": (lambda m: m["digits"].classify([DIGIT] * 32, steps=1), 20),
    "floats": (lambda m: m["digits"].classify(DIGIT / 255, steps=1), 400),
    "settings": (lambda m: m["digits"].classify(DIGIT, steps=1, seed=int(np.random.default_rng().integers(1 << 40))), 200),
    "caption": (lambda m: m["shapes"].caption(SCENE, steps=2), 300),
    "candidates": (lambda m: m["shapes"].caption(SCENE, candidates=2, steps=1, draws=1), 4),
    "generate": (lambda m: m["shakespeare"].generate(steps=1), 60),
    "score": (lambda m: m["shapes"].score("a red circle", SCENE, draws=1), 8),
    "trace": (lambda m: m["shapes"].trace(SCENE, steps=2).result, 80),
    "trace that is dropped": (lambda m: next(iter(m["shapes"].trace(SCENE, steps=50))), 80),
    "trace that never begins": (lambda m: m["shapes"].trace(SCENE, steps=50), 80),
    "page": (lambda m: m["digits"].trace(DIGIT, steps=2).html(), 60),
    "tensor": (lambda m: m["shapes"]._prepared(SCENE), 500),
    "buffer": (lambda m: np.asarray(m["shapes"]._prepared(SCENE)), 500),
    "DLPack": (lambda m: np.from_dlpack(m["shapes"]._prepared(SCENE)), 500),
    "DLPack that nobody takes": (lambda m: m["shapes"]._prepared(SCENE).__dlpack__(), 500),
    "memoryview": (lambda m: memoryview(m["shapes"]._prepared(SCENE)).tobytes(), 500),
    "logits": (lambda m: np.asarray(m["digits"].logits(DIGIT, steps=1)), 300),
    "wrong image": (lambda m: raising(lambda: m["digits"].classify(np.zeros(3)), ValueError)(), 500),
    "wrong file": (lambda m: raising(lambda: m["digits"].classify("nowhere"), FileNotFoundError)(), 300),
    "wrong setting": (lambda m: raising(lambda: m["digits"].classify(DIGIT, steps=0), ValueError)(), 300),
    "sampler": (lambda m: m["digits"].classify(DIGIT, steps=2, sampler=lambda p: p.renoise()), 150),
    "sampler that raises": (lambda m: raising(lambda: m["digits"].classify(DIGIT, sampler=fail), KeyError)(), 150),
    "denoiser": (lambda m: tweedie.sample(lambda noisy, t: np.asarray(noisy), 200, 20, 5, steps=2), 100),
    "denoiser that raises": (lambda m: raising(lambda: tweedie.sample(fail, 200, 20, 5), KeyError)(), 100),
    "schedule": (lambda m: tweedie.Schedule(lambda u: 1 - u, 100), 300),
    "schedule that raises": (lambda m: raising(lambda: tweedie.Schedule(fail, 100), KeyError)(), 300),
    "examples": (lambda m: tweedie.examples("digits", count=50), 20),
    "settings of a recipe": (lambda m: tweedie.settings("digits"), 15),
}


@pytest.mark.parametrize("what", CALLS)
def test_calls_give_back_what_they_took(models, what):
    call, count = CALLS[what]
    count *= 20 if LONG else 1
    # An image alone has 3,072 bytes, its tensor 12,288; the smallest array or exception some hundred.
    limit = max(256, 256 * 1024 // count)
    assert growth(lambda: call(models), count) <= limit


def test_what_is_kept_is_seen(digits):
    """The measure itself: traces that somebody keeps take memory."""
    kept = []
    assert growth(lambda: kept.append(digits.trace(DIGIT, steps=50).steps), 20) > 5_000


def test_models_and_their_threads_are_given_back():
    def load():
        tweedie.load("embedded:digits", device="cpu").classify(DIGIT)

    def threads() -> int:
        return len(os.listdir("/proc/self/task"))

    load()
    before = threads()
    # The weights are 1.3 MB.
    assert growth(load, 15) < 100_000
    for _ in range(100):
        if threads() <= before:
            break
        threading.Event().wait(0.02)
    assert threads() <= before


def test_objects_handed_over_are_let_go(digits, tmp_path):
    import weakref

    class Mine(tweedie.Sampler):
        def step(self, prediction):
            return prediction.renoise()

    class Data(list):
        pass

    def callback(event):
        pass

    mine, data = Mine(), Data((x, int(y)) for x, y in tweedie.examples("digits", "train", 60))
    seen = [weakref.ref(x) for x in (mine, data, callback)]
    digits.classify(DIGIT, sampler=mine, steps=2)
    tweedie.train(
        "digits", data, out=tmp_path / "run", settings={"train.epochs": 1}, device="cpu", progress=False, callback=callback
    )
    del mine, data, callback
    for _ in range(100):
        gc.collect()
        if not any(ref() for ref in seen):
            break
        threading.Event().wait(0.02)
    assert [ref() for ref in seen] == [None] * 3
