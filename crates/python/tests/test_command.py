"""The module gives what the command gives, bit for bit: JSON keeps every float whole."""

from __future__ import annotations

import pytest

import tweedie


def flags(settings: dict[str, object]) -> list[str]:
    def said(value: object) -> str:
        return str(value).lower() if isinstance(value, bool) else str(value)

    return [f"--{name.replace('_', '-')}={said(value)}" for name, value in settings.items()]


CLASSIFY = [
    {},
    {"steps": 1},
    {"steps": 7, "seed": 3},
    {"guidance": 1.0, "steps": 5},
    {"guidance": 3.25, "steps": 5, "seed": 2**63 + 1},
    {"votes": 5, "steps": 3, "seed": 9},
    {"steps": 5, "running_mean": True},
    {"steps": 5, "running_mean": False},
]


@pytest.mark.parametrize("name", ["digits", "digits-mdd"])
@pytest.mark.parametrize("settings", CLASSIFY, ids=str)
def test_classify(models, command, pictures, name, settings):
    paths = pictures["digits"]
    told = command("classify", f"embedded:{name}", *paths, "--top", 10, *flags(settings))
    answers = models[name].classify(paths, **settings)
    assert len(told) == len(answers)
    for want, answer in zip(told, answers):
        assert answer.label == want["class"]
        assert answer.probability == want["probability"]
        assert [list(pair) for pair in answer.ranking] == want["classes"]
        assert answer.sampled == want["sampled"]
        assert answer.certainty == want["certainty"]


CAPTION = [
    {},
    {"steps": 3, "seed": 5},
    {"steps": 4, "guidance": 2.5},
    {"length": 5, "steps": 4},
    {"min_length": 9, "steps": 4},
    {"infill": "a __ circle", "steps": 4},
    {"candidates": 2, "steps": 2, "seed": 1},
    {"candidates": 3, "rank": "consensus", "steps": 2, "seed": 1},
    {"candidates": 4, "rank": "bound", "draws": 2, "steps": 1, "seed": 2, "length": 7},
    {"unmask": "random", "steps": 4, "seed": 4},
]


def same_texts(want: list[dict], text: tweedie.Text) -> None:
    """The candidates of one text, with what they were ranked by."""
    assert [str(t) for t in text.candidates] == [t["text"] for t in want]
    assert text == want[0]["text"]
    for t, w in zip(text.candidates, want):
        assert (None if t.nats is None else list(t.nats)) == w.get("nats")
        assert t.consensus == w.get("consensus")


@pytest.mark.parametrize("name", ["shapes", "shapes-mdd"])
@pytest.mark.parametrize("settings", CAPTION, ids=str)
def test_caption(models, command, pictures, name, settings):
    paths = pictures["shapes"][: 2 if "candidates" in settings else 4]
    told = command("caption", f"embedded:{name}", *paths, *flags(settings))
    texts = models[name].caption(paths, **settings)
    assert len(told) == len(texts)
    for want, text in zip(told, texts):
        same_texts(want["captions"], text)


@pytest.mark.parametrize("sampler", ["argmax", "multinomial", "softmax", "ddim", "ancestral"])
@pytest.mark.parametrize("schedule", ["linear", "sigmoid"])
def test_samplers_and_schedules(models, command, sampler, schedule):
    settings = {"sampler": sampler, "schedule": schedule, "steps": 5, "length": 40}
    told = command("generate", "embedded:shakespeare", "-n", 2, *flags(settings))
    for want, text in zip(told, models["shakespeare"].generate(2, **settings), strict=True):
        same_texts(want, text)


GENERATE = [
    {"steps": 8},
    {"steps": 3, "seed": 7, "length": 30},
    {"steps": 4, "prompt": "ROMEO:\n"},
    {"steps": 4, "infill": "to be ____ not to be"},
    {"steps": 4, "min_length": 100},
    {"steps": 2, "candidates": 3, "length": 50, "draws": 2},
    {"steps": 2, "candidates": 3, "rank": "consensus"},
]


@pytest.mark.parametrize("name", ["shakespeare", "shakespeare-mdd"])
@pytest.mark.parametrize("settings", GENERATE, ids=str)
def test_generate(models, command, name, settings):
    told = command("generate", f"embedded:{name}", "-n", 2, *flags(settings))
    for want, text in zip(told, models[name].generate(2, **settings), strict=True):
        same_texts(want, text)


ALL = ["digits", "digits-mdd", "shapes", "shapes-mdd", "shakespeare", "shakespeare-mdd"]

def traced(models, command, pictures, name, settings):
    picture = {"digits": pictures["digits"][:1], "shapes": pictures["shapes"][:1]}.get(name.removesuffix("-mdd"), [])
    told = command("trace", f"embedded:{name}", *picture, "--top", 3, *flags(settings))
    return told, models[name].trace(*picture, top=3, **settings)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("settings", [{}, {"steps": 3, "seed": 6}], ids=str)
def test_trace(models, command, pictures, name, settings):
    told, trace = traced(models, command, pictures, name, settings)
    assert str(trace.result) == told["result"]
    token = models[name]._token
    for step, want in zip(trace.steps, told["steps"], strict=True):
        assert (step.t, step.alpha_bar) == (want["t"], want["alpha_bar"])
        assert list(step.p) == [t["p"] for t in want["tokens"]]
        assert [None if i < 0 else token(i) for i in step.tokens] == [t["text"] for t in want["tokens"]]
        assert [[token(k) for k in row] for row in step.top] == [[k for k, _ in t["top"]] for t in want["tokens"]]


@pytest.mark.parametrize("name", ALL)
def test_candidates_and_entropies_of_a_trace(models, command, pictures, name):
    told, trace = traced(models, command, pictures, name, {"steps": 4})
    for step, want in zip(trace.steps, told["steps"], strict=True):
        assert list(step.entropies) == [t["entropy"] for t in want["tokens"]]
        assert step.top_p.tolist() == [[p for _, p in t["top"]] for t in want["tokens"]]


def test_the_defaults_are_the_command_s(models, command, pictures):
    """One call without a setting beside one with all of them named."""
    path = pictures["digits"][0]
    told = command("classify", "embedded:digits", path)[0]
    sample = models["digits"].facts["sample"]
    named = models["digits"].classify(path, steps=sample["steps"], guidance=sample["guidance"], seed=sample["seed"])
    assert named.certainty == told["certainty"] == models["digits"].classify(path).certainty
