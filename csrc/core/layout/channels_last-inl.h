// Channels-last spans: the channels of a position lie side by side, so a vector holds kLanes channels
// of one position and carries a vector of coefficients. Lanes in the sense of the summation order are
// then kLanes vectors of accumulators, kept in memory for a slab of channels that fits the L1 cache.

template <template <class> class F, class V, class T>
struct ChannelsLast {
  using Scalar = typename V::Scalar;
  static constexpr int64_t kSlab = 128;  // channels
  static constexpr int64_t kRows = 4;    // positions of one lane taken while its accumulators are in registers
  static constexpr int64_t kBand = kRows * kLanes;  // positions that a slab is reduced by at a time

  static void reduce(const Span& span) {
    using Op = F<V>;
    if (span.length == 1) return reduce_one(span);
    for (int64_t c = 0; c < span.channels; c += kSlab) {
      const int64_t width = span.channels - c < kSlab ? span.channels - c : kSlab;
      double total[Op::kSums][kSlab];
      double chunk[Op::kSums][kSlab];
      for (int64_t begin = 0; begin < span.length; begin += kChunk) {
        const int64_t end = begin + kChunk < span.length ? begin + kChunk : span.length;
        for (int64_t i = begin; i < end; i += kBlock) {
          reduce_block(span, c, width, i, i + kBlock < end ? i + kBlock : end, i == begin, chunk);
        }
        for (int k = 0; k < Op::kSums; ++k) add_or_set(begin == 0, chunk[k], width, total[k]);
      }
      for (int k = 0; k < Op::kSums; ++k) add_or_set(true, total[k], width, span.sums[k] + c);
    }
  }

  static void apply(const Span& span) {
    T* out = static_cast<T*>(span.output);
    // Vectors on whole lines in every row, or in none.
    const bool stream = span.stream && span.stride * static_cast<int64_t>(sizeof(T)) % 64 == 0;
    const int64_t head = stream ? elements_to_line(out) : 0;
    for (int64_t i = 0; i < span.length; i += kRows) {
      const int64_t end = i + kRows < span.length ? i + kRows : span.length;
      if (span.prefetch) prefetch(span, 0, span.channels, i + 8 * kRows, i + 9 * kRows);
      int64_t c = 0;
      for (; c < head && c < span.channels; c += kLanes) {
        const int64_t last = head < span.channels ? head : span.channels;
        apply_rows<false>(span, i, end, c, lanes_at(c, last));
      }
      if (head > 0) c = head;
      for (; c < span.channels; c += kLanes) {
        if (stream) {
          apply_rows<true>(span, i, end, c, lanes_at(c, span.channels));
        } else {
          apply_rows<false>(span, i, end, c, lanes_at(c, span.channels));
        }
      }
    }
    if (span.stream) V::fence();
  }

 private:
  // The lanes of the vector at `channel`: all, but for the last before `channels`.
  static int lanes_at(int64_t channel, int64_t channels) {
    return static_cast<int>(channels - channel < kLanes ? channels - channel : kLanes);
  }

  template <int kCoefs>
  static void load_coefs(const Span& span, int64_t channel, V* coef) {
    for (int k = 0; k < kCoefs; ++k) coef[k] = V::load(static_cast<const Scalar*>(span.coefs[k]) + channel);
  }

  template <int kInputs>
  static void load_inputs(const Span& span, int64_t position, int64_t channel, int lanes, V* value) {
    const int64_t at = position * span.stride + channel;
    for (int k = 0; k < kInputs; ++k) {
      const T* in = static_cast<const T*>(span.inputs[k]) + at;
      value[k] = lanes == kLanes ? V::load(in) : V::load(in, lanes);
    }
  }

  // Adding to 0 and setting are the same: no sum is -0.
  static void add_or_set(bool set, const double* from, int64_t count, double* to) {
    for (int64_t j = 0; j < count; ++j) to[j] = set ? from[j] : to[j] + from[j];
  }

  static void prefetch(const Span& span, int64_t channel, int64_t width, int64_t first, int64_t last) {
    const int64_t end = last < span.length ? last : span.length;
    for (int k = 0; k < F<V>::kInputs; ++k) {
      for (int64_t row = first; row < end; ++row) {
        const char* at =
            reinterpret_cast<const char*>(static_cast<const T*>(span.inputs[k]) + row * span.stride + channel);
        const int64_t bytes = width * static_cast<int64_t>(sizeof(T));
        for (int64_t b = 0; b < bytes; b += 64) __builtin_prefetch(at + b, 0, 2);
        __builtin_prefetch(at + bytes - 1, 0, 2);
      }
    }
  }

  // A channel of one position is one term.
  static void reduce_one(const Span& span) {
    using Op = F<V>;
    for (int64_t c = 0; c < span.channels; c += kLanes) {
      const int lanes = lanes_at(c, span.channels);
      V coef[kMaxCoefs];
      V value[kMaxInputs];
      V sum[Op::kSums];
      load_coefs<Op::kCoefs>(span, c, coef);
      load_inputs<Op::kInputs>(span, 0, c, lanes, value);
      for (int k = 0; k < Op::kSums; ++k) sum[k] = V::zero();
      Op::accumulate(value, coef, sum);
      for (int k = 0; k < Op::kSums; ++k) {
        alignas(64) Scalar terms[kLanes];
        sum[k].store_raw(terms);
        for (int l = 0; l < lanes; ++l) span.sums[k][c + l] = static_cast<double>(terms[l]);
      }
    }
  }

  static void reduce_block(const Span& span, int64_t c, int64_t width, int64_t begin, int64_t end, bool first_of_chunk,
                           double (*chunk)[kSlab]) {
    using Op = F<V>;
    alignas(64) Scalar sums[Op::kSums][kLanes][kSlab];
    const int64_t used = end - begin < kLanes ? end - begin : kLanes;
    for (int64_t first = begin; first < end; first += kBand) {
      const int64_t last = first + kBand < end ? first + kBand : end;
      for (int64_t lane = 0; lane < used && first + lane < last; ++lane) {
        // The band is read lane by lane, across its rows: no pattern that hardware would follow.
        if (span.prefetch) {
          const int64_t next = first + kBand + lane * kRows;
          prefetch(span, c, width, next, next + kRows);
        }
        for (int64_t j = 0; j < width; j += kLanes) {
          V coef[kMaxCoefs];
          V sum[Op::kSums];
          const int lanes = lanes_at(j, width);
          load_coefs<Op::kCoefs>(span, c + j, coef);
          for (int k = 0; k < Op::kSums; ++k) {
            sum[k] = first == begin ? V::zero() : V::load(&sums[k][lane][j]);
          }
          for (int64_t row = first + lane; row < last; row += kLanes) {
            V value[kMaxInputs];
            load_inputs<Op::kInputs>(span, row, c + j, lanes, value);
            Op::accumulate(value, coef, sum);
          }
          for (int k = 0; k < Op::kSums; ++k) sum[k].store_raw(&sums[k][lane][j]);
        }
      }
    }
    for (int k = 0; k < Op::kSums; ++k) {
      for (int64_t j = 0; j < width; j += kLanes) {
        alignas(64) Scalar folded[kLanes];
        fold_lanes(&sums[k][0][j], static_cast<int>(used)).store_raw(folded);
        for (int l = 0; l < kLanes; ++l) {
          const double sum = static_cast<double>(folded[l]);
          chunk[k][j + l] = first_of_chunk ? sum : chunk[k][j + l] + sum;
        }
      }
    }
  }

  // The fold of a block: V::sum() with a vector of channels in place of each lane. A lane that was
  // never used counts as zero, and adding zero to a sum that started from zero changes no bit.
  static V fold_lanes(const Scalar* lanes, int used) {
    V sum[kLanes];
    for (int l = 0; l < used; ++l) sum[l] = V::load(lanes + l * kSlab);
    for (int half = kLanes / 2; half > 0; half /= 2) {
      for (int l = 0; l < half && l + half < used; ++l) sum[l] = add(sum[l], sum[l + half]);
      if (used > half) used = half;
    }
    return sum[0];
  }

  template <bool kStream>
  static void apply_rows(const Span& span, int64_t first, int64_t last, int64_t c, int lanes) {
    using Op = F<V>;
    V coef[kMaxCoefs];
    load_coefs<Op::kCoefs>(span, c, coef);
    for (int64_t row = first; row < last; ++row) {
      V value[kMaxInputs];
      load_inputs<Op::kInputs>(span, row, c, lanes, value);
      const V result = Op::apply(value, coef);
      T* out = static_cast<T*>(span.output) + row * span.stride + c;
      if (lanes < kLanes) {
        result.store(out, lanes);
      } else if (kStream) {
        result.stream(out);
      } else {
        result.store(out);
      }
    }
  }
};
