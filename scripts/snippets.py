#!/usr/bin/env python3
"""Code in the guides is code that the tests compile: a block below `<!-- from FILE -->` must stand in FILE, line by line.

scripts/snippets.py says what differs (exit 1). Indentation, blank lines and the `///` of doc tests do not count; a line `// …` leaves
something out. Every Rust block below docs/guides needs such a comment.
"""
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def lines(text):
    bare = (re.sub(r"^\s*(//[/!] ?)+(# )?", "", line).strip() for line in text.splitlines())
    return [line for line in bare if line]


def parts(block):
    part = []
    for line in lines(block):
        if line == "// …":
            yield part
            part = []
        else:
            part.append(line)
    yield part


def stands(part, source):
    return any(source[i : i + len(part)] == part for i in range(len(source) - len(part) + 1))


def main():
    wrong, seen = [], 0
    for page in sorted((ROOT / "docs/guides").glob("*.md")):
        text = page.read_text()
        for block in re.finditer(r"(?:<!-- from (\S+) -->\n)?```rust\n(.*?)```", text, re.S):
            at = f"{page.relative_to(ROOT)}:{text[:block.start()].count(chr(10)) + 1}"
            seen += 1
            if not block[1] or not (ROOT / block[1]).is_file():
                wrong.append(f"{at}: no file is named that the code is from")
                continue
            source = lines((ROOT / block[1]).read_text())
            wrong += [f"{at}: not in {block[1]}: {p[0]}" for p in parts(block[2]) if p and not stands(p, source)]
    if wrong or not seen:
        sys.exit("error: " + ("\n".join(wrong) or "there is no code in docs/guides"))


if __name__ == "__main__":
    main()
