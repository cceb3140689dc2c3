"""A program as a user types it. mypy and pyright read it; nothing runs it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Optional, Union, assert_type

import numpy as np
import numpy.typing as npt

import tweedie


class Eager(tweedie.Sampler):
    """A sampler of one's own."""

    def step(self, prediction: tweedie.Prediction) -> tweedie.Update:
        assert_type(prediction.logits, npt.NDArray[np.float32])
        assert_type(prediction.t, int)
        return prediction.renoise(take="argmax")


def answers(model: tweedie.Model, array: npt.NDArray[np.uint8], paths: list[Path]) -> None:
    assert_type(model.classify("a.png"), tweedie.Answer)
    assert_type(model.classify(Path("a.png"), steps=3, guidance=1.5, sampler=Eager()), tweedie.Answer)
    assert_type(model.classify(b"..."), tweedie.Answer)
    assert_type(model.classify([array, "a.png"], seed=1), list[tweedie.Answer])
    assert_type(model.classify(paths), list[tweedie.Answer])
    assert_type(model.classify(p for p in paths), list[tweedie.Answer])
    # An array is one image or many; who knows which says so.
    one: tweedie.Answer = model.classify(array)
    assert_type(one.top(3), list[tuple[str, float]])
    assert_type(one.probabilities, npt.NDArray[np.float64])
    several: list[tweedie.Answer] = model.classify(np.stack([array, array]))
    assert_type(several[0].label, str)


def texts(model: tweedie.Model, array: npt.NDArray[np.uint8]) -> None:
    assert_type(model.caption("a.png", infill="a __ dog", candidates=4, rank="consensus"), tweedie.Text)
    assert_type(model.caption(["a.png"]), list[tweedie.Text])
    assert_type(model.generate(prompt="To be", steps=8), tweedie.Text)
    assert_type(model.generate(3, length=9), list[tweedie.Text])
    text = model.generate()
    assert_type(text.tokens, npt.NDArray[np.uint32])
    assert_type(text.nats, Optional[tuple[float, float]])
    assert_type(text.candidates, list[tweedie.Text])
    scores = model.score(["a", "b"], [array, array])
    assert_type(scores.bits, npt.NDArray[np.float64])
    assert_type(scores.bits_per_token, float)
    assert_type(model.encode("a"), npt.NDArray[np.uint32])
    assert_type(model.decode([1, 2]), str)
    assert_type(model.decode(model.encode("a")), str)


def trace(model: tweedie.Model) -> None:
    steps = model.trace("a.png", steps=4)
    assert_type(iter(steps), Iterator[tweedie.Step])
    for step in steps:
        assert_type(step.tokens, npt.NDArray[np.int64])
        assert_type(step.probabilities, Optional[npt.NDArray[np.float64]])
    assert_type(steps.result, Union[tweedie.Answer, tweedie.Text])
    steps.pin(0, "a")
    assert_type(steps.html(), str)
    steps.save(Path("page.html"))


def parts() -> None:
    def oracle(noisy: tweedie.Tensor, t: int) -> npt.NDArray[np.float32]:
        return np.asarray(noisy, dtype=np.float32)

    schedule = tweedie.Schedule(lambda u: 1 - u, steps=100)
    assert_type(schedule.alpha_bar, npt.NDArray[np.float64])
    assert_type(tweedie.sample(oracle, 3, schedule=schedule, sampler=Eager()), npt.NDArray[np.uint32])
    assert_type(tweedie.examples("digits", count=1)[0][0], npt.NDArray[np.uint8])


def training(pairs: list[tuple[npt.NDArray[np.uint8], int]]) -> tweedie.Run:
    def watch(event: dict[str, Any]) -> bool:
        return bool(event["event"] != "eval")

    run = tweedie.train("digits", pairs, settings={"train.epochs": 2}, callback=watch, out=Path("run"))
    assert_type(run.path, Path)
    assert_type(run.best, Optional[float])
    assert_type(run.complete, Optional[bool])
    assert_type(run.notes, list[str])
    assert_type(run.model(device="cpu"), tweedie.Model)
    assert_type(tweedie.load(run), tweedie.Model)
    tweedie.train("digits", callback=print)
    return run.resume(pairs)


def errors() -> None:
    try:
        tweedie.load("embedded:digits")
    except tweedie.Error as e:
        assert_type(e, tweedie.Error)
