#!/usr/bin/env python3
"""What is inside the program and the Python module, as CycloneDX 1.5 JSON: every crate with its version, licence, checksum and place.

scripts/sbom.py writes sbom.cdx.json and crates/python/sbom.cdx.json; --check only says whether they are up to date (exit 1 if not). Needs
cargo, nothing else.
"""
import argparse
import json
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
#: The folder of a bill and its Cargo.lock, and the package it is of.
BILLS = [(ROOT, "tweedie-cli"), (ROOT / "crates/python", "tweedie-python")]


def metadata(folder):
    command = ["cargo", "metadata", "--format-version", "1", "--locked", "--filter-platform", "x86_64-unknown-linux-gnu"]
    return json.loads(subprocess.run(command, cwd=folder, check=True, stdout=subprocess.PIPE).stdout)


def inside(meta, main):
    """Packages that `main` is built from: its normal and build dependencies, not those of tests."""
    nodes = {n["id"]: n for n in meta["resolve"]["nodes"]}
    todo = [p["id"] for p in meta["packages"] if p["name"] == main]
    seen = set(todo)
    while todo:
        for dep in nodes[todo.pop()]["deps"]:
            kinds = {k["kind"] for k in dep["dep_kinds"]}
            if kinds != {"dev"} and dep["pkg"] not in seen:
                seen.add(dep["pkg"])
                todo.append(dep["pkg"])
    return seen, nodes


def component(package, sums, main):
    name, version = package["name"], package["version"]
    ours = package["source"] is None
    entry = {
        "type": "application" if name == main == "tweedie-cli" else "library",
        "bom-ref": f"{name}@{version}",
        "name": name,
        "version": version,
        "purl": f"pkg:cargo/{name}@{version}",
        "licenses": [{"expression": (package["license"] or "NOASSERTION").replace(" / ", " OR ").replace("/", " OR ")}],
    }
    if not ours:
        entry["hashes"] = [{"alg": "SHA-256", "content": sums[name, version]}]
    if package["repository"]:
        entry["externalReferences"] = [{"type": "vcs", "url": package["repository"]}]
    return entry


def bill(folder, main):
    meta = metadata(folder)
    lock = tomllib.loads((folder / "Cargo.lock").read_text())
    sums = {(p["name"], p["version"]): p.get("checksum", "") for p in lock["package"]}
    within, nodes = inside(meta, main)
    packages = sorted((p for p in meta["packages"] if p["id"] in within), key=lambda p: (p["name"], p["version"]))
    refs = {p["id"]: f'{p["name"]}@{p["version"]}' for p in packages}
    depends = [
        {"ref": refs[p["id"]], "dependsOn": sorted({refs[d["pkg"]] for d in nodes[p["id"]]["deps"] if d["pkg"] in refs})}
        for p in packages
    ]
    components = [component(p, sums, main) for p in packages]
    whole = next(c for c in components if c["name"] == main)
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": whole},
        "components": [c for c in components if c is not whole],
        "dependencies": depends,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare, and write nothing")
    args = parser.parse_args()
    for folder, package in BILLS:
        file, text = folder / "sbom.cdx.json", json.dumps(bill(folder, package), indent=1) + "\n"
        if not args.check:
            file.write_text(text)
        elif not file.is_file() or file.read_text() != text:
            sys.exit(f"error: {file.relative_to(ROOT)} is not what its Cargo.lock says; make it anew with scripts/sbom.py")


if __name__ == "__main__":
    main()
