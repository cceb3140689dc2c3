"""TDD and its masked twin (MDD) in plain PyTorch: the yardstick.

Four uses:
  executable spec   the model, the process, the loss and the samplers, in the fewest lines
  golden numbers    golden.py writes weights, inputs, outputs, losses and gradients of small models
  weights           load_run.py puts the weights of a tweedie run into these modules
  the speed peer    `bench` times training and sampling, eager or compiled, on cpu or cuda

    python reference/torch_tdd.py bench --device cuda --preset vit-b16 --batch 256 --compile
"""
import argparse
import math
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


# ---------------------------------------------------------------- process
def alpha_bar(schedule: str, T: int) -> torch.Tensor:
    """ᾱ_0..ᾱ_T in float64; ᾱ_0 = 1 (clean)."""
    if schedule == "linear":                       # DDPM betas, rescaled to T
        betas = torch.linspace(1e-4, 0.02, T, dtype=torch.float64) * (1000 / T)
        betas = betas.clamp(max=0.999)
    elif schedule in ("cosine", "sigmoid"):
        sigmoid = lambda x: 1 / (1 + math.exp(-x))
        f = {"cosine": lambda u: math.cos((u + 0.008) / 1.008 * math.pi / 2) ** 2,
             "sigmoid": lambda u: (sigmoid(3 - 6 * u) - sigmoid(-3)) / (sigmoid(3) - sigmoid(-3))}[schedule]
        betas = torch.tensor([min(1 - f((i + 1) / T) / f(i / T), 0.999) for i in range(T)], dtype=torch.float64)
    else:
        raise ValueError(schedule)
    return torch.cat([torch.ones(1, dtype=torch.float64), torch.cumprod(1 - betas, 0)])


def corrupt(y0: torch.Tensor, a: torch.Tensor, eps: torch.Tensor) -> torch.Tensor:
    """q(y_t | y_0); `a` = ᾱ_t broadcasts over the trailing axes of y0."""
    a = a.reshape(a.shape + (1,) * (y0.dim() - a.dim()))
    return a.sqrt() * y0 + (1 - a).sqrt() * eps


def spaced_steps(T: int, S: int) -> list[int]:
    """S timesteps from T down, as original indices, then 0."""
    return [round(T * (S - i) / S) for i in range(S)] + [0]


# ---------------------------------------------------------------- network (encoder names follow timm)
class Attention(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(d, 3 * d)
        self.proj = nn.Linear(d, d)

    def forward(self, x, mask=None, turn=None):    # mask: True where a query may see a key; turn: rotary positions
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        if turn is not None:
            q, k = turn(q), turn(k)
        return self.proj(F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).reshape(b, n, d))


class Mlp(nn.Module):
    def __init__(self, d, gelu="none", ratio=4):
        super().__init__()
        self.gelu = gelu
        self.fc1 = nn.Linear(d, ratio * d)
        self.fc2 = nn.Linear(ratio * d, d)

    def forward(self, x):
        return self.fc2(F.gelu(self.fc1(x), approximate=self.gelu))


class Block(nn.Module):
    def __init__(self, d, heads, gelu="none"):
        super().__init__()
        self.norm1, self.attn = nn.LayerNorm(d, eps=1e-6), Attention(d, heads)
        self.norm2, self.mlp = nn.LayerNorm(d, eps=1e-6), Mlp(d, gelu)

    def forward(self, x, mask=None, turn=None):
        x = x + self.attn(self.norm1(x), mask, turn)
        return x + self.mlp(self.norm2(x))


def modulated(x, shift, scale):
    """A norm whose gain and bias come from outside (adaLN)."""
    return F.layer_norm(x, x.shape[-1:], eps=1e-6) * (1 + scale) + shift


class DitBlock(nn.Module):
    """DiT's block (adaLN-zero): time and mean condition give shift, scale and gate of both branches."""
    def __init__(self, d, heads, gelu="none"):
        super().__init__()
        self.modulation, self.attn, self.mlp = nn.Linear(d, 6 * d), Attention(d, heads), Mlp(d, gelu)

    def forward(self, x, steer, turn=None):
        shift1, scale1, gate1, shift2, scale2, gate2 = self.modulation(steer)[:, None].chunk(6, -1)
        x = x + gate1 * self.attn(modulated(x, shift1, scale1), None, turn)
        return x + gate2 * self.mlp(modulated(x, shift2, scale2))


class MlpBlock(nn.Module):
    """The same over single tokens, without attention."""
    def __init__(self, d, gelu="none"):
        super().__init__()
        self.modulation, self.mlp = nn.Linear(d, 3 * d), Mlp(d, gelu)

    def forward(self, x, steer):
        shift, scale, gate = self.modulation(steer)[:, None].chunk(3, -1)
        return x + gate * self.mlp(modulated(x, shift, scale))


class PatchEmbed(nn.Module):
    def __init__(self, chans, patch, d):
        super().__init__()
        self.proj = nn.Conv2d(chans, d, patch, patch)

    def forward(self, x):
        return self.proj(x).flatten(2).transpose(1, 2)


class ViT(nn.Module):
    def __init__(self, image=224, patch=16, chans=3, d=768, depth=12, heads=12, gelu="none"):
        super().__init__()
        self.patch_embed = PatchEmbed(chans, patch, d)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, d))
        self.pos_embed = nn.Parameter(torch.randn(1, (image // patch) ** 2 + 1, d) * 0.02)
        self.blocks = nn.ModuleList(Block(d, heads, gelu) for _ in range(depth))
        self.norm = nn.LayerNorm(d, eps=1e-6)

    def forward(self, x):
        x = self.patch_embed(x)
        x = torch.cat([self.cls_token.expand(x.shape[0], -1, -1), x], 1) + self.pos_embed
        for b in self.blocks:
            x = b(x)
        return self.norm(x)                        # [B, 1 + L, d]


def pooled(z, pool):
    """pool='cls' or 'mean': one condition token (classification); 'all': every encoder token (captions)."""
    return {"cls": z[:, :1], "mean": z[:, 1:].mean(1, keepdim=True), "all": z}[pool]


def time_features(t, dtype, dim=256):
    f = torch.exp(-math.log(10000) * torch.arange(dim // 2, device=t.device, dtype=dtype) / (dim // 2))
    a = t.to(dtype)[:, None] * f
    return torch.cat([a.cos(), a.sin()], -1)


def rotary(tokens, head, skip, dtype):
    """A function that turns the pairs (i, i + head/2) of all but the first `skip` rows by place·10000^(−2i/head)."""
    half = head // 2
    angle = torch.arange(tokens, dtype=dtype)[:, None] * 10000.0 ** (-2 * torch.arange(half, dtype=dtype) / head)
    angle = torch.cat([torch.zeros(skip, half, dtype=dtype), angle])
    cos, sin = angle.cos(), angle.sin()

    def turn(x):                                   # [B, heads, L, head]; the last column of an odd head stays
        a, b, rest = x[..., :half], x[..., half:2 * half], x[..., 2 * half:]
        c, s = cos.to(x), sin.to(x)
        return torch.cat([a * c - b * s, a * s + b * c, rest], -1)
    return turn


class Denoiser(nn.Module):
    """f_θ(Y_t, t, c): condition tokens and noisy one-hot tokens through plain blocks; logits for the latter.

    The options are those of [model.denoiser] in a run's config.toml. `masked` reads token ids (MDD of sequences), the last of
    which, V, stands for a masked token. `cond_tokens` = 0: there is no condition.
    """
    def __init__(self, vocab, tokens, cond_dim, cond_tokens, d, depth, heads, *, kind="transformer", attention="full",
                 positions="waves", direct=False, masked=False, gelu="none"):
        super().__init__()
        self.tokens, self.cond_tokens, self.heads, self.kind, self.attention, self.positions = tokens, cond_tokens, heads, kind, attention, positions
        if masked:
            self.token_embed = nn.Embedding(vocab + 1, d)
        else:
            self.token_in = nn.Linear(vocab, d)    # the in-situ layer: it reads Gaussian-corrupted one-hots
        if cond_tokens:
            self.cond_in = nn.Linear(cond_dim, d)
            self.null_cond = nn.Parameter(torch.randn(1, cond_tokens, d) * 0.02)
        places = cond_tokens + (tokens if positions == "waves" else 0)
        if places:
            self.pos_embed = nn.Parameter(torch.randn(1, places, d) * 0.02)
        self.time_mlp = nn.Sequential(nn.Linear(256, d), nn.SiLU(), nn.Linear(d, d))
        block = {"transformer": lambda: Block(d, heads, gelu), "dit": lambda: DitBlock(d, heads, gelu), "mlp": lambda: MlpBlock(d, gelu)}[kind]
        self.blocks = nn.ModuleList(block() for _ in range(depth))
        self.norm = nn.LayerNorm(d, eps=1e-6)
        self.direct = direct                       # the head reads what the encoder says beside the features
        self.head = nn.Linear(d + (cond_dim if direct else 0), vocab)

    def forward(self, yt, t, cond=None, drop=None):  # yt [B,N,V] or ids [B,N], t [B], cond [B,C,cond_dim], drop [B] bool
        C, y = self.cond_tokens, self.token_embed(yt) if hasattr(self, "token_embed") else self.token_in(yt)
        time = self.time_mlp(time_features(t, self.head.weight.dtype))
        x = y
        if C:
            c = self.cond_in(cond)
            if drop is not None:
                c = torch.where(drop[:, None, None], self.null_cond.to(c.dtype), c)
            x = torch.cat([c, y], 1)
        if self.positions == "waves":
            x = x + self.pos_embed
        elif C:
            x = torch.cat([x[:, :C] + self.pos_embed, x[:, C:]], 1)
        turn = rotary(self.tokens, x.shape[-1] // self.heads, C, torch.float64) if self.positions == "rotary" else None
        if self.kind == "transformer":
            mask = None
            if self.attention == "prefix" and C:   # condition tokens see each other alone and carry no time
                x = torch.cat([x[:, :C], x[:, C:] + time[:, None]], 1)
                seen = torch.arange(x.shape[1], device=x.device) < C
                mask = seen[None, :] | ~seen[:, None]
            else:
                x = x + time[:, None]
            for b in self.blocks:
                x = b(x, mask, turn)
        else:                                      # time and mean condition steer the norms
            steer = time + c.mean(1) if C else time
            if self.kind == "mlp":
                x = y                              # a single token, without a position
            for b in self.blocks:
                x = b(x, steer, turn) if self.kind == "dit" else b(x, steer)
        h = self.norm(x[:, -self.tokens:])
        if self.direct:
            h = torch.cat([h, cond if drop is None else torch.where(drop[:, None, None], torch.zeros_like(cond), cond)], -1)
        return self.head(h)


class TDD(nn.Module):
    """Encoder (None: unconditional) and denoiser; also MDD of sequences, whose denoiser reads token ids."""
    def __init__(self, encoder, denoiser, pool="cls"):
        super().__init__()
        self.encoder, self.denoiser, self.pool = encoder, denoiser, pool

    def condition(self, images):
        return None if self.encoder is None else pooled(self.encoder(images), self.pool)

    def loss(self, images, tokens, t, eps, abar, drop=None, noisy_copies=1, weighted=True, smoothing=0.0):
        """tokens [B*k, N] int, t [B*k], eps [B*k, N, V]; features computed once, used k times."""
        cond = self.condition(images).repeat_interleave(noisy_copies, 0)
        a = abar.to(eps)[t]
        logits = self.denoiser(corrupt(F.one_hot(tokens, eps.shape[-1]).to(eps), a, eps), t, cond, drop)
        logits = logits if logits.dtype == torch.float64 else logits.float()
        ce = F.cross_entropy(logits.transpose(1, 2), tokens, reduction="none", label_smoothing=smoothing)
        return (ce * a[:, None]).mean() if weighted else ce.mean()

    @torch.no_grad()
    def sample(self, images, N, V, abar, S, cfg=1.0, to_one="argmax", noise=torch.randn):
        cond = self.condition(images).clone()      # clone: a CUDA graph reuses its outputs
        B, T = len(cond), len(abar) - 1
        steps = spaced_steps(T, S)
        y = noise(B, N, V, device=cond.device)
        for t, s in zip(steps, steps[1:]):
            tt = torch.full((B,), t, device=cond.device)
            if cfg == 1.0:
                g = self.denoiser(y, tt, cond).float()
            else:
                drop = torch.arange(2 * B, device=cond.device) >= B
                c, u = self.denoiser(torch.cat([y, y]), torch.cat([tt, tt]), torch.cat([cond, cond]), drop).float().chunk(2)
                g = u + cfg * (c - u)
            if to_one == "argmax":
                y0 = F.one_hot(g.argmax(-1), V).float()
            elif to_one == "multinomial":
                y0 = F.one_hot(torch.multinomial(g.softmax(-1).flatten(0, 1), 1).view(B, N), V).float()
            else:                                  # "softmax"
                y0 = g.softmax(-1)
            if s > 0:
                y = corrupt(y0, abar[s].to(y).expand(B), noise(B, N, V, device=cond.device))
        return g.argmax(-1)


class MDD(nn.Module):
    """The masked twin of a classifier: its one token is always masked, so a linear head is all that is left."""
    def __init__(self, encoder, vocab, d, pool="cls"):
        super().__init__()
        self.encoder, self.head, self.pool = encoder, nn.Linear(d, vocab), pool

    def forward(self, images):
        return self.head(pooled(self.encoder(images), self.pool))


PRESETS = {  # image, patch, chans, d, depth, heads | vocab, tokens, dd, ddepth, dheads | pool
    "vit-b16": (224, 16, 3, 768, 12, 12, 1000, 1, 768, 3, 12, "cls"),
    "cifar":   (32, 4, 3, 384, 7, 6, 10, 1, 384, 3, 6, "cls"),
    "tiny":    (32, 4, 3, 192, 6, 3, 10, 1, 192, 2, 3, "cls"),
    "digits":  (8, 2, 1, 64, 4, 4, 10, 1, 64, 2, 4, "mean"),
    "caption": (224, 16, 3, 768, 12, 12, 30522, 32, 768, 6, 12, "all"),
    "caption-tiny": (64, 8, 3, 192, 6, 3, 8000, 24, 192, 4, 3, "all"),
}


def build(im, p, ch, d, n, h, V, N, dd, dn, dh, pool):
    """A model of the shape that a row of PRESETS gives."""
    C = (im // p) ** 2 + 1 if pool == "all" else 1
    return TDD(ViT(im, p, ch, d, n, h), Denoiser(V, N, d, C, dd, dn, dh), pool)


# ---------------------------------------------------------------- the speed peer
def bench(a):
    dev = a.device
    torch.manual_seed(0)
    if dev == "cuda":
        torch.set_float32_matmul_precision("high")
    else:
        torch.set_num_threads(a.threads)
    im, _, ch, _, _, _, V, N = PRESETS[a.preset][:8]
    m = build(*PRESETS[a.preset]).to(dev)
    ab = alpha_bar("cosine", 1000).to(dev)
    B, k = a.batch, a.noisy_copies
    print(f"params {sum(p.numel() for p in m.parameters()) / 1e6:.1f}M (denoiser {sum(p.numel() for p in m.denoiser.parameters()) / 1e6:.1f}M)")
    ema = [p.detach().clone() for p in m.parameters()]
    opt = torch.optim.AdamW(m.parameters(), lr=1e-4, weight_decay=0.3, betas=(0.9, 0.95), fused=dev == "cuda")
    img = torch.randn(B, ch, im, im, device=dev)
    tok = torch.randint(0, V, (B * k, N), device=dev)
    sync = torch.cuda.synchronize if dev == "cuda" else (lambda: None)
    amp = lambda: torch.autocast(dev, dtype=torch.bfloat16, enabled=dev == "cuda")
    loss = torch.compile(m.loss) if a.compile else m.loss
    ts = []
    for _ in range(a.iters):
        sync()
        t0 = time.perf_counter()
        t = torch.randint(1, 1001, (B * k,), device=dev)
        eps = torch.randn(B * k, N, V, device=dev)
        drop = torch.rand(B * k, device=dev) < 0.1
        with amp():
            l = loss(img, tok, t, eps, ab, drop, k)
        l.backward()
        nn.utils.clip_grad_norm_(m.parameters(), 3.0)
        opt.step()
        opt.zero_grad(set_to_none=True)
        torch._foreach_lerp_(ema, [p.detach() for p in m.parameters()], 1e-4)
        sync()
        ts.append(time.perf_counter() - t0)
    tail = sorted(ts[len(ts) // 2:])
    med = tail[len(tail) // 2]
    mem = torch.cuda.max_memory_allocated() / 2**30 if dev == "cuda" else 0
    print(f"RESULT train {dev} {a.preset} batch {B} noisy copies {k} compile {a.compile}: {med * 1e3:.2f} ms/step {B / med:.1f} examples/s peak {mem:.1f} GiB", flush=True)
    del opt, ema
    m.eval()
    if a.compile:
        m.encoder = torch.compile(m.encoder, mode="reduce-overhead")
        m.denoiser = torch.compile(m.denoiser, mode="reduce-overhead")
    for b in sorted({1, 32, B}):
        ts = []
        for _ in range(max(4, a.iters // 2)):
            sync()
            t0 = time.perf_counter()
            with torch.no_grad(), amp():
                m.sample(img[:b] if b <= B else img, N, V, ab, a.steps, cfg=2.0)
            sync()
            ts.append(time.perf_counter() - t0)
        print(f"RESULT sample {dev} {a.preset} batch {b} steps {a.steps} cfg 2 compile {a.compile}: best {min(ts) * 1e3:.2f} ms {b / min(ts):.1f} examples/s", flush=True)


def main():
    ap = argparse.ArgumentParser(formatter_class=argparse.RawDescriptionHelpFormatter, description=__doc__)
    b = ap.add_subparsers(dest="cmd", required=True).add_parser("bench")
    b.add_argument("--device", default="cpu")
    b.add_argument("--preset", default="tiny", choices=PRESETS)
    b.add_argument("--batch", type=int, default=64)
    b.add_argument("--noisy-copies", "--kfold", type=int, default=4)
    b.add_argument("--steps", type=int, default=20)
    b.add_argument("--iters", type=int, default=20)
    b.add_argument("--threads", type=int, default=2)
    b.add_argument("--compile", action="store_true")
    bench(ap.parse_args())


if __name__ == "__main__":
    main()
