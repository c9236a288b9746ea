// What a SIMD level offers: one table of kernels, all on the same arguments.
//
// A kernel works on a Span: a rectangle of `channels` x `length` elements of one sample. What stands
// in the coefficients and in the sums is the formula's affair (formula/*-inl.h), how the rectangle
// lies in memory the layout's (layout/*-inl.h).
//
// The order of every addition is part of the contract, since it decides the bits of a result:
//   lane      position i of a channel goes to lane i % kLanes, by one fused multiply-add a term
//   block     kBlock positions, after which lanes l and l + 8 are added and go on to a sum of their own in float64
//   chunk     kChunk positions: its blocks in order; then the lanes fold in pairs, l with l + 4, 2, 1
//   channel   its chunks added in order
//   group     its channels on kLanes lanes, channel d on lane d % kLanes, folded in pairs, l with l + 8, 4, 2, 1
// A lane adds kBlock / kLanes = 8 terms in float32, everything beyond a block is float64 (docs/math.md has what that
// costs and what it saves). What is left of rounded terms, a formula's sums from kSums on, is so small that it stays in
// float32 for a chunk.
#pragma once

#include <cstdint>

#include "dtype.h"

namespace groupnorm {

enum class Layout : int { kContiguous = 0, kChannelsLast = 1 };
inline constexpr int kLayoutCount = 2;

inline constexpr int kLanes = 16;
inline constexpr int64_t kBlock = 128;
inline constexpr int64_t kChunk = 1024;

inline constexpr int kRows = 8;  // whose lanes are folded together where they are short

inline constexpr int kMaxInputs = 3;
inline constexpr int kMaxSums = 3;        // of a channel
inline constexpr int kMaxLaneSums = 5;    // of a lane: a formula joins some of them in the end
inline constexpr int kMaxGroupCoefs = 5;  // that the channels of a group share, a formula's first
inline constexpr int kMaxChannelCoefs = 3;
inline constexpr int kMaxCoefs = kMaxGroupCoefs + kMaxChannelCoefs;

struct Span {
  const void* inputs[kMaxInputs];  // elements of the dtype
  void* output;                    // apply only
  // Coefficients in the accumulator, readable up to a multiple of kLanes: of a channel each [channels]; of a group as
  // well where vectors run over channels (channels-last), else one for each group (contiguous).
  const void* group_coefs[kMaxGroupCoefs];
  const void* channel_coefs[kMaxChannelCoefs];
  double* sums[kMaxSums];  // reduce only: each [channels], overwritten
  int64_t channels;
  int64_t channels_per_group;
  int64_t length;  // positions of a channel
  int64_t stride;  // elements from channel to channel (contiguous) or position to position (channels-last)
  bool stream;     // the output would push out of the caches what is still to be read
};

// A channels-last span is reduced in pieces of so many channels and positions: of two of them, the one that is computed
// with and the one that is read meanwhile, all inputs lie in a core's own cache.
inline constexpr int64_t kSlab = 64;
inline constexpr int64_t kPiece = 256;

enum class Formula : int {
  kBackwardReduce = 0,
  kBackwardReduceRecentred,
  kBackwardApply,
  kPrintedReduce,
  kPrintedApply,
  kForwardReduce,
  kForwardApply,
  kSwishReduce,
  kSwishApply,
  kSwishForward,
};
inline constexpr int kFormulaCount = 10;

using Kernel = void (*)(const Span& span);

// What the fold takes from the sums of the channels of a span to those of its groups and of the batch. Each sum comes
// twice: of dy, and of dy * t, which the fold makes that of dy * xhat = ratio * (dy * t) - shift * dy.
template <class Acc>
struct FoldOf {
  int64_t groups, channels_per_group;
  double* sums[2];       // [groups][channels_per_group]
  const double* ratios;  // [groups]; null where the sums are of dy * xhat already
  const double* shifts;
  double* totals[2];  // of the batch so far, [groups][channels_per_group]; null where nobody asks
  bool starts;        // there is no batch so far
  const Acc* gamma;   // [groups][channels_per_group]
  double* folded[2];  // [groups]: of gamma * dy and gamma * dy * xhat; null where nobody asks
};

struct KernelTable {
  const char* name;
  Kernel kernels[kFormulaCount][kDTypeCount][kLayoutCount];
  // Sum of values[i] * weights[i] in the order of a group; weights null counts as ones.
  double (*fold32)(const double* values, const float* weights, int64_t count);
  double (*fold64)(const double* values, const double* weights, int64_t count);
  void (*fold_groups32)(const FoldOf<float>& fold);
  void (*fold_groups64)(const FoldOf<double>& fold);

  Kernel kernel(Formula formula, DType dtype, Layout layout) const {
    return kernels[static_cast<int>(formula)][static_cast<int>(dtype)][static_cast<int>(layout)];
  }
  double fold(const double* values, const float* weights, int64_t count) const {
    return fold32(values, weights, count);
  }
  double fold(const double* values, const double* weights, int64_t count) const {
    return fold64(values, weights, count);
  }
  void fold_groups(const FoldOf<float>& fold) const { fold_groups32(fold); }
  void fold_groups(const FoldOf<double>& fold) const { fold_groups64(fold); }
};

}  // namespace groupnorm
