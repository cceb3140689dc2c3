#!/usr/bin/env python3
"""Makes the golden files that tests of the Rust code compare with.

    pip install -r reference/requirements.txt
    python reference/golden.py NAME… [--out FOLDER]

Without --out the committed files are replaced; look at `git diff` then, and run `python reference/check.py`.
"""
import argparse
import importlib
import pathlib
import shutil
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path.insert(0, str(HERE))                      # whoever imports this, too
FIXTURES = "crates/tweedie/tests/fixtures"

# name: generator, folder in the repository, files in it, inputs that are given on the command line
GOLDEN = {
    "class": ("model", "crates/tweedie/tests/golden", ["class.safetensors"], []),
    "caption": ("model", "crates/tweedie/tests/golden", ["caption.safetensors"], []),
    "adamw": ("adamw", "crates/engine/tests/fixtures", ["adamw.txt"], []),
    "augment": ("augment", FIXTURES, ["golden.json", "golden.bin.gz"], []),
    "jpeg": ("jpeg", f"{FIXTURES}/jpeg", [f"{n}.jpg" for n in ("420", "422", "444", "grey", "optimized", "progressive", "restart")], []),
    "parquet": ("parquet", FIXTURES, ["parquet/test-00000-of-00001.parquet", "parquet/train-00000-of-00002.parquet",
                                      "parquet/train-00001-of-00002.parquet", "parquet/validation-00000-of-00001.parquet",
                                      "parquet-names/data.parquet"], []),
    "sequences": ("sequences", f"{FIXTURES}/captions", [f"{n}/train-00000-of-00001.parquet" for n in ("enriched", "list", "numbered", "structs")], []),
    "clip": ("clip", f"{FIXTURES}/clip", [f"image{i}.png" for i in range(4)]
             + [f"quick/{n}" for n in ("config.json", "golden.json", "golden.safetensors", "model.safetensors", "preprocessor_config.json", "tokenizer.json")]
             + [f"gelu/{n}" for n in ("config.json", "golden.json", "golden.safetensors", "merges.txt", "model-00001-of-00004.safetensors",
                                      "model-00002-of-00004.safetensors", "model-00003-of-00004.safetensors", "model-00004-of-00004.safetensors",
                                      "model.safetensors.index.json", "preprocessor_config.json", "vocab.json")], []),
    "tokens": ("tokens", FIXTURES, ["tokens.json"], ["tokenizers"]),
    "scores": ("captions", f"{FIXTURES}/captions", ["golden.json"], ["coco"]),
}


class Missing(Exception):
    """An input that is not in the repository was not given."""


def make(names, out, given):
    """Write the files of `names` below `out`, laid out as in the repository. A generator runs once."""
    for generator in dict.fromkeys(GOLDEN[n][0] for n in names):
        name = next(n for n in names if GOLDEN[n][0] == generator)
        _, folder, _, wanted = GOLDEN[name]
        inputs = {}
        for key in wanted:
            if not given.get(key):
                raise Missing(f"{name} needs --{key}")
            inputs[key] = given[key]
        if name == "tokens":
            inputs["texts"] = ROOT / FIXTURES / "tokens.json"
        if name == "scores":
            inputs["nasty"] = ROOT / FIXTURES / "captions/nasty.txt"
        with tempfile.TemporaryDirectory() as made:    # a generator may make more than was asked for
            made = pathlib.Path(made)
            importlib.import_module(f"generators.{generator}").make(made, **inputs)
            for file in [f for n in names if GOLDEN[n][0] == generator for f in GOLDEN[n][2]]:
                (out / folder / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(made / file, out / folder / file)


def add_inputs(ap):
    ap.add_argument("--tokenizers", metavar="FOLDER", help="for tokens: bert-uncased.json and gpt2.json, each the tokenizer.json of its model")
    ap.add_argument("--coco", metavar="FILE", help="for scores: Parquet with the columns captions (list of strings) and image_id; needs Java")


def main():
    ap = argparse.ArgumentParser(formatter_class=argparse.RawDescriptionHelpFormatter, description=__doc__)
    ap.add_argument("names", nargs="+", choices=GOLDEN, metavar="NAME", help=", ".join(GOLDEN))
    ap.add_argument("--out", type=pathlib.Path, default=ROOT, metavar="FOLDER", help="laid out there as in the repository")
    add_inputs(ap)
    a = ap.parse_args()
    try:
        make(a.names, a.out, vars(a))
    except Missing as e:
        ap.error(str(e))


if __name__ == "__main__":
    main()
