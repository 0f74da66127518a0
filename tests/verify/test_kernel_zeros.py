"""Products by zero, which the least possible time does not count: a diagonal matrix is no product of matrices."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from windtunnel.verify.kernel.child.products import ProductsByZero  # noqa: E402

N = 32
WHOLE = 2 * N**3
DENSE = torch.rand(N, N) + 1
LEAST = {
    "dense": (lambda a: a @ a, WHOLE),
    "diagonal": (lambda a: torch.diag(a[0]) @ a, 2 * N**2),
    "triangular": (lambda a: a.triu() @ a.triu(), 2 * sum(k * (N + 1 - k) for k in range(1, N + 1))),
    "half of the rows": (lambda a: torch.where(torch.arange(N)[:, None] < N // 2, a, 0) @ a, WHOLE // 2),
    "a batch": (lambda a: torch.bmm(a.expand(3, N, N), torch.stack([a, a.triu(), torch.zeros_like(a)])), WHOLE + N**2 * (N + 1)),
    "a layer": (lambda a: torch.nn.functional.linear(a, a.tril(), a[0]), N**2 * (N + 1)),
}


@pytest.mark.parametrize("name", LEAST)
def test_a_product_by_zero_is_no_work(name: str) -> None:
    compute, flops = LEAST[name]
    with torch.no_grad(), FlopCounterMode(display=False) as counter, ProductsByZero() as zeros:
        found = compute(DENSE)
    assert counter.get_total_flops() - zeros.flops == flops
    torch.testing.assert_close(found, compute(DENSE))


def test_what_is_no_product_of_matrices_is_left_alone() -> None:
    with torch.no_grad(), ProductsByZero() as zeros:
        sparse = DENSE.to_sparse_csr() @ DENSE
        chosen = torch.cond(torch.tensor(True), lambda a: a + 1, lambda a: a - 1, (DENSE,))
    torch.testing.assert_close(sparse, DENSE @ DENSE)
    torch.testing.assert_close(chosen, DENSE + 1)
    assert zeros.flops == 0
