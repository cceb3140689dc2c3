#!/usr/bin/env python3
"""Every setting of a run, as docs/reference/settings.md: names and defaults from the program, meanings from the comments of the code.

scripts/settings.py writes the page; --check only says whether it is up to date (exit 1 if not). Asks the program for the defaults:
--program PATH, else `cargo run --release`. A setting without a comment is an error.
"""
import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/reference/settings.md"
SOURCE = ROOT / "crates/tweedie/src"
RECIPE = ROOT / "configs/cifar10.toml"

HEAD = """# Settings

Every setting of a run, with its default, the values it may have, and what it does. This page is written by
`python3 scripts/settings.py` from the program and from the comments in the code, and CI checks it (`--check`): to change a line here,
change the comment of the field.

A recipe is a TOML file of these settings. What it leaves out keeps its default. Layers, each over the one before:

| layer | example |
|---|---|
| defaults | this page |
| recipe | `tweedie train cifar10`, or a file of your own: `tweedie train mine.toml` |
| environment | `TWEEDIE_TRAIN__BATCH=64` |
| `--set` | `--set train.batch=64` |

`tweedie config show RECIPE` prints all settings of a recipe, `tweedie config show RECIPE --changed` what differs from the defaults and
which line said so. A name that does not exist is an error that names the nearest one. Old names (`train.kfold`,
`train.known`, `sample.guesses`) are accepted with a note that says what they are called now. From Rust: `Config::preset("cifar10")?.with("train.batch", 64)?`.

Each `##` is a section of the file, and each name in it a line of that section: `train.batch` is `batch` below `[train]`. The recipes are
in [`configs/`](../../configs); [the last section](#configscifar10toml) is one of them line by line.
"""


def comment(lines):
    """Lines of a doc comment as one paragraph, up to the first empty line; links of rustdoc as code."""
    text = " ".join(lines).split("  ")[0].strip()
    text = re.sub(r"\[(`[^`]+`)\](?:\([^)]*\))?", r"\1", text)
    return text.replace("\\[", "[").replace("\\]", "]")


def kebab(name, how):
    if how == "lowercase":
        return name.lower()
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_" if how == "snake_case" else "-", name).lower()


def items(text):
    """Structs and enums of a file: name, kind, comment, and their public fields or variants with comments."""
    found, lines = {}, text.splitlines()
    for i, line in enumerate(lines):
        head = re.match(r"pub (struct|enum) (\w+) \{$", line)
        if not head:
            continue
        above, how, tag = [], "", ""
        for before in reversed(lines[:i]):
            if before.startswith("#["):
                how = how or "".join(re.findall(r'rename_all = "([\w-]+)"', before))
                tag = tag or "".join(re.findall(r'tag = "(\w+)"', before))
            elif before.startswith("///"):
                above.insert(0, before[3:].strip())
            else:
                break
        members, doc, inside = [], [], None
        for at in lines[i + 1 :]:
            if at == "}":
                break
            word = at.strip()
            if word.startswith("///"):
                doc.append(word[3:].strip())
                continue
            field = re.match(r"    pub (\w+): (.+),$", at)
            variant = re.match(r"    ([A-Z]\w*)( \{|,)", at)
            sub = re.match(r"        (\w+): (.+),$", at)
            if field:
                members.append((field[1], field[2], comment(doc)))
            elif variant:
                inside = variant[1]
                members.append((kebab(variant[1], how or "kebab-case"), None, comment(doc)))
            elif sub and inside:
                members.append((f"{kebab(inside, how)}.{sub[1]}", sub[2], comment(doc)))
            elif word.startswith("#[") or word == "},":
                continue
            doc = []
        found[head[2]] = {"kind": head[1], "comment": comment(above), "members": members, "tag": tag}
    return found


def types():
    found = {}
    for file in sorted(SOURCE.rglob("*.rs")):
        for name, item in items(file.read_text()).items():
            item["file"] = file.relative_to(ROOT).as_posix()
            # Of two of one name the one with settings: an enum of values, or a struct that is read from a file.
            found.setdefault(name, item)
    return found


def number(text, constants):
    text = text.strip().replace("_", "")
    for name, value in constants.items():
        text = text.replace(name.replace("_", ""), str(value))
    if re.fullmatch(r"[\d.e+-]+", text):
        return text
    shift = re.fullmatch(r"(\d+)\s*<<\s*(\d+)", text)
    return str(int(shift[1]) << int(shift[2])) if shift else None


def ranges():
    """Ranges of numbers from the checks: `within("key", value, low..=high)`."""
    text = "".join(f.read_text() for f in [*sorted(SOURCE.glob("config/*.rs")), SOURCE / "augment/mod.rs"])
    constants = {n: number(v, {}) for n, v in re.findall(r"const (\w+): usize = ([\d_]+);", text)}
    found = {}
    for key, given in re.findall(r'within\(\s*"([\w.]+)",\s*[^,]+,\s*(.+?)\)(?:\?|;|\n|\.)', text):
        open_end = re.fullmatch(r"\(Excluded\((.+?)\), Included\((.+?)\)\)?", given)
        ends = open_end.groups() if open_end else re.split(r"\.\.=?", given)
        low, high = (number(e, constants) for e in ends)
        if low is None or high is None:
            continue
        low, high = (x.removesuffix(".0") for x in (low, high))
        if float(high) >= 1e4:  # beyond all use: what it keeps out is a slip of the pen
            found.update({key: f"above {low}" if open_end else f"at least {low}"} if open_end or low != "0" else {})
        else:
            below = "below " if not open_end and "..=" not in given else ""
            found[key] = f"{'above ' if open_end else ''}{low} to {below}{high}"
    return found


def defaults(program):
    """All settings with their values, as the program has them for an empty recipe."""
    command = [program] if program else ["cargo", "run", "--release", "--quiet", "-p", "tweedie-cli", "--"]
    env = {k: v for k, v in os.environ.items() if not k.startswith("TWEEDIE_")}
    with tempfile.TemporaryDirectory() as folder:
        empty = Path(folder) / "empty.toml"
        empty.write_text("")
        command += ["config", "show", str(empty), "--json"]
        return json.loads(subprocess.run(command, cwd=ROOT, env=env, check=True, stdout=subprocess.PIPE).stdout)


def toml(value):
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return "[" + ", ".join(toml(v) for v in value) + "]"
    if isinstance(value, float):
        return f"{value:.4g}"
    return json.dumps(value, ensure_ascii=False)


class Page:
    def __init__(self, all_types, limits):
        self.types, self.limits, self.meaning, self.lines, self.missing = all_types, limits, {}, [], []

    def setting(self, key, kind, value, text):
        if not text:
            self.missing.append(key)
        self.meaning[key] = (text, value, kind)
        limit = f" Range: {self.limits[key]}." if key in self.limits else ""
        self.lines.append(f"- **`{key}`** = `{toml(value)}`: {text}{limit}")
        item = self.types.get(kind)
        if item and item["kind"] == "enum":
            for name, _, meaning in item["members"]:
                self.lines.append(f"  - `\"{name}\"`: {meaning}")
        elif item and isinstance(value, str):  # a struct that is written as a string
            self.lines.append(f"  - {item['comment']}")
            self.lines += [f"  - {meaning}" for _, _, meaning in item["members"]]

    def value(self, key, value):
        """What a chosen value of a setting means, where it is one of several."""
        item = self.types.get(self.meaning[key][2], {"members": []})
        found = [f' `"{name}"`: {text}' for name, of, text in item["members"] if name == value and not of]
        return "".join(found)

    def table(self, prefix, kind, values):
        """The settings of a struct; those that are structs themselves follow as they are met."""
        fields = {name: (of, text) for name, of, text in self.types[kind]["members"]}
        for name, value in values.items():
            key = f"{prefix}.{name}"
            if name not in fields:
                self.missing.append(key)
                continue
            of, text = fields[name]
            item = self.types.get(of)
            if not isinstance(value, dict):
                self.setting(key, of, value, text)
            elif item["kind"] == "struct":
                self.lines += ["", f"### `[{key}]`", "", text, ""]
                self.table(key, of, value)
            else:
                self.tagged(key, item, value, text)

    def tagged(self, key, item, value, text):
        """An enum whose variants have fields: `crop = { kind = "padded", pad = 4 }`."""
        tag = item["tag"]
        self.lines += ["", f"### `[{key}]`", "", text, ""]
        self.meaning[f"{key}.{tag}"] = (text, value[tag], next(n for n, i in self.types.items() if i is item))
        self.lines.append(f"- **`{key}.{tag}`** = `{toml(value[tag])}`: one of these.")
        for name, of, meaning in item["members"]:
            if not of:
                self.lines.append(f"  - `\"{name}\"`: {meaning}")
                continue
            kind, field = name.split(".")
            self.meaning[f"{key}.{field}"] = (meaning, None, None)
            values = self.types.get(of, {"members": []})["members"]
            listed = "".join(f' `"{n}"`: {m}' for n, _, m in values)
            limit = f" Range: {self.limits[f'{key}.{field}']}." if f"{key}.{field}" in self.limits else ""
            self.lines.append(f"    - `{key}.{field}`, with `\"{kind}\"`: {meaning}{limit}{listed}")


def ordered(values):
    """Values before tables, as in a TOML file."""
    return dict(sorted(values.items(), key=lambda kv: isinstance(kv[1], dict)))


def presets():
    text = (SOURCE / "model/config.rs").read_text()
    rows = re.findall(r'"([\w-]+)" => \(\(([\d, ]+)\), \(([\d, ]+)\), Pool::(\w+)\)', text)
    names = re.search(r"PRESETS: \[&str; (\d+)\]", text)
    if len(rows) != int(names[1]):
        sys.exit(f"error: {len(rows)} presets found in model/config.rs, which names {names[1]}")
    lines = ["| preset | image, patch, channels | encoder: width, depth, heads | denoiser: width, depth, heads | pool |", "|---|---|---|---|---|"]
    for name, e, d, pool in rows:
        e = e.split(", ")
        encoder = "none" if name == "text" else ", ".join(e[3:])
        lines.append(f"| `{name}` | {', '.join(e[:3]) if name != 'text' else 'none'} | {encoder} | {d} | {pool.lower()} |")
    return lines


def flat(prefix, values):
    for name, value in values.items():
        key = f"{prefix}.{name}" if prefix else name
        if isinstance(value, dict):
            yield from flat(key, value)
        else:
            yield key, value


def write(program):
    config, all_types = defaults(program), types()
    page = Page(all_types, ranges())
    sections = {name: (of, text) for name, of, text in all_types["Config"]["members"]}
    page.lines += [HEAD, "## Top level", ""]
    page.setting("seed", sections["seed"][0], config["seed"], sections["seed"][1])
    for name, values in config.items():
        if not isinstance(values, dict):
            continue
        kind, text = sections[name]
        file = all_types[kind]["file"]
        page.lines += ["", f"## `[{name}]`", "", f"{text} In the code: [`{kind}`](../../{file}).", ""]
        if name == "model":
            says = "A network by name, which the settings below then change. Not a setting of its own: a run's `config.toml` has what it stands for."
            page.meaning["model.preset"] = (says, "digits", None)
            page.lines += [f'- **`model.preset`** = `"digits"`: {says}', "", *presets(), ""]
        page.table(name, kind, {k: ordered(v) if isinstance(v, dict) else v for k, v in ordered(values).items()})
    recipe = RECIPE.relative_to(ROOT)
    page.lines += ["", f"## `{recipe}`", "", f"[`{recipe}`](../../{recipe}) line by line; why it has these values is said there.", ""]
    page.lines += ["| setting | here | default | what it does |", "|---|---|---|---|"]
    for key, value in flat("", tomllib.loads(RECIPE.read_text())):
        if key not in page.meaning:
            page.missing.append(key)
            continue
        text, usual, _ = page.meaning[key]
        text += page.value(key, value)
        usual = "–" if usual is None else f"`{toml(usual)}`"
        page.lines.append(f"| `{key}` | `{toml(value)}` | {usual} | {text} |")
    if page.missing:
        sys.exit(f"error: no comment in {SOURCE.relative_to(ROOT)} says what these settings do: {', '.join(page.missing)}")
    return re.sub(r"\n{3,}", "\n\n", "\n".join(page.lines)).rstrip() + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="only say whether the page is up to date")
    parser.add_argument("--program", metavar="PATH", help="the program to ask for defaults, already built")
    args = parser.parse_args()
    text = write(args.program)
    if not args.check:
        PAGE.parent.mkdir(parents=True, exist_ok=True)
        PAGE.write_text(text)
    elif not PAGE.is_file() or PAGE.read_text() != text:
        sys.exit(f"error: {PAGE.relative_to(ROOT)} is out of date; run scripts/settings.py")


if __name__ == "__main__":
    main()
