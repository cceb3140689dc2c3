#!/usr/bin/env python3
"""An attack on settings, command lines and small files: no input may panic, abort, hang or fill the memory.

    python3 scripts/attack_cli.py --binary target/release/tweedie --inputs 5000 --seed 1 --jobs 2

Every input is a pure function of (seed, number). It makes a tiny run of each kind first, then runs the command with odd settings
and flags, and with small files that were mutated: recipes, tokenizer.json, caption files, class lists, CLIP folders, and the files
of a run. Each runs under a limit of its address space and of time. What fails is kept in a folder, with the command line and what
it said. Exit code 1 if anything failed. Needs nothing but Python's own library, and Linux.
"""

import argparse
import json
import os
import random
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

GIB = 1 << 30
NUMBERS = ["0", "-1", "1", "2", "3", "7", "65535", "65536", "65537", "1048577", "2147483647", "2147483648", "4294967295", "4294967296",
           "9223372036854775807", "9223372036854775808", "18446744073709551615", "18446744073709551616", "-9223372036854775808",
           "1e308", "1e309", "-1e308", "nan", "-nan", "inf", "-inf", "1e-308", "1e-46", "0.5", "-0.0", "0x10", "1_000", "٣", "", " ", "+1", "1e3"]
TEXTS = ["", " ", "\u001b[31mred\u001b[0m", "a\nb", "\u202eabc", "'", '"', "[", "]", "{", "}", "[[[[", "{a={a={a=1}}}", "../../etc/passwd", "/dev/zero",
         "/dev/full", "/dev/stdin", "/", ".", "embedded:digits", "embedded:nothing", "a" * 10_000, "é" * 500, "\ufeff", "a=b", "=", "--", "-", "true", "none",
         "word:0", "word:18446744073709551615", "bpe:1", "bpe:999999999", "chars:0", "wordpiece:3", "1979-05-27T07:32:00Z", "\\u0000", "%s%n", "$(id)"]
TINY = ["train.epochs=1", "train.warmup_epochs=0", "train.batch=256", "train.eval_images=16", "sample.steps=2", "train.noisy_copies=1",
        "model.encoder.width=16", "model.encoder.depth=1", "model.encoder.heads=2", "model.denoiser.width=16",
        "model.denoiser.depth=1", "model.denoiser.heads=2"]
# Settings whose large values are meant to take long.
SLOW = {"train.epochs", "train.noisy_copies", "sample.steps", "sample.votes", "sample.candidates", "process.steps", "model.encoder.image",
        "model.encoder.width", "model.encoder.depth", "model.denoiser.width", "model.denoiser.depth", "data.tokens"}


class Outcome:
    def __init__(self, kind, code, seconds, rss, err):
        self.kind, self.code, self.seconds, self.rss, self.err = kind, code, seconds, rss, err


def progress(pid):
    """Whether a process computes, and its processor time so far in seconds."""
    try:
        states, used = [], 0
        for task in Path(f"/proc/{pid}/task").iterdir():
            fields = (task / "stat").read_text().rsplit(")", 1)[1].split()
            states.append(fields[0])
            used += int(fields[11]) + int(fields[12])
        return "R" in states or "D" in states, used / os.sysconf("SC_CLK_TCK")
    except OSError:
        return False, 0.0


def execute(command, folder, timeout, rlimit, stdin=None):
    """Run a command; what became of it, with its peak memory in bytes."""
    def limit():
        resource.setrlimit(resource.RLIMIT_AS, (rlimit, rlimit))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (GIB, GIB))
        os.setpgid(0, 0)
    env = {k: v for k, v in os.environ.items() if not k.startswith("TWEEDIE_")}
    env["RUST_BACKTRACE"] = "0"
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        start = time.monotonic()
        child = subprocess.Popen(command, cwd=folder, stdin=stdin or subprocess.DEVNULL, stdout=out, stderr=err, preexec_fn=limit, env=env)
        late, ended = threading.Event(), threading.Event()
        def watch():
            # A machine that is busy with other things is no hang: while it computes, its own time counts.
            while not ended.wait(timeout):
                busy, used = progress(child.pid)
                if busy and used < timeout and time.monotonic() - start < 10 * timeout:
                    continue
                late.set()
                try:
                    os.killpg(child.pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
                return
        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        _, status, usage = os.wait4(child.pid, 0)
        ended.set()
        child.returncode = os.waitstatus_to_exitcode(status)
        seconds, rss = time.monotonic() - start, usage.ru_maxrss * 1024
        err.seek(0)
        said = err.read(1 << 20).decode("utf-8", "replace")
        code = child.returncode
    kind = None
    if late.is_set():
        kind = "hang"
    elif "panicked at" in said or code == 101:
        kind = "panic"
    elif code < 0:
        kind = "abort"
    elif rss > 2 * GIB:
        kind = "blow-up"
    elif "\x1b" in said or any("\x80" <= c <= "\x9f" for c in said):
        kind = "escape code"
    elif code not in (0, 1, 2):
        kind = "exit code"
    elif code == 2 and "error:" in said:
        kind = "internal error"
    return Outcome(kind, code, seconds, rss, said)


def picture(path, side=8):
    """A grey PNG."""
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    rows = b"".join(b"\0" + bytes((x * 16 + y * 8) % 256 for x in range(side)) for y in range(side))
    head = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


def crc32c(data):
    table = crc32c.table
    crc = 0xFFFFFFFF
    for b in data:
        crc = table[(crc ^ b) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def crc_table():
    table = []
    for i in range(256):
        for _ in range(8):
            i = (i >> 1) ^ (0x82F63B78 if i & 1 else 0)
        table.append(i)
    return table


crc32c.table = crc_table()

TOKENIZER = {
    "version": "1.0", "truncation": None, "padding": None,
    "added_tokens": [{"id": 0, "content": "<pad>", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True},
                     {"id": 1, "content": "<eos>", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}],
    "normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Lowercase"}, {"type": "Replace", "pattern": {"String": "x"}, "content": "y"}]},
    "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "\\w+|\\s+"}, "behavior": "Isolated", "invert": False},
    "post_processor": None, "decoder": {"type": "BPEDecoder", "suffix": "</w>"},
    "model": {"type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None, "end_of_word_suffix": None,
              "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
              "vocab": {"<pad>": 0, "<eos>": 1, "<unk>": 2, "a": 3, "b": 4, " ": 5, "ab": 6, "aba": 7},
              "merges": [["a", "b"], ["ab", "a"]]},
}
CLIP = {"model_type": "clip", "projection_dim": 16,
        "vision_config": {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 16, "patch_size": 8, "hidden_act": "quick_gelu"},
        "text_config": {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 77, "eos_token_id": 2}}
PREPROCESS = {"size": {"shortest_edge": 16}, "crop_size": {"height": 16, "width": 16}, "do_resize": True, "do_center_crop": True,
              "resample": 3, "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5], "rescale_factor": 0.00392}
REFS = {"images": [{"id": i, "file_name": f"{i}.png"} for i in range(4)],
        "annotations": [{"id": 10 + i, "image_id": i % 4, "caption": f"a red dog number {i} on the grass"} for i in range(8)]}
HYPS = [{"image_id": i, "caption": f"a dog number {i}"} for i in range(4)]


class Fixtures:
    """What all inputs start from."""

    def __init__(self, binary, folder):
        self.binary, self.folder = binary, folder
        folder.mkdir(parents=True, exist_ok=True)
        picture(folder / "a.png")
        (folder / "text.txt").write_text("a red dog sits on the grass\na blue cat runs\n" * 200)
        self.make("digits", ["train", "digits"], TINY)
        self.make("text", ["train", "ptb-chars", "--data", str(folder / "text.txt")],
                  ["train.epochs=1", "train.batch=8", "data.tokens=16", "data.tokenizer=chars", "model.denoiser.width=16", "model.denoiser.depth=1",
                   "model.denoiser.heads=2", "sample.steps=2", "train.warmup_epochs=0", "train.noisy_copies=1", "data.val_fraction=0.2"])
        shown = subprocess.run([binary, "config", "show", "digits"], capture_output=True, text=True, check=True).stdout
        self.config = (folder / "digits" / "config.toml").read_text()
        self.keys = toml_keys(self.config)
        self.shown = shown
        self.images = folder / "images"
        self.images.mkdir(exist_ok=True)
        for i in range(4):
            picture(self.images / f"{i}.png")

    def make(self, name, command, sets):
        run = self.folder / name
        if (run / "checkpoints").is_dir():
            return
        args = [self.binary, "--threads", "1", *command, "--device", "cpu", "--out", str(run)]
        for s in sets:
            args += ["--set", s]
        done = subprocess.run(args, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"the tiny run cannot be made:\n{' '.join(args)}\n{done.stderr}")


def toml_keys(text):
    table, keys = "", []
    for line in text.splitlines():
        line = line.strip()
        if line.startswith("["):
            table = line.strip("[]") + "."
        elif "=" in line:
            keys.append(table + line.split("=")[0].strip())
    return keys


# Mutations.

def mutate_bytes(r, data):
    data = bytearray(data)
    for _ in range(r.choice([1, 1, 2, 4, 16])):
        how = r.randrange(8)
        at = r.randrange(len(data) + 1)
        if how == 0 and data:
            data[at % len(data)] ^= 1 << r.randrange(8)
        elif how == 1:
            data[at:at] = bytes(r.randrange(256) for _ in range(r.choice([1, 2, 8, 64])))
        elif how == 2:
            del data[at:at + r.choice([1, 4, 64, 1024])]
        elif how == 3 and data:
            piece = data[at:at + r.choice([4, 64, 512])]
            data[at:at] = piece * r.choice([1, 2, 20])
        elif how == 4:
            del data[at:]
        elif how == 5:
            data[at:at] = r.choice(NUMBERS).encode()
        elif how == 6:
            data[at:at] = r.choice([b"\0", b"\xff\xfe", b"\xef\xbb\xbf", b"\r\n", b"\x1b[2J", b"[" * 5000, b"{\"a\":" * 3000, b"\xf0\x9f\x98", "\u202e".encode()])
        elif data:
            data[at % len(data)] = r.choice(b'0919[]{}",:-.eE\\\n\0')
    return bytes(data)


def odd_value(r):
    return r.choice([
        lambda: r.choice([0, -1, 1, 2, 255, 65536, 2**31, 2**32 - 1, 2**32, 2**53, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 10**40]),
        lambda: r.choice([0.0, -0.0, 0.5, 1e308, -1e308, 1e-308, 1e-46]),
        lambda: r.choice(TEXTS),
        lambda: r.choice([None, True, False, [], {}, [[]], [{}], [None] * 50, {"": {}}]),
        lambda: nested(r.choice([10, 100, 120, 127, 1000])),
        lambda: "x" * r.choice([1, 300, 100_000]),
    ])()


def nested(n):
    v = 1
    for _ in range(n):
        v = [v] if n % 2 else {"type": "Sequence", "normalizers": [v]}
    return v


def mutate_json(r, value):
    """A copy with some places changed."""
    value = json.loads(json.dumps(value))
    for _ in range(r.choice([1, 1, 1, 2, 3])):
        places = []
        def visit(v):
            if isinstance(v, dict):
                for k in list(v):
                    places.append((v, k))
                    visit(v[k])
            elif isinstance(v, list):
                for i in range(len(v)):
                    places.append((v, i))
                    visit(v[i])
        visit(value)
        if not places:
            return value
        where, key = r.choice(places)
        how = r.randrange(6)
        if how == 0:
            del where[key]
        elif how == 1 and isinstance(where, dict):
            where[r.choice(TEXTS)] = where[key]
        elif how == 2 and isinstance(where, list):
            where.extend([where[key]] * r.choice([1, 3, 1000]))
        elif how == 3:
            other, name = r.choice(places)
            where[key] = json.loads(json.dumps(other[name]))
        else:
            where[key] = odd_value(r)
    return value


def dump(r, value):
    try:
        return json.dumps(value, ensure_ascii=r.random() < 0.7).encode("utf-8", "surrogatepass")
    except (RecursionError, ValueError):
        return b"[" * 100_000


def tokenizer_json(r):
    t = json.loads(json.dumps(TOKENIZER))
    t["model"] = r.choice([
        t["model"],
        {"type": "WordLevel", "vocab": {"<unk>": 2, "a": 3, "b": 4}, "unk_token": "<unk>"},
        {"type": "WordPiece", "vocab": {"[UNK]": 2, "a": 3, "##b": 4}, "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100},
        {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], ["a", -1.0], ["b", -2.0], ["\u2581", -1.5]], "byte_fallback": False},
    ])
    if r.random() < 0.5:
        t["normalizer"] = r.choice([None, {"type": "Replace", "pattern": {"Regex": r.choice(["", "a*", "(a+)+b", "(?<=a)b", "(a|aa)+$", "\\"])}, "content": r.choice(["", "aaaa"])},
                                    {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None, "lowercase": True},
                                    {"type": "Precompiled", "precompiled_charsmap": r.choice(["", "AAAA", "////" * 50])}, {"type": "Strip", "strip_left": True, "strip_right": True},
                                    {"type": "Sequence", "normalizers": [{"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}] * r.choice([1, 10, 40])},
                                    {"type": "Prepend", "prepend": r.choice(["", "\u2581", "a" * 1000])}])
        t["pre_tokenizer"] = r.choice([None, {"type": "Whitespace"}, {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
                                       {"type": "Metaspace", "replacement": r.choice(["\u2581", "", "ab"]), "prepend_scheme": "always", "split": True},
                                       {"type": "Split", "pattern": {"Regex": r.choice([".", "", "(?=a)", "(x+x+)+y"])}, "behavior": r.choice(["Removed", "Isolated", "MergedWithNext"]), "invert": r.random() < 0.5},
                                       {"type": "FixedLength", "length": r.choice([0, 1, 5])}, {"type": "Digits", "individual_digits": True}])
        t["decoder"] = r.choice([None, {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}, {"type": "WordPiece", "prefix": "##", "cleanup": True},
                                 {"type": "Strip", "content": "a", "start": r.choice([0, 5, 2**40]), "stop": r.choice([0, 7])}, {"type": "CTC", "pad_token": "<pad>", "word_delimiter_token": "|", "cleanup": True},
                                 {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "BPEDecoder", "suffix": ""}])
    if r.random() < 0.2:
        t["model"]["dropout"] = r.choice([0.0, 0.5, 1.0, 2.0, -1])
    return t


# Kinds of inputs: each gives a command (without the binary) and may write files into its folder.

def kind_set(r, fixtures, folder):
    sets = []
    for _ in range(r.choice([1, 1, 2, 3])):
        key = r.choice(fixtures.keys)
        sets.append(f"{key}={r.choice(NUMBERS) if r.random() < 0.8 else r.choice(TEXTS)}")
    return ["config", "show", r.choice(["digits", "shapes", "text-none", "digits"])] + [x for s in sets for x in ("--set", s)]


def kind_set_odd(r, fixtures, folder):
    key = r.choice([r.choice(fixtures.keys) + ".x" * r.choice([1, 79, 5000]), r.choice(TEXTS), "augment.crop.pad" + ".x" * r.choice([1, 30, 80, 200, 20_000]),
                    "augment.crop", "model", "a." * r.choice([10, 10_000]), "augment.mean", "augment.erase.area"])
    value = r.choice(["[" * 3000, "{a=" * 500 + "1" + "}" * 500, "[1," * 40, "a" * 100_000, "{" + ",".join(f"a{i}=1" for i in range(3000)) + "}", r.choice(TEXTS), r.choice(NUMBERS),
                      "[nan]", "[0, 0]", "[1e308, inf]", "{kind='resized', scale=[0,1]}", "{kind='padded', pad=99999999999}", "\"\\u001b\"", "a.b." * 3000])
    return ["config", "show", "digits", "--set", f"{key}={value}".replace("\0", "")[:120_000]]


def kind_train(r, fixtures, folder):
    sets = list(TINY)
    for _ in range(r.choice([1, 1, 2])):
        key = r.choice([k for k in fixtures.keys if k not in ("data.path",)])
        numbers = NUMBERS if key not in SLOW else ["0", "-1", "1", "nan", "inf", "1e308", "9223372036854775807", "18446744073709551615"]
        sets.append(f"{key}={r.choice(numbers)}")
    if r.random() < 0.1:
        sets.append(f"data.{r.choice(['path', 'classes', 'tokenizer'])}={r.choice(TEXTS)}")
    return ["train", "digits", "--device", "cpu", "--out", str(folder / "run")] + [x for s in sets for x in ("--set", s.replace("\0", ""))]


FLAGS = ["--steps", "--guidance", "--votes", "--seed", "--top", "--number", "--length", "--min-length", "--candidates", "--draws", "--uncommitted", "--limit", "--bound", "--samples",
         "--examples", "--batch", "--noisy-copies", "--vocab", "--tokens", "--image", "--repeats", "--profile", "--points", "--seconds", "--workers", "--epochs", "--seeds", "--budget",
         "--bootstrap", "--threads", "--device", "--format", "--sampler", "--schedule", "--unmask", "--rank", "--infill", "--prompt", "--trace", "--html", "--over", "--what", "--op",
         "--only", "--tokenizer", "--classes", "--kind", "--task", "--split", "--start", "--set", "--use", "--clip", "--json", "--raw", "--per-class", "--quick", "--data"]
LONG = {"--number", "--samples", "--votes", "--repeats", "--seconds", "--draws", "--bound", "--steps", "--candidates", "--bootstrap", "--noisy-copies", "--points"}


def kind_flags(r, fixtures, folder):
    digits, text = str(fixtures.folder / "digits"), str(fixtures.folder / "text")
    png, corpus = str(fixtures.folder / "a.png"), str(fixtures.folder / "text.txt")
    base = r.choice([
        ["classify", digits, png], ["trace", digits, png], ["eval", digits, "--limit", "4"], ["generate", text], ["trace", text], ["eval", text, "--limit", "2", "--bound", "1"],
        ["data", "inspect", "embedded:digits"], ["data", "inspect", corpus, "--task", "text"], ["tokenizer", "train", corpus, "--out", str(folder / "t.json")],
        ["tokenizer", "show", str(fixtures.folder / "text" / "tokenizer.json"), "a b"], ["devices"], ["config", "show", "digits"],
        ["bench", "train", "--preset", "digits", "--batch", "1", "--repeats", "1", "--device", "cpu", "--no-floor"],
        ["bench", "sample", "--preset", "digits", "--batch", "1", "--repeats", "1", "--device", "cpu", "--steps", "1"],
        ["bench", "data", "embedded:digits", "--seconds", "0.05", "--image", "8", "--batch", "4"],
        ["score", "--help"], ["completions", "bash"], ["selftest", "--device", "cpu", "--op", "nope"],
        ["reproduce", "table1", "--out", str(folder / "rep"), "--use", "x=y"]])
    more = []
    for _ in range(r.choice([1, 1, 2, 3])):
        flag = r.choice(FLAGS)
        small = ["0", "-1", "1", "2", "nan", "inf", "1e308", "18446744073709551615", "18446744073709551616", "9223372036854775807", "", "x"]
        value = r.choice(small if flag in LONG else NUMBERS) if r.random() < 0.75 else r.choice(TEXTS)
        if flag in ("--trace", "--html"):
            value = str(folder / r.choice(["t.html", "t.json", "t", "no/such/t.html"]))
        more += [flag, value] if flag not in ("--json", "--raw", "--per-class", "--quick") else [flag]
    return [a.replace("\0", "") for a in ["--threads", "1"][:2 * (r.random() < 0.9)] + base + more]


def kind_recipe(r, fixtures, folder):
    data = mutate_bytes(r, r.choice([fixtures.config, fixtures.shown, "[train]\nepochs = 1\n"]).encode())
    if r.random() < 0.15:
        data = r.choice([b"a" + b".a" * 50_000 + b"=1", b"a=" + b"[" * 50_000, b"[" + b"a." * 50_000 + b"a]", b"a=" + b"{a=" * 50_000, b"\xef\xbb\xbf[train]\r\nepochs = 1\r\n",
                         b"x" * 900_000 + b"=1", b"\n" * 900_000, b"".join(b"k%d=1\n" % i for i in range(60_000)), b"[augment.crop]\nkind='padded'\n" + b"".join(b"pad.k%d=1\n" % i for i in range(50_000)),
                         b"a='''" + b"x" * 2_000_000 + b"'''", b"#" * 2_000_000])
    (folder / "r.toml").write_bytes(data)
    return ["config", "show", str(folder / "r.toml")]


def kind_tokenizer(r, fixtures, folder):
    t = tokenizer_json(r)
    if r.random() < 0.15:
        t = {"type": "tweedie-chars", "symbols": list("abc ")}
    value = t if r.random() < 0.3 else mutate_json(r, t)
    data = dump(r, value)
    if r.random() < 0.1:
        data = mutate_bytes(r, data)
    (folder / "t.json").write_bytes(data)
    text = r.choice(["a b ab", "aba" * 300, "a" * 3000, "é犬\u0301", "", "\x1b[31m", "<pad> <eos>", "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxz"])
    return ["tokenizer", "show", str(folder / "t.json"), text] + (["--json"] if r.random() < 0.3 else [])


def kind_score(r, fixtures, folder):
    refs, hyps = REFS, HYPS
    if r.random() < 0.3:
        refs = r.choice([{str(i): [f"a dog {i}"] for i in range(4)}, [{"image_id": i, "captions": ["a dog", "a cat"]} for i in range(4)]])
    which = r.random()
    refs, hyps = (mutate_json(r, refs) if which < 0.6 else refs), (mutate_json(r, hyps) if which > 0.4 else hyps)
    files = [dump(r, refs), dump(r, hyps)]
    if r.random() < 0.3:
        i = r.randrange(2)
        files[i] = mutate_bytes(r, files[i])
    (folder / "refs.json").write_bytes(files[0])
    (folder / "hyps.json").write_bytes(files[1])
    return ["score", "--bootstrap", "10", str(folder / "refs.json"), str(folder / "hyps.json")]


def kind_clip(r, fixtures, folder):
    clip = folder / "clip"
    clip.mkdir()
    config, prep = CLIP, PREPROCESS
    if r.random() < 0.7:
        config = mutate_json(r, config)
    else:
        prep = mutate_json(r, prep)
    (clip / "config.json").write_bytes(dump(r, config))
    (clip / "preprocessor_config.json").write_bytes(dump(r, prep))
    vocab = {"a</w>": 0, "dog</w>": 1, "<|startoftext|>": 2, "<|endoftext|>": 3}
    tok = {"model": {"vocab": vocab, "merges": ["d o", "do g</w>"]}, "added_tokens": [{"content": "<|endoftext|>", "id": 3}]}
    (clip / "tokenizer.json").write_bytes(dump(r, mutate_json(r, tok) if r.random() < 0.5 else tok))
    (clip / "model.safetensors").write_bytes(mutate_bytes(r, safetensors(r)))
    (folder / "refs.json").write_bytes(json.dumps(REFS).encode())
    (folder / "hyps.json").write_bytes(json.dumps(HYPS).encode())
    return ["score", str(folder / "refs.json"), str(folder / "hyps.json"), "--clip", str(clip), "--images", str(fixtures.images), "--device", "cpu"]


def safetensors(r):
    names = ["text_model.embeddings.token_embedding.weight", "visual_projection.weight", "patch_embed.proj.weight", "pos_embed", "a"]
    header, at = {}, 0
    for name in r.sample(names, r.randrange(len(names) + 1)):
        shape = r.choice([[4], [2, 2], [1, 4, 1], [0], [], [4, 16], [2**40, 2**40], [2**63], [-1], [16, 3, 8, 8], [1, 5, 16]])
        n = 1
        for s in shape:
            n = n * s if 0 <= n * s < 1 << 20 else 4
        dtype = r.choice(["F32", "F32", "F32", "F16", "BF16", "I64", "F64", "F4", "U8", "nope"])
        size = n * {"F16": 2, "BF16": 2, "I64": 8, "F64": 8, "U8": 1}.get(dtype, 4)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": r.choice([[at, at + size]] * 4 + [[at, 2**60], [2**64 - 1, at], [0, size]])}
        at += size
    text = json.dumps(header).encode()
    claimed = r.choice([len(text)] * 6 + [0, 2**63, 2**64 - 1, 100_000_001, len(text) + 8])
    return struct.pack("<Q", claimed) + text + bytes(at)


def copy_run(fixtures, name, folder):
    run = folder / "run"
    shutil.copytree(fixtures.folder / name, run)
    return run


def own_crc(state):
    state = dict(state, crc32c=0)
    return crc32c(json.dumps(state, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass"))


def kind_run(r, fixtures, folder):
    name = r.choice(["digits", "text"])
    run = copy_run(fixtures, name, folder)
    files = [p for p in run.rglob("*") if p.is_file() and p.suffix != ".png" and p.name != ".lock"]
    path = r.choice(files)
    how = r.randrange(5)
    if how == 0:
        path.unlink()
        r.choice([lambda: os.mkfifo(path), lambda: path.symlink_to("/dev/zero"), lambda: path.mkdir(), lambda: path.symlink_to(path), lambda: path.write_bytes(b"")])()
    elif how == 1:
        with open(path, "r+b") as f:
            f.truncate(r.choice([0, 1, 1 << 30, 1 << 40]))
    else:
        path.write_bytes(mutate_bytes(r, path.read_bytes()))
    return use_run(r, fixtures, name, run)


def kind_state(r, fixtures, folder):
    """A manifest with a right checksum that lies."""
    name = r.choice(["digits", "text"])
    run = copy_run(fixtures, name, folder)
    for path in run.rglob("state.json"):
        state = json.loads(path.read_text())
        how = r.randrange(4)
        first = next(iter(state["files"]))
        if how == 0:
            state["files"][r.choice(["/dev/zero", "../../config.toml", "..", "", "a\0b", "model.safetensors/", "x"])] = {"bytes": r.choice([0, 2**64 - 1, 5]), "crc32c": 0}
        elif how == 1:
            state["files"][first]["bytes"] = r.choice([0, 2**64 - 1, 2**63, 1])
        elif how == 2:
            state["state"] = mutate_json(r, state["state"])
        else:
            state = mutate_json(r, state)
        if isinstance(state, dict):
            state["crc32c"] = own_crc(state)
        path.write_bytes(dump(r, state))
    return use_run(r, fixtures, name, run)


def kind_weights(r, fixtures, folder):
    """Weights that are not those of the model, with right sizes and checksums."""
    name = r.choice(["digits", "text"])
    run = copy_run(fixtures, name, folder)
    for path in run.rglob("state.json"):
        state = json.loads(path.read_text())
        for file, entry in state["files"].items():
            data = (path.parent / file).read_bytes()
            n = struct.unpack("<Q", data[:8])[0]
            data = data[:8] + mutate_bytes(r, data[8:8 + n]) + data[8 + n:] if r.random() < 0.7 else safetensors(r)
            if r.random() < 0.5 and len(data) > 8:
                data = struct.pack("<Q", r.choice([n, len(data) - 8, 2**62])) + data[8:]
            (path.parent / file).write_bytes(data)
            entry["bytes"], entry["crc32c"] = len(data), crc32c(data)
        state["crc32c"] = own_crc(state)
        path.write_text(json.dumps(state))
    return use_run(r, fixtures, name, run)


def kind_config(r, fixtures, folder):
    name = r.choice(["digits", "text"])
    run = copy_run(fixtures, name, folder)
    path = run / "config.toml"
    lines = path.read_text().splitlines()
    for _ in range(r.choice([1, 1, 2])):
        i = r.choice([i for i, l in enumerate(lines) if "=" in l])
        if lines[i].split("=")[0].strip() not in {k.split(".")[-1] for k in SLOW}:
            lines[i] = lines[i].split("=")[0] + "= " + r.choice(NUMBERS)
        else:
            lines[i] = lines[i].split("=")[0] + "= " + r.choice(["0", "-1", "9223372036854775807", "65536", "nan"])
    path.write_text("\n".join(lines))
    return use_run(r, fixtures, name, run)


def use_run(r, fixtures, name, run):
    png = str(fixtures.folder / "a.png")
    own = [["classify", str(run), png], ["trace", str(run), png], ["eval", str(run), "--limit", "4"]] if name == "digits" else [["generate", str(run)], ["trace", str(run)], ["eval", str(run), "--limit", "2", "--bound", "1"]]
    return ["--threads", "1"] + r.choice(own + [["train", "--resume", str(run), "--device", "cpu"]])


def kind_classes(r, fixtures, folder):
    names = "\n".join(f"class {i}" for i in range(10)).encode()
    (folder / "names.txt").write_bytes(mutate_bytes(r, names))
    return ["data", "inspect", "embedded:digits", "--classes", r.choice([str(folder / "names.txt")] * 9 + ["/dev/zero"])]


def kind_pretrained(r, fixtures, folder):
    (folder / "w.safetensors").write_bytes(mutate_bytes(r, safetensors(r)) if r.random() < 0.5 else safetensors(r))
    path = r.choice([str(folder / "w.safetensors")] * 9 + ["/dev/zero"])
    return ["train", "digits", "--device", "cpu", "--out", str(folder / "run")] + [x for s in TINY + [f"model.pretrained={path}"] for x in ("--set", s)]


KINDS = [(kind_set, 3), (kind_set_odd, 2), (kind_train, 2), (kind_flags, 4), (kind_recipe, 3), (kind_tokenizer, 4), (kind_score, 3), (kind_clip, 2), (kind_run, 3),
         (kind_state, 2), (kind_weights, 2), (kind_config, 3), (kind_classes, 1), (kind_pretrained, 1)]


def attack(fixtures, number, seed, keep, timeout, rlimit):
    r = random.Random(f"{seed}/{number}")
    kind = r.choices([k for k, _ in KINDS], [w for _, w in KINDS])[0]
    folder = keep / f"input-{number:06}"
    folder.mkdir(parents=True)
    command = kind(r, fixtures, folder)
    command = [a.encode("utf-8", "surrogatepass") for a in command]
    outcome = execute([fixtures.binary.encode()] + command, folder, timeout, rlimit)
    name = kind.__name__.removeprefix("kind_")
    if outcome.kind is None:
        shutil.rmtree(folder, ignore_errors=True)
    else:
        (folder / "command.txt").write_bytes(b"\n".join(command))
        (folder / "stderr.txt").write_text(f"{outcome.kind}, exit code {outcome.code}, {outcome.seconds:.1f} s, {outcome.rss >> 20} MiB\n{outcome.err}")
    return number, name, outcome


def main():
    sys.setrecursionlimit(50_000)
    threading.stack_size(256 << 20)
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--binary", default="target/release/tweedie")
    p.add_argument("--inputs", type=int, default=1000)
    p.add_argument("--first", type=int, default=0, help="number of the first input")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--jobs", type=int, default=2)
    p.add_argument("--timeout", type=float, default=20.0)
    p.add_argument("--address-space", type=float, default=3.0, help="GiB")
    p.add_argument("--keep", default=None, help="folder of what failed (default: a new one)")
    args = p.parse_args()
    binary = str(Path(args.binary).resolve())
    keep = Path(args.keep or tempfile.mkdtemp(prefix="tweedie-attack-")).resolve()
    fixtures = Fixtures(binary, keep / "lab")
    counts, failures, slowest, largest = {}, {}, 0.0, 0
    start = time.monotonic()
    rlimit = int(args.address_space * GIB)
    with ThreadPoolExecutor(args.jobs) as pool:
        numbers = range(args.first, args.first + args.inputs)
        for number, name, o in pool.map(lambda n: attack(fixtures, n, args.seed, keep, args.timeout, rlimit), numbers):
            n, refused = counts.get(name, (0, 0))
            counts[name] = (n + 1, refused + (o.code != 0))
            slowest, largest = max(slowest, o.seconds), max(largest, o.rss)
            if o.kind:
                failures.setdefault((name, o.kind), []).append(number)
                print(f"input {number} ({name}): {o.kind}: {(o.err.strip().splitlines() or [''])[0][:150]}", flush=True)
    print(f"\n| input | tried | refused | failed |\n| --- | ---: | ---: | ---: |")
    for name in sorted(counts):
        failed = sum(len(v) for (n, _), v in failures.items() if n == name)
        print(f"| {name} | {counts[name][0]} | {counts[name][1]} | {failed} |")
    print(f"\n{args.inputs} inputs in {time.monotonic() - start:.0f} s; the slowest took {slowest:.1f} s, the largest {largest >> 20} MiB")
    for what in ["panic", "abort", "hang", "blow-up", "escape code", "exit code", "internal error"]:
        print(f"{what}: {sum(len(v) for (_, k), v in failures.items() if k == what)}")
    if failures:
        print(f"what failed is in {keep}")
        sys.exit(1)
    if not args.keep:
        shutil.rmtree(keep, ignore_errors=True)


if __name__ == "__main__":
    main()
