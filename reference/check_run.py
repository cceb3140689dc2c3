#!/usr/bin/env python3
"""Compares the logits of a tweedie run with those of its weights in the PyTorch reference, to 1e-4.

    cargo build --release -p tweedie --examples
    python reference/check_run.py RUN… [--weights ema|model] [--exported DIR] [--record]

The example `logits` of crates/tweedie writes inputs and logits; here the same weights see the same inputs. The difference is
relative to the largest logit. Exits with 1 where it is too large. --exported takes the weights from what `tweedie export RUN --to
pytorch --out DIR` wrote, and the bound is 1e-5. --record writes what came out to CHECKED.md.
"""
import argparse
import datetime
import pathlib
import subprocess
import sys
import tempfile

import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from check import record, versions
from load_run import load
from torch_tdd import MDD, alpha_bar, corrupt

ROOT = pathlib.Path(__file__).resolve().parent.parent
TOLERANCE = 1e-4
EXPORTED = 1e-5


def logits(model, config, d):
    """Of the inputs that the program wrote, in float64."""
    model = model.double()
    images, t, drop = d["images"].double(), d["t"].long(), d["drop"] > 0
    with torch.no_grad():
        if isinstance(model, MDD):
            return model(images)
        cond = model.condition(images)
        drop = drop if cond is not None and drop.any() else None
        tokens = d["tokens"].long()
        if hasattr(model.denoiser, "token_embed"):
            return model.denoiser(tokens, t, cond, drop)
        process = config["process"]
        if process["schedule"] == "vocab-aware":   # the reference has no such curve: the program's own
            abar = d["alpha_bar"].double()
        else:
            abar = alpha_bar(process["schedule"], process["steps"])
            assert torch.allclose(abar, d["alpha_bar"].double(), rtol=1e-6, atol=1e-9), "the schedules differ"
        y0 = process["lambda"] * F.one_hot(tokens, config["model"]["classes"]).double()
        return model.denoiser(corrupt(y0, abar[t], d["eps"].double()), t, cond, drop)


def check(run, weights, example, exported=None):
    with tempfile.TemporaryDirectory() as folder:
        file = f"{folder}/logits.safetensors"
        words = [example, str(run), file] + (["raw"] if weights == "model" else [])
        done = subprocess.run(words, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{' '.join(words)} failed:\n{done.stderr}")
        d = load_file(file)
    model, config, _ = load(exported or run, weights)
    got, want = d["logits"].double(), logits(model, config, d)
    assert got.shape == want.shape, (got.shape, want.shape)
    m = config["model"]
    denoiser = "linear head" if isinstance(model, MDD) else ", ".join(
        str(m["denoiser"].get(k, v)) for k, v in (("kind", "transformer"), ("condition_attention", "full"), ("positions", "waves")))
    what = f"{m['method'].upper()}, {config['data']['task']}, {denoiser}"
    return what, list(got.shape), float((got - want).abs().max() / want.abs().max())


def main():
    ap = argparse.ArgumentParser(formatter_class=argparse.RawDescriptionHelpFormatter, description=__doc__)
    ap.add_argument("runs", nargs="+", metavar="RUN", type=pathlib.Path)
    ap.add_argument("--weights", default="ema", choices=["ema", "model"])
    ap.add_argument("--exported", metavar="DIR", type=pathlib.Path, help="folder of the weights, exported from the one RUN")
    ap.add_argument("--example", default=str(ROOT / "target/release/examples/logits"))
    ap.add_argument("--record", action="store_true", help="write the result to CHECKED.md")
    a = ap.parse_args()
    lines, failed = ["| run | model | logits | largest difference |", "|---|---|---|--:|"], False
    tolerance = EXPORTED if a.exported else TOLERANCE
    for run in a.runs:
        what, shape, worst = check(run, a.weights, a.example, a.exported)
        failed |= not worst <= tolerance
        lines.append(f"| `{run.name if run.name != 'run' else run.parent.name}` | {what} | {shape} | {worst:.1e} |")
        print(f"{'ok' if worst <= tolerance else 'BAD':4}{run}: {what}, logits {shape}, largest difference {worst:.1e}", flush=True)
    if a.record:
        text = f"{datetime.date.today()}: `python reference/check_run.py RUN… --weights {a.weights} --record`, on a CPU in f32 against float64; tolerance {TOLERANCE:g}."
        record("Logits of runs", f"{text}\n\n{versions()}.\n\n" + "\n".join(lines))
    sys.exit(failed)


if __name__ == "__main__":
    main()
