"""Samplers, schedules and denoisers that are written in Python."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import tweedie


class By(tweedie.Sampler):
    """A sampler by a function."""

    def __init__(self, step):
        self.by = step

    def step(self, prediction):
        return self.by(prediction)


#: What the built-in samplers are.
SAME = {
    "argmax": lambda p: p.renoise(),
    "multinomial": lambda p: p.renoise(take="draw"),
    "softmax": lambda p: p.renoise(take="mean"),
    "ddim": lambda p: p.ddim(take="mean"),
}


@pytest.mark.parametrize("name", SAME)
@pytest.mark.parametrize("seed", [0, 5])
def test_a_sampler_that_does_what_a_built_in_one_does(digits, shakespeare, digit, name, seed):
    settings = {"steps": 7, "seed": seed}
    own = By(SAME[name])
    for a, b in zip(shakespeare.generate(2, sampler=own, **settings), shakespeare.generate(2, sampler=name, **settings)):
        assert a == b and (a.tokens == b.tokens).all()
    assert digits.classify(digit, sampler=own, **settings) == digits.classify(digit, sampler=name, **settings)


def test_argmax_in_python_is_argmax_of_captions(shapes):
    images = [x for x, _ in tweedie.examples("shapes", count=5)]
    for how in ({}, {"length": 6}, {"infill": "a __ green"}, {"candidates": 2}):
        built_in = shapes.caption(images, sampler="argmax", steps=4, unmask="random", **how)
        own = shapes.caption(images, sampler=By(lambda p: p.renoise()), steps=4, unmask="random", **how)
        assert own == built_in


def test_argmax_by_tokens_of_numpy(shakespeare):
    own = By(lambda p: p.renoise(take=p.tokens))
    for length in (None, 40):
        settings = {"steps": 5, "length": length}
        assert shakespeare.generate(sampler=own, **settings) == shakespeare.generate(sampler="argmax", **settings)


def test_factors_for_each_token(shakespeare):
    def each(p):
        one = p.renoise()
        full = np.ones(p.tokens.shape)
        return tweedie.Update(clean=full * one.clean, keep=0, noise=one.noise)

    assert shakespeare.generate(sampler=By(each), steps=4) == shakespeare.generate(sampler="argmax", steps=4)


def test_a_function_is_a_sampler(shakespeare):
    assert shakespeare.generate(sampler=lambda p: p.renoise(), steps=4) == shakespeare.generate(sampler="argmax", steps=4)


def test_what_a_sampler_sees(shakespeare):
    seen = []

    def watch(p):
        seen.append(p)
        return p.renoise()

    shakespeare.generate(3, sampler=watch, steps=4)
    assert [p.t for p in seen] == [1000, 750, 500, 250] and [p.s for p in seen] == [750, 500, 250, 0]
    for p in seen:
        assert p.logits.shape == (3, 128, 68) and p.logits.dtype == np.float32
        assert p.tokens.shape == p.log_p.shape == (3, 128)
        assert np.abs(p.probabilities.sum(-1) - 1).max() < 1e-5
        assert (p.log_p <= 0).all()
        assert 0 < p.alpha_bar_t < p.alpha_bar_s <= 1
        # Written out from the process: keep nothing, √ᾱ_s of the clean vector, the rest noise.
        paper = p.renoise()
        assert (paper.clean, paper.keep, paper.noise) == pytest.approx((p.alpha_bar_s**0.5, 0, (1 - p.alpha_bar_s) ** 0.5))
        ddim = p.ddim()
        keep = ((1 - p.alpha_bar_s) / (1 - p.alpha_bar_t)) ** 0.5
        want = (p.alpha_bar_s**0.5 - keep * p.alpha_bar_t**0.5, keep, 0)
        assert (ddim.clean, ddim.keep, ddim.noise) == pytest.approx(want, abs=1e-6)
        assert repr(p).startswith("<tweedie.Prediction [3, 128, 68], t=")


def test_the_last_step_is_the_sampler_s_for_texts_alone(digits, shapes, digit, scene):
    seen = []

    def watch(p):
        seen.append(p.s)
        return p.renoise()

    digits.classify(digit, sampler=watch, steps=4)
    assert seen == [750, 500, 250]
    seen.clear()
    shapes.caption(scene, sampler=watch, steps=4)
    assert seen == [750, 500, 250, 0]
    last = By(lambda p: tweedie.Update(take=np.full(p.tokens.shape, 15)) if p.s == 0 else p.renoise())
    assert set(shapes.caption(scene, sampler=last, steps=4, length=5).split()) == {"red"}


def test_fixed_tokens_hold_for_any_sampler(shakespeare):
    own = By(lambda p: tweedie.Update(take="draw", clean=0.3, noise=1.0, temperature=5.0))
    text = shakespeare.generate(sampler=own, prompt="ROMEO:", length=20, steps=4)
    assert text.startswith("ROMEO:") and len(text) == 20


class Own(Exception):
    """Nobody else's."""


@pytest.mark.parametrize("kind", [Own, KeyError, ValueError, RuntimeError, StopIteration, KeyboardInterrupt, SystemExit])
def test_exceptions_come_out_unchanged(shakespeare, kind):
    error = kind("mine")

    def step(p):
        raise error

    def denoiser(noisy, t):
        raise error

    def curve(u):
        raise error

    for call in (
        lambda: shakespeare.generate(sampler=step, steps=3),
        lambda: tweedie.sample(denoiser, 3),
        lambda: tweedie.sample(lambda noisy, t: np.zeros(noisy.shape), 3, sampler=step),
        lambda: tweedie.Schedule(curve),
    ):
        with pytest.raises(kind) as told:
            call()
        assert told.value is error
        assert str(told.value) == str(kind("mine"))
    # The model is none the worse.
    assert shakespeare.generate(steps=2) == shakespeare.generate(steps=2)


U = tweedie.Update
WRONG = {
    "None": (lambda p: None, TypeError, "must return a tweedie.Update, not NoneType"),
    "a tuple": (lambda p: (1, 0, 0), TypeError, "must return a tweedie.Update, not tuple"),
    "take": (lambda p: U(take="best"), ValueError, '"argmax", "draw", "mean".*"best"'),
    "factors of a wrong shape": (lambda p: U(clean=np.ones(3)), ValueError, r"factors.*12[08] tokens.*\[3\]"),
    "NaN": (lambda p: U(clean=float("nan")), ValueError, "not finite"),
    "infinity": (lambda p: U(noise=np.full(p.tokens.shape, np.inf)), ValueError, "not finite"),
    "words": (lambda p: U(clean="much"), ValueError, "float"),
    "tokens of a wrong shape": (lambda p: U(take=np.zeros(3, int)), ValueError, "3 tokens for 128 places"),
    "a token beyond": (lambda p: U(take=np.full(p.tokens.shape, 68)), ValueError, "68.*vocabulary"),
    "a token below": (lambda p: U(take=np.full(p.tokens.shape, -1)), ValueError, "token -1"),
    "tokens of floats": (lambda p: U(take=p.tokens * 0.5), TypeError, "float64"),
    "no temperature": (lambda p: U(take="draw", temperature=0.0), ValueError, "temperature of 0"),
    "unknown": (lambda p: p.renoise(nois=1), TypeError, "nois"),
}


@pytest.mark.parametrize("what", WRONG)
def test_updates_that_are_none(shakespeare, what):
    step, kind, words = WRONG[what]
    with pytest.raises(kind, match=words):
        shakespeare.generate(sampler=By(step), steps=3)


def test_samplers_that_are_none(shakespeare, models, digit):
    with pytest.raises(TypeError, match="By a class; make one"):
        shakespeare.generate(sampler=By, steps=3)
    with pytest.raises(NotImplementedError, match="step"):
        shakespeare.generate(sampler=tweedie.Sampler(), steps=3)
    with pytest.raises(TypeError, match="a sampler is a name or"):
        shakespeare.generate(sampler=object(), steps=3)
    for how in ({"sampler": By(SAME["argmax"])}, {"schedule": tweedie.Schedule("linear")}):
        with pytest.raises(ValueError, match="masked twin"):
            models["digits-mdd"].classify(digit, **how)


CURVES = {
    "rising": (lambda u: u, ValueError, "must fall"),
    "constant": (lambda u: 0.5, ValueError, "must fall"),
    "below 0": (lambda u: 0.5 - u, ValueError, "must fall.*0 at the least"),
    "NaN": (lambda u: float("nan"), ValueError, "NaN"),
    "NaN in the middle": (lambda u: 1 - u if u < 0.5 else float("nan"), ValueError, "NaN"),
    "nothing": (lambda u: None, TypeError, "NoneType"),
    "a word": (lambda u: "1", TypeError, "str"),
}


@pytest.mark.parametrize("what", CURVES)
def test_curves_that_are_none(what):
    curve, kind, words = CURVES[what]
    with pytest.raises(kind, match=words):
        tweedie.Schedule(curve)


def test_schedules():
    assert tweedie.Schedule("cosine").alpha_bar.shape == (1001,)
    u = np.linspace(0, 1, 101)
    steep = tweedie.Schedule(lambda u: (1 - u) ** 3, steps=100)
    assert steep.steps == 100
    # The end is not quite 0, so that the network's path can begin there.
    assert steep.alpha_bar[:-1] == pytest.approx((1 - u[:-1]) ** 3, abs=1e-12)
    assert 0 < steep.alpha_bar[-1] < 1e-3
    assert tweedie.Schedule("linear").alpha_bar[0] == 1
    assert (tweedie.Schedule("vocab-aware", vocab=1000).alpha_bar != tweedie.Schedule("vocab-aware", vocab=10).alpha_bar).any()
    assert repr(tweedie.Schedule("cosine")) == "<tweedie.Schedule cosine, 1000 steps>"
    for wrong, kind in (
        (lambda: tweedie.Schedule("cosin"), ValueError),
        (lambda: tweedie.Schedule(3), TypeError),
        (lambda: tweedie.Schedule("cosine", steps=0), ValueError),
        (lambda: tweedie.Schedule("cosine", steps=-1), ValueError),
        (lambda: tweedie.Schedule("cosine", steps=2.5), TypeError),
    ):
        with pytest.raises(kind):
            wrong()


@pytest.mark.parametrize("name", ["linear", "cosine", "sigmoid"])
def test_a_schedule_by_its_name_or_as_an_object(digits, shakespeare, digit, name):
    schedule = tweedie.Schedule(name)
    assert shakespeare.generate(steps=4, schedule=schedule) == shakespeare.generate(steps=4, schedule=name)
    assert digits.classify(digit, steps=4, schedule=schedule) == digits.classify(digit, steps=4, schedule=name)
    own = shakespeare.generate(steps=4, schedule=schedule, sampler=By(SAME["argmax"]))
    assert own == shakespeare.generate(steps=4, schedule=name, sampler="argmax")


def test_schedules_differ(shakespeare):
    curves = [lambda u: (1 - u) ** 0.3, lambda u: (1 - u) ** 6]
    assert len({shakespeare.generate(steps=4, schedule=tweedie.Schedule(c)) for c in curves}) == 2


def oracle(prior: np.ndarray, alpha_bar: np.ndarray):
    """Bayes' rule for independent tokens of a known prior: y_t | k is N(√ᾱ e_k, (1 − ᾱ) I)."""

    def logits(noisy, t):
        a = alpha_bar[t]
        return np.sqrt(a) / (1 - a) * np.asarray(noisy) + np.log(prior)

    return logits


@pytest.mark.parametrize("sampler, steps", [("ancestral", 100), ("multinomial", 50)])
def test_the_oracle_gives_the_prior(sampler, steps):
    prior = np.array([0.1, 0.2, 0.3, 0.4])
    schedule = tweedie.Schedule("cosine")
    n = 4000
    drawn = tweedie.sample(oracle(prior, schedule.alpha_bar), 4, 2, n, schedule=schedule, sampler=sampler, steps=steps, seed=1)
    assert drawn.shape == (n, 2) and drawn.dtype == np.uint32
    share = np.bincount(drawn.ravel(), minlength=4) / drawn.size
    # Five standard errors of the largest share.
    assert np.abs(share - prior).max() < 5 * (0.4 * 0.6 / drawn.size) ** 0.5
    # Tokens of one example are drawn apart from each other.
    both = np.bincount(drawn[:, 0] * 4 + drawn[:, 1], minlength=16) / n
    assert np.abs(both - np.outer(prior, prior).ravel()).max() < 5 * (0.16 * 0.84 / n) ** 0.5


def test_what_can_be_sampled_is_a_matter_of_logits():
    sure = np.where(np.arange(5) == 3, 0.0, -np.inf)
    drawn = tweedie.sample(lambda noisy, t: np.broadcast_to(sure, noisy.shape), 5, 3, 4, sampler="multinomial", steps=3)
    assert (drawn == 3).all()


def test_examples_are_streams_of_noise():
    schedule = tweedie.Schedule("cosine")
    prior = np.full(5, 0.2)
    ask = lambda ids, **how: tweedie.sample(  # noqa: E731
        oracle(prior, schedule.alpha_bar), 5, 3, ids, schedule=schedule, sampler="multinomial", **how
    )
    every = ask(6)
    assert (ask([0, 1, 2, 3, 4, 5]) == every).all()
    assert (ask([5, 2]) == every[[5, 2]]).all()
    assert (ask(np.arange(6)) == every).all() and (ask(np.int64(6)) == every).all()
    assert (ask(6, seed=1) != every).any()


def test_a_sampler_of_ones_own_with_a_denoiser_of_ones_own():
    schedule = tweedie.Schedule("linear")
    denoiser = oracle(np.array([0.5, 0.3, 0.2]), schedule.alpha_bar)
    for name, step in SAME.items():
        own, built_in = (
            tweedie.sample(denoiser, 3, 4, 9, schedule=schedule, sampler=s, steps=6) for s in (By(step), name)
        )
        assert (own == built_in).all(), name


def test_what_a_denoiser_sees():
    seen = []

    def denoiser(noisy, t):
        assert isinstance(noisy, tweedie.Tensor)
        seen.append((t, noisy.shape, threading.get_ident()))
        return np.zeros(noisy.shape)

    tweedie.sample(denoiser, 7, 2, 3, steps=4)
    assert [s[:2] for s in seen] == [(t, (3, 2, 7)) for t in (1000, 750, 500, 250)]


def test_logits_as_a_tensor(tensor):
    plain = tweedie.sample(lambda noisy, t: np.asarray(noisy) * 2, 5, 2, 8, steps=4)
    assert (tweedie.sample(lambda noisy, t: tensor(np.array(noisy) * 2), 5, 2, 8, steps=4) == plain).all()
    assert (tweedie.sample(lambda noisy, t: np.asarray(noisy).astype(np.float64) * 2, 5, 2, 8, steps=4) == plain).all()
    assert (tweedie.sample(lambda noisy, t: (np.asarray(noisy) * 2).tolist(), 5, 2, 8, steps=4) == plain).all()


@pytest.mark.parametrize(
    "logits, words",
    [
        (lambda noisy: np.zeros(3), r"\[3, 2, 5\], they are \[3\]"),
        (lambda noisy: np.zeros((3, 2, 6)), r"\[3, 2, 5\], they are \[3, 2, 6\]"),
        (lambda noisy: np.zeros((3, 2)), r"\[3, 2, 5\], they are \[3, 2\]"),
        (lambda noisy: None, r"\[3, 2, 5\]"),
        (lambda noisy: np.full(noisy.shape, np.nan), "not all numbers"),
        (lambda noisy: np.full(noisy.shape, np.inf), "not all numbers"),
        (lambda noisy: np.full(noisy.shape, -np.inf), "not all numbers"),
        (lambda noisy: "much", "float"),
    ],
)
def test_logits_that_are_none(logits, words):
    with pytest.raises(ValueError, match=words):
        tweedie.sample(lambda noisy, t: logits(noisy), 5, 2, 3, steps=2)


@pytest.mark.parametrize(
    "how, kind",
    [
        ({"vocab": 0}, ValueError),
        ({"vocab": 2.5}, TypeError),
        ({"tokens": 0}, ValueError),
        ({"examples": 0}, ValueError),
        ({"examples": -1}, ValueError),
        ({"examples": []}, ValueError),
        ({"examples": [-1]}, ValueError),
        ({"steps": 0}, ValueError),
        ({"steps": 2.5}, TypeError),
        ({"seed": -1}, ValueError),
        ({"sampler": "best"}, ValueError),
        ({"schedule": "best"}, ValueError),
        ({"schedule": 3}, TypeError),
        ({"denoiser": 3}, TypeError),
    ],
    ids=str,
)
def test_samplings_that_cannot_be(how, kind):
    with pytest.raises(kind):
        tweedie.sample(**{"denoiser": lambda noisy, t: np.zeros(noisy.shape), "vocab": 3} | how)
