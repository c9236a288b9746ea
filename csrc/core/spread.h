// A formula on a span: by the calling thread, or in pieces by all of them.
#pragma once

#include <iterator>

#include "parallel.h"
#include "plan.h"

namespace groupnorm {

template <class Acc>
class Spread {
 public:
  // partial: [chunks][kMaxSums][width], used where the plan is split.
  Spread(const Problem& problem, const KernelTable& table, const Plan& plan, double* partial)
      : problem_(problem), table_(table), plan_(plan), partial_(partial) {}

  void reduce(Formula formula, int sums, const Span& span) const {
    const Kernel kernel = table_.kernel(formula, problem_.dtype, plan_.layout);
    if (!plan_.split) return kernel(span);
    const int64_t chunk_doubles = kMaxSums * plan_.width;
    for_pieces(span, [&](Span piece, int64_t channel, int64_t chunk) {
      for (int k = 0; k < sums; ++k) piece.sums[k] = partial_ + chunk * chunk_doubles + k * plan_.width + channel;
      kernel(piece);
    });
    for (int k = 0; k < sums; ++k) {
      for (int64_t c = 0; c < span.channels; ++c) {
        double total = 0;
        for (int64_t chunk = 0; chunk < plan_.chunks; ++chunk) {
          total += partial_[chunk * chunk_doubles + k * plan_.width + c];
        }
        span.sums[k][c] = total;
      }
    }
  }

  void apply(Formula formula, const Span& span) const {
    const Kernel kernel = table_.kernel(formula, problem_.dtype, plan_.layout);
    if (!plan_.split) return kernel(span);
    for_pieces(span, [&](const Span& piece, int64_t, int64_t) { kernel(piece); });
  }

 private:
  // A piece is one chunk of some channels, in whole vectors where vectors run over channels.
  template <class Fn>
  void for_pieces(const Span& span, Fn&& fn) const {
    const int64_t unit = plan_.layout == Layout::kContiguous ? 1 : kLanes;
    const int64_t wanted = (4 * plan_.workers + plan_.chunks - 1) / plan_.chunks;
    const int64_t per_part = round_up((span.channels + wanted - 1) / wanted, unit);
    const int64_t parts = (span.channels + per_part - 1) / per_part;
    const int64_t element = element_size(problem_.dtype);
    parallel_for(parts * plan_.chunks, plan_.workers, [&](int64_t index, int) {
      const int64_t channel = index % parts * per_part;
      const int64_t chunk = index / parts;
      Span piece = span;
      piece.channels = std::min(per_part, span.channels - channel);
      piece.length = std::min(kChunk, span.length - chunk * kChunk);
      const int64_t bytes = plan_.offset(span, channel, chunk * kChunk) * element;
      for (const void*& input : piece.inputs) input = input ? static_cast<const char*>(input) + bytes : nullptr;
      piece.output = span.output ? static_cast<char*>(span.output) + bytes : nullptr;
      const auto skip = [](const void*& coefs, int64_t count) {
        if (coefs) coefs = static_cast<const Acc*>(coefs) + count;
      };
      for (const void*& coefs : piece.channel_coefs) skip(coefs, channel);
      // Split, a contiguous span is one group.
      for (const void*& coefs : piece.group_coefs) skip(coefs, plan_.layout == Layout::kContiguous ? 0 : channel);
      fn(piece, channel, chunk);
    });
  }

  const Problem& problem_;
  const KernelTable& table_;
  const Plan& plan_;
  double* partial_;
};

}  // namespace groupnorm
