// Contiguous spans: a channel's positions lie side by side, so a vector holds kLanes positions of one
// channel and the coefficients are broadcast.

template <template <class> class F, class V, class T>
struct Contiguous {
  using Scalar = typename V::Scalar;
  static constexpr int64_t kWorthAligning = 8 * kLanes;  // stores that cross a line cost more than a head

  static void reduce(const Span& span) {
    if (span.length <= kBlock) {
      reduce_short(span);
    } else {
      reduce_long(span);
    }
  }

  static void apply(const Span& span) {
    for (int64_t c = 0; c < span.channels; ++c) {
      if (span.stream) {
        apply_channel<true>(span, c);
      } else {
        apply_channel<false>(span, c);
      }
    }
    if (span.stream) V::fence();
  }

 private:
  // The sums of kLanes blocks wait to be folded together.
  static constexpr int64_t kFolded = kLanes * kBlock;
  static_assert(kFolded % kChunk == 0, "whole chunks are folded together");
  struct Blocks {
    V lanes[kMaxSums][kLanes];

    // Sum k of each of the first `count` blocks.
    void fold(int k, int count, Scalar* sums) {
      for (int b = count; b < kLanes; ++b) lanes[k][b] = V::zero();
      V::sum_each(lanes[k]).store_raw(sums);
    }
  };

  // One block a channel: kLanes channels are folded at a time.
  static void reduce_short(const Span& span) {
    using Op = F<V>;
    Blocks blocks;
    alignas(64) Scalar sums[kLanes];
    for (int64_t c = 0; c < span.channels; c += kLanes) {
      const int count = static_cast<int>(span.channels - c < kLanes ? span.channels - c : kLanes);
      int b = 0;
      for (; b + 2 <= count; b += 2) {
        const Strand pair[2] = {Strand(span, c + b), Strand(span, c + b + 1)};
        reduce_blocks<2>(pair, span.length, b, blocks);
      }
      if (b < count) {
        const Strand one(span, c + b);
        reduce_blocks<1>(&one, span.length, b, blocks);
      }
      for (int k = 0; k < Op::kSums; ++k) {
        blocks.fold(k, count, sums);
        for (int i = 0; i < count; ++i) span.sums[k][c + i] = static_cast<double>(sums[i]);
      }
    }
  }

  // The blocks of several chunks are folded together, then added in order.
  static void reduce_long(const Span& span) {
    using Op = F<V>;
    Blocks blocks;
    alignas(64) Scalar sums[kLanes];
    for (int64_t c = 0; c < span.channels; ++c) {
      double total[Op::kSums] = {};
      for (int64_t begin = 0; begin < span.length; begin += kFolded) {
        const int64_t end = begin + kFolded < span.length ? begin + kFolded : span.length;
        Strand pair[2] = {Strand(span, c), Strand(span, c)};
        pair[0].advance(begin);
        pair[1].advance(begin + kBlock);
        int count = 0;
        int64_t i = begin;
        for (; i + 2 * kBlock <= end; i += 2 * kBlock) {
          reduce_blocks<2>(pair, kBlock, count, blocks);
          pair[0].advance(2 * kBlock);
          pair[1].advance(2 * kBlock);
          count += 2;
        }
        for (; i < end; i += kBlock) {
          reduce_blocks<1>(pair, i + kBlock < end ? kBlock : end - i, count++, blocks);
          pair[0].advance(kBlock);
        }
        for (int k = 0; k < Op::kSums; ++k) {
          blocks.fold(k, count, sums);
          add_chunks(sums, count, &total[k]);
        }
      }
      for (int k = 0; k < Op::kSums; ++k) span.sums[k][c] = total[k];
    }
  }

  static void add_chunks(const Scalar* blocks, int count, double* total) {
    constexpr int kBlocks = static_cast<int>(kChunk / kBlock);
    for (int first = 0; first < count; first += kBlocks) {
      double chunk = 0;
      for (int b = first; b < first + kBlocks && b < count; ++b) chunk += static_cast<double>(blocks[b]);
      *total += chunk;
    }
  }

  // Where a channel is read, and its coefficients.
  struct Strand {
    const T* in[kMaxInputs];
    V coef[kMaxCoefs];

    Strand(const Span& span, int64_t channel) {
      for (int k = 0; k < F<V>::kInputs; ++k) {
        in[k] = static_cast<const T*>(span.inputs[k]) + channel * span.stride;
      }
      for (int k = 0; k < F<V>::kCoefs; ++k) {
        coef[k] = V::set1(static_cast<const Scalar*>(span.coefs[k])[channel]);
      }
    }
    void advance(int64_t positions) {
      for (int k = 0; k < F<V>::kInputs; ++k) in[k] += positions;
    }
  };

  // Blocks `first` and on, one a strand. Two at a time: an addition has to wait for the one before it on its
  // lane, and the other block fills that time.
  template <int kStrands>
  static void reduce_blocks(const Strand* strands, int64_t length, int first, Blocks& blocks) {
    using Op = F<V>;
    V sum[kStrands][kMaxSums];
    V value[kMaxInputs];
    for (int s = 0; s < kStrands; ++s) {
      for (int k = 0; k < Op::kSums; ++k) sum[s][k] = V::zero();
    }
    int64_t i = 0;
    for (; i + kLanes <= length; i += kLanes) {
      for (int s = 0; s < kStrands; ++s) {
        for (int k = 0; k < Op::kInputs; ++k) value[k] = V::load(strands[s].in[k] + i);
        Op::accumulate(value, strands[s].coef, sum[s]);
      }
    }
    if (i < length) {  // lanes past the end keep what they hold
      const int rest = static_cast<int>(length - i);
      for (int s = 0; s < kStrands; ++s) {
        V next[kMaxSums];
        for (int k = 0; k < Op::kSums; ++k) next[k] = sum[s][k];
        for (int k = 0; k < Op::kInputs; ++k) value[k] = V::load(strands[s].in[k] + i, rest);
        Op::accumulate(value, strands[s].coef, next);
        for (int k = 0; k < Op::kSums; ++k) sum[s][k] = V::select_first(rest, next[k], sum[s][k]);
      }
    }
    for (int s = 0; s < kStrands; ++s) {
      for (int k = 0; k < Op::kSums; ++k) blocks.lanes[k][first + s] = sum[s][k];
    }
  }

  template <bool kStream>
  static void apply_channel(const Span& span, int64_t c) {
    using Op = F<V>;
    const Strand strand(span, c);
    V value[kMaxInputs];
    T* out = static_cast<T*>(span.output) + c * span.stride;
    const auto some = [&](int64_t i, int count) {
      for (int k = 0; k < Op::kInputs; ++k) value[k] = V::load(strand.in[k] + i, count);
      Op::apply(value, strand.coef).store(out + i, count);
    };
    int64_t i = 0;
    if (kStream || span.length >= kWorthAligning) {  // vectors of the output on whole cache lines
      int64_t head = elements_to_line(out);
      if (head > span.length) head = span.length;
      for (; i < head; i += kLanes) some(i, static_cast<int>(head - i < kLanes ? head - i : kLanes));
      i = head;
    }
    for (; i + kLanes <= span.length; i += kLanes) {
      for (int k = 0; k < Op::kInputs; ++k) value[k] = V::load(strand.in[k] + i);
      if constexpr (kStream) {
        Op::apply(value, strand.coef).stream(out + i);
      } else {
        Op::apply(value, strand.coef).store(out + i);
      }
    }
    if (i < span.length) some(i, static_cast<int>(span.length - i));
  }
};
