"""Augmentations, random choices and decoded image files by Pillow, torchvision and timm.

Arrays go into golden.bin.gz one after another; golden.json says where and what they are: bytes, but for `evals`, which are f32.
"""
import gzip
import io
import json
import random

import numpy as np
import timm.data.random_erasing as random_erasing
from PIL import Image
from timm.data import auto_augment as aa
from timm.data.transforms import RandomResizedCropAndInterpolation
from timm.data.transforms_factory import transforms_imagenet_eval

FILTERS = {"bilinear": Image.BILINEAR, "bicubic": Image.BICUBIC}
DRAWS = 200_000


class Arrays:
    def __init__(self):
        self.bytes = bytearray()

    def put(self, a):
        a = np.ascontiguousarray(a)
        at = len(self.bytes)
        self.bytes.extend(a.tobytes())
        return {"at": at, "shape": list(a.shape)}


def picture(rng, w, h):
    """Smooth shapes, an edge, flat areas and noise: what filters and histograms differ on."""
    y, x = np.mgrid[0:h, 0:w]
    base = np.stack([127 + 90 * np.sin(x / 5), 40 + 3.5 * y, 200 - 2 * x + y], -1)
    base[h // 3 : h // 2, w // 4 : w // 2] = (250, 10, 60)
    base[: h // 6] = 77
    noise = rng.normal(0, 12, base.shape) * (x > w * 0.6)[..., None]
    return Image.fromarray(np.clip(base + noise, 0, 255).astype(np.uint8))


def array(img):
    a = np.asarray(img)
    return a if a.ndim == 3 else a[..., None]


def rand_augment(put, small):
    """timm's maps from magnitude to argument, and timm's ops applied to the small picture."""
    levels, ops = [], []
    original = random.random                       # replaced below to choose the sign
    for name in aa._RAND_INCREASING_TRANSFORMS:
        fn = aa.LEVEL_TO_ARG[name]
        for magnitude in [0.0, 2.5, 5.0, 8.3, 9.0, 9.99, 10.0]:
            for negate in [False, True]:
                random.random = lambda: 0.75 if negate else 0.25
                arg = float(fn(magnitude, {})[0]) if fn else 0.0
                levels.append([name, magnitude, negate, arg])
        seen = set()
        for magnitude in [4.0, 9.0] if fn else [9.0]:
            for negate in [False, True]:
                random.random = lambda: 0.75 if negate else 0.25
                args = fn(magnitude, {}) if fn else ()
                geometric = name in ("Rotate", "ShearX", "ShearY", "TranslateXRel", "TranslateYRel")
                if args in seen:
                    continue
                seen.add(args)
                for filter, resample in FILTERS.items() if geometric else [("bicubic", Image.BICUBIC)]:
                    img = aa.NAME_TO_OP[name](small, *args, fillcolor=(124, 116, 104), resample=resample)
                    ops.append([name, float(args[0]) if args else 0.0, filter, put(array(img))])
    random.random = original
    return levels, ops


def grey_ops(put, grey):
    """The grey path, for one op of each kind."""
    return [
        [name, float(arg), put(array(aa.NAME_TO_OP[name](grey, *([arg] if arg else []), fillcolor=100, resample=Image.BICUBIC)))]
        for name, arg in [("Equalize", 0), ("AutoContrast", 0), ("ContrastIncreasing", 1.7), ("SharpnessIncreasing", 0.3),
                          ("ColorIncreasing", 0.2), ("Rotate", 20.0)]
    ]


def crops(put, large):
    """Crop and resize: down, up, both, whole, a sliver."""
    made = []
    for box, size in [((3, 5, 40, 33), (32, 32)), ((10, 8, 12, 17), (32, 32)), ((0, 0, 61, 47), (20, 20)),
                      ((7, 1, 50, 9), (24, 30)), ((60, 0, 1, 47), (16, 16))]:
        x, y, w, h = box
        for filter, resample in FILTERS.items():
            img = large.crop((x, y, x + w, y + h)).resize(size, resample)
            made.append([list(box), list(size), filter, put(array(img))])
    return made


def evals(put, large):
    """The whole evaluation path, wide and high, with timm's normalisation."""
    made = []
    for name, img in [("large", large), ("high", large.transpose(Image.ROTATE_90))]:
        for size, pct in [(32, 0.875)] + [(20, 1.0)] * (name == "high"):
            t = transforms_imagenet_eval(size, crop_pct=pct, interpolation="bicubic")
            made.append([name, size, pct, put(t(img).numpy())])
    return made


def quantiles(values, names):
    at = np.arange(0.05, 1.0, 0.05)
    return {name: [float(x) for x in np.quantile(values[:, i], at)] for i, name in enumerate(names)}


def erased():
    """Rectangles that timm erases: height, width, y, x."""
    found = []

    class Spy:
        def __setitem__(self, key, value):
            found.append((key[1].stop - key[1].start, key[2].stop - key[2].start, key[1].start, key[2].start))

    original, random_erasing._get_pixels = random_erasing._get_pixels, lambda *a, **k: 0
    erasing = random_erasing.RandomErasing(1.0, mode="pixel", device="cpu")
    for _ in range(DRAWS):
        erasing._erase(Spy(), 3, 224, 224, None)
    random_erasing._get_pixels = original
    return np.array(found)


def files(put, small, grey):
    """Image files, and the pixels that PIL's convert("RGB") gives."""
    made = []

    def file(name, img, **save):
        f = io.BytesIO()
        img.save(f, name.split(".")[-1], **save)
        rgb = Image.open(io.BytesIO(f.getvalue())).convert("RGB")
        made.append([name, put(np.frombuffer(f.getvalue(), np.uint8)), put(array(rgb))])

    rgba = small.copy()
    rgba.putalpha(grey)
    file("base.jpeg", small, quality=90)
    file("full.jpeg", small, quality=90, subsampling=0)
    file("progressive.jpeg", small, quality=90, progressive=True)
    file("grey.jpeg", grey, quality=90)
    file("cmyk.jpeg", small.convert("CMYK"), quality=90)
    file("rgb.png", small)
    file("rgba.png", rgba)
    file("grey.png", grey)
    file("palette.png", small.quantize(16))
    file("bits.png", grey.convert("1"))
    file("lossy.webp", small, quality=90)
    file("lossless.webp", small, lossless=True)
    file("alpha.webp", rgba, lossless=True, exact=True)
    return made


def make(out):
    rng, arrays, golden = np.random.default_rng(0), Arrays(), {}
    put = arrays.put
    small, large = picture(rng, 31, 24), picture(rng, 61, 47)
    golden["small"], golden["large"] = put(array(small)), put(array(large))
    golden["levels"], golden["ops"] = rand_augment(put, small)
    grey = small.convert("L")
    golden["grey"] = put(array(grey))
    golden["grey_ops"] = grey_ops(put, grey)
    golden["crops"] = crops(put, large)
    golden["evals"] = evals(put, large)
    golden["high"] = put(array(large.transpose(Image.ROTATE_90)))
    random.seed(1)
    boxes = np.array([RandomResizedCropAndInterpolation.get_params(Image.new("L", (500, 375)), (0.08, 1.0), (3 / 4, 4 / 3)) for _ in range(DRAWS)])
    rects = erased()
    golden["crop_quantiles"] = quantiles(boxes, ["y", "x", "height", "width"])
    golden["erase_quantiles"] = quantiles(rects, ["height", "width", "y", "x"])
    golden["erase_missed"] = 1 - len(rects) / DRAWS
    golden["files"] = files(put, small, grey)
    (out / "golden.bin.gz").write_bytes(gzip.compress(bytes(arrays.bytes), mtime=0))
    (out / "golden.json").write_text(json.dumps(golden, separators=(",", ":")))
