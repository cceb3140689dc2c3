#!/usr/bin/env python3
"""What a call of the network buys along each sampling path, on texts whose grammar is known (docs/results/paths.md).

The captions of the embedded scenes as texts without images: TDD with clean tokens, TDD with staggered ones and exact evidence, and the masked twin
learn them (a minute on a CPU), then write 2,000 texts in each way and number of steps. Counted: texts that the scenes' grammar allows, and different ones. Sampling draws, so
that nothing is decided by an image.

    python3 scripts/paths.py WORK [--program target/release/tweedie]
"""
import argparse
import json
import re
import subprocess
from pathlib import Path

RECIPE = """
[data]
path = "captions.txt"
task = "text"
tokens = 16
tokenizer = "word:100"

[model]
preset = "text"
denoiser = { width = 64, depth = 2, heads = 4 }

[loss]
smoothing = 0.0
mask_weight = "plain"

[train]
epochs = 2
optimizer = "muon"
batch = 32
noisy_copies = 2
lr = 0.024
warmup_epochs = 0.2
ema = 0.99
clean_tokens = 0.5

[sample]
sampler = "multinomial"
unmask = "confident"
"""
STEPS = [1, 2, 4, 8, 16, 32, 64]
RUNS = {
    "tdd": [],
    "staggered": ["train.clean_tokens=0", "train.stagger=8", "model.denoiser.evidence=true"],
    "mdd": ["model.method=mdd"],
}
PATHS = [("tdd", "shared"), ("tdd", "reveal"), ("tdd", "groups:4"), ("staggered", "shared"), ("staggered", "staggered:8"), ("staggered", "reveal"), ("mdd", "reveal"), ("mdd", "groups:4")]
WAYS = {
    "TDD, shared time": ("tdd", ["--unmask", "random"]),
    "TDD, confident": ("tdd", []),
    "TDD, confident, correction .05": ("tdd", ["--correction", "0.05"]),
    "TDD, confident, correction .3": ("tdd", ["--correction", "0.3"]),
    "TDD, confident, uncommitted .5": ("tdd", ["--uncommitted", "0.5"]),
    "TDD, confident, uncommitted .5, correction .05": ("tdd", ["--uncommitted", "0.5", "--correction", "0.05"]),
    "TDD, confident, uncommitted .5, correction .3": ("tdd", ["--uncommitted", "0.5", "--correction", "0.3"]),
    "TDD staggered, shared time": ("staggered", ["--unmask", "random", "--stagger", "1"]),
    "TDD staggered, shared time, ancestral": ("staggered", ["--unmask", "random", "--stagger", "1", "--sampler", "ancestral"]),
    "TDD staggered, its path": ("staggered", ["--unmask", "random"]),
    "TDD staggered, its path, ancestral": ("staggered", ["--unmask", "random", "--sampler", "ancestral"]),
    "TDD staggered, confident": ("staggered", []),
    "TDD staggered, confident, uncommitted .5": ("staggered", ["--uncommitted", "0.5"]),
    "TDD staggered, confident, correction .05": ("staggered", ["--correction", "0.05"]),
    "TDD staggered, confident, uncommitted .5, correction .05": ("staggered", ["--uncommitted", "0.5", "--correction", "0.05"]),
    "MDD, random": ("mdd", ["--unmask", "random"]),
    "MDD, random, correction .05": ("mdd", ["--unmask", "random", "--correction", "0.05"]),
    "MDD, random, correction .3": ("mdd", ["--unmask", "random", "--correction", "0.3"]),
    "MDD, confident": ("mdd", []),
    "MDD, confident, correction .05": ("mdd", ["--correction", "0.05"]),
    "MDD, confident, correction .3": ("mdd", ["--correction", "0.3"]),
}
OBJECT = r"a (?:large|small) (\w+) (\w+)"


def grammar(captions):
    """What the scenes can say, from what they say: colours, shapes, places and relations are those that occur."""
    one = [m for m in (re.fullmatch(OBJECT + r" at the (.+)", c) for c in captions) if m]
    two = [m for m in (re.fullmatch(OBJECT + r" (left of|right of|above|below) " + OBJECT, c) for c in captions) if m]
    words = [{m[i] for m in one} for i in (1, 2, 3)] + [{m[3] for m in two}]
    colour, shape, place, relation = ("|".join(sorted(map(re.escape, w))) for w in words)
    thing = f"a (?:large|small) (?:{colour}) (?:{shape})"
    known = re.compile(
        f"{thing} at the (?:{place})|{thing} (?:{relation}) {thing}(?: and {thing})?|{thing} and {thing} (?:{relation}) {thing}"
    )
    strange = [c for c in captions if not known.fullmatch(c)]
    if strange:
        raise SystemExit(f"the grammar does not know {strange[0]!r}")
    return known


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("work", type=Path)
    args.add_argument("--program", type=Path, default=Path("target/release/tweedie"))
    args.add_argument("--samples", type=int, default=2000)
    args.add_argument("--seed", type=int, default=0)
    args.add_argument("--ways", default="", help="only those with this in their name")
    args = args.parse_args()
    program = args.program.resolve()
    args.work.mkdir(parents=True, exist_ok=True)

    def tweedie(*flags):
        return subprocess.run([program, "-q", *flags], cwd=args.work, check=True, capture_output=True, text=True).stdout

    if not (args.work / "captions.txt").exists():
        tweedie("eval", "embedded:shapes", "--split", "train", "--steps", "1", "--out", "scenes")
        all = json.loads((args.work / "scenes/references.json").read_text())["annotations"]
        (args.work / "captions.txt").write_text("".join(a["caption"] + "\n" for a in all))
    captions = (args.work / "captions.txt").read_text().splitlines()
    known = grammar(captions)
    (args.work / "recipe.toml").write_text(RECIPE)
    ways = {name: way for name, way in WAYS.items() if args.ways in name}
    runs = {run for run, _ in ways.values()}
    for run in runs:
        if not (args.work / run).exists():
            sets = [x for s in [*RUNS[run], f"seed={args.seed}"] for x in ("--set", s)]
            tweedie("train", "recipe.toml", "--device", "cpu", *sets, "--out", run)
    for run, path in [p for p in PATHS if p[0] in runs]:
        bound = json.loads(tweedie("eval", run, "--bound", "16", "--path", path, "--json"))
        print(f"{run}, {bound['path']}: {bound['nats_per_token']:.4f} ± {bound['error']:.4f} nats per token")
    print(f"\n{len(set(captions[: args.samples])) * 100 / args.samples:.0f} % of so many training captions are different\n")
    print("| grammatical %, different % |" + "".join(f" {s} |" for s in STEPS) + "\n|---|" + "--:|" * len(STEPS))
    for name, (run, flags) in ways.items():
        cells = []
        for steps in STEPS:
            if steps < 3 and "--correction" in flags:
                cells.append("")
                continue
            shown = ["--samples", str(args.samples), "--limit", "1", "--bound", "1", "--out", "written"]
            tweedie("eval", run, "--steps", str(steps), *flags, *shown)
            texts = json.loads((args.work / "written/samples.json").read_text())
            right = sum(known.fullmatch(t) is not None for t in texts)
            cells.append(f"{100 * right / len(texts):.1f}, {100 * len(set(texts)) / len(texts):.0f}")
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
