"""Ctrl-C: the work at hand ends within a step, as KeyboardInterrupt, and the session goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

import tweedie

#: What would take minutes; each prints "begun" where the interrupt is sent.
LONG = {
    "classify": "d.classify([tweedie.example('digits')] * 400, steps=100_000)",
    "classify of many": "d.classify([tweedie.example('digits')] * 2_000_000)",
    "votes": "d.classify(tweedie.example('digits'), votes=1000, steps=100_000)",
    "caption": "s.caption([tweedie.example('shapes')] * 64, steps=100_000, unmask='random')",
    "candidates": "s.caption(tweedie.example('shapes'), candidates=64, draws=1_000_000)",
    "generate": "k.generate(steps=100_000)",
    "generate many": "k.generate(100_000)",
    "score": "k.score('to be or not to be ' * 50, draws=1_000_000)",
    "score many": "k.score(['to be or not to be ' * 7] * 100_000)",
    "trace": "list(k.trace(steps=100_000))",
    "trace result": "k.trace(steps=100_000).result",
    "sampler": "k.generate(steps=100_000, sampler=lambda p: p.renoise())",
    "denoiser": "tweedie.sample(lambda noisy, t: np.asarray(noisy), 50, 50, 10, steps=100_000)",
}

PROGRAM = """
import sys, threading, time
import numpy as np, tweedie
d, s, k = (tweedie.load("embedded:" + name, device="cpu") for name in ("digits", "shapes", "shakespeare"))
d.classify(tweedie.example("digits"))
print("begun", flush=True)
try:
    {call}
    print("came to its end")
except KeyboardInterrupt:
    print("interrupted", flush=True)
# The models are none the worse.
print(d.classify(tweedie.example("digits")).label, len(k.generate(steps=2)), len(s.caption(tweedie.example("shapes")).split()) > 3)
"""


#: A job in the background is started with SIGINT ignored, and Python leaves it so.
HEEDS = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"


def interrupted(program: str, *arguments: object, wait_for: str = "begun", after: float = 0.15, times: int = 1) -> str:
    """What a program says that gets SIGINT `after` seconds from where it says `wait_for`. It has ten seconds to end."""
    process = subprocess.Popen(
        [sys.executable, "-c", HEEDS + program, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=dict(os.environ)
    )
    try:
        said = ""
        while wait_for not in said:
            line = process.stdout.readline()
            assert line, said
            said += line
        for _ in range(times):
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(after)
            process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=10)
        return said + rest
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("what", LONG)
def test_ctrl_c(what):
    said = interrupted(PROGRAM.format(call=LONG[what]))
    assert said.splitlines()[:3] == ["begun", "interrupted", "4 128 True"], said


TRAIN = """
import sys, tweedie
def callback(event):
    if event["event"] == "step" and event["step"] > 1:
        print("begun", flush=True)
data = None
if sys.argv[2] == "sequence":
    data = [(x, int(y)) for x, y in tweedie.examples("digits", "train", 300)]
try:
    tweedie.train("digits", data, out=sys.argv[1], device="cpu", settings={"train.epochs": 100_000}, callback=callback, progress=False)
    print("came to its end")
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


@pytest.mark.parametrize("data", ["embedded", "sequence"])
def test_ctrl_c_during_a_training_leaves_a_run_to_resume(tmp_path, data):
    said = interrupted(TRAIN, tmp_path / "run", data, after=0.2)
    assert said.splitlines()[-1] == "interrupted", said
    saved = sorted((tmp_path / "run" / "checkpoints").glob("step-*"))
    assert saved
    examples = None if data == "embedded" else [(x, int(y)) for x, y in tweedie.examples("digits", "train", 300)]
    steps = []

    def callback(event):
        if event["event"] != "note":
            steps.append(event["step"])
        return event["event"] != "step"

    on = tweedie.Run(tmp_path / "run").resume(examples, device="cpu", progress=False, callback=callback)
    # It goes on where it was interrupted.
    assert steps[0] == int(saved[-1].name.removeprefix("step-")) > 1 and on.complete is False


def test_a_handler_that_does_not_raise_lets_the_work_go_on():
    said = interrupted(
        """
import signal, tweedie
k = tweedie.load("embedded:shakespeare", device="cpu")
want = k.generate(steps=300)
seen = []
signal.signal(signal.SIGINT, lambda *_: seen.append(1))
print("begun", flush=True)
while not seen:
    text = k.generate(steps=300)
print(text == want)
""",
        after=0.2,
    )
    assert said.splitlines() == ["begun", "True"]


def test_an_alarm_s_exception_comes_out():
    """Any signal whose handler raises stops the work, with the exception of the handler."""
    program = """
import signal, tweedie
class TooLong(Exception): pass
def handler(*_): raise TooLong("enough")
signal.signal(signal.SIGALRM, handler)
k = tweedie.load("embedded:shakespeare", device="cpu")
signal.setitimer(signal.ITIMER_REAL, 0.2)
try:
    k.generate(steps=100_000)
except TooLong as e:
    print(e)
"""
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30)
    assert told.stdout == "enough\n", told.stderr
