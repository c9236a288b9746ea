// Operator B, the true gradient (docs/math.md, "The gradient"). Inputs: x, dy.
//
//   reduce   sum_dy = sum dy            sum_dy_xhat = sum dy * xhat        xhat = (x - mean) * rstd
//   apply    dx = rstd * (gamma * dy - mean_dxhat - xhat * mean_dxhat_xhat)
//
// x - mean comes first: both are close, so the difference is nearly exact where a product is not.
// mean_dxhat comes as two numbers, high and low: its own rounding would otherwise cost as much as
// all the rest when dy has a large mean.

template <class V>
struct BackwardReduce {
  static constexpr int kInputs = 2;
  static constexpr int kSums = 2;
  static constexpr int kCoefs = 2;  // mean, rstd
  static void accumulate(const V* in, const V* coef, V* sum) {
    const V xhat = mul(sub(in[0], coef[0]), coef[1]);
    sum[0] = add(sum[0], in[1]);
    sum[1] = fma(in[1], xhat, sum[1]);
  }
};

// The same with sum_xhat, which is 0 unless the mean was rounded.
template <class V>
struct BackwardReduceRecentred {
  static constexpr int kInputs = 2;
  static constexpr int kSums = 3;
  static constexpr int kCoefs = 2;  // mean, rstd
  static void accumulate(const V* in, const V* coef, V* sum) {
    const V xhat = mul(sub(in[0], coef[0]), coef[1]);
    sum[0] = add(sum[0], in[1]);
    sum[1] = fma(in[1], xhat, sum[1]);
    sum[2] = add(sum[2], xhat);
  }
};

template <class V>
struct BackwardApply {
  static constexpr int kInputs = 2;
  static constexpr int kCoefs = 6;  // mean, rstd, -mean_dxhat (high, low), mean_dxhat_xhat, gamma
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
