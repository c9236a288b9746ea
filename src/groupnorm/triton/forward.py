"""The kernels of the forward, operator C: reduce, fold, apply, and `forward_resident`, which is all of them.

Statistics are a mean and the squares around it, joined as Chan, Golub and LeVeque (1979) join them, of x less one of
its own elements, the first of the group: never a difference of large squares. Names and sizes: gradient.py; y has the
shape of x. What `reduce` leaves of each chunk is its mean and squares, [K, N * C].
"""

from __future__ import annotations

import triton
import triton.language as tl

from .arithmetic import SIZES, joined, load_rows, load_stats, rows_of, silu, stored, tile_of, two_sum
from .gradient import per_channel, per_group


@triton.jit
def start_of(group, D, C, L, G, LAST: tl.constexpr):
    """Offset of the first element of a group."""
    if LAST:
        return (group // G) * L * C + (group % G) * D
    else:
        return group * D * L


@triton.jit
def tile_stats(d, inside, count):
    """Mean and sum of squares around it of `count` elements of each channel; what the mean rounds off is put back."""
    mean = tl.div_rn(tl.sum(d, 1), count)
    around = tl.where(inside, d - mean[:, None], 0.0)
    rest = tl.sum(around, 1)
    return mean + tl.div_rn(rest, count), tl.sum(around * around, 1) - tl.div_rn(rest * rest, count)


@triton.jit
def output_of(d, mean, rstd, gamma, beta, SILU: tl.constexpr):
    """y of d = x less the first element of its group, whose mean is `mean`."""
    y = tl.fma((d - mean[:, None]) * rstd[:, None], gamma[:, None], beta[:, None])
    if SILU:
        y = silu(y)
    return y


@triton.jit
def rstd_of(squares, M, eps):
    """1 / sqrt(variance + eps)."""
    return tl.div_rn(1.0, tl.sqrt_rn(tl.div_rn(squares, M.to(tl.float32)) + eps))


@triton.jit(do_not_specialize=SIZES)
def forward_resident(
    x_ptr, gamma_ptr, beta_ptr, y_ptr, mean_ptr, rstd_ptr, Q, G, D, C, L, M, eps,
    LAST: tl.constexpr, SILU: tl.constexpr, BLOCK_G: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_L: tl.constexpr,
    UNIT_D: tl.constexpr, UNIT_C: tl.constexpr, UNIT_L: tl.constexpr,
):  # fmt: skip
    """One program: BLOCK_G whole groups as one tile."""
    D, C, L = D * UNIT_D, C * UNIT_C, L.to(tl.int64) * UNIT_L
    _, channel, _, offset, valid = rows_of(tl.program_id(0), 0, Q, G, D, C, L, LAST, False, BLOCK_G, BLOCK_D)
    gamma, beta = load_rows(gamma_ptr, channel, valid, 1.0), load_rows(beta_ptr, channel, valid, 0.0)
    offsets, inside = tile_of(offset, valid, 0, L, C, LAST, BLOCK_L)
    if BLOCK_G == 1:
        groups = tl.program_id(0).to(tl.int64)
        first = tl.load(x_ptr + start_of(groups, D, C, L, G, LAST)).to(tl.float32)
    else:
        groups = tl.program_id(0).to(tl.int64) * BLOCK_G + tl.arange(0, BLOCK_G)
        first = tl.load(x_ptr + start_of(groups, D, C, L, G, LAST), mask=groups < Q, other=0.0).to(tl.float32)
    shift = per_channel(first, BLOCK_G, BLOCK_D)
    d = tl.where(inside, tl.load(x_ptr + offsets, mask=inside, other=0.0).to(tl.float32) - shift[:, None], 0.0)
    count = M.to(tl.float32)
    mean = tl.div_rn(per_group(tl.sum(d, 1), BLOCK_G, BLOCK_D), count)
    around = tl.where(inside, d - per_channel(mean, BLOCK_G, BLOCK_D)[:, None], 0.0)
    rest = per_group(tl.sum(around, 1), BLOCK_G, BLOCK_D)
    squares = per_group(tl.sum(around * around, 1), BLOCK_G, BLOCK_D)
    mean += tl.div_rn(rest, count)
    rstd = rstd_of(squares - tl.div_rn(rest * rest, count), M, eps)
    if BLOCK_G == 1:
        tl.store(mean_ptr + groups, first + mean)
        tl.store(rstd_ptr + groups, rstd)
    else:
        tl.store(mean_ptr + groups, first + mean, mask=groups < Q)
        tl.store(rstd_ptr + groups, rstd, mask=groups < Q)
    each_mean, each_rstd = per_channel(mean, BLOCK_G, BLOCK_D), per_channel(rstd, BLOCK_G, BLOCK_D)
    y = output_of(d, each_mean, each_rstd, gamma, beta, SILU)
    tl.store(y_ptr + offsets, stored(y, y_ptr), mask=inside)


@triton.jit
def join(count, mean, squares, more_count, more_mean, more_squares):
    """The mean and squares of two parts together. Channels are divided, not counts: triton-ascend 3.2 does not lower a
    correctly rounded division of scalars, and finds one where both sides are the same for all elements."""
    delta = more_mean - mean
    step = tl.div_rn(delta * more_count, count + more_count)
    return mean + step, squares + more_squares + delta * step * count


@triton.jit(do_not_specialize=SIZES)
def forward_reduce(
    x_ptr, chunk_mean_ptr, chunk_squares_ptr, Q, G, D, C, L, M, ROW_BLOCKS,
    LAST: tl.constexpr, TILES: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_L: tl.constexpr,
    UNIT_D: tl.constexpr, UNIT_C: tl.constexpr, UNIT_L: tl.constexpr,
):  # fmt: skip
    """One program: the statistics of BLOCK_D channels over one chunk; channels as in `reduce`."""
    program = tl.program_id(0).to(tl.int64)
    D, C, L = D * UNIT_D, C * UNIT_C, L.to(tl.int64) * UNIT_L
    blocks = (Q // G if LAST else Q) * ROW_BLOCKS
    chunk = program // blocks
    block = (program % blocks) // ROW_BLOCKS
    first_d = ((program % ROW_BLOCKS) * BLOCK_D).to(tl.int32)
    group, _, row, offset, valid = rows_of(block, first_d, Q, G, D, C, L, LAST, LAST, 1, BLOCK_D)
    shift = load_stats(x_ptr, start_of(group, D, C, L, G, LAST), valid, 0.0, not LAST)
    first = chunk * TILES * BLOCK_L
    offsets, inside = tile_of(offset, valid, first, L, C, LAST, BLOCK_L)
    d = tl.where(inside, tl.load(x_ptr + offsets, mask=inside, other=0.0).to(tl.float32) - shift[:, None], 0.0)
    mean, squares = tile_stats(d, inside, tl.minimum(L - first, BLOCK_L).to(tl.float32))
    for i in range(1, TILES):
        first = (chunk * TILES + i) * BLOCK_L
        offsets, inside = tile_of(offset, valid, first, L, C, LAST, BLOCK_L)
        d = tl.where(inside, tl.load(x_ptr + offsets, mask=inside, other=0.0).to(tl.float32) - shift[:, None], 0.0)
        # A tile beyond the end counts 0, and joins nothing.
        here = tl.maximum(tl.minimum(L - first, BLOCK_L), 0).to(tl.float32)
        before = (first - chunk * TILES * BLOCK_L).to(tl.float32)
        tile_mean, tile_squares = tile_stats(d, inside, tl.maximum(here, 1.0))
        mean, squares = join(before, mean, squares, here, tile_mean, tile_squares)
    at = chunk * Q * D + row
    tl.store(chunk_mean_ptr + at, mean, mask=valid)
    tl.store(chunk_squares_ptr + at, squares, mask=valid)


@triton.jit(do_not_specialize=SIZES)
def forward_fold(
    x_ptr, chunk_mean_ptr, chunk_squares_ptr, shifted_ptr, mean_ptr, rstd_ptr, Q, G, D, C, L, M, K, eps,
    LAST: tl.constexpr, CHUNK: tl.constexpr, BLOCK_D: tl.constexpr,
    UNIT_D: tl.constexpr, UNIT_C: tl.constexpr, UNIT_L: tl.constexpr,
):  # fmt: skip
    """One program: mean and rstd of a group, from the chunks of its channels; `shifted` is the mean less the group's
    first element. Means first, then the squares around what they come to."""
    group = tl.program_id(0).to(tl.int64)
    D, C, L = D * UNIT_D, C * UNIT_C, L.to(tl.int64) * UNIT_L
    rows = Q.to(tl.int64) * D
    none = tl.zeros([1], tl.float32)
    high, low = none, none
    for first in range(0, D, BLOCK_D):
        d = first + tl.arange(0, BLOCK_D)
        for k in range(K):
            count = tl.minimum(L - k * CHUNK, CHUNK).to(tl.float32)
            mean = tl.load(chunk_mean_ptr + k * rows + group * D + d, mask=d < D, other=0.0)
            high, low = two_sum(high, low, tl.sum(mean, 0) * count)
    mean = tl.div_rn(joined(high, low), M.to(tl.float32))
    high, low = none, none
    for first in range(0, D, BLOCK_D):
        d = first + tl.arange(0, BLOCK_D)
        for k in range(K):
            count = tl.minimum(L - k * CHUNK, CHUNK).to(tl.float32)
            at = k * rows + group * D + d
            apart = tl.where(d < D, tl.load(chunk_mean_ptr + at, mask=d < D, other=0.0) - mean, 0.0)
            squares = tl.load(chunk_squares_ptr + at, mask=d < D, other=0.0)
            high, low = two_sum(
                high, low, tl.sum(tl.fma(apart * apart, count + tl.zeros([BLOCK_D], tl.float32), squares), 0)
            )
    shift = tl.load(x_ptr + start_of(group, D, C, L, G, LAST)).to(tl.float32)
    at = group + tl.arange(0, 1)
    tl.store(shifted_ptr + at, mean)
    tl.store(mean_ptr + at, shift + mean)
    tl.store(rstd_ptr + at, rstd_of(joined(high, low), M, eps))


@triton.jit(do_not_specialize=SIZES)
def forward_apply(
    x_ptr, gamma_ptr, beta_ptr, shifted_ptr, rstd_ptr, y_ptr, Q, G, D, C, L, M, ROW_BLOCKS,
    LAST: tl.constexpr, SILU: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_L: tl.constexpr,
    UNIT_D: tl.constexpr, UNIT_C: tl.constexpr, UNIT_L: tl.constexpr,
):  # fmt: skip
    """One program: y of BLOCK_D channels at BLOCK_L positions."""
    program = tl.program_id(0).to(tl.int64)
    D, C, L = D * UNIT_D, C * UNIT_C, L.to(tl.int64) * UNIT_L
    blocks = (Q // G if LAST else Q) * ROW_BLOCKS
    first = (program // blocks) * BLOCK_L
    block = (program % blocks) // ROW_BLOCKS
    first_d = ((program % ROW_BLOCKS) * BLOCK_D).to(tl.int32)
    group, channel, _, offset, valid = rows_of(block, first_d, Q, G, D, C, L, LAST, LAST, 1, BLOCK_D)
    gamma, beta = load_rows(gamma_ptr, channel, valid, 1.0), load_rows(beta_ptr, channel, valid, 0.0)
    mean, rstd = load_stats(shifted_ptr, group, valid, 0.0, not LAST), load_stats(rstd_ptr, group, valid, 1.0, not LAST)
    shift = load_stats(x_ptr, start_of(group, D, C, L, G, LAST), valid, 0.0, not LAST)
    offsets, inside = tile_of(offset, valid, first, L, C, LAST, BLOCK_L)
    d = tl.load(x_ptr + offsets, mask=inside, other=0.0).to(tl.float32) - shift[:, None]
    y = output_of(d, mean, rstd, gamma, beta, SILU)
    tl.store(y_ptr + offsets, stored(y, y_ptr), mask=inside)
