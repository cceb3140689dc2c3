"""Trained models: load one, and ask."""

from __future__ import annotations

import copy
import json
import os
import sys
from collections.abc import Iterable, Sequence
from typing import Any, Optional, Union, Unpack, cast, overload

import numpy as np
import numpy.typing as npt

from tweedie import _asked, _images, _tweedie
from tweedie._asked import Captioning, Classifying, Generating
from tweedie._html import card
from tweedie._images import File, Images, Many
from tweedie._plug import Sampler, Schedule, native_sampler
from tweedie._results import Answer, Scores, Text
from tweedie._trace import Trace

#: Times drawn for each bound, as the command has it.
DRAWS = 16


def load(run: Union[str, os.PathLike[str], Any], *, device: str = "auto", raw: bool = False) -> "Model":
    """A trained model: a run folder, one of its checkpoints, a ``.tdd`` file, or one that is inside (``"embedded:digits"``, see
    :func:`embedded_models`).

    ``device`` is "auto" (a usable GPU, else the CPU), "cpu", "cuda" or "cuda:N"; ``raw`` takes the weights as they were trained instead of their average.

    >>> import tweedie
    >>> model = tweedie.load("embedded:digits", device="cpu")
    >>> model.task, model.method, model.classes[:3]
    ('class', 'tdd', ['0', '1', '2'])
    """
    path = os.fspath(getattr(run, "path", run))
    if not path.startswith("embedded:") and not os.path.exists(path):
        raise FileNotFoundError(
            f"{path}: no such run, checkpoint or file; there are also {', '.join('embedded:' + n for n in embedded_models())}"
        )
    return Model(_tweedie.Model(path, device, raw))


def embedded_models() -> dict[str, str]:
    """The models that are inside, by name, with what they are."""
    return dict(_tweedie.embedded_models())


class Model:
    """A trained model, made by :func:`load`. Any thread may use it; calls wait for each other, and two models work at once."""

    def __init__(self, native: _tweedie.Model) -> None:
        self._native = native
        self._facts: dict[str, Any] = json.loads(native.facts)
        self._tokens: dict[int, str] = {}

    @property
    def path(self) -> str:
        """Where it was loaded from."""
        return cast(str, self._facts["path"])

    @property
    def task(self) -> str:
        """"class", "caption" or "text"."""
        return cast(str, self._facts["task"])

    @property
    def method(self) -> str:
        """"tdd", or "mdd" for its masked twin."""
        return cast(str, self._facts["method"])

    @property
    def device(self) -> str:
        """"cpu" or "cuda:N"."""
        return cast(str, self._facts["device"])

    @property
    def classes(self) -> list[str]:
        """Names of the classes; none for texts."""
        return list(self._facts["classes"])

    @property
    def facts(self) -> dict[str, Any]:
        """All that is known of it: sizes, parameters, checkpoint, sampling settings."""
        return copy.deepcopy(self._facts)

    @overload
    def classify(self, images: File, **how: Unpack[Classifying]) -> Answer: ...
    @overload
    def classify(self, images: Many, **how: Unpack[Classifying]) -> list[Answer]: ...
    @overload
    def classify(self, images: Images, **how: Unpack[Classifying]) -> Any: ...

    def classify(
        self,
        images: Images,
        *,
        steps: Optional[int] = None,
        guidance: Optional[float] = None,
        running_mean: Optional[bool] = None,
        votes: Optional[int] = None,
        sampler: Union[str, Sampler, None] = None,
        schedule: Union[str, Schedule, None] = None,
        seed: Optional[int] = None,
    ) -> Any:
        """What is on an image: an :class:`Answer`, or a list of them for several images.

        An answer does not depend on what else is asked for. Steps, guidance, running_mean, votes, sampler and seed go to the sampler,
        whose class is ``answer.sampled``; ``answer.probabilities`` are the model's posterior.

        >>> import tweedie
        >>> model = tweedie.load("embedded:digits")
        >>> image = tweedie.example("digits")
        >>> [answer.label for answer in model.classify([image, image])]
        ['4', '4']
        """
        self._is("class", "classify")
        every, single = _images.many(images)
        asked, own, along = self._asked(sampler, schedule, steps=steps, guidance=guidance, running_mean=running_mean, votes=votes, seed=seed)
        answers = [self._answer(told) for told in self._native.classify(every, asked, along, own)]
        return answers[0] if single else answers

    @overload
    def caption(self, images: File, **how: Unpack[Captioning]) -> Text: ...
    @overload
    def caption(self, images: Many, **how: Unpack[Captioning]) -> list[Text]: ...
    @overload
    def caption(self, images: Images, **how: Unpack[Captioning]) -> Any: ...

    def caption(
        self,
        images: Images,
        *,
        infill: Optional[str] = None,
        length: Optional[int] = None,
        min_length: int = 1,
        candidates: Optional[int] = None,
        rank: Optional[str] = None,
        draws: int = DRAWS,
        steps: Optional[int] = None,
        guidance: Optional[float] = None,
        sampler: Union[str, Sampler, None] = None,
        unmask: Optional[str] = None,
        uncommitted: Optional[float] = None,
        correction: Optional[float] = None,
        stagger: Optional[int] = None,
        schedule: Union[str, Schedule, None] = None,
        seed: Optional[int] = None,
    ) -> Any:
        """What is on an image, in words: a :class:`Text`, or a list of them for several images.

        ``infill="a __ dog"`` fixes words and leaves a token for each underscore; with ``candidates`` that many are written and the best is returned, with
        the others in ``text.candidates``.

        >>> import tweedie
        >>> model = tweedie.load("embedded:shapes")
        >>> image = tweedie.example("shapes")
        >>> model.caption(image).split()[0]
        'a'
        """
        self._is("caption", "caption")
        every, single = _images.many(images)
        asked, own, along = self._asked(
            sampler, schedule, steps=steps, guidance=guidance, unmask=unmask, uncommitted=uncommitted, correction=correction, stagger=stagger, seed=seed,
            candidates=candidates, rank=rank,
        )  # fmt: skip
        shape = self._shape(None, infill, length, min_length)
        texts = [Text.of(told) for told in self._native.caption(every, asked, shape, _asked.positive("draws", draws), along, own)]
        return texts[0] if single else texts

    @overload
    def generate(self, number: None = None, **how: Unpack[Generating]) -> Text: ...
    @overload
    def generate(self, number: int, **how: Unpack[Generating]) -> list[Text]: ...

    def generate(
        self,
        number: Optional[int] = None,
        *,
        prompt: Optional[str] = None,
        infill: Optional[str] = None,
        length: Optional[int] = None,
        min_length: int = 1,
        candidates: Optional[int] = None,
        rank: Optional[str] = None,
        draws: int = DRAWS,
        steps: Optional[int] = None,
        sampler: Union[str, Sampler, None] = None,
        unmask: Optional[str] = None,
        uncommitted: Optional[float] = None,
        correction: Optional[float] = None,
        stagger: Optional[int] = None,
        schedule: Union[str, Schedule, None] = None,
        seed: Optional[int] = None,
    ) -> Union[Text, list[Text]]:
        """A text, or a list of ``number`` texts.

        >>> import tweedie
        >>> model = tweedie.load("embedded:shakespeare")
        >>> texts = model.generate(2, prompt="KING:", steps=16)
        >>> [text[:5] for text in texts]
        ['KING:', 'KING:']
        """
        self._is("text", "generate")
        if number is not None and _asked.whole("number", number) < 1:
            raise ValueError(f"number = {number}; at least one text is written")
        asked, own, along = self._asked(
            sampler, schedule, steps=steps, unmask=unmask, uncommitted=uncommitted, correction=correction, stagger=stagger, seed=seed,
            candidates=candidates, rank=rank,
        )  # fmt: skip
        shape = self._shape(prompt, infill, length, min_length)
        draws = _asked.positive("draws", draws)
        texts = [Text.of(told) for told in self._native.generate(number or 1, asked, shape, draws, along, own)]
        return texts[0] if number is None else texts

    def score(self, texts: Union[str, Iterable[str]], images: Images = None, *, draws: int = DRAWS) -> Scores:
        """Upper bounds on −ln p of texts, in bits per token; a model of captions needs the image of each.

        Of a model that reads windows of a stream whole windows count.

        >>> import tweedie
        >>> model = tweedie.load("embedded:shapes")
        >>> image = tweedie.example("shapes")
        >>> scores = model.score([model.caption(image), "a red"], [image, image])
        >>> bool(scores.bits[0] < scores.bits[1])
        True
        """
        if self.task == "class":
            raise ValueError("this model classifies images, it scores no text; model.classify(images) has probabilities")
        every = _asked.texts(texts)
        draws = _asked.positive("draws", draws)
        if not every:
            return Scores(np.zeros(0), np.zeros(0), np.zeros(0), np.zeros(0, np.int64))
        pictures = None if images is None else _images.many(images)[0]
        told = self._native.score(every, pictures, draws)
        nats, error, tokens = (np.array(x) for x in zip(*told))
        return Scores(nats / tokens / np.log(2), nats, error, tokens.astype(np.int64))

    def trace(
        self,
        image: Any = None,
        *,
        prompt: Optional[str] = None,
        infill: Optional[str] = None,
        length: Optional[int] = None,
        min_length: int = 1,
        candidates: Optional[int] = None,
        steps: Optional[int] = None,
        guidance: Optional[float] = None,
        running_mean: Optional[bool] = None,
        sampler: Optional[str] = None,
        unmask: Optional[str] = None,
        uncommitted: Optional[float] = None,
        correction: Optional[float] = None,
        stagger: Optional[int] = None,
        schedule: Optional[str] = None,
        seed: Optional[int] = None,
        top: int = 5,
        probabilities: bool = True,
    ) -> Trace:
        """One sampling step by step: an iterator over :class:`Step`, which takes each step when it is asked for.

        >>> import tweedie
        >>> for step in tweedie.load("embedded:shakespeare").trace(prompt="To be", steps=3, top=2):
        ...     print(step.step, step.t, step.probabilities.shape[0] == len(step.tokens))
        1 1000 True
        2 667 True
        3 333 True
        """
        if not 1 <= _asked.whole("top", top) <= 8:
            raise ValueError(f"top = {top}; it is 1 to 8")
        if isinstance(image, (list, tuple)):
            raise TypeError("a trace is of one image, not of a list")
        if self.task == "class" and (prompt, infill, length, min_length) != (None, None, None, 1):
            raise ValueError("prompt, infill and lengths are for texts; this model classifies images")
        native = None if image is None else _images.one(image)
        asked, own, along = self._asked(
            sampler, schedule, steps=steps, guidance=guidance, unmask=unmask, uncommitted=uncommitted, correction=correction, stagger=stagger, seed=seed,
            running_mean=running_mean, candidates=candidates,
        )  # fmt: skip
        if own is not None or along is not None:
            raise ValueError("a trace has built-in samplers and schedules; one of your own sees each step by itself")
        shape = self._shape(prompt, infill, length, min_length)
        name = self._native.trace(native, asked, shape, top, probabilities, 0)
        sample = {**self._facts["sample"], **json.loads(asked)}
        about = {
            "run": self.path,
            "method": self.method.upper(),
            "task": self.task,
            "sampler": sample["sampler"],
            "guidance": sample["guidance"],
            "seed": sample["seed"],
            "input": native if isinstance(native, str) else None,
        }
        return Trace(self, name, about, None if native is None else self._native.preview(native))

    def logits(
        self,
        images: Any,
        *,
        steps: Optional[int] = None,
        guidance: Optional[float] = None,
        running_mean: Optional[bool] = None,
        seed: Optional[int] = None,
    ) -> _tweedie.Tensor:
        """Class logits of the sampler's last step, a :class:`Tensor` [B, V] on the model's device: ``torch.from_dlpack`` takes it
        without a copy, and ``np.asarray`` where it lies on the CPU.

        A CUDA tensor of PyTorch [B, C, side, side] or [B, side, side, C] of the model's own size, of uint8 or of floats in [0, 1], goes
        in without a way through the host.

        >>> import numpy as np, tweedie
        >>> logits = tweedie.load("embedded:digits").logits(tweedie.example("digits"), steps=2)
        >>> logits.shape, int(np.asarray(logits).argmax())
        ((1, 10), 4)
        """
        self._is("class", "logits")
        asked, _, _ = self._asked(None, None, steps=steps, guidance=guidance, running_mean=running_mean, seed=seed)
        return self._native.logits(self._prepared(images), asked)

    def _prepared(self, images: Any) -> _tweedie.Tensor:
        """Images as the network reads them, on its device."""
        if not (_images.is_torch(images) and images.is_cuda):
            return self._native.prepare(_images.many(images)[0])
        if self.device == "cpu":
            raise ValueError("the images lie on a GPU and the model on the CPU; call images.cpu(), or load(…, device='cuda')")
        size, depth = self._facts["image"]["size"], self._facts["image"]["channels"]
        x = _images.batch(images)
        if tuple(x.shape[1:]) != (depth, size, size):
            raise ValueError(
                f"images on a GPU must be [B, {depth}, {size}, {size}], they are {list(x.shape)}; resize them, or hand them over on the CPU"
            )
        # Plain numbers go along with the kernels; a tensor of them would be copied, and waited for.
        channels = [(x[:, i] - mean) / std for i, (mean, std) in enumerate(zip(self._facts["mean"], self._facts["std"]))]
        torch = sys.modules["torch"]
        with torch.cuda.device(x.device):  # what is handed over waits for the stream of the present device
            return self._native.import_tensor(torch.stack(channels, 1))

    def encode(self, text: str) -> npt.NDArray[np.uint32]:
        """The tokens of a text."""
        return np.array(self._native.encode(text), dtype=np.uint32)

    def decode(self, tokens: Union[Sequence[int], npt.NDArray[np.integer[Any]]]) -> str:
        """The text of tokens, up to their end."""
        ids = [int(t) for t in tokens]
        for i in ids:
            if not 0 <= i < self._facts["vocab"]:
                raise ValueError(f"there is no token {i}; there are {self._facts['vocab']}, from 0 on")
        return self._native.decode(ids)

    def _token(self, i: int) -> str:
        if i not in self._tokens:
            self._tokens[i] = self._facts["classes"][i] if self.task == "class" else self._native.token(i)
        return self._tokens[i]

    def _shown(self, tokens: npt.NDArray[np.int64]) -> str:
        if self.task == "class":
            return self._token(int(tokens[0]))
        if (tokens >= 0).all():
            return self.decode([int(t) for t in tokens])
        parts = ["▒" if t < 0 else self._token(int(t)) for t in tokens]
        # Single characters stand side by side; line ends and marks are shown as they are written.
        letters = all(len(p) == 1 or p.startswith(("\\", "<")) for p in parts)
        return ("" if letters else " ").join(parts)

    def _answer(self, told: tuple[list[tuple[str, float]], str, float]) -> Answer:
        ranking, sampled, certainty = told
        by_name = dict(ranking)
        p = np.array([by_name[name] for name in self._facts["classes"]])
        return Answer(ranking[0][0], ranking[0][1], p, sampled, certainty, ranking)

    def _is(self, task: str, call: str) -> None:
        """Refuse what the model is not for."""
        if self.task != task:
            does = {"class": "classifies images: classify", "caption": "describes images: caption", "text": "writes text: generate"}
            raise ValueError(f"{call} is not for this model, which {does[self.task]}")

    def _asked(self, sampler: Any, schedule: Any, **asked: Any) -> tuple[str, Any, Any]:
        """JSON for the native part, a sampler and a schedule of one's own."""
        own, along = None, None
        if isinstance(sampler, str):
            asked["sampler"] = sampler
        elif sampler is not None:
            own = native_sampler(sampler)
        if isinstance(schedule, str):
            asked["schedule"] = schedule
        elif schedule is not None:
            if not isinstance(schedule, Schedule):
                raise TypeError(f"a schedule is a name or a tweedie.Schedule, not {type(schedule).__name__}")
            along = schedule._native
        return json.dumps(_asked.checked(asked)), own, along

    def _shape(self, prompt: Optional[str], infill: Optional[str], length: Optional[int], min_length: int) -> dict[str, Any]:
        for name, tokens in (("length", length), ("min_length", min_length)):
            if tokens is not None and not 0 <= _asked.whole(name, tokens) <= self._facts["tokens"]:
                raise ValueError(f"{name} = {tokens}: the model writes {self._facts['tokens']} tokens at most")
        for name, text in (("prompt", prompt), ("infill", infill)):
            if text is not None and not isinstance(text, str):
                raise TypeError(f"{name} is a text, not {type(text).__name__}")
        return {"prompt": prompt, "infill": infill, "length": length, "min_length": min_length}

    def __repr__(self) -> str:
        return f"<tweedie.Model {self.path}: {self.task}, {self.method.upper()}, {self._facts['parameters']:,} parameters, {self.device}>"

    def _repr_html_(self) -> str:
        f = self._facts
        size, channels = f["image"]["size"], f["image"]["channels"]
        does = {"class": "classifies images", "caption": "describes images", "text": "writes text"}
        rows = {
            "task": does[self.task],
            "method": "Tweedie Discrete Diffusion" if self.method == "tdd" else "masked twin (MDD)",
            "parameters": f"{f['parameters']:,}",
            "classes" if self.task == "class" else "vocabulary": f"{f['vocab']:,}",
            "image": f"{size}×{size}, {'grey' if channels == 1 else 'colour'}" if f["conditional"] else None,
            "tokens": str(f["tokens"]) if self.task != "class" else None,
            "sampling": f"{f['sample']['steps']} steps of {f['sample']['sampler']}, guidance {f['sample']['guidance']:g}",
            "trained": f"{f['step']:,} steps" + (f" on {f['data']}" if f["data"] else ""),
            "device": self.device,
        }
        return card(self.path, rows, {"device": f["device_reason"]})
