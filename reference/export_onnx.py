#!/usr/bin/env python3
"""A model that `tweedie export RUN --to pytorch` wrote, as ONNX graphs with a batch of any size.

    python reference/export_onnx.py EXPORTED [--out DIR]

encoder.onnx    images [B, C, H, W] -> cond [B, K, D]              (not for models of text alone)
denoiser.onnx   noisy [B, N, V], t [B], cond, drop [B] -> logits   (MDD of sequences: ids [B, N] in the place of noisy)

Of a classifier by MDD, which has no denoiser, denoiser.onnx is the head: cond -> logits. Both graphs are run by onnxruntime on
batches of one and of three and compared with PyTorch; exits with 1 where they differ by more than 1e-4 of the largest value.
"""
import argparse
import pathlib
import shutil
import sys

import onnxruntime
import torch
from torch import nn

from load_run import load
from torch_tdd import MDD, pooled

TOLERANCE = 1e-4


class Encoder(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.encoder, self.pool = model.encoder, model.pool

    def forward(self, images):
        return pooled(self.encoder(images), self.pool)


def parts(model, config):
    """Name, module, names of the inputs, and a function that draws inputs for a batch, of each graph."""
    m, e = config["model"], config["model"]["encoder"]
    found, generator = [], torch.Generator().manual_seed(0)
    draw = lambda *shape: torch.randn(*shape, generator=generator)
    if model.encoder is not None:
        images = lambda b: (draw(b, e["channels"], e["image"], e["image"]),)
        found.append(("encoder", Encoder(model), ["images"], images))
    width = e["width"]
    if isinstance(model, MDD):
        return found + [("denoiser", model.head, ["cond"], lambda b: (draw(b, 1, width),))]
    d, steps = model.denoiser, config["process"]["steps"]
    whole = lambda b, n: torch.randint(0, n, (b,), generator=generator)
    if hasattr(d, "token_embed"):
        noisy = lambda b: torch.randint(0, m["classes"] + 1, (b, d.tokens), generator=generator)
    else:
        noisy = lambda b: draw(b, d.tokens, m["classes"])
    if model.encoder is None:
        return found + [("denoiser", d, ["noisy", "t"], lambda b: (noisy(b), 1 + whole(b, steps)))]
    inputs = lambda b: (noisy(b), 1 + whole(b, steps), draw(b, d.cond_tokens, width), whole(b, 2) > 0)
    return found + [("denoiser", d, ["noisy", "t", "cond", "drop"], inputs)]


def export(module, names, inputs, output, path):
    batch = torch.export.Dim("batch", min=1, max=1 << 16)
    torch.onnx.export(module, inputs(2), str(path), input_names=names, output_names=[output], dynamo=True, opset_version=18,
                      dynamic_shapes=tuple({0: batch} for _ in names), external_data=False, verbose=False)


def difference(module, names, inputs, path):
    """The largest one between onnxruntime and PyTorch, relative to the largest value."""
    session, worst = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"]), 0.0
    for b in (1, 3):
        given = inputs(b)
        with torch.no_grad():
            want = module(*given)
        got = torch.from_numpy(session.run(None, {n: x.numpy() for n, x in zip(names, given)})[0])
        assert got.shape == want.shape, (got.shape, want.shape)
        worst = max(worst, float((got - want).abs().max() / want.abs().max()))
    return worst


def main():
    ap = argparse.ArgumentParser(formatter_class=argparse.RawDescriptionHelpFormatter, description=__doc__)
    ap.add_argument("exported", type=pathlib.Path)
    ap.add_argument("--out", metavar="DIR", type=pathlib.Path, help="default: beside the weights")
    a = ap.parse_args()
    model, config, folder = load(a.exported)
    if "export" not in config:
        sys.exit(f"error: {a.exported} is not an exported folder\n\nhint: tweedie export {a.exported} --to pytorch")
    out, failed = a.out or folder, False
    out.mkdir(parents=True, exist_ok=True)
    if out != folder:
        for name in ("config.json", "tokenizer.json"):
            if (folder / name).exists():
                shutil.copy(folder / name, out / name)
    for name, module, names, inputs in parts(model, config):
        path = out / f"{name}.onnx"
        export(module.eval(), names, inputs, "cond" if name == "encoder" else "logits", path)
        worst = difference(module, names, inputs, path)
        failed |= not worst <= TOLERANCE
        print(f"{'ok' if worst <= TOLERANCE else 'BAD':4}{path}: {', '.join(names)}; largest difference {worst:.1e}", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
