"""Small JPEGs of every kind that is decoded in part, by Pillow."""
import math

from PIL import Image


def picture(w, h):
    im = Image.new("RGB", (w, h))
    im.putdata([(int(127 + 120 * math.sin(x / 5 + y / 9)), (x * y) % 256, int(127 + 120 * math.cos(x * y / 300))) for y in range(h) for x in range(w)])
    return im


def make(out):
    im = picture(61, 131)
    for name, subsampling in [("444", 0), ("422", 1), ("420", 2)]:
        im.save(out / f"{name}.jpg", quality=80, subsampling=subsampling)
    im.save(out / "restart.jpg", quality=80, subsampling=2, restart_marker_rows=1)
    im.save(out / "optimized.jpg", quality=80, subsampling=2, optimize=True)
    im.save(out / "progressive.jpg", quality=80, subsampling=2, progressive=True)
    im.convert("L").save(out / "grey.jpg", quality=80)
