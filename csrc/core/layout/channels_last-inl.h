// Channels-last spans: the channels of a position lie side by side, so a vector holds kLanes channels
// of one position and carries a vector of coefficients. Rows are taken in the order of memory, whole or
// in wide slabs, since that is what hardware reads ahead. Lanes in the sense of the summation order are
// then kLanes rows of accumulators, kept in span.lanes: those of a block, and their sums in float64.

template <template <class> class F, class V, class T>
struct ChannelsLast {
  using Op = F<V>;
  using Scalar = typename V::Scalar;

  static void reduce(const Span& span) {
    if (span.length == 1) return reduce_one(span);
    for (int64_t begin = 0; begin < span.length; begin += kChunk) {
      const int64_t end = begin + kChunk < span.length ? begin + kChunk : span.length;
      for (int64_t c = 0; c < span.channels; c += kSlab) {
        reduce_chunk(span, c, c + kSlab < span.channels ? kSlab : span.channels - c, begin, end);
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

    // Adds `channels` channels of a row, from element `at` on, to its lane, whose accumulators of sum k lie at
    // sums + k * pitch; starts them when `first`.
    template <bool kFirst>
    void accumulate(int64_t at, int64_t c, int64_t channels, Scalar* sums, int64_t pitch) const {
      int64_t j = 0;
      for (; j + kLanes <= channels; j += kLanes) accumulate_at<kFirst>(at + j, c + j, kLanes, sums + j, pitch);
      if (j < channels) accumulate_at<kFirst>(at + j, c + j, lanes_at(j, channels), sums + j, pitch);
    }

    template <bool kFirst>
    void accumulate_at(int64_t at, int64_t c, int lanes, Scalar* sums, int64_t pitch) const {
      V coef[kMaxCoefs];
      V value[kMaxInputs];
      V sum[Op::kLaneSums];
      load_coefs(c, coef);
      for (int k = 0; k < Op::kInputs; ++k) {
        value[k] = lanes == kLanes ? V::load(in[k] + at) : V::load(in[k] + at, lanes);
      }
      for (int k = 0; k < Op::kLaneSums; ++k) sum[k] = kFirst ? V::zero() : V::load(sums + k * pitch);
      Op::accumulate(value, coef, sum);
      for (int k = 0; k < Op::kLaneSums; ++k) sum[k].store_raw(sums + k * pitch);
    }
  };

  // A channel of one position is one term.
  static void reduce_one(const Span& span) {
    const Rows rows(span);
    alignas(64) Scalar terms[Op::kLaneSums][kLanes];
    for (int64_t c = 0; c < span.channels; c += kLanes) {
      const int lanes = lanes_at(c, span.channels);
      F64 sums[Op::kLaneSums];
      rows.template accumulate_at<true>(c, c, lanes, terms[0], kLanes);
      for (int k = 0; k < Op::kLaneSums; ++k) sums[k] = F64::load(terms[k]);
      Op::join(sums);
      for (int k = 0; k < Op::kSums; ++k) {
        if (lanes == kLanes) {
          sums[k].store_raw(span.sums[k] + c);
        } else {
          sums[k].store(span.sums[k] + c, lanes);
        }
      }
    }
  }

  // One chunk of `channels` channels from c on: its blocks lane by lane, then the fold of the lanes.
  static void reduce_chunk(const Span& span, int64_t c, int64_t channels, int64_t begin, int64_t end) {
    const Rows rows(span);
    const int64_t width = (channels + kLanes - 1) / kLanes * kLanes;
    const int64_t pitch = Op::kLaneSums * width;  // of a lane: [kLaneSums][width]
    double* const sums = static_cast<double*>(span.lanes);
    Scalar* const block_sums = reinterpret_cast<Scalar*>(sums + kLanes * pitch);
    const int used = static_cast<int>(end - begin < kLanes ? end - begin : kLanes);
    for (int64_t first = begin; first < end; first += kBlock) {
      const int64_t last = first + kBlock < end ? first + kBlock : end;
      for (int64_t i = first; i < last; ++i) {
        Scalar* const lane = block_sums + (i - first) % kLanes * pitch;
        if (i - first < kLanes) {
          rows.template accumulate<true>(i * span.stride + c, c, channels, lane, width);
        } else {
          rows.template accumulate<false>(i * span.stride + c, c, channels, lane, width);
        }
      }
      if (end - begin <= kBlock) break;  // one block: its lanes are those of the chunk
      const int64_t lanes = last - first < kLanes ? last - first : kLanes;
      for (int64_t j = 0; j < lanes * pitch; j += kLanes) {
        const F64 block = F64::load(block_sums + j);
        (first == begin ? block : add(F64::load(sums + j), block)).store_raw(sums + j);
      }
    }
    for (int64_t j = 0; j < channels; j += kLanes) {
      F64 folded[Op::kSums];
      if (end - begin <= kBlock) {
        fold_lanes(block_sums + j, width, pitch, used, folded);
      } else {
        fold_lanes(sums + j, width, pitch, used, folded);
      }
      for (int k = 0; k < Op::kSums; ++k) {
        double chunk[kLanes];
        folded[k].store_raw(chunk);
        double* total = span.sums[k] + c + j;
        for (int l = 0; l < lanes_at(j, channels); ++l) total[l] = begin == 0 ? chunk[l] : total[l] + chunk[l];
      }
    }
  }

  // F64::sum() with a vector of channels in place of each lane. A lane that was never used counts as zero,
  // and adding zero to a sum that started from zero changes no bit; for the same reason a first sum is set.
  template <class Sum>
  static void fold_lanes(const Sum* lanes, int64_t width, int64_t pitch, int used, F64* folded) {
    F64 sum[Op::kSums][kLanes];
    for (int l = 0; l < used; ++l) {
      F64 lane[Op::kLaneSums];
      for (int k = 0; k < Op::kLaneSums; ++k) lane[k] = F64::load(lanes + l * pitch + k * width);
      Op::join(lane);
      for (int k = 0; k < Op::kSums; ++k) sum[k][l] = lane[k];
    }
    for (int half = kLanes / 2; half > 0; half /= 2) {
      for (int k = 0; k < Op::kSums; ++k) {
        for (int l = 0; l < half && l + half < used; ++l) sum[k][l] = add(sum[k][l], sum[k][l + half]);
      }
      if (used > half) used = half;
    }
    for (int k = 0; k < Op::kSums; ++k) folded[k] = sum[k][0];
  }
};
