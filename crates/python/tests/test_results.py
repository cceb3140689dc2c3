"""What answers are as objects: copied, pickled, compared, shown."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from html.parser import HTMLParser

import numpy as np
import pytest

import tweedie

WAYS = {
    "pickle": lambda x: pickle.loads(pickle.dumps(x)),
    "old pickle": lambda x: pickle.loads(pickle.dumps(x, protocol=2)),
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
}


@pytest.mark.parametrize("way", WAYS)
def test_answers_are_copied(digits, digit, way):
    answer = digits.classify(digit)
    again = WAYS[way](answer)
    assert again == answer and hash(again) == hash(answer) and repr(again) == repr(answer)
    for field in dataclasses.fields(answer):
        assert np.array_equal(getattr(again, field.name), getattr(answer, field.name))


@pytest.mark.parametrize("way", WAYS)
def test_texts_are_copied(shapes, scene, way):
    for how in ({}, {"candidates": 3, "steps": 1}, {"candidates": 2, "steps": 1, "rank": "consensus"}):
        text = shapes.caption(scene, **how)
        again = WAYS[way](text)
        assert type(again) is tweedie.Text and again == text
        assert (again.tokens == text.tokens).all() and (again.nats, again.consensus) == (text.nats, text.consensus)
        assert again.candidates == text.candidates and again.candidates[0] is again
        other = WAYS[way](text.candidates[-1])
        assert other == text.candidates[-1] and other.nats == text.candidates[-1].nats


@pytest.mark.parametrize("way", WAYS)
def test_scores_and_steps_are_copied(shapes, scene, way):
    scores = shapes.score(["a red", "a"], [scene, scene])
    again = WAYS[way](scores)
    assert again == scores and again.bits_per_token == scores.bits_per_token
    step = shapes.trace(scene, steps=2).steps[0]
    again = WAYS[way](step)
    assert again.text == step.text and (again.probabilities == step.probabilities).all() and repr(again) == repr(step)


def test_errors_are_pickled():
    with pytest.raises(tweedie.Error) as told:
        tweedie.load("embedded:digits", device="cuda:4096")  # nobody has so many
    again = pickle.loads(pickle.dumps(told.value))
    assert type(again) is tweedie.Error and str(again) == str(told.value)
    assert f"{tweedie.Error.__module__}.{tweedie.Error.__qualname__}" == "tweedie.Error"


def test_answers_are_compared_by_value(digits):
    one, two = (x for x, _ in tweedie.examples("digits", count=2))
    a, b, c = digits.classify([one, one, two])
    assert a == b and a != c and a != "4" and len({a, b, c}) == 2


def test_answers_are_frozen(digits, shapes, digit, scene):
    answer = digits.classify(digit)
    for result, name in ((answer, "label"), (shapes.score("a", scene), "bits"), (digits.trace(digit, steps=1).steps[0], "t")):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(result, name, None)
    answer.top(3).clear()
    assert len(answer.top(3)) == 3


def test_facts_are_the_caller_s(digits):
    digits.facts["sample"]["steps"] = 999
    digits.classes.clear()
    assert digits.facts["sample"]["steps"] == 20 and len(digits.classes) == 10


def test_texts_are_strings(shapes, scene):
    text = shapes.caption(scene)
    assert isinstance(text, str) and text == str(text) and {text: 1}[str(text)] == 1
    assert text.split() == str(text).split() and text.upper() == str(text).upper()
    assert text.candidates == [text] and text.nats is None and text.consensus is None


class Tags(HTMLParser):
    """Refuses tags that do not close."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert not self.open, self.open

    def handle_starttag(self, tag, attrs):
        if tag not in ("br", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


@pytest.mark.parametrize("name", ["digits", "digits-mdd", "shapes", "shakespeare", "shakespeare-mdd"])
def test_models_in_a_notebook(models, name):
    model = models[name]
    card = Tags(model._repr_html_()).text
    for fact in (f"embedded:{name}", f"{model.facts['parameters']:,}", {"class": "classifies", "caption": "describes", "text": "writes"}[model.task]):
        assert fact in card
    assert repr(model).startswith(f"<tweedie.Model embedded:{name}: {model.task}, {model.method.upper()}, ")
    assert model.path == f"embedded:{name}" and model.device == "cpu"


def test_answers_in_a_notebook(digits, digit):
    answer = digits.classify(digit)
    assert str(answer) == "4"
    assert repr(answer).startswith("Answer(4 98.")
    assert "98." in Tags(answer._repr_html_()).text
    strange = dataclasses.replace(answer, ranking=[("<b>&", 0.9)] + answer.ranking)
    assert "<b>&" in Tags(strange._repr_html_()).text and "<b>" not in strange._repr_html_()


def test_reprs(shapes, scene):
    assert repr(shapes.caption(scene, length=2)) == repr(str(shapes.caption(scene, length=2)))
    assert repr(shapes.score("a", scene)).startswith("Scores(bits=array([")
    trace = shapes.trace(scene, steps=2)
    assert repr(trace) == "Trace(0 steps so far)"
    assert repr(trace.steps[0]).startswith("Step(1/2, t=1000, 'a large")
    assert trace.result and repr(trace) == f"Trace(2 steps, {str(trace.result)!r})"


def test_the_module():
    assert sorted(tweedie.__all__) == tweedie.__all__ or set(tweedie.__all__)
    for name in tweedie.__all__:
        assert getattr(tweedie, name).__doc__, name
    assert tweedie.__version__.count(".") == 2
    assert set(tweedie.embedded_models()) >= {"digits", "digits-mdd", "shapes", "shapes-mdd", "shakespeare", "shakespeare-mdd"}
    assert "digits" in tweedie.recipes()
    assert issubclass(tweedie.Error, Exception)
