// AVX-512 F, BW, DQ and VL: 16 floats are one register, 16 doubles two. bfloat16 goes through integer
// arithmetic, since the instruction for it flushes subnormals.
#include <immintrin.h>

#include <type_traits>

#include "tables.h"

namespace groupnorm {
namespace {

inline __mmask16 first16(int n) { return static_cast<__mmask16>((1u << n) - 1u); }
inline __mmask8 first8(int n) { return static_cast<__mmask8>(n >= 8 ? 0xFFu : n <= 0 ? 0u : (1u << n) - 1u); }

// GCC otherwise reads an operand again wherever it is used, and Zen 4 reads but one vector a cycle.
template <class Vector>
inline void keep_in_register(Vector& v) {
  asm("" : "+v"(v));
}

// What fixupimm makes of the classes of a number, a hex digit each from the right: of the two kinds of NaN what the
// target holds, of all else the number itself.
constexpr int kNaNsStay = 0x11111100;

// Lanes l and l + 8 of a vector added: lanes 0 to 7, of double.
struct Folded {
  __m512d v;

  static Folded zero() { return {_mm512_setzero_pd()}; }

  double sum() const {
    const __m256d by4 = _mm256_add_pd(_mm512_castpd512_pd256(v), _mm512_extractf64x4_pd(v, 1));
    const __m128d by2 = _mm_add_pd(_mm256_castpd256_pd128(by4), _mm256_extractf128_pd(by4, 1));
    return _mm_cvtsd_f64(_mm_add_sd(by2, _mm_unpackhi_pd(by2, by2)));
  }

  // Of 8 rows, which share the instructions.
  static void sum_rows(const Folded* rows, int count, double* to) {
    if (count < 8) {
      for (int r = 0; r < count; ++r) to[r] = rows[r].sum();
      return;
    }
    __m512d by4[4];  // two rows each
    for (int r = 0; r < 4; ++r) {
      by4[r] = _mm512_add_pd(_mm512_shuffle_f64x2(rows[2 * r].v, rows[2 * r + 1].v, 0x44),
                             _mm512_shuffle_f64x2(rows[2 * r].v, rows[2 * r + 1].v, 0xEE));
    }
    __m512d by2[2];  // four rows each
    for (int r = 0; r < 2; ++r) {
      by2[r] = _mm512_add_pd(_mm512_shuffle_f64x2(by4[2 * r], by4[2 * r + 1], 0x88),
                             _mm512_shuffle_f64x2(by4[2 * r], by4[2 * r + 1], 0xDD));
    }
    const __m512d sums = _mm512_add_pd(_mm512_unpacklo_pd(by2[0], by2[1]), _mm512_unpackhi_pd(by2[0], by2[1]));
    // Rows 0 4 1 5 2 6 3 7, as unpacking left them.
    _mm512_storeu_pd(to, _mm512_permutexvar_pd(_mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7), sums));
  }
};

inline Folded add(Folded a, Folded b) { return {_mm512_add_pd(a.v, b.v)}; }

struct F32 {
  using Scalar = float;
  __m512 v;

  static F32 zero() { return {_mm512_setzero_ps()}; }
  static F32 set1(float value) { return {_mm512_set1_ps(value)}; }

  static F32 load(const float* from) {
    F32 loaded{_mm512_loadu_ps(from)};
    keep_in_register(loaded.v);
    return loaded;
  }
  static F32 load(const float* from, int n) { return {_mm512_maskz_loadu_ps(first16(n), from)}; }
  static F32 load(const Float16* from) {
    return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)))};
  }
  static F32 load(const Float16* from, int n) { return {_mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first16(n), from))}; }
  static F32 load(const BFloat16* from) {
    return widen_bfloat16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  }
  static F32 load(const BFloat16* from, int n) { return widen_bfloat16(_mm256_maskz_loadu_epi16(first16(n), from)); }

  static F32 select_first(int n, F32 a, F32 b) { return {_mm512_mask_mov_ps(b.v, first16(n), a.v)}; }

  void store_raw(float* to) const { _mm512_storeu_ps(to, v); }
  void store(float* to) const { _mm512_storeu_ps(to, one_nan()); }
  void store(float* to, int n) const { _mm512_mask_storeu_ps(to, first16(n), one_nan()); }
  void store(Float16* to) const { _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), float16()); }
  void store(Float16* to, int n) const { _mm256_mask_storeu_epi16(to, first16(n), float16()); }
  void store(BFloat16* to) const { _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), bfloat16()); }
  void store(BFloat16* to, int n) const { _mm256_mask_storeu_epi16(to, first16(n), bfloat16()); }

  void stream(float* to) const { _mm512_stream_ps(to, one_nan()); }
  void stream(Float16* to) const { _mm256_stream_si256(reinterpret_cast<__m256i*>(to), float16()); }
  void stream(BFloat16* to) const { _mm256_stream_si256(reinterpret_cast<__m256i*>(to), bfloat16()); }
  static void stream_line(const void* line, void* to) {
    _mm512_stream_si512(static_cast<__m512i*>(to), _mm512_load_si512(line));
  }
  static void fence() { _mm_sfence(); }

  Folded folded() const {
    return {_mm512_cvtps_pd(_mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1)))};
  }

 private:
  // One permutation of words each way: word i to the high half of lane i over zeros, and back.
  static F32 widen_bfloat16(__m256i bits) {
    const __m512i lane =
        _mm512_setr_epi32(0 << 16, 1 << 16, 2 << 16, 3 << 16, 4 << 16, 5 << 16, 6 << 16, 7 << 16, 8 << 16, 9 << 16,
                          10 << 16, 11 << 16, 12 << 16, 13 << 16, 14 << 16, 15 << 16);
    const __m512i words = _mm512_maskz_permutexvar_epi16(0xAAAAAAAAu, lane, _mm512_castsi256_si512(bits));
    return {_mm512_castsi512_ps(words)};
  }
  __m512 one_nan() const {
    const __m512 nan = _mm512_castsi512_ps(_mm512_set1_epi32(static_cast<int>(kNaN32)));
    return _mm512_fixupimm_ps(nan, v, _mm512_set1_epi32(kNaNsStay), 0);
  }
  __m256i float16() const { return _mm512_cvtps_ph(one_nan(), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  __m256i bfloat16() const {
    const __m512i bits = _mm512_castps_si512(one_nan());
    const __mmask16 odd = _mm512_test_epi32_mask(bits, _mm512_set1_epi32(1 << 16));
    const __m512i down = _mm512_add_epi32(bits, _mm512_set1_epi32(0x7FFF));  // a half goes to the even one
    const __m512i rounded = _mm512_mask_add_epi32(down, odd, bits, _mm512_set1_epi32(0x8000));
    const __m512i high_words = _mm512_setr_epi32(1 | 3 << 16, 5 | 7 << 16, 9 | 11 << 16, 13 | 15 << 16, 17 | 19 << 16,
                                                 21 | 23 << 16, 25 | 27 << 16, 29 | 31 << 16, 0, 0, 0, 0, 0, 0, 0, 0);
    return _mm512_castsi512_si256(_mm512_permutexvar_epi16(high_words, rounded));
  }
};

inline F32 add(F32 a, F32 b) { return {_mm512_add_ps(a.v, b.v)}; }
inline F32 sub(F32 a, F32 b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline F32 mul(F32 a, F32 b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline F32 fma(F32 a, F32 b, F32 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline F32 fnma(F32 a, F32 b, F32 c) { return {_mm512_fnmadd_ps(a.v, b.v, c.v)}; }
inline F32 div(F32 a, F32 b) { return {_mm512_div_ps(a.v, b.v)}; }
inline F32 min(F32 a, F32 b) { return {_mm512_min_ps(a.v, b.v)}; }
inline F32 max(F32 a, F32 b) { return {_mm512_max_ps(a.v, b.v)}; }
inline F32 negative_magnitude(F32 a) { return {_mm512_or_ps(a.v, _mm512_set1_ps(-0.0f))}; }
inline F32 select_negative(F32 sign, F32 a, F32 b) {
  return {_mm512_mask_mov_ps(b.v, _mm512_movepi32_mask(_mm512_castps_si512(sign.v)), a.v)};
}
inline F32 shift_to_exponent(F32 a) { return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(a.v), 23))}; }

struct F64 {
  using Scalar = double;
  __m512d low, high;  // lanes 0 to 7, 8 to 15

  static F64 zero() { return {_mm512_setzero_pd(), _mm512_setzero_pd()}; }
  static F64 set1(double value) { return {_mm512_set1_pd(value), _mm512_set1_pd(value)}; }

  static F64 load(const double* from) { return {_mm512_loadu_pd(from), _mm512_loadu_pd(from + 8)}; }
  static F64 load(const double* from, int n) {
    return {_mm512_maskz_loadu_pd(first8(n), from), _mm512_maskz_loadu_pd(first8(n - 8), from + 8)};
  }
  static F64 load(const float* from) { return widen(F32::load(from)); }
  static F64 load(const float* from, int n) { return widen(F32::load(from, n)); }

  static F64 widen(F32 from) {
    return {_mm512_cvtps_pd(_mm512_castps512_ps256(from.v)), _mm512_cvtps_pd(_mm512_extractf32x8_ps(from.v, 1))};
  }
  static F64 widen(F64 from) { return from; }

  static F64 select_first(int n, F64 a, F64 b) {
    return {_mm512_mask_mov_pd(b.low, first8(n), a.low), _mm512_mask_mov_pd(b.high, first8(n - 8), a.high)};
  }

  void store_raw(double* to) const {
    _mm512_storeu_pd(to, low);
    _mm512_storeu_pd(to + 8, high);
  }
  void store(double* to) const {
    _mm512_storeu_pd(to, one_nan(low));
    _mm512_storeu_pd(to + 8, one_nan(high));
  }
  void store(double* to, int n) const {
    _mm512_mask_storeu_pd(to, first8(n), one_nan(low));
    _mm512_mask_storeu_pd(to + 8, first8(n - 8), one_nan(high));
  }

  void stream(double* to) const {
    _mm512_stream_pd(to, one_nan(low));
    _mm512_stream_pd(to + 8, one_nan(high));
  }
  static void stream_line(const void* line, void* to) { F32::stream_line(line, to); }
  static void fence() { _mm_sfence(); }

  Folded folded() const { return {_mm512_add_pd(low, high)}; }

 private:
  static __m512d one_nan(__m512d v) {
    const __m512d nan = _mm512_castsi512_pd(_mm512_set1_epi64(static_cast<long long>(kNaN64)));
    return _mm512_fixupimm_pd(nan, v, _mm512_set1_epi64(kNaNsStay), 0);
  }
};

inline F64 add(F64 a, F64 b) { return {_mm512_add_pd(a.low, b.low), _mm512_add_pd(a.high, b.high)}; }
inline F64 sub(F64 a, F64 b) { return {_mm512_sub_pd(a.low, b.low), _mm512_sub_pd(a.high, b.high)}; }
inline F64 mul(F64 a, F64 b) { return {_mm512_mul_pd(a.low, b.low), _mm512_mul_pd(a.high, b.high)}; }
inline F64 fma(F64 a, F64 b, F64 c) {
  return {_mm512_fmadd_pd(a.low, b.low, c.low), _mm512_fmadd_pd(a.high, b.high, c.high)};
}
inline F64 fnma(F64 a, F64 b, F64 c) {
  return {_mm512_fnmadd_pd(a.low, b.low, c.low), _mm512_fnmadd_pd(a.high, b.high, c.high)};
}
inline F64 div(F64 a, F64 b) { return {_mm512_div_pd(a.low, b.low), _mm512_div_pd(a.high, b.high)}; }
inline F64 min(F64 a, F64 b) { return {_mm512_min_pd(a.low, b.low), _mm512_min_pd(a.high, b.high)}; }
inline F64 max(F64 a, F64 b) { return {_mm512_max_pd(a.low, b.low), _mm512_max_pd(a.high, b.high)}; }
inline F64 negative_magnitude(F64 a) {
  const __m512d sign = _mm512_set1_pd(-0.0);
  return {_mm512_or_pd(a.low, sign), _mm512_or_pd(a.high, sign)};
}
inline F64 select_negative(F64 sign, F64 a, F64 b) {
  return {_mm512_mask_mov_pd(b.low, _mm512_movepi64_mask(_mm512_castpd_si512(sign.low)), a.low),
          _mm512_mask_mov_pd(b.high, _mm512_movepi64_mask(_mm512_castpd_si512(sign.high)), a.high)};
}
inline F64 shift_to_exponent(F64 a) {
  return {_mm512_castsi512_pd(_mm512_slli_epi64(_mm512_castpd_si512(a.low), 52)),
          _mm512_castsi512_pd(_mm512_slli_epi64(_mm512_castpd_si512(a.high), 52))};
}

#include "table-inl.h"

}  // namespace

const KernelTable kAvx512Table = make_table("avx512");

}  // namespace groupnorm
