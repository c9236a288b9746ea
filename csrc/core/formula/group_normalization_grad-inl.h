// Operator A, the formula that CANN prints (docs/math.md, "The printed formula"). gamma has the shape
// of x and stands outside the bracket as well as inside the sums. Inputs: x, dy, gamma; one span
// channel is one group.
//
//   reduce   sum dy * gamma        sum dy * gamma * t + sum dy * gamma * rest      t, rest as for operator B
//   apply    dx = rstd * gamma * (dy - s1 / M - xhat * s2 / M)

template <class V>
struct PrintedReduce {
  static constexpr int kInputs = 3;
  static constexpr int kLaneSums = 3;
  static constexpr int kSums = 2;
  static constexpr int kGroupCoefs = 2;  // -pivot * scale, scale
  static constexpr int kChannelCoefs = 0;
  static void accumulate(const V* in, const V* coef, V* sum) {
    const Centred<V> x(in[0], coef[0], coef[1]);
    const V weighted = mul(in[1], in[2]);
    sum[0] = fma(in[1], in[2], sum[0]);
    sum[1] = fma(weighted, x.value, sum[1]);
    sum[2] = fnma(weighted, x.minus_rest, sum[2]);
  }
  template <class Sum>
  static void join(Sum* sum) {
    sum[1] = add(sum[1], sum[2]);
  }
};

template <class V>
struct PrintedApply {
  static constexpr int kInputs = 3;
  static constexpr int kGroupCoefs = 5;  // pivot, rstd, -s1 / M (high, low), s2 / M
  static constexpr int kChannelCoefs = 0;
  static V apply(const V* in, const V* coef) {
    const V xhat = mul(sub(in[0], coef[0]), coef[1]);
    const V centred = add(add(in[1], coef[2]), coef[3]);
    return mul(mul(fnma(xhat, coef[4], centred), in[2]), coef[1]);
  }
};
