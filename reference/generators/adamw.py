"""Ten steps of torch's AdamW with clip_grad_norm_ and an EMA on two parameters, in float64.

Lines of adamw.txt: `grad a|b v…`, then `value a|b v…`, `ema a|b v…`, `norm x`, once per step.
"""
import torch


def make(out):
    lines = []

    def show(word, x):
        lines.append(" ".join([word, *[f"{v:.9g}" for v in x.detach().flatten().tolist()]]))

    torch.manual_seed(0)
    a = torch.nn.Parameter(torch.randn(1, 7, dtype=torch.float64))   # decayed by 0.3
    b = torch.nn.Parameter(torch.randn(1, 5, dtype=torch.float64))   # not decayed
    ema = [a.detach().clone(), b.detach().clone()]
    opt = torch.optim.AdamW([{"params": [a], "weight_decay": 0.3}, {"params": [b], "weight_decay": 0.0}], betas=(0.9, 0.95))
    show("start a", a)
    show("start b", b)
    for n in range(1, 11):
        for g in opt.param_groups:
            g["lr"] = 0.01 * n
        # Norms from far below to far above the clip at 3.
        a.grad = torch.randn_like(a).float().double() * 0.3 * n
        b.grad = torch.randn_like(b).float().double() * 0.3 * n
        show("grad a", a.grad)
        show("grad b", b.grad)
        lines.append(f"norm {float(torch.nn.utils.clip_grad_norm_([a, b], 3.0))}")
        opt.step()
        d = min(0.99, (1 + n) / (10 + n))
        ema = [d * e + (1 - d) * p.detach() for e, p in zip(ema, (a, b))]
        show("value a", a)
        show("value b", b)
        show("ema a", ema[0])
        show("ema b", ema[1])
    (out / "adamw.txt").write_text("\n".join(lines) + "\n")
