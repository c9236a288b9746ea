// The short way from NumPy to the core, for calls whose arrays are plain: of NumPy's own class, aligned, dense in a
// layout of the core, of dtypes and shapes that go together, outputs apart from the rest. Each says None, having
// touched nothing, to whatever is not: the long way (src/groupnorm/numpy.py) copies it, or names the mistake. So what
// is accepted here must be accepted there, with the same results; the reverse need not hold.
#pragma once

#include <nanobind/nanobind.h>

namespace groupnorm::plain {

// Before any other; throws where NumPy cannot be had.
void init();

// Makes known the number of ml_dtypes' bfloat16, which NumPy gives out at run time.
void register_bfloat16(int number);

// `mask` is a tuple of three booleans; `threads` has been checked, `out` has not.
nanobind::object group_norm_backward(nanobind::handle dy, nanobind::handle x, nanobind::handle mean,
                                     nanobind::handle rstd, nanobind::handle gamma, nanobind::handle mask,
                                     nanobind::handle out, int threads);
nanobind::object group_normalization_grad(nanobind::handle x, nanobind::handle dy, nanobind::handle gamma,
                                          nanobind::handle mean, nanobind::handle rstd, nanobind::handle out,
                                          int threads);
nanobind::object group_norm(nanobind::handle x, nanobind::handle num_groups, nanobind::handle gamma,
                            nanobind::handle beta, nanobind::handle eps, nanobind::handle out, int threads);

}  // namespace groupnorm::plain
