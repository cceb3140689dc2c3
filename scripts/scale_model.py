#!/usr/bin/env python3
"""The table of docs/results/scale.md: a step over 8 and 64 GPUs by bytes, bandwidth and the time of a step on one GPU.

Buckets of gradients become ready one after the other over the backward pass of the last part of a batch; one travels at a time. A bucket
takes 2·(N−1)/N·bytes/bandwidth and LATENCY. What the network still does when the backward pass is over is waited for.
"""

LATENCY = 30e-6
BUCKET = 25e6
BACKWARD = 2 / 3  # of a part
# Name, parameters, seconds of a part of 256 images on one H200.
MODELS = [("vit-b16", 110.0e6, 0.05325), ("vit-l16", 345.5e6, 3.5 * 0.05325)]
# GPUs, bytes per second between them (bus bandwidth), words.
NETWORKS = [
    (8, 360e9, "8, one machine"),
    (64, 320e9, "64, 8 × 400 Gb/s a machine"),
    (64, 45e9, "64, 400 Gb/s a machine"),
    (64, 11e9, "64, 100 Gb/s a machine"),
]
BATCH = 4096


def step(parameters, part, parts, gpus, bandwidth):
    """Buckets, seconds of one, seconds that are waited."""
    gradients = 4 * parameters
    buckets = int(-(-gradients // BUCKET))
    each = 2 * (gpus - 1) / gpus * gradients / buckets / bandwidth + LATENCY
    free = 0.0
    for i in range(buckets):
        ready = parts * part - BACKWARD * part * (1 - (i + 1) / buckets)
        free = max(free, ready) + each
    return buckets, each, free - parts * part


def main():
    print("| model | GPUs | images of each | sent by each | buckets | on the network | compute | waited | efficiency | images/s |")
    print("|---|---|--:|--:|--:|--:|--:|--:|--:|--:|")
    for name, parameters, seconds in MODELS:
        for gpus, bandwidth, words in NETWORKS:
            own = BATCH // gpus
            parts, part = max(1, own // 256), seconds * min(own, 256) / 256
            buckets, each, waited = step(parameters, part, parts, gpus, bandwidth)
            sent, compute = 2 * (gpus - 1) / gpus * 4 * parameters, parts * part
            print(
                f"| {name} | {words} | {own} | {sent / 1e6:.0f} MB | {buckets} of {each * 1e3:.2f} ms | {buckets * each * 1e3:.1f} ms |"
                f" {compute * 1e3:.1f} ms | {waited * 1e3:.1f} ms | {compute / (compute + waited):.0%} | {BATCH / (compute + waited):,.0f} |"
            )


if __name__ == "__main__":
    main()
