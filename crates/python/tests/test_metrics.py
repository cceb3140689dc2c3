"""`tweedie.metrics` against pycocoevalcap 1.2 (its scorers in Python, its tokens as stored) and against transformers' CLIP (stored).

Without pycocoevalcap what needs it is skipped, unless TWEEDIE_REQUIRE_PYCOCOEVALCAP=1.
"""

import doctest
import importlib
import json
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import wishes

import tweedie.metrics
from tweedie.metrics import Bleu, Cider, COCOEvalCap, PTBTokenizer, Rouge, caption_scores, clip_score, diversity

ROOT = Path(__file__).resolve().parents[3]
FIXTURES = ROOT / "crates" / "tweedie" / "tests" / "fixtures"
COCO = ROOT.parent / "shared" / "data" / "coco-96" / "test-00000-of-00001.parquet"

# Sums in another order; asked for are 1e-6.
TOLERANCE = 1e-9

Tokens = dict[Any, list[str]]


def require(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        if wishes.REQUIRE_PYCOCOEVALCAP:
            raise
        pytest.skip(f"{name} is not installed: pip install pycocoevalcap")


def realistic(images: int, seed: int) -> tuple[Tokens, Tokens]:
    """Captions that share words, phrases and whole sentences as those of COCO do."""
    draw = random.Random(seed)
    things = ["man", "woman", "dog", "cat", "train", "bus", "surfboard", "bowl of soup", "teddy bear", "stop sign", "pizza"]
    doings = ["sitting on", "standing next to", "riding", "holding", "looking at", "parked near", "is on top of"]
    kinds = ["", "", "red", "large", "small white", "black and white", "wooden"]

    def caption(thing: str, doing: str) -> str:
        thing = draw.choice([thing, draw.choice(things)])
        doing = draw.choice([doing, doing, draw.choice(doings)])
        words = [draw.choice(["a", "a", "the", "two"]), draw.choice(kinds), thing, doing, "a", draw.choice(kinds), draw.choice(things)]
        words += draw.choice([[], [], ["in the street"], ["with a a very very tall building in the background"]])
        return " ".join(w for w in words if w)

    gts, res = {}, {}
    for i in range(images):
        thing, doing = draw.choice(things), draw.choice(doings)
        gts[f"img-{i}"] = [caption(thing, doing) for _ in range(draw.randint(1, 6))]
        res[f"img-{i}"] = [draw.choice([caption(thing, doing), draw.choice(gts[f"img-{i}"])])]
    return gts, res


def odd(images: int, seed: int) -> tuple[Tokens, Tokens]:
    """Random words of a small vocabulary: empty captions, single words, blanks of all kinds, repetitions."""
    draw = random.Random(seed)
    words = ["a", "b", "c", "dd", "é", "😀", "-lrb-", "n't", "1\xa01/2", "x.y"]

    def text() -> str:
        count = draw.choice([0, 1, 1, 2, 3, 4, 5, 8, 30])
        blank = draw.choice([" ", " ", " ", "  ", "\t", "\x1c", "\u2003"])
        return draw.choice(["", "", " "]) + blank.join(draw.choices(words, k=count)) + draw.choice(["", "", " ", "\n"])

    gts = {i: [text() for _ in range(draw.randint(1, 4))] for i in range(images)}
    gts[images] = ["a word"]  # pycocoevalcap's CIDEr-D fails where all references are empty
    return gts, {i: [text()] for i in reversed(range(images + 1))}


def same(gts: Tokens, res: Tokens) -> None:
    """Scores and values of images are pycocoevalcap's, and of the same shapes and types."""
    want, want_each = require("pycocoevalcap.bleu.bleu").Bleu(4).compute_score(gts, res, verbose=0)
    got, got_each = Bleu(4).compute_score(gts, res)
    np.testing.assert_allclose(got, want, rtol=0, atol=TOLERANCE)
    np.testing.assert_allclose(got_each, want_each, rtol=0, atol=TOLERANCE)
    assert type(got) is type(want) is list and type(got_each[0]) is type(want_each[0]) is list
    others: list[tuple[str, str, Any]] = [("rouge.rouge", "Rouge", Rouge()), ("cider.cider", "Cider", Cider())]
    for module, theirs, ours in others:
        scorer = getattr(require(f"pycocoevalcap.{module}"), theirs)()
        mean, each = scorer.compute_score(gts, res)
        our_mean, our_each = ours.compute_score(gts, res)
        np.testing.assert_allclose(our_mean, mean, rtol=0, atol=TOLERANCE)
        np.testing.assert_allclose(our_each, each, rtol=0, atol=TOLERANCE)
        assert (type(our_mean), our_each.dtype, our_each.shape) == (type(mean), each.dtype, each.shape)
        assert ours.method() == scorer.method()
    assert Bleu().method() == require("pycocoevalcap.bleu.bleu").Bleu().method()


@pytest.mark.parametrize("images", [1, 2, 300])
def test_realistic_captions_score_as_in_pycocoevalcap(images: int) -> None:
    same(*realistic(images, seed=images))


@pytest.mark.parametrize("seed", range(40))
def test_odd_captions_score_as_in_pycocoevalcap(seed: int) -> None:
    same(*odd(random.Random(seed).randint(1, 30), seed))


@pytest.mark.skipif(not COCO.exists(), reason=f"{COCO.name} of COCO is not there")
def test_coco_captions_score_as_in_pycocoevalcap() -> None:
    table = pytest.importorskip("pyarrow.parquet").read_table(COCO, columns=["captions", "image_id"]).to_pydict()
    images = list(zip(table["image_id"], table["captions"]))
    gts = PTBTokenizer().tokenize({i: [{"caption": c} for c in captions[1:]] for i, captions in images})
    res = PTBTokenizer().tokenize({i: [{"caption": captions[0]}] for i, captions in images})
    same(gts, res)
    scores = caption_scores({i: captions[1:] for i, captions in images}, {i: captions[0] for i, captions in images})
    np.testing.assert_allclose(scores.cider_d, Cider().compute_score(gts, res)[0], rtol=0, atol=TOLERANCE)


def test_fewer_n_are_the_first() -> None:
    gts, res = realistic(20, 1)
    four, each = Bleu(4).compute_score(gts, res)
    for n in (1, 2, 3):
        assert Bleu(n).compute_score(gts, res) == (four[:n], each[:n])
        want = require("pycocoevalcap.bleu.bleu").Bleu(n).compute_score(gts, res, verbose=0)[0]
        np.testing.assert_allclose(four[:n], want, rtol=0, atol=TOLERANCE)


def test_captions_become_the_words_of_pycocoevalcap() -> None:
    golden = json.loads((FIXTURES / "captions" / "golden.json").read_text())
    captions = {i: [{"caption": c} for c in texts] for i, texts in enumerate(golden["captions"])}
    assert PTBTokenizer().tokenize(captions) == dict(enumerate(golden["words"]))
    nasty = golden["nasty"]
    lines = {str(i): [{"caption": line, "id": i}] for i, line in enumerate(nasty["lines"])}
    assert PTBTokenizer().tokenize(lines) == {str(i): [words] for i, words in enumerate(nasty["words"])}


def test_tokens_by_hand() -> None:
    def words(text: str) -> str:
        return PTBTokenizer().tokenize({0: [{"caption": text}]})[0][0]

    assert words("Don't you can't it's o'clock") == "do n't you ca n't it 's o'clock"
    assert words('A "quoted", (bracketed) - word... End!') == "a quoted -lrb- bracketed -rrb- word end"
    assert words("two\nlines") == "two lines"
    assert words("") == ""
    assert PTBTokenizer().tokenize({1: [], 2: [{"caption": "a"}]}) == {2: ["a"]}
    assert PTBTokenizer().tokenize({}) == {}


@pytest.mark.parametrize(
    ("gts", "res", "says"),
    [
        ({1: ["a"], 2: ["b"]}, {1: ["a"]}, "res has no caption for id 2, which gts has"),
        ({1: ["a"]}, {1: ["a"], "x": ["b"]}, "gts has no reference for id 'x', which res has"),
        ({1: ["a"], 2: []}, {1: ["a"], 2: ["b"]}, r"gts\[2\] is empty: give id 2 at least one reference"),
        ({7: ["a"]}, {7: ["a", "b"]}, r"res\[7\] has 2 captions: a list of exactly one"),
        ({7: ["a"]}, {7: []}, r"res\[7\] has no caption: a list of exactly one"),
        ({7: ["a"]}, {7: "a"}, r"res\[7\] is of type str, not a list of str: put it into a list"),
        ({7: "a"}, {7: ["a"]}, r"gts\[7\] is of type str, not a list of str"),
        ({7: None}, {7: ["a"]}, r"gts\[7\] is of type NoneType, not a list of str"),
        ({7: ["a", 3]}, {7: ["a"]}, r"gts\[7\]\[1\] is of type int, not a str"),
        ({7: [{"caption": "a"}]}, {7: ["a"]}, r"gts\[7\]\[0\] is of type dict, not a str; tokenize annotations first"),
        ({7: ["\ud800"]}, {7: ["a"]}, r"gts\[7\]\[0\] is no text that UTF-8 can hold"),
        ([["a"]], {7: ["a"]}, "gts is of type list, not a dict by id"),
        ({7: ["a"]}, ["a"], "res is of type list, not a dict by id"),
        ({}, {}, "there is no caption to score"),
    ],
)
@pytest.mark.parametrize("scorer", [Bleu(4), Rouge(), Cider()])
def test_what_cannot_be_scored_is_named(scorer: Any, gts: Any, res: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        scorer.compute_score(gts, res)


@pytest.mark.parametrize(
    ("captions", "says"),
    [
        ({7: ["a dog"]}, r"captions\[7\]\[0\] is 'a dog', not {\"caption\": str}"),
        ({7: "a dog"}, r"captions\[7\] is of type str, not a list of {\"caption\": str}"),
        ({7: 1}, r"captions\[7\] is of type int, not a list"),
        ({7: [{"text": "a dog"}]}, r"captions\[7\]\[0\] has no \"caption\": {'text': 'a dog'}"),
        ({7: [{"caption": None}]}, r"captions\[7\]\[0\]\[\"caption\"\] is of type NoneType, not a str"),
        ([{"caption": "a"}], "captions_for_image is of type list, not a dict by id"),
    ],
)
def test_what_cannot_be_tokenized_is_named(captions: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        PTBTokenizer().tokenize(captions)


def test_settings_that_are_not_there_are_refused() -> None:
    for n in (0, 5):
        with pytest.raises(ValueError, match="n is 1, 2, 3 or 4"):
            Bleu(n)
    with pytest.raises(ValueError, match="n is 4 and sigma is 6.0"):
        Cider(sigma=3.0)


def test_written_captions_score_as_their_words_do() -> None:
    golden = json.loads((FIXTURES / "captions" / "golden.json").read_text())
    images = dict(enumerate(golden["captions"]))
    references, captions = {i: c[1:] for i, c in images.items()}, {i: c[0] for i, c in images.items()}
    scores = caption_scores(references, captions)
    # What pycocoevalcap with Java gave.
    want = golden["human"]
    np.testing.assert_allclose(scores.bleu, want["bleu"], rtol=0, atol=TOLERANCE)
    np.testing.assert_allclose([scores.rouge_l, scores.cider_d], [want["rouge_l"], want["cider_d"]], rtol=0, atol=TOLERANCE)
    # These were rounded to nine digits.
    np.testing.assert_allclose(scores.per_image.rouge_l, want["rouge_l_images"], rtol=0, atol=1e-8)
    np.testing.assert_allclose(scores.per_image.cider_d, want["cider_d_images"], rtol=0, atol=1e-8)
    gts = PTBTokenizer().tokenize({i: [{"caption": c} for c in r] for i, r in references.items()})
    res = PTBTokenizer().tokenize({i: [{"caption": c}] for i, c in captions.items()})
    np.testing.assert_array_equal(scores.per_image.bleu.T, Bleu(4).compute_score(gts, res)[1])
    assert scores.ids == list(references)
    lists = caption_scores(list(references.values()), list(captions.values()))
    assert (lists.bleu, lists.ids, repr(lists)) == (scores.bleu, list(range(len(images))), repr(scores))
    # A caption in a list is what pycocoevalcap has.
    assert caption_scores(references, {i: [c] for i, c in captions.items()}).cider_d == scores.cider_d


def test_intervals_hold_the_scores_and_come_again() -> None:
    gts, res = realistic(200, 5)
    scores = caption_scores(gts, res)
    intervals = scores.bootstrap(500, seed=1)
    for (low, high), score in [*zip(intervals.bleu, scores.bleu), (intervals.rouge_l, scores.rouge_l), (intervals.cider_d, scores.cider_d)]:
        assert low < score < high
    assert intervals == scores.bootstrap(500, seed=1) != scores.bootstrap(500, seed=2)
    # 1.96 standard errors on either side; 500 draws place a percentile to about 10 % of that.
    error = 1.96 * scores.per_image.rouge_l.std() / 200**0.5
    np.testing.assert_allclose(intervals.rouge_l, [scores.rouge_l - error, scores.rouge_l + error], rtol=0, atol=0.25 * error)
    assert scores.difference(scores, 100).cider_d == (0.0, 0.0)
    assert scores.difference(caption_scores(gts, {i: ["zzz"] for i in gts}), 100).rouge_l[0] > 0
    with pytest.raises(ValueError, match="same images"):
        scores.difference(caption_scores([["a"]], ["a"]))
    with pytest.raises(ValueError, match="0 draws"):
        scores.bootstrap(0)


@pytest.mark.parametrize(
    ("references", "captions", "says"),
    [
        ([["a"]], ["a", "b"], "2 captions for the references of 1 images"),
        ([["a"]], {0: "a"}, "both dicts by id or both lists"),
        (["a"], ["a"], r"gts\[0\] is of type str, not a list of str"),
        ([["a"]], "a", "captions is of type str, not a list"),
        ([["a"]], [["a"]], r"res\[0\]\[0\] is of type list, not a str"),
        ({"x": ["a"]}, {"y": "a"}, "res has no caption for id 'x'"),
        ([], [], "there is no caption"),
    ],
)
def test_captions_that_do_not_fit_are_named(references: Any, captions: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        caption_scores(references, captions)


def test_evaluate_is_the_scorers_together() -> None:
    class Coco:
        def __init__(self, captions: dict[int, list[str]]) -> None:
            self.imgToAnns = {i: [{"image_id": i, "caption": c} for c in all] for i, all in captions.items()}

        def getImgIds(self) -> list[int]:  # noqa: N802
            return list(self.imgToAnns)

    gts, res = ({int(i[4:]): c for i, c in side.items()} for side in realistic(30, 3))
    cap = COCOEvalCap(Coco(gts), Coco(res))
    cap.params["image_id"] = list(gts)[:20]
    cap.evaluate()
    gts, res = {i: gts[i] for i in list(gts)[:20]}, {i: res[i] for i in list(gts)[:20]}
    bleu, each = Bleu(4).compute_score(gts, res)
    assert [cap.eval[f"Bleu_{n}"] for n in (1, 2, 3, 4)] == pytest.approx(bleu, abs=TOLERANCE)
    assert cap.eval["ROUGE_L"] == pytest.approx(float(Rouge().compute_score(gts, res)[0]), abs=TOLERANCE)
    assert cap.eval["CIDEr"] == pytest.approx(float(Cider().compute_score(gts, res)[0]), abs=TOLERANCE)
    assert [e["image_id"] for e in cap.evalImgs] == list(gts)
    assert [e["Bleu_4"] for e in cap.evalImgs] == each[3]
    assert set(cap.imgToEval[0]) == {"image_id", "Bleu_1", "Bleu_2", "Bleu_3", "Bleu_4", "ROUGE_L", "CIDEr"}


def test_diversity_by_hand() -> None:
    d = diversity(["a dog dog runs", "a dog sits", "A dog sits."])
    # Words a, dog, runs, sits of 10; pairs a-dog, dog-dog, dog-runs, dog-sits of 7; triples 3 of 4.
    assert d.distinct == (4 / 10, 4 / 7, 3 / 4)
    assert (d.captions, d.unique, d.repeated) == (3, 2 / 3, 1 / 3)
    captions = ["a b c d e", "f g h i j", "a b c x y", "a b c d e f"]
    others = {i: captions[:i] + captions[i + 1 :] for i in range(4)}
    each = Bleu(4).compute_score(others, {i: [c] for i, c in enumerate(captions)})[1][3]
    assert diversity(captions).self_bleu4 == pytest.approx(np.mean(each), abs=1e-12)
    assert diversity([]).captions == 0
    with pytest.raises(ValueError, match="captions is of type str, not a list"):
        diversity("a dog")
    with pytest.raises(ValueError, match=r"captions\[1\] is of type int"):
        diversity(["a", 1])  # type: ignore[list-item]


def test_two_threads_score_at_once() -> None:
    sets = [realistic(400, 11), realistic(300, 12)]
    alone = [(Bleu().compute_score(*s), Cider().compute_score(*s)[0], caption_scores(*s).rouge_l) for s in sets]

    def work(which: int) -> bool:
        s = sets[which]
        again = [(Bleu().compute_score(*s), Cider().compute_score(*s)[0], caption_scores(*s).rouge_l) for _ in range(10)]
        return all(a == alone[which] for a in again)

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(work, [0, 1])) == [True, True]


# CLIP, on a tiny random model: the numbers mean nothing, but transformers gave the same.

CLIP = FIXTURES / "clip"
IMAGES = [CLIP / f"image{i}.png" for i in range(4)]


def stored(path: Path) -> dict[str, npt.NDArray[np.float32]]:
    """The f32 tensors of a safetensors file."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    head = json.loads(data[8 : 8 + size])
    head.pop("__metadata__", None)
    body = data[8 + size :]
    return {name: np.frombuffer(body[slice(*t["data_offsets"])], np.float32).reshape(t["shape"]) for name, t in head.items()}


@pytest.mark.parametrize("folder", ["quick", "gelu"])
def test_cosines_are_those_of_transformers(folder: str) -> None:
    texts = json.loads((CLIP / folder / "golden.json").read_text())["texts"]
    golden = stored(CLIP / folder / "golden.safetensors")
    wanted = golden["image_features"] @ golden["text_features"].T
    pairs = [(i, t) for i in range(4) for t in range(len(texts))]
    scores = clip_score(CLIP / folder, [IMAGES[i] for i, _ in pairs], [texts[t] for _, t in pairs], device="cpu")
    want = np.array([wanted[p] for p in pairs])
    # f32 rounding
    np.testing.assert_allclose(scores.cosines, want, rtol=0, atol=1e-5)
    assert np.ptp(want) > 0.2, "cosines that hardly differ would hide mistakes"
    assert scores.cosine == pytest.approx(want.mean(), abs=1e-5)
    assert scores.hessel == pytest.approx(2.5 * want.clip(0).mean(), abs=1e-5)
    assert scores.torchmetrics == pytest.approx(100 * max(want.mean(), 0), abs=1e-3)
    assert scores.standard_error == pytest.approx(want.std(ddof=1) / len(want) ** 0.5, abs=1e-5)


def test_images_in_any_form_score_the_same() -> None:
    pil = pytest.importorskip("PIL.Image")
    captions = ["a wave", "a dog", "two dogs", "it"]

    def cosines(images: Any) -> list[float]:
        return [float(c) for c in clip_score(CLIP / "quick", images, captions, device="cpu").cosines]

    want = cosines(IMAGES)
    opened = [pil.open(p) for p in IMAGES]
    arrays = [np.asarray(p.convert("RGB")) for p in opened]
    assert cosines([str(p) for p in IMAGES]) == want
    assert cosines(opened) == want
    assert cosines(arrays) == want
    assert cosines([a / 255 for a in arrays]) == want
    assert cosines([a[:, ::-1] for a in arrays]) != want
    grey = [np.asarray(p.convert("L")) for p in opened]
    assert cosines(grey) == cosines([np.stack([g] * 3, axis=2) for g in grey]) == cosines([g[:, :, None] for g in grey])


@pytest.mark.parametrize(
    ("images", "captions", "error", "says"),
    [
        ([np.zeros((4, 4, 3), np.uint8)], ["a", "b"], ValueError, "1 images and 2 captions: give one caption for each image"),
        ([CLIP / "none.png"], ["a"], FileNotFoundError, "none.png"),
        ([CLIP / "quick" / "config.json"], ["a"], ValueError, "config.json"),
        ([np.zeros(4)], ["a"], ValueError, "image 0: an array of 4;"),
        ([np.zeros((4, 4, 2))], ["a"], ValueError, "image 0: an array of 4×4×2;"),
        ([np.zeros((0, 4, 3), np.uint8)], ["a"], ValueError, "0 pixels|4x0"),
        ([np.full((4, 4), 1.5)], ["a"], ValueError, "image 0: floats from 1.5"),
        ([np.full((4, 4), np.nan)], ["a"], ValueError, "image 0: floats from nan"),
        ([np.zeros((4, 4), np.int64)], ["a"], ValueError, "image 0: values of int64"),
        ([IMAGES[0]], "a", ValueError, "captions is of type str, not a list"),
        ([IMAGES[0]], [None], ValueError, r"captions\[0\] is of type NoneType"),
    ],
)
def test_images_that_cannot_be_scored_are_named(images: Any, captions: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        clip_score(CLIP / "quick", images, captions, device="cpu")


def test_a_folder_without_a_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="config.json"):
        clip_score(tmp_path, IMAGES, ["a"] * 4, device="cpu")


def test_examples() -> None:
    failed, attempted = doctest.testmod(tweedie.metrics, optionflags=doctest.ELLIPSIS)
    assert failed == 0 and attempted > 15
