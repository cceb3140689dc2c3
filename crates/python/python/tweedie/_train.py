"""Trainings."""

from __future__ import annotations

import json
import operator
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional, Union

from tweedie import _images, _tweedie
from tweedie._progress import Progress

if TYPE_CHECKING:
    from tweedie._model import Model

Recipe = Union[str, os.PathLike[str], Mapping[str, Any], None]
#: What a callback gets: an event as ``metrics.jsonl`` has it; False ends the training.
Callback = Callable[[dict[str, Any]], Optional[bool]]


class Run:
    """The folder of a training: what came of it, and how it went."""

    def __init__(self, path: Union[str, os.PathLike[str]], finished: Optional[dict[str, Any]] = None) -> None:
        #: The folder.
        self.path = Path(path)
        self._finished = finished or {}
        if not (self.path / "config.toml").is_file():
            raise FileNotFoundError(f"{self.path}: no run is here (config.toml is missing)")

    @property
    def complete(self) -> Optional[bool]:
        """Whether it came to its end; None for a run that was opened."""
        return self._finished.get("complete")

    @property
    def best(self) -> Optional[float]:
        """The best evaluation; None if there was none, or for a run that was opened."""
        best = self._finished.get("best")
        return None if best is None else float(best["value"])

    @property
    def notes(self) -> list[str]:
        """What went wrong without ending it."""
        return list(self._finished.get("notes", []))

    def model(self, device: str = "auto", raw: bool = False) -> "Model":
        """Its model, from the best checkpoint."""
        from tweedie._model import load

        return load(self.path, device=device, raw=raw)

    def metrics(self, event: Optional[str] = None) -> Any:
        """What ``metrics.jsonl`` tells, as a DataFrame if pandas is installed, else as a list of dicts; of one kind of ``event``
        ("step", "eval", "eval-text", …) or all."""
        path = self.path / "metrics.jsonl"
        rows = []
        if path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                try:
                    row = json.loads(line)
                except ValueError:
                    continue  # the last line of a run that was killed
                if isinstance(row, dict) and event in (None, row.get("event")):
                    rows.append(row)
        try:
            import pandas  # type: ignore[import-untyped,unused-ignore]
        except ImportError:
            return rows
        return pandas.DataFrame(rows)

    def resume(self, data: Any = None, **how: Any) -> "Run":
        """Go on where it stopped, bit for bit; on the data that it was begun with, and their ``validation``, ``test``, ``classes`` and
        ``hold_out`` if they were named. The rest is as :func:`train` has it.
        """
        return _run(None, data, out=self.path, resume=True, **how)

    def __fspath__(self) -> str:
        return os.fspath(self.path)

    def __repr__(self) -> str:
        best = self._finished.get("best")
        told = f", {best['name']} {best['value']:.4g}" if best else ""
        return f"<tweedie.Run {self.path}{told}>"

    def _repr_html_(self) -> str:
        from tweedie._html import run_card

        return run_card(self)


def train(
    recipe: Recipe = None,
    data: Any = None,
    *,
    validation: Any = None,
    test: Any = None,
    out: Union[str, os.PathLike[str], None] = None,
    settings: Optional[Mapping[str, Any]] = None,
    callback: Optional[Callback] = None,
    device: str = "auto",
    budget: float = 600.0,
    task: Optional[str] = None,
    classes: Optional[Sequence[str]] = None,
    hold_out: Optional[float] = None,
    packed: bool = False,
    progress: Optional[bool] = None,
) -> Run:
    """Train a model, and return its :class:`Run`.

    ``recipe`` is the name of one (:func:`recipes`), a TOML file, or a dict of settings: ``{"train": {"epochs": 5}}`` or
    ``{"train.epochs": 5}``, with ``"recipe": "digits"`` for the one they are laid over. Without a recipe, one is made for the data at a path, for a training of
    ``budget`` seconds. ``settings`` come on top.

    ``data`` is a path, ``"embedded:digits"``, or any sequence of (image, label), of (image, text) or (image, [texts]), or of texts; images as
    :meth:`Model.classify` takes them. They are read when they are needed, from several threads. ``validation`` and ``test`` are more of them, ``hold_out`` is the share
    of the training examples to evaluate on where there is no validation split (a tenth by default).

    ``callback`` is called with each event; False ends the training, which is saved and can be gone on with (:meth:`Run.resume`). Ctrl-C
    does the same and raises KeyboardInterrupt.

    >>> import tempfile, tweedie
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     run = tweedie.train("digits", out=folder + "/run", settings={"train.epochs": 1}, progress=False)
    ...     answer = run.model(device="cpu").classify(tweedie.example("digits"))
    >>> run.complete, len(answer.probabilities)
    (True, 10)
    """
    return _run(
        recipe, data, out=out, settings=settings, callback=callback, device=device, budget=budget, task=task, classes=classes,
        hold_out=hold_out, packed=packed, progress=progress, validation=validation, test=test,
    )  # fmt: skip


def _run(
    recipe: Recipe,
    data: Any,
    *,
    out: Union[str, os.PathLike[str], None],
    resume: bool = False,
    other_data: bool = False,
    settings: Optional[Mapping[str, Any]] = None,
    callback: Optional[Callback] = None,
    device: str = "auto",
    budget: float = 600.0,
    task: Optional[str] = None,
    classes: Optional[Sequence[str]] = None,
    hold_out: Optional[float] = None,
    packed: bool = False,
    progress: Optional[bool] = None,
    validation: Any = None,
    test: Any = None,
) -> Run:
    if task not in (None, "class", "caption", "text"):
        raise ValueError(f"task = {task!r}; there are class, caption and text")
    name, base, sets = layered(recipe, settings)
    own = None
    path: Optional[str] = None
    if isinstance(data, (str, os.PathLike)):
        path = os.fsdecode(data)
    elif data is not None:
        share = hold_out
        if hold_out is None and validation is None:
            share = kept_share(out) if resume and out is not None else 0.1
        if share is not None and not resume:
            # For those who go on with it.
            sets.append(f"data.val_fraction={float(share)}")
        own = own_data(data, validation, test, classes, share, packed, task)
    if own is None:
        given = {"validation": validation, "test": test, "classes": classes, "hold_out": hold_out, "packed": packed or None}
        for what, value in given.items():
            if value is not None:
                raise ValueError(f"{what} goes with data that are a sequence")
    if resume and path is not None:
        sets.append(f"data.path={json.dumps(path)}")
        path = None
    spec = {
        "recipe": name,
        "settings": base,
        "sets": sets,
        "data": path,
        "out": os.fspath(out) if out is not None else free_folder(name or path or "run"),
        "device": device,
        "resume": resume,
        "other_data": other_data,
        "budget": float(budget),
        "task": task,
    }
    shown = Progress.of(progress)

    def tell(kind: str, text: str) -> bool:
        event = json.loads(text)
        shown.tell(kind, event)
        return kind != "event" or callback is None or callback(event) is not False

    try:
        finished = json.loads(_tweedie.train(json.dumps(spec), own, tell))
    finally:
        shown.close()
    return Run(finished["path"], finished)


def recipes() -> dict[str, str]:
    """The recipes, by name, with what they are for."""
    return dict(_tweedie.recipes())


def settings(recipe: Recipe = "digits", changes: Optional[Mapping[str, Any]] = None) -> dict[str, Any]:
    """Every setting of a recipe by its key, with ``changes`` laid over.

    >>> import tweedie
    >>> tweedie.settings("digits", {"train.epochs": 3})["train.epochs"]
    3
    """
    import tomllib

    name, base, sets = layered(recipe, changes)
    every = json.loads(_tweedie.settings_of(name, base, sets))
    return {key: tomllib.loads(f"x = {value}")["x"] for key, value in every.items()}


def layered(recipe: Recipe, changes: Optional[Mapping[str, Any]]) -> tuple[Optional[str], Optional[str], list[str]]:
    """A recipe's name or file, settings as TOML in its place, and ``KEY=VALUE`` on top."""
    sets = [f"{key}={toml(value)}" for key, value in flat(changes or {})]
    if recipe is None:
        return None, None, sets
    if isinstance(recipe, Mapping):
        rest = dict(recipe)
        name = rest.pop("recipe", None)
        own = [f"{key}={toml(value)}" for key, value in flat(rest)]
        if name is not None:
            return os.fspath(name), None, own + sets
        return None, "\n".join(own), sets
    return os.fspath(recipe), None, sets


def flat(settings: Mapping[str, Any], before: str = "") -> list[tuple[str, Any]]:
    every: list[tuple[str, Any]] = []
    for key, value in settings.items():
        if isinstance(value, Mapping):
            every += flat(value, f"{before}{key}.")
        else:
            every.append((f"{before}{key}", value))
    return every


def toml(value: Any) -> str:
    """A value as TOML, which is JSON's form for all that settings hold."""
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(toml(v) for v in value)}]"
    if hasattr(value, "item"):
        value = value.item()  # a number of NumPy's
    if not isinstance(value, (bool, int, float, str)):
        raise TypeError(f"a setting is a number, a string, a boolean or a list of them, not {type(value).__name__}")
    return json.dumps(value)


def free_folder(name: str) -> str:
    """The first ``runs/NAME-N`` that is not there yet."""
    stem = Path(name.removeprefix("embedded:")).stem or "run"
    n = 1
    while Path(f"runs/{stem}-{n}").exists():
        n += 1
    return f"runs/{stem}-{n}"


def kept_share(run: Union[str, os.PathLike[str]]) -> Optional[float]:
    """The share that a run holds out."""
    import tomllib

    path = Path(run) / "config.toml"
    told = tomllib.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    share = told.get("data", {}).get("val_fraction")
    return None if share is None else float(share)


def own_data(
    data: Any,
    validation: Any,
    test: Any,
    classes: Optional[Sequence[str]],
    hold_out: Optional[float],
    packed: bool,
    task: Optional[str],
) -> dict[str, Any]:
    """A sequence's examples as the native part reads them."""
    splits = {"train": data, "validation": validation, "test": test}
    wanted = "classes" if classes is not None or task == "class" else "captions" if task == "caption" else None
    found = {name: examples(split, name, wanted) for name, split in splits.items() if split is not None}
    kinds = {kind for kind, _, _ in found.values()}
    if len(kinds) > 1:
        raise ValueError(f"the splits hold different things: {', '.join(sorted(kinds))}")
    kind = kinds.pop()
    names: list[str] = []
    told: dict[str, Any] = {}
    if kind == "classes":
        labels = {name: values for name, (_, _, values) in found.items()}
        names, numbers = numbered(labels, classes)
        told = {name: part(get, len(numbers[name]), labels=numbers[name]) for name, (_, get, _) in found.items()}
    else:
        told = {name: part(get, len(values), texts=values) for name, (_, get, values) in found.items()}
    return {
        "name": getattr(data, "name", None) or type(data).__name__,
        "classes": names,
        "train": told["train"],
        "validation": told.get("validation"),
        "test": told.get("test"),
        "hold_out": hold_out,
        "packed": packed,
    }


def part(get: Any, count: int, labels: Any = None, texts: Any = None) -> dict[str, Any]:
    return {"image": get, "len": count, "labels": labels, "texts": texts}


def examples(split: Any, name: str, wanted: Optional[str] = None) -> tuple[str, Any, list[Any]]:
    """What a sequence holds ("classes", "captions" or "texts"), how to get an image of it, and its labels or texts.

    Whether strings are classes or captions is ``wanted``, or found out.
    """
    if not (hasattr(split, "__len__") and hasattr(split, "__getitem__")):
        split = list(split)
    if len(split) == 0:
        raise ValueError(f"{name}: there are no examples")
    first = split[0]
    if isinstance(first, str):
        return "texts", None, [[check_text(split[i], name, i)] for i in range(len(split))]
    if isinstance(first, Mapping) or not (hasattr(first, "__len__") and len(first) == 2):
        raise TypeError(f"{name}: an example is (image, label), (image, text) or a text, not {type(first).__name__}")

    broken: dict[int, Exception] = {}

    def get(i: int) -> Any:
        if i in broken:
            raise broken[i]
        return _images.one(split[i][0], place=f"{name} example {i}")

    second = []
    for i in range(len(split)):
        try:
            second.append(split[i][1])
        except (ValueError, OSError) as e:
            # An image that cannot be read has no label either; the training passes over it.
            broken[i] = e
            second.append(first[1])
    if isinstance(second[0], str) or isinstance(second[0], (list, tuple)):
        texts = [[t] if isinstance(t, str) else [check_text(x, name, i) for x in t] for i, t in enumerate(second)]
        # Words that come again and again are names of classes.
        single = all(isinstance(t, str) for t in second)
        few = len({*second}) <= max(2, len(second) // 4) and not any(" " in t for t in second[:1000]) if single else False
        if single and (wanted == "classes" or wanted is None and few):
            return "classes", get, second
        return "captions", get, texts
    return "classes", get, [label(x, name, i) for i, x in enumerate(second)]


def check_text(text: Any, name: str, i: int) -> str:
    if not isinstance(text, str):
        raise TypeError(f"{name} example {i}: a text must be a string, not {type(text).__name__}")
    return text


def label(x: Any, name: str, i: int) -> Union[int, str]:
    if isinstance(x, str):
        return x
    try:
        return operator.index(x)
    except TypeError:
        raise TypeError(f"{name} example {i}: a label is a whole number or a string, not {type(x).__name__}") from None


def numbered(labels: dict[str, list[Any]], classes: Optional[Sequence[str]]) -> tuple[list[str], dict[str, list[int]]]:
    """Names of the classes, and the number of each example's."""
    every = {x for values in labels.values() for x in values}
    if all(isinstance(x, int) for x in every):
        low, high = min(every), max(every)
        if low < 0:
            raise ValueError(f"a label is {low}; they count from 0")
        names = list(classes) if classes is not None else [str(i) for i in range(high + 1)]
        if high >= len(names):
            raise ValueError(f"a label is {high}, and {len(names)} classes have names")
        return names, labels
    names = list(classes) if classes is not None else sorted(str(x) for x in every)
    at = {name: i for i, name in enumerate(names)}
    missing = sorted(str(x) for x in every if str(x) not in at)
    if missing:
        raise ValueError(f"the label {missing[0]!r} is not among the classes {', '.join(names[:8])}")
    return names, {split: [at[str(x)] for x in values] for split, values in labels.items()}
