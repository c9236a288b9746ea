// Operator B, the true gradient (docs/math.md, "The gradient"). Inputs: x, dy.
//
//   reduce   sum dy        sum dy * t + sum dy * rest
//   apply    dx = rstd * (gamma * dy - mean_dxhat - xhat * mean_dxhat_xhat)
//
// t = (x - pivot) * scale, where both are close, so that their difference is nearly exact, and scale is a power
// of two, so that the product is exact. What x - pivot does round off is rest: equal x (zeros of a ReLU, pixels,
// anything in 16 bits) leave the same each time, and a long sum would collect it as a bias.
// mean_dxhat comes as two numbers, high and low: its own rounding would otherwise cost as much as
// all the rest when dy has a large mean.

template <class V>
struct BackwardReduce {
  static constexpr int kInputs = 2;
  static constexpr int kLaneSums = 3;
  static constexpr int kSums = 2;
  static constexpr int kGroupCoefs = 2;  // -pivot * scale, scale
  static constexpr int kChannelCoefs = 0;
  static void accumulate(const V* in, const V* coef, V* sum) {
    const Centred<V> x(in[0], coef[0], coef[1]);
    sum[0] = add(sum[0], in[1]);
    sum[1] = fma(in[1], x.value, sum[1]);
    sum[2] = fnma(in[1], x.minus_rest, sum[2]);
  }
  template <class Sum>
  static void join(Sum* sum) {
    sum[1] = add(sum[1], sum[2]);
  }
};

// The same with sum t and sum rest, which are 0 unless the mean was rounded.
template <class V>
struct BackwardReduceRecentred {
  static constexpr int kInputs = 2;
  static constexpr int kLaneSums = 5;
  static constexpr int kSums = 3;
  static constexpr int kGroupCoefs = 2;  // -pivot * scale, scale
  static constexpr int kChannelCoefs = 0;
  static void accumulate(const V* in, const V* coef, V* sum) {
    const Centred<V> x(in[0], coef[0], coef[1]);
    sum[0] = add(sum[0], in[1]);
    sum[1] = fma(in[1], x.value, sum[1]);
    sum[2] = add(sum[2], x.value);
    sum[3] = fnma(in[1], x.minus_rest, sum[3]);
    sum[4] = sub(sum[4], x.minus_rest);
  }
  template <class Sum>
  static void join(Sum* sum) {
    sum[1] = add(sum[1], sum[3]);
    sum[2] = add(sum[2], sum[4]);
  }
};

template <class V>
struct BackwardApply {
  static constexpr int kInputs = 2;
  static constexpr int kGroupCoefs = 5;    // pivot, rstd, -mean_dxhat (high, low), mean_dxhat_xhat
  static constexpr int kChannelCoefs = 1;  // gamma
  static V apply(const V* in, const V* coef) {
    const V xhat = mul(sub(in[0], coef[0]), coef[1]);
    const V centred = add(scaled_plus(coef[5], in[1], coef[2]), coef[3]);
    return mul(fnma(xhat, coef[4], centred), coef[1]);
  }

 private:
  // gamma * dy + shift, such that a group of one element gives exactly 0: its mean is the product
  // itself, which float64 holds whole as high + low when it comes from float32, and rounded when
  // it comes from float64.
  static V scaled_plus(V gamma, V dy, V shift) {
    if constexpr (sizeof(typename V::Scalar) == sizeof(float)) {
      return fma(gamma, dy, shift);
    } else {
      return add(mul(gamma, dy), shift);
    }
  }
};
