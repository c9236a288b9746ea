"""The aclnn operators through the C interface of CANN: on a device where there is one, else on this machine's CPU.

    from groupnorm import aclnn

    with aclnn.Device(0):
        dx = aclnn.group_normalization_grad(x, dy, gamma, mean, rstd)

Below that stands the interface itself: `acl = aclnn.load()` has every function as pyACL names and calls it.
docs/acl.md tells what the host libraries do as a device does, and what not.
"""

from .device import Device, DeviceArray
from .errors import AclError
from .library import Library, host_prefix, load
from .operators import (
    group_norm,
    group_norm_backward,
    group_norm_silu,
    group_norm_swish,
    group_norm_swish_grad,
    group_normalization_grad,
)

__all__ = [
    "AclError",
    "Device",
    "DeviceArray",
    "Library",
    "group_norm",
    "group_norm_backward",
    "group_norm_silu",
    "group_norm_swish",
    "group_norm_swish_grad",
    "group_normalization_grad",
    "host_prefix",
    "load",
]
