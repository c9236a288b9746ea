"""What the tests of groupnorm.torch make and compare."""

import torch

OPS = torch.ops.groupnorm
DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
NARROW = [torch.float16, torch.bfloat16]
ACTIVATIONS = [None, "silu"]


def channels_last(x):
    return x.movedim(1, -1).contiguous().movedim(-1, 1)


LAYOUTS = {
    "contiguous": lambda x: x,
    "channels-last": channels_last,
    "permuted": lambda x: x.transpose(0, -1).contiguous().transpose(0, -1),
    "slice": lambda x: torch.cat([x, x], -1)[..., : x.shape[-1]],
    "unaligned": lambda x: torch.frombuffer(
        bytearray(b"\0" + bytes(x.contiguous().view(torch.uint8).numpy())), dtype=x.dtype, offset=1
    ).reshape(x.shape),
}


def make(shape=(2, 6, 4, 5), groups=3, dtype=torch.float32, parameter=None, layout="contiguous", seed=1):
    """dy, x, mean, rstd, weight, bias."""
    generator = torch.Generator().manual_seed(seed)
    parameter = parameter or dtype
    x, dy = (torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for _ in range(2))
    weight, bias = (torch.randn(shape[1], generator=generator, dtype=torch.float64).to(parameter) for _ in range(2))
    x, dy = LAYOUTS[layout](x), LAYOUTS[layout](dy)
    _, mean, rstd = OPS.group_norm(x, groups, weight, bias)
    if dtype in NARROW and parameter == dtype:
        mean, rstd = mean.to(dtype), rstd.to(dtype)
    return dy, x, mean, rstd, weight, bias


class Subclass(torch.Tensor):
    pass


def not_plain(x):
    """Tensors [2, 4, 3] that the short ways leave, and what is none."""
    return {
        "subclass": x.as_subclass(Subclass),
        "meta": x.to("meta"),
        "negated": torch._neg_view(x),
        "integers": x.int(),
        "complex": x.to(torch.complex64),
        "conjugated": x.to(torch.complex64).conj(),
        "permuted": LAYOUTS["permuted"](x),
        "slice": LAYOUTS["slice"](x),
        "unaligned": LAYOUTS["unaligned"](x),
        "expanded": x[:1].expand(2, 4, 3),
        "sparse": x.to_sparse(),
        "mkldnn": x.to_mkldnn(),
        "nested": torch.nested.nested_tensor([x[0], x[1]]),
        "zero": torch._efficientzerotensor(2, 4, 3),
        "vector": x[0, 0],
        "array": x.numpy(),
        "none": None,
    }


def same(a, b):
    """The same bits, and None where there is None."""
    if a is None or b is None:
        return a is b
    return (
        a.dtype == b.dtype
        and a.shape == b.shape
        and torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))
    )


def narrow_pairs():
    return [(dtype, None) for dtype in DTYPES] + [(dtype, torch.float32) for dtype in NARROW]
