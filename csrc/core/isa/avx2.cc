// AVX2, FMA and F16C: 16 floats are two registers, 16 doubles four.
#include <immintrin.h>

#include <cstring>
#include <type_traits>

#include "tables.h"

namespace groupnorm {
namespace {

#include "generic-inl.h"

inline __m256i iota8() { return _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7); }
inline __m256i iota4() { return _mm256_setr_epi64x(0, 1, 2, 3); }

// Lanes l and l + 8 of a vector added: lanes 0 to 3, 4 to 7, of double.
struct Folded {
  __m256d low, high;

  static Folded zero() { return {_mm256_setzero_pd(), _mm256_setzero_pd()}; }
  double sum() const {
    const __m256d by4 = _mm256_add_pd(low, high);
    const __m128d by2 = _mm_add_pd(_mm256_castpd256_pd128(by4), _mm256_extractf128_pd(by4, 1));
    return _mm_cvtsd_f64(_mm_add_sd(by2, _mm_unpackhi_pd(by2, by2)));
  }
  static void sum_rows(const Folded* rows, int count, double* to) { sum_each(rows, count, to); }
};

inline Folded add(const Folded& a, const Folded& b) {
  return {_mm256_add_pd(a.low, b.low), _mm256_add_pd(a.high, b.high)};
}

struct F32 {
  using Scalar = float;
  __m256 low, high;  // lanes 0 to 7, 8 to 15

  static F32 zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
  static F32 set1(float value) { return {_mm256_set1_ps(value), _mm256_set1_ps(value)}; }

  static F32 load(const float* from) { return {_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8)}; }
  static F32 load(const Float16* from) {
    const __m128i* half = reinterpret_cast<const __m128i*>(from);
    return {_mm256_cvtph_ps(_mm_loadu_si128(half)), _mm256_cvtph_ps(_mm_loadu_si128(half + 1))};
  }
  static F32 load(const BFloat16* from) {
    const __m128i* half = reinterpret_cast<const __m128i*>(from);
    return {widen_bfloat16(_mm_loadu_si128(half)), widen_bfloat16(_mm_loadu_si128(half + 1))};
  }
  template <class T>
  static F32 load(const T* from, int n) {
    return load_padded<F32>(from, n);
  }

  static F32 select_first(int n, F32 a, F32 b) {
    const __m256i in_low = _mm256_cmpgt_epi32(_mm256_set1_epi32(n), iota8());
    const __m256i in_high = _mm256_cmpgt_epi32(_mm256_set1_epi32(n - 8), iota8());
    return {_mm256_blendv_ps(b.low, a.low, _mm256_castsi256_ps(in_low)),
            _mm256_blendv_ps(b.high, a.high, _mm256_castsi256_ps(in_high))};
  }

  void store_raw(float* to) const {
    _mm256_storeu_ps(to, low);
    _mm256_storeu_ps(to + 8, high);
  }
  void store(float* to) const {
    _mm256_storeu_ps(to, one_nan(low));
    _mm256_storeu_ps(to + 8, one_nan(high));
  }
  void store(Float16* to) const {
    __m128i* half = reinterpret_cast<__m128i*>(to);
    _mm_storeu_si128(half, _mm256_cvtps_ph(one_nan(low), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    _mm_storeu_si128(half + 1, _mm256_cvtps_ph(one_nan(high), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
  void store(BFloat16* to) const {  // the pack works within halves of 128 bits: put its quarters in order
    const __m256i packed = _mm256_packus_epi32(bfloat16(low), bfloat16(high));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm256_permute4x64_epi64(packed, 0xD8));
  }
  template <class T>
  void store(T* to, int n) const {
    store_padded(*this, to, n);
  }

  void stream(float* to) const {
    _mm256_stream_ps(to, one_nan(low));
    _mm256_stream_ps(to + 8, one_nan(high));
  }
  template <class T>
  void stream(T* to) const {
    alignas(32) T whole[kLanes];
    store(whole);
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to), _mm256_load_si256(reinterpret_cast<const __m256i*>(whole)));
  }
  static void stream_line(const void* line, void* to) {
    for (int i = 0; i < 2; ++i) {
      _mm256_stream_si256(static_cast<__m256i*>(to) + i, _mm256_load_si256(static_cast<const __m256i*>(line) + i));
    }
  }
  static void fence() { _mm_sfence(); }

  Folded folded() const {
    const __m256 both = _mm256_add_ps(low, high);
    return {_mm256_cvtps_pd(_mm256_castps256_ps128(both)), _mm256_cvtps_pd(_mm256_extractf128_ps(both, 1))};
  }

 private:
  static __m256 widen_bfloat16(__m128i bits) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
  }
  static __m256 one_nan(__m256 v) {
    const __m256 nan = _mm256_castsi256_ps(_mm256_set1_epi32(static_cast<int>(kNaN32)));
    return _mm256_blendv_ps(v, nan, _mm256_cmp_ps(v, v, _CMP_UNORD_Q));
  }
  static __m256i bfloat16(__m256 v) {
    const __m256i bits = _mm256_castps_si256(one_nan(v));
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7FFF)), odd);
    return _mm256_srli_epi32(rounded, 16);
  }
};

inline F32 add(F32 a, F32 b) { return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)}; }
inline F32 sub(F32 a, F32 b) { return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)}; }
inline F32 mul(F32 a, F32 b) { return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)}; }
inline F32 fma(F32 a, F32 b, F32 c) {
  return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}
inline F32 fnma(F32 a, F32 b, F32 c) {
  return {_mm256_fnmadd_ps(a.low, b.low, c.low), _mm256_fnmadd_ps(a.high, b.high, c.high)};
}
inline F32 div(F32 a, F32 b) { return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)}; }
inline F32 min(F32 a, F32 b) { return {_mm256_min_ps(a.low, b.low), _mm256_min_ps(a.high, b.high)}; }
inline F32 max(F32 a, F32 b) { return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)}; }
inline F32 negative_magnitude(F32 a) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_or_ps(a.low, sign), _mm256_or_ps(a.high, sign)};
}
inline F32 select_negative(F32 sign, F32 a, F32 b) {
  return {_mm256_blendv_ps(b.low, a.low, sign.low), _mm256_blendv_ps(b.high, a.high, sign.high)};
}
inline F32 shift_to_exponent(F32 a) {
  return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(a.low), 23)),
          _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(a.high), 23))};
}

struct F64 {
  using Scalar = double;
  __m256d v[4];  // lanes 0 to 3, 4 to 7, 8 to 11, 12 to 15

  template <class Fn>
  static F64 map(Fn fn) {
    return {{fn(0), fn(1), fn(2), fn(3)}};
  }
  static F64 zero() { return set1(0.0); }
  static F64 set1(double value) {
    return map([=](int) { return _mm256_set1_pd(value); });
  }

  static F64 load(const double* from) {
    return map([=](int i) { return _mm256_loadu_pd(from + 4 * i); });
  }
  static F64 load(const float* from) {
    return map([=](int i) { return _mm256_cvtps_pd(_mm_loadu_ps(from + 4 * i)); });
  }
  template <class T>
  static F64 load(const T* from, int n) {
    return load_padded<F64>(from, n);
  }

  static F64 widen(F32 from) {
    return {{_mm256_cvtps_pd(_mm256_castps256_ps128(from.low)), _mm256_cvtps_pd(_mm256_extractf128_ps(from.low, 1)),
             _mm256_cvtps_pd(_mm256_castps256_ps128(from.high)), _mm256_cvtps_pd(_mm256_extractf128_ps(from.high, 1))}};
  }
  static F64 widen(const F64& from) { return from; }

  static F64 select_first(int n, const F64& a, const F64& b) {
    return map([&](int i) {
      const __m256i in = _mm256_cmpgt_epi64(_mm256_set1_epi64x(n - 4 * i), iota4());
      return _mm256_blendv_pd(b.v[i], a.v[i], _mm256_castsi256_pd(in));
    });
  }

  void store_raw(double* to) const {
    for (int i = 0; i < 4; ++i) _mm256_storeu_pd(to + 4 * i, v[i]);
  }
  void store(double* to) const {
    const __m256d nan = _mm256_castsi256_pd(_mm256_set1_epi64x(static_cast<long long>(kNaN64)));
    for (int i = 0; i < 4; ++i) {
      _mm256_storeu_pd(to + 4 * i, _mm256_blendv_pd(v[i], nan, _mm256_cmp_pd(v[i], v[i], _CMP_UNORD_Q)));
    }
  }
  void store(double* to, int n) const { store_padded(*this, to, n); }

  void stream(double* to) const { store(to); }
  static void stream_line(const void* line, void* to) { copy_line(line, to); }
  static void fence() {}

  Folded folded() const { return {_mm256_add_pd(v[0], v[2]), _mm256_add_pd(v[1], v[3])}; }
};

inline F64 add(const F64& a, const F64& b) {
  return F64::map([&](int i) { return _mm256_add_pd(a.v[i], b.v[i]); });
}
inline F64 sub(const F64& a, const F64& b) {
  return F64::map([&](int i) { return _mm256_sub_pd(a.v[i], b.v[i]); });
}
inline F64 mul(const F64& a, const F64& b) {
  return F64::map([&](int i) { return _mm256_mul_pd(a.v[i], b.v[i]); });
}
inline F64 fma(const F64& a, const F64& b, const F64& c) {
  return F64::map([&](int i) { return _mm256_fmadd_pd(a.v[i], b.v[i], c.v[i]); });
}
inline F64 fnma(const F64& a, const F64& b, const F64& c) {
  return F64::map([&](int i) { return _mm256_fnmadd_pd(a.v[i], b.v[i], c.v[i]); });
}
inline F64 div(const F64& a, const F64& b) {
  return F64::map([&](int i) { return _mm256_div_pd(a.v[i], b.v[i]); });
}
inline F64 min(const F64& a, const F64& b) {
  return F64::map([&](int i) { return _mm256_min_pd(a.v[i], b.v[i]); });
}
inline F64 max(const F64& a, const F64& b) {
  return F64::map([&](int i) { return _mm256_max_pd(a.v[i], b.v[i]); });
}
inline F64 negative_magnitude(const F64& a) {
  return F64::map([&](int i) { return _mm256_or_pd(a.v[i], _mm256_set1_pd(-0.0)); });
}
inline F64 select_negative(const F64& sign, const F64& a, const F64& b) {
  return F64::map([&](int i) { return _mm256_blendv_pd(b.v[i], a.v[i], sign.v[i]); });
}
inline F64 shift_to_exponent(const F64& a) {
  return F64::map([&](int i) { return _mm256_castsi256_pd(_mm256_slli_epi64(_mm256_castpd_si256(a.v[i]), 52)); });
}

#include "table-inl.h"

}  // namespace

const KernelTable kAvx2Table = make_table("avx2");

}  // namespace groupnorm
