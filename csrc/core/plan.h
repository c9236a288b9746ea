// How a problem is cut: spans of whole groups that stay in cache between reduce and apply, slots of
// the batch that own the sums of dgamma and dbeta, and tasks for the threads. Slots depend on the
// shape alone, since they decide an order of additions; the rest decides no bit.
#pragma once

#include <algorithm>

#include "group_norm.h"

namespace groupnorm {

// Scratch is measured in units of 64 bytes, a cache line.
inline constexpr int64_t kLine = 64;
inline constexpr int64_t round_up(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

struct Plan {
  Layout layout;
  int64_t channels_per_group;
  int64_t coefs_per_group;  // of what its channels share: one each where vectors run over channels, else one
  int64_t groups_per_span;
  int64_t spans;   // of one sample
  int64_t slots;   // of the batch
  int64_t chunks;  // of a channel
  int64_t width;   // channels of a span, padded for whole vectors
  int workers;
  bool split;      // one task at a time, its pieces over all threads
  bool keep_sums;  // dgamma or dbeta is asked for
  bool stream;     // the tensors are larger than half the last cache: results go past it
  // Bytes of the parts of the workspace.
  int64_t affine_bytes;   // gamma or beta in the accumulator, [C] padded
  int64_t slot_bytes;     // two sums of one slot, [2][C]
  int64_t partial_bytes;  // split only: sums of all chunks, [chunks][kMaxSums][width]
  int64_t scratch_bytes;  // one worker: coefficients and sums of a span
  int64_t total_bytes;

  // Elements from the first of a span to another.
  int64_t offset(const Span& span, int64_t channel, int64_t position) const {
    return layout == Layout::kContiguous ? channel * span.stride + position : position * span.stride + channel;
  }
  int64_t slot_begin(int64_t slot, int64_t n) const { return slot * (n / slots) + std::min(slot, n % slots); }
};

Plan make_plan(const Problem& problem, const Outputs& outputs, int threads);

}  // namespace groupnorm
