"""The kernels of a swiglu MLP in fp8, run by Triton's interpreter on the CPU, against plain PyTorch in fp64.

The interpreter rounds to fp8 wrongly where a carry reaches the exponent: here they write fp32, and tests/gpu asks for the rest.
"""

from interpreter import passes_interpreted

SCRIPT = """
import torch, torch.nn.functional as F
from windtunnel.model import triton_fp8_swiglu as kernels

empty = torch.empty
class Torch:
    def __getattr__(self, name):
        return getattr(torch, name)
    def empty(self, *size, dtype, device):
        return empty(*size, device=device)
kernels.torch = Torch()

def close(a, b, what):
    size = b.abs().max()
    torch.testing.assert_close(a.double() / size, b / size, atol=1e-6, rtol=1e-4, msg=lambda m: f"{what}: {m}")

torch.manual_seed(0)
for N, H, scale in ((40, 48, 1.0), (131, 72, 30.0), (16, 1040, 1e-3)):
    both, grad = (torch.randn(N, n) * scale for n in (2 * H, H))
    wide = both.double().requires_grad_()
    value, gate = wide.chunk(2, dim=1)
    product = F.silu(gate) * value
    product.backward(grad.double())
    product, slopes = product.detach(), wide.grad.view(N, 2, H) / grad.double()[:, None]
    largest = kernels.swiglu_largest(both)
    close(largest[0], product.abs().max(), "largest")
    assert slopes.abs().max() * (1 - 1e-6) <= largest[1] <= 1.1001 * both.abs().max()
    rows, inverse = kernels.quantise_swiglu(both, largest)
    close(rows * inverse, product, "product")
    assert rows.abs().max() <= 448
    amax = grad.abs().max()[None]
    rows, columns, inverse, again = kernels.quantise_swiglu_backward(grad, amax, both, largest)
    close(rows * inverse, wide.grad, "gradient")
    assert 1e3 < rows.abs().max() <= 57344
    close(columns.t(), rows.double(), "transposed")
    close(again.t() * (largest[0] / 448), product, "product again")
both[0, 0] = float("nan")
assert kernels.quantise_swiglu(both, kernels.swiglu_largest(both))[0].isnan().any()
print("all equal")
"""


def test_kernels_compute_what_plain_pytorch_computes() -> None:
    passes_interpreted(SCRIPT)
