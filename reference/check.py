#!/usr/bin/env python3
"""Makes every golden file again in a temporary folder and compares it with the committed one, to 1e-6.

    python reference/check.py [NAME…] [--tokenizers FOLDER] [--coco FILE] [--record]

PyTorch is too large for CI: with --record the date, the versions and what came out are written to CHECKED.md, which stands in for
it. Numbers of JSON, text and safetensors files may differ by 1e-6 (of 1 or of the number, the larger); everything else, images as
their pixels and Parquet as its rows, must be equal. Exits with 1 where something differs.
"""
import argparse
import datetime
import gzip
import importlib.metadata
import json
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time

import numpy as np

from golden import GOLDEN, ROOT, Missing, add_inputs, make

RECORD = pathlib.Path(__file__).resolve().parent / "CHECKED.md"
TOLERANCE = 1e-6
PACKAGES = ["torch", "numpy", "safetensors", "pillow", "torchvision", "timm", "transformers", "tokenizers", "pyarrow", "pycocoevalcap"]
# What a library writes about itself.
OWN_WORDS = {"transformers_version", "torch_dtype", "dtype"}


class Different(Exception):
    pass


def arrays(name, a, b):
    """Largest difference, relative to 1 or to the number."""
    if a.shape != b.shape or a.dtype != b.dtype:
        raise Different(f"{name}: {a.dtype}{list(a.shape)}, committed {b.dtype}{list(b.shape)}")
    if a.dtype.kind != "f":
        if not np.array_equal(a, b):
            raise Different(f"{name}: {np.count_nonzero(a != b)} of {a.size} values differ")
        return 0.0
    a, b = a.astype(np.float64), b.astype(np.float64)
    return float((np.abs(a - b) / np.maximum(1, np.abs(b))).max(initial=0))


def same_json(a, b, at="$"):
    if isinstance(b, dict) and isinstance(a, dict):
        keys = (a.keys() | b.keys()) - OWN_WORDS
        for k in sorted(keys):
            if k not in a or k not in b:
                raise Different(f"{at}.{k} is only in the {'committed' if k in b else 'new'} file")
        return max((same_json(a[k], b[k], f"{at}.{k}") for k in keys), default=0.0)
    if isinstance(b, list) and isinstance(a, list):
        if len(a) != len(b):
            raise Different(f"{at}: {len(a)} entries, committed {len(b)}")
        return max((same_json(x, y, f"{at}[{i}]") for i, (x, y) in enumerate(zip(a, b))), default=0.0)
    numbers = [isinstance(x, (int, float)) and not isinstance(x, bool) for x in (a, b)]
    if all(numbers):
        return abs(a - b) / max(1, abs(b))
    if a != b:
        raise Different(f"{at}: {a!r}, committed {b!r}")
    return 0.0


def same_text(a, b):
    a, b = a.split(), b.split()
    if len(a) != len(b):
        raise Different(f"{len(a)} words, committed {len(b)}")
    number = re.compile(r"-?\d[\d.e+-]*$")
    return max((same_json(*(float(w) if number.match(w) else w for w in pair), f"word {i}") for i, pair in enumerate(zip(a, b))), default=0.0)


def same_safetensors(a, b):
    from safetensors.numpy import load_file
    a, b = load_file(a), load_file(b)
    if a.keys() != b.keys():
        raise Different(f"tensors {sorted(a.keys() ^ b.keys())} are in one of the two alone")
    return max((arrays(n, a[n], b[n]) for n in b), default=0.0)


def same_blob(a, b):
    """golden.bin.gz of augment: arrays one after another, `evals` of f32."""
    description = json.loads((b.parent / "golden.json").read_text())
    a, b = (gzip.decompress(p.read_bytes()) for p in (a, b))
    if len(a) != len(b):
        raise Different(f"{len(a)} bytes, committed {len(b)}")
    worst, floats = 0.0, np.zeros(len(b), bool)
    for name, size, _, where in description["evals"]:
        of = slice(where["at"], where["at"] + 4 * int(np.prod(where["shape"])))
        floats[of] = True
        worst = max(worst, arrays(f"evals {name} {size}", *(np.frombuffer(x[of], "<f4") for x in (a, b))))
    a, b = (np.frombuffer(x, np.uint8)[~floats] for x in (a, b))
    return max(worst, arrays("bytes", a, b))


def same_image(a, b):
    from PIL import Image
    return arrays("pixels", *(np.asarray(Image.open(p)) for p in (a, b)))


def same_parquet(a, b):
    import pyarrow.parquet as pq
    x, y = pq.read_table(a), pq.read_table(b)
    if not x.equals(y, check_metadata=True):
        raise Different("the rows, types or metadata differ")
    groups = [[(f.metadata.row_group(i).num_rows, f.metadata.row_group(i).column(0).compression) for i in range(f.num_row_groups)]
              for f in map(pq.ParquetFile, (a, b))]
    if groups[0] != groups[1]:
        raise Different(f"row groups {groups[0]}, committed {groups[1]}")
    return 0.0


def compare(a, b):
    if a.read_bytes() == b.read_bytes():
        return 0.0
    kinds = {".safetensors": same_safetensors, ".gz": same_blob, ".png": same_image, ".jpg": same_image, ".parquet": same_parquet,
             ".json": lambda a, b: same_json(json.loads(a.read_text()), json.loads(b.read_text())),
             ".txt": lambda a, b: same_text(a.read_text(), b.read_text())}
    return kinds[b.suffix](a, b)


def check(name, given):
    """Rows of a table: file, what came out, whether it is fine."""
    _, folder, files, _ = GOLDEN[name]
    with tempfile.TemporaryDirectory() as out:
        out = pathlib.Path(out)
        try:
            make([name], out, given)
        except Missing as e:
            return [(name, f"not made: {e}", None)]
        except (ImportError, OSError, subprocess.SubprocessError) as e:
            return [(name, f"not made: {e}", False)]
        rows = []
        for file in files:
            try:
                worst = compare(out / folder / file, ROOT / folder / file)
                equal = "equal" if worst == 0 else f"largest difference {worst:.1e}"
                rows.append((f"{folder}/{file}", equal, worst <= TOLERANCE))
            except Different as e:
                rows.append((f"{folder}/{file}", str(e), False))
        return rows


def versions():
    found = []
    for p in PACKAGES:
        try:
            found.append(f"{p} {importlib.metadata.version(p)}")
        except importlib.metadata.PackageNotFoundError:
            found.append(f"{p} (none)")
    said = subprocess.run(["java", "-version"], capture_output=True, text=True).stderr if shutil.which("java") else ""
    java = next((l for l in said.splitlines() if " version " in l), "no Java")
    return f"Python {platform.python_version()}, " + ", ".join(found) + f", {java}, {platform.machine()}"



def record(title, text):
    """Replace the section of this title in CHECKED.md, or add it."""
    old = RECORD.read_text() if RECORD.exists() else "# What was checked, when and with which versions\n"
    parts = re.split(r"(?m)^(?=## )", old)
    section = f"## {title}\n\n{text}"
    at = next((i for i, p in enumerate(parts) if p.startswith(f"## {title}\n")), None)
    if at is None:
        parts.append(section)
    else:
        parts[at] = section
    RECORD.write_text("\n\n".join(p.strip() for p in parts) + "\n")


def main():
    ap = argparse.ArgumentParser(formatter_class=argparse.RawDescriptionHelpFormatter, description=__doc__)
    ap.add_argument("names", nargs="*", metavar="NAME", help=", ".join(GOLDEN) + "; all by default")
    ap.add_argument("--record", action="store_true", help="write the result to CHECKED.md")
    add_inputs(ap)
    a = ap.parse_args()
    if unknown := [n for n in a.names if n not in GOLDEN]:
        ap.error(f"{', '.join(unknown)}: golden files are {', '.join(GOLDEN)}")
    lines, failed = ["| file | result |", "|---|---|"], 0
    for name in a.names or GOLDEN:
        start = time.monotonic()
        for file, what, fine in check(name, vars(a)):
            failed += fine is False
            mark = "" if fine or fine is None else "**differs**: "
            lines.append(f"| `{file}` | {mark}{what} |")
            print(f"{'ok' if fine else '--' if fine is None else 'BAD':4} {file}: {what}", flush=True)
        print(f"     {name}: {time.monotonic() - start:.0f} s", file=sys.stderr)
    print(versions())
    if a.record:
        command = "python reference/check.py --record" + "".join(f" --{k} …" for k in ("tokenizers", "coco") if getattr(a, k))
        record("Golden files", f"{datetime.date.today()}: `{command}`, tolerance {TOLERANCE:g}.\n\n{versions()}.\n\n" + "\n".join(lines))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
