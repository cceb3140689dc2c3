"""The data sets that are inside, to try things on."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tweedie import _tweedie


def examples(name: str = "digits", split: str = "test", count: int = 0) -> list[tuple[npt.NDArray[np.uint8], Any]]:
    """Examples of an embedded data set: (image, label) of "digits", (image, captions) of "shapes"; of the split "train",
    "validation" or "test", at most ``count`` of them (0: all).

    >>> import tweedie
    >>> image, label = tweedie.examples("digits", count=1)[0]
    >>> image.shape, label
    ((8, 8, 1), '4')
    """
    return _tweedie.examples(name, split, count)


def example(name: str = "digits", i: int = 0) -> npt.NDArray[np.uint8]:
    """Test image ``i`` of an embedded data set.

    >>> import tweedie
    >>> tweedie.example("shapes").shape[2]
    3
    """
    return examples(name, "test", i + 1)[i][0]
