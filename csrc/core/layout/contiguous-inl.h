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
      for (int b = 0; b < count; ++b) {
        V coef[kMaxCoefs];
        const T* in[kMaxInputs];
        broadcast_coefs<Op::kCoefs>(span, c + b, coef);
        channel_inputs<Op::kInputs>(span, c + b, in);
        reduce_block(in, 0, span.length, coef, b, blocks);
      }
      for (int k = 0; k < Op::kSums; ++k) {
        blocks.fold(k, count, sums);
        for (int b = 0; b < count; ++b) span.sums[k][c + b] = static_cast<double>(sums[b]);
      }
    }
  }

  // The blocks of several chunks are folded together, then added in order.
  static void reduce_long(const Span& span) {
    using Op = F<V>;
    Blocks blocks;
    alignas(64) Scalar sums[kLanes];
    for (int64_t c = 0; c < span.channels; ++c) {
      V coef[kMaxCoefs];
      const T* in[kMaxInputs];
      broadcast_coefs<Op::kCoefs>(span, c, coef);
      channel_inputs<Op::kInputs>(span, c, in);
      double total[Op::kSums] = {};
      for (int64_t begin = 0; begin < span.length; begin += kFolded) {
        const int64_t end = begin + kFolded < span.length ? begin + kFolded : span.length;
        int count = 0;
        for (int64_t i = begin; i < end; i += kBlock) {
          reduce_block(in, i, i + kBlock < end ? i + kBlock : end, coef, count++, blocks);
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

  static void reduce_block(const T* const* in, int64_t begin, int64_t end, const V* coef, int block, Blocks& blocks) {
    using Op = F<V>;
    V sum[kMaxSums];
    V value[kMaxInputs];
    for (int k = 0; k < Op::kSums; ++k) sum[k] = V::zero();
    int64_t i = begin;
    for (; i + kLanes <= end; i += kLanes) {
      for (int k = 0; k < Op::kInputs; ++k) value[k] = V::load(in[k] + i);
      Op::accumulate(value, coef, sum);
    }
    if (i < end) {  // lanes past the end keep what they hold
      const int rest = static_cast<int>(end - i);
      V next[kMaxSums];
      for (int k = 0; k < Op::kSums; ++k) next[k] = sum[k];
      for (int k = 0; k < Op::kInputs; ++k) value[k] = V::load(in[k] + i, rest);
      Op::accumulate(value, coef, next);
      for (int k = 0; k < Op::kSums; ++k) sum[k] = V::select_first(rest, next[k], sum[k]);
    }
    for (int k = 0; k < Op::kSums; ++k) blocks.lanes[k][block] = sum[k];
  }

  template <bool kStream>
  static void apply_channel(const Span& span, int64_t c) {
    using Op = F<V>;
    V coef[kMaxCoefs];
    V value[kMaxInputs];
    const T* in[kMaxInputs];
    broadcast_coefs<Op::kCoefs>(span, c, coef);
    channel_inputs<Op::kInputs>(span, c, in);
    T* out = static_cast<T*>(span.output) + c * span.stride;
    const auto some = [&](int64_t i, int count) {
      for (int k = 0; k < Op::kInputs; ++k) value[k] = V::load(in[k] + i, count);
      Op::apply(value, coef).store(out + i, count);
    };
    int64_t i = 0;
    if (kStream || span.length >= kWorthAligning) {  // vectors of the output on whole cache lines
      int64_t head = elements_to_line(out);
      if (head > span.length) head = span.length;
      for (; i < head; i += kLanes) some(i, static_cast<int>(head - i < kLanes ? head - i : kLanes));
      i = head;
    }
    for (; i + kLanes <= span.length; i += kLanes) {
      for (int k = 0; k < Op::kInputs; ++k) value[k] = V::load(in[k] + i);
      if constexpr (kStream) {
        Op::apply(value, coef).stream(out + i);
      } else {
        Op::apply(value, coef).store(out + i);
      }
    }
    if (i < span.length) some(i, static_cast<int>(span.length - i));
  }

  template <int kCoefs>
  static void broadcast_coefs(const Span& span, int64_t channel, V* coef) {
    for (int k = 0; k < kCoefs; ++k) {
      coef[k] = V::set1(static_cast<const Scalar*>(span.coefs[k])[channel]);
    }
  }

  template <int kInputs>
  static void channel_inputs(const Span& span, int64_t channel, const T** in) {
    for (int k = 0; k < kInputs; ++k) {
      in[k] = static_cast<const T*>(span.inputs[k]) + channel * span.stride;
    }
  }
};
