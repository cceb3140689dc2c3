"""Models and threads: two models work at once, one model is shared, and nobody holds on to the interpreter."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import tweedie

#: Until something that cannot go on is given up.
PATIENCE = 30


def meet(barrier: threading.Barrier):
    """A sampler that goes on when another is at the same point, and is argmax otherwise."""

    def step(prediction):
        barrier.wait(PATIENCE)
        return prediction.renoise()

    return step


def test_two_models_work_at_once(shakespeare, digits, digit):
    """Each waits in each of its steps for the other: were they one after the other, neither would go on."""
    # A classifier does not ask for its last step.
    how = {"steps": 12}, {"steps": 13}
    want = shakespeare.generate(**how[0], sampler="argmax"), digits.classify(digit, **how[1], sampler="argmax")
    barrier = threading.Barrier(2)
    with ThreadPoolExecutor(2) as pool:
        text = pool.submit(shakespeare.generate, **how[0], sampler=meet(barrier))
        answer = pool.submit(digits.classify, digit, **how[1], sampler=meet(barrier))
        assert (text.result(PATIENCE), answer.result(PATIENCE)) == want


def test_two_of_the_same_weights_work_at_once(digit):
    models = [tweedie.load("embedded:digits", device="cpu") for _ in range(2)]
    barrier = threading.Barrier(2)
    with ThreadPoolExecutor(2) as pool:
        answers = [pool.submit(m.classify, digit, steps=5, sampler=meet(barrier)) for m in models]
        one, two = (a.result(PATIENCE) for a in answers)
    assert one == two


def test_two_samplings_of_ones_own_work_at_once():
    barrier = threading.Barrier(2)

    def denoiser(noisy, t):
        barrier.wait(PATIENCE)
        return np.asarray(noisy)

    with ThreadPoolExecutor(2) as pool:
        drawn = [pool.submit(tweedie.sample, denoiser, 5, 2, 3, steps=6) for _ in range(2)]
        assert (drawn[0].result(PATIENCE) == drawn[1].result(PATIENCE)).all()


def test_a_training_beside_a_model(tmp_path, digits, digit):
    """The training's callback waits for a call of the model, which is made meanwhile."""
    want = digits.classify(digit)
    asked, answered = threading.Event(), threading.Event()

    def callback(event):
        if event["event"] == "step":
            asked.set()
            assert answered.wait(PATIENCE)

    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(
            tweedie.train, "digits", out=tmp_path / "run", settings={"train.epochs": 1}, device="cpu", callback=callback, progress=False
        )
        assert asked.wait(PATIENCE)
        assert digits.classify(digit) == want
        answered.set()
        assert run.result(PATIENCE).complete


def test_two_trainings_at_once(tmp_path):
    barrier = threading.Barrier(2)

    def callback(event):
        if event["event"] in ("begin", "saved"):
            barrier.wait(PATIENCE)

    with ThreadPoolExecutor(2) as pool:
        runs = [
            pool.submit(
                tweedie.train, "digits", out=tmp_path / str(i), settings={"train.epochs": 1}, device="cpu", callback=callback, progress=False
            )
            for i in range(2)
        ]
        paths = [r.result(PATIENCE).path for r in runs]
    one, two = (next(p.glob("checkpoints/step-*/model.safetensors")).read_bytes() for p in paths)
    assert one == two


def test_one_model_from_many_threads(digits, shapes):
    images = [x for x, _ in tweedie.examples("digits", count=64)]
    scenes = [x for x, _ in tweedie.examples("shapes", count=16)]
    want, captions = [digits.classify(x) for x in images], [shapes.caption(x, steps=3) for x in scenes]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(3):
            answers = pool.map(digits.classify, images)
            texts = pool.map(lambda x: shapes.caption(x, steps=3), scenes)
            assert list(answers) == want and list(texts) == captions


def test_traces_of_one_model_from_many_threads(shakespeare):
    want = [shakespeare.generate(steps=4, seed=s) for s in range(6)]
    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(lambda s: shakespeare.trace(steps=4, seed=s).result, range(6))) == want


def test_one_trace_from_two_threads(shakespeare):
    """Who iterates gets every step in order, whoever took it."""
    for _ in range(5):
        trace = shakespeare.trace(steps=8)
        with ThreadPoolExecutor(2) as pool:
            one, two = pool.map(lambda _: [s.step for s in trace], range(2))
        assert one == two == list(range(1, 9))


def progress_during(call) -> tuple[int, int]:
    """How often another thread came to run while `call` went on, and how often while the interpreter is held for as long."""
    counted = 0
    over = threading.Event()

    def count():
        nonlocal counted
        while not over.wait(0.001):
            counted += 1

    counter = threading.Thread(target=count)
    switch = sys.getswitchinterval()
    sys.setswitchinterval(1000)  # nobody lets go but by its own will
    try:
        counter.start()
        begun = time.perf_counter()
        before = counted
        call()
        during, took = counted - before, time.perf_counter() - begun
        before, begun = counted, time.perf_counter()
        while time.perf_counter() - begun < took:
            pass
        held = counted - before
    finally:
        sys.setswitchinterval(switch)
        over.set()
        counter.join()
    return during, held


CALLS = {
    "classify": lambda m: m["digits"].classify([x for x, _ in tweedie.examples("digits", count=300)]),
    "caption": lambda m: m["shapes"].caption([x for x, _ in tweedie.examples("shapes", count=64)]),
    "generate": lambda m: m["shakespeare"].generate(steps=60),
    "score": lambda m: m["shakespeare"].score("to be or not to be " * 20, draws=8),
    "trace": lambda m: m["shakespeare"].trace(steps=60).result,
    "load": lambda m: [tweedie.load("embedded:shakespeare", device="cpu") for _ in range(4)],
}


@pytest.mark.parametrize("what", CALLS)
def test_the_interpreter_is_free_during_work(models, what):
    during, held = progress_during(lambda: CALLS[what](models))
    assert during >= 10 and held <= 2


def test_the_interpreter_is_free_during_a_training(tmp_path):
    during, held = progress_during(
        lambda: tweedie.train("digits", out=tmp_path / "run", settings={"train.epochs": 1}, device="cpu", progress=False)
    )
    assert during >= 10 and held <= 2


@pytest.mark.parametrize("count", [1, 3])
def test_the_number_of_threads_changes_no_bit(digits, digit, count):
    program = f"""
import tweedie
tweedie.set_threads({count})
model = tweedie.load("embedded:digits", device="cpu")
print(model.facts["device_reason"], *model.classify(tweedie.example("digits")).probabilities.tolist())
"""
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=PATIENCE).stdout.split()
    assert int(told[0]) == count
    assert [float(p) for p in told[-10:]] == digits.classify(digit).probabilities.tolist()


def test_threads_are_counted_before_any_work(digits, digit):
    digits.classify(digit)
    with pytest.raises(tweedie.Error, match="before any work"):
        tweedie.set_threads(2)


def test_a_sampler_may_ask_another_model(shakespeare, digits, digit):
    seen = []

    def step(prediction):
        seen.append(digits.classify(digit).label)
        return prediction.renoise()

    assert shakespeare.generate(sampler=step, steps=3) == shakespeare.generate(sampler="argmax", steps=3)
    assert seen == ["4"] * 3
