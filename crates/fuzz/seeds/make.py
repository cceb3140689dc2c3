"""The small pictures beside this file, in every form that the decoders know: python3 make.py (needs Pillow)."""
from pathlib import Path

from PIL import Image

here = Path(__file__).parent
picture = Image.new("RGB", (24, 16))
picture.putdata([(10 * x, 15 * y, (x * y) % 256) for y in range(16) for x in range(24)])
clear = picture.convert("RGBA")
clear.putalpha(Image.linear_gradient("L").resize((24, 16)))

picture.save(here / "lossy.webp", quality=60)
picture.save(here / "lossless.webp", lossless=True)
clear.save(here / "alpha.webp", quality=60)
picture.save(here / "moving.webp", save_all=True, append_images=[picture.rotate(90), picture.rotate(180)], duration=50)
picture.save(here / "rgb.png")
picture.quantize(16).save(here / "palette.png", transparency=3)
clear.save(here / "rgba.png")
picture.convert("I;16").save(here / "grey16.png")
picture.convert("L").convert("LA").save(here / "grey-alpha.png")
picture.convert("1").save(here / "bits.png")
picture.save(here / "baseline.jpg", quality=50)
picture.save(here / "progressive.jpg", quality=50, progressive=True)
picture.convert("CMYK").save(here / "cmyk.jpg", quality=50)
picture.quantize(16).save(here / "palette.gif")
picture.save(here / "rgb.bmp")
picture.quantize(16).save(here / "palette.bmp")
picture.save(here / "lzw.tiff", compression="tiff_lzw")
picture.convert("L").save(here / "grey.tiff", compression="packbits")
exif = Image.Exif()
exif[0x0112] = 6
picture.save(here / "held.jpg", quality=50, exif=exif)
picture.save(here / "held.png", exif=exif)
