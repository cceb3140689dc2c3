#!/usr/bin/env python3
"""tweedie beside its PyTorch peer, in one run on one machine, as ratios.

    cargo build --release && python3 scripts/compare.py [--device cpu|cuda] [--what train,sample,data] [--before OTHER_BUILD]

Needs Python with torch (and torchvision for data). Rounds alternate between the two, and the best median of each is compared: on a
shared machine a slow round says more about the neighbours than about the code. Ratio = peer's time / tweedie's: above 1 means
that tweedie is faster. Prints Markdown; --json FILE keeps everything.
"""
import argparse, datetime, json, os, platform, re, subprocess, sys

ap = argparse.ArgumentParser()
ap.add_argument("--peer", default=os.path.join(os.path.dirname(os.path.abspath(__file__)), "../reference/torch_tdd.py"))
ap.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
ap.add_argument("--tweedie", default="target/release/tweedie")
ap.add_argument("--before", help="another build of tweedie, measured in the same rounds: how a change moved its times")
ap.add_argument("--what", default="train,sample")
ap.add_argument("--preset", default="", help="only this one")
ap.add_argument("--rounds", type=int, default=3)
ap.add_argument("--repeats", type=int, default=10)
ap.add_argument("--threads", type=int, default=2)
ap.add_argument("--eager", action="store_true", help="on cuda: the peer without torch.compile too")
ap.add_argument("--images", help="image folder (train/CLASS/*.jpg) for --what data")
ap.add_argument("--json")
a = ap.parse_args()
# preset, training batch, batches of sampling
CASES = {"cpu": [("tiny", 32, [1, 32]), ("caption-tiny", 8, [1, 8])],
         "cuda": [("vit-b16", 256, [1, 256]), ("cifar", 1024, [1, 1024]), ("caption", 128, [1, 128])]}[a.device]
CASES = [c for c in CASES if a.preset in ("", c[0])]


def run(command):
    r = subprocess.run(command, capture_output=True, text=True)
    if r.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{r.stderr[-3000:]}")
    return r.stdout


def ours(binary, what, preset, batch, *more):
    out = run([binary, "--threads", str(a.threads), "bench", what, "--preset", preset, "--device", a.device, "--batch",
               ",".join(map(str, batch)), "--repeats", str(a.repeats), "--format", "json", "--tanh", *more])
    return json.loads(out)


def peer(preset, batch, compiled):
    out = run([sys.executable, a.peer, "bench", "--device", a.device, "--preset", preset, "--batch", str(batch), "--threads",
               str(a.threads), "--iters", str(2 * a.repeats)] + (["--compile"] if compiled else []))
    found = {}
    for line in out.splitlines():
        if m := re.match(r"RESULT train .* batch (\d+) .*: ([\d.]+) ms/step .* peak ([\d.]+) GiB", line):
            found["train", int(m[1])] = (float(m[2]), float(m[3]))
        if m := re.match(r"RESULT sample .* batch (\d+) .*: best ([\d.]+) ms", line):
            found["sample", int(m[1])] = (float(m[2]), 0.0)
    return found


def environment():
    import torch
    gpu = torch.cuda.get_device_name() if a.device == "cuda" else f"{a.threads} threads"
    model = next((l.split(":")[1].strip() for l in open("/proc/cpuinfo") if "model name" in l), platform.processor())
    return f"{datetime.date.today()}, {run([a.tweedie, '--version']).strip()}, torch {torch.__version__}, {gpu}, {model}"


rows, kept = [], {"environment": environment(), "rows": []}
variants = [False] if a.device == "cpu" else ([False, True] if a.eager else [True])
for preset, train_batch, sample_batches in CASES if {"train", "sample"} & set(a.what.split(",")) else []:
    best, before, theirs = {}, {}, {}
    for _ in range(a.rounds):
        for binary, found in [(a.before, before)] * bool(a.before) + [(a.tweedie, best)]:
            if "train" in a.what:
                r = ours(binary, "train", preset, [train_batch], "--no-floor")[0]
                if "train" not in found or r["ms"] < found["train"]["ms"]: found["train"] = r
            if "sample" in a.what:
                for attention in (["full", "prefix"] if "caption" in preset else ["full"]):
                    for r in ours(binary, "sample", preset, sample_batches, "--condition-attention", attention):
                        key = ("sample", r["batch"], attention)
                        if key not in found or r["ms"] < found[key]["ms"]: found[key] = r
        for compiled in variants:
            for key, v in peer(preset, train_batch, compiled).items():
                k = (*key, compiled)
                if k not in theirs or v[0] < theirs[k][0]: theirs[k] = v
    for key, r in best.items():
        what, batch, attention = ("train", train_batch, "full") if key == "train" else key
        for compiled in variants:
            if (p := theirs.get((what, batch, compiled))) is None: continue
            time = lambda r: r["ms"] if what == "train" else r["fastest"]  # the peer reports its median step, but its best sample
            mine, was = time(r), time(before[key]) if key in before else None
            name = f"{what} {preset} batch {batch}" + (f", {attention} attention" if "caption" in preset and what == "sample" else "")
            rows.append((name, "compiled" if compiled else "eager", p[0], mine, p[0] / mine, p[1], r["peak"] / 2**30, was))
            kept["rows"].append({"name": name, "compiled": compiled, "peer_ms": p[0], "ms": mine, "ratio": p[0] / mine,
                                 "before_ms": was, "tweedie": r})

print(f"{kept['environment']}; best of {a.rounds} rounds\n")
if rows:
    more = " before ms | ratio before |" if a.before else ""
    print(f"| what | peer | peer ms | tweedie ms | ratio | peer peak GiB | tweedie peak GiB |{more}")
    print("|---|---|---:|---:|---:|---:|---:|" + "---:|---:|" * bool(a.before))
    for name, how, p, m, ratio, pm, mm, was in rows:
        more = f" {was:.2f} | {p / was:.2f} |" if was else ""
        print(f"| {name} | {how} | {p:.2f} | {m:.2f} | {ratio:.2f} | {f'{pm:.1f}' if pm else '–'} | {mm:.2f} |{more}")

if "data" in a.what.split(","):
    if not a.images: sys.exit("--what data needs --images FOLDER with train/CLASS/*.jpg")
    import compare_data
    kept["data"] = compare_data.measure(a.tweedie, a.images, a.rounds)
    print("\n" + compare_data.table(kept["data"]))
if a.json:
    json.dump(kept, open(a.json, "w"), indent=1)
