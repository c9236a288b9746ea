// (x - pivot) * scale without rounding, as value + rest (docs/math.md, "The pivot"). The pivot is a multiple
// of every ulp that x - pivot usually has, so value + pivot, before scaling, is exact, and so is rest.
template <class V>
struct Centred {
  V value;
  V rest;

  Centred(V x, V pivot, V scale) {
    const V difference = sub(x, pivot);
    value = mul(difference, scale);
    rest = mul(sub(x, add(difference, pivot)), scale);
  }
};
