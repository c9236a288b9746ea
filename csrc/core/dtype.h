// The one list of dtypes: how an element is stored, what it accumulates in, how it converts.
//
// A conversion to a narrower type rounds once, to nearest, ties to even, overflows to infinity and
// turns every NaN into the one quiet positive NaN of the type, so that bits do not depend on which
// operand of an instruction a NaN came through. The SIMD levels in isa/ do the same.
#pragma once

#include <cstdint>
#include <cstring>

namespace groupnorm {

enum class DType : int { kFloat32 = 0, kFloat16 = 1, kBFloat16 = 2, kFloat64 = 3 };
inline constexpr int kDTypeCount = 4;

struct Float16 {
  uint16_t bits;
};
struct BFloat16 {
  uint16_t bits;
};

// dtype -> storage, and storage -> accumulator: the arithmetic of the kernels.
template <DType>
struct StorageOf;
template <>
struct StorageOf<DType::kFloat32> {
  using type = float;
};
template <>
struct StorageOf<DType::kFloat16> {
  using type = Float16;
};
template <>
struct StorageOf<DType::kBFloat16> {
  using type = BFloat16;
};
template <>
struct StorageOf<DType::kFloat64> {
  using type = double;
};

template <class Storage>
struct AccumulatorOf {
  using type = float;
};
template <>
struct AccumulatorOf<double> {
  using type = double;
};

inline constexpr int64_t element_size(DType dtype) {
  return dtype == DType::kFloat64 ? 8 : dtype == DType::kFloat32 ? 4 : 2;
}

template <class To, class From>
inline To bit_cast(From from) {
  static_assert(sizeof(To) == sizeof(From), "bit_cast keeps the size");
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}

inline constexpr uint32_t kNaN32 = 0x7FC00000u;
inline constexpr uint64_t kNaN64 = 0x7FF8000000000000u;
inline constexpr uint16_t kNaNFloat16 = 0x7E00u;
inline constexpr uint16_t kNaNBFloat16 = 0x7FC0u;

// Widening is exact.
inline float widen(float value) { return value; }
inline double widen(double value) { return value; }
inline float widen(BFloat16 value) { return bit_cast<float>(uint32_t{value.bits} << 16); }
inline float widen(Float16 value) {
  const uint32_t sign = uint32_t{value.bits & 0x8000u} << 16;
  const uint32_t magnitude = value.bits & 0x7FFFu;
  if (magnitude >= 0x7C00u) {  // infinity, NaN
    return bit_cast<float>(sign | 0x7F800000u | (magnitude & 0x3FFu) << 13);
  }
  if (magnitude < 0x0400u) {  // zero, subnormal: an integer count of 2^-24
    return bit_cast<float>(sign | bit_cast<uint32_t>(static_cast<float>(magnitude) * 0x1p-24f));
  }
  return bit_cast<float>(sign | ((magnitude << 13) + (112u << 23)));
}

// Narrowing from the accumulator of the type.
inline void narrow(float value, float* to) { *to = value == value ? value : bit_cast<float>(kNaN32); }
inline void narrow(double value, double* to) { *to = value == value ? value : bit_cast<double>(kNaN64); }
inline void narrow(float value, BFloat16* to) {
  const uint32_t bits = bit_cast<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16;
  to->bits = value == value ? static_cast<uint16_t>(rounded) : kNaNBFloat16;
}
inline void narrow(float value, Float16* to) {
  const uint32_t bits = bit_cast<uint32_t>(value);
  const uint16_t sign = static_cast<uint16_t>(bits >> 16 & 0x8000u);
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) {
    to->bits = kNaNFloat16;
  } else if (magnitude >= 0x47800000u) {  // 65536 and above
    to->bits = sign | 0x7C00u;
  } else if (magnitude < 0x38800000u) {  // below 2^-14: adding 0.5 rounds to a multiple of 2^-24
    const float shifted = bit_cast<float>(magnitude) + 0.5f;
    to->bits = sign | static_cast<uint16_t>(bit_cast<uint32_t>(shifted) - 0x3F000000u);
  } else {  // the carry of 65520 and above runs into the infinity
    const uint32_t rebiased = magnitude - (112u << 23);
    to->bits = sign | static_cast<uint16_t>((rebiased + 0xFFFu + (rebiased >> 13 & 1u)) >> 13);
  }
}

// Narrowing a float64 sum to any dtype, rounded once. Going through float32 would round twice, so
// that step rounds to odd: the last bit remembers whether anything was cut off.
inline float round_to_odd(double value) {
  const float nearest = static_cast<float>(value);
  const double back = nearest;
  const uint32_t bits = bit_cast<uint32_t>(nearest);
  if (back == value || value != value || (bits & 1u) != 0) return nearest;
  const bool away = (back < value) == (value > 0);  // nearest lies nearer to zero than value
  return bit_cast<float>(away ? bits + 1 : bits - 1);
}
inline void narrow_sum(double value, float* to) { narrow(static_cast<float>(value), to); }
inline void narrow_sum(double value, double* to) { narrow(value, to); }
inline void narrow_sum(double value, Float16* to) { narrow(round_to_odd(value), to); }
inline void narrow_sum(double value, BFloat16* to) { narrow(round_to_odd(value), to); }

// Calls fn with a null pointer of the dtype's storage type: one switch for the whole core.
template <class Fn>
inline void with_storage(DType dtype, Fn&& fn) {
  switch (dtype) {
    case DType::kFloat32:
      return fn(static_cast<float*>(nullptr));
    case DType::kFloat16:
      return fn(static_cast<Float16*>(nullptr));
    case DType::kBFloat16:
      return fn(static_cast<BFloat16*>(nullptr));
    case DType::kFloat64:
      return fn(static_cast<double*>(nullptr));
  }
}

}  // namespace groupnorm
