"""Reduce, fold and apply of a group in one program: x and dy are read once where RESIDENT, else again from the cache.

Names, sizes and the order of additions: gradient.py. In a loop a name keeps one type and shape, also one that is not
read.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .arithmetic import SIZES, joined, load_rows, load_stats, rows_of, stored, tile_of, two_sum
from .gradient import (
    FEW_ELEMENTS,
    add_terms,
    chunk_sums,
    close_sums,
    coefficients,
    gradient_of,
    group_means,
    group_sums,
    per_channel,
    per_group,
    upstream,
)


@triton.jit
def store_sums(sum_dy_ptr, sum_dy_xhat_ptr, row, valid, dy, product):
    """The sums of each channel, in the dtype of what takes them: the workspace, or dbeta and dgamma of one sample."""
    if sum_dy_ptr is not None:
        tl.store(sum_dy_ptr + row, stored(dy, sum_dy_ptr), mask=valid)
    if sum_dy_xhat_ptr is not None:
        tl.store(sum_dy_xhat_ptr + row, stored(product, sum_dy_xhat_ptr), mask=valid)


@triton.jit
def placed(values, here):
    """Each value where it belongs, 0 elsewhere."""
    return tl.sum(tl.where(here, values[:, None], 0.0), 0)


@triton.jit(do_not_specialize=SIZES)
def fused_resident(
    x_ptr, dy_ptr, mean_ptr, rstd_ptr, gamma_ptr, beta_ptr, dx_ptr,
    sum_dy_ptr, sum_dy_xhat_ptr, Q, G, D, C, L, M,
    LAST: tl.constexpr, PRINTED: tl.constexpr, SILU: tl.constexpr, RECENTER: tl.constexpr,
    BLOCK_G: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_L: tl.constexpr, UNIT_D: tl.constexpr, UNIT_C: tl.constexpr,
    UNIT_L: tl.constexpr,
):  # fmt: skip
    """One program: BLOCK_G whole groups as one tile, [BLOCK_G * BLOCK_D, BLOCK_L]."""
    D, C, L = D * UNIT_D, C * UNIT_C, L.to(tl.int64) * UNIT_L
    group, channel, row, offset, valid = rows_of(tl.program_id(0), 0, Q, G, D, C, L, LAST, False, BLOCK_G, BLOCK_D)
    mean, rstd = (
        load_stats(mean_ptr, group, valid, 0.0, BLOCK_G == 1),
        load_stats(rstd_ptr, group, valid, 1.0, BLOCK_G == 1),
    )
    gamma = load_rows(None if PRINTED else gamma_ptr, channel, valid, 1.0)
    beta = load_rows(beta_ptr, channel, valid, 0.0)
    pivot, power, ratio, s, a, b = coefficients(mean, rstd, gamma, beta, M, SILU)

    offsets, inside = tile_of(offset, valid, 0, L, C, LAST, BLOCK_L)
    x = tl.load(x_ptr + offsets, mask=inside, other=0.0).to(tl.float32)
    centred = x - pivot[:, None]
    weighted, dy, gammas = upstream(dy_ptr, gamma_ptr, offsets, inside, centred, a, b, PRINTED, SILU)
    zero = tl.zeros([BLOCK_G * BLOCK_D, BLOCK_L], tl.float32)
    lane_dy, lane_t, lane_rest, lane_x, lane_x_rest = add_terms(
        zero, zero, zero, zero, zero, x, weighted, centred, pivot, power, inside, RECENTER,
        BLOCK_D * BLOCK_L <= FEW_ELEMENTS,
    )  # fmt: skip
    sum_dy, dy_low, product, product_low, xhat = close_sums(
        lane_dy, lane_t, lane_rest, lane_x, lane_x_rest, ratio, s, RECENTER, BLOCK_D * BLOCK_L <= FEW_ELEMENTS
    )  # fmt: skip
    if RECENTER:
        s = per_channel(tl.div_rn(per_group(xhat, BLOCK_G, BLOCK_D), M.to(tl.float32)), BLOCK_G, BLOCK_D)
        product, product_low = two_sum(product, product_low, -s * sum_dy)
    store_sums(sum_dy_ptr, sum_dy_xhat_ptr, row, valid, joined(sum_dy, dy_low), joined(product, product_low))
    if dx_ptr is not None:
        total, low = group_sums(gamma, sum_dy, dy_low, BLOCK_G, BLOCK_D)
        total_xhat, xhat_low = group_sums(gamma, product, product_low, BLOCK_G, BLOCK_D)
        total_xhat = joined(total_xhat, xhat_low)
        high, low, slope = group_means(
            per_channel(total, BLOCK_G, BLOCK_D), per_channel(low, BLOCK_G, BLOCK_D),
            per_channel(total_xhat, BLOCK_G, BLOCK_D), s, M,
        )  # fmt: skip
        dx = gradient_of(dy, gammas if PRINTED else gamma, centred, rstd, high, low, slope, PRINTED)
        tl.store(dx_ptr + offsets, stored(dx, dx_ptr), mask=inside)


@triton.jit(do_not_specialize=SIZES)
def fused_cached(
    x_ptr, dy_ptr, mean_ptr, rstd_ptr, gamma_ptr, beta_ptr, dx_ptr,
    sum_dy_ptr, sum_dy_xhat_ptr, Q, G, D, C, L, M,
    LAST: tl.constexpr, PRINTED: tl.constexpr, SILU: tl.constexpr,
    TILES: tl.constexpr, FOLD_D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_L: tl.constexpr,
    UNIT_D: tl.constexpr, UNIT_C: tl.constexpr, UNIT_L: tl.constexpr,
):  # fmt: skip
    """One program: one group, tile by tile, and once more for dx; chunks as in `reduce`. FOLD_D, at least D: the sums
    of all channels wait for each other, so that they add up to the bits of `fold`."""
    D, C, L = D * UNIT_D, C * UNIT_C, L.to(tl.int64) * UNIT_L
    all_d = tl.arange(0, FOLD_D)
    none = tl.zeros([FOLD_D], tl.float32)
    all_dy, all_dy_low, all_product, all_product_low = none, none, none, none
    for first_d in range(0, D, BLOCK_D):
        group, channel, row, offset, valid = rows_of(tl.program_id(0), first_d, Q, G, D, C, L, LAST, False, 1, BLOCK_D)
        mean, rstd = load_stats(mean_ptr, group, valid, 0.0, True), load_stats(rstd_ptr, group, valid, 1.0, True)
        gamma = load_rows(None if PRINTED else gamma_ptr, channel, valid, 1.0)
        beta = load_rows(beta_ptr, channel, valid, 0.0)
        pivot, power, ratio, s, a, b = coefficients(mean, rstd, gamma, beta, M, SILU)
        zero = tl.zeros([BLOCK_D], tl.float32)
        dy_sum, dy_low, product_sum, product_low = zero, zero, zero, zero
        for first in range(0, L, TILES * BLOCK_L):
            dy, product, _xhat = chunk_sums(
                x_ptr, dy_ptr, gamma_ptr, offset, valid, first, L, C, pivot, power, ratio, s, a, b,
                LAST, PRINTED, SILU, False, TILES, BLOCK_L,
            )  # fmt: skip
            dy_sum, dy_low = two_sum(dy_sum, dy_low, dy)
            product_sum, product_low = two_sum(product_sum, product_low, product)
        store_sums(
            sum_dy_ptr, sum_dy_xhat_ptr, row, valid, joined(dy_sum, dy_low), joined(product_sum, product_low)
        )  # fmt: skip
        here = (first_d + tl.arange(0, BLOCK_D))[:, None] == all_d[None, :]
        all_dy += placed(dy_sum, here)
        all_dy_low += placed(dy_low, here)
        all_product += placed(product_sum, here)
        all_product_low += placed(product_low, here)
    if dx_ptr is not None:
        program = tl.program_id(0).to(tl.int64)
        mean_one = tl.load(mean_ptr + program).to(tl.float32)
        rstd_one = tl.load(rstd_ptr + program).to(tl.float32)
        _p, _power, _ratio, shift, _a, _b = coefficients(mean_one, rstd_one, rstd_one, rstd_one, M, False)
        weights = load_rows(None if PRINTED else gamma_ptr, (program % G) * D + all_d, all_d < D, 1.0)
        total, total_low = group_sums(weights, all_dy, all_dy_low, 1, FOLD_D)
        total_xhat, xhat_low = group_sums(weights, all_product, all_product_low, 1, FOLD_D)
        high, low, slope = group_means(total, total_low, joined(total_xhat, xhat_low), shift, M)
        for first_d in range(0, D, BLOCK_D):
            group, channel, row, offset, valid = rows_of(
                tl.program_id(0), first_d, Q, G, D, C, L, LAST, False, 1, BLOCK_D
            )
            mean, rstd = load_stats(mean_ptr, group, valid, 0.0, True), load_stats(rstd_ptr, group, valid, 1.0, True)
            gamma = load_rows(None if PRINTED else gamma_ptr, channel, valid, 1.0)
            beta = load_rows(beta_ptr, channel, valid, 0.0)
            pivot, power, ratio, s, a, b = coefficients(mean, rstd, gamma, beta, M, SILU)
            zero = tl.zeros([BLOCK_D], tl.float32)
            for first in range(0, L, BLOCK_L):
                offsets, inside = tile_of(offset, valid, first, L, C, LAST, BLOCK_L)
                centred = tl.load(x_ptr + offsets, mask=inside, other=0.0).to(tl.float32) - pivot[:, None]
                _weighted, dy_tile, gammas = upstream(dy_ptr, gamma_ptr, offsets, inside, centred, a, b, PRINTED, SILU)
                dx = gradient_of(
                    dy_tile, gammas if PRINTED else gamma, centred, rstd, zero + high, zero + low, zero + slope, PRINTED
                )
                tl.store(dx_ptr + offsets, stored(dx, dx_ptr), mask=inside)
