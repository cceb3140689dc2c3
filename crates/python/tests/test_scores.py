"""Bounds on −ln p."""

from __future__ import annotations

import math

import numpy as np
import pytest

import tweedie

KINGS = "the king is dead and the queen has gone to the castle with her men. " * 2
NOISE = "xq zk vvv jjj qqx zzp wq xk vbn mzx qlw kkj zxc vbq pqx jzz kqv wxz " * 2


@pytest.mark.parametrize("name", ["shakespeare", "shakespeare-mdd"])
def test_likely_text_costs_fewer_bits(models, name):
    good, bad = models[name].score([KINGS, NOISE]).bits
    assert 0 < good < bad


@pytest.mark.parametrize("name", ["shapes", "shapes-mdd"])
def test_the_right_caption_costs_fewer_bits(models, name):
    images, texts = zip(*tweedie.examples("shapes", count=6))
    right = [t[0] for t in texts]
    scores = models[name].score(right, images)
    wrong = models[name].score(right[1:] + right[:1], images)
    assert (scores.bits < wrong.bits).all()


@pytest.mark.parametrize("draws", [1, 16])
def test_scores_by_themselves_and_in_a_batch(models, draws):
    images = [x for x, _ in tweedie.examples("shapes", count=5)]
    texts = ["a red circle", "a large blue square", "a", "a small green triangle above a red cross", "a red circle"]
    for name in ("shapes", "shapes-mdd"):
        together = models[name].score(texts, images, draws=draws)
        for i in range(5):
            alone = models[name].score(texts[i], images[i], draws=draws)
            assert alone.nats[0] == together.nats[i] and alone.error[0] == together.error[i]
        back = models[name].score(texts[::-1], images[::-1], draws=draws)
        assert (back.nats[::-1] == together.nats).all()
    windows = [KINGS[:128], NOISE[:128], (KINGS * 3)[5:133]]
    together = models["shakespeare"].score(windows, draws=draws)
    assert [models["shakespeare"].score(w, draws=draws).nats[0] for w in windows] == list(together.nats)


def test_arithmetic_of_scores(shapes, scene):
    scores = shapes.score(["a red circle", "a"], [scene, scene])
    assert list(scores.tokens) == [4, 2]  # the end among them
    assert scores.bits == pytest.approx(scores.nats / scores.tokens / math.log(2), rel=1e-12)
    assert scores.bits_per_token == pytest.approx(scores.nats.sum() / scores.tokens.sum() / math.log(2), rel=1e-12)
    assert len(scores) == 2 and (scores.error >= 0).all()


def test_a_candidate_s_bound_is_its_score(shapes, scene):
    text = shapes.caption(scene, candidates=2, steps=2)
    nats, error = text.nats
    scores = shapes.score(text, scene)
    assert (scores.nats[0], scores.error[0]) == (nats, error)


def test_more_draws_narrow_the_error(shakespeare):
    few, many = (shakespeare.score(KINGS, draws=draws).error[0] for draws in (4, 64))
    assert many < few


def test_texts_in_any_iterable(shapes, scene):
    want = shapes.score(["a red", "a blue"], [scene, scene])
    assert shapes.score(("a red", "a blue"), np.stack([scene, scene])) == want
    assert shapes.score((t for t in ["a red", "a blue"]), (scene for _ in range(2))) == want
    assert shapes.score(np.array(["a red", "a blue"]), [scene, scene]) == want
    assert len(shapes.score([])) == 0 and shapes.score([]).bits_per_token == 0


@pytest.mark.parametrize(
    "texts, images, kind, words",
    [
        ("a red", 0, ValueError, "looks at images; give one for each text"),
        (["a red"], 2, ValueError, "2 images for 1 text"),
        (["a red", "a"], 1, ValueError, "1 images for 2 texts"),
        ("", 1, ValueError, "text 0 is empty"),
        (["a", ""], 2, ValueError, "text 1 is empty"),
        ("a " * 17, 1, ValueError, "17 tokens.*room for 16"),
        ([3], 1, TypeError, "text 0 is a string, not int"),
        (None, 1, TypeError, "a text is a string, not NoneType"),
    ],
)
def test_scores_that_cannot_be(shapes, scene, texts, images, kind, words):
    with pytest.raises(kind, match=words):
        shapes.score(texts, [scene] * images if images else None)


def test_texts_that_fill_no_window(shakespeare, scene):
    with pytest.raises(ValueError, match="1 tokens.*windows of 128"):
        shakespeare.score("k")
    with pytest.raises(ValueError, match="takes no images"):
        shakespeare.score(KINGS, scene)
    with pytest.raises(ValueError, match="draws = 0"):
        shakespeare.score(KINGS, draws=0)
