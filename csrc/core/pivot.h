// What the kernels subtract and multiply by in the place of mean and rstd (docs/math.md, "The pivot").
//
// Both keep xhat from being rounded the same way again and again, which a long sum collects as a bias: all x of
// a binade are multiples of one ulp, so x - mean rounds off the same low bits of the mean each time, and equal x
// (zeros of a ReLU, anything in 16 bits) round alike when multiplied by rstd. A pivot that is a multiple of the
// ulp of 128 standard deviations keeps its bits, a power of two rounds nothing.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "dtype.h"

namespace groupnorm {

// The mean as a multiple of the ulp of 128 deviations; itself where it is one anyway or there is no deviation.
template <class Acc>
inline Acc pivot_of(double mean, double deviation) {
  const int exponent = static_cast<int>(bit_cast<uint64_t>(deviation) >> 52 & 0x7FF) - 1023;
  constexpr int kDigits = std::numeric_limits<Acc>::digits;
  const Acc itself = static_cast<Acc>(mean);
  if (!(deviation > 0) || exponent < -800 || exponent > 800) return itself;
  const double grid = bit_cast<double>(static_cast<uint64_t>(exponent + 8 - kDigits + 1023) << 52);
  if (!(std::abs(mean) < grid * (uint64_t{1} << (kDigits - 1)))) return itself;  // a multiple of the grid by itself
  // Numbers around 1.5 * 2^52 grids are whole multiples of it: the sum is rounded to one.
  const double rounder = grid * 0x1.8p52;
  return static_cast<Acc>((mean + rounder) - rounder);
}

// The same by a few of `count` elements, evenly spaced from the first to the last: at(i) is one. 0 where they are not
// finite.
template <class Acc, class At>
inline Acc pivot_by_sample(int64_t count, At&& at) {
  constexpr int64_t kSample = 16;
  constexpr int kStrands = 4;  // so that additions do not wait for each other
  const int64_t step = (count - 1) / (kSample - 1);
  const int64_t rest = (count - 1) % (kSample - 1);
  double sums[kStrands] = {};
  double squares[kStrands] = {};
  for (int64_t i = 0; i < kSample; ++i) {
    const double value = static_cast<double>(at(step * i + rest * i / (kSample - 1)));
    sums[i % kStrands] += value;
    squares[i % kStrands] += value * value;
  }
  const double mean = ((sums[0] + sums[2]) + (sums[1] + sums[3])) / kSample;
  const double square = ((squares[0] + squares[2]) + (squares[1] + squares[3])) / kSample;
  const double variance = square - mean * mean;
  return std::isfinite(variance) ? pivot_of<Acc>(mean, variance > 0 ? std::sqrt(variance) : 0) : Acc{0};
}

// rstd as power * ratio: a power of two with its sign, and what is left, a float64. The power is the one next below
// |rstd|, or as near to it as Acc has one that leaves power * pivot well inside its range. What is not finite, and 0,
// is its own power.
struct Binary {
  double power;
  double ratio;
};

template <class Acc>
inline Binary binary(double rstd, double pivot) {
  constexpr double kSmallest = static_cast<double>(std::numeric_limits<Acc>::min());
  constexpr double kLargest = static_cast<double>(std::numeric_limits<Acc>::max());
  constexpr uint64_t kFraction = (uint64_t{1} << 52) - 1;
  const uint64_t bits = bit_cast<uint64_t>(rstd);
  const Binary next{bit_cast<double>(bits & ~kFraction), bit_cast<double>((bits & kFraction) | uint64_t{1023} << 52)};
  const bool ordinary = std::abs(rstd) >= kSmallest && std::isfinite(rstd);
  if (ordinary && std::abs(pivot * next.power) <= kLargest / 8) return next;  // every group of every call comes by
  if (rstd == 0 || !std::isfinite(rstd)) return {rstd, 1};
  int exponent = std::max(std::ilogb(rstd), std::numeric_limits<Acc>::min_exponent - 1);
  if (pivot != 0 && std::isfinite(pivot)) {
    exponent = std::min(exponent, std::numeric_limits<Acc>::max_exponent - 3 - std::ilogb(pivot));
  }
  const double power = std::copysign(std::ldexp(1.0, exponent), rstd);
  return {power, rstd / power};
}

// To Acc, where a finite value stays finite: the largest number stands for all above it.
template <class Acc>
inline Acc saturated(double value) {
  constexpr double kLargest = static_cast<double>(std::numeric_limits<Acc>::max());
  return static_cast<Acc>(std::isfinite(value) ? std::min(std::max(value, -kLargest), kLargest) : value);
}

}  // namespace groupnorm
