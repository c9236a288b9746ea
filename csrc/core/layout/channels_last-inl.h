// Channels-last spans: the channels of a position lie side by side, so a vector holds kLanes channels of one position
// and carries a vector of coefficients. A lane in the sense of the summation order is then every kLanes-th row. Some
// lanes at a time are summed in registers, over a piece that the core's own cache keeps, while the next piece is asked
// for: rows a lane apart are not what hardware reads ahead.

template <template <class> class F, class V, class T>
struct ChannelsLast {
  using Op = F<V>;
  using Scalar = typename V::Scalar;

  static void reduce(const Span& span) {
    if (span.length == 1) return reduce_one(span);
    const Rows rows(span);
    const Slabs slabs = Slabs::of(span, rows.in[0]);
    LaneSums slab_sums[kSlab / kLanes + 1];
    for (Piece piece = Piece::first(span, slabs); piece.channels > 0;) {
      const Piece next = piece.next(span, slabs);
      Ahead ahead(rows, next, (piece.channels + kLanes - 1) / kLanes);
      LaneSums* sums = slab_sums;
      int channels;
      for (int64_t c = 0; c < piece.channels; c += channels, ++sums) {
        channels = piece.lanes(slabs, c);
        if (channels == kLanes) {
          add_lanes(Lanes<true>(rows, piece, c, channels, &ahead), span, sums);
        } else {
          add_lanes(Lanes<false>(rows, piece, c, channels, &ahead), span, sums);
        }
      }
      piece = next;
    }
  }

  static void apply(const Span& span) {
    if (!span.stream) return apply_through(span);
    apply_past(span);
    V::fence();
  }

 private:
  static constexpr int kPairs = kLanes / 2;  // of lanes l and l + 8
  static constexpr int kTogether = 2;        // pairs
  static constexpr int kApplied = 4;         // rows

  // Results through the caches, some rows at a time, which share their coefficients.
  static void apply_through(const Span& span) {
    T* out = static_cast<T*>(span.output);
    const int64_t channels = span.channels;
    // Vectors of the output on whole cache lines, in every row or in none.
    const bool aligned = span.stride * static_cast<int64_t>(sizeof(T)) % 64 == 0;
    const int64_t to_line = aligned ? elements_to_line(out) : 0;
    const int64_t head = to_line < channels ? to_line : channels;
    const int64_t whole = head + (channels - head) / kLanes * kLanes;
    const Rows rows(span);
    for (int64_t i = 0; i < span.length;) {
      const int64_t row = i * rows.stride;
      const int count = i + kApplied > span.length ? 1 : kApplied;
      for (int64_t c = 0; c < head; c += kLanes) rows.apply_part(row, c, count, lanes_at(c, head), out);
      if (count == 1) {
        rows.template apply_whole<1>(row, head, whole, out);
      } else {
        rows.template apply_whole<kApplied>(row, head, whole, out);
      }
      if (whole < channels) rows.apply_part(row, whole, count, lanes_at(whole, channels), out);
      i += count;
    }
  }

  // Results past the caches. One row after the other: that is how memory comes faster.
  static void apply_past(const Span& span) {
    T* const out = static_cast<T*>(span.output);
    const int64_t channels = span.channels;
    const int64_t length = span.length;
    const Rows rows(span);
    Lines<V, T> lines(out);
    for (int64_t i = 0; i < length; ++i) {
      const int64_t row = i * rows.stride;
      lines.write(
          out + row, channels, [&](int64_t c) { return rows.applied(row, c); },
          [&](int64_t c, int count) { return rows.applied(row, c, count); });
    }
    lines.finish();
  }

  // The pointers of a span on their own: a store to the output could change a Span, for all the compiler knows.
  struct Rows {
    const T* in[Op::kInputs];
    const Scalar* coefs[kMaxCoefs];  // each by channels
    int64_t stride;

    explicit Rows(const Span& span) : stride(span.stride) {
      for (int k = 0; k < Op::kInputs; ++k) in[k] = static_cast<const T*>(span.inputs[k]);
      for (int k = 0; k < Op::kGroupCoefs; ++k) coefs[k] = static_cast<const Scalar*>(span.group_coefs[k]);
      for (int k = 0; k < Op::kChannelCoefs; ++k) {
        coefs[Op::kGroupCoefs + k] = static_cast<const Scalar*>(span.channel_coefs[k]);
      }
    }

    void load_coefs(int64_t c, V* coef) const {
      for (int k = 0; k < Op::kGroupCoefs + Op::kChannelCoefs; ++k) coef[k] = V::load(coefs[k] + c);
    }

    // What a formula makes of a vector of a row, or of its first elements.
    V applied(int64_t row, int64_t c) const {
      V coef[kMaxCoefs];
      load_coefs(c, coef);
      return applied(row + c, coef);
    }
    V applied(int64_t row, int64_t c, int count) const {
      V coef[kMaxCoefs];
      load_coefs(c, coef);
      return applied(row + c, coef, count);
    }

    // Whole vectors of kRows rows from `row` on, at the channels [begin, end).
    template <int kRows>
    void apply_whole(int64_t row, int64_t begin, int64_t end, T* out) const {
      for (int64_t c = begin; c < end; c += kLanes) {
        V coef[kMaxCoefs];
        load_coefs(c, coef);
        for (int r = 0; r < kRows; ++r) {
          const int64_t at = row + r * stride + c;
          applied(at, coef).store(out + at);
        }
      }
    }

    // One vector of `lanes` lanes in each of `count` rows.
    void apply_part(int64_t row, int64_t c, int count, int lanes, T* out) const {
      V coef[kMaxCoefs];
      load_coefs(c, coef);
      for (int r = 0; r < count; ++r) {
        const int64_t at = row + r * stride + c;
        applied(at, coef, lanes).store(out + at, lanes);
      }
    }

   private:
    V applied(int64_t at, const V* coef) const {
      V value[kMaxInputs];
      for (int k = 0; k < Op::kInputs; ++k) value[k] = V::load(in[k] + at);
      return Op::apply(value, coef);
    }
    V applied(int64_t at, const V* coef, int lanes) const {
      V value[kMaxInputs];
      for (int k = 0; k < Op::kInputs; ++k) value[k] = V::load(in[k] + at, lanes);
      return Op::apply(value, coef);
    }
  };

  // Asks for a piece row by row, while others are computed with.
  class Ahead {
   public:
    // While `passes` passes go over as many rows.
    Ahead(const Rows& rows, const Piece& piece, int64_t passes)
        : rows_(rows),
          at_(piece.begin * rows.stride + piece.channel),
          left_(piece.end - piece.begin),
          bytes_(piece.channels * static_cast<int64_t>(sizeof(T))),
          passes_(passes) {}

    // After `count` rows of a pass.
    void advance(int64_t count) {
      for (due_ += count; due_ >= passes_ && left_ > 0; due_ -= passes_, --left_) {
        for (int k = 0; k < Op::kInputs; ++k) {
          const char* const row = reinterpret_cast<const char*>(rows_.in[k] + at_);
          const char* line = row - reinterpret_cast<uintptr_t>(row) % 64;
          for (; line < row + bytes_; line += 64) __builtin_prefetch(line, 0, 2);
        }
        at_ += rows_.stride;
      }
    }

   private:
    const Rows& rows_;
    int64_t at_;
    int64_t left_;
    int64_t bytes_;
    int64_t passes_;
    int64_t due_ = 0;
  };

  // The sums of the lanes of a vector of channels in a chunk: those of lanes l and l + 8 together in float64, the rests
  // each in the accumulator. Of a reducing formula: the others have none.
  template <class Reducing>
  struct LaneSumsOf {
    static constexpr int kRests = Reducing::kLaneSums - Reducing::kSums;
    F64 pair[kPairs][Reducing::kSums];
    V rest[kLanes][kRests > 0 ? kRests : 1];
  };
  using LaneSums = LaneSumsOf<Op>;

  // Makes them over the positions of a piece.
  template <bool kWhole>
  class Lanes {
   public:
    Lanes(const Rows& rows, const Piece& piece, int64_t c, int channels, Ahead* ahead)
        : rows_(rows), piece_(piece), channel_(piece.channel + c), channels_(channels), ahead_(ahead) {
      rows.load_coefs(channel_, coef_);
    }

    // Where a piece is one position: the one term of each channel, joined.
    void join_to(F64 (&sum)[Op::kSums]) const {
      V term[Op::kLaneSums];
      F64 one[Op::kLaneSums];
      for (int k = 0; k < Op::kLaneSums; ++k) term[k] = V::zero();
      add_row(piece_.begin * rows_.stride + channel_, term);
      for (int k = 0; k < Op::kLaneSums; ++k) one[k] = F64::widen(term[k]);
      Op::join(one);
      for (int k = 0; k < Op::kSums; ++k) sum[k] = one[k];
    }

    // Where a piece is all of a chunk and one block: `kCount` pairs from lane `lane` on, joined.
    template <int kCount>
    void join_to(int lane, F64 (*sums)[Op::kSums]) const {
      V block[2][kCount][Op::kLaneSums];
      for (int half = 0; half < 2; ++half) {
        for (int l = 0; l < kCount; ++l) {
          for (int k = 0; k < Op::kLaneSums; ++k) block[half][l][k] = V::zero();
        }
      }
      add_block<kCount>(piece_.begin, piece_.end, lane, block);
      for (int l = 0; l < kCount; ++l) {
        F64 one[Op::kLaneSums];
        for (int k = 0; k < Op::kLaneSums; ++k) one[k] = paired(k, block[0][l][k], block[1][l][k]);
        Op::join(one);
        for (int k = 0; k < Op::kSums; ++k) sums[l][k] = one[k];
      }
    }

    // Else: adds the blocks of the pairs, in order, to their sums, which it starts where a chunk does.
    template <int kCount>
    void add_to(int lane, LaneSums* sums) const {
      for (int64_t first = piece_.begin; first < piece_.end; first += kBlock) {
        const bool starts = piece_.starts_chunk && first == piece_.begin;
        V block[2][kCount][Op::kLaneSums];
        for (int half = 0; half < 2; ++half) {
          for (int l = 0; l < kCount; ++l) {
            const V* const rests = sums->rest[lane + half * kPairs + l];
            for (int k = 0; k < Op::kLaneSums; ++k) {
              block[half][l][k] = k < Op::kSums || starts ? V::zero() : rests[k - Op::kSums];
            }
          }
        }
        add_block<kCount>(first, first + kBlock < piece_.end ? first + kBlock : piece_.end, lane, block);
        for (int l = 0; l < kCount; ++l) {
          for (int k = 0; k < Op::kSums; ++k) {
            F64& total = sums->pair[lane + l][k];
            const F64 sum = paired(k, block[0][l][k], block[1][l][k]);
            total = starts ? sum : add(total, sum);
          }
          for (int half = 0; half < 2; ++half) {
            V* const rests = sums->rest[lane + half * kPairs + l];
            for (int k = Op::kSums; k < Op::kLaneSums; ++k) rests[k - Op::kSums] = block[half][l][k];
          }
        }
      }
    }

    const Piece& piece() const { return piece_; }
    int64_t channel() const { return channel_; }
    int channels() const { return channels_; }

   private:
    // Adds rows to the pairs from lane `lane` on: their lanes below kPairs and those above.
    template <int kCount>
    void add_block(int64_t first, int64_t last, int lane, V (*block)[kCount][Op::kLaneSums]) const {
      int64_t i = first + lane;
      int64_t at = i * rows_.stride + channel_;
      const int64_t apart = kPairs * rows_.stride;
      for (; i + kPairs + kCount <= last; i += kLanes, at += 2 * apart) {
        for (int l = 0; l < kCount; ++l) add_row(at + l * rows_.stride, block[0][l]);
        for (int l = 0; l < kCount; ++l) add_row(at + apart + l * rows_.stride, block[1][l]);
      }
      for (int l = 0; l < kCount && i + l < last; ++l) add_row(at + l * rows_.stride, block[0][l]);
      for (int l = 0; l < kCount && i + kPairs + l < last; ++l) add_row(at + apart + l * rows_.stride, block[1][l]);
      if (ahead_) ahead_->advance((last - first) * kCount / kPairs);
    }

    void add_row(int64_t at, V* block) const {
      V value[kMaxInputs];
      for (int k = 0; k < Op::kInputs; ++k) {
        value[k] = kWhole ? V::load(rows_.in[k] + at) : V::load(rows_.in[k] + at, channels_);
      }
      Op::accumulate(value, coef_, block);
    }

    const Rows& rows_;
    const Piece& piece_;
    V coef_[kMaxCoefs];
    int64_t channel_;
    int channels_;
    Ahead* ahead_;
  };

  // The lanes of a piece, and where it ends a chunk that chunk's sums. Four at a time: rows a lane apart lie at the
  // same place of their pages more often than not, and a cache has few places for those.
  template <class Each>
  static void add_lanes(const Each& lanes, const Span& span, LaneSums* sums) {
    const Piece& piece = lanes.piece();
    F64 sum[Op::kSums];
    if (piece.starts_chunk && piece.end - piece.begin <= kBlock) {
      fold([&](int l, F64(*joined)[Op::kSums]) { lanes.template join_to<kTogether>(l, joined); }, sum);
    } else {
      for (int l = 0; l < kPairs; l += kTogether) lanes.template add_to<kTogether>(l, sums);
      if (!piece.ends_chunk) return;
      const auto join = [&](int first, F64(*joined)[Op::kSums]) {
        for (int l = first; l < first + kTogether; ++l) {
          F64 one[Op::kLaneSums];
          for (int k = 0; k < Op::kSums; ++k) one[k] = sums->pair[l][k];
          for (int k = 0; k < LaneSums::kRests; ++k) {
            one[Op::kSums + k] = paired(Op::kSums + k, sums->rest[l][k], sums->rest[l + kPairs][k]);
          }
          Op::join(one);
          for (int k = 0; k < Op::kSums; ++k) joined[l - first][k] = one[k];
        }
      };
      fold(join, sum);
    }
    const int channels = lanes.channels();
    for (int k = 0; k < Op::kSums; ++k) {
      double* const total = span.sums[k] + lanes.channel();
      if (piece.begin >= kChunk)
        sum[k] = add(channels == kLanes ? F64::load(total) : F64::load(total, channels), sum[k]);
      store(sum[k], total, channels);
    }
  }

  // Folded::sum() with a vector of channels in place of each lane, kTogether of which get(l, joined) makes at a time.
  template <class Get>
  static void fold(Get&& get, F64* sum) {
    static_assert(4 * kTogether == kPairs);
    F64 low[kTogether][Op::kSums];
    F64 high[kTogether][Op::kSums];
    F64 other[kTogether][Op::kSums];
    get(0, low);
    get(2 * kTogether, other);
    add_to(low, other, kTogether);
    get(kTogether, high);
    get(3 * kTogether, other);
    add_to(high, other, kTogether);
    add_to(low, high, kTogether);
    for (int half = kTogether / 2; half > 0; half /= 2) add_to(low, low + half, half);
    for (int k = 0; k < Op::kSums; ++k) sum[k] = low[0][k];
  }
  template <int kSums>
  static void add_to(F64 (*to)[kSums], const F64 (*what)[kSums], int count) {
    for (int l = 0; l < count; ++l) {
      for (int k = 0; k < kSums; ++k) to[l][k] = add(to[l][k], what[l][k]);
    }
  }

  // Lanes l and l + 8 of sum k added.
  static F64 paired(int k, const V& low, const V& high) {
    return adds_lanes_narrow(k, Op::kSums) ? F64::widen(add(low, high)) : add(F64::widen(low), F64::widen(high));
  }

  static void store(const F64& sum, double* to, int channels) {
    if (channels == kLanes) {
      sum.store_raw(to);
    } else {
      sum.store(to, channels);
    }
  }

  // A channel of one position is one term.
  static void reduce_one(const Span& span) {
    const Rows rows(span);
    const Piece piece = {0, 1, 0, span.channels, true, true};
    for (int64_t c = 0; c < span.channels; c += kLanes) {
      const int channels = lanes_at(c, span.channels);
      F64 sum[Op::kSums];
      if (channels == kLanes) {
        Lanes<true>(rows, piece, c, channels, nullptr).join_to(sum);
      } else {
        Lanes<false>(rows, piece, c, channels, nullptr).join_to(sum);
      }
      for (int k = 0; k < Op::kSums; ++k) store(sum[k], span.sums[k] + c, channels);
    }
  }
};
