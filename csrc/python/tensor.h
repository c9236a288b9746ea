// The short way from PyTorch to the core, as plain.h is that from NumPy: for tensors of PyTorch's own class on the CPU,
// dense in a layout of the core, of dtypes and shapes that go together. Each says None, having touched nothing, to
// whatever is not, and the long way (src/groupnorm/torch/ops.py) copies it or names the mistake. What is accepted here
// must be accepted there, with the same results; the reverse need not hold.
//
// A tensor is read through the functions in C that it offers for that (DLPack's exchange API), which need nothing of
// PyTorch when this is compiled. Memory for results comes from the function that its compiler has for that, or from
// empty_like and new_empty.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>

namespace groupnorm::tensor {

// Makes the module torch known; false where it does not offer what is needed, and then all calls say None.
bool use(nanobind::handle torch);

// Whether each of a tuple is plain, of any dtype and layout, or None.
bool are_plain(nanobind::handle tensors);

// The arguments of the operators of ops.py. Where a gradient `may` be recorded and a tensor asks for one, None;
// likewise where there `may_negate` be a negation that a tensor has still before it, and one has.
nanobind::object group_norm_backward(bool may_record, bool may_negate, int threads, nanobind::handle dy,
                                     nanobind::handle x, nanobind::handle mean, nanobind::handle rstd,
                                     nanobind::handle gamma, nanobind::handle beta, nanobind::handle mask,
                                     nanobind::handle activation);
nanobind::object group_norm(bool may_record, bool may_negate, int threads, nanobind::handle x,
                            nanobind::handle num_groups, nanobind::handle gamma, nanobind::handle beta,
                            nanobind::handle eps, nanobind::handle activation);

}  // namespace groupnorm::tensor
