#!/usr/bin/env python3
"""1,000 kanji in fonts that Debian packages: 48,000 training and 10,000 test images of 32×32 grey pixels, for 1,000 classes.

    apt-get install fonts-ipafont-gothic fonts-ipafont-mincho fonts-vlgothic fonts-motoya-l-maruberi fonts-wqy-zenhei \\
        fonts-arphic-ukai fonts-dejima-mincho fonts-oradano-mincho-gsrr fonts-kouzan-mouhitsu fonts-kiloji \\
        fonts-yozvox-yozfont-edu fonts-rocknroll fonts-konatu fonts-sawarabi-mincho fonts-seto fonts-reggae fonts-yusei-magic
    pip install pillow==13.0.0 numpy==2.4.6 pyarrow==26.0.1
    python3 scripts/characters.py OUT [--sheet SHEET.png]
    tweedie train characters --data OUT

Writes OUT/train-00000-of-00001.parquet and OUT/test-00000-of-00001.parquet as Hugging Face `datasets` does. Test images are in
fonts that training never shows. The characters are 1,000 of the 2,965 of JIS X 0208's first level: of those that every font
has, the ones whose SHA-256 (of UTF-8) is smallest. Each image is turned, sheared, scaled, shifted, bent, blurred, faded and
made noisy; how much is drawn from a generator seeded by font, character and copy, so the same versions give the same bytes.
The last line is a checksum of labels and pixels. About two minutes on one core.
"""

import argparse
import hashlib
import json
import math
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import PIL
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image, ImageChops, ImageDraw, ImageFont, features

FONTS = Path("/usr/share/fonts")

# Package, file. No two of different splits share outlines: left out are Takao, IPAex, Monapo (IPA), M+ (VL Gothic), Motoya
# Cedar (Maruberi), Aoyagi's other brushes (Kouzan).
TRAIN = [
    ("fonts-ipafont-gothic", "opentype/ipafont-gothic/ipag.ttf"),
    ("fonts-ipafont-mincho", "opentype/ipafont-mincho/ipam.ttf"),
    ("fonts-vlgothic", "truetype/vlgothic/VL-Gothic-Regular.ttf"),
    ("fonts-motoya-l-maruberi", "truetype/motoya-l-maruberi/MTLmr3m.ttf"),
    ("fonts-wqy-zenhei", "truetype/wqy/wqy-zenhei.ttc"),
    ("fonts-arphic-ukai", "truetype/arphic/ukai.ttc"),
    ("fonts-dejima-mincho", "truetype/dejima-mincho/dejima-mincho-r227.ttf"),
    ("fonts-oradano-mincho-gsrr", "truetype/oradano-mincho/OradanoGSRR.ttf"),
    ("fonts-kouzan-mouhitsu", "truetype/kouzan-mouhitsu/kouzan-mouhitsu.ttf"),
    ("fonts-kiloji", "truetype/kiloji/kiloji.ttf"),
    ("fonts-yozvox-yozfont-edu", "truetype/yozvox-yozfont/YOzBEF.ttf"),
    ("fonts-rocknroll", "truetype/rocknroll/RocknRollOne-Regular.ttf"),
]
TEST = [
    ("fonts-konatu", "truetype/konatu/Konatu.ttf"),
    ("fonts-sawarabi-mincho", "truetype/sawarabi-mincho/sawarabi-mincho-medium.ttf"),
    ("fonts-seto", "truetype/seto/setofont.ttf"),
    ("fonts-reggae", "truetype/reggae/ReggaeOne-Regular.ttf"),
    ("fonts-yusei-magic", "truetype/yusei-magic/YuseiMagic-Regular.ttf"),
]
SPLITS = {"train": (TRAIN, 4), "test": (TEST, 2)}  # fonts, images of each character in each

CLASSES = 1000
SIDE = 32     # pixels of an image
FINE = 3      # drawn this many times larger, and as many samples a pixel along each side
GLYPH = 26    # pixels of a font's median character
LEVELS = 16   # grey levels: noise does not compress, and half of its bits do no harm

# How far an image is from the clean one; U: uniform in ±, S: standard deviation.
TURN = 12      # degrees, U
SHEAR = 0.2    # U
SCALE = 0.15   # of each side, as a factor of 1 ± this, U
SHIFT = 2.5    # pixels, U
BEND = 0.8     # pixels, S, of 5×5 points
BLUR = 0.9     # pixels, S, from 0 to this
NOISE = 0.2    # of black to white, S, from 0 to this


def open_fonts():
    """Fonts by file, and how each is called; ends with the packages to install if some are missing."""
    every = TRAIN + TEST
    missing = [package for package, file in every if not (FONTS / file).is_file()]
    if missing:
        sys.exit(f"fonts are missing; install them with: apt-get install {' '.join(missing)}")
    for package, file in every:
        version = subprocess.run(["dpkg-query", "-W", "-f", "${Version}", package], capture_output=True, text=True).stdout
        digest = hashlib.sha256((FONTS / file).read_bytes()).hexdigest()[:16]
        print(f"{package} {version or 'of unknown version'} {Path(file).name} {digest}")


def load(file, size):
    return ImageFont.truetype(FONTS / file, size, layout_engine=ImageFont.Layout.BASIC)


def characters():
    """The classes, in the order of their code points."""
    codes = (bytes([0xA0 + row, 0xA0 + cell]) for row in range(16, 48) for cell in range(1, 95))
    found = [c for c in (code.decode("euc_jp", "ignore") for code in codes) if c]
    for _, file in TRAIN + TEST:
        font = load(file, 32)
        nothing = {bytes(font.getmask(c)) for c in "\uffff\u3000"}  # the mark of a missing glyph; a blank one
        found = [c for c in found if bytes(font.getmask(c)) not in nothing]
    if len(found) < CLASSES:
        sys.exit(f"only {len(found)} characters are in every font, not {CLASSES}")
    return sorted(sorted(found, key=lambda c: hashlib.sha256(c.encode()).digest())[:CLASSES])


def drawn(font, c, side):
    """A character on a page of this side, with its ink in the middle, and the longer side of its ink."""
    page = Image.new("L", (side, side))
    ImageDraw.Draw(page).text((side // 2, side // 2), c, font=font, fill=255, anchor="mm")
    l, t, r, b = page.getbbox()
    return ImageChops.offset(page, (side - l - r) // 2, (side - t - b) // 2), max(r - l, b - t)


def glyphs(file, chars):
    """Each character as an array of 0…1 (ink), large enough to be turned."""
    probe = load(file, 100)
    extent = sorted(drawn(probe, c, 200)[1] for c in chars)[len(chars) // 2]
    font = load(file, round(100 * FINE * GLYPH / extent))
    for c in chars:
        yield np.asarray(drawn(font, c, 2 * FINE * SIDE)[0], np.float64) / 255


def between(points, places):
    """The matrix that interpolates `points` values linearly at `places` places."""
    at = np.linspace(0, points - 1, places)
    return np.maximum(0, 1 - np.abs(at[:, None] - np.arange(points)))


SPREAD = between(5, SIDE * FINE)
GRID = (np.arange(SIDE * FINE) + 0.5) / FINE - SIDE / 2  # pixels from the middle


def distorted(glyph, key):
    """One image: `SIDE`×`SIDE` bytes, dark ink on light paper."""
    rng = np.random.Generator(np.random.PCG64(int.from_bytes(hashlib.sha256(key.encode()).digest()[:16], "big")))
    turn, shear, sx, sy, dx, dy = rng.uniform(-1, 1, 6)
    turn, shear, sx, sy = math.radians(TURN * turn), SHEAR * shear, 1 + SCALE * sx, 1 + SCALE * sy
    ink, paper, blur, noise = rng.uniform(0, 1, 4)
    bend = rng.normal(0, BEND, (2, 5, 5))

    # Where each sample comes from: the inverse of a shift, a turn, a shear and a scaling, and what bends it.
    ys, xs = GRID[:, None] - SHIFT * dy, GRID[None, :] - SHIFT * dx
    xs, ys = math.cos(turn) * xs + math.sin(turn) * ys, math.cos(turn) * ys - math.sin(turn) * xs
    xs = (xs - shear * ys) / sx + SPREAD @ bend[0] @ SPREAD.T
    ys = ys / sy + SPREAD @ bend[1] @ SPREAD.T
    top = len(glyph) - 1.001
    xs, ys = (np.clip(FINE * v + top / 2, 0, top) for v in (xs, ys))
    x, y = xs.astype(int), ys.astype(int)
    fx, fy = xs - x, ys - y
    v = (glyph[y, x] * (1 - fx) + glyph[y, x + 1] * fx) * (1 - fy) + (glyph[y + 1, x] * (1 - fx) + glyph[y + 1, x + 1] * fx) * fy
    v = v.reshape(SIDE, FINE, SIDE, FINE).mean((1, 3))

    if blur * BLUR > 0.2:
        tap = np.array([math.exp(-0.5 * (i / (blur * BLUR)) ** 2) for i in range(-3, 4)])
        tap /= tap.sum()
        for axis in (0, 1):
            wide = np.pad(v, [(3, 3) if a == axis else (0, 0) for a in (0, 1)])
            v = sum(t * np.take(wide, range(i, i + SIDE), axis) for i, t in enumerate(tap))
    paper, contrast = 1 - 0.3 * paper, 0.4 + 0.3 * ink
    v = paper - contrast * v + rng.normal(0, noise * NOISE, v.shape)
    levels = np.clip(np.rint(v * (LEVELS - 1)), 0, LEVELS - 1).astype(np.uint8)
    return levels * (255 // (LEVELS - 1))


def png(pixels):
    """A grey PNG: rows without a filter, which suits few levels."""
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = np.pad(pixels, ((0, 0), (1, 0))).tobytes()
    head = struct.pack(">IIBBBBB", pixels.shape[1], pixels.shape[0], 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows, 9)) + chunk(b"IEND", b"")


def write(path, images, labels, names):
    """As `datasets` writes it: names of classes in the schema's metadata."""
    features_of = {"image": {"_type": "Image"}, "label": {"names": names, "_type": "ClassLabel"}}
    image = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    schema = pa.schema([("image", image), ("label", pa.int64())], {"huggingface": json.dumps({"info": {"features": features_of}})})
    rows = [{"bytes": png(i), "path": None} for i in images]
    table = pa.table([pa.array(rows, image), pa.array(labels, pa.int64())], schema=schema)
    pq.write_table(table, path, row_group_size=2000, compression="zstd", compression_level=9, use_dictionary=["label"])


def sheet(path, names):
    """Eight characters in all fonts, clean and distorted, three times their size."""
    picked, rows = names[7::125], []
    for split, (fonts, copies) in SPLITS.items():
        for _, file in fonts:
            row = []
            for c, glyph in zip(picked, glyphs(file, picked)):
                edge = (len(glyph) - FINE * SIDE) // 2
                clean = glyph[edge:-edge, edge:-edge].reshape(SIDE, FINE, SIDE, FINE).mean((1, 3))
                row += [(255 - 255 * clean).astype(np.uint8)] + [distorted(glyph, f"{file}/{c}/{i}") for i in range(copies)]
            rows.append(np.hstack(row + [np.full((SIDE, SIDE), 255, np.uint8)] * (8 * 5 - len(row))))
    page = Image.fromarray(np.vstack(rows))
    page.resize((page.width * 3, page.height * 3), Image.NEAREST).save(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="folder to write to")
    parser.add_argument("--sheet", type=Path, help="draw some of it to this PNG and stop")
    args = parser.parse_args()
    open_fonts()
    print(f"Pillow {PIL.__version__}, FreeType {features.version('freetype2')}, numpy {np.__version__}, pyarrow {pa.__version__}")
    names = characters()
    if args.sheet:
        return sheet(args.sheet, names)
    args.out.mkdir(parents=True, exist_ok=True)
    content = hashlib.sha256("".join(names).encode())
    for split, (fonts, copies) in SPLITS.items():
        images, labels = [], []
        for _, file in fonts:
            for label, (c, glyph) in enumerate(zip(names, glyphs(file, names))):
                images += [distorted(glyph, f"{file}/{c}/{i}") for i in range(copies)]
                labels += [label] * copies
        # In an order that has nothing to do with classes and fonts, for readers that take the first so many.
        order = sorted(range(len(labels)), key=lambda i: hashlib.sha256(f"{split}/{i}".encode()).digest())
        images, labels = [images[i] for i in order], [labels[i] for i in order]
        content.update(struct.pack(f"<{len(labels)}H", *labels) + b"".join(i.tobytes() for i in images))
        path = args.out / f"{split}-00000-of-00001.parquet"
        write(path, images, labels, names)
        data = path.read_bytes()
        print(f"{path.name}: {len(labels)} images, {len(data)} bytes, sha256 {hashlib.sha256(data).hexdigest()}", flush=True)
    print(f"labels and pixels: sha256 {content.hexdigest()}")


if __name__ == "__main__":
    main()
