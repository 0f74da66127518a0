# task: causal_attention
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def _attn_fwd_inner(acc, l_i, m_i, q, K_ptr, V_ptr, stride_kn, stride_vn, start_m, qk_scale,
                    BLOCK_M: tl.constexpr, HEAD_DIM: tl.constexpr, HEAD_PAD: tl.constexpr, BLOCK_N: tl.constexpr,
                    STAGE: tl.constexpr, offs_m, offs_n, N_CTX):
    if STAGE == 1:
        lo, hi = 0, start_m * BLOCK_M
    elif STAGE == 2:
        lo, hi = start_m * BLOCK_M, (start_m + 1) * BLOCK_M
        lo = tl.multiple_of(lo, BLOCK_M)
    else:
        lo, hi = 0, N_CTX
    hi = tl.minimum(hi, N_CTX)
    offs_d = tl.arange(0, HEAD_PAD)
    for start_n in tl.range(lo, hi, BLOCK_N, warp_specialize=False):
        start_n = tl.multiple_of(start_n, BLOCK_N)
        cols = start_n + offs_n
        inside = (cols[:, None] < N_CTX) & (offs_d[None, :] < HEAD_DIM)
        k = tl.load(K_ptr + cols[:, None] * stride_kn + offs_d[None, :], mask=inside, other=0.0).T
        qk = tl.dot(q, k)
        if STAGE == 2:
            mask = offs_m[:, None] >= cols[None, :]
            qk = qk * qk_scale + tl.where(mask, 0, -1.0e6)
            m_ij = tl.maximum(m_i, tl.max(qk, 1))
            qk -= m_ij[:, None]
        else:
            m_ij = tl.maximum(m_i, tl.max(qk, 1) * qk_scale)
            qk = qk * qk_scale - m_ij[:, None]
        p = tl.math.exp2(qk)
        alpha = tl.math.exp2(m_i - m_ij)
        l_ij = tl.sum(p, 1)
        acc = acc * alpha[:, None]
        v = tl.load(V_ptr + cols[:, None] * stride_vn + offs_d[None, :], mask=inside, other=0.0)
        p = p.to(v.dtype)
        acc = tl.dot(p, v, acc)
        l_i = l_i * alpha + l_ij
        m_i = m_ij
    return acc, l_i, m_i


NUM_STAGES_OPTIONS = [2, 3, 4]
configs = [
    triton.Config({"BLOCK_M": BM, "BLOCK_N": BN}, num_stages=s, num_warps=w)
    for BM in [64, 128]
    for BN in [32, 64]
    for s in NUM_STAGES_OPTIONS
    for w in [4, 8]
]


def keep(conf):
    BLOCK_M = conf.kwargs["BLOCK_M"]
    BLOCK_N = conf.kwargs["BLOCK_N"]
    return not (BLOCK_M * BLOCK_N < 128 * 128 and conf.num_warps == 8)


def prune_invalid_configs(configs, named_args, **kwargs):
    N_CTX = kwargs["N_CTX"] if "N_CTX" in kwargs else named_args["N_CTX"]
    kept = [conf for conf in configs if conf.kwargs.get("BLOCK_M", 0) <= max(64, N_CTX)]
    return kept


@triton.autotune(configs=list(filter(keep, configs)), key=["N_CTX", "HEAD_DIM"], prune_configs_by={"early_config_prune": prune_invalid_configs})
@triton.jit
def _attn_fwd(Q, K, V, Out, sm_scale, stride_qb, stride_qh, stride_qm, Z, H, N_CTX,
              HEAD_DIM: tl.constexpr, HEAD_PAD: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    tl.static_assert(BLOCK_N <= BLOCK_M)
    start_m = tl.program_id(0)
    off_hz = tl.program_id(1)
    off_z = off_hz // H
    off_h = off_hz % H
    base = off_z.to(tl.int64) * stride_qb + off_h.to(tl.int64) * stride_qh
    offs_m = start_m * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = tl.arange(0, BLOCK_N)
    offs_d = tl.arange(0, HEAD_PAD)
    m_i = tl.zeros([BLOCK_M], dtype=tl.float32) - float("inf")
    l_i = tl.zeros([BLOCK_M], dtype=tl.float32)
    acc = tl.zeros([BLOCK_M, HEAD_PAD], dtype=tl.float32)
    qk_scale = sm_scale
    qk_scale *= 1.44269504  # 1/log(2)
    row = (offs_m[:, None] < N_CTX) & (offs_d[None, :] < HEAD_DIM)
    q = tl.load(Q + base + offs_m[:, None] * stride_qm + offs_d[None, :], mask=row, other=0.0)
    acc, l_i, m_i = _attn_fwd_inner(acc, l_i, m_i, q, K + base, V + base, stride_qm, stride_qm, start_m, qk_scale,
                                    BLOCK_M, HEAD_DIM, HEAD_PAD, BLOCK_N, 1, offs_m, offs_n, N_CTX)
    acc, l_i, m_i = _attn_fwd_inner(acc, l_i, m_i, q, K + base, V + base, stride_qm, stride_qm, start_m, qk_scale,
                                    BLOCK_M, HEAD_DIM, HEAD_PAD, BLOCK_N, 2, offs_m, offs_n, N_CTX)
    m_i += tl.math.log2(l_i)
    acc = acc / l_i[:, None]
    tl.store(Out + base + offs_m[:, None] * stride_qm + offs_d[None, :], acc.to(Out.type.element_ty), mask=row)


class ModelNew(nn.Module):
    def forward(self, q, k, v):
        q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
        HEAD_DIM_Q, HEAD_DIM_K = q.shape[-1], k.shape[-1]
        assert HEAD_DIM_Q == HEAD_DIM_K
        o = torch.empty_like(q)
        grid = lambda args: (triton.cdiv(q.shape[2], args["BLOCK_M"]), q.shape[0] * q.shape[1], 1)
        _attn_fwd[grid](q, k, v, o, HEAD_DIM_K ** -0.5, q.stride(0), q.stride(1), q.stride(2), q.shape[0], q.shape[1],
                        N_CTX=q.shape[2], HEAD_DIM=HEAD_DIM_K, HEAD_PAD=max(16, triton.next_power_of_2(HEAD_DIM_K)))
        return o
