"""Images with labels in Parquet, as Hugging Face's `datasets` writes them, by pyarrow."""
import io
import json

import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image


def png(value):
    f = io.BytesIO()
    Image.new("RGB", (3, 2), (value, 0, 255 - value)).save(f, "png")
    return f.getvalue()


def write(path, labels, kind, names, compression, images=None, **extra):
    path.parent.mkdir(parents=True, exist_ok=True)
    images = images or [{"bytes": png(10 * i), "path": f"{i}.png"} for i in range(len(labels))]
    feature = {"names": names, "_type": "ClassLabel"} if names else {"dtype": "string", "_type": "Value"}
    info = {"info": {"features": {"image": {"_type": "Image"}, "label": feature}}}
    table = pa.table({"id": list(range(len(labels))),
                      "image": pa.array(images, pa.struct([("bytes", pa.binary()), ("path", pa.string())])),
                      "label": pa.array(labels, kind)})
    table = table.replace_schema_metadata({"huggingface": json.dumps(info)})
    pq.write_table(table, path, row_group_size=3, compression=compression, **extra)


def make(out):
    names = ["cat", "dog", "emu"]
    broken = [{"bytes": png(10 * i), "path": ""} for i in range(4)]
    broken[2] = {"bytes": b"\xff\xd8 this is no image", "path": ""}
    broken[3] = None
    folder = out / "parquet"
    write(folder / "train-00000-of-00002.parquet", [0, 2, 1, 0, 2, 1, 1], pa.int64(), names, "snappy")
    write(folder / "train-00001-of-00002.parquet", [2, 2], pa.int64(), names, "zstd")
    write(folder / "validation-00000-of-00001.parquet", [1, 0, 2, 0], pa.int64(), names, "gzip", broken)
    write(folder / "test-00000-of-00001.parquet", [-1, -1], pa.int64(), names, "snappy")
    write(out / "parquet-names/data.parquet", ["emu", "cat", "emu", "dog"], pa.string(), None, "none", use_dictionary=False)
