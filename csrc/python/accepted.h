// What both short ways, of NumPy and of PyTorch, take.
#pragma once

#include <algorithm>

#include "../core/dtype.h"

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

}  // namespace groupnorm
