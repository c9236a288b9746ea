// (x - pivot) * scale without rounding, as value - minus_rest (docs/math.md, "The pivot"). scale is a power of two and
// minus_pivot is -pivot * scale, so that one multiply-add rounds as the subtraction alone would. The pivot is a
// multiple of every ulp that x - pivot usually has: value - minus_pivot is exact, and so is minus_rest.
template <class V>
struct Centred {
  V value;
  V minus_rest;

  Centred(V x, V minus_pivot, V scale) {
    value = fma(x, scale, minus_pivot);
    minus_rest = fnma(x, scale, sub(value, minus_pivot));
  }
};
