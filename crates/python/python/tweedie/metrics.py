"""Scores of captions: BLEU, ROUGE-L, CIDEr-D, diversity and CLIPScore, without Java.

Two ways in. Fresh: :func:`caption_scores` takes captions as they were written.

>>> from tweedie.metrics import caption_scores
>>> scores = caption_scores([["A red dog runs on grass."], ["Two cats sleep on a bed."]], ["a red dog runs", "two cats on a bed"])
>>> round(scores.rouge_l, 4), scores.per_image.cider_d.shape
(0.8333, (2,))

From pycocoevalcap: :class:`PTBTokenizer`, :class:`Bleu`, :class:`Rouge`, :class:`Cider` and :class:`COCOEvalCap` take and return what
its classes of these names do, so the imports are all that changes.

>>> from tweedie.metrics import Cider, PTBTokenizer
>>> gts = PTBTokenizer().tokenize({7: [{"caption": "A dog's toy."}], 8: [{"caption": "Two cats."}]})
>>> gts
{7: ["a dog 's toy"], 8: ['two cats']}
>>> score, per_image = Cider().compute_score(gts, {7: ["a dog 's toy"], 8: ["a cat"]})
>>> round(float(score), 4)
5.0
"""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from tweedie import _images, _tweedie

__all__ = [
    "Bleu",
    "COCOEvalCap",
    "CaptionScores",
    "Cider",
    "ClipScores",
    "Diversity",
    "Intervals",
    "PTBTokenizer",
    "PerImage",
    "Rouge",
    "caption_scores",
    "clip_score",
    "diversity",
]

Floats: TypeAlias = npt.NDArray[np.float64]
Captions: TypeAlias = Mapping[Any, Sequence[str]]
Interval: TypeAlias = tuple[float, float]


class PTBTokenizer:
    """Captions into words as pycocoevalcap does it: Penn Treebank tokens in lower case, punctuation removed."""

    def tokenize(self, captions_for_image: Mapping[Any, Sequence[Mapping[str, Any]]]) -> dict[Any, list[str]]:
        """``{id: [{"caption": str}, …]}`` as ``{id: [words separated by spaces, …]}``.

        As in the original, the captions are one text, one to a line, in which a single letter at the end of a line keeps its full stop or
        not by the first word of the next; and an id without captions is left out.

        >>> PTBTokenizer().tokenize({1: [{"caption": "A dog (brown), isn't it?"}]})
        {1: ["a dog -lrb- brown -rrb- is n't it"]}
        """
        return _tweedie.metrics_tokenize(_dict(captions_for_image, "captions_for_image"))


class Bleu:
    """BLEU-1 to BLEU-n of a set of captions, n at most 4, by the reference closest in length."""

    def __init__(self, n: int = 4) -> None:
        if n not in (1, 2, 3, 4):
            raise ValueError(f"Bleu(n={n!r}): n is 1, 2, 3 or 4")
        self._n = n

    def compute_score(self, gts: Captions, res: Captions, verbose: int = 1) -> tuple[list[float], list[list[float]]]:
        """BLEU-1 … BLEU-n of all, and for each n a list with that of each image, in the order of ``gts``.

        Captions are words separated by spaces. ``verbose`` is there for callers of pycocoevalcap: nothing is printed.

        >>> score, per_image = Bleu(2).compute_score({1: ["a cat sat"], 2: ["a dog"]}, {1: ["a cat sat"], 2: ["a cat"]})
        >>> [round(s, 4) for s in score], [[round(s, 4) for s in n] for n in per_image]
        ([0.8, 0.7303], [[1.0, 0.5], [1.0, 0.0]])
        """
        score, per_image = _tweedie.metrics_bleu(_dict(gts, "gts"), _dict(res, "res"))
        return score[: self._n], per_image[: self._n]

    def method(self) -> str:
        """``"Bleu"``."""
        return "Bleu"


class Rouge:
    """ROUGE-L, β = 1.2: the best precision and the best recall over the references."""

    def compute_score(self, gts: Captions, res: Captions) -> tuple[np.float64, Floats]:
        """The mean over images, and that of each image in the order of ``gts``.

        >>> score, per_image = Rouge().compute_score({1: ["a cat sat"], 2: ["a dog"]}, {1: ["a cat sat"], 2: ["two men"]})
        >>> float(score), per_image
        (0.5, array([1., 0.]))
        """
        return _mean(_tweedie.metrics_rouge_l(_dict(gts, "gts"), _dict(res, "res")))

    def method(self) -> str:
        """``"Rouge"``."""
        return "Rouge"


class Cider:
    """CIDEr-D with n = 1 … 4 and σ = 6; document frequencies are those of the references at hand."""

    def __init__(self, test: None = None, refs: None = None, n: int = 4, sigma: float = 6.0) -> None:
        if (n, sigma) != (4, 6.0):
            raise ValueError(f"Cider(n={n!r}, sigma={sigma!r}): n is 4 and sigma is 6.0, as papers have it")

    def compute_score(self, gts: Captions, res: Captions) -> tuple[np.float64, Floats]:
        """The mean over images, in 0 … 10, and that of each image in the order of ``gts``.

        >>> gts = {1: ["a cat sat down"], 2: ["two dogs run fast"]}
        >>> score, per_image = Cider().compute_score(gts, {1: ["a cat sat down"], 2: ["two men"]})
        >>> per_image.round(3)
        array([10.   ,  0.836])
        """
        return _mean(_tweedie.metrics_cider_d(_dict(gts, "gts"), _dict(res, "res")))

    def method(self) -> str:
        """``"CIDEr"``."""
        return "CIDEr"


class COCOEvalCap:
    """pycocoevalcap's class of this name, with the scores that need neither WordNet nor a parser: no METEOR, no SPICE.

    ``coco`` and ``cocoRes`` are pycocotools' ``COCO`` objects, or anything with ``getImgIds()`` and ``imgToAnns``. After
    :meth:`evaluate`, ``eval`` has the scores, ``imgToEval`` and ``evalImgs`` those of each image.
    """

    def __init__(self, coco: Any, cocoRes: Any) -> None:  # noqa: N803
        self.coco = coco
        self.cocoRes = cocoRes
        self.params: dict[str, Any] = {"image_id": coco.getImgIds()}
        self.eval: dict[str, float] = {}
        self.imgToEval: dict[Any, dict[str, Any]] = {}
        self.evalImgs: list[dict[str, Any]] = []

    def evaluate(self) -> None:
        """Score the images of ``params["image_id"]``."""
        ids = list(self.params["image_id"])
        gts = PTBTokenizer().tokenize({i: self.coco.imgToAnns[i] for i in ids})
        res = PTBTokenizer().tokenize({i: self.cocoRes.imgToAnns[i] for i in ids})
        scores = CaptionScores(_tweedie.metrics_captions(gts, res, True), list(gts))
        each = scores.per_image
        columns: list[tuple[str, float, Floats]] = [(f"Bleu_{n + 1}", scores.bleu[n], each.bleu[:, n]) for n in range(4)]
        columns += [("ROUGE_L", scores.rouge_l, each.rouge_l), ("CIDEr", scores.cider_d, each.cider_d)]
        self.eval = {name: score for name, score, _ in columns}
        rows = zip(scores.ids, *(column for _, _, column in columns))
        names = [name for name, _, _ in columns]
        self.imgToEval = {i: {"image_id": i, **dict(zip(names, row))} for i, *row in rows}
        self.evalImgs = list(self.imgToEval.values())


@dataclass(frozen=True)
class Intervals:
    """95 % intervals: the 2.5 and 97.5 percentiles over resampled sets of images."""

    bleu: tuple[Interval, Interval, Interval, Interval]
    rouge_l: Interval
    cider_d: Interval

    def __repr__(self) -> str:
        rows = [*((f"BLEU-{n + 1}", i) for n, i in enumerate(self.bleu)), ("ROUGE-L", self.rouge_l), ("CIDEr-D", self.cider_d)]
        return "\n".join(f"{name:<8} {low:7.4f} – {high:.4f}" for name, (low, high) in rows)


@dataclass(frozen=True)
class PerImage:
    """What each image scores, in the order of ``CaptionScores.ids``."""

    bleu: Floats
    """BLEU-1 to BLEU-4 of each image, (images, 4). Those of all images are not their mean."""
    rouge_l: Floats
    cider_d: Floats


class CaptionScores:
    """The scores of a set of captions: what :func:`caption_scores` gives."""

    bleu: tuple[float, float, float, float]
    """BLEU-1 to BLEU-4, in 0 … 1."""
    rouge_l: float
    """Mean ROUGE-L, in 0 … 1."""
    cider_d: float
    """Mean CIDEr-D, in 0 … 10."""
    length_ratio: float
    """Words of all captions over words of the references closest in length."""
    ids: list[Any]
    """The images: keys of the references, or 0, 1, … of a list."""
    per_image: PerImage
    """What each image scores."""

    def __init__(self, scores: _tweedie.MetricsScores, ids: list[Any]) -> None:
        self._scores = scores
        (b1, b2, b3, b4), self.rouge_l, self.cider_d, self.length_ratio = scores.totals()
        self.bleu = (b1, b2, b3, b4)
        self.ids = ids
        bleu, rouge_l, cider_d = scores.per_image()
        self.per_image = PerImage(np.array(bleu).reshape(-1, 4), np.array(rouge_l), np.array(cider_d))

    def bootstrap(self, draws: int = 1000, seed: int = 0) -> Intervals:
        """95 % intervals over ``draws`` sets of as many images, drawn with replacement. CIDEr-D's document frequencies stay fixed.

        >>> refs, captions = [["a dog runs"], ["two cats"]], ["a dog sits", "two cats"]
        >>> caption_scores(refs, captions).bootstrap(100).rouge_l
        (0.666..., 1.0)
        """
        return _intervals(self._scores.bootstrap(_draws(draws), seed))

    def difference(self, other: CaptionScores, draws: int = 1000, seed: int = 0) -> Intervals:
        """95 % intervals of these scores less those of ``other``, for the same images: both are drawn alike."""
        if self.ids != other.ids:
            raise ValueError("only scores of the same images, in the same order, can be compared: score both with the same references")
        return _intervals(self._scores.bootstrap_difference(other._scores, _draws(draws), seed))

    def __repr__(self) -> str:
        rows = [*((f"BLEU-{n + 1}", s) for n, s in enumerate(self.bleu)), ("ROUGE-L", self.rouge_l), ("CIDEr-D", self.cider_d)]
        head = f"{len(self.ids):,} images, length ratio {self.length_ratio:.3f}"
        return "\n".join([head, *(f"{name:<8} {score:7.4f}" for name, score in rows)])


def caption_scores(
    references: Mapping[Any, Sequence[str]] | Sequence[Sequence[str]],
    captions: Mapping[Any, str | Sequence[str]] | Sequence[str],
) -> CaptionScores:
    """BLEU, ROUGE-L and CIDEr-D of captions as they were written, one for each image.

    Both are lists in the same order, or dicts by id. Words are made as :class:`PTBTokenizer` makes them.

    >>> caption_scores({"x": ["A dog runs.", "The dog runs."], "y": ["Two cats."]}, {"x": "a dog runs", "y": "two cats"})
    2 images, length ratio 1.000
    BLEU-1    1.0000
    BLEU-2    1.0000
    BLEU-3    1.0000
    BLEU-4    0.0316
    ROUGE-L   1.0000
    CIDEr-D   5.1042
    """
    if isinstance(references, Mapping) != isinstance(captions, Mapping):
        raise ValueError("references and captions are either both dicts by id or both lists in the same order")
    if isinstance(references, Mapping) and isinstance(captions, Mapping):
        gts, res = dict(references), {i: _one(c) for i, c in captions.items()}
    else:
        _list(references, "references")
        _list(captions, "captions")
        if len(references) != len(captions):
            raise ValueError(f"{len(captions)} captions for the references of {len(references)} images: give one for each image")
        gts, res = dict(enumerate(references)), {i: [c] for i, c in enumerate(captions)}
    return CaptionScores(_tweedie.metrics_captions(gts, res, False), list(gts))


@dataclass(frozen=True)
class Diversity:
    """How varied a set of captions is: what :func:`diversity` gives. Shares and scores lie in 0 … 1."""

    captions: int
    """How many."""
    distinct: tuple[float, float, float]
    """Different n-grams over all n-grams, for n = 1, 2, 3."""
    self_bleu4: float
    """Mean BLEU-4 of a caption with all others as its references; lower is more varied, and it grows with their number."""
    unique: float
    """Different captions over all."""
    repeated: float
    """Share of captions in which a word follows itself."""


def diversity(captions: Sequence[str]) -> Diversity:
    """How much captions, as they were written, differ from each other.

    >>> d = diversity(["a dog dog runs", "a dog sits", "A dog sits."])
    >>> d.distinct[0], round(d.unique, 3), round(d.repeated, 3)
    (0.4, 0.667, 0.333)
    """
    count, (d1, d2, d3), self_bleu4, unique, repeated = _tweedie.metrics_diversity(_list(captions, "captions"))
    return Diversity(count, (d1, d2, d3), self_bleu4, unique, repeated)


@dataclass(frozen=True, eq=False)
class ClipScores:
    """Cosines of images with their captions: what :func:`clip_score` gives."""

    cosines: npt.NDArray[np.float32]
    """Of each pair."""
    cosine: float
    """Their mean."""
    hessel: float
    """Mean of 2.5 · max(cosine, 0): CLIPScore as Hessel et al. (2021) define it, without their "A photo depicts"."""
    torchmetrics: float
    """100 · mean cosine, not below 0."""
    standard_error: float
    """Of the mean cosine."""

    def __repr__(self) -> str:
        return (
            f"{len(self.cosines):,} pairs\n"
            f"cosine              {self.cosine:8.4f} ± {self.standard_error:.4f} s.e.\n"
            f"×2.5, ≥ 0 (Hessel)  {self.hessel:8.4f}\n"
            f"×100 (torchmetrics) {self.torchmetrics:8.2f}"
        )


def clip_score(folder: str | os.PathLike[str], images: Iterable[Any], captions: Sequence[str], device: str = "auto") -> ClipScores:
    """How well captions fit images by a CLIP model: the cosine of each pair, and its mean in the three scales in use.

    ``folder`` is one that ``transformers`` saves a CLIP model to. ``images`` are paths, PIL images or arrays (H×W or H×W×3; uint8, or
    float in 0 … 1), one for each caption. ``device`` is ``auto``, ``cpu``, ``cuda`` or ``cuda:N``. The score depends on the model: name
    it beside a number.
    """
    texts = _list(captions, "captions")
    model = _tweedie.MetricsClip(os.fspath(folder), device)
    cosines = model.cosines(_images.many(images)[0], texts)
    cosine, hessel, torchmetrics, standard_error = _tweedie.metrics_clip_scales(cosines)
    return ClipScores(np.array(cosines, dtype=np.float32), cosine, hessel, torchmetrics, standard_error)


def _dict(value: Mapping[Any, Any], name: str) -> dict[Any, Any]:
    if isinstance(value, dict):
        return value
    if isinstance(value, Mapping):
        return dict(value)
    raise ValueError(f"{name} is of type {type(value).__name__}, not a dict by id")


def _list(value: Any, name: str) -> Any:
    if isinstance(value, (list, tuple)):
        return value
    raise ValueError(f"{name} is of type {type(value).__name__}, not a list")


def _one(caption: str | Sequence[str]) -> Sequence[str]:
    return [caption] if isinstance(caption, str) else caption


def _draws(draws: int) -> int:
    if draws < 1:
        raise ValueError(f"{draws} draws give no interval: ask for 1,000 or so")
    return draws


def _mean(each: list[float]) -> tuple[np.float64, Floats]:
    array = np.array(each)
    return np.float64(array.mean()), array


def _intervals(ends: tuple[list[list[float]], list[float], list[float]]) -> Intervals:
    def pair(ends: list[float]) -> Interval:
        low, high = ends
        return low, high

    b1, b2, b3, b4 = (pair(b) for b in ends[0])
    return Intervals((b1, b2, b3, b4), pair(ends[1]), pair(ends[2]))
