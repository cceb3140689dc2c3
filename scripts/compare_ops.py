#!/usr/bin/env python3
"""tweedie's ops beside PyTorch's, in one run on one machine.

    cargo build --release && python3 scripts/compare_ops.py [--device cpu|cuda] [--tweedie PATH] [--rounds N] [--threads N]

Needs Python with torch. Rounds alternate between the two, and the best median of each is compared: on a shared machine a
slow round says more about the neighbours than about the code. Prints a Markdown table; ratio < 1 means tweedie is faster.
"""
import argparse, json, subprocess, sys, time
import torch
import torch.nn.functional as F

ap = argparse.ArgumentParser()
ap.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
ap.add_argument("--tweedie", default="target/release/tweedie")
ap.add_argument("--rounds", type=int, default=3)
ap.add_argument("--repeats", type=int, default=20)
ap.add_argument("--threads", type=int, default=2)
a = ap.parse_args()
cuda = a.device == "cuda"
dtype = torch.bfloat16 if cuda else torch.float32
torch.set_num_threads(a.threads)


def median_ms(f):
    for _ in range(3): f()
    times = []
    for _ in range(a.repeats):
        if cuda:
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record(); f(); end.record(); torch.cuda.synchronize(); times.append(start.elapsed_time(end))
        else:
            start = time.perf_counter(); f(); times.append((time.perf_counter() - start) * 1e3)
    return sorted(times)[len(times) // 2]


def leaf(*shape): return torch.randn(*shape, device=a.device, dtype=dtype, requires_grad=True)


def timed(inputs, f):
    """Milliseconds forward, and forward with backward."""
    dy = torch.randn_like(f(*inputs))
    def both():
        for i in inputs: i.grad = None
        f(*inputs).backward(dy)
    with torch.no_grad(): forward = median_ms(lambda: f(*inputs))
    return forward, median_ms(both)


def mlp(approximate): return lambda x, w1, b1, w2, b2: F.linear(F.gelu(F.linear(x, w1, b1), approximate=approximate), w2, b2)


def cases():
    """(op, shape as tweedie prints it) -> inputs and function."""
    if cuda:
        m, d, vocab, rows = 256 * 197, 768, 30522, 4096
        shapes = [(256, 12, 197, 64), (128, 12, 229, 64), (1024, 6, 65, 64)]
        yield "mlp", f"{m}×{d}→{4*d}→{d}", (leaf(m, d), leaf(4*d, d), leaf(4*d), leaf(d, 4*d), leaf(d)), mlp("tanh")
        yield "mlp_erf", f"{m}×{d}→{4*d}→{d}", (leaf(m, d), leaf(4*d, d), leaf(4*d), leaf(d, 4*d), leaf(d)), mlp("none")
    else:
        m, d, vocab, rows = 32 * 65, 192, 8000, 192
        shapes = [(32, 3, 65, 64)]
        yield "mlp", f"{m}×{d}→{4*d}→{d}", (leaf(m, d), leaf(4*d, d), leaf(4*d), leaf(d, 4*d), leaf(d)), mlp("none")
    yield "linear", f"{m}×{d}→{4*d}", (leaf(m, d), leaf(4*d, d), leaf(4*d)), F.linear
    for b, h, l, k in shapes:
        # q, k and v as separate contiguous tensors: the kernel alone, without torch's copies out of a packed qkv.
        yield "attention", f"{b}×{h}×{l}×{k}", tuple(leaf(b, h, l, k) for _ in range(3)), F.scaled_dot_product_attention
    yield "layer_norm", f"{m}×{d}", (leaf(m, d), leaf(d), leaf(d)), lambda x, g, b: F.layer_norm(x, (d,), g, b, 1e-6)
    targets = torch.randint(0, vocab, (rows,), device=a.device)
    ce = lambda x, w, b: F.cross_entropy(F.linear(x, w, b).float(), targets, reduction="none")
    yield "linear_cross_entropy", f"{rows}×{d}→{vocab}", (leaf(rows, d), leaf(vocab, d), leaf(vocab)), ce


ours, theirs = {}, {}
best = lambda table, key, times: table.__setitem__(key, tuple(min(x) for x in zip(times, table.get(key, times))))
for n in range(a.rounds):
    for op, shape, inputs, f in cases(): best(theirs, (op, shape), timed(inputs, f))
    command = [a.tweedie, "--threads", str(a.threads), "bench", "ops", "--device", a.device, "--repeats", str(a.repeats), "--json"]
    report = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    for r in report["ops"]:
        if r["both"]: best(ours, (r["op"], r["shape"]), (r["forward"]["ms"], r["both"]["ms"]))
    print(f"round {n + 1} of {a.rounds} done", file=sys.stderr)

print(f"{report['name']}, {dtype}, torch {torch.__version__}, best of {a.rounds} medians of {a.repeats}\n")
print("| op | shape | tweedie fwd ms | torch fwd ms | ratio | tweedie fwd+bwd ms | torch fwd+bwd ms | ratio |")
print("|---|---|--:|--:|--:|--:|--:|--:|")
for key in theirs:
    (f, b), (tf, tb) = ours[key], theirs[key]
    print(f"| {key[0]} | {key[1]} | {f:.3f} | {tf:.3f} | {f / tf:.2f} | {b:.3f} | {tb:.3f} | {b / tb:.2f} |")
