// What the short ways, of NumPy and of PyTorch, take.
#pragma once

#include <algorithm>

#include "../core/group_norm.h"

namespace groupnorm {

// Whether gamma, beta, mean and rstd go with x: in its dtype, or in float32 beside 16-bit x.
inline bool goes_with(DType parameter, DType x) {
  return parameter == x || (parameter == DType::kFloat32 && (x == DType::kFloat16 || x == DType::kBFloat16));
}

// How an array lies in memory, from its strides. Strides of dimensions of size 1 do not count, and none do in an
// array without elements.

// Whether [N, C, *] lies as [N, C, *], in steps of `unit`.
template <typename Integer>
bool is_contiguous(int rank, const Integer* shape, const Integer* strides, Integer unit) {
  if (std::find(shape, shape + rank, Integer{0}) != shape + rank) return true;
  Integer expected = unit;
  for (int axis = rank - 1; axis >= 0; --axis) {
    if (shape[axis] != 1 && strides[axis] != expected) return false;
    expected *= shape[axis];
  }
  return true;
}

// Whether [N, C, *] lies as [N, *, C].
template <typename Integer>
bool is_channels_last(int rank, const Integer* shape, const Integer* strides, Integer unit) {
  if (rank < 3) return false;
  Integer expected = unit;
  const auto fits = [&](int axis) {
    if (shape[axis] != 1 && strides[axis] != expected) return false;
    expected *= shape[axis];
    return true;
  };
  if (!fits(1)) return false;
  for (int axis = rank - 1; axis >= 2; --axis) {
    if (!fits(axis)) return false;
  }
  return fits(0);
}

// ---- operands of PyTorch, as both of its ways see them: present, dtype, rank(), size(axis), same_shape(other),
// has_shape({...}), lies_in(layout) ----

template <class Operand>
bool layout_of(const Operand& x, Layout* layout) {
  *layout = x.lies_in(Layout::kContiguous) ? Layout::kContiguous : Layout::kChannelsLast;
  return x.lies_in(*layout);
}

template <class Operand>
bool is_affine(const Operand& parameter, const Operand& x) {
  return !parameter.present || (goes_with(parameter.dtype, x.dtype) && parameter.has_shape({x.size(1)}) &&
                                parameter.lies_in(Layout::kContiguous));
}

template <class Operand>
bool fit_forward(const Operand& x, const Operand& gamma, const Operand& beta, int64_t groups, double eps,
                 Layout* layout) {
  return x.rank() >= 2 && groups >= 1 && x.size(1) % groups == 0 && eps >= -1e300 && eps <= 1e300 &&
         layout_of(x, layout) && is_affine(gamma, x) && is_affine(beta, x);
}

template <class Operand>
bool fit_backward(const Operand& dy, const Operand& x, const Operand& mean, const Operand& rstd, const Operand& gamma,
                  const Operand& beta, Layout* layout) {
  if (x.rank() < 2 || dy.dtype != x.dtype || !dy.same_shape(x) || !layout_of(x, layout) || !dy.lies_in(*layout) ||
      mean.rank() != 2 || rstd.dtype != mean.dtype || !goes_with(mean.dtype, x.dtype)) {
    return false;
  }
  const int64_t groups = mean.size(1);
  for (const Operand* stats : {&mean, &rstd}) {
    if (!stats->has_shape({x.size(0), groups}) || !stats->lies_in(Layout::kContiguous)) return false;
  }
  return groups >= 1 && x.size(1) % groups == 0 && is_affine(gamma, x) && is_affine(beta, x);
}

// The dtype of the statistics that a forward makes.
inline DType statistics_of(DType x) { return x == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32; }

// What the core takes.
template <class Operand>
Problem problem_of(Operator op, const Operand& x, const Operand& gamma, const Operand& beta, DType stats, Layout layout,
                   int64_t groups, Activation activation) {
  Problem problem{};
  problem.op = op;
  problem.dtype = x.dtype;
  problem.gamma_dtype = gamma.present ? gamma.dtype : stats;
  problem.beta_dtype = beta.present ? beta.dtype : op == Operator::kGroupNorm ? stats : problem.gamma_dtype;
  problem.stats_dtype = stats;
  problem.layout = layout;
  problem.n = x.size(0);
  problem.channels = x.size(1);
  problem.length = 1;
  for (int axis = 2; axis < x.rank(); ++axis) problem.length *= x.size(axis);
  problem.groups = groups;
  problem.activation = activation;
  return problem;
}

}  // namespace groupnorm
