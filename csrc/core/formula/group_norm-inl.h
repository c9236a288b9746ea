// Operator C, the forward (docs/math.md, "The statistics"). Input: x.
//
//   reduce     sum d, sum d * d          d = x - pivot, a number near the mean
//   apply      y = gamma * (x - mean) * rstd + beta
//
// sum d is what the pivot leaves of the mean: it corrects the variance and completes the mean.

template <class V>
struct ForwardReduce {
  static constexpr int kInputs = 1;
  static constexpr int kLaneSums = 2;
  static constexpr int kSums = 2;
  static constexpr int kGroupCoefs = 1;  // pivot
  static constexpr int kChannelCoefs = 0;
  static void accumulate(const V* in, const V* coef, V* sum) {
    const V d = sub(in[0], coef[0]);
    sum[0] = add(sum[0], d);
    sum[1] = fma(d, d, sum[1]);
  }
  template <class Sum>
  static void join(Sum*) {}
};

template <class V>
struct ForwardApply {
  static constexpr int kInputs = 1;
  static constexpr int kGroupCoefs = 3;    // mean (high, low), rstd
  static constexpr int kChannelCoefs = 2;  // gamma, beta
  static V apply(const V* in, const V* coef) {
    const V centred = sub(sub(in[0], coef[0]), coef[1]);
    return fma(mul(centred, coef[2]), coef[3], coef[4]);
  }
};
