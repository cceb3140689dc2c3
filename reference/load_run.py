"""The weights of a tweedie run in the PyTorch reference.

    from load_run import load
    model, config, checkpoint = load("runs/digits-1")          # averaged weights; weights="model": the trained ones
    model, config, folder = load("exported")                   # of `tweedie export RUN --to pytorch --out exported`

A run folder has config.toml and checkpoints/step-N/{model,ema}.safetensors; names and layouts of the weights are PyTorch's, so they
load strictly. TDD (transformer, DiT, MLP) and MDD, of classes, captions and text.
"""
import json
import pathlib
import tomllib

from safetensors.torch import load_file

from torch_tdd import MDD, TDD, Denoiser, ViT


def build_from(config):
    """The model that the settings of a run describe."""
    m, e, d = config["model"], config["model"]["encoder"], config["model"]["denoiser"]
    gelu = {"erf": "none", "tanh": "tanh"}[m.get("gelu", "erf")]
    vocab, tokens = m["classes"], 1 if config["data"]["task"] == "class" else config["data"]["tokens"]
    image, masked = m.get("condition", "image") == "image", m.get("method", "tdd") == "mdd"
    pool = m.get("pool", "cls")
    encoder = ViT(e["image"], e["patch"], e["channels"], e["width"], e["depth"], e["heads"], gelu) if image else None
    if masked and tokens == 1 and image:
        return MDD(encoder, vocab, e["width"], pool)
    cond_tokens = 0 if not image else (e["image"] // e["patch"]) ** 2 + 1 if pool == "all" else 1
    denoiser = Denoiser(vocab, tokens, e["width"], cond_tokens, d["width"], d["depth"], d["heads"], kind=d.get("kind", "transformer"),
                        attention=d.get("condition_attention", "full"), positions=d.get("positions", "waves"),
                        direct=d.get("direct", False), masked=masked, gelu=gelu)
    return TDD(encoder, denoiser, pool)


def checkpoint_of(path):
    """The run folder around `path`, and its best checkpoint, else the newest; `path` may be a checkpoint itself."""
    path = pathlib.Path(path)
    if (path / "model.safetensors").exists():
        return path.parent.parent, path
    folder = path / "checkpoints"
    best = folder / "best"
    if best.is_file() and (folder / best.read_text().strip()).is_dir():
        return path, folder / best.read_text().strip()
    steps = sorted(folder.glob("step-*"))
    if not steps:
        raise FileNotFoundError(f"{folder} holds no checkpoint")
    return path, steps[-1]


def load(path, weights="ema"):
    """(model in evaluation mode, settings, folder of the weights) of a run folder, of one checkpoint or of an exported folder."""
    if (pathlib.Path(path) / "config.json").exists():
        folder = pathlib.Path(path)
        config = json.loads((folder / "config.json").read_text())
        model = build_from(config)
        model.load_state_dict(load_file(folder / "model.safetensors"), strict=True)
        return model.eval(), config, folder
    run, checkpoint = checkpoint_of(path)
    config = tomllib.loads((run / "config.toml").read_text())
    model = build_from(config)
    file = checkpoint / f"{weights}.safetensors"
    if weights == "ema" and not file.exists():     # a run without averaged weights (train.ema = 0)
        file = checkpoint / "model.safetensors"
    model.load_state_dict(load_file(file), strict=True)
    return model.eval(), config, checkpoint
