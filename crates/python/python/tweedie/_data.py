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
    if count < 0:
        raise ValueError(f"count = {count}; 0 is all there are")
    return _tweedie.examples(name, split, count)


def example(name: str = "digits", i: int = 0) -> npt.NDArray[np.uint8]:
    """Test image ``i`` of an embedded data set.

    >>> import tweedie
    >>> tweedie.example("shapes").shape[2]
    3
    """
    if i < 0:
        raise IndexError(f"example {i}; they count from 0")
    every = examples(name, "test", i + 1)
    if i >= len(every):
        raise IndexError(f"example {i}; {name} has {len(every)} test images, from 0 on")
    return every[i][0]
