"""The kernels of operators A and B: reduce, fold, apply, and what `fused.py` makes all of them from.

x, dy, dx [N, C, HxW] or, with LAST, [N, HxW, C] in memory; mean, rstd [N, G]; gamma, beta [C] or None. The printed
formula (PRINTED) is the same with a gamma of the shape of x; it has one channel a group. Sizes: Q = N * G groups of D
channels of L positions. The sums of `reduce` are [K, N * C], one row a chunk of TILES * BLOCK_L positions. Names in
capitals are constants of the compilation, but for sizes; UNIT divides what the addresses are made of.

The order of additions is fixed (docs/triton.md, "The order of additions"): no sum has two owners.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .arithmetic import (
    SIZES,
    exact_sum,
    joined,
    load_rows,
    load_stats,
    pivot_of,
    power_of,
    rows_of,
    saturated,
    silu_slope,
    stored,
    tile_of,
    two_sum,
)

# A tile of a group that has no more is added without a rounding that its few terms would not average out.
FEW_ELEMENTS = tl.constexpr(128)


@triton.jit
def coefficients(mean, rstd, gamma, beta, M, SILU: tl.constexpr):
    """The pivot p, power and ratio of rstd, s = (mean - p) * rstd, and with SILU a and b of gn = (x - p) * a + b."""
    power, ratio = power_of(rstd)
    pivot = pivot_of(mean, rstd, M == 1)
    # Where the mean is the pivot the difference is 0, also beside an infinite rstd.
    s = tl.where(mean == pivot, 0.0, (mean - pivot) * rstd)
    if SILU:
        return pivot, power, ratio, s, saturated(gamma, rstd), beta - gamma * s
    else:
        return pivot, power, ratio, s, s, s


@triton.jit
def upstream(
    dy_ptr, gamma_ptr, offsets, inside, centred, a, b,
    PRINTED: tl.constexpr, SILU: tl.constexpr,
):  # fmt: skip
    """What goes into the sums, dy of the normalization, and the gamma of each element: dy * gamma, dy and gamma of the
    printed formula; else dy three times, times the derivative of SiLU where there is one."""
    dy = tl.load(dy_ptr + offsets, mask=inside, other=0.0).to(tl.float32)
    if PRINTED:
        gamma = tl.load(gamma_ptr + offsets, mask=inside, other=0.0).to(tl.float32)
        return dy * gamma, dy, gamma
    else:
        if SILU:
            dy = tl.where(inside, dy * silu_slope(tl.fma(centred, a[:, None], b[:, None])), 0.0)
        return dy, dy, dy


@triton.jit
def add_terms(
    sum_dy, sum_t, sum_rest, sum_x, sum_x_rest, x, dy, centred, pivot, power, inside,
    RECENTER: tl.constexpr, FEW: tl.constexpr,
):  # fmt: skip
    """sum_dy, sum dy * t, sum dy * rest and with RECENTER sum t, sum rest, where t + rest is xhat / ratio. A tile of
    FEW elements keeps what its products round off."""
    t = tl.where(inside, centred * power[:, None], 0.0)
    rest = tl.where(inside, (x - (centred + pivot[:, None])) * power[:, None], 0.0)
    if RECENTER:
        sum_x += t
        sum_x_rest += rest
    if FEW:
        product = dy * t
        sum_t, sum_rest = two_sum(sum_t, sum_rest + tl.fma(dy, t, -product), product)
    else:
        sum_t = tl.fma(dy, t, sum_t)
    return sum_dy + dy, sum_t, tl.fma(dy, rest, sum_rest), sum_x, sum_x_rest


@triton.jit
def lane_sums(values, rests, FEW: tl.constexpr):
    """The sums over lanes of values + rests as two floats: exactly in a tile of FEW elements, else in a tree."""
    if FEW:
        return exact_sum(values, rests, 1, values.shape[1])
    else:
        total = tl.sum(values, 1) + tl.sum(rests, 1)
        return total, tl.zeros_like(total)


@triton.jit
def close_sums(sum_dy, sum_t, sum_rest, sum_x, sum_x_rest, ratio, s, RECENTER: tl.constexpr, FEW: tl.constexpr):
    """sum_dy and sum_dy_xhat of each channel as two floats, and sum_xhat. With RECENTER xhat is that of the pivot, to
    be recentred."""
    dy, dy_low = lane_sums(sum_dy, tl.zeros_like(sum_dy), FEW)
    t, rest = lane_sums(sum_t, sum_rest, FEW)
    product = ratio * t
    product_low = tl.fma(ratio, t, -product) + ratio * rest
    if RECENTER:
        return dy, dy_low, product, product_low, ratio * (tl.sum(sum_x, 1) + tl.sum(sum_x_rest, 1))
    else:
        product, product_low = two_sum(product, product_low, -s * dy)
        return dy, dy_low, product, product_low, dy


@triton.jit
def chunk_sums(
    x_ptr, dy_ptr, gamma_ptr, offset, valid, first, L, C,
    pivot, power, ratio, s, a, b, LAST: tl.constexpr, PRINTED: tl.constexpr,
    SILU: tl.constexpr, RECENTER: tl.constexpr, TILES: tl.constexpr, BLOCK_L: tl.constexpr,
):  # fmt: skip
    """The sums of each channel over a chunk: TILES additions on a lane, then the lanes in a tree."""
    FEW: tl.constexpr = valid.shape[0] * BLOCK_L <= FEW_ELEMENTS
    zero = tl.zeros([valid.shape[0], BLOCK_L], tl.float32)
    sum_dy, sum_t, sum_rest, sum_x, sum_x_rest = zero, zero, zero, zero, zero
    for i in range(TILES):
        offsets, inside = tile_of(offset, valid, first + i * BLOCK_L, L, C, LAST, BLOCK_L)
        x = tl.load(x_ptr + offsets, mask=inside, other=0.0).to(tl.float32)
        centred = x - pivot[:, None]
        dy, _, _ = upstream(dy_ptr, gamma_ptr, offsets, inside, centred, a, b, PRINTED, SILU)
        sum_dy, sum_t, sum_rest, sum_x, sum_x_rest = add_terms(
            sum_dy, sum_t, sum_rest, sum_x, sum_x_rest, x, dy, centred, pivot, power, inside, RECENTER, FEW
        )
    dy, dy_low, product, product_low, xhat = close_sums(
        sum_dy, sum_t, sum_rest, sum_x, sum_x_rest, ratio, s, RECENTER, FEW
    )  # fmt: skip
    return joined(dy, dy_low), joined(product, product_low), xhat


@triton.jit
def group_sums(gamma, high, low, BLOCK_G: tl.constexpr, BLOCK_D: tl.constexpr):
    """The sum of gamma * (high + low) over the channels of each group as two floats, with the same bits in any order:
    scalars where BLOCK_G is 1, else [BLOCK_G]."""
    product = gamma * high
    rest = tl.fma(gamma, high, -product) + gamma * low
    if BLOCK_G == 1:
        return exact_sum(product, rest, 0, BLOCK_D)
    else:
        shape: tl.constexpr = [BLOCK_G, BLOCK_D]
        return exact_sum(tl.reshape(product, shape), tl.reshape(rest, shape), 1, BLOCK_D)


@triton.jit
def group_means(sum_dxhat, dxhat_low, sum_dxhat_xhat, shift, M):
    """What apply takes: mean_dxhat - s * slope as two floats, and slope = mean_dxhat_xhat; `shift` is s, the mean of
    xhat. One float would cost as much as all the rest where dy has a large mean, and a group of one element would not
    get a dx of 0."""
    count = M.to(tl.float32)
    beyond = (M.to(tl.int64) - count.to(tl.int64)).to(tl.float32)  # what float32 rounds off M
    total, low = two_sum(sum_dxhat, 0.0, tl.where(dxhat_low == dxhat_low, dxhat_low, 0.0))
    mean = tl.div_rn(total, count)
    low = tl.div_rn(tl.fma(-mean, beyond, tl.fma(-mean, count, total) + low), count)
    slope = tl.div_rn(sum_dxhat_xhat, count)
    back = tl.where(shift == 0.0, 0.0, -shift * slope)
    high, low = two_sum(mean, low + tl.fma(-shift, slope, -back), back)
    high, low = two_sum(high, 0.0, tl.where(low == low, low, 0.0))
    return high, tl.where(tl.abs(high) < float("inf"), low, 0.0), slope


@triton.jit
def gradient_of(dy, gamma, centred, rstd, high, low, slope, PRINTED: tl.constexpr):
    """dx: rstd * (gamma * dy - (high + low) - xhat * slope), gamma outside in the printed formula."""
    xhat_slope = (centred * rstd[:, None]) * slope[:, None]
    if PRINTED:
        return rstd[:, None] * gamma * (((dy - high[:, None]) - low[:, None]) - xhat_slope)
    else:
        return rstd[:, None] * ((tl.fma(gamma[:, None], dy, -high[:, None]) - low[:, None]) - xhat_slope)


@triton.jit(do_not_specialize=SIZES)
def reduce(
    x_ptr, dy_ptr, mean_ptr, rstd_ptr, gamma_ptr, beta_ptr,
    sum_dy_ptr, sum_dy_xhat_ptr, sum_xhat_ptr, Q, G, D, C, L, M, ROW_BLOCKS,
    LAST: tl.constexpr, PRINTED: tl.constexpr, SILU: tl.constexpr, RECENTER: tl.constexpr,
    TILES: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_L: tl.constexpr, UNIT_D: tl.constexpr, UNIT_C: tl.constexpr,
    UNIT_L: tl.constexpr,
):  # fmt: skip
    """One program: the sums of BLOCK_D channels over one chunk. ROW_BLOCKS blocks of channels are a sample (LAST), else
    a group."""
    program = tl.program_id(0).to(tl.int64)
    D, C, L = D * UNIT_D, C * UNIT_C, L.to(tl.int64) * UNIT_L
    blocks = (Q // G if LAST else Q) * ROW_BLOCKS
    chunk = program // blocks
    block = (program % blocks) // ROW_BLOCKS
    first_d = ((program % ROW_BLOCKS) * BLOCK_D).to(tl.int32)
    group, channel, row, offset, valid = rows_of(block, first_d, Q, G, D, C, L, LAST, LAST, 1, BLOCK_D)
    mean, rstd = load_stats(mean_ptr, group, valid, 0.0, not LAST), load_stats(rstd_ptr, group, valid, 1.0, not LAST)
    gamma = load_rows(gamma_ptr if SILU else None, channel, valid, 1.0)
    beta = load_rows(beta_ptr if SILU else None, channel, valid, 0.0)
    pivot, power, ratio, s, a, b = coefficients(mean, rstd, gamma, beta, M, SILU)
    dy, product, xhat = chunk_sums(
        x_ptr, dy_ptr, gamma_ptr, offset, valid, chunk * (TILES * BLOCK_L), L, C, pivot, power, ratio, s, a, b,
        LAST, PRINTED, SILU, RECENTER, TILES, BLOCK_L,
    )  # fmt: skip
    at = chunk * Q * D + row
    tl.store(sum_dy_ptr + at, dy, mask=valid)
    tl.store(sum_dy_xhat_ptr + at, product, mask=valid)
    if RECENTER:
        tl.store(sum_xhat_ptr + at, xhat, mask=valid)


@triton.jit
def over_chunks(pointer, row, valid, rows, K):
    """The sums of each channel over its K chunks, in order, as two floats."""
    high = tl.zeros([valid.shape[0]], tl.float32)
    low = tl.zeros([valid.shape[0]], tl.float32)
    for k in range(K):
        high, low = two_sum(high, low, tl.load(pointer + k * rows + row, mask=valid, other=0.0))
    return high, low


@triton.jit
def mean_of_xhat(sum_xhat_ptr, group, D, M, rows, K, BLOCK_D: tl.constexpr):
    """The mean of xhat over one group, what recentring takes away."""
    high = tl.zeros([1], tl.float32)
    low = tl.zeros([1], tl.float32)
    for first in range(0, D, BLOCK_D):
        d = first + tl.arange(0, BLOCK_D)
        xhat, rest = over_chunks(sum_xhat_ptr, group * D + d, d < D, rows, K)
        high, low = two_sum(high, low, tl.sum(joined(xhat, rest), 0))
    return tl.div_rn(joined(high, low), M.to(tl.float32))


@triton.jit(do_not_specialize=SIZES)
def fold(
    mean_ptr, rstd_ptr, gamma_ptr, sum_dy_ptr, sum_dy_xhat_ptr, sum_xhat_ptr,
    high_ptr, low_ptr, slope_ptr, dgamma_ptr, dbeta_ptr,
    Q, G, D, M, K, GROUPS,
    PRINTED: tl.constexpr, RECENTER: tl.constexpr, SAMPLES: tl.constexpr, FOLD_D: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """The first GROUPS programs (N * G or 0) fold a group each, over its channels (FOLD_D at a time) and chunks, into
    what apply takes; the others BLOCK_D channels of one group each, over the batch, into dgamma and dbeta."""
    program = tl.program_id(0).to(tl.int64)
    rows = Q.to(tl.int64) * D
    if program < GROUPS:
        # Of one element, since triton-ascend 3.2 does not lower a correctly rounded division of scalars.
        none = tl.zeros([1], tl.float32)
        sum_dxhat, dxhat_low, sum_dxhat_xhat, dxhat_xhat_low = none, none, none, none
        for first in range(0, D, FOLD_D):
            d = first + tl.arange(0, FOLD_D)
            valid = d < D
            gamma = load_rows(None if PRINTED else gamma_ptr, (program % G) * D + d, valid, 1.0)
            dy, dy_low = over_chunks(sum_dy_ptr, program * D + d, valid, rows, K)
            product, product_low = over_chunks(sum_dy_xhat_ptr, program * D + d, valid, rows, K)
            high, low = group_sums(gamma, dy, dy_low, 1, FOLD_D)
            sum_dxhat, dxhat_low = two_sum(sum_dxhat, dxhat_low + low, high)
            high, low = group_sums(gamma, product, product_low, 1, FOLD_D)
            sum_dxhat_xhat, dxhat_xhat_low = two_sum(sum_dxhat_xhat, dxhat_xhat_low + low, high)
        total_xhat = joined(sum_dxhat_xhat, dxhat_xhat_low)
        if RECENTER:
            shift = mean_of_xhat(sum_xhat_ptr, program, D, M, rows, K, FOLD_D)
            total_xhat = tl.fma(-shift, joined(sum_dxhat, dxhat_low), total_xhat)
        else:
            mean = tl.load(mean_ptr + program).to(tl.float32)
            rstd = tl.load(rstd_ptr + program).to(tl.float32)
            _, _, _, shift, _, _ = coefficients(mean, rstd, rstd, rstd, M, False)
        high, low, slope = group_means(sum_dxhat, dxhat_low, total_xhat, none + shift, M)
        if high_ptr is not None:
            tl.store(high_ptr + program + tl.arange(0, 1), high)
            tl.store(low_ptr + program + tl.arange(0, 1), low)
            tl.store(slope_ptr + program + tl.arange(0, 1), slope)
    else:
        blocks = tl.cdiv(D, BLOCK_D)
        group = (program - GROUPS) // blocks
        d = ((program - GROUPS) % blocks) * BLOCK_D + tl.arange(0, BLOCK_D)
        valid = d < D
        zero = tl.zeros([BLOCK_D], tl.float32)
        dbeta, dbeta_low, dgamma, dgamma_low = zero, zero, zero, zero
        if RECENTER:
            for n in range(0, Q // G):
                q = n * G + group
                dy, dy_low = over_chunks(sum_dy_ptr, q * D + d, valid, rows, K)
                dy = joined(dy, dy_low)
                product, product_low = over_chunks(sum_dy_xhat_ptr, q * D + d, valid, rows, K)
                shift = mean_of_xhat(sum_xhat_ptr, q, D, M, rows, K, FOLD_D)
                product = tl.fma(zero - shift, dy, joined(product, product_low))
                dbeta, dbeta_low = two_sum(dbeta, dbeta_low, dy)
                dgamma, dgamma_low = two_sum(dgamma, dgamma_low, product)
            dbeta, dgamma = joined(dbeta, dbeta_low), joined(dgamma, dgamma_low)
        else:
            # SAMPLES terms of a channel at a time, a sample's chunks side by side: lanes of their own, then a tree.
            wide = tl.zeros([SAMPLES, BLOCK_D], tl.float32)
            beta_high, beta_low, gamma_high, gamma_low = wide, wide, wide, wide
            for first in range(0, (Q // G) * K, SAMPLES):
                term = first + tl.arange(0, SAMPLES)
                row = (term % K).to(tl.int64) * rows + ((term // K) * G + group) * D
                at = row[:, None] + d[None, :]
                inside = (term < (Q // G) * K)[:, None] & valid[None, :]
                dy = tl.load(sum_dy_ptr + at, mask=inside, other=0.0)
                product = tl.load(sum_dy_xhat_ptr + at, mask=inside, other=0.0)
                beta_high, beta_low = two_sum(beta_high, beta_low, dy)
                gamma_high, gamma_low = two_sum(gamma_high, gamma_low, product)
            dbeta = joined(tl.sum(beta_high, 0), tl.sum(beta_low, 0))
            dgamma = joined(tl.sum(gamma_high, 0), tl.sum(gamma_low, 0))
        if dgamma_ptr is not None:
            tl.store(dgamma_ptr + group * D + d, stored(dgamma, dgamma_ptr), mask=valid)
        if dbeta_ptr is not None:
            tl.store(dbeta_ptr + group * D + d, stored(dbeta, dbeta_ptr), mask=valid)


@triton.jit(do_not_specialize=SIZES)
def apply(
    x_ptr, dy_ptr, mean_ptr, rstd_ptr, gamma_ptr, beta_ptr, high_ptr, low_ptr, slope_ptr,
    dx_ptr, Q, G, D, C, L, M, ROW_BLOCKS,
    LAST: tl.constexpr, PRINTED: tl.constexpr, SILU: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_L: tl.constexpr, UNIT_D: tl.constexpr, UNIT_C: tl.constexpr,
    UNIT_L: tl.constexpr,
):  # fmt: skip
    """One program: dx of BLOCK_D channels at BLOCK_L positions; channels as in `reduce`."""
    program = tl.program_id(0).to(tl.int64)
    D, C, L = D * UNIT_D, C * UNIT_C, L.to(tl.int64) * UNIT_L
    blocks = (Q // G if LAST else Q) * ROW_BLOCKS
    first = (program // blocks) * BLOCK_L
    block = (program % blocks) // ROW_BLOCKS
    first_d = ((program % ROW_BLOCKS) * BLOCK_D).to(tl.int32)
    group, channel, _, offset, valid = rows_of(block, first_d, Q, G, D, C, L, LAST, LAST, 1, BLOCK_D)
    mean, rstd = load_stats(mean_ptr, group, valid, 0.0, not LAST), load_stats(rstd_ptr, group, valid, 1.0, not LAST)
    gamma = load_rows(None if PRINTED else gamma_ptr, channel, valid, 1.0)
    beta = load_rows(beta_ptr, channel, valid, 0.0)
    high, low = load_stats(high_ptr, group, valid, 0.0, not LAST), load_stats(low_ptr, group, valid, 0.0, not LAST)
    slope = load_stats(slope_ptr, group, valid, 0.0, not LAST)
    pivot, _, _, _, a, b = coefficients(mean, rstd, gamma, beta, M, SILU)
    offsets, inside = tile_of(offset, valid, first, L, C, LAST, BLOCK_L)
    centred = tl.load(x_ptr + offsets, mask=inside, other=0.0).to(tl.float32) - pivot[:, None]
    _, dy, gammas = upstream(dy_ptr, gamma_ptr, offsets, inside, centred, a, b, PRINTED, SILU)
    dx = gradient_of(dy, gammas if PRINTED else gamma, centred, rstd, high, low, slope, PRINTED)
    tl.store(dx_ptr + offsets, stored(dx, dx_ptr), mask=inside)


@triton.jit
def per_group(values, BLOCK_G: tl.constexpr, BLOCK_D: tl.constexpr):
    """Sums of channels [BLOCK_G * BLOCK_D] -> of groups: a scalar where BLOCK_G is 1, else [BLOCK_G]."""
    if BLOCK_G == 1:
        return tl.sum(values, 0)
    else:
        return tl.sum(tl.reshape(values, [BLOCK_G, BLOCK_D]), 1)


@triton.jit
def per_channel(values, BLOCK_G: tl.constexpr, BLOCK_D: tl.constexpr):
    """A value of each group, for each of its channels: [BLOCK_G * BLOCK_D]."""
    if BLOCK_G == 1:
        return tl.zeros([BLOCK_D], tl.float32) + values
    else:
        return tl.reshape(tl.broadcast_to(values[:, None], [BLOCK_G, BLOCK_D]), [BLOCK_G * BLOCK_D])
