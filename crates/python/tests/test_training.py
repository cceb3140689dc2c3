"""Trainings: on what is inside, on sequences of Python's, with callbacks, stopped and gone on with."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import tweedie

DIGITS = [(x, int(label)) for x, label in tweedie.examples("digits", "train", 300)]
SCENES = [(x, texts) for x, texts in tweedie.examples("shapes", "train", 120)]
ONE = {"train.epochs": 1, "train.warmup_epochs": 0.1}
TWO = ONE | {"train.epochs": 2}


def train(out: Path, recipe="digits", data=None, **how) -> tweedie.Run:
    return tweedie.train(recipe, data, **{"out": out, "device": "cpu", "progress": False, "settings": TWO} | how)


def weights(run: tweedie.Run) -> bytes:
    last = max((run.path / "checkpoints").glob("step-*"))
    return (last / "model.safetensors").read_bytes()


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> tweedie.Run:
    """A short one on digits of a sequence, to the end."""
    return train(tmp_path_factory.mktemp("runs") / "run", data=DIGITS)


def test_a_run(run, digit):
    assert run.complete is True and 0 <= run.best <= 1
    assert run.path.is_dir() and (run.path / "config.toml").is_file()
    assert str(run.path) in repr(run) and "top-1" in repr(run)
    model = run.model(device="cpu")
    assert (model.task, model.classes) == ("class", [str(i) for i in range(10)])
    assert model.classify(digit) == tweedie.load(run, device="cpu").classify(digit)
    assert model.classify(digit) == tweedie.load(str(run.path), device="cpu").classify(digit)
    raw = run.model(device="cpu", raw=True)
    assert (raw.classify(digit).probabilities != model.classify(digit).probabilities).any()
    html = run._repr_html_()
    assert "<polyline" in html and str(run.path) in html


def test_it_learns(tmp_path):
    run = train(tmp_path / "run", data=[(x, int(y)) for x, y in tweedie.examples("digits", "train")], settings=ONE | {"train.epochs": 6})
    # Chance is a tenth.
    assert run.best > 0.3


def test_the_same_seed_gives_the_same_weights(run, tmp_path):
    again = train(tmp_path / "again", data=DIGITS)
    other = train(tmp_path / "other", data=DIGITS, settings=TWO | {"seed": 1})
    assert weights(again) == weights(run) != weights(other)


@pytest.mark.parametrize("form", ["floats", "PIL", "file", "bytes", "strings", "NumPy labels", "generator", "Dataset"])
def test_a_form_of_examples_is_as_any_other(run, tmp_path, form):
    """The same images in another form: the same weights."""

    class Lazy:
        def __len__(self):
            return len(DIGITS)

        def __getitem__(self, i):
            return DIGITS[i]

    if form in ("file", "bytes"):
        paths = [tmp_path / f"{i}.png" for i in range(len(DIGITS))]
        for path, (x, _) in zip(paths, DIGITS):
            Image.fromarray(x[:, :, 0]).save(path)
    data = {
        "floats": lambda: [(x / 255, y) for x, y in DIGITS],
        "PIL": lambda: [(Image.fromarray(x[:, :, 0]), y) for x, y in DIGITS],
        "file": lambda: [(p, y) for p, (_, y) in zip(paths, DIGITS)],
        "bytes": lambda: [(p.read_bytes(), y) for p, (_, y) in zip(paths, DIGITS)],
        "strings": lambda: [(x, str(y)) for x, y in DIGITS],
        "NumPy labels": lambda: [(x, np.int64(y)) for x, y in DIGITS],
        "generator": lambda: (pair for pair in DIGITS),
        "Dataset": Lazy,
    }[form]()
    assert weights(train(tmp_path / "run", data=data)) == weights(run)


def test_names_of_classes(tmp_path):
    named = [(Image.fromarray(x[:, :, 0]), f"digit {y}" if y % 2 else f"number {y}") for x, y in DIGITS[:60]]
    run = train(tmp_path / "run", data=named, settings=ONE, classes=[f"digit {y}" if y % 2 else f"number {y}" for y in range(10)])
    assert run.model(device="cpu").classes[:3] == ["number 0", "digit 1", "number 2"]
    cats = [(x, "odd" if y % 2 else "even") for x, y in DIGITS[:60]]
    assert train(tmp_path / "other", data=cats, settings=ONE).model(device="cpu").classes == ["even", "odd"]


def test_captions(tmp_path, scene):
    every = [(x, list(texts)) for x, texts in SCENES]
    first = [(Image.fromarray(x), texts[0]) for x, texts in SCENES]
    for name, data in (("every", every), ("first", first)):
        run = train(tmp_path / name, "shapes", data, settings=ONE)
        assert run.model(device="cpu").task == "caption"
        assert isinstance(run.model(device="cpu").caption(scene), tweedie.Text)


def test_texts(tmp_path):
    lines = [f"to be or not to be, that is question {i}.\n" * 4 for i in range(60)]
    settings = ONE | {"train.batch": 8, "model.denoiser.depth": 1}
    run = train(tmp_path / "run", "shakespeare", lines, settings=settings, packed=True)
    model = run.model(device="cpu")
    assert model.task == "text" and len(model.generate(steps=2)) > 0


def test_splits(run, tmp_path):
    seen = train(tmp_path / "run", data=DIGITS[:200], validation=DIGITS[200:], settings=ONE)
    assert seen.complete
    rows = [json.loads(line) for line in (seen.path / "metrics.jsonl").read_text().splitlines()]
    assert [r["images"] for r in rows if r["event"] == "eval"] == [100]
    held = train(tmp_path / "held", data=DIGITS[:200], hold_out=0.25, settings=ONE)
    rows = [json.loads(line) for line in (held.path / "metrics.jsonl").read_text().splitlines()]
    (held_out,) = [r["images"] for r in rows if r["event"] == "eval"]
    # A share of each class, rounded.
    assert 35 <= held_out <= 65


def test_events(tmp_path):
    events = []
    run = train(tmp_path / "run", data=DIGITS, settings=TWO, callback=events.append)
    kinds = [e["event"] for e in events if e["event"] != "note"]
    assert kinds[0] == "begin" and kinds[1] == "step" and "eval" in kinds and kinds[-1] == "saved"
    steps = [e["step"] for e in events if e["event"] == "step"]
    assert steps == sorted(set(steps)) and steps[-1] == events[-1]["step"]
    begin = next(e for e in events if e["event"] == "begin")
    assert (begin["task"], begin["method"], begin["device"], begin["total_steps"]) == ("class", "tdd", "cpu", steps[-1])
    # What is written is what was told.
    written = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    assert written == [e for e in events if e["event"] not in ("note", "begin")]


def test_the_masked_twin_by_a_dict(tmp_path):
    recipe = {"recipe": "digits", "model": {"method": "mdd"}, "train.epochs": 1}
    run = tweedie.train(recipe, out=tmp_path / "run", device="cpu", progress=False)
    assert run.complete and run.model(device="cpu").method == "mdd"


def stop_at(kind: str, count: int = 1):
    seen = []

    def callback(event):
        seen.append(event["event"])
        return seen.count(kind) < count

    return callback


@pytest.mark.parametrize("data", [None, DIGITS], ids=["digits", "sequence"])
def test_false_stops_and_resume_goes_on(tmp_path, data):
    settings = ONE | {"train.epochs": 2 if data is None else 6}
    whole = train(tmp_path / "whole", data=data, settings=settings)
    stopped = train(tmp_path / "run", data=data, settings=settings, callback=stop_at("step"))
    assert stopped.complete is False
    on = stopped.resume(data, device="cpu", progress=False)
    assert on.complete is True and on.path == stopped.path
    assert weights(on) == weights(whole)
    # An opened one does as well, and has nothing left to do.
    assert tweedie.Run(stopped.path).resume(data, device="cpu", progress=False).complete is True
    assert weights(on) == weights(whole)


def test_a_run_on_a_sequence_needs_it_again(tmp_path):
    stopped = train(tmp_path / "run", data=DIGITS, callback=stop_at("step"))
    with pytest.raises(ValueError, match="hand them over again"):
        stopped.resume(device="cpu", progress=False)
    with pytest.raises(ValueError, match="begun on other data"):
        stopped.resume(DIGITS[:200], device="cpu", progress=False)


def test_an_exception_of_the_callback_comes_out(run, tmp_path):
    error = KeyError("mine")

    def callback(event):
        if event["event"] == "step":
            raise error

    with pytest.raises(KeyError) as told:
        train(tmp_path / "run", data=DIGITS, callback=callback)
    assert told.value is error
    on = tweedie.Run(tmp_path / "run").resume(DIGITS, device="cpu", progress=False)
    assert on.complete and weights(on) == weights(run)


class Some:
    """Examples of which some are broken."""

    def __init__(self, broken: dict[int, object]) -> None:
        self.broken = broken
        self.asked = 0

    def __len__(self) -> int:
        return len(DIGITS)

    def __getitem__(self, i: int):
        self.asked += 1
        x, label = DIGITS[i]
        wrong = self.broken.get(i)
        if isinstance(wrong, BaseException):
            raise wrong
        return (x if wrong is None else wrong, label)


def test_broken_images_are_passed_over_and_told(tmp_path):
    broken = {
        3: np.full((8, 8), 7.0),
        40: b"no image",
        80: "nowhere.png",
        120: OSError("the disk is gone"),
        160: ValueError("a bad file"),
        200: np.zeros((8, 8, 4)),
    }
    events = []
    run = train(tmp_path / "run", data=Some(broken), hold_out=0.02, callback=events.append)
    assert run.complete
    told = "\n".join(e for event in events if event["event"] == "skipped" for e in event["errors"])
    skipped = sum(event["examples"] for event in events if event["event"] == "skipped")
    assert skipped >= 4  # those that are not held out
    for words in ("floats from 7 to 7", "nowhere.png", "example"):
        assert words in told, told


@pytest.mark.parametrize("when", ["labels", "training"])
def test_an_unexpected_exception_of_the_sequence_comes_out(tmp_path, when):
    error = RuntimeError("disk on fire")

    class Late(Some):
        def __getitem__(self, i):
            if self.asked > (0 if when == "labels" else 2 * len(DIGITS)):
                raise error
            return super().__getitem__(i)

    with pytest.raises(RuntimeError) as told:
        train(tmp_path / "run", data=Late({}))
    assert told.value is error
    if when == "training":
        on = tweedie.Run(tmp_path / "run").resume(DIGITS, device="cpu", progress=False, other_data=True)
        assert on.complete


def test_settings():
    every = tweedie.settings("digits", {"train.epochs": 3})
    assert every["train.epochs"] == 3 and len(every) > 40
    assert tweedie.settings({"recipe": "digits", "train": {"epochs": 4}})["train.epochs"] == 4
    assert tweedie.settings({"recipe": "digits", "train": {"epochs": 4}}, {"train.epochs": 5})["train.epochs"] == 5
    assert tweedie.settings("digits", {"train": {"epochs": np.int64(6)}})["train.epochs"] == 6
    with pytest.raises(ValueError, match="train.epoch'; did you mean 'train.epochs'"):
        tweedie.settings("digits", {"train.epoch": 3})


@pytest.mark.parametrize(
    "how, kind, words",
    [
        ({"settings": {"train.epoch": 1}}, ValueError, "did you mean 'train.epochs'"),
        ({"settings": {"nonsense": 1}}, ValueError, "nonsense.*train"),
        ({"settings": {"train.epochs": "many"}}, ValueError, "train.epochs.*whole number"),
        ({"settings": {"train.epochs": None}}, TypeError, "NoneType"),
        ({"recipe": "digit"}, ValueError, "did you mean 'digits'"),
        ({"recipe": {"recipe": "digits", "train": {"epoch": 1}}}, ValueError, "train.epochs"),
        ({"recipe": None}, ValueError, "name a recipe"),
        ({"recipe": None, "data": DIGITS}, ValueError, "name a recipe"),
        ({"data": "nowhere"}, FileNotFoundError, "nowhere"),
        ({"data": []}, ValueError, "no examples"),
        ({"data": [3, 4]}, TypeError, "an example is .image, label."),
        ({"data": [{"image": 1, "label": 2}]}, TypeError, "not dict"),
        ({"data": [(DIGITS[0][0], None)]}, TypeError, "example 0: a label is a whole number or a string"),
        ({"data": [(DIGITS[0][0], 1.7)]}, TypeError, "not float"),
        ({"data": [(DIGITS[0][0], -1)] * 9}, ValueError, "a label is -1"),
        ({"data": ["a", 3], "recipe": "shakespeare"}, TypeError, "example 1: a text must be a string"),
        ({"data": DIGITS, "classes": ["a", "b"]}, ValueError, "a label is 9, and 2 classes"),
        ({"data": DIGITS, "hold_out": 2.0}, ValueError, r"2.*must lie in \[0, 1\)"),
        ({"data": "embedded:digits", "validation": DIGITS}, ValueError, "validation goes with data that are a sequence"),
        ({"classes": ["a"]}, ValueError, "classes goes with data"),
        ({"data": DIGITS, "validation": ["a"]}, ValueError, "different things"),
        ({"task": "classes"}, ValueError, "class, caption and text"),
    ],
    ids=lambda x: next(iter(x)) if isinstance(x, dict) else None,
)
def test_trainings_that_cannot_be(tmp_path, how, kind, words):
    with pytest.raises(kind, match=words):
        train(tmp_path / "run", **how)
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_a_folder_that_holds_a_run_is_not_written_over(run):
    before = weights(run)
    with pytest.raises((ValueError, OSError), match="already holds a run"):
        train(run.path, data=DIGITS)
    assert weights(run) == before
    with pytest.raises(FileNotFoundError, match="no run is here"):
        tweedie.Run(run.path.parent)


def test_metrics_are_a_data_frame(run):
    pandas = pytest.importorskip("pandas")
    frame = run.metrics()
    assert isinstance(frame, pandas.DataFrame)
    assert list(frame["event"])[0] == "step" and list(frame["event"])[-1] == "saved"
    losses = run.metrics("step")
    assert set(losses["event"]) == {"step"} and losses["loss"].notna().all()
    assert run.metrics("eval")["best"].iloc[-1] == run.best


def test_metrics_without_pandas_are_a_list(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    rows = run.metrics()
    assert isinstance(rows, list) and [r["event"] for r in rows][-1] == "saved"
    assert {r["event"] for r in run.metrics("step")} == {"step"}
    assert run.metrics("nothing like it") == []


def test_metrics_of_a_run_that_was_killed(run, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    (tmp_path / "config.toml").write_bytes((run.path / "config.toml").read_bytes())
    (tmp_path / "metrics.jsonl").write_text('{"event":"step","step":1,"loss":2.5}\n{"event":"st')
    opened = tweedie.Run(tmp_path)
    assert opened.metrics() == [{"event": "step", "step": 1, "loss": 2.5}]
    assert (opened.complete, opened.best, opened.notes) == (None, None, [])
    assert str(tmp_path) in opened._repr_html_()


def test_nothing_is_printed_unless_wanted(tmp_path):
    program = (
        "import tweedie, sys; tweedie.train('digits', out=sys.argv[1], device='cpu', "
        "settings={'train.epochs': 1}, progress=eval(sys.argv[2]))"
    )
    for wanted in ("None", "False", "True"):
        told = subprocess.run([sys.executable, "-c", program, tmp_path / wanted, wanted], capture_output=True, text=True, check=True)
        assert told.stdout == ""
        assert ("step " in told.stderr) == (wanted == "True"), told.stderr


def test_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runs = [tweedie.train("digits", settings=ONE, device="cpu", progress=False, callback=stop_at("step")) for _ in range(2)]
    assert [r.path for r in runs] == [Path("runs/digits-1"), Path("runs/digits-2")]
