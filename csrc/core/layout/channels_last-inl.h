// Channels-last spans: the channels of a position lie side by side, so a vector holds kLanes channels
// of one position and carries a vector of coefficients. Lanes in the sense of the summation order are
// then kLanes vectors of accumulators, kept in memory for a slab of channels that fits the L1 cache.

template <template <class> class F, class V, class T>
struct ChannelsLast {
  using Scalar = typename V::Scalar;
  static constexpr int64_t kSlab = 128;  // channels
  static constexpr int64_t kRows = 4;    // positions of one lane taken while its accumulators are in registers

  // The vectors of a slab: all full but the last.
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

  static void reduce(const Span& span) {
    using Op = F<V>;
    for (int64_t c = 0; c < span.channels; c += kSlab) {
      const int64_t width = span.channels - c < kSlab ? span.channels - c : kSlab;
      double total[Op::kSums][kSlab] = {};
      for (int64_t begin = 0; begin < span.length; begin += kChunk) {
        double chunk[Op::kSums][kSlab] = {};
        const int64_t end = begin + kChunk < span.length ? begin + kChunk : span.length;
        for (int64_t i = begin; i < end; i += kBlock) {
          reduce_block(span, c, width, i, i + kBlock < end ? i + kBlock : end, chunk);
        }
        for (int k = 0; k < Op::kSums; ++k) {
          for (int64_t j = 0; j < width; ++j) total[k][j] += chunk[k][j];
        }
      }
      for (int k = 0; k < Op::kSums; ++k) {
        for (int64_t j = 0; j < width; ++j) span.sums[k][c + j] = total[k][j];
      }
    }
  }

  static void apply(const Span& span) {
    using Op = F<V>;
    for (int64_t i = 0; i < span.length; i += kRows) {
      const int64_t end = i + kRows < span.length ? i + kRows : span.length;
      for (int64_t c = 0; c < span.channels; c += kLanes) {
        const int lanes = lanes_at(c, span.channels);
        V coef[kMaxCoefs];
        load_coefs<Op::kCoefs>(span, c, coef);
        for (int64_t row = i; row < end; ++row) {
          V value[kMaxInputs];
          load_inputs<Op::kInputs>(span, row, c, lanes, value);
          const V result = Op::apply(value, coef);
          T* out = static_cast<T*>(span.output) + row * span.stride + c;
          if (lanes == kLanes) {
            result.store(out);
          } else {
            result.store(out, lanes);
          }
        }
      }
    }
  }

 private:
  static void reduce_block(const Span& span, int64_t c, int64_t width, int64_t begin, int64_t end,
                           double (*chunk)[kSlab]) {
    using Op = F<V>;
    alignas(64) Scalar sums[Op::kSums][kLanes][kSlab];
    const int64_t used = end - begin < kLanes ? end - begin : kLanes;
    for (int64_t first = begin; first < end; first += kRows * kLanes) {
      const int64_t last = first + kRows * kLanes < end ? first + kRows * kLanes : end;
      for (int64_t lane = 0; lane < used && first + lane < last; ++lane) {
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
    for (int64_t j = 0; j < width; j += kLanes) {
      for (int k = 0; k < Op::kSums; ++k) add_lanes(&sums[k][0][j], static_cast<int>(used), &chunk[k][j]);
    }
  }

  // The fold of a block: V::sum() with a vector of channels in place of each lane. A lane that was
  // never used counts as zero, and adding zero to a sum that started from zero changes no bit.
  static void add_lanes(const Scalar* lanes, int used, double* chunk) {
    V sum[kLanes];
    for (int l = 0; l < used; ++l) sum[l] = V::load(lanes + l * kSlab);
    for (int half = kLanes / 2; half > 0; half /= 2) {
      for (int l = 0; l < half && l + half < used; ++l) sum[l] = add(sum[l], sum[l + half]);
      if (used > half) used = half;
    }
    alignas(64) Scalar folded[kLanes];
    sum[0].store_raw(folded);
    for (int l = 0; l < kLanes; ++l) chunk[l] += static_cast<double>(folded[l]);
  }
};
