#!/usr/bin/env python3
"""What each lever between TDD and its masked twin brings, alone and together, as tables (docs/results/levers.md).

    python3 scripts/levers.py digits WORK                          ten minutes on two CPU cores
    python3 scripts/levers.py cifar10-small WORK --data CIFAR      40 minutes: photographs, a small network
    python3 scripts/levers.py cifar10-few WORK --data CIFAR        15 minutes: fewer photographs, more epochs
    python3 scripts/levers.py text WORK --data PTB                 ten minutes: Penn Treebank as characters, a small network
    python3 scripts/levers.py text-wide WORK --data PTB            an hour: a wider one, more text
    python3 scripts/levers.py cifar10 WORK --data CIFAR --device cuda
    python3 scripts/levers.py ptb WORK --data PTB --device cuda
    python3 scripts/levers.py coco-96 WORK --data COCO --device cuda
    python3 scripts/levers.py final-cifar10 WORK --data CIFAR --device cuda      also final-ptb, final-coco-96, final-imagenette

Every row is a training of its own for each seed, measured on held-out images or windows; those of final- tables alone on the test split,
once, with three seeds. What was trained in WORK before is not trained again. --rows NAME takes that row, or where there is none of that name
those with it in their names. With --keep FILE what was measured is kept there, and not measured again: a table can be made in several sittings.
"""
import argparse
import json
import math
import shutil
import statistics
import subprocess
import time
from pathlib import Path

MDD = ["model.method=mdd"]
PLAIN = ["model.denoiser.direct=false"]
DIRECT = ["model.denoiser.direct=true"]
OWN = DIRECT + ["loss.direct=1", "loss.encoder_gradient=none"]
EVIDENCE = ["model.denoiser.evidence=true"]
SELF = ["model.denoiser.self_condition=true"]
MEAN = ["model.pool=mean"]
PATCHES = ["model.pool=all", "model.denoiser.condition_attention=prefix"]
MUON = ["train.optimizer=muon", "train.lr=2e-3"]
ROTARY = ["model.denoiser.positions=rotary"]


def stagger(n):
    return [f"train.stagger={n}"]


def text_rows(*lengths):
    rows = {
        "TDD": ([], ["shared"]),
        "TDD, evidence": (EVIDENCE, ["shared"]),
        "TDD, evidence, self-conditioning": (EVIDENCE + SELF, ["shared"]),
    }
    for n in lengths:
        rows[f"TDD, evidence, stagger {n}"] = (EVIDENCE + stagger(n), ["shared", f"staggered:{n}", "reveal"])
        rows[f"TDD, evidence, self-conditioning, stagger {n}"] = (EVIDENCE + SELF + stagger(n), ["shared", f"staggered:{n}", "reveal"])
    return rows | {"MDD": (MDD, ["reveal"]), "MDD, self-conditioning": (MDD + SELF, ["reveal"])}


def small(tokens, width, depth, epochs, lr, ema):
    """A network for a CPU, on so many tokens a window."""
    sizes = [f"data.tokens={tokens}", f"model.denoiser.width={width}", f"model.denoiser.depth={depth}", "model.denoiser.heads=4"]
    steps = ["train.batch=16", "train.noisy_copies=1", f"train.lr={lr}", f"train.epochs={epochs}", "train.warmup_epochs=0.2", f"train.ema={ema}"]
    return sizes + steps + [f"train.eval_every={epochs}", f"train.checkpoint_every={epochs}"]


IMAGE = {"TDD": (PLAIN, []), "TDD, direct path": (DIRECT, []), "TDD, direct path, encoder as the twin's": (OWN, []), "MDD": (MDD, [])}
# The blocks read all patches, not the class token alone.
PHOTO = IMAGE | {"TDD, direct path, patches": (DIRECT + PATCHES, []), "TDD, direct path, patches, encoder as the twin's": (OWN + PATCHES, [])}
SMALL_PHOTO = (
    ["train.eval_every=1000", "train.checkpoint_every=1000", "train.batch=128", "train.lr=4e-3", "train.ema=0.995", "train.clip=0"]
    + ["augment.rand_augment=", "augment.erase.prob=0", "model.encoder.width=96", "model.encoder.depth=4", "model.encoder.heads=3"]
    + ["model.encoder.drop_path=0", "model.denoiser.width=96", "model.denoiser.depth=2", "model.denoiser.heads=3"]
)
CALLS = "1,2,4,8,16,20,32,64"
CAPTION = [["--steps", "20", "--guidance", "1,1.5"]]
BEST_OF_32 = ["--guidance", "1", "--sampler", "multinomial", "--candidates", "32", "--rank", "consensus"]


def classes(*guidance):
    """One step and twenty, alone and by the running mean."""
    flags = ["--guidance", ",".join(guidance)]
    return [flags + ["--steps", "1,20", "--running-mean=false"], flags + ["--steps", "20", "--running-mean=true"]]


TABLES = {
    # recipe, settings of all rows, rows (settings and paths of the bound), flags of each eval, bytes of text, seeds
    "digits": dict(
        recipe="digits",
        base=["data.val_fraction=0.3", "train.eval_every=60", "train.checkpoint_every=60"],
        rows=IMAGE,
        eval=classes("1", "2"),
        seeds=12,
    ),
    "text": dict(recipe="ptb-chars", base=small(64, 64, 2, 20, 1.6e-2, 0.99), rows=text_rows(4), eval=[], bytes=600_000, seeds=1),
    "text-wide": dict(recipe="ptb-chars", base=small(128, 128, 4, 3, 3.2e-2, 0.995), rows=text_rows(8, 32), eval=[], bytes=2_000_000, seeds=1),
    "cifar10-small": dict(
        recipe="cifar10",
        base=SMALL_PHOTO + ["data.val_fraction=0.4", "train.epochs=8", "train.warmup_epochs=1", "augment.mix.prob=0"],
        rows={
            "TDD, patches": (DIRECT + PATCHES + ["loss.direct=1"], []),
            "TDD, patches, encoder as the twin's": (OWN + PATCHES, []),
            "MDD": (MDD, []),
            "TDD, mean": (DIRECT + MEAN, []),
            "TDD, mean, encoder as the twin's": (OWN + MEAN, []),
            "MDD, mean": (MDD + MEAN, []),
        },
        eval=classes("1", "3"),
        seeds=1,
    ),
    "cifar10-few": dict(
        recipe="cifar10",
        base=SMALL_PHOTO + ["data.val_fraction=0.8", "train.epochs=30", "train.warmup_epochs=2", "augment.mix.prob=0.25"],
        rows={"TDD, patches, encoder as the twin's": (OWN + PATCHES, []), "TDD, mean, encoder as the twin's": (OWN + MEAN, [])},
        eval=[["--steps", "1,20", "--guidance", "1", "--running-mean=true", "--limit", "20000"]],
        seeds=1,
    ),
    "cifar10": dict(
        recipe="cifar10",
        base=["train.epochs=90", "train.warmup_epochs=5", "data.val_fraction=0.1", "train.eval_every=1000"],
        rows=PHOTO,
        eval=classes("1", "3"),
        seeds=1,
    ),
    "ptb": dict(recipe="ptb-chars", base=["train.epochs=8", "train.eval_every=8"], rows=text_rows(8, 32, 128), eval=[], seeds=1),
    # Windows twice as long, as many characters a step.
    "ptb-512": dict(
        recipe="ptb-chars",
        base=["train.epochs=8", "train.eval_every=8", "data.tokens=512", "train.batch=32", "train.lr=1.6e-2"],
        rows=text_rows(64, 256),
        eval=[],
        seeds=1,
    ),
    "coco-96": dict(
        recipe="coco-96",
        base=["train.epochs=40", "train.eval_every=40"],
        rows={
            "TDD": ([], []),
            "TDD, Muon": (MUON, []),
            "TDD, Muon, 80 epochs": (MUON + ["train.epochs=80", "train.eval_every=20"], []),
            "TDD, Muon, rotary": (MUON + ROTARY, []),
            "TDD, Muon, self-conditioning": (MUON + SELF, []),
            "TDD, Muon, 8 noisy copies": (MUON + ["train.noisy_copies=8"], []),
            "TDD, Muon, drop path 0.3, 60 epochs": (MUON + ["model.encoder.drop_path=0.3", "train.epochs=60", "train.eval_every=20"], []),
            "TDD, Muon, patches of 8 pixels": (MUON + ["model.encoder.patch=8"], []),
            "TDD, Muon, conditions dropped at 0.02": (MUON + ["train.condition_drop=0.02"], []),
            "TDD, Muon, smoothing": (MUON + ["loss.smoothing=0.05"], []),
            "TDD, Muon, evidence, stagger 8": (MUON + EVIDENCE + stagger(8) + ["train.clean_tokens=0"], []),
            "MDD": (MDD, []),
            "MDD, Muon": (MDD + MUON, []),
            "MDD, Muon, rotary": (MDD + MUON + ROTARY, []),
            "MDD, Muon, patches of 8 pixels": (MDD + MUON + ["model.encoder.patch=8"], []),
        },
        eval=CAPTION,
        seeds=1,
    ),
    "final-cifar10": dict(
        recipe="cifar10",
        base=MEAN + ["train.clip=0", "train.epochs=300", "train.eval_every=300"],
        rows={"TDD": (OWN, []), "MDD": (MDD, [])},
        eval=[["--steps", CALLS, "--guidance", "1", "--running-mean=true,false"]],
        seeds=3,
    ),
    "final-ptb": dict(
        recipe="ptb-chars",
        base=SELF + ["train.epochs=60", "train.eval_every=20"],
        rows={"TDD": (EVIDENCE + stagger(32), ["staggered:32", "reveal"]), "MDD": (MDD, ["reveal"])},
        eval=[],
        seeds=3,
    ),
    "final-coco-96": dict(
        recipe="coco-96",
        base=MUON + ["train.epochs=40", "train.eval_every=10"],
        rows={"TDD": ([], []), "MDD": (MDD, [])},
        eval=[["--steps", "20", "--guidance", "1"], BEST_OF_32],
        seeds=3,
    ),
    "final-imagenette": dict(
        recipe="imagenette",
        base=MEAN + ["train.clip=0", "train.eval_every=150", "train.optimizer=muon", "train.lr=1e-3", "model.denoiser.kind=transformer"],
        rows={"TDD": (OWN, []), "MDD": (MDD, [])},
        eval=[["--steps", CALLS, "--guidance", "1", "--running-mean=true,false"]],
        seeds=3,
    ),
}


def cut(data, to, size):
    """The beginning of each split of a text."""
    to.mkdir(parents=True, exist_ok=True)
    for file in sorted(Path(data).iterdir()):
        if file.suffix == ".txt":
            (to / file.name).write_bytes(file.read_bytes()[: size if "train" in file.name else max(60_000, size // 25)])
    return to


def measured(report, twin=False):
    """Columns of what `eval --json` says of a run. The masked twin of a class has one pass, which stands beside one step."""
    columns = {}
    if twin and isinstance(report, list) and "top1" in report[0]:
        return {"S=1, w=1": 100 * report[0]["top1"]}
    for r in report if isinstance(report, list) else report.get("rows", [report]):
        if "top1" in r:
            steps = f"S={r['steps']}, w={r['guidance']:g}" + (", mean" if r.get("running_mean") else "")
            way = {"direct path": "path alone", "posterior": "posterior"}.get(r["sampler"], steps)
            columns[way] = 100 * r["top1"]
        elif "nats_per_token" in r:
            columns[r["path"]] = r["nats_per_token"] / math.log(2)
        else:
            best = f", best of {r['candidates']}" if r.get("candidates", 1) > 1 else ""
            columns[f"CIDEr-D, w={r['guidance']:g}{best}"] = r["cider_d"]
    return columns


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("table", choices=TABLES)
    args.add_argument("work", type=Path)
    args.add_argument("--data")
    args.add_argument("--device", default="cpu")
    args.add_argument("--program", type=Path, default=Path("target/release/tweedie"))
    args.add_argument("--rows", default="")
    args.add_argument("--seeds", type=int)
    args.add_argument("--keep", type=Path, help="a file of what was measured, one JSON object a line")
    args.add_argument("--set", action="append", default=[], help="a setting of all rows, over those of the table")
    args = args.parse_args()
    table, program = TABLES[args.table], args.program.resolve()
    work = args.work / args.table
    work.mkdir(parents=True, exist_ok=True)
    data = cut(args.data, work / "data", table["bytes"]) if "bytes" in table else args.data

    def tweedie(*flags):
        done = subprocess.run([program, "-q", *map(str, flags)], capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"tweedie {' '.join(map(str, flags))}\n{done.stderr}")
        return done.stdout

    split = ["--split", "final" if args.table.startswith("final-") else "val"]
    kept = [json.loads(line) for line in args.keep.read_text().splitlines()] if args.keep and args.keep.exists() else []
    found = {}
    rows = table["rows"]
    for name in [args.rows] if args.rows in rows else [name for name in rows if args.rows in name]:
        sets, paths = rows[name]
        for seed in range(args.seeds or table["seeds"]):
            before = [k["columns"] for k in kept if [k["table"], k["row"], k["seed"]] == [args.table, name, seed]]
            if before:
                for column, x in before[0].items():
                    found.setdefault(name, {}).setdefault(column, []).append(x)
                continue
            run = work / f"{name.replace(', ', '-').replace(' ', '-')}-{seed}"
            seconds = run / "seconds"
            if not seconds.exists():
                shutil.rmtree(run, ignore_errors=True)
                every = [*table["base"], *sets, f"seed={seed}", *args.set]
                begun = time.time()
                tweedie("train", table["recipe"], *(["--data", data] if data else []), "--device", args.device, "--out", run, *[x for s in every for x in ("--set", s)])
                seconds.write_text(f"{time.time() - begun:.0f}")
            flags = ["eval", run, "--device", args.device, "--json"]
            columns = {"s": float(seconds.read_text())}
            if paths:
                for path in paths:
                    columns |= measured(json.loads(tweedie(*flags, *split, "--bound", 8, "--path", path)))
            else:
                for way in table["eval"]:
                    columns |= measured(json.loads(tweedie(*flags, *split, *way)), MDD[0] in sets)
            for column, x in columns.items():
                found.setdefault(name, {}).setdefault(column, []).append(x)
            if args.keep:
                with args.keep.open("a") as file:
                    file.write(json.dumps({"table": args.table, "row": name, "seed": seed, "columns": columns}) + "\n")
            print(f"{name}, seed {seed}: " + ", ".join(f"{c} {x:.3f}" for c, x in columns.items()), flush=True)

    columns = list(dict.fromkeys(c for row in found.values() for c in row if c != "s")) + ["s"]
    print("\n| | " + " | ".join(columns) + " |\n|---|" + "---:|" * len(columns))
    for name, row in found.items():
        cells = []
        for c in columns:
            x = row.get(c)
            digits = 0 if c == "s" else 2 if "S=" in c or c in ("path alone", "posterior") else 3
            error = f" ± {statistics.stdev(x) / len(x) ** 0.5:.{digits}f}" if x and len(x) > 1 and c != "s" else ""
            cells.append(f"{statistics.mean(x):.{digits}f}{error}" if x else "")
        print(f"| {name} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
