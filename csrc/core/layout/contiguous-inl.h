// Contiguous spans: a channel's positions lie side by side, so a vector holds kLanes positions of one
// channel and the coefficients are broadcast.

template <template <class> class F, class V, class T>
struct Contiguous {
  using Scalar = typename V::Scalar;
  static constexpr int64_t kWorthAligning = 8 * kLanes;  // stores that cross a line cost more than a head

  static void reduce(const Span& span) {
    using Op = F<V>;
    if (span.length <= kBlock) return reduce_rows(span);
    for (int64_t c = 0; c < span.channels; ++c) {
      double total[Op::kSums] = {};
      Strand strand(span, c);
      for (int64_t begin = 0; begin < span.length; begin += kChunk) {
        const int64_t end = begin + kChunk < span.length ? begin + kChunk : span.length;
        F64 lanes[Op::kLaneSums];
        for (int k = 0; k < Op::kLaneSums; ++k) lanes[k] = F64::zero();
        for (int64_t i = begin; i < end; i += kBlock) {
          V block[Op::kLaneSums];
          sum_block(strand, i + kBlock < end ? kBlock : end - i, block);
          for (int k = 0; k < Op::kLaneSums; ++k) lanes[k] = add(lanes[k], F64::widen(block[k]));
          strand.advance(kBlock);
        }
        Op::join(lanes);
        for (int k = 0; k < Op::kSums; ++k) total[k] += lanes[k].sum();
      }
      for (int k = 0; k < Op::kSums; ++k) span.sums[k][c] = total[k];
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

  // Channels of one block: no sum in between, and the lanes of some channels are folded together.
  static void reduce_rows(const Span& span) {
    using Op = F<V>;
    for (int64_t c = 0; c < span.channels; c += kRows) {
      const int rows = static_cast<int>(span.channels - c < kRows ? span.channels - c : kRows);
      F64 lanes[Op::kSums][kRows];
      for (int r = 0; r < rows; ++r) {
        const Strand strand(span, c + r);
        V sum[Op::kLaneSums];
        F64 row[Op::kLaneSums];
        sum_block(strand, span.length, sum);
        for (int k = 0; k < Op::kLaneSums; ++k) row[k] = F64::widen(sum[k]);
        Op::join(row);
        for (int k = 0; k < Op::kSums; ++k) lanes[k][r] = row[k];
      }
      for (int k = 0; k < Op::kSums; ++k) F64::sum_rows(lanes[k], rows, span.sums[k] + c);
    }
  }

  // The sums of a block, lane by lane. One block at a time: two, whose additions would not wait for each other, are
  // half a KiB apart, and hardware that reads ahead takes them for two streams.
  template <int kLaneSums>
  static void sum_block(const Strand& strand, int64_t length, V (&sum)[kLaneSums]) {
    using Op = F<V>;
    V value[kMaxInputs];
    for (int k = 0; k < kLaneSums; ++k) sum[k] = V::zero();
    int64_t i = 0;
    for (; i + kLanes <= length; i += kLanes) {
      for (int k = 0; k < Op::kInputs; ++k) value[k] = V::load(strand.in[k] + i);
      Op::accumulate(value, strand.coef, sum);
    }
    if (i < length) {  // lanes past the end keep what they hold
      const int rest = static_cast<int>(length - i);
      V next[kLaneSums];
      for (int k = 0; k < kLaneSums; ++k) next[k] = sum[k];
      for (int k = 0; k < Op::kInputs; ++k) value[k] = V::load(strand.in[k] + i, rest);
      Op::accumulate(value, strand.coef, next);
      for (int k = 0; k < kLaneSums; ++k) sum[k] = V::select_first(rest, next[k], sum[k]);
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
