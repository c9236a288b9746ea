// Small operands: parameters, statistics and sums, between their dtype and what is computed in.
#pragma once

#include <algorithm>
#include <cstdint>

#include "dtype.h"

namespace groupnorm {

inline double load(const void* from, DType dtype, int64_t index) {
  double value = 0;
  with_storage(dtype, [&](auto* type) {
    value = static_cast<double>(widen(static_cast<decltype(type)>(const_cast<void*>(from))[index]));
  });
  return value;
}

inline void store(double value, void* to, DType dtype, int64_t index) {
  with_storage(dtype, [&](auto* type) { narrow_sum(value, static_cast<decltype(type)>(to) + index); });
}

// What is not given counts as `otherwise`.
template <class Acc>
void load_all(const void* from, DType dtype, int64_t count, Acc otherwise, Acc* to) {
  if (!from) {
    std::fill_n(to, count, otherwise);
    return;
  }
  with_storage(dtype, [&](auto* type) {
    const auto* values = static_cast<decltype(type)>(const_cast<void*>(from));
    for (int64_t i = 0; i < count; ++i) to[i] = static_cast<Acc>(widen(values[i]));
  });
}

inline void store_all(const double* values, int64_t count, void* to, DType dtype) {
  with_storage(dtype, [&](auto* type) {
    for (int64_t i = 0; i < count; ++i) narrow_sum(values[i], static_cast<decltype(type)>(to) + i);
  });
}

}  // namespace groupnorm
