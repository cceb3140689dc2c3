"""What models answer."""

from __future__ import annotations

import html
from dataclasses import dataclass, fields
from typing import Any, Optional

import numpy as np
import numpy.typing as npt

from tweedie._html import bar

Floats = npt.NDArray[np.float64]


def same(a: Any, b: Any) -> bool:
    """Whether all fields are the same, arrays among them."""
    return all(np.array_equal(getattr(a, f.name), getattr(b, f.name)) for f in fields(a))


@dataclass(frozen=True, repr=False, eq=False)
class Answer:
    """What a classifier says of an image.

    >>> import tweedie
    >>> answer = tweedie.load("embedded:digits").classify(tweedie.example("digits"))
    >>> answer.label, round(answer.probability, 2)
    ('4', 0.98)
    """

    #: The most likely class.
    label: str
    #: Its probability: calibrated, where a temperature was fitted.
    probability: float
    #: The probabilities of all classes, in the order of ``model.classes``.
    probabilities: Floats
    #: The class that the sampler ends at; mostly the same.
    sampled: str
    #: How settled the sampler is on that; it says little about the image.
    certainty: float
    #: All classes, the most likely first.
    ranking: list[tuple[str, float]]

    def top(self, k: int = 5) -> list[tuple[str, float]]:
        """The ``k`` most likely classes with their probabilities."""
        return self.ranking[:k]

    def __eq__(self, other: object) -> bool:
        return same(self, other) if isinstance(other, Answer) else NotImplemented

    def __hash__(self) -> int:
        return hash((self.label, self.probability))

    def __str__(self) -> str:
        return self.label

    def __repr__(self) -> str:
        return f"Answer({', '.join(f'{name} {100 * p:.1f} %' for name, p in self.top(3))})"

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{html.escape(name)}</td><td>{bar(p)}</td><td style='text-align:right'>{100 * p:.1f} %</td></tr>" for name, p in self.top(5)
        )
        other = "" if self.sampled == self.label else f"<div style='opacity:.7'>the sampler ended at {html.escape(self.sampled)}</div>"
        return f"<table>{rows}</table>{other}"


class Text(str):
    """A text that a model wrote: a ``str`` that knows how it came about.

    >>> import tweedie
    >>> text = tweedie.load("embedded:shakespeare").generate(prompt="ROMEO:")
    >>> text.startswith("ROMEO:"), len(text.tokens) == len(text.candidates[0].tokens)
    (True, True)
    """

    #: The tokens, with padding behind the end.
    tokens: npt.NDArray[np.uint32]
    #: Bound on −ln p in nats and its standard error, where candidates were ranked by it.
    nats: Optional[tuple[float, float]]
    #: Likeness to the other candidates, 0 to 1, where they were ranked by it.
    consensus: Optional[float]
    #: All candidates, the best first; this one is the first.
    candidates: list["Text"]

    @classmethod
    def of(cls, told: list[dict[str, Any]]) -> "Text":
        """The best of what the native part tells of, with the others."""
        every = []
        for t in told:
            text = cls(t["text"])
            text.tokens, text.nats, text.consensus, text.candidates = t["tokens"], t["nats"], t["consensus"], []
            every.append(text)
        best = every[0]
        best.candidates = every
        return best

    def __reduce__(self) -> tuple[Any, ...]:
        plain = [{"text": str(t), "tokens": t.tokens, "nats": t.nats, "consensus": t.consensus} for t in self.candidates or [self]]
        return (Text.of, (plain,))


@dataclass(frozen=True, eq=False)
class Scores:
    """Upper bounds on −ln p of texts.

    >>> import tweedie
    >>> model = tweedie.load("embedded:shakespeare")
    >>> good, bad = model.score(["the king is dead " * 20, "xq zk vvv jjj qqx " * 20]).bits
    >>> bool(good < bad)
    True
    """

    #: Bits per token of each text.
    bits: Floats
    #: Nats of each text, as a whole.
    nats: Floats
    #: Standard error of ``nats``: the bounds are estimates.
    error: Floats
    #: Tokens of each text, the end among them.
    tokens: npt.NDArray[np.int64]

    @property
    def bits_per_token(self) -> float:
        """Over all texts."""
        return float(self.nats.sum() / max(int(self.tokens.sum()), 1) / np.log(2))

    def __eq__(self, other: object) -> bool:
        return same(self, other) if isinstance(other, Scores) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.nats.tobytes())

    def __len__(self) -> int:
        return len(self.nats)
