#!/usr/bin/env python3
"""Many small runs on a GPU under changing shapes, to find what fails rarely.

    cargo build --release && python3 scripts/gpu_soak.py --minutes 10 --out soak [--seed N] [--jobs N] [--tweedie PATH]
    python3 scripts/gpu_soak.py --sanitizer [memcheck,racecheck,initcheck,synccheck] --out soak

Trains, evaluates and samples with embedded and made-up data: odd batches, image sizes, vocabularies, lengths, samplers, guidance,
f32 and bf16, with captured graphs and without. `tweedie selftest` compares the GPU with the CPU before, between and after. Every
process keeps its last launches (TWEEDIE_LAUNCH_LOG). What failed is kept in the folder, with the command, its output and the
launches; the rest is deleted. Prints a table; exits with 1 if anything failed. When a kernel fails, the driver is asked to say on which
kind of exception (CUDA_ENABLE_COREDUMP_ON_EXCEPTION): the failure's text then has lines of "coredump:", and its folder a small file
for cuda-gdb that names the kernel. The algorithms of products, chosen by time, are kept beside it.

With --sanitizer, NVIDIA's compute-sanitizer runs over the self-test of each op and over small trainings, evaluations and samplings.
Needs Python's standard library alone. The draw of runs depends on the seed, not on time: --first and --only find one again.
"""
import argparse, glob, json, os, random, re, shlex, shutil, subprocess, sys, threading, time

ap = argparse.ArgumentParser(formatter_class=argparse.RawDescriptionHelpFormatter, description=__doc__)
ap.add_argument("--tweedie", default="target/release/tweedie")
ap.add_argument("--device", default="cuda", help="cpu tries the script itself")
ap.add_argument("--minutes", type=float, default=10)
ap.add_argument("--out", default="soak")
ap.add_argument("--seed", type=int, default=0)
ap.add_argument("--first", type=int, default=0, help="number of the first run")
ap.add_argument("--only", help="kinds of runs, with commas: selftest, train, bench-train, bench-sample")
ap.add_argument("--jobs", type=int, default=2, help="runs at a time")
ap.add_argument("--timeout", type=float, default=180, help="seconds of one command")
ap.add_argument("--sync", action="store_true", help="TWEEDIE_CUDA_SYNC=1: the failed launch is named exactly, and all is slower")
ap.add_argument("--sanitizer", nargs="?", const="memcheck,racecheck,initcheck,synccheck", metavar="TOOLS")
a = ap.parse_args()
a.tweedie = os.path.abspath(a.tweedie)
cuda = a.device.startswith("cuda")
os.makedirs(a.out, exist_ok=True)

# preset: (step of the image's side, sides, vocabularies, lengths)
CLASSES = {
    "digits": (2, [4, 8, 14, 22], [2, 10, 37], None),
    "tiny": (4, [8, 32, 36, 60, 64], [3, 10, 100, 1001], None),
    "cifar": (4, [20, 32, 44], [10, 101], None),
    "vit-s16": (16, [112, 160, 224, 240], [7, 1000], None),
    "vit-b16": (16, [128, 224], [1000], None),
}
SEQUENCES = {
    "shapes": (8, [16, 32, 72], [26, 33], [5, 16, 31]),
    "caption-tiny": (8, [64, 88, 128], [500, 2999, 8000], [7, 24, 33]),
    "coco-96": (12, [60, 96, 132, 180], [1001, 3000, 30522], [17, 24, 32, 63]),
    "caption": (16, [112, 224], [3000, 30522], [20, 32]),
    "text": (None, None, [27, 50, 257, 5000], [1, 3, 64, 129, 200, 256, 300]),
}
BATCHES = [1, 2, 3, 5, 7, 8, 9, 15, 17, 31, 33, 63, 64, 65, 97, 127, 128, 129, 200, 255, 257, 384, 511, 512]
SAMPLERS = ["argmax", "multinomial", "softmax", "ddim", "ancestral"]
BIG = {"vit-b16": 129, "caption": 65, "text": 129, "vit-s16": 257, "coco-96": 257}


def sets(**values):
    return [x for k, v in values.items() for x in ("--set", f"{k.replace('__', '.')}={v}")]


def batch(r, preset):
    most = BIG.get(preset, 512) if cuda else 3
    return r.choice([b for b in BATCHES if b <= most])


def model_flags(r):
    presets = {**CLASSES, **SEQUENCES}
    if not cuda:
        presets = {k: presets[k] for k in ("digits", "shapes")}
    preset = r.choice(list(presets))
    _, sides, vocabs, lengths = presets[preset]
    flags = ["--preset", preset, "--vocab", str(r.choice(vocabs)), "--device", a.device, "--repeats", "2"]
    if sides and r.random() < 0.7:
        flags += ["--image", str(r.choice(sides))]
    if lengths:
        flags += ["--tokens", str(r.choice(lengths))]
        if preset != "text":
            flags += ["--condition-attention", r.choice(["full", "prefix"])]
    if r.random() < 0.5:
        flags.append("--tanh")
    return preset, flags


def bench_sample(r):
    preset, flags = model_flags(r)
    batches = ",".join(str(batch(r, preset)) for _ in range(r.randint(1, 3)))
    guidance = "1" if preset == "text" or r.random() < 0.4 else r.choice(["1.5", "2", "4"])
    flags += ["--batch", batches, "--steps", str(r.choice([1, 2, 3, 5, 10])), "--guidance", guidance]
    flags += ["--noise", r.choice(["auto", "dense", "exact"])]
    if r.random() < 0.2:
        flags.append("--no-graph")
    return [["bench", "sample", *flags]]


def bench_train(r):
    preset, flags = model_flags(r)
    flags += ["--batch", str(max(1, batch(r, preset) // 2)), "--noisy-copies", str(r.choice([1, 2, 3, 4, 5])), "--no-floor"]
    flags += [f for f in ("--recompute", "--upload") if r.random() < 0.3]
    return [["bench", "train", *flags]]


def train(r, run):
    """A run on embedded data, gone on with, and measured in several ways."""
    precision = r.choice(["bf16", "f32"]) if cuda else "f32"
    heads, size = r.choice([(1, 64), (2, 32), (3, 20), (4, 16), (2, 64), (1, 96), (3, 64), (1, 128)] if cuda else [(2, 8)])
    common = dict(train__epochs=1, train__precision=precision, train__batch=r.choice([31, 64, 97, 128, 255]), train__noisy_copies=r.choice([1, 2, 3]),
                  train__eval_images=r.choice([33, 100, 200]), train__optimizer=r.choice(["adamw", "muon"]), model__denoiser__heads=heads,
                  model__denoiser__width=heads * size, model__method=r.choice(["tdd", "tdd", "mdd"]), seed=r.randrange(1000))
    if r.random() < 0.3:
        common.update(train__accumulate=2, train__recompute="true", train__batch=2 * r.choice([17, 64, 97]))
    if r.random() < 0.5:
        common.update(model__gelu="tanh")
    tdd = common["model__method"] == "tdd"
    if r.random() < 0.5:
        recipe = "digits"
        if tdd and r.random() < 0.5:
            common.update(model__denoiser__kind=r.choice(["dit", "mlp"]))
    else:
        recipe = "shapes"
        common.update(data__tokens=r.choice([16, 17, 24, 40]), train__batch=r.choice([255, 511, 512]) if cuda else 512,
                      model__denoiser__condition_attention=r.choice(["full", "prefix"]))
        if size % 2 == 0 and r.random() < 0.5:
            common.update(model__denoiser__positions="rotary")
    steps = ["--steps", ",".join(map(str, r.sample([1, 2, 3, 5, 8, 13], 2)))]
    guidance = ["--guidance", r.choice(["1", "2", "1,3"])] if tdd or recipe == "shapes" else []
    limit = ["--limit", str(r.choice([1, 65, 130, 257]) if cuda else 20)]
    evals = ["eval", run, "--device", a.device, *limit]
    all_ = [["train", recipe, "--out", run, "--device", a.device, *sets(**common)]]
    if tdd:
        sampler = ["--sampler", ",".join(r.sample(SAMPLERS, 2))]
        votes = ["--votes", "3"] if recipe == "digits" and r.random() < 0.3 else []
        all_.append([*evals, *steps, *guidance, *sampler, *votes])
    elif recipe == "shapes":
        all_.append([*evals, *steps, *guidance, "--unmask", "random,confident"])
    else:
        all_.append(evals)
    if recipe == "shapes" and r.random() < 0.5:
        all_.append([*evals, "--bound", "2", "--candidates", "3"])
    if r.random() < 0.3:
        all_.append(["train", "--resume", run, "--device", a.device, *sets(train__epochs=2)])
    return all_


def selftest(_):
    return [["selftest", "--device", a.device]]


def environment(log, dumps):
    env = dict(os.environ, TWEEDIE_LAUNCH_LOG=log)
    if dumps and cuda and "CUDA_ENABLE_COREDUMP_ON_EXCEPTION" not in env:
        skip = "skip_nonrelocated_elf_images,skip_global_memory,skip_shared_memory,skip_local_memory,skip_abort"
        env.update(CUDA_ENABLE_COREDUMP_ON_EXCEPTION="1", CUDA_COREDUMP_SHOW_PROGRESS="1", CUDA_COREDUMP_GENERATION_FLAGS=skip,
                   CUDA_COREDUMP_FILE=os.path.join(os.path.abspath(os.path.dirname(log)), "core.%p"))
    if a.sync:
        env["TWEEDIE_CUDA_SYNC"] = "1"
    return env


class Result:
    def __init__(self, kind, command, outcome, seconds, why=""):
        self.kind, self.command, self.outcome, self.seconds, self.why = kind, command, outcome, seconds, why


def first_error(text):
    """What was wrong first: the sanitizer's words and where, the driver's, or the program's own."""
    lines = [l for l in text.splitlines() if l.strip()]
    found = [i for i, l in enumerate(lines) if re.match(r"========= (?!COMPUTE-SANITIZER|ERROR SUMMARY)\w", l)]
    if found:
        return " ".join(l.lstrip("= ") for l in lines[found[0]:found[0] + 2])[:300]
    exception = [l for l in lines if l.startswith("coredump: Detected")]
    own = [l for l in lines if l.startswith(("error:", "thread '"))]
    return " ".join(exception[:1] + (own or lines[-1:])[:1])[:300]


def keep_products(folder):
    home = os.environ.get("TWEEDIE_CACHE") or os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "tweedie")
    for f in glob.glob(os.path.join(home, "products-*.txt")):
        shutil.copy(f, folder)


def unused(folder, name):
    """The first of name, 2-name, 3-name, .. that is no file there."""
    names = (os.path.join(folder, name if n == 1 else f"{n}-{name}") for n in range(1, 10**6))
    return next(f for f in names if not os.path.exists(f))


def run(kind, command, folder, before=()):
    """One command; what it leaves is kept if it failed."""
    log, shown = unused(folder, "launches.txt"), shlex.join(["tweedie", *command])  # that of an earlier command says nothing of this one
    start, text, code = time.monotonic(), "", None
    try:
        done = subprocess.run([*before, a.tweedie, *command], env=environment(log, not before), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=a.timeout)
        text, code = done.stdout.decode(errors="replace"), done.returncode
    except subprocess.TimeoutExpired as e:
        text = (e.stdout or b"").decode(errors="replace") + f"\nerror: still running after {a.timeout} s"
    outcome = "passed" if code == 0 else "failed"
    if code == 1 and "out of GPU memory" in text:
        outcome = "no room"
    elif code == 1 and kind != "selftest" and not before:
        outcome = "refused"  # the settings do not go together; a failed kernel exits with 2
    if os.path.exists(log):
        outcome = "failed"  # written when a kernel fails, whatever the process made of it
    if outcome == "failed":
        with open(os.path.join(folder, "failure.txt"), "a") as f:
            f.write(f"$ {shown}\nexit status: {code}\n{first_error(text)}\n\n{text}\n")
        if cuda:
            keep_products(folder)
    return Result(kind, shown, outcome, time.monotonic() - start, "" if outcome == "passed" else first_error(text))


KINDS = {"selftest": selftest, "train": train, "bench-train": bench_train, "bench-sample": bench_sample}
wanted = a.only.split(",") if a.only else list(KINDS)


def job(number):
    """Run `number`: the same whatever ran before it."""
    r = random.Random(a.seed * 1_000_003 + number)
    weights = [{"selftest": 1, "train": 8, "bench-train": 6, "bench-sample": 10}[k] for k in wanted]
    kind = wanted[0] if number == a.first else r.choices(wanted, weights)[0]
    folder = os.path.join(a.out, f"{number:05}-{kind}")
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    commands = train(r, os.path.join(folder, "run")) if kind == "train" else KINDS[kind](r)
    results = []
    for command in commands:
        results.append(run(kind, command, folder))
        if results[-1].outcome != "passed":
            break
    if all(x.outcome != "failed" for x in results):
        shutil.rmtree(folder)
    else:
        shutil.rmtree(os.path.join(folder, "run", "checkpoints"), ignore_errors=True)
    return number, results


def table(results, seconds):
    print(f"\n{'':14}{'passed':>8}{'refused':>9}{'no room':>9}{'failed':>8}{'s each':>8}")
    for kind in sorted({x.kind for x in results}):
        mine = [x for x in results if x.kind == kind]
        counts = {o: sum(x.outcome == o for x in mine) for o in ("passed", "refused", "no room", "failed")}
        print(f"{kind:14}{counts['passed']:8}{counts['refused']:9}{counts['no room']:9}{counts['failed']:8}{sum(x.seconds for x in mine) / len(mine):8.1f}")
    print(f"{len(results)} commands in {seconds / 60:.1f} minutes, seed {a.seed}")
    for x in [x for x in results if x.outcome == "refused"][:5]:
        print(f"refused: {x.command}\n    {x.why}")
    failed = [x for x in results if x.outcome == "failed"]
    for x in failed[:20]:
        print(f"FAILED: {x.command}\n    {x.why}")
    with open(os.path.join(a.out, "summary.json"), "w") as f:
        json.dump([x.__dict__ for x in results], f, indent=1)
    print(f"{'what failed and' if failed else ''} all commands with their outcome: {a.out}".strip())
    return 1 if failed or not results else 0


def soak():
    start, results, lock = time.monotonic(), [], threading.Lock()
    numbers = iter(range(a.first, 10**9))

    def work():
        while True:
            with lock:
                if results and time.monotonic() - start > 60 * a.minutes:
                    return
                number = next(numbers)
            number, done = job(number)
            with lock:
                results.extend(done)
                for x in done:
                    if x.outcome != "passed":
                        print(f"{number:05} {x.outcome}: {x.command}\n      {x.why}", flush=True)

    if "selftest" in wanted:
        results += job(a.first)[1]  # alone: what it finds is easiest to understand
        next(numbers)
    threads = [threading.Thread(target=work) for _ in range(max(1, a.jobs))]
    [t.start() for t in threads]
    [t.join() for t in threads]
    if "selftest" in wanted:
        folder = os.path.join(a.out, "last-selftest")
        os.makedirs(folder, exist_ok=True)
        results.append(run("selftest", selftest(None)[0], folder))
        if results[-1].outcome == "passed":
            shutil.rmtree(folder)
    return table(results, time.monotonic() - start)


def sanitizer():
    places = glob.glob("/usr/local/cuda*/bin/compute-sanitizer") + glob.glob("/usr/local/cuda*/compute-sanitizer/compute-sanitizer")
    program = shutil.which("compute-sanitizer") or next(iter(sorted(places, reverse=True)), None)
    if not program:
        print("compute-sanitizer was found neither on the PATH nor in /usr/local/cuda*/bin: nothing was checked", file=sys.stderr)
        return 3
    start, results = time.monotonic(), []
    try:
        listed = json.loads(subprocess.run([a.tweedie, "selftest", "--device", a.device, "--json"], stdout=subprocess.PIPE).stdout)
        ops = sorted({x["op"] for x in listed["rows"] if re.fullmatch("[a-z_]+", x["op"])})
    except (ValueError, KeyError, TypeError):
        ops = []  # what it says instead comes below
    tests = [["selftest", "--device", a.device, "--op", op] for op in ops] or [["selftest", "--device", a.device]]
    small = sets(train__epochs=1, train__batch=97, train__eval_images=33)
    for tool in a.sanitizer.split(","):
        before = [program, "--tool", tool, "--error-exitcode", "9", "--print-limit", "20"]
        # The end of a kernel's parameters is found by asking for one more (cuFuncGetParamInfo), which is no error.
        before += ["--report-api-errors", "no"]
        if tool == "memcheck":
            before += ["--leak-check", "no"]
        folder = os.path.join(a.out, f"sanitizer-{tool}")
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(folder)
        digits, shapes = os.path.join(folder, "digits"), os.path.join(folder, "shapes")
        commands = tests + [
            ["train", "digits", "--out", digits, "--device", a.device, *small],
            ["eval", digits, "--device", a.device, "--steps", "3", "--guidance", "1,2", "--limit", "65"],
            ["train", "shapes", "--out", shapes, "--device", a.device, *small, *sets(train__batch=512)],
            ["eval", shapes, "--device", a.device, "--steps", "3", "--limit", "33"],
            ["bench", "sample", "--preset", "vit-s16", "--batch", "3", "--steps", "2", "--repeats", "2", "--device", a.device],
            ["bench", "sample", "--preset", "coco-96", "--batch", "3", "--steps", "2", "--repeats", "2", "--device", a.device],
            ["bench", "train", "--preset", "vit-s16", "--batch", "3", "--repeats", "2", "--no-floor", "--device", a.device],
        ]
        for command in commands:
            if time.monotonic() - start > 60 * a.minutes:
                print(f"the time is over before {tool} of: {shlex.join(command)}")
                break
            results.append(run(tool, command, folder, before))
            x = results[-1]
            print(f"{x.outcome:8}{x.seconds:7.1f} s  {tool:10} {x.command}  {x.why}", flush=True)
    return table(results, time.monotonic() - start)


if __name__ == "__main__":
    if not os.path.exists(a.tweedie):
        sys.exit(f"{a.tweedie} is not there: cargo build --release")
    unknown = [k for k in wanted if k not in KINDS]
    if unknown:
        sys.exit(f"{', '.join(unknown)}: kinds of runs are {', '.join(KINDS)}")
    sys.exit(sanitizer() if a.sanitizer else soak())
