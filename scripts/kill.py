#!/usr/bin/env python3
"""Kills trainings and looks whether anything is lost.

A small training of digits is run once undisturbed. Then the same training is started again and again, killed with SIGKILL at a random
moment or (where strace works) at a random system call, and resumed until it is done. Its last checkpoint must have the bytes of the
undisturbed one, its metrics the same lines but for times, and no resume may go back behind a checkpoint that was there.

    cargo build --release
    python3 scripts/kill.py --kills 500
    python3 scripts/kill.py --kills 0 --errors 100

With --errors, system calls fail (disk full, I/O error, no permission) instead of killing; whatever the command then says, nothing may be
lost and it may not panic. Exit code 1 if anything was lost.
"""

import argparse
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SETTINGS = {
    "train.epochs": 6,
    "train.batch": 479,
    "train.noisy_copies": 1,
    "train.eval_images": 16,
    "train.eval_every": 3,
    "train.checkpoint_every": 1,
    "train.keep": 2,
    "train.log_every": 1,
    "data.val_fraction": 0,
    "data.workers": 1,
    "model.encoder.patch": 4,
    "model.encoder.depth": 1,
    "model.encoder.width": 32,
    "model.encoder.heads": 2,
    "model.denoiser.depth": 1,
    "model.denoiser.width": 32,
    "model.denoiser.heads": 2,
    "sample.steps": 1,
}
# Killed or failed at these; what a system does not have is left out.
CALLS = ["write", "openat", "close", "fsync", "fdatasync", "rename", "mkdir", "unlink", "unlinkat", "rmdir", "ftruncate"]
ERRORS = ["ENOSPC", "EIO", "EACCES"]
FAILING = ["write", "openat", "fsync", "fdatasync", "rename", "mkdir", "unlinkat"]
FILES = ["model.safetensors", "ema.safetensors", "optimizer.safetensors", "state.json"]
TIMES = ["images_per_second", "waited", "eta"]
RUN = "run"
KILLED = (-9, 137)


def command(binary, folder):
    """What starts or goes on with the training in a folder."""
    base = [str(binary), "--threads", "1", "train", "--device", "cpu"]
    if (folder / RUN / "config.toml").exists():
        return base + ["--resume", RUN]
    sets = [a for key, value in SETTINGS.items() for a in ("--set", f"{key}={value}")]
    return base + ["digits", "--out", RUN] + sets


def traced(args, inject, log="/dev/null"):
    """The command under strace; its calls of the named kind are all that is looked at. (With --seccomp-bpf, which would be faster,
    strace 6.1 injects no signals.)"""
    kind = inject.split(":")[0]
    return ["strace", "-f", "-qq", "-o", str(log), "-e", f"trace={kind}", "-e", f"inject={inject}"] + args


def steps(folder):
    """Steps of the checkpoints that are there."""
    found = (re.fullmatch(r"step-(\d+)", p.name) for p in (folder / RUN / "checkpoints").glob("step-*"))
    return sorted(int(m[1]) for m in found if m)


def metrics(folder):
    """Lines without times. A kill may come between a checkpoint and the line that tells of it; warnings tell of injected errors."""
    lines = [json.loads(l) for l in (folder / RUN / "metrics.jsonl").read_text().splitlines()]
    kept = [l for l in lines if l["event"] not in ("saved", "warning")]
    return [{k: v for k, v in l.items() if k not in TIMES} for l in kept]


def result(folder):
    """What a finished training left: files of the last checkpoint, metrics."""
    last = folder / RUN / "checkpoints" / f"step-{steps(folder)[-1]:08}"
    return {name: (last / name).read_bytes() for name in FILES} | {"metrics.jsonl": metrics(folder)}


class Test:
    def __init__(self, args):
        self.binary, self.keep = Path(args.binary).resolve(), args.keep
        self.lock, self.counts = threading.Lock(), dict.fromkeys(
            ["runs", "kills by time", "kills by call", "errors injected", "errors told", "resumes", "losses"], 0)
        self.root = Path(tempfile.mkdtemp(prefix="tweedie-kill-"))
        folder = self.root / "reference"
        folder.mkdir()
        began = time.monotonic()
        self.run_to_end(folder)
        self.seconds = time.monotonic() - began
        self.expected = result(folder)
        self.calls = self.count_calls() if args.strace else {}

    def count(self, what, n=1):
        with self.lock:
            self.counts[what] += n

    def run_to_end(self, folder):
        done = subprocess.run(command(self.binary, folder), cwd=folder, capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"exit code {done.returncode}: {done.stderr}")
        return done.stderr

    def count_calls(self):
        """How often each call is made by an undisturbed run; none where strace does not work."""
        folder = self.root / "calls"
        folder.mkdir()
        table = folder / "table"
        args = ["strace", "-f", "-qq", "-c", "-o", str(table), "-e", "trace=?" + ",?".join(CALLS)]
        try:
            subprocess.run(args + command(self.binary, folder), cwd=folder, capture_output=True, check=True)
            probe = subprocess.run(traced([str(self.binary), "--version"], "openat:signal=SIGKILL:when=1"), capture_output=True)
            if probe.returncode not in KILLED:
                raise OSError(f"it does not kill: exit code {probe.returncode}")
        except (OSError, subprocess.CalledProcessError) as e:
            print(f"strace does not work here ({e}): kills by time alone", file=sys.stderr)
            return {}
        rows = (line.split() for line in table.read_text().splitlines())
        return {r[-1]: int(r[3]) for r in rows if len(r) >= 5 and r[-1] in CALLS and r[3].isdigit()}

    def killed(self, folder, draw):
        """Start or go on, and kill; true if the run came to its end before."""
        args = command(self.binary, folder)
        by_call = self.calls and draw.random() < 0.5
        if by_call:
            kind = draw.choice(list(self.calls))
            args = traced(args, f"{kind}:signal=SIGKILL:when={draw.randint(1, self.calls[kind])}")
        process = subprocess.Popen(args, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        try:
            _, said = process.communicate(timeout=None if by_call else draw.uniform(0, self.seconds))
        except subprocess.TimeoutExpired:
            process.kill()
            _, said = process.communicate()
        if process.returncode == 0:
            return True, said
        if process.returncode not in KILLED:
            raise RuntimeError(f"exit code {process.returncode}: {said}")
        self.count("kills by call" if by_call else "kills by time")
        return False, said

    def failed(self, folder, draw):
        """Start or go on with a call that fails; true if the run came to its end all the same."""
        kind = draw.choice([c for c in FAILING if c in self.calls])
        often = draw.choice(["", "", "+"])  # once, or from then on
        inject = f"{kind}:error={draw.choice(ERRORS)}:when={draw.randint(1, self.calls[kind])}{often}"
        log = folder / "strace.log"
        done = subprocess.run(traced(command(self.binary, folder), inject, log), cwd=folder, capture_output=True, text=True,
                              errors="replace")
        self.count("errors injected", int("INJECTED" in log.read_text(errors="replace")))
        if "panicked" in done.stderr or done.returncode < 0 or done.returncode == 101:
            raise RuntimeError(f"{inject}: exit code {done.returncode}: {done.stderr}")
        self.count("errors told", int(done.returncode != 0))
        return done.returncode == 0, done.stderr

    def trial(self, seed, disturb, disturbances):
        """One training, disturbed until it is done or has had enough, then finished and compared."""
        draw, folder = random.Random(seed), self.root / f"trial-{seed}"
        folder.mkdir()
        try:
            done = False
            for _ in range(disturbances):
                newest = max(steps(folder), default=0)
                if (folder / RUN / "config.toml").exists():
                    self.count("resumes")
                done, said = disturb(folder, draw)
                self.check_place(newest, said)
                if done:
                    break
            if not done or disturb == self.failed:
                newest = max(steps(folder), default=0)
                self.check_place(newest, self.run_to_end(folder))
            for name, bytes in result(folder).items():
                if bytes != self.expected[name]:
                    raise RuntimeError(f"{name} differs from that of the undisturbed run")
        except (RuntimeError, OSError, ValueError, IndexError) as e:
            self.count("losses")
            print(f"LOST in {folder} (seed {seed}): {e}", file=sys.stderr)
        else:
            shutil.rmtree(folder)
        self.count("runs")

    def check_place(self, newest, said):
        """A resumed run goes on from the newest checkpoint that was there."""
        place = re.search(r"goes on from step (\d+)", said)
        if place and int(place[1]) < newest:
            raise RuntimeError(f"goes on from step {place[1]}, though there was {newest}: {said}")


def rounds(test, jobs, wanted, so_far, disturb, disturbances, first_seed):
    """Trials until there were as many disturbances as wanted."""
    began, seed, told = time.monotonic(), first_seed, 0
    with ThreadPoolExecutor(jobs) as pool:
        while so_far() < wanted:
            batch = [pool.submit(test.trial, seed + i, disturb, disturbances) for i in range(jobs)]
            seed += jobs
            for trial in batch:
                trial.result()
            if so_far() - told >= max(wanted // 20, 1):
                told = so_far()
                spent = time.monotonic() - began
                print(f"{told} of {wanted}, {spent / told:.2f} s each, {test.counts['losses']} losses", file=sys.stderr)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default="target/release/tweedie")
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--errors", type=int, default=0, help="system calls that fail (needs strace)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--no-strace", dest="strace", action="store_false", help="kill by time alone")
    parser.add_argument("--keep", action="store_true", help="keep the folder of the test")
    args = parser.parse_args()
    args.strace = args.strace and shutil.which("strace") is not None
    test = Test(args)
    print(f"an undisturbed run takes {test.seconds:.2f} s; calls: {test.calls or 'not counted'}", file=sys.stderr)
    began = time.monotonic()
    kills = lambda: test.counts["kills by time"] + test.counts["kills by call"]
    rounds(test, args.jobs, args.kills, kills, test.killed, 20, args.seed * 1_000_000)
    if args.errors and not test.calls:
        print("--errors needs strace: left out", file=sys.stderr)
    elif args.errors:
        rounds(test, args.jobs, args.errors, lambda: test.counts["errors injected"], test.failed, 3,
               args.seed * 1_000_000 + 500_000)
    spent = time.monotonic() - began
    for what, n in test.counts.items():
        print(f"{what:16} {n:6}")
    print(f"{'seconds':16} {spent:6.0f}   {spent / max(kills() + test.counts['errors injected'], 1):.2f} each")
    if test.counts["losses"] == 0 and not test.keep:
        shutil.rmtree(test.root)
    sys.exit(1 if test.counts["losses"] else 0)


if __name__ == "__main__":
    main()
