// The swish activation after Group Normalization, fused into the stages of operators B and C (docs/math.md,
// "Swish"): y = gn * sigmoid(t) with t = swish_scale * gn and gn = gamma * xhat + beta.
//
//   reduce, apply   operator B's with dy * swish' in the place of dy, the same expression in both
//   forward         operator C's apply, then the activation
//
// No call to a library: exp is one polynomial and a shift of bits, so that it has the same bits everywhere.

// exp(v) = 2^n * exp(r), n = v * log2(e) rounded to an integer, r = v - n * ln(2) in [-0.3466, 0.3466]. Adding
// kRounder rounds to an integer and leaves n + bias + 64 (512 for double) in the low bits of the significand, from
// where shift_to_exponent makes 2^(n + 64): a normal number even where 2^n is subnormal. kTerms are the
// coefficients of r^2 and up that bring the largest relative error of 1 + r + r^2 * (kTerms[0] + ...) to its
// minimum, each rounded in turn and the ones after it fitted again: 3.2e-9 (0.06 u) for float, 3.8e-18 (0.04 u)
// for double. Below -kLimit exp rounds to 0.
template <class S>
struct ExpConstants;

template <>
struct ExpConstants<float> {
  static constexpr float kLimit = 104;
  static constexpr float kLog2E = 0x1.715476p+0f;
  static constexpr float kLn2High = 0x1.62e43p-1f;
  static constexpr float kLn2Low = -0x1.05c61p-29f;
  static constexpr float kRounder = 0x1.8p23f + 127 + 64;
  static constexpr float kUndoHeadroom = 0x1p-64f;
  static constexpr int kCount = 5;
  static constexpr float kTerms[kCount] = {0x1.fffffcp-2f, 0x1.555492p-3f, 0x1.5558b2p-5f, 0x1.123994p-7f,
                                           0x1.6a4b44p-10f};
};

template <>
struct ExpConstants<double> {
  static constexpr double kLimit = 746;
  static constexpr double kLog2E = 0x1.71547652b82fep+0;
  static constexpr double kLn2High = 0x1.62e42fefa39efp-1;
  static constexpr double kLn2Low = 0x1.abc9e3b39803fp-56;
  static constexpr double kRounder = 0x1.8p52 + 1023 + 512;
  static constexpr double kUndoHeadroom = 0x1p-512;
  static constexpr int kCount = 10;
  static constexpr double kTerms[kCount] = {0x1.000000000000ap-1,  0x1.5555555555505p-3,  0x1.55555555506c0p-5,
                                            0x1.1111111125201p-7,  0x1.6c16c1847575ep-10, 0x1.a01a0137cbddap-13,
                                            0x1.a019996498238p-16, 0x1.71df087b8f0eap-19, 0x1.28adf6b376b07p-22,
                                            0x1.adab9380b1209p-26};
};

// exp of a v in [-kLimit, 0]; NaN stays NaN.
template <class V>
V exp_of_negative(V v) {
  using K = ExpConstants<typename V::Scalar>;
  const V rounder = V::set1(K::kRounder);
  const V shifted = fma(v, V::set1(K::kLog2E), rounder);
  const V n = sub(shifted, rounder);
  // The high part is exact: v and n * kLn2High are multiples of one ulp that r has room for.
  const V r = fnma(n, V::set1(K::kLn2Low), fnma(n, V::set1(K::kLn2High), v));
  V terms = V::set1(K::kTerms[K::kCount - 1]);
  for (int k = K::kCount - 2; k >= 0; --k) terms = fma(terms, r, V::set1(K::kTerms[k]));
  const V power = add(fma(mul(r, r), terms, r), V::set1(1));
  return mul(mul(power, shift_to_exponent(shifted)), V::set1(K::kUndoHeadroom));
}

// sigmoid(t) and 1 - sigmoid(t), both without cancellation: e = exp(-|t|) never overflows, and 1 / (1 + e) and
// e / (1 + e) are the two, the larger one that of t's sign. Past kLimit they are 1 and 0, and t stops there, so that
// t times the 0 is 0 even where t has overflowed.
template <class V>
struct Sigmoid {
  V t;
  V value;
  V rest;

  explicit Sigmoid(V argument) {
    const V limit = V::set1(ExpConstants<typename V::Scalar>::kLimit);
    const V one = V::set1(1);
    t = max(sub(V::zero(), limit), min(limit, argument));
    const V e = exp_of_negative(negative_magnitude(t));
    const V larger = div(one, add(one, e));
    const V smaller = mul(e, larger);
    value = select_negative(t, smaller, larger);
    rest = select_negative(t, larger, smaller);
  }
};

// dy * (sig + t * sig * (1 - sig)), the gradient of what Group Normalization gave. t = (x - pivot) * a + b: the slope
// of swish is a function of t alone, whatever the scale.
template <class V>
V through_swish(V dy, V x, V pivot, V a, V b) {
  const Sigmoid<V> sigmoid(fma(sub(x, pivot), a, b));
  return mul(dy, fma(mul(sigmoid.t, sigmoid.rest), sigmoid.value, sigmoid.value));
}

template <class V>
struct SwishReduce : BackwardReduce<V> {
  static constexpr int kGroupCoefs = 3;    // -pivot * scale, scale, pivot
  static constexpr int kChannelCoefs = 2;  // a, b
  static void accumulate(const V* in, const V* coef, V* sum) {
    const V through[2] = {in[0], through_swish(in[1], in[0], coef[2], coef[3], coef[4])};
    BackwardReduce<V>::accumulate(through, coef, sum);
  }
};

template <class V>
struct SwishApply {
  static constexpr int kInputs = 2;
  static constexpr int kGroupCoefs = 5;    // pivot, rstd, -mean_dxhat (high, low), mean_dxhat_xhat
  static constexpr int kChannelCoefs = 3;  // gamma, a, b
  static V apply(const V* in, const V* coef) {
    const V through[2] = {in[0], through_swish(in[1], in[0], coef[0], coef[6], coef[7])};
    return BackwardApply<V>::apply(through, coef);
  }
};

template <class V>
struct SwishForward {
  static constexpr int kInputs = 1;
  static constexpr int kGroupCoefs = 4;    // mean (high, low), rstd, swish_scale
  static constexpr int kChannelCoefs = 2;  // gamma, beta
  static V apply(const V* in, const V* coef) {
    const V plain[5] = {coef[0], coef[1], coef[2], coef[4], coef[5]};
    const V gn = ForwardApply<V>::apply(in, plain);
    return mul(gn, Sigmoid<V>(mul(gn, coef[3])).value);
  }
};
