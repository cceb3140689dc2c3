#!/usr/bin/env python3
"""Samples from the graphs that export_onnx.py wrote, with numpy and onnxruntime alone.

    python reference/sample_onnx.py EXPORTED IMAGE… [--steps S] [--guidance W] [--seed N]
    python reference/sample_onnx.py EXPORTED --time [--batch 1,32] [--threads 2]

TDD with argmax sampling; classifiers by MDD take one pass. Prints class and probability of each image, or the ids of tokens.
--time says how long a sample takes, on noise in the place of images. Images are scaled to the model's size as a whole; where sides
differ, `tweedie` crops first (docs/data.md).
"""
import argparse
import json
import pathlib
import sys
import time

import numpy as np
import onnxruntime


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def sample(encoder, denoiser, config, images, steps, guidance, seed=0):
    """Logits [B, N, V] of the last step; `images` is the batch's size where the model has no encoder."""
    rng, abar, lam = np.random.default_rng(seed), np.array(config["export"]["alpha_bar"]), config["process"]["lambda"]
    cond = {"cond": encoder.run(None, {"images": images})[0]} if encoder else {}
    if "noisy" not in [i.name for i in denoiser.get_inputs()]:
        return denoiser.run(None, cond)[0]                       # MDD of classes: one pass
    B, T, (_, N, V) = len(images) if encoder else images, len(abar) - 1, denoiser.get_outputs()[0].shape
    times = [round(T * (steps - i) / steps) for i in range(steps)] + [0]
    y = rng.standard_normal((B, N, V), np.float32)
    for t, s in zip(times, times[1:]):
        def logits(drop):
            dropped = {"drop": np.full(B, drop)} if encoder else {}
            return denoiser.run(None, {"noisy": y, "t": np.full(B, t), **cond, **dropped})[0]
        g = logits(False)
        if encoder and guidance != 1:
            u = logits(True)
            g = u + np.float32(guidance) * (g - u)
        if s > 0:                                                # the likeliest token, with less noise
            clean, noise = lam * np.eye(V, dtype=np.float32)[g.argmax(-1)], rng.standard_normal((B, N, V), np.float32)
            y = (np.sqrt(abar[s]) * clean + np.sqrt(1 - abar[s]) * noise).astype(np.float32)
    return g


def read(path, config):
    from PIL import Image
    e, about = config["model"]["encoder"], config["export"]
    image = Image.open(path).convert("L" if e["channels"] == 1 else "RGB").resize((e["image"], e["image"]), Image.BICUBIC)
    pixels = np.asarray(image, np.float32).reshape(e["image"], e["image"], e["channels"]) / 255
    return ((pixels - np.array(about["mean"], np.float32)) / np.array(about["std"], np.float32)).transpose(2, 0, 1)


def timed(encoder, denoiser, config, batches, steps, guidance):
    e = config["model"]["encoder"]
    for b in batches:
        images = np.random.default_rng(1).standard_normal((b, e["channels"], e["image"], e["image"]), np.float32) if encoder else b
        took = []
        while len(took) < 5 or sum(took) < 5 and len(took) < 200:
            start = time.perf_counter()
            sample(encoder, denoiser, config, images, steps, guidance)
            took.append(time.perf_counter() - start)
        median = sorted(took[1:])[(len(took) - 1) // 2]
        print(f"batch {b}, {steps} steps, guidance {guidance:g}: {1e3 * median:.2f} ms, {1e3 * median / b:.3f} ms per sample")


def main():
    ap = argparse.ArgumentParser(formatter_class=argparse.RawDescriptionHelpFormatter, description=__doc__)
    ap.add_argument("exported", type=pathlib.Path)
    ap.add_argument("images", nargs="*", type=pathlib.Path)
    ap.add_argument("--steps", type=int)
    ap.add_argument("--guidance", type=float)
    ap.add_argument("--seed", type=int, default=0)
    ap.add_argument("--time", action="store_true")
    ap.add_argument("--batch", default="1,32")
    ap.add_argument("--threads", type=int, default=0)
    a = ap.parse_args()
    config = json.loads((a.exported / "config.json").read_text())
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = a.threads
    graph = lambda name: onnxruntime.InferenceSession(str(a.exported / f"{name}.onnx"), options, providers=["CPUExecutionProvider"])
    encoder = graph("encoder") if (a.exported / "encoder.onnx").exists() else None
    denoiser = graph("denoiser")
    if any(i.name == "noisy" and "int" in i.type for i in denoiser.get_inputs()):
        sys.exit("error: this loop is TDD's; the masked twin of sequences unmasks tokens (tweedie generate, tweedie caption)")
    steps, guidance = a.steps or config["sample"]["steps"], config["sample"]["guidance"] if a.guidance is None else a.guidance
    if a.time:
        return timed(encoder, denoiser, config, [int(b) for b in a.batch.split(",")], steps, guidance)
    if encoder and not a.images:
        sys.exit("error: this model looks at images; name some")
    images = np.stack([read(p, config) for p in a.images]) if encoder else 1
    p = softmax(sample(encoder, denoiser, config, images, steps, guidance, a.seed))
    for path, row in zip(a.images or ["-"], p):
        names, best = config["export"]["classes"], row.argmax(-1)
        print(f"{path}: {names[best[0]]} {100 * row[0, best[0]]:.1f} %" if len(row) == 1 and names else f"{path}: {best.tolist()}")


if __name__ == "__main__":
    main()
