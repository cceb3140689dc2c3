"""Weights, inputs, losses, logits and every gradient of two small TDD models, by torch_tdd.py (float64, stored in float32)."""
import torch
import torch.nn.functional as F
from safetensors.torch import save_file

from torch_tdd import alpha_bar, build, corrupt

# image, patch, chans, d, depth, heads | vocab, tokens, dd, ddepth, dheads | pool; then images and copies of each
MODELS = {
    "class": ((8, 2, 1, 32, 2, 2, 10, 1, 48, 2, 4, "mean"), 4, 3),
    "caption": ((16, 4, 3, 32, 2, 2, 50, 6, 48, 2, 4, "all"), 2, 1),
}


def one(shape, B, k):
    im, _, ch, _, _, _, V, N = shape[:8]
    m = build(*shape).double()
    for q in m.parameters():
        q.data += 0.02 * torch.randn_like(q)       # no zeros, so every gradient is live
    img = torch.randn(B, ch, im, im, dtype=torch.float64)
    tok = torch.randint(0, V, (B * k, N))
    t = torch.randint(1, 1001, (B * k,))
    eps = torch.randn(B * k, N, V, dtype=torch.float64)
    drop = torch.arange(B * k) % 3 == 1
    ab = alpha_bar("cosine", 1000)
    d = {"in.images": img, "in.tokens": tok, "in.t": t, "in.eps": eps, "in.drop": drop.to(torch.uint8), "alpha_bar": ab}
    for name, kw in (("weighted", dict(weighted=True)), ("plain", dict(weighted=False)), ("smoothed", dict(weighted=True, smoothing=0.1))):
        m.zero_grad()
        loss = m.loss(img, tok, t, eps, ab, drop, k, **kw)
        loss.backward()
        d[f"out.loss.{name}"] = loss.detach()
        if name != "plain":
            d.update({f"grad.{name}.{n}": q.grad.clone() for n, q in m.named_parameters()})
    with torch.no_grad():
        cond = m.condition(img).repeat_interleave(k, 0)
        d["out.cond"] = cond
        d["out.logits"] = m.denoiser(corrupt(F.one_hot(tok, V).double(), ab[t], eps), t, cond, drop)
    d.update({f"param.{n}": q.detach() for n, q in m.named_parameters()})
    return {n: v.float().contiguous() if v.is_floating_point() else v.contiguous() for n, v in d.items()}


def make(out):
    torch.manual_seed(0)                           # one stream for both, in this order
    torch.use_deterministic_algorithms(True)
    for name, settings in MODELS.items():
        d = one(*settings)
        save_file(d, out / f"{name}.safetensors")
        print(name, {n: round(float(v), 6) for n, v in d.items() if n.startswith("out.loss")})
