"""An answer does not depend on what else is asked for, nor on what was asked before."""

from __future__ import annotations

import numpy as np
import pytest

import tweedie


@pytest.mark.parametrize("name", ["digits", "digits-mdd"])
@pytest.mark.parametrize("settings", [{}, {"steps": 4, "seed": 8, "guidance": 3.0}, {"votes": 3, "steps": 3, "running_mean": True}], ids=str)
def test_classes_by_themselves_and_in_a_batch(models, name, settings):
    images = [x for x, _ in tweedie.examples("digits", count=70)]
    together = models[name].classify(images, **settings)
    alone = [models[name].classify(x, **settings) for x in images]
    assert together == alone
    order = np.random.default_rng(0).permutation(len(images))
    assert models[name].classify([images[i] for i in order], **settings) == [alone[i] for i in order]
    # They are not all the same, else nothing was compared.
    assert len({a.probability for a in alone}) > 60


@pytest.mark.parametrize("settings", [{"steps": 3}, {"candidates": 2, "steps": 2, "draws": 2}, {"infill": "a __ _", "seed": 2}], ids=str)
@pytest.mark.parametrize("name", ["shapes", "shapes-mdd"])
def test_captions_by_themselves_and_in_a_batch(models, name, settings):
    images = [x for x, _ in tweedie.examples("shapes", count=9)]
    together = models[name].caption(images, **settings)
    for image, text in zip(images, together, strict=True):
        alone = models[name].caption(image, **settings)
        assert alone == text and alone.nats == text.nats
        assert (alone.tokens == text.tokens).all()
    assert len(set(together)) > 4
    assert models[name].caption(images[::-1], **settings) == together[::-1]


def test_more_texts_begin_with_the_same(shakespeare):
    three, five = (shakespeare.generate(n, steps=3, length=40) for n in (3, 5))
    assert five[:3] == three
    assert shakespeare.generate(steps=3, length=40) == three[0]
    assert shakespeare.generate(1, steps=3, length=40) == three[:1]
    assert len(set(five)) == 5


def test_seeds_differ_and_repeat(shakespeare):
    texts = [shakespeare.generate(steps=3, length=40, seed=seed) for seed in (0, 1, 2, 1)]
    assert texts[1] == texts[3] and len(set(texts)) == 3


def test_settings_of_one_call_do_not_reach_the_next(digits, digit):
    before = digits.classify(digit)
    other = digits.classify(digit, steps=2, guidance=7.0, seed=4)
    assert other.certainty != before.certainty
    # More settings than are kept ready.
    for seed in range(8):
        digits.classify(digit, seed=seed, steps=2)
    assert digits.classify(digit) == before


def test_posterior_is_the_same_whatever_the_sampler(digits, digit):
    plain = digits.classify(digit)
    other = digits.classify(digit, steps=1, guidance=5.0, seed=3)
    assert (plain.probabilities == other.probabilities).all()


def test_answers_of_classes(digits):
    for answer in digits.classify([x for x, _ in tweedie.examples("digits", count=20)]):
        assert answer.probabilities.shape == (10,) and answer.probabilities.dtype == np.float64
        assert answer.probabilities.sum() == pytest.approx(1, abs=1e-9)
        assert answer.label == digits.classes[int(answer.probabilities.argmax())]
        assert answer.probability == answer.probabilities.max()
        assert [p for _, p in answer.ranking] == sorted(answer.probabilities, reverse=True)
        assert answer.top(3) == answer.ranking[:3]
        assert answer.sampled in digits.classes and 0 <= answer.certainty <= 1


def test_most_answers_are_right(models):
    examples = tweedie.examples("digits")
    for name in ("digits", "digits-mdd"):
        answers = models[name].classify([x for x, _ in examples])
        right = sum(a.label == label for a, (_, label) in zip(answers, examples))
        assert right / len(examples) > 0.95
    captions = models["shapes"].caption([x for x, _ in tweedie.examples("shapes", count=50)])
    known = [texts for _, texts in tweedie.examples("shapes", count=50)]
    assert sum(c in texts for c, texts in zip(captions, known)) >= 40


def test_texts_keep_what_is_fixed(shapes, shakespeare, scene):
    text = shapes.caption(scene, infill="the _ green _", steps=3)
    assert text.split()[0] == "the" and text.split()[2] == "green"
    assert len(shapes.caption(scene, length=5).split()) == 5
    assert len(shapes.caption(scene, min_length=12).split()) >= 12
    text = shakespeare.generate(prompt="ROMEO:", length=30, steps=3)
    assert text.startswith("ROMEO:") and len(text) == 30
    text = shakespeare.generate(infill="a____b", length=20, steps=3)
    assert text[0] == "a" and text[5] == "b"
    candidates = shapes.caption(scene, candidates=5, steps=1).candidates
    assert len(candidates) == 5
    assert [c.nats[0] for c in candidates] == sorted(c.nats[0] for c in candidates)


def test_tokens_of_a_text(shapes, scene):
    text = shapes.caption(scene)
    assert text.tokens.dtype == np.uint32 and text.tokens.shape == (16,)
    assert shapes.decode(text.tokens) == text
    assert (shapes.encode(text) == text.tokens[: len(text.split())]).all()


SETTINGS = {
    "steps=0": ("classify", {"steps": 0}, ValueError, r"steps = 0.*\[1, 100000\]"),
    "steps=-1": ("classify", {"steps": -1}, ValueError, "steps = -1"),
    "steps=2.5": ("classify", {"steps": 2.5}, TypeError, "steps = 2.5; it is a whole number"),
    "steps='a'": ("classify", {"steps": "a"}, TypeError, "steps = 'a'"),
    "steps=True": ("classify", {"steps": True}, TypeError, "steps = True"),
    "guidance=NaN": ("classify", {"guidance": float("nan")}, ValueError, "guidance = nan"),
    "guidance='x'": ("classify", {"guidance": "x"}, TypeError, "guidance = 'x'; it is a number"),
    "running_mean=1": ("classify", {"running_mean": 1}, TypeError, "running_mean = 1; it is True or False"),
    "votes=0": ("classify", {"votes": 0}, ValueError, "votes = 0"),
    "seed=-1": ("classify", {"seed": -1}, ValueError, "seed = -1"),
    "seed=2**64": ("classify", {"seed": 2**64}, ValueError, r"2\*\*64 - 1"),
    "sampler": ("classify", {"sampler": "argmx"}, ValueError, "argmx.*argmax"),
    "sampler=3": ("classify", {"sampler": 3}, TypeError, "a sampler is a name or"),
    "schedule": ("classify", {"schedule": "cosin"}, ValueError, "cosin.*cosine"),
    "schedule=3": ("classify", {"schedule": 3}, TypeError, "a schedule is a name or"),
    "unknown": ("classify", {"stepz": 3}, TypeError, "stepz"),
    "unknown word": ("caption", {"infill": "a __ zebra"}, ValueError, "vocabulary lacks 'zebra'"),
    "long infill": ("caption", {"infill": "_ " * 17}, ValueError, "17 tokens.*16"),
    "infill=3": ("caption", {"infill": 3}, TypeError, "infill is a text, not int"),
    "length=17": ("caption", {"length": 17}, ValueError, "length = 17.*16 tokens at most"),
    "length=2.5": ("caption", {"length": 2.5}, TypeError, "length = 2.5; it is a whole number"),
    "lengths": ("caption", {"length": 3, "min_length": 5}, ValueError, "3.*5.*not both"),
    "candidates=0": ("caption", {"candidates": 0}, ValueError, "candidates = 0"),
    "rank": ("caption", {"rank": "best"}, ValueError, "best.*consensus"),
    "draws=0": ("caption", {"draws": 0}, ValueError, "draws = 0; it is at least 1"),
    "draws=-1": ("caption", {"draws": -1}, ValueError, "draws = -1"),
    "unmask": ("caption", {"unmask": "x"}, ValueError, "confident"),
    "stagger": ("caption", {"stagger": 2000}, ValueError, r"stagger = 2000.*\[0, 1024\]"),
    "stagger=2.5": ("caption", {"stagger": 2.5}, TypeError, "stagger = 2.5"),
    "uncommitted": ("caption", {"uncommitted": 3}, ValueError, r"uncommitted = 3.*\[0, 1\]"),
}


@pytest.mark.parametrize("what", SETTINGS)
def test_settings_that_are_none(digits, shapes, digit, scene, what):
    call, settings, kind, words = SETTINGS[what]
    with pytest.raises(kind, match=words):
        digits.classify(digit, **settings) if call == "classify" else shapes.caption(scene, **settings)


@pytest.mark.parametrize(
    "settings, kind, words",
    [
        ({"number": 0}, ValueError, "at least one"),
        ({"number": 2.5}, TypeError, "number = 2.5"),
        ({"prompt": "é"}, ValueError, "vocabulary lacks 'é'"),
        ({"prompt": "x" * 200}, ValueError, "200 tokens.*128"),
        ({"prompt": "a", "infill": "b_"}, ValueError, "not both"),
        ({"guidance": 3.0}, TypeError, "guidance"),
    ],
    ids=str,
)
def test_texts_that_cannot_be_written(shakespeare, settings, kind, words):
    with pytest.raises(kind, match=words):
        shakespeare.generate(**settings)


def test_numbers_of_numpy_are_numbers(digits, shapes, digit, scene):
    same = digits.classify(digit, steps=np.int64(3), guidance=np.float32(1.5), seed=np.uint8(2), votes=np.int32(2))
    assert same == digits.classify(digit, steps=3, guidance=1.5, seed=2, votes=2)
    assert shapes.caption(scene, length=np.int16(5)) == shapes.caption(scene, length=5)


def test_models_say_what_they_are_for(digits, shapes, shakespeare, digit, scene):
    for call, does in [
        (lambda: digits.caption(digit), "classify"),
        (lambda: digits.generate(), "classify"),
        (lambda: shapes.classify(scene), "caption"),
        (lambda: shapes.logits(scene), "caption"),
        (lambda: shakespeare.classify(digit), "generate"),
        (lambda: digits.score("a"), "classif"),
        (lambda: digits.encode("a"), "classif"),
    ]:
        with pytest.raises(ValueError, match=does):
            call()


def test_what_cannot_be_loaded(tmp_path):
    for name, kind, words in [
        ("nowhere", FileNotFoundError, "nowhere.*embedded:digits"),
        ("embedded:cats", ValueError, "cats.*digits"),
        (tmp_path, ValueError, "not a run"),
        (3, TypeError, "PathLike"),
    ]:
        with pytest.raises(kind, match=words):
            tweedie.load(name)
    with pytest.raises(ValueError, match="cuda:N"):
        tweedie.load("embedded:digits", device="tpu")


def test_models_inside_have_averaged_weights_alone():
    with pytest.raises(ValueError, match="averaged weights alone"):
        tweedie.load("embedded:digits", device="cpu", raw=True)


def test_examples():
    assert len(tweedie.examples("digits")) == 359
    images = [x for x, _ in tweedie.examples("digits", "train", 3)]
    assert [x.shape for x in images] == [(8, 8, 1)] * 3 and images[0].dtype == np.uint8
    pixels, texts = tweedie.examples("shapes", "validation", 1)[0]
    assert pixels.shape == (32, 32, 3) and all(isinstance(t, str) for t in texts)
    assert (tweedie.example("digits", 2) == tweedie.examples("digits", count=3)[2][0]).all()
    for wrong in (lambda: tweedie.examples("cats"), lambda: tweedie.examples("digits", "dev"), lambda: tweedie.examples(count=-1)):
        with pytest.raises(ValueError):
            wrong()
    for i in (359, -1):
        with pytest.raises(IndexError, match="count from 0|359 test images"):
            tweedie.example("digits", i)
