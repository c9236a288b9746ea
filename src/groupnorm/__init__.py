"""The gradient of Group Normalization: right, fast, with the same bits everywhere.

`group_norm_backward` is the true gradient, `group_norm` the forward that makes its statistics.
`group_normalization_grad` computes what CANN's aclnnGroupNormalizationGrad prints, which is not the
gradient unless gamma is 1; `formula_gap` tells the difference.

`from groupnorm import reference, tolerance, cases`: the float64 truth, derived error bounds, named shapes and data.
"""

from importlib.metadata import version as _version

from .gap import FormulaGap, formula_gap
from .numpy import group_norm, group_norm_backward, group_normalization_grad
from .spec import GroupNormGrads, GroupNormOutputs
from .threads import get_num_threads, set_num_threads

__version__ = _version("groupnorm")

__all__ = [
    "FormulaGap",
    "GroupNormGrads",
    "GroupNormOutputs",
    "formula_gap",
    "get_num_threads",
    "group_norm",
    "group_norm_backward",
    "group_normalization_grad",
    "set_num_threads",
]
