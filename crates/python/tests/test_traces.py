"""Samplings step by step."""

from __future__ import annotations

import gc
from html.parser import HTMLParser

import numpy as np
import pytest

import tweedie

NAMES = ["digits", "digits-mdd", "shapes", "shapes-mdd", "shakespeare", "shakespeare-mdd"]


def image_for(name: str):
    kind = name.removesuffix("-mdd")
    return None if kind == "shakespeare" else tweedie.example(kind)


@pytest.mark.parametrize("name", NAMES)
def test_shapes_and_probabilities(models, name):
    model = models[name]
    trace = model.trace(image_for(name), steps=5, top=4)
    n, v = model.facts["tokens"], model.facts["vocab"]
    steps = list(trace)
    assert len(steps) == (1 if name == "digits-mdd" else 5)
    for i, step in enumerate(steps):
        assert (step.step, step.of) == (i + 1, len(steps))
        assert step.tokens.shape == step.p.shape == step.entropies.shape == step.fixed.shape == step.committed.shape == (n,)
        assert step.tokens.dtype == np.int64 and step.fixed.dtype == step.committed.dtype == bool
        assert step.p.dtype == step.entropies.dtype == step.probabilities.dtype == np.float64
        assert step.probabilities.shape == (n, v) and step.top.shape == step.top_p.shape == (n, 4)
        p = step.probabilities
        assert np.abs(p.sum(1) - 1).max() < 1e-6
        # What may not be written has none: <unk> in a caption, nor that it ends where it begins.
        if model.task == "caption":
            assert not p[:, 2].any() and not p[0, :3].any()
        entropies = -np.sum(p * np.log(np.maximum(p, 1e-300)), axis=1)
        assert np.abs(entropies - step.entropies).max() < 2e-6
        assert (step.top[:, 0] == p.argmax(1)).all()
        assert np.abs(np.take_along_axis(p, step.top, 1) - step.top_p).max() < 1e-6
        assert (np.diff(step.top_p, axis=1) <= 0).all()
        # A token that was committed keeps the probability that it had then.
        told = np.take_along_axis(p, np.maximum(step.tokens, 0)[:, None], 1)[:, 0]
        assert np.abs(told - step.p)[~step.committed & (step.tokens >= 0)].max(initial=0) < 1e-6
    # With a time for each token, that of the step is the latest.
    if name != "digits-mdd" and not model.facts["per_token_time"]:
        times = [s.t for s in steps]
        assert times == sorted(times, reverse=True) and 0 <= times[-1] < times[0] <= 1000
        noise = [s.alpha_bar for s in steps]
        assert noise == sorted(noise)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("settings", [{"steps": 6}, {"steps": 3, "seed": 11}], ids=str)
def test_the_result_is_that_of_the_call(models, name, settings):
    model = models[name]
    trace = model.trace(image_for(name), **settings)
    if model.task == "class":
        want = model.classify(image_for(name), **settings)
        assert trace.result == want
        last = trace.steps[-1]
        assert model.classes[last.tokens[0]] == last.text == want.sampled
        assert last.p[0] == want.certainty
    else:
        want = model.caption(image_for(name), **settings) if model.task == "caption" else model.generate(**settings)
        assert trace.result == want and (trace.result.tokens == want.tokens).all()
        last = trace.steps[-1]
        length = len(model.encode(want))
        assert (last.tokens[:length] == want.tokens[:length]).all()


def test_settings_reach_the_sampling(shapes, shakespeare, scene):
    trace = shapes.trace(scene, steps=3, infill="the _ green _")
    assert str(trace.result) == str(shapes.caption(scene, steps=3, infill="the _ green _"))
    assert list(trace.steps[0].fixed[:4]) == [True, False, True, False]
    assert len(shapes.trace(scene, steps=2, length=5).result.split()) == 5
    trace = shakespeare.trace(prompt="ROMEO:", steps=3, length=20)
    assert trace.result.startswith("ROMEO:") and len(trace.result) == 20 and trace.steps[0].fixed[:6].all()
    for settings in ({"sampler": "ddim"}, {"schedule": "linear"}, {"seed": 9}, {"steps": 7}):
        settings = {"steps": 4, "length": 30} | settings
        assert shakespeare.trace(**settings).result == shakespeare.generate(**settings)


def test_a_trace_takes_a_step_when_it_is_asked_for(shakespeare):
    steps = 100_000
    trace = shakespeare.trace(steps=steps)
    first = next(iter(trace))
    # All of them would take many minutes.
    assert (first.step, first.of) == (1, steps)
    assert repr(trace) == "Trace(1 steps so far)"


def test_iterations_share_steps(shakespeare):
    trace = shakespeare.trace(steps=4)
    one, two = iter(trace), iter(trace)
    a = [next(one), next(one)]
    b = [next(two), next(two), next(two)]
    assert a[0] is b[0] and a[1] is b[1]
    assert [s.step for s in one] == [3, 4]
    assert list(trace) == trace.steps and len(trace.steps) == 4
    # The result was not asked for, and comes still.
    assert trace.result == shakespeare.generate(steps=4)
    assert list(trace) == trace.steps


def test_the_list_of_steps_is_the_caller_s(digits, digit):
    trace = digits.trace(digit, steps=3)
    trace.steps.clear()
    assert len(trace.steps) == 3


def test_several_traces_of_one_model_and_calls_between(shakespeare):
    alone = [shakespeare.generate(steps=3, seed=s) for s in range(3)]
    traces = [shakespeare.trace(steps=3, seed=s) for s in range(3)]
    for steps in zip(*traces):
        assert len({s.t for s in steps}) == 1
        shakespeare.generate(steps=1, seed=77)
    assert [t.result for t in traces] == alone


def test_a_pin_is_kept_and_changes_what_follows(shapes, scene):
    plain = shapes.trace(scene, steps=5).result
    trace = shapes.trace(scene, steps=5)
    steps = iter(trace)
    first = next(steps)
    assert not first.fixed.any()
    trace.pin(1, "small")
    rest = list(steps)
    small = int(shapes.encode("small")[0])
    assert all(s.tokens[1] == small and s.fixed[1] for s in rest)
    assert trace.result.split()[1] == "small" != plain.split()[1]
    # By number it is the same.
    again = shapes.trace(scene, steps=5)
    next(iter(again))
    again.pin(1, small)
    assert again.result == trace.result


def test_a_pin_is_freed(shapes, scene):
    trace = shapes.trace(scene, steps=6)
    steps = iter(trace)
    next(steps)
    trace.pin(1, "small")
    assert next(steps).fixed[1]
    trace.pin(1, None)
    assert not next(steps).fixed[1]
    assert trace.result.split()[1] != "small"


def test_pins_of_the_masked_twin(models, scene):
    trace = models["shapes-mdd"].trace(scene, steps=6)
    next(iter(trace))
    trace.pin(1, "small")
    assert trace.result.split()[1] == "small"


@pytest.mark.parametrize(
    "place, token, kind, words",
    [
        (16, "a", ValueError, "place = 16; there are 16"),
        (-1, "a", ValueError, "place = -1"),
        (0.5, "a", TypeError, "place = 0.5"),
        (0, 26, ValueError, "no token 26; there are 26"),
        (0, -1, ValueError, "no token -1"),
        (0, 1.5, TypeError, "token = 1.5"),
        (0, "zebra", ValueError, "lacks 'zebra'"),
        (0, "a red", ValueError, "2 tokens, and a place has one"),
        (0, "", ValueError, "0 tokens"),
    ],
)
def test_pins_that_cannot_be(shapes, scene, place, token, kind, words):
    trace = shapes.trace(scene, steps=3)
    with pytest.raises(kind, match=words):
        trace.pin(place, token)
    assert trace.result == shapes.caption(scene, steps=3)


def test_pins_too_late_and_of_classes(digits, shapes, digit, scene):
    trace = shapes.trace(scene, steps=2)
    assert trace.result
    with pytest.raises(ValueError, match="over"):
        trace.pin(0, "a")
    with pytest.raises(ValueError, match="texts can be pinned"):
        digits.trace(digit).pin(0, "7")


@pytest.mark.parametrize(
    "call, kind, words",
    [
        (lambda d, s, k: d.trace(), ValueError, "needs an image"),
        (lambda d, s, k: s.trace(), ValueError, "needs an image"),
        (lambda d, s, k: k.trace(tweedie.example("digits")), ValueError, "takes no images"),
        (lambda d, s, k: d.trace([tweedie.example("digits")] * 2), TypeError, "one image"),
        (lambda d, s, k: d.trace(np.stack([tweedie.example("digits")] * 2)), ValueError, "2 images"),
        (lambda d, s, k: d.trace(tweedie.example("digits"), top=9), ValueError, "top = 9"),
        (lambda d, s, k: d.trace(tweedie.example("digits"), top=0), ValueError, "top = 0"),
        (lambda d, s, k: d.trace(tweedie.example("digits"), infill="a"), ValueError, "for texts"),
        (lambda d, s, k: k.trace(guidance=3.0), ValueError, "guidance"),
        (lambda d, s, k: k.trace(sampler=tweedie.Sampler()), ValueError, "built-in samplers"),
        (lambda d, s, k: k.trace(schedule=tweedie.Schedule("linear")), ValueError, "built-in samplers"),
        (lambda d, s, k: d.trace("nowhere.png"), FileNotFoundError, "nowhere.png"),
    ],
)
def test_traces_that_cannot_be(digits, shapes, shakespeare, call, kind, words):
    with pytest.raises(kind, match=words):
        call(digits, shapes, shakespeare)


def test_without_probabilities(shakespeare):
    step = next(iter(shakespeare.trace(steps=2, probabilities=False)))
    assert step.probabilities is None and step.entropies.shape == (128,)


def test_a_trace_that_is_dropped_ends_nothing_else(shakespeare):
    want = shakespeare.generate(steps=3)
    kept = shakespeare.trace(steps=3)
    next(iter(kept))
    for _ in range(20):
        next(iter(shakespeare.trace(steps=1000)))
    gc.collect()
    assert kept.result == want


def test_a_trace_outlives_the_name_of_its_model(digit):
    trace = tweedie.load("embedded:digits", device="cpu").trace(digit, steps=3)
    gc.collect()
    assert trace.result.label == "4"


class Page(HTMLParser):
    """Tags that are open, and what is in scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict]] = []
        self.texts: dict[str, str] = {}
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "link", "input", "br", "img", "hr"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open and self.open[-1] == tag, (tag, self.open)
        self.open.pop()

    def handle_data(self, data):
        if self.open:
            self.texts[self.open[-1]] = self.texts.get(self.open[-1], "") + data


@pytest.mark.parametrize("name", NAMES)
def test_the_page_of_a_trace(models, name):
    trace = models[name].trace(image_for(name), steps=3)
    text = trace.html()
    page = Page(text)
    assert not page.open
    assert text.count("</script>") == sum(tag == "script" for tag, _ in page.tags) > 0
    # Nothing is fetched from elsewhere.
    for tag, attributes in page.tags:
        for key in ("src", "href"):
            assert (attributes.get(key) or "data:").startswith(("data:", "#")), (tag, attributes)
    assert [a for t, a in page.tags if t == "input" and a.get("type") == "range"]


def test_texts_of_a_page_are_escaped(shakespeare, tmp_path):
    # A path is told on the page, and may hold what would end the script.
    from PIL import Image

    picture = tmp_path / "<script>alert(1)<" / "script>.png"
    picture.parent.mkdir()
    Image.fromarray(tweedie.example("digits")[:, :, 0]).save(picture)
    text = tweedie.load("embedded:digits", device="cpu").trace(picture, steps=2).html()
    page = Page(text)
    assert not page.open
    assert text.count("</script>") == sum(tag == "script" for tag, _ in page.tags)
    assert "<script>alert(1)" not in text


def test_a_trace_in_a_notebook(digits, digit, tmp_path):
    trace = digits.trace(digit, steps=3)
    frame = Page(trace._repr_html_())
    ((tag, attributes),) = frame.tags
    assert tag == "iframe" and attributes["srcdoc"].startswith(trace.html().removesuffix("</html>\n")) and attributes["sandbox"] == "allow-scripts"
    trace.save(tmp_path / "trace.html")
    assert (tmp_path / "trace.html").read_text(encoding="utf-8") == trace.html()


def test_a_class_trace_without_probabilities_has_a_page(digits, digit):
    assert "</html>" in digits.trace(digit, steps=2, probabilities=False).html()
