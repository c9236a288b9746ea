"""What the operators accept, by metadata alone, so that tensors without memory are refused alike.

Errors are `TypeError` for a dtype and `ValueError` for a shape or value; each names the argument, what came and what
is accepted.
"""

from __future__ import annotations

from typing import Any, Final

import torch

from .. import spec

Tensor = torch.Tensor

CODES: Final = {
    torch.float32: spec.FLOAT32,
    torch.float16: spec.FLOAT16,
    torch.bfloat16: spec.BFLOAT16,
    torch.float64: spec.FLOAT64,
}
_NARROW: Final = (torch.float16, torch.bfloat16)
ACTIVATIONS: Final = {None: spec.NO_ACTIVATION, "silu": spec.SWISH}


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def statistics_dtype(dtype: torch.dtype) -> torch.dtype:
    """That of mean and rstd made from an input of `dtype`."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def _dtype(name: str, tensor: Tensor, accepted: tuple[torch.dtype, ...]) -> None:
    if tensor.dtype not in accepted:
        names = ", ".join(_name(dtype) for dtype in accepted)
        raise TypeError(f"{name}: dtype {_name(tensor.dtype)}; accepted: {names}")


def _shape(name: str, tensor: Tensor, shape: tuple[Any, ...], meaning: str) -> None:
    if tensor.shape != shape:
        raise ValueError(f"{name}: shape {tuple(tensor.shape)}; accepted: {tuple(shape)}, {meaning}")


def _beside(input: Tensor) -> tuple[torch.dtype, ...]:
    """The dtypes that go with an input: its own, float32 beside a 16-bit one."""
    return (input.dtype, torch.float32) if input.dtype in _NARROW else (input.dtype,)


def _groups(name: str, num_groups: int, channels: int) -> None:
    if num_groups < 1 or channels % num_groups != 0:
        raise ValueError(
            f"{name}: num_groups = {num_groups} with C = {channels} channels; accepted: a positive number of groups "
            "that divides C"
        )


def _beside_input(input: Tensor, **tensors: Tensor | None) -> None:
    for name, tensor in tensors.items():
        if tensor is not None and tensor.device != input.device:
            raise ValueError(f"{name}: on {tensor.device}; accepted: {input.device}, the device of the first tensor")


def types(input: Any, num_groups: Any, weight: Any, bias: Any, eps: Any) -> None:
    """What PyTorch refuses an operator with all of the argument in its message. What overrides functions may pass."""

    def is_one(value: Any, kinds: tuple[type, ...]) -> bool:
        return isinstance(value, kinds) or hasattr(type(value), "__torch_function__")

    for name, value in (("input", input), ("weight", weight), ("bias", bias)):
        optional = name != "input"
        if not (is_one(value, (Tensor,)) or (optional and value is None)):
            found = "None" if value is None else type(value).__name__
            raise TypeError(f"{name}: {found}; accepted: a torch.Tensor{' or None' if optional else ''}")
    if not is_one(num_groups, (int, torch.SymInt)):
        raise TypeError(f"num_groups: {num_groups!r}; accepted: an int")
    if not is_one(eps, (float, int, torch.SymFloat)):
        raise TypeError(f"eps: {eps!r}; accepted: a float")


def strided(input: Tensor) -> None:
    """What PyTorch refuses an operator without naming the argument."""
    if input.layout != torch.strided:
        raise TypeError(f"input: layout {input.layout}; accepted: {torch.strided}")


def _input(input: Tensor) -> None:
    strided(input)
    _dtype("input", input, tuple(CODES))
    if input.dim() < 2:
        raise ValueError(f"input: shape {tuple(input.shape)}; accepted: rank 2 and up, [N, C, *]")


def _activation(activation: str | None) -> None:
    if activation not in ACTIVATIONS:
        raise ValueError(f"activation: {activation!r}; accepted: 'silu' or None")


def _affine(input: Tensor, weight: Tensor | None, bias: Tensor | None) -> None:
    for name, parameter in (("weight", weight), ("bias", bias)):
        if parameter is not None:
            _dtype(name, parameter, _beside(input))
            _shape(name, parameter, (input.shape[1],), "one element per channel")


def forward(
    input: Tensor, num_groups: int, weight: Tensor | None, bias: Tensor | None, eps: float, activation: str | None
) -> None:
    """The arguments of group_norm."""
    types(input, num_groups, weight, bias, eps)  # the short way comes here without PyTorch's own check
    _input(input)
    _beside_input(input, weight=weight, bias=bias)
    _groups("num_groups", num_groups, input.shape[1])
    _affine(input, weight, bias)
    _activation(activation)
    if not -1e300 <= eps <= 1e300:  # negative ones too, as PyTorch
        raise ValueError(f"eps: {eps}; accepted: a finite number")


def backward(
    grad_output: Tensor,
    input: Tensor,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    activation: str | None,
) -> None:
    """The arguments of group_norm_backward."""
    _input(input)
    _beside_input(input, grad_output=grad_output, mean=mean, rstd=rstd, weight=weight, bias=bias)
    _dtype("grad_output", grad_output, (input.dtype,))
    _shape("grad_output", grad_output, input.shape, "the shape of input")
    _dtype("mean", mean, _beside(input))
    if mean.dim() != 2 or mean.shape[0] != input.shape[0]:
        raise ValueError(f"mean: shape {tuple(mean.shape)}; accepted: ({input.shape[0]}, num_groups), that is [N, G]")
    _groups("mean", mean.shape[1], input.shape[1])
    _dtype("rstd", rstd, (mean.dtype,))
    _shape("rstd", rstd, mean.shape, "the shape of mean")
    _affine(input, weight, bias)
    _activation(activation)


def printed(x: Tensor, dy: Tensor, gamma: Tensor, mean: Tensor, rstd: Tensor) -> None:
    """The arguments of group_normalization_grad."""
    _dtype("x", x, (torch.float32, *_NARROW))
    if not 3 <= x.dim() <= 8:
        raise ValueError(f"x: shape {tuple(x.shape)}; accepted: rank 3 to 8, [N, G, *]")
    _beside_input(x, dy=dy, gamma=gamma, mean=mean, rstd=rstd)
    for name, tensor in (("dy", dy), ("gamma", gamma), ("mean", mean), ("rstd", rstd)):
        _dtype(name, tensor, (x.dtype,))
        if name in ("dy", "gamma"):
            _shape(name, tensor, x.shape, "the shape of x")
        else:
            _shape(name, tensor, x.shape[:2], "the first two dimensions of x")
