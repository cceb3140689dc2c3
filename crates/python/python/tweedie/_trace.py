"""A sampling, step by step."""

from __future__ import annotations

import base64
import html
import json
import os
import threading
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Optional, Union

import numpy as np
import numpy.typing as npt

from tweedie import _asked, _tweedie
from tweedie._results import Answer, Floats, Text

if TYPE_CHECKING:
    from tweedie._model import Model

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True, repr=False, eq=False)
class Step:
    """One step of a sampling: what the network says when it is told time ``t``."""

    #: Counted from 1, and how many there are.
    step: int
    of: int
    #: The time.
    t: int
    #: ᾱ_t, the share of the signal in what the network saw.
    alpha_bar: float
    #: What the step came to, [N]: −1 where the masked twin has masks.
    tokens: Ids
    #: Probability of each token among those that may stand there, [N]; of a token that was committed, the one it had then.
    p: Floats
    #: Entropy of each prediction in nats, [N], over the tokens that may stand there.
    entropies: Floats
    #: Probabilities of all tokens, or all classes, as the network says, [N, V]; None if they were not asked for.
    probabilities: Optional[Floats]
    #: The most likely tokens, [N, K], and their probabilities.
    top: Ids
    top_p: Floats
    #: Which tokens are fixed, and which the sampler has committed, [N].
    fixed: npt.NDArray[np.bool_]
    committed: npt.NDArray[np.bool_]
    #: The tokens in words: a class, or a text with ▒ for masks.
    text: str

    def __repr__(self) -> str:
        return f"Step({self.step}/{self.of}, t={self.t}, {self.text!r})"


class Trace:
    """A sampling that goes on as it is iterated over. Each step is taken when it is asked for, Ctrl-C stops between two.

    >>> import tweedie
    >>> trace = tweedie.load("embedded:digits").trace(tweedie.example("digits"), steps=4)
    >>> [step.t for step in trace]
    [1000, 750, 500, 250]
    >>> trace.result.label
    '4'
    """

    def __init__(self, model: "Model", name: int, about: dict[str, Any], picture: Optional[bytes]) -> None:
        self._model, self._name, self._about, self._picture = model, name, about, picture
        self._steps: list[Step] = []
        self._result: Union[Answer, Text, None] = None
        # Threads may share it; one of them takes a step at a time.
        self._lock = threading.Lock()
        # However this ends, the thread of the model forgets it.
        self._end = weakref.finalize(self, model._native.trace_end, name)

    def __iter__(self) -> Iterator[Step]:
        """The steps, from the first on: those that were taken, then new ones."""
        i = 0
        while True:
            if i >= len(self._steps) and not self._advance(i):
                return
            yield self._steps[i]
            i += 1

    def _advance(self, have: Optional[int] = None) -> bool:
        """Take a step, unless there are more than ``have``; False at the end."""
        with self._lock:
            return self._step() if have is None or len(self._steps) == have else True

    def _step(self) -> bool:
        if self._result is not None:
            return False
        told = self._model._native.trace_next(self._name)
        if "step" in told:
            self._steps.append(Step(**{"probabilities": None, **told}, text=self._model._shown(told["tokens"])))
            return True
        if "answer" in told:
            self._result = self._model._answer(told["answer"])
        else:
            self._result = Text.of(told["texts"])
        self._end()
        return False

    def pin(self, place: int, token: Union[str, int, None]) -> None:
        """Fix the token at ``place`` from the next step on, or free it (None); the sampling goes on from there."""
        if self._result is not None:
            raise ValueError("the sampling is over; pin tokens while steps are still to come")
        if self._model.task == "class":
            raise ValueError("a class is all there is to this sampling; tokens of texts can be pinned")
        self._model._native.trace_pin(self._name, self._place(place), None if token is None else self._id(token))

    def _place(self, place: int) -> int:
        places = int(self._model.facts["tokens"])
        if not 0 <= _asked.whole("place", place) < places:
            raise ValueError(f"place = {place}; there are {places}, from 0 on")
        return place

    def _id(self, token: Union[str, int]) -> int:
        """The number of a token."""
        model = self._model
        if not isinstance(token, str):
            if not 0 <= _asked.whole("token", token) < model.facts["vocab"]:
                raise ValueError(f"there is no token {token}; there are {model.facts['vocab']}, from 0 on")
            return int(token)
        ids = model.encode(token)
        if len(ids) != 1:
            raise ValueError(f"{token!r} is {len(ids)} tokens, and a place has one")
        if model._token(int(ids[0])) == "<unk>" and token != "<unk>":
            raise ValueError(f"the model's vocabulary lacks {token!r}")
        return int(ids[0])

    @property
    def steps(self) -> list[Step]:
        """All steps; those that are still to come are taken."""
        while self._advance():
            pass
        return list(self._steps)

    @property
    def result(self) -> Union[Answer, Text]:
        """What comes out; the steps that are still to come are taken."""
        while self._advance():
            pass
        assert self._result is not None
        return self._result

    def html(self) -> str:
        """All steps as one page, with a slider."""
        result, steps = self.result, self.steps
        token = self._model._token

        def places(s: Step) -> list[dict[str, Any]]:
            return [
                {
                    "text": None if s.tokens[i] < 0 else token(int(s.tokens[i])),
                    "p": float(s.p[i]),
                    "entropy": float(s.entropies[i]),
                    "top": [[token(int(k)), float(p)] for k, p in zip(s.top[i], s.top_p[i])],
                }
                for i in range(len(s.tokens))
            ]

        told = {
            **self._about,
            "result": str(result),
            "steps": [{"t": s.t, "alpha_bar": s.alpha_bar, "tokens": places(s)} for s in steps],
        }
        if isinstance(result, Answer):
            told["heat"] = heat(self._model.classes, [s.probabilities[0] for s in steps if s.probabilities is not None])
        uri = self._picture and "data:image/png;base64," + base64.b64encode(self._picture).decode()
        return _tweedie.trace_page(json.dumps(told), uri or None)

    def save(self, path: Union[str, os.PathLike[str]]) -> None:
        """Write :meth:`html` to a file."""
        with open(path, "w", encoding="utf-8") as f:
            f.write(self.html())

    def __repr__(self) -> str:
        if self._result is not None:
            return f"Trace({len(self._steps)} steps, {str(self._result)!r})"
        return f"Trace({len(self._steps)} steps so far)"

    def _repr_html_(self) -> str:
        height = 640 if isinstance(self.result, Answer) else 560
        page = html.escape(self.html(), quote=True)
        return f'<iframe srcdoc="{page}" style="width:100%;height:{height}px;border:0" sandbox="allow-scripts"></iframe>'


def heat(classes: list[str], steps: list[Floats]) -> dict[str, Any]:
    """Probabilities of the classes that matter, over the steps."""
    every = np.stack(steps)
    matter = sorted(range(len(classes)), key=lambda c: -every[:, c].max())[:16]
    matter.sort(key=lambda c: -every[-1, c])
    return {"classes": [classes[c] for c in matter], "p": every[:, matter].tolist()}
