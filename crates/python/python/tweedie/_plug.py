"""Schedules, samplers and denoisers of one's own."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Optional, Union

import numpy as np
import numpy.typing as npt

from tweedie import _asked, _tweedie
from tweedie._results import Floats

Factor = Union[float, Floats]


class Schedule:
    """ᾱ_t over T steps: a name (``"linear"``, ``"cosine"``, ``"sigmoid"``, ``"vocab-aware"``) or any falling curve of u in [0, 1].

    >>> import tweedie
    >>> steep = tweedie.Schedule(lambda u: (1 - u) ** 3, steps=1000)
    >>> [round(float(a), 3) for a in steep.alpha_bar[[0, 500]]]
    [1.0, 0.125]
    """

    def __init__(self, curve: Union[str, Callable[[float], float]], steps: int = 1000, vocab: int = 2) -> None:
        steps, vocab = _asked.positive("steps", steps), _asked.positive("vocab", vocab)
        if isinstance(curve, str):
            self._native = _tweedie.Schedule.named(curve, steps, vocab)
        elif callable(curve):
            self._native = _tweedie.Schedule.of_curve(curve, steps)
        else:
            raise TypeError(f"a schedule is a name or a falling function of u in [0, 1], not {type(curve).__name__}")
        self._curve = curve

    @property
    def steps(self) -> int:
        """T."""
        return self._native.steps

    @property
    def alpha_bar(self) -> Floats:
        """ᾱ at the times 0 to T."""
        return self._native.alpha_bar

    def __repr__(self) -> str:
        curve = self._curve if isinstance(self._curve, str) else getattr(self._curve, "__name__", type(self._curve).__name__)
        return f"<tweedie.Schedule {curve}, {self.steps} steps>"


@dataclass(frozen=True)
class Update:
    """y_s = clean·ŷ_0 + keep·y_t + noise·z with z ~ N(0, I): a step of any sampler. A factor is one number, or one for each token [B, N]."""

    clean: Factor = 0.0
    keep: Factor = 0.0
    noise: Factor = 0.0
    #: What stands for the clean vector ŷ_0: "argmax", "draw", "mean", or tokens [B, N].
    take: Union[str, npt.NDArray[Any]] = "argmax"
    #: For "draw": logits are divided by it.
    temperature: float = 1.0


class Prediction:
    """What the network says at one step, for a batch of B examples of N tokens."""

    def __init__(self, told: dict[str, Any]) -> None:
        #: Guided logits, [B, N, V].
        self.logits: npt.NDArray[np.float32] = told["logits"]
        #: The most likely tokens that may be written, [B, N], and their log-probabilities.
        self.tokens: npt.NDArray[np.uint32] = told["tokens"]
        self.log_p: npt.NDArray[np.float32] = told["log_p"]
        #: The time, and the one to go to; 0 ends the sampling.
        self.t: int = told["t"]
        self.s: int = told["s"]
        #: ᾱ of both.
        self.alpha_bar_t, self.alpha_bar_s = told["alpha_bar"]
        self._updates = told["updates"]

    def __repr__(self) -> str:
        return f"<tweedie.Prediction {list(self.logits.shape)}, t={self.t} to {self.s}>"

    @property
    def probabilities(self) -> npt.NDArray[np.float32]:
        """softmax of the logits, [B, N, V]."""
        e = np.exp(self.logits - self.logits.max(-1, keepdims=True))
        p: npt.NDArray[np.float32] = np.divide(e, e.sum(-1, keepdims=True), dtype=np.float32)
        return p

    def renoise(self, **how: Any) -> Update:
        """Forget y_t: √ᾱ_s·ŷ_0 and fresh noise, as the paper's sampler does."""
        return self._update(0, how)

    def ddim(self, **how: Any) -> Update:
        """Keep the noise that the prediction implies."""
        return self._update(1, how)

    def reverse(self, **how: Any) -> Update:
        """The true reverse step, which carries y_t forward."""
        return self._update(2, how)

    def _update(self, i: int, how: dict[str, Any]) -> Update:
        clean, keep, noise = self._updates[i]
        return Update(**{"clean": clean, "keep": keep, "noise": noise, **how})


class Sampler:
    """A sampler of one's own: say what a step does with the prediction. Fixed tokens and lengths are kept whatever it does.

    >>> import tweedie
    >>> class Patient(tweedie.Sampler):
    ...     "Argmax and re-noise, but only where the network is sure: other tokens start again from pure noise."
    ...     def step(self, prediction):
    ...         sure = prediction.log_p > -0.7
    ...         paper = prediction.renoise()
    ...         return tweedie.Update(clean=sure * paper.clean, noise=np.where(sure, paper.noise, 1.0))
    >>> model = tweedie.load("embedded:shakespeare")
    >>> len(model.generate(sampler=Patient(), steps=8)) > 0
    True
    """

    def step(self, prediction: Prediction) -> Update:
        """The update from y_t to y_s. Of texts and of :func:`sample` it is called for the last step too, where what it takes is the
        result; of a class the most likely one is.
        """
        raise NotImplementedError("a sampler has a method step(prediction) that returns an Update")


def native_sampler(sampler: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """What the native part calls."""
    if isinstance(sampler, type):
        raise TypeError(f"a sampler is an object, and {sampler.__name__} a class; make one: {sampler.__name__}(…)")
    step = sampler.step if hasattr(sampler, "step") else sampler
    if not callable(step):
        raise TypeError(f"a sampler is a name or an object with a method step(prediction), not {type(sampler).__name__}")

    def call(told: dict[str, Any]) -> dict[str, Any]:
        update = step(Prediction(told))
        if not isinstance(update, Update):
            raise TypeError(f"step must return a tweedie.Update, not {type(update).__name__}")
        own = None if isinstance(update.take, str) else taken(update.take)
        return {
            "take": update.take if own is None else "tokens",
            "tokens": own,
            "temperature": update.temperature,
            "clean": factor(update.clean),
            "keep": factor(update.keep),
            "noise": factor(update.noise),
        }

    return call


def taken(tokens: Any) -> npt.NDArray[np.uint32]:
    """Tokens that a step takes."""
    ids = np.asarray(tokens)
    if ids.dtype.kind not in "iu":
        raise TypeError(f"a step takes whole numbers as tokens, not {ids.dtype}")
    if ids.size and ids.min() < 0:
        raise ValueError(f"a step takes token {ids.min()}; they count from 0")
    return np.ascontiguousarray(ids, dtype=np.uint32)


def factor(x: Factor) -> Any:
    return float(x) if np.ndim(x) == 0 else np.ascontiguousarray(x, dtype=np.float64)


def sample(
    denoiser: Callable[[_tweedie.Tensor, int], Any],
    vocab: int,
    tokens: int = 1,
    examples: Union[int, Sequence[int]] = 1,
    *,
    schedule: Union[str, Schedule] = "cosine",
    sampler: Any = None,
    steps: int = 20,
    seed: int = 0,
) -> npt.NDArray[np.uint32]:
    """Sample with a denoiser of one's own: anything that turns noisy vectors into logits.

    ``denoiser(noisy, t)`` gets y_t as a :class:`Tensor` [B, N, V] (``np.asarray(noisy)`` and ``torch.from_dlpack(noisy)`` share its
    memory) and the time, and returns logits of the same shape: an array, or a tensor of PyTorch on any device. Bayes' rule for one token with a known prior:

    >>> import numpy as np, tweedie
    >>> prior, schedule = np.array([0.2, 0.7, 0.1]), tweedie.Schedule("cosine")
    >>> def oracle(noisy, t):
    ...     a = schedule.alpha_bar[t]
    ...     return np.sqrt(a) / (1 - a) * np.asarray(noisy) + np.log(prior)
    >>> drawn = tweedie.sample(oracle, vocab=3, examples=2000, schedule=schedule, sampler="ancestral", steps=100)
    >>> share = np.bincount(drawn[:, 0], minlength=3) / 2000
    >>> bool(np.abs(share - prior).max() < 0.05)
    True
    """
    if not callable(denoiser):
        raise TypeError(f"a denoiser is a function of (noisy, t), not {type(denoiser).__name__}")
    vocab, tokens = _asked.positive("vocab", vocab), _asked.positive("tokens", tokens)
    if isinstance(schedule, str):
        schedule = Schedule(schedule, vocab=max(vocab, 2))
    if not isinstance(schedule, Schedule):
        raise TypeError(f"a schedule is a name or a tweedie.Schedule, not {type(schedule).__name__}")
    if isinstance(examples, Sequence) or np.ndim(examples):
        ids = [_asked.not_negative("examples", i) for i in examples]  # type: ignore[union-attr]
    else:
        ids = list(range(_asked.positive("examples", examples)))
    named = isinstance(sampler, str)
    asked = _asked.checked({"steps": steps, "seed": seed, "sampler": sampler if named else None})

    def logits(noisy: _tweedie.Tensor, t: int) -> npt.NDArray[np.float32]:
        out = denoiser(noisy, t)
        if hasattr(out, "detach"):
            # NumPy has no bfloat16.
            out = out.detach().float().cpu().numpy()
        logits = np.ascontiguousarray(out, dtype=np.float32)
        if logits.shape != noisy.shape:
            raise ValueError(f"a denoiser's logits must be {list(noisy.shape)}, they are {list(logits.shape)}")
        if not np.isfinite(logits.max(-1)).all():
            raise ValueError(f"a denoiser's logits at t = {t} are not all numbers; -inf may stand for what cannot be, not for all")
        return logits

    own = None if sampler is None or named else native_sampler(sampler)
    drawn, _ = _tweedie.sample(logits, vocab, tokens, ids, schedule._native, json.dumps(asked), own)
    return drawn
