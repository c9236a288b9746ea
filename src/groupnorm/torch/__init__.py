"""Group Normalization in PyTorch: the module, the function and the operators, with their gradients.

`GroupNorm` stands in the place of `torch.nn.GroupNorm`, `group_norm` in that of `torch.nn.functional.group_norm`, and
`replace_group_norm` swaps the modules of a model. They run `torch.ops.groupnorm.*`: on CPU tensors the C++ core
(ops.py), on those of GPUs and NPUs Triton kernels (device.py).
"""

try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise ImportError("groupnorm.torch: PyTorch is not installed; accepted with the extra groupnorm[torch]") from error

from . import autograd, team, vmap
from .module import GroupNorm, Replaced, group_norm, replace_group_norm

autograd.register()
vmap.register()
team.join()

__all__ = ["GroupNorm", "Replaced", "group_norm", "replace_group_norm"]
