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
    LaneSums slab_sums[kSlab / kLanes];
    for (Piece piece = Piece::first(span); piece.channels > 0;) {
      const Piece next = piece.next(span);
      Ahead ahead(rows, next, (piece.channels + kLanes - 1) / kLanes);
      for (int64_t c = 0; c < piece.channels; c += kLanes) {
        const int channels = lanes_at(c, piece.channels);
        if (channels == kLanes) {
          add_lanes(Lanes<true>(rows, piece, c, channels, &ahead), span, &slab_sums[c / kLanes]);
        } else {
          add_lanes(Lanes<false>(rows, piece, c, channels, &ahead), span, &slab_sums[c / kLanes]);
        }
      }
      piece = next;
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
    const bool stream = span.stream && aligned;
    for (int64_t i = 0; i < span.length;) {
      const int64_t row = i * span.stride;
      // Rows that share their coefficients: some where caches feed them; from memory one after the other comes faster.
      const int count = span.stream || i + kApplied > span.length ? 1 : kApplied;
      for (int64_t c = 0; c < head; c += kLanes) rows.apply_part(row, c, count, lanes_at(c, head), out);
      if (stream) {
        rows.template apply_whole<1, true>(row, head, whole, out);
      } else if (count == 1) {
        rows.template apply_whole<1, false>(row, head, whole, out);
      } else {
        rows.template apply_whole<kApplied, false>(row, head, whole, out);
      }
      if (whole < span.channels) rows.apply_part(row, whole, count, lanes_at(whole, span.channels), out);
      i += count;
    }
    if (span.stream) V::fence();
  }

 private:
  static constexpr int kTogether = 4;  // lanes
  static constexpr int kApplied = 4;   // rows

  // The lanes of the vector at `channel`: all, but for the last before `channels`.
  static int lanes_at(int64_t channel, int64_t channels) {
    return static_cast<int>(channels - channel < kLanes ? channels - channel : kLanes);
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
  };

  // Some channels of some positions, which the core's own cache is to keep, and the piece that is read meanwhile: the
  // next positions of the same channels, up to the end of a chunk, then the next channels. None behind the last.
  struct Piece {
    int64_t begin, end;  // positions
    int64_t channel, channels;
    bool starts_chunk, ends_chunk;

    static Piece at(const Span& span, int64_t begin, int64_t channel) {
      if (begin >= span.length) return {};
      const int64_t chunk_end = least(begin / kChunk * kChunk + kChunk, span.length);
      const int64_t end = least(begin + kPiece, chunk_end);
      return {begin, end, channel, least(kSlab, span.channels - channel), begin % kChunk == 0, end == chunk_end};
    }
    static Piece first(const Span& span) { return at(span, 0, 0); }
    Piece next(const Span& span) const {
      if (!ends_chunk) return at(span, end, channel);
      if (channel + channels < span.channels) return at(span, begin / kChunk * kChunk, channel + channels);
      return at(span, end, 0);
    }

   private:
    static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
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
          for (int64_t byte = 0; byte < bytes_; byte += 64) __builtin_prefetch(row + byte, 0, 2);
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

  // The lanes of a vector of channels, in float64. Of a reducing formula: the others have none.
  template <class Reducing>
  struct LaneSumsOf {
    F64 lane[kLanes][Reducing::kLaneSums];
  };
  using LaneSums = LaneSumsOf<Op>;

  // The same over the positions of a piece.
  template <bool kWhole>
  class Lanes {
   public:
    Lanes(const Rows& rows, const Piece& piece, int64_t c, int channels, Ahead* ahead)
        : rows_(rows), piece_(piece), channel_(piece.channel + c), channels_(channels), ahead_(ahead) {
      rows.load_coefs(channel_, coef_);
    }

    // Where a piece is all of a chunk and one block: `kCount` lanes from `lane` on, joined.
    template <int kCount>
    void join_to(int lane, F64 (*sums)[Op::kSums]) const {
      V block[kCount][Op::kLaneSums];
      sum_block<kCount>(piece_.begin, piece_.end, lane, block);
      for (int l = 0; l < kCount; ++l) {
        F64 one[Op::kLaneSums];
        for (int k = 0; k < Op::kLaneSums; ++k) one[k] = F64::widen(block[l][k]);
        Op::join(one);
        for (int k = 0; k < Op::kSums; ++k) sums[l][k] = one[k];
      }
    }

    // Else: adds the blocks of the lanes, in order, to their sums, which it starts where a chunk does.
    template <int kCount>
    void add_to(int lane, F64 (*sums)[Op::kLaneSums]) const {
      for (int64_t first = piece_.begin; first < piece_.end; first += kBlock) {
        V block[kCount][Op::kLaneSums];
        sum_block<kCount>(first, first + kBlock < piece_.end ? first + kBlock : piece_.end, lane, block);
        const bool starts = piece_.starts_chunk && first == piece_.begin;
        for (int l = 0; l < kCount; ++l) {
          for (int k = 0; k < Op::kLaneSums; ++k) {
            const F64 sum = F64::widen(block[l][k]);
            sums[l][k] = starts ? sum : add(sums[l][k], sum);
          }
        }
      }
    }

    const Piece& piece() const { return piece_; }
    int64_t channel() const { return channel_; }
    int channels() const { return channels_; }

   private:
    template <int kCount>
    void sum_block(int64_t first, int64_t last, int lane, V (*block)[Op::kLaneSums]) const {
      for (int l = 0; l < kCount; ++l) {
        for (int k = 0; k < Op::kLaneSums; ++k) block[l][k] = V::zero();
      }
      int64_t i = first + lane;
      int64_t at = i * rows_.stride + channel_;
      for (; i + kCount <= last; i += kLanes, at += kLanes * rows_.stride) {
        for (int l = 0; l < kCount; ++l) add_row(at + l * rows_.stride, block[l]);
      }
      for (int l = 0; i + l < last; ++l) add_row(at + l * rows_.stride, block[l]);
      if (ahead_) ahead_->advance((last - first) * kCount / kLanes);
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
    F64 joined[kLanes][Op::kSums];
    if (piece.starts_chunk && piece.end - piece.begin <= kBlock) {
      for (int l = 0; l < kLanes; l += kTogether) lanes.template join_to<kTogether>(l, joined + l);
    } else {
      for (int l = 0; l < kLanes; l += kTogether) lanes.template add_to<kTogether>(l, sums->lane + l);
      if (!piece.ends_chunk) return;
      for (int l = 0; l < kLanes; ++l) {
        Op::join(sums->lane[l]);
        for (int k = 0; k < Op::kSums; ++k) joined[l][k] = sums->lane[l][k];
      }
    }
    // F64::sum() with a vector of channels in place of each lane.
    for (int half = kLanes / 2; half > 0; half /= 2) {
      for (int l = 0; l < half; ++l) {
        for (int k = 0; k < Op::kSums; ++k) joined[l][k] = add(joined[l][k], joined[l + half][k]);
      }
    }
    for (int k = 0; k < Op::kSums; ++k) {
      double* const total = span.sums[k] + lanes.channel();
      const int channels = lanes.channels();
      if (piece.begin >= kChunk) {
        joined[0][k] = add(channels == kLanes ? F64::load(total) : F64::load(total, channels), joined[0][k]);
      }
      store(joined[0][k], total, channels);
    }
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
      F64 sums[1][Op::kSums];
      if (channels == kLanes) {
        Lanes<true>(rows, piece, c, channels, nullptr).template join_to<1>(0, sums);
      } else {
        Lanes<false>(rows, piece, c, channels, nullptr).template join_to<1>(0, sums);
      }
      for (int k = 0; k < Op::kSums; ++k) store(sums[0][k], span.sums[k] + c, channels);
    }
  }
};
