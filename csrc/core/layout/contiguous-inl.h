// Contiguous spans: a channel's positions lie side by side, so a vector holds kLanes positions of one
// channel and the coefficients are broadcast.

template <template <class> class F, class V, class T>
struct Contiguous {
  using Scalar = typename V::Scalar;
  static constexpr int64_t kWorthAligning = 8 * kLanes;  // stores that cross a line cost more than a head
  static constexpr int64_t kWorthOwnRun = 16 * kLanes;   // channels by themselves, each with a vector that is not whole

  static void reduce(const Span& span) {
    using Op = F<V>;
    if (span.length <= kBlock) return reduce_rows(span);
    Strands strands(span);
    for (int64_t c = 0; c < span.channels; ++c) {
      double total[Op::kSums] = {};
      Strand strand = strands.next();
      for (int64_t begin = 0; begin < span.length; begin += kChunk) {
        const int64_t end = begin + kChunk < span.length ? begin + kChunk : span.length;
        Folded lanes[Op::kLaneSums];
        for (int k = 0; k < Op::kSums; ++k) lanes[k] = Folded::zero();
        V sum[Op::kLaneSums];
        for (int k = Op::kSums; k < Op::kLaneSums; ++k) sum[k] = V::zero();
        for (int64_t i = begin; i < end; i += kBlock) {
          for (int k = 0; k < Op::kSums; ++k) sum[k] = V::zero();
          add_block(strand, i + kBlock < end ? kBlock : end - i, sum);
          for (int k = 0; k < Op::kSums; ++k) lanes[k] = add(lanes[k], folded(k, sum[k]));
          strand.advance(kBlock);
        }
        for (int k = Op::kSums; k < Op::kLaneSums; ++k) lanes[k] = folded(k, sum[k]);
        Op::join(lanes);
        for (int k = 0; k < Op::kSums; ++k) total[k] += lanes[k].sum();
      }
      for (int k = 0; k < Op::kSums; ++k) span.sums[k][c] = total[k];
    }
  }

  static void apply(const Span& span) {
    if (span.stream) {
      Lines<V, T> lines(static_cast<T*>(span.output));
      write_runs(span, [&](T* to, int64_t length, auto&& whole, auto&& part) { lines.write(to, length, whole, part); });
      lines.finish();
      V::fence();
    } else {
      write_runs(span, [](T* to, int64_t length, auto&& whole, auto&& part) { write(to, length, whole, part); });
    }
  }

 private:
  // Lanes l and l + 8 of sum k added.
  static Folded folded(int k, const V& sum) {
    return adds_lanes_narrow(k, F<V>::kSums) ? sum.folded() : F64::widen(sum).folded();
  }

  // Where a channel is read, and its coefficients.
  struct Strand {
    const T* in[kMaxInputs];
    V coef[kMaxCoefs];

    void advance(int64_t positions) {
      for (int k = 0; k < F<V>::kInputs; ++k) in[k] += positions;
    }
  };

  // Goes over groups and channels and broadcasts their coefficients. The pointers of a span on their own: a store to
  // the output could change a Span, for all the compiler knows.
  class Cursor {
   public:
    explicit Cursor(const Span& span) {
      for (int k = 0; k < Op::kInputs; ++k) strand_.in[k] = static_cast<const T*>(span.inputs[k]);
      for (int k = 0; k < Op::kGroupCoefs; ++k) group_[k] = static_cast<const Scalar*>(span.group_coefs[k]);
      for (int k = 0; k < Op::kChannelCoefs; ++k) channel_[k] = static_cast<const Scalar*>(span.channel_coefs[k]);
    }

   protected:
    using Op = F<V>;
    void take_group() {
      for (int k = 0; k < Op::kGroupCoefs; ++k) strand_.coef[k] = V::set1(*group_[k]++);
    }
    void take_channel() {
      for (int k = 0; k < Op::kChannelCoefs; ++k) strand_.coef[Op::kGroupCoefs + k] = V::set1(*channel_[k]++);
    }

    Strand strand_;

   private:
    const Scalar* group_[kMaxGroupCoefs];
    const Scalar* channel_[kMaxChannelCoefs];
  };

  // The channels of a span, one after the other.
  class Strands : Cursor {
   public:
    explicit Strands(const Span& span)
        : Cursor(span), stride_(span.stride), channels_per_group_(span.channels_per_group) {
      for (int k = 0; k < F<V>::kInputs; ++k) next_[k] = this->strand_.in[k];
    }
    const Strand& next() {
      for (int k = 0; k < F<V>::kInputs; ++k) {
        this->strand_.in[k] = next_[k];
        next_[k] += stride_;
      }
      if (left_ == 0) {
        left_ = channels_per_group_;
        this->take_group();
      }
      --left_;
      this->take_channel();
      return this->strand_;
    }

   private:
    const T* next_[kMaxInputs];
    int64_t stride_;
    int64_t channels_per_group_;
    int64_t left_ = 0;  // of the group
  };

  // Channels of one block: no sum in between, and the lanes of some channels are folded together.
  static void reduce_rows(const Span& span) {
    using Op = F<V>;
    Strands strands(span);
    const int64_t channels = span.channels;
    const int64_t length = span.length;
    double* sums[Op::kSums];
    for (int k = 0; k < Op::kSums; ++k) sums[k] = span.sums[k];
    for (int64_t c = 0; c < channels; c += kRows) {
      const int rows = static_cast<int>(channels - c < kRows ? channels - c : kRows);
      Folded lanes[Op::kSums][kRows];
      for (int r = 0; r < rows; ++r) {
        V sum[Op::kLaneSums];
        Folded row[Op::kLaneSums];
        for (int k = 0; k < Op::kLaneSums; ++k) sum[k] = V::zero();
        add_block(strands.next(), length, sum);
        for (int k = 0; k < Op::kLaneSums; ++k) row[k] = folded(k, sum[k]);
        Op::join(row);
        for (int k = 0; k < Op::kSums; ++k) lanes[k][r] = row[k];
      }
      for (int k = 0; k < Op::kSums; ++k) Folded::sum_rows(lanes[k], rows, sums[k] + c);
    }
  }

  // Adds a block to sums, lane by lane. One block at a time: two, whose additions would not wait for each other, are
  // half a KiB apart, and hardware that reads ahead takes them for two streams.
  template <int kLaneSums>
  static void add_block(const Strand& strand, int64_t length, V (&sum)[kLaneSums]) {
    using Op = F<V>;
    V value[kMaxInputs];
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

  // What a formula makes of a vector of a channel, or of its first elements.
  static V applied(const Strand& strand, int64_t i) {
    V value[kMaxInputs];
    for (int k = 0; k < F<V>::kInputs; ++k) value[k] = V::load(strand.in[k] + i);
    return F<V>::apply(value, strand.coef);
  }
  static V applied(const Strand& strand, int64_t i, int count) {
    V value[kMaxInputs];
    for (int k = 0; k < F<V>::kInputs; ++k) value[k] = V::load(strand.in[k] + i, count);
    return F<V>::apply(value, strand.coef);
  }

  // Some channels that follow each other, of one group and at least a vector each, as one row. A vector that lies
  // across two of them has the coefficients of either in its lanes.
  class Joined : Cursor {
   public:
    explicit Joined(const Span& span) : Cursor(span), channel_length_(span.length) {}

    void start_group() {
      this->take_group();
      end_ = 0;
    }
    void end_group(int64_t length) { this->strand_.advance(length); }

    // In the order of i.
    V whole(int64_t i) {
      if (i >= end_) next_channel();
      return i + kLanes <= end_ ? applied(this->strand_, i) : applied(across(i), i);
    }
    V part(int64_t i, int count) {
      if (i >= end_) next_channel();
      return i + count <= end_ ? applied(this->strand_, i, count) : applied(across(i), i, count);
    }

   private:
    void next_channel() {
      this->take_channel();
      end_ += channel_length_;
    }
    Strand across(int64_t i) {
      using Op = F<V>;
      Strand both = this->strand_;
      const int first = static_cast<int>(end_ - i);
      next_channel();
      for (int k = Op::kGroupCoefs; k < Op::kGroupCoefs + Op::kChannelCoefs; ++k) {
        both.coef[k] = V::select_first(first, both.coef[k], this->strand_.coef[k]);
      }
      return both;
    }

    int64_t channel_length_;
    int64_t end_ = 0;  // of the channel
  };

  // Calls write(to, length, whole, part) for runs of results: a channel each, or all of a group where they are short.
  template <class Write>
  static void write_runs(const Span& span, Write&& write) {
    T* out = static_cast<T*>(span.output);
    const int64_t channels = span.channels;
    const int64_t length = span.length;
    const int64_t stride = span.stride;
    if (stride != length || length < kLanes || length >= kWorthOwnRun || span.channels_per_group == 1) {
      Strands strands(span);
      for (int64_t c = 0; c < channels; ++c, out += stride) {
        const Strand& strand = strands.next();
        write(
            out, length, [&](int64_t i) { return applied(strand, i); },
            [&](int64_t i, int count) { return applied(strand, i, count); });
      }
      return;
    }
    Joined joined(span);
    for (int64_t c = 0; c < channels; c += span.channels_per_group) {
      const int64_t run = length * (channels - c < span.channels_per_group ? channels - c : span.channels_per_group);
      joined.start_group();
      write(
          out, run, [&](int64_t i) { return joined.whole(i); },
          [&](int64_t i, int count) { return joined.part(i, count); });
      joined.end_group(run);
      out += run;
    }
  }

  // Through the caches.
  template <class Whole, class Part>
  static void write(T* to, int64_t length, Whole&& whole, Part&& part) {
    int64_t i = 0;
    if (length >= kWorthAligning) {  // vectors on whole cache lines
      const int64_t head = elements_to_line(to);
      while (i < head) {
        const int count = static_cast<int>(head - i < kLanes ? head - i : kLanes);
        part(i, count).store(to + i, count);
        i += count;
      }
    }
    for (; i + kLanes <= length; i += kLanes) whole(i).store(to + i);
    if (i < length) {
      const int rest = static_cast<int>(length - i);
      part(i, rest).store(to + i, rest);
    }
  }
};
