"""Caption files by pyarrow: laid out as `datasets` writes them. Row 2 of each file has no image bytes, row 3 a broken image, row 4 no
caption that is not blank.
"""
import io

import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def png(mark):
    out = io.BytesIO()
    Image.new("RGB", (8, 6), (mark, 0, 9)).save(out, "PNG")
    return out.getvalue()


def write(path, columns):
    path.parent.mkdir(parents=True, exist_ok=True)
    images = [{"bytes": png(i), "path": f"{i}.png"} for i in range(6)]
    images[2] = {"bytes": None, "path": "2.png"}
    images[3] = {"bytes": b"no image", "path": "3.png"}
    table = pa.table({"image": pa.array(images, IMAGE), **columns})
    pq.write_table(table, path, row_group_size=4)


def make(out):
    texts = [[f"a cat number {i} {j}" for j in range(i % 3 + 1)] for i in range(6)]
    texts[4] = ["  ", ""]
    write(out / "list/train-00000-of-00001.parquet", {"captions": pa.array(texts, pa.list_(pa.string()))})
    # As visual-layer/imagenet-1k-vl-enriched: one caption, and a column of boxes with strings of their own.
    boxes = [[{"bbox": [0.0, 1.0], "label": "Dog"}] for _ in range(6)]
    write(out / "enriched/train-00000-of-00001.parquet", {
        "image_id": [f"n{i}.JPEG" for i in range(6)],
        "label": pa.array(range(6), pa.int64()),
        "label_bbox_enriched": pa.array(boxes, pa.list_(pa.struct([("bbox", pa.list_(pa.float64())), ("label", pa.string())]))),
        "caption_enriched": [t[0] if t[0].strip() else None for t in texts],
        "issues": pa.array([[] for _ in range(6)], pa.list_(pa.struct([("issue_type", pa.string()), ("confidence", pa.float64())]))),
    })
    # As COCO and Flickr are often packed: sentences with tokens beside the raw text.
    structs = [[{"tokens": t.split(), "raw": t, "imgid": i} for t in row] for i, row in enumerate(texts)]
    sentence = pa.struct([("tokens", pa.list_(pa.string())), ("raw", pa.string()), ("imgid", pa.int64())])
    write(out / "structs/train-00000-of-00001.parquet", {"sentences": pa.array(structs, pa.list_(sentence))})
    # As jxie/flickr8k: numbered columns.
    write(out / "numbered/train-00000-of-00001.parquet", {f"caption_{j}": [t[j] if j < len(t) else None for t in texts] for j in range(3)})
