"""How long pycocoevalcap and tweedie.metrics take to score the same captions; prints a Markdown table.

    pip install tweedie pycocoevalcap pyarrow    # and Java, for pycocoevalcap's tokenizer
    python crates/python/bench/metrics.py captions.parquet

The file has a column of lists of captions. The first of each image is scored against the others. Both sides get the same objects. Each
time is the least of --repeats, and the largest difference of any score of any image is printed below.
"""

import argparse
import contextlib
import io
import resource
import time
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import pyarrow.parquet as pq
from pycocoevalcap.bleu.bleu import Bleu as TheirBleu
from pycocoevalcap.cider.cider import Cider as TheirCider
from pycocoevalcap.rouge.rouge import Rouge as TheirRouge
from pycocoevalcap.tokenizer.ptbtokenizer import PTBTokenizer as TheirTokenizer

from tweedie.metrics import Bleu, Cider, PTBTokenizer, Rouge, caption_scores


Times: TypeAlias = tuple[float, float]
Row: TypeAlias = tuple[str, Times, Times]


def cpu() -> float:
    """CPU seconds of this process, its threads and the programs it ran."""
    return sum(t.ru_utime + t.ru_stime for t in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)))


def timed(repeats: int, *work: Callable[[], Any]) -> tuple[list[Times], list[Any]]:
    """The least wall and CPU time of each, taken in turns so that other load meets all alike, and what each returns."""
    best: list[Times] = [(float("inf"), float("inf"))] * len(work)
    out: list[Any] = [None] * len(work)
    for _ in range(repeats):
        for i, call in enumerate(work):
            wall, used = time.perf_counter(), cpu()
            with contextlib.redirect_stdout(io.StringIO()):
                out[i] = call()
            best[i] = min(best[i][0], time.perf_counter() - wall), min(best[i][1], cpu() - used)
    return best, out


def total(rows: list[Row], name: str) -> Row:
    def both(side: int) -> Times:
        return sum(r[side][0] for r in rows), sum(r[side][1] for r in rows)  # type: ignore[misc, index]

    return name, both(1), both(2)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("parquet", help="file with a column of lists of captions")
    parser.add_argument("--column", default="captions")
    parser.add_argument("--repeats", type=int, default=7)
    args = parser.parse_args()

    captions = [c for c in pq.read_table(args.parquet, columns=[args.column])[args.column].to_pylist() if len(c) > 1]
    gts = {i: [{"caption": c} for c in texts[1:]] for i, texts in enumerate(captions)}
    res = {i: [{"caption": texts[0]}] for i, texts in enumerate(captions)}

    tokenizers = TheirTokenizer(), PTBTokenizer()
    calls = [lambda t=t: (t.tokenize(gts), t.tokenize(res)) for t in tokenizers]
    (theirs, ours), words = timed(args.repeats, *calls)
    assert words[0] == words[1], "words differ"
    tokens: Row = ("PTBTokenizer", theirs, ours)
    rows: list[Row] = []
    worst = 0.0
    for name, *scorers in [("Bleu(4)", TheirBleu(4), Bleu(4)), ("Rouge()", TheirRouge(), Rouge()), ("Cider()", TheirCider(), Cider())]:
        (theirs, ours), (want, got) = timed(args.repeats, *(lambda s=s: s.compute_score(*words[0]) for s in scorers))
        rows.append((name, theirs, ours))
        worst = max(worst, *(float(np.abs(np.asarray(w) - np.asarray(g)).max()) for w, g in zip(want, got)))
    whole = total([tokens, *rows], "everything")
    references, candidates = [c[1:] for c in captions], [c[0] for c in captions]
    (at_once,), _ = timed(args.repeats, lambda: caption_scores(references, candidates))
    rows = [tokens, *rows, total(rows, "the three scorers"), whole, ("everything by `caption_scores`", whole[1], at_once)]

    print(f"{len(captions)} images, {sum(map(len, captions))} captions\n")
    print("|                                | pycocoevalcap wall, CPU | tweedie wall, CPU | times faster | times less CPU |")
    print("| ------------------------------ | ----------------------: | ----------------: | -----------: | -------------: |")
    for name, theirs, ours in rows:
        (tw, tc), (ow, oc) = ([1000 * t for t in side] for side in (theirs, ours))
        print(f"| {name:<30} | {tw:9.0f} ms, {tc:6.0f} ms | {ow:6.0f} ms, {oc:3.0f} ms | {tw / ow:12.1f} | {tc / oc:14.1f} |")
    print(f"\nlargest difference: {worst:.1e}")


if __name__ == "__main__":
    main()
