"""What the kernels share: sums that lose nothing, the pivot, the derivative of SiLU, and how a tile is addressed.

float32 throughout, every fused multiply-add written as one (kernels are compiled without fusing others), so that the
order of roundings is what stands here. Formulas: docs/math.md, "The pivot" and "Swish".
"""

from __future__ import annotations

import os

import triton
import triton.language as tl

# Numbers that a kernel is not compiled anew for. Kernels that address x take D, C and L as multiples of constants
# (UNIT_D, UNIT_C, UNIT_L), from which the compiler sees how wide a load may be.
SIZES = ["Q", "G", "D", "C", "L", "M", "K", "ROW_BLOCKS", "GROUPS"]


# Whether Triton interprets the kernels, which is settled when they are imported.
INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")


@triton.jit
def stored(value, pointer):
    """float32 rounded to the dtype behind a pointer, to nearest and even. Triton 3.9's interpreter cuts bits off where
    devices round to bfloat16: there, and there alone, they are rounded here."""
    if INTERPRETED and pointer.dtype.element_ty == tl.bfloat16:
        bits = value.to(tl.int32, bitcast=True)
        even = (bits + 0x7FFF + ((bits >> 16) & 1)) & -0x10000
        value = tl.where(value == value, even.to(tl.float32, bitcast=True), value)
    return value.to(pointer.dtype.element_ty)


@triton.jit
def two_sum(high, low, term):
    """(high, low) + term, where low collects what high rounds off (Knuth, TAOCP 2, 4.2.2)."""
    total = high + term
    other = total - high
    return total, low + ((high - (total - other)) + (term - other))


@triton.jit
def joined(high, low):
    """high + low; an infinite high has no low."""
    return tl.where(low == low, high + low, high)


@triton.jit
def above_grid(values, AXIS: tl.constexpr, COUNT: tl.constexpr):
    """Of each value what is a multiple of a grid so coarse that float32 holds every sum of COUNT of them, and the rest
    (Rump, Ogita and Oishi 2008, ExtractVector). All of it, and no rest, where the grid would overflow."""
    largest = tl.max(tl.where(values == values, tl.abs(values), 0.0), AXIS, keep_dims=True)
    # Between 2 and 4 times what COUNT of them can come to.
    bits = (largest * (4.0 * COUNT)).to(tl.int32, bitcast=True)
    sigma = tl.where(bits < 0x7F800000, bits & 0x7F800000, 0).to(tl.float32, bitcast=True)
    above = (sigma + values) - sigma
    return above, values - above


@triton.jit
def exact_sum(values, rests, AXIS: tl.constexpr, COUNT: tl.constexpr):
    """The sum of COUNT values + rests as two floats, each of which adds up exactly: it has the same bits in any order,
    so on any number of threads. One value and its rest come back whole. What both grids round off is below 2^-28 of the
    largest value for 256 of them."""
    if COUNT == 1:
        return tl.sum(values, AXIS), tl.sum(rests, AXIS)
    else:
        first, rest = above_grid(values, AXIS, COUNT)
        second, _ = above_grid(rest + rests, AXIS, COUNT)
        return tl.sum(first, AXIS), tl.sum(second, AXIS)


@triton.jit
def power_of(rstd):
    """The power of two next below |rstd| with its sign, and the rest, at least 1 and below 2; of no ordinary number
    itself and 1."""
    bits = rstd.to(tl.int32, bitcast=True)
    exponent = (bits >> 23) & 0xFF
    ordinary = (exponent > 0) & (exponent < 255)
    power = (bits & -0x800000).to(tl.float32, bitcast=True)
    ratio = ((bits & 0x7FFFFF) | 0x3F800000).to(tl.float32, bitcast=True)
    return tl.where(ordinary, power, rstd), tl.where(ordinary, ratio, 1.0)


@triton.jit
def pivot_of(mean, rstd, single):
    """The mean as a multiple of the ulp of 128 deviations, 2^-16 of the power of two at 1/rstd; itself where it is one
    anyway, where rstd is no ordinary number, or where a group has a single element."""
    exponent = (rstd.to(tl.int32, bitcast=True) >> 23) & 0xFF
    ordinary = (exponent > 0) & (exponent < 238)
    exponent = tl.where(ordinary, exponent, 127)
    # 2^-(e + 16) and 2^(e + 16), where rstd has the exponent e: the grid, and its inverse in two factors.
    grid = ((254 - exponent - 16) << 23).to(tl.float32, bitcast=True)
    up = (exponent << 23).to(tl.float32, bitcast=True)
    steps = mean * up * 65536.0
    within = ordinary & (tl.abs(steps) < 4194304.0)
    # Numbers around 1.5 * 2^23 are whole: the sum is rounded to one.
    whole = (tl.where(within, steps, 0.0) + 12582912.0) - 12582912.0
    return tl.where(within & (single == 0), whole * grid, mean)


@triton.jit
def saturated(gamma, rstd):
    """gamma * rstd, where finite factors keep a finite product: the largest number stands for all above it."""
    product = gamma * rstd
    beyond = (tl.abs(product) == float("inf")) & (tl.abs(gamma) < float("inf")) & (tl.abs(rstd) < float("inf"))
    return tl.where(beyond, tl.where(product < 0.0, -3.4028234e38, 3.4028234e38), product)


@triton.jit
def silu_slope(t):
    """The derivative of t * sigmoid(t); neither sigmoid nor 1 - sigmoid comes from a difference."""
    t = tl.where(tl.abs(t) > 104.0, tl.where(t < 0.0, -104.0, 104.0), t)  # NaN compares false and stays
    e = tl.exp(-tl.abs(t))
    larger = tl.div_rn(1.0, 1.0 + e)
    smaller = e * larger
    sigmoid = tl.where(t < 0.0, smaller, larger)
    rest = tl.where(t < 0.0, larger, smaller)
    return tl.fma(t * sigmoid, rest, sigmoid)


@triton.jit
def silu(t):
    """t * sigmoid(t)."""
    e = tl.exp(-tl.abs(t))
    larger = tl.div_rn(1.0, 1.0 + e)
    sigmoid = tl.where(t < 0.0, e * larger, larger)
    # An infinite t has a sigmoid of 0 or 1, and 0 * inf is the limit 0.
    return tl.where((t < 0.0) & (sigmoid == 0.0), 0.0, t * sigmoid)


@triton.jit
def rows_of(
    block, first, Q, G, D, C, L, LAST: tl.constexpr, SPANNING: tl.constexpr,
    BLOCK_G: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """The channels of a tile: index of the group in [N * G], of the channel in [C] and in [N * C], offset of its first
    element in x, whether there is one. LAST: x is [N, HxW, C] in memory, else [N, C, HxW].

    SPANNING: BLOCK_D channels of sample `block`, from channel `first` on. Else of BLOCK_G groups from group
    `block * BLOCK_G` of [N * G] on, each BLOCK_D channels from its `first` on; a single group is a scalar.
    """
    block = block.to(tl.int64)
    if SPANNING:
        channel = first + tl.arange(0, BLOCK_D)
        return block * G + channel // D, channel, block * C + channel, block * L * C + channel, channel < C
    else:
        if BLOCK_G == 1:
            d = first + tl.arange(0, BLOCK_D)
            group = block
            valid = d < D
        else:
            r = tl.arange(0, BLOCK_G * BLOCK_D)
            d = first + r % BLOCK_D
            group = block * BLOCK_G + r // BLOCK_D
            valid = (d < D) & (group < Q)
        row = group * D + d
        channel = (group % G) * D + d
        offset = (group // G) * L * C + channel if LAST else row * L
        return group, channel, row, offset, valid


@triton.jit
def load_rows(pointer, index, valid, otherwise: tl.constexpr):
    """One float32 a channel; `otherwise` where there is no pointer."""
    if pointer is None:
        return tl.where(valid, otherwise, otherwise).to(tl.float32)
    else:
        return tl.load(pointer + index, mask=valid, other=otherwise).to(tl.float32)


@triton.jit
def load_stats(pointer, group, valid, otherwise: tl.constexpr, ONE: tl.constexpr):
    """One float32 a channel: what belongs to its group, which is a scalar where there is ONE."""
    if ONE:
        return tl.where(valid, tl.load(pointer + group).to(tl.float32), otherwise)
    else:
        return tl.load(pointer + group, mask=valid, other=otherwise).to(tl.float32)


@triton.jit
def tile_of(offset, valid, first, L, C, LAST: tl.constexpr, BLOCK_L: tl.constexpr):
    """Offsets in x of positions `first` to `first + BLOCK_L` of some channels, [channels, BLOCK_L], and which exist."""
    local = tl.arange(0, BLOCK_L)
    inside = valid[:, None] & (local < L - first)[None, :]
    if LAST:
        return (offset + first * C)[:, None] + (local * C)[None, :], inside
    else:
        return (offset + first)[:, None] + local[None, :], inside
