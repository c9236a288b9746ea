// Channels-last spans: the channels of a position lie side by side, so a vector holds kLanes channels
// of one position and carries a vector of coefficients. Rows are taken in the order of memory, whole,
// since that is what hardware reads ahead. Lanes in the sense of the summation order are then kLanes
// rows of accumulators, kept in span.lanes.

template <template <class> class F, class V, class T>
struct ChannelsLast {
  using Op = F<V>;
  using Scalar = typename V::Scalar;

  static void reduce(const Span& span) {
    if (span.length == 1) return reduce_one(span);
    for (int64_t begin = 0; begin < span.length; begin += kChunk) {
      const int64_t end = begin + kChunk < span.length ? begin + kChunk : span.length;
      for (int64_t i = begin; i < end; i += kBlock) {
        reduce_block(span, i, i + kBlock < end ? i + kBlock : end, i == begin);
      }
      if (span.length <= kChunk) return;
      for (int k = 0; k < Op::kSums; ++k) {
        const double* chunk = chunk_sums(span, k);
        double* total = span.sums[k];
        for (int64_t c = 0; c < span.channels; ++c) total[c] = begin == 0 ? chunk[c] : total[c] + chunk[c];
      }
    }
  }

  static void apply(const Span& span) {
    T* out = static_cast<T*>(span.output);
    // Vectors of the output on whole cache lines, in every row or in none.
    const bool aligned = span.stride * static_cast<int64_t>(sizeof(T)) % 64 == 0;
    int64_t head = aligned ? elements_to_line(out) : 0;
    if (head > span.channels) head = span.channels;
    const int64_t whole = head + (span.channels - head) / kLanes * kLanes;
    const Rows rows(span);
    for (int64_t i = 0; i < span.length;) {
      const int64_t row = i * span.stride;
      // Two rows share their coefficients where caches feed them; from memory one after the other comes faster.
      const int count = span.stream || i + 1 == span.length ? 1 : 2;
      for (int64_t c = 0; c < head; c += kLanes) rows.apply_part(row, c, count, lanes_at(c, head), out);
      if (span.stream && aligned) {
        rows.template apply_whole<1, true>(row, head, whole, out);
      } else if (count == 1) {
        rows.template apply_whole<1, false>(row, head, whole, out);
      } else {
        rows.template apply_whole<2, false>(row, head, whole, out);
      }
      if (whole < span.channels) rows.apply_part(row, whole, count, lanes_at(whole, span.channels), out);
      i += count;
    }
    if (span.stream) V::fence();
  }

 private:
  // The lanes of the vector at `channel`: all, but for the last before `channels`.
  static int lanes_at(int64_t channel, int64_t channels) {
    return static_cast<int>(channels - channel < kLanes ? channels - channel : kLanes);
  }

  // The pointers of a span on their own: a store to the output could change a Span, for all the compiler knows.
  struct Rows {
    const T* in[Op::kInputs];
    const Scalar* coefs[Op::kCoefs > 0 ? Op::kCoefs : 1];
    int64_t stride;

    explicit Rows(const Span& span) : stride(span.stride) {
      for (int k = 0; k < Op::kInputs; ++k) in[k] = static_cast<const T*>(span.inputs[k]);
      for (int k = 0; k < Op::kCoefs; ++k) coefs[k] = static_cast<const Scalar*>(span.coefs[k]);
    }

    void load_coefs(int64_t c, V* coef) const {
      for (int k = 0; k < Op::kCoefs; ++k) coef[k] = V::load(coefs[k] + c);
    }

    // Whole vectors of kRows rows from `row` on, at the channels [begin, end).
    template <int kRows, bool kStream>
    void apply_whole(int64_t row, int64_t begin, int64_t end, T* out) const {
      for (int64_t c = begin; c < end; c += kLanes) {
        V coef[kMaxCoefs];
        load_coefs(c, coef);
        for (int r = 0; r < kRows; ++r) {
          const int64_t at = row + r * stride + c;
          V value[kMaxInputs];
          for (int k = 0; k < Op::kInputs; ++k) value[k] = V::load(in[k] + at);
          const V result = Op::apply(value, coef);
          if (kStream) {
            result.stream(out + at);
          } else {
            result.store(out + at);
          }
        }
      }
    }

    // One vector of `lanes` lanes in each of `count` rows.
    void apply_part(int64_t row, int64_t c, int count, int lanes, T* out) const {
      V coef[kMaxCoefs];
      load_coefs(c, coef);
      for (int r = 0; r < count; ++r) {
        const int64_t at = row + r * stride + c;
        V value[kMaxInputs];
        for (int k = 0; k < Op::kInputs; ++k) value[k] = V::load(in[k] + at, lanes);
        Op::apply(value, coef).store(out + at, lanes);
      }
    }

    // Adds a row to its lane, whose accumulators of sum k lie at sums + k * pitch; starts them when `first`.
    template <bool kFirst>
    void accumulate(int64_t row, int64_t channels, Scalar* sums, int64_t pitch) const {
      int64_t c = 0;
      for (; c + kLanes <= channels; c += kLanes) accumulate_at<kFirst>(row, c, kLanes, sums + c, pitch);
      if (c < channels) accumulate_at<kFirst>(row, c, lanes_at(c, channels), sums + c, pitch);
    }

    template <bool kFirst>
    void accumulate_at(int64_t row, int64_t c, int lanes, Scalar* sums, int64_t pitch) const {
      V coef[kMaxCoefs];
      V value[kMaxInputs];
      V sum[Op::kSums];
      load_coefs(c, coef);
      for (int k = 0; k < Op::kInputs; ++k) {
        value[k] = lanes == kLanes ? V::load(in[k] + row + c) : V::load(in[k] + row + c, lanes);
      }
      for (int k = 0; k < Op::kSums; ++k) sum[k] = kFirst ? V::zero() : V::load(sums + k * pitch);
      Op::accumulate(value, coef, sum);
      for (int k = 0; k < Op::kSums; ++k) sum[k].store_raw(sums + k * pitch);
    }
  };

  // Sum k of the chunk at hand; the only chunk of a channel is its whole sum.
  static double* chunk_sums(const Span& span, int k) {
    return span.length <= kChunk ? span.sums[k] : span.partial + k * span.channels;
  }

  // A channel of one position is one term.
  static void reduce_one(const Span& span) {
    const Rows rows(span);
    alignas(64) Scalar terms[Op::kSums][kLanes];
    for (int64_t c = 0; c < span.channels; c += kLanes) {
      const int lanes = lanes_at(c, span.channels);
      rows.template accumulate_at<true>(0, c, lanes, terms[0], kLanes);
      for (int k = 0; k < Op::kSums; ++k) {
        for (int l = 0; l < lanes; ++l) span.sums[k][c + l] = static_cast<double>(terms[k][l]);
      }
    }
  }

  static void reduce_block(const Span& span, int64_t begin, int64_t end, bool first_of_chunk) {
    const Rows rows(span);
    const int used = static_cast<int>(end - begin < kLanes ? end - begin : kLanes);
    const int64_t width = (span.channels + kLanes - 1) / kLanes * kLanes;
    Scalar* const lanes = static_cast<Scalar*>(span.lanes);  // [kLanes][kSums][width]
    for (int64_t i = begin; i < end; ++i) {
      Scalar* const sums = lanes + (i - begin) % kLanes * Op::kSums * width;
      if (i - begin < kLanes) {
        rows.template accumulate<true>(i * span.stride, span.channels, sums, width);
      } else {
        rows.template accumulate<false>(i * span.stride, span.channels, sums, width);
      }
    }
    // Adding to 0 and setting are the same: no sum is -0.
    for (int k = 0; k < Op::kSums; ++k) {
      double* chunk = chunk_sums(span, k);
      for (int64_t c = 0; c < span.channels; c += kLanes) {
        alignas(64) Scalar folded[kLanes];
        fold_lanes(lanes + k * width + c, Op::kSums * width, used).store_raw(folded);
        for (int l = 0; l < lanes_at(c, span.channels); ++l) {
          const double sum = static_cast<double>(folded[l]);
          chunk[c + l] = first_of_chunk ? sum : chunk[c + l] + sum;
        }
      }
    }
  }

  // The fold of a block: V::sum() with a vector of channels in place of each lane. A lane that was
  // never used counts as zero, and adding zero to a sum that started from zero changes no bit.
  static V fold_lanes(const Scalar* lanes, int64_t pitch, int used) {
    V sum[kLanes];
    for (int l = 0; l < used; ++l) sum[l] = V::load(lanes + l * pitch);
    for (int half = kLanes / 2; half > 0; half /= 2) {
      for (int l = 0; l < half && l + half < used; ++l) sum[l] = add(sum[l], sum[l + half]);
      if (used > half) used = half;
    }
    return sum[0];
  }
};
