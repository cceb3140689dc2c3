#!/usr/bin/env python3
"""Input speed of tweedie beside torchvision: decode, random-resized crop, flip, RandAugment, normalise, erase.

    python3 scripts/compare_data.py --data IMAGES [--images 768] [--rounds 3] [--tweedie target/release/tweedie]

IMAGES is an image folder with `train/CLASS/*.jpg`. Both run on one core and take turns. Needs torch, torchvision and Pillow.
The numbers are images per second of processor time, which other programs on the machine change least; the best of the rounds.
"""

import argparse
import json
import random
import statistics
import subprocess
import time
from pathlib import Path

import PIL
import torch
import torchvision
from torchvision import datasets
from torchvision import transforms as T
from torchvision.transforms import InterpolationMode as I


class Half:
    """One op with probability 1/2, bilinear or bicubic: what `rand-m9-mstd0.5-inc1` does twice."""

    def __init__(self):
        self.kinds = [T.RandAugment(1, 9, interpolation=i) for i in (I.BILINEAR, I.BICUBIC)]

    def __call__(self, image):
        return random.choice(self.kinds)(image) if random.random() < 0.5 else image


def recipe(ops):
    return T.Compose([
        T.RandomResizedCrop(224, interpolation=I.BICUBIC),
        T.RandomHorizontalFlip(),
        *ops,
        T.ToTensor(),
        T.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
        T.RandomErasing(0.25, value="random"),
    ])


PEERS = {
    "the same work: each op with probability 1/2, bilinear or bicubic": lambda: recipe([Half(), Half()]),
    "torchvision's defaults: RandAugment(2, 9), nearest": lambda: recipe([T.RandAugment(2, 9)]),
}


def torchvision_speed(root, transform, images):
    """Images per second of processor time, in batches of 64."""
    data = datasets.ImageFolder(root, transform)
    order = torch.randperm(len(data)).tolist()
    for i in order[:16]:
        data[i]
    begin, done = time.process_time(), 0
    while done < images:
        torch.stack([data[order[(done + k) % len(order)]][0] for k in range(64)])
        done += 64
    return done / (time.process_time() - begin)


def measure(tweedie, data, rounds=3, images=768, seconds=5):
    """Images per second of processor time, round by round."""
    torch.set_num_threads(1)
    ours, peers = [], {name: [] for name in PEERS}
    for _ in range(rounds):
        command = [tweedie, "bench", "data", str(data), "--workers", "1", "--seconds", str(seconds), "--json"]
        ours.append(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)["per_cpu_second"])
        for name, make in PEERS.items():
            peers[name].append(torchvision_speed(Path(data) / "train", make(), images))
    load = float(Path("/proc/loadavg").read_text().split()[0])
    return {"tweedie": ours, "torchvision": peers, "load": load}


def table(kept):
    lines = [
        f"torchvision {torchvision.__version__}, torch {torch.__version__}, Pillow {PIL.__version__}; load {kept['load']:.1f}\n",
        "| torchvision | its images per CPU second | tweedie's | ratio of the best | of the medians |",
        "|---|---:|---:|---:|---:|",
    ]
    ours = kept["tweedie"]
    for name, speeds in kept["torchvision"].items():
        medians = statistics.median(ours) / statistics.median(speeds)
        lines.append(f"| {name} | {max(speeds):.0f} | {max(ours):.0f} | {max(ours) / max(speeds):.2f} | {medians:.2f} |")
    return "\n".join(lines)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--data", required=True, type=Path)
    p.add_argument("--images", type=int, default=768, help="of torchvision, in each round")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--seconds", type=float, default=5, help="of tweedie, in each round")
    p.add_argument("--tweedie", default="target/release/tweedie")
    args = p.parse_args()
    print(table(measure(args.tweedie, args.data, args.rounds, args.images, args.seconds)))


if __name__ == "__main__":
    main()
