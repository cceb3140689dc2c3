"""What can be asked of a sampling, and whether it is."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Optional, TypedDict, Union

if TYPE_CHECKING:
    from tweedie._plug import Sampler, Schedule


class Sampling(TypedDict, total=False):
    """What any sampling knows."""

    steps: Optional[int]
    sampler: Union[str, Sampler, None]
    schedule: Union[str, Schedule, None]
    seed: Optional[int]


class Classifying(Sampling, total=False):
    """What :meth:`Model.classify` knows."""

    guidance: Optional[float]
    running_mean: Optional[bool]
    votes: Optional[int]


class Writing(Sampling, total=False):
    """What texts and captions know."""

    infill: Optional[str]
    length: Optional[int]
    min_length: int
    candidates: Optional[int]
    rank: Optional[str]
    draws: int
    unmask: Optional[str]
    uncommitted: Optional[float]
    correction: Optional[float]
    stagger: Optional[int]


class Captioning(Writing, total=False):
    """What :meth:`Model.caption` knows."""

    guidance: Optional[float]


class Generating(Writing, total=False):
    """What :meth:`Model.generate` knows."""

    prompt: Optional[str]


WHOLE = ("steps", "votes", "seed", "candidates", "stagger")
REAL = ("guidance", "uncommitted", "correction")


def checked(asked: dict[str, Any]) -> dict[str, Any]:
    """What was asked for, as JSON has it; the ranges are the native part's to check."""
    told: dict[str, Any] = {}
    for name, x in asked.items():
        if x is None:
            continue
        if name in WHOLE:
            x = not_negative(name, x)
        elif name in REAL:
            x = real(name, x)
        elif name == "running_mean":
            x = flag(name, x)
        elif not isinstance(x, str):
            raise TypeError(f"{name} is a name, not {type(x).__name__}")
        told[name] = x
    return told


def texts(given: Any) -> list[str]:
    """One text or many, as a list."""
    if isinstance(given, str):
        return [given]
    if not isinstance(given, Iterable):
        raise TypeError(f"a text is a string, not {type(given).__name__}")
    every = list(given)
    for i, text in enumerate(every):
        if not isinstance(text, str):
            raise TypeError(f"text {i} is a string, not {type(text).__name__}")
    return every


def whole(name: str, x: Any) -> int:
    """A whole number, NumPy's among them."""
    try:
        if isinstance(x, bool):
            raise TypeError
        return operator.index(x)
    except TypeError:
        raise TypeError(f"{name} = {x!r}; it is a whole number") from None


def not_negative(name: str, x: Any) -> int:
    n = whole(name, x)
    if not 0 <= n < 2**64:
        raise ValueError(f"{name} = {n}; it lies between 0 and 2**64 - 1")
    return n


def positive(name: str, x: Any) -> int:
    n = whole(name, x)
    if n < 1:
        raise ValueError(f"{name} = {n}; it is at least 1")
    return n


def flag(name: str, x: Any) -> bool:
    """True or false, NumPy's among them."""
    if not isinstance(x, bool) and type(x).__name__ not in ("bool_", "bool"):
        raise TypeError(f"{name} = {x!r}; it is True or False")
    return bool(x)


def real(name: str, x: Any) -> float:
    """A number that is finite, NumPy's among them."""
    if isinstance(x, (bool, str)) or not hasattr(x, "__float__"):
        raise TypeError(f"{name} = {x!r}; it is a number")
    value = float(x)
    if not math.isfinite(value):
        raise ValueError(f"{name} = {value}; it must be finite")
    return value
