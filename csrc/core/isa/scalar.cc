// Plain C++: every CPU, and the measure of the others. std::fma is one rounding everywhere; where the
// CPU has no instruction for it, it is a library call, and slow.
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "tables.h"

namespace groupnorm {
namespace {

// Lanes l and l + 8 of a vector added: lanes 0 to 7, of double.
struct Folded {
  double v[kLanes / 2];

  static Folded zero() { return {}; }
  double sum() const {
    Folded r = *this;
    for (int half = kLanes / 4; half > 0; half /= 2) {
      for (int i = 0; i < half; ++i) r.v[i] += r.v[i + half];
    }
    return r.v[0];
  }
  static void sum_rows(const Folded* rows, int count, double* to) {
    for (int r = 0; r < count; ++r) to[r] = rows[r].sum();
  }
};

inline Folded add(const Folded& a, const Folded& b) {
  Folded r;
  for (int i = 0; i < kLanes / 2; ++i) r.v[i] = a.v[i] + b.v[i];
  return r;
}

template <class S>
struct Lanes {
  using Scalar = S;
  S v[kLanes];

  static Lanes zero() { return set1(S{0}); }
  static Lanes set1(S value) {
    Lanes r;
    for (S& lane : r.v) lane = value;
    return r;
  }
  template <class T>
  static Lanes load(const T* from) {
    return load(from, kLanes);
  }
  template <class T>
  static Lanes load(const T* from, int n) {
    Lanes r = zero();
    for (int i = 0; i < n; ++i) r.v[i] = static_cast<S>(groupnorm::widen(from[i]));
    return r;
  }
  static Lanes select_first(int n, const Lanes& a, const Lanes& b) {
    Lanes r;
    for (int i = 0; i < kLanes; ++i) r.v[i] = i < n ? a.v[i] : b.v[i];
    return r;
  }
  template <class T>
  void store(T* to) const {
    store(to, kLanes);
  }
  template <class T>
  void store(T* to, int n) const {
    for (int i = 0; i < n; ++i) narrow(v[i], to + i);
  }
  template <class T>
  void stream(T* to) const {
    store(to);
  }
  static void stream_line(const void* line, void* to) { std::memcpy(to, line, 64); }
  static void fence() {}
  void store_raw(S* to) const {
    for (int i = 0; i < kLanes; ++i) to[i] = v[i];
  }
  Folded folded() const {
    Folded r;
    for (int i = 0; i < kLanes / 2; ++i) r.v[i] = v[i] + v[i + kLanes / 2];
    return r;
  }
  template <class From>
  static Lanes widen(const Lanes<From>& from) {
    return map([&](int i) { return static_cast<S>(from.v[i]); });
  }
  template <class Fn>
  static Lanes map(Fn fn) {
    Lanes r;
    for (int i = 0; i < kLanes; ++i) r.v[i] = fn(i);
    return r;
  }
};

template <class S>
Lanes<S> add(const Lanes<S>& a, const Lanes<S>& b) {
  return Lanes<S>::map([&](int i) { return a.v[i] + b.v[i]; });
}
template <class S>
Lanes<S> sub(const Lanes<S>& a, const Lanes<S>& b) {
  return Lanes<S>::map([&](int i) { return a.v[i] - b.v[i]; });
}
template <class S>
Lanes<S> mul(const Lanes<S>& a, const Lanes<S>& b) {
  return Lanes<S>::map([&](int i) { return a.v[i] * b.v[i]; });
}
template <class S>
Lanes<S> fma(const Lanes<S>& a, const Lanes<S>& b, const Lanes<S>& c) {
  return Lanes<S>::map([&](int i) { return std::fma(a.v[i], b.v[i], c.v[i]); });
}
template <class S>
Lanes<S> fnma(const Lanes<S>& a, const Lanes<S>& b, const Lanes<S>& c) {
  return Lanes<S>::map([&](int i) { return std::fma(-a.v[i], b.v[i], c.v[i]); });
}
template <class S>
Lanes<S> div(const Lanes<S>& a, const Lanes<S>& b) {
  return Lanes<S>::map([&](int i) { return a.v[i] / b.v[i]; });
}
template <class S>
Lanes<S> min(const Lanes<S>& a, const Lanes<S>& b) {
  return Lanes<S>::map([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
}
template <class S>
Lanes<S> max(const Lanes<S>& a, const Lanes<S>& b) {
  return Lanes<S>::map([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
template <class S>
Lanes<S> negative_magnitude(const Lanes<S>& a) {
  return Lanes<S>::map([&](int i) { return -std::fabs(a.v[i]); });
}
template <class S>
Lanes<S> select_negative(const Lanes<S>& sign, const Lanes<S>& a, const Lanes<S>& b) {
  return Lanes<S>::map([&](int i) { return std::signbit(sign.v[i]) ? a.v[i] : b.v[i]; });
}
template <class S>
Lanes<S> shift_to_exponent(const Lanes<S>& a) {
  using Bits = std::conditional_t<sizeof(S) == 4, uint32_t, uint64_t>;
  constexpr int kShift = std::numeric_limits<S>::digits - 1;
  return Lanes<S>::map([&](int i) { return groupnorm::bit_cast<S>(groupnorm::bit_cast<Bits>(a.v[i]) << kShift); });
}

using F32 = Lanes<float>;
using F64 = Lanes<double>;

#include "table-inl.h"

}  // namespace

const KernelTable kScalarTable = make_table("scalar");

}  // namespace groupnorm
