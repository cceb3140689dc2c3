"""Token ids and decoded texts by Hugging Face's tokenizers: tokens.json.

`tokenizers` is a folder with `bert-uncased.json` and `gpt2.json` (the `tokenizer.json` of google-bert/bert-base-uncased and
openai-community/gpt2); `texts` is a tokens.json, of which only the texts are read.
"""
import json
import pathlib


def make(out, tokenizers, texts):
    from tokenizers import Tokenizer

    samples = json.loads(pathlib.Path(texts).read_text())
    for name, cases in samples.items():
        t = Tokenizer.from_file(f"{tokenizers}/{name}.json")
        t.no_padding(), t.no_truncation()
        for case in cases:
            case["ids"] = t.encode(case["text"], add_special_tokens=False).ids
            case["decoded"] = t.decode(case["ids"])
    (out / "tokens.json").write_text(json.dumps(samples, ensure_ascii=False, indent=0))
