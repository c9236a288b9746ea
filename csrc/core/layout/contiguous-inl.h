// Contiguous spans: a channel's positions lie side by side, so a vector holds kLanes positions of one
// channel and the coefficients are broadcast.

template <template <class> class F, class V, class T>
struct Contiguous {
  using Scalar = typename V::Scalar;

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

  static void reduce(const Span& span) {
    using Op = F<V>;
    for (int64_t c = 0; c < span.channels; ++c) {
      V coef[kMaxCoefs];
      const T* in[kMaxInputs];
      broadcast_coefs<Op::kCoefs>(span, c, coef);
      channel_inputs<Op::kInputs>(span, c, in);
      double total[Op::kSums] = {};
      for (int64_t begin = 0; begin < span.length; begin += kChunk) {
        double chunk[Op::kSums] = {};
        const int64_t end = begin + kChunk < span.length ? begin + kChunk : span.length;
        for (int64_t i = begin; i < end; i += kBlock) {
          reduce_block(in, i, i + kBlock < end ? i + kBlock : end, coef, chunk);
        }
        for (int k = 0; k < Op::kSums; ++k) total[k] += chunk[k];
      }
      for (int k = 0; k < Op::kSums; ++k) span.sums[k][c] = total[k];
    }
  }

  static void apply(const Span& span) {
    using Op = F<V>;
    for (int64_t c = 0; c < span.channels; ++c) {
      V coef[kMaxCoefs];
      const T* in[kMaxInputs];
      broadcast_coefs<Op::kCoefs>(span, c, coef);
      channel_inputs<Op::kInputs>(span, c, in);
      T* out = static_cast<T*>(span.output) + c * span.stride;
      V value[kMaxInputs];
      int64_t i = 0;
      for (; i + kLanes <= span.length; i += kLanes) {
        for (int k = 0; k < Op::kInputs; ++k) value[k] = V::load(in[k] + i);
        Op::apply(value, coef).store(out + i);
      }
      if (i < span.length) {
        const int rest = static_cast<int>(span.length - i);
        for (int k = 0; k < Op::kInputs; ++k) value[k] = V::load(in[k] + i, rest);
        Op::apply(value, coef).store(out + i, rest);
      }
    }
  }

 private:
  static void reduce_block(const T* const* in, int64_t begin, int64_t end, const V* coef, double* chunk) {
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
    for (int k = 0; k < Op::kSums; ++k) chunk[k] += static_cast<double>(sum[k].sum());
  }
};
