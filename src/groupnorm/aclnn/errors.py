"""What a status of ACL or aclnn means: its name, and what most often stands behind it."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

_ACLNN = {
    161001: "ACLNN_ERR_PARAM_NULLPTR",
    161002: "ACLNN_ERR_PARAM_INVALID",
    361001: "ACLNN_ERR_RUNTIME_ERROR",
    561000: "ACLNN_ERR_INNER",
    561001: "ACLNN_ERR_INNER_INFERSHAPE_ERROR",
    561002: "ACLNN_ERR_INNER_TILING_ERROR",
    561003: "ACLNN_ERR_INNER_FIND_KERNEL_ERROR",
    561101: "ACLNN_ERR_INNER_CREATE_EXECUTOR",
    561102: "ACLNN_ERR_INNER_NOT_TRANS_EXECUTOR",
    561103: "ACLNN_ERR_INNER_NULLPTR",
    561104: "ACLNN_ERR_INNER_WRONG_ATTR_INFO_SIZE",
    561105: "ACLNN_ERR_INNER_KEY_CONFLICT",
    561106: "ACLNN_ERR_INNER_INVALID_IMPL_MODE",
    561107: "ACLNN_ERR_INNER_OPP_PATH_NOT_FOUND",
    561108: "ACLNN_ERR_INNER_LOAD_JSON_FAILED",
    561109: "ACLNN_ERR_INNER_JSON_VALUE_NOT_FOUND",
    561110: "ACLNN_ERR_INNER_JSON_FORMAT_INVALID",
    561111: "ACLNN_ERR_INNER_JSON_DTYPE_INVALID",
    561112: "ACLNN_ERR_INNER_OPP_KERNEL_PKG_NOT_FOUND",
    561113: "ACLNN_ERR_INNER_OP_FILE_INVALID",
    561114: "ACLNN_ERR_INNER_ATTR_NUM_OUT_OF_BOUND",
    561115: "ACLNN_ERR_INNER_ATTR_LEN_NOT_ENOUGH",
    561116: "ACLNN_ERR_INNER_INPUT_NUM_IN_JSON_TOO_LARGE",
    561117: "ACLNN_ERR_INNER_INPUT_JSON_IS_NULL",
    561118: "ACLNN_ERR_INNER_STATIC_WORKSPACE_INVALID",
    561119: "ACLNN_ERR_INNER_STATIC_BLOCK_DIM_INVALID",
}

_CAUSES = {
    100000: "an argument is null or out of its range",
    100001: "aclInit was not called",
    100002: "aclInit was called before in this process, which is fine",
    100037: "aclFinalize was called before, or aclInit never",
    100039: "the library that was loaded is a stub for linking; the real one is missing from the library path",
    107000: "a size or a pointer does not fit the memory it means",
    107001: "there is no such device, or no driver",
    107002: "this thread has no context: call aclrtSetDevice in this thread",
    107003: "the stream was destroyed, or belongs to another device or context",
    107017: "the handle was destroyed",
    148051: "memory, streams or events were not freed",
    161001: "a tensor or another required pointer is null",
    161002: "a dtype, shape, format or attribute is not one that the operator takes, or the workspace is too small",
    200006: "the feature does not exist on this machine",
    207000: "the feature does not exist on this machine",
    207001: "the device is out of memory",
    361001: "a runtime call failed: see the message, and the device's log",
    507035: "a kernel failed while it ran",
    507046: "the stream needs longer, or a task on it hangs",
    561000: "an executor was used twice or is not one, or (real CANN) an input is not contiguous",
    561002: "(real CANN) the operator's tiling refused the shapes: x must have 3 to 8 dimensions",
    561003: "(real CANN) the kernel package is not installed, or the chip is not one the operator is built for",
    561103: "a pointer that the library follows is null",
    561107: "(real CANN) ASCEND_OPP_PATH is not set: source set_env.sh",
}


@cache
def _names(include: Path) -> dict[int, str]:
    names: dict[int, str] = {}
    for header in ("acl/acl_base_rt.h", "acl/error_codes/rt_error_codes.h"):
        text = (include / header).read_text(encoding="utf-8")
        for name, value in re.findall(r"static const int (\w+) = (\d+);", text):
            names.setdefault(int(value), name)
    return names | _ACLNN


def _known() -> dict[int, str]:
    from .library import host_prefix

    return _names(host_prefix() / "include")


def known_codes() -> list[int]:
    """Every status that has a macro."""
    return sorted(_known())


def code_name(code: int) -> str:
    """The macro of a status, "unknown" when no header has it."""
    return _known().get(code, "unknown")


def likely_cause(code: int) -> str:
    """What most often stands behind a status, empty when nothing is known."""
    return _CAUSES.get(code, "")


class AclError(RuntimeError):
    """A call that did not return 0.

    Attributes: `function`, `code`, `name` (the code's macro), `message` (what the library says about this call, may be
    empty) and `cause` (what most often stands behind the code, may be empty).
    """

    def __init__(self, function: str, code: int, message: str) -> None:
        self.function = function
        self.code = code
        self.name = code_name(code)
        self.message = message
        self.cause = likely_cause(code)
        text = f"{function} returned {code} ({self.name})"
        if message:
            text += f": {message}"
        elif self.cause:
            text += f"; likely cause: {self.cause}"
        super().__init__(text)

    def __reduce__(self) -> tuple[type[AclError], tuple[str, int, str]]:
        return AclError, (self.function, self.code, self.message)
