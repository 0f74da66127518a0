"""The GPU kernels of recursion, run by Triton's interpreter on the CPU, against plain PyTorch in fp64."""

from interpreter import passes_interpreted

SCRIPT = """
import torch, torch.nn.functional as F
from windtunnel.model.refine import _Refine, refine
from windtunnel.model.products import swiglu

torch.manual_seed(0)
def leaves(n, dtype=torch.float32):
    return [torch.randn(2, 5, 24, dtype=dtype).requires_grad_() for _ in range(n)]
def close(a, b, what):
    torch.testing.assert_close(a.double(), b.double(), atol=2e-5, rtol=2e-5, msg=lambda m: f"{what}: {m}")

for case in ("sab", "sabx", "saby", "sa", "s", "sab drop"):
    given = {n: t for n, t in zip("sabxy", leaves(5)) if n in case.split()[0]}
    plain = {n: t.detach().double().requires_grad_() for n, t in given.items()}
    keep = "drop" not in case
    call = lambda t: (t["s"], t.get("a"), t.get("b"), t.get("x"), t.get("y"), keep)
    mine = _Refine.apply(*call(given))
    s, a, b, x, y, _ = call(plain)
    reference = refine(s, a, b, x=x, y=y, keep=keep)
    for name, m, r in zip(("s", "y", "u", "again", "x"), mine, reference):
        assert (m is None) == (r is None), (case, name)
    pairs = [(m, r) for m, r in zip(mine, reference) if m is not None]
    for m, r in pairs:
        close(m, r, case)
    # Every output used, and each left out in turn.
    for without in [None, *range(len(pairs))]:
        up = [torch.randn_like(m) for m, _ in pairs]
        chosen = [i for i in range(len(pairs)) if i != without]
        grads = torch.autograd.grad([pairs[i][0] for i in chosen], list(given.values()), [up[i] for i in chosen],
                                    retain_graph=True, allow_unused=True)
        wanted = torch.autograd.grad([pairs[i][1] for i in chosen], list(plain.values()), [up[i].double() for i in chosen],
                                     retain_graph=True, allow_unused=True)
        for name, g, w in zip(given, grads, wanted):
            zero = torch.zeros(2, 5, 24)
            close(zero if g is None else g, zero if w is None else w, f"{case} without {without}: d{name}")

x = torch.randn(2, 5, 24, requires_grad=True)
up, gate, down = (torch.nn.Parameter(torch.randn(*size) * 0.2) for size in ((40, 24), (40, 24), (24, 40)))
out = swiglu(x, up, gate, down)
grad = torch.randn_like(out)
out.backward(grad)
mine = [out, x.grad, up.grad, gate.grad, down.grad]
wide = [t.detach().double().requires_grad_() for t in (x, up, gate, down)]
plain = F.linear(F.silu(F.linear(wide[0], wide[2])) * F.linear(wide[0], wide[1]), wide[3])
plain.backward(grad.double())
for m, r in zip(mine, [plain, *(t.grad for t in wide)]):
    close(m, r, "swiglu")
print("all equal")
"""


def test_kernels_compute_what_plain_pytorch_computes() -> None:
    passes_interpreted(SCRIPT)
