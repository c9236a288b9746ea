// AArch64 Advanced SIMD: 16 floats are four registers, 16 doubles eight. Every AArch64 CPU has it.
#include <arm_neon.h>

#include <cstring>
#include <type_traits>

#include "tables.h"

namespace groupnorm {
namespace {

#include "generic-inl.h"

inline const uint16_t* raw(const Float16* p) { return reinterpret_cast<const uint16_t*>(p); }
inline const uint16_t* raw(const BFloat16* p) { return reinterpret_cast<const uint16_t*>(p); }
inline uint16_t* raw(Float16* p) { return reinterpret_cast<uint16_t*>(p); }
inline uint16_t* raw(BFloat16* p) { return reinterpret_cast<uint16_t*>(p); }

// Lanes l and l + 8 of a vector added: lanes 0 and 1, 2 and 3, 4 and 5, 6 and 7, of double.
struct Folded {
  float64x2_t v[4];

  static Folded zero() {
    const float64x2_t none = vdupq_n_f64(0.0);
    return {{none, none, none, none}};
  }
  double sum() const {
    const float64x2_t by2 = vaddq_f64(vaddq_f64(v[0], v[2]), vaddq_f64(v[1], v[3]));
    return vgetq_lane_f64(by2, 0) + vgetq_lane_f64(by2, 1);
  }
  static void sum_rows(const Folded* rows, int count, double* to) { sum_each(rows, count, to); }
};

inline Folded add(const Folded& a, const Folded& b) {
  return {{vaddq_f64(a.v[0], b.v[0]), vaddq_f64(a.v[1], b.v[1]), vaddq_f64(a.v[2], b.v[2]), vaddq_f64(a.v[3], b.v[3])}};
}

struct F32 {
  using Scalar = float;
  float32x4_t v[4];

  template <class Fn>
  static F32 map(Fn fn) {
    return {{fn(0), fn(1), fn(2), fn(3)}};
  }
  static F32 zero() { return set1(0.0f); }
  static F32 set1(float value) {
    return map([=](int) { return vdupq_n_f32(value); });
  }

  static F32 load(const float* from) {
    return map([=](int i) { return vld1q_f32(from + 4 * i); });
  }
  static F32 load(const Float16* from) {
    return map([=](int i) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(raw(from) + 4 * i))); });
  }
  static F32 load(const BFloat16* from) {
    return map([=](int i) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(raw(from) + 4 * i), 16)); });
  }
  template <class T>
  static F32 load(const T* from, int n) {
    return load_padded<F32>(from, n);
  }

  static F32 select_first(int n, const F32& a, const F32& b) {
    const int32_t iota[4] = {0, 1, 2, 3};
    return map([&](int i) { return vbslq_f32(vcltq_s32(vld1q_s32(iota), vdupq_n_s32(n - 4 * i)), a.v[i], b.v[i]); });
  }

  void store_raw(float* to) const {
    for (int i = 0; i < 4; ++i) vst1q_f32(to + 4 * i, v[i]);
  }
  void store(float* to) const {
    for (int i = 0; i < 4; ++i) vst1q_f32(to + 4 * i, one_nan(v[i]));
  }
  void store(Float16* to) const {
    for (int i = 0; i < 4; ++i) {
      vst1_u16(raw(to) + 4 * i, vreinterpret_u16_f16(vcvt_f16_f32(one_nan(v[i]))));
    }
  }
  void store(BFloat16* to) const {
    for (int i = 0; i < 4; ++i) {
      const uint32x4_t bits = vreinterpretq_u32_f32(one_nan(v[i]));
      const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
      const uint32x4_t rounded = vaddq_u32(vaddq_u32(bits, vdupq_n_u32(0x7FFF)), odd);
      vst1_u16(raw(to) + 4 * i, vshrn_n_u32(rounded, 16));
    }
  }
  template <class T>
  void store(T* to, int n) const {
    store_padded(*this, to, n);
  }

  template <class T>
  void stream(T* to) const {
    store(to);
  }
  static void stream_line(const void* line, void* to) { copy_line(line, to); }
  static void fence() {}

  Folded folded() const {
    const float32x4_t low = vaddq_f32(v[0], v[2]);
    const float32x4_t high = vaddq_f32(v[1], v[3]);
    return {{vcvt_f64_f32(vget_low_f32(low)), vcvt_high_f64_f32(low), vcvt_f64_f32(vget_low_f32(high)),
             vcvt_high_f64_f32(high)}};
  }

 private:
  static float32x4_t one_nan(float32x4_t value) {
    return vbslq_f32(vceqq_f32(value, value), value, vreinterpretq_f32_u32(vdupq_n_u32(kNaN32)));
  }
};

inline F32 add(const F32& a, const F32& b) {
  return F32::map([&](int i) { return vaddq_f32(a.v[i], b.v[i]); });
}
inline F32 sub(const F32& a, const F32& b) {
  return F32::map([&](int i) { return vsubq_f32(a.v[i], b.v[i]); });
}
inline F32 mul(const F32& a, const F32& b) {
  return F32::map([&](int i) { return vmulq_f32(a.v[i], b.v[i]); });
}
inline F32 fma(const F32& a, const F32& b, const F32& c) {
  return F32::map([&](int i) { return vfmaq_f32(c.v[i], a.v[i], b.v[i]); });
}
inline F32 fnma(const F32& a, const F32& b, const F32& c) {
  return F32::map([&](int i) { return vfmsq_f32(c.v[i], a.v[i], b.v[i]); });
}
inline F32 div(const F32& a, const F32& b) {
  return F32::map([&](int i) { return vdivq_f32(a.v[i], b.v[i]); });
}
inline F32 min(const F32& a, const F32& b) {
  return F32::map([&](int i) { return vminq_f32(a.v[i], b.v[i]); });
}
inline F32 max(const F32& a, const F32& b) {
  return F32::map([&](int i) { return vmaxq_f32(a.v[i], b.v[i]); });
}
inline F32 negative_magnitude(const F32& a) {
  return F32::map([&](int i) { return vnegq_f32(vabsq_f32(a.v[i])); });
}
inline F32 select_negative(const F32& sign, const F32& a, const F32& b) {
  return F32::map([&](int i) { return vbslq_f32(vcltzq_s32(vreinterpretq_s32_f32(sign.v[i])), a.v[i], b.v[i]); });
}
inline F32 shift_to_exponent(const F32& a) {
  return F32::map([&](int i) { return vreinterpretq_f32_u32(vshlq_n_u32(vreinterpretq_u32_f32(a.v[i]), 23)); });
}

struct F64 {
  using Scalar = double;
  float64x2_t v[8];

  template <class Fn>
  static F64 map(Fn fn) {
    return {{fn(0), fn(1), fn(2), fn(3), fn(4), fn(5), fn(6), fn(7)}};
  }
  static F64 zero() { return set1(0.0); }
  static F64 set1(double value) {
    return map([=](int) { return vdupq_n_f64(value); });
  }

  static F64 load(const double* from) {
    return map([=](int i) { return vld1q_f64(from + 2 * i); });
  }
  static F64 load(const float* from) {
    return map([=](int i) { return vcvt_f64_f32(vld1_f32(from + 2 * i)); });
  }
  template <class T>
  static F64 load(const T* from, int n) {
    return load_padded<F64>(from, n);
  }

  static F64 widen(const F32& from) {
    F64 r;
    for (int i = 0; i < 4; ++i) {
      r.v[2 * i] = vcvt_f64_f32(vget_low_f32(from.v[i]));
      r.v[2 * i + 1] = vcvt_high_f64_f32(from.v[i]);
    }
    return r;
  }
  static F64 widen(const F64& from) { return from; }

  static F64 select_first(int n, const F64& a, const F64& b) {
    const int64_t iota[2] = {0, 1};
    return map([&](int i) { return vbslq_f64(vcltq_s64(vld1q_s64(iota), vdupq_n_s64(n - 2 * i)), a.v[i], b.v[i]); });
  }

  void store_raw(double* to) const {
    for (int i = 0; i < 8; ++i) vst1q_f64(to + 2 * i, v[i]);
  }
  void store(double* to) const {
    const float64x2_t nan = vreinterpretq_f64_u64(vdupq_n_u64(kNaN64));
    for (int i = 0; i < 8; ++i) vst1q_f64(to + 2 * i, vbslq_f64(vceqq_f64(v[i], v[i]), v[i], nan));
  }
  void store(double* to, int n) const { store_padded(*this, to, n); }

  void stream(double* to) const { store(to); }
  static void stream_line(const void* line, void* to) { copy_line(line, to); }
  static void fence() {}

  Folded folded() const {
    return {{vaddq_f64(v[0], v[4]), vaddq_f64(v[1], v[5]), vaddq_f64(v[2], v[6]), vaddq_f64(v[3], v[7])}};
  }
};

inline F64 add(const F64& a, const F64& b) {
  return F64::map([&](int i) { return vaddq_f64(a.v[i], b.v[i]); });
}
inline F64 sub(const F64& a, const F64& b) {
  return F64::map([&](int i) { return vsubq_f64(a.v[i], b.v[i]); });
}
inline F64 mul(const F64& a, const F64& b) {
  return F64::map([&](int i) { return vmulq_f64(a.v[i], b.v[i]); });
}
inline F64 fma(const F64& a, const F64& b, const F64& c) {
  return F64::map([&](int i) { return vfmaq_f64(c.v[i], a.v[i], b.v[i]); });
}
inline F64 fnma(const F64& a, const F64& b, const F64& c) {
  return F64::map([&](int i) { return vfmsq_f64(c.v[i], a.v[i], b.v[i]); });
}
inline F64 div(const F64& a, const F64& b) {
  return F64::map([&](int i) { return vdivq_f64(a.v[i], b.v[i]); });
}
inline F64 min(const F64& a, const F64& b) {
  return F64::map([&](int i) { return vminq_f64(a.v[i], b.v[i]); });
}
inline F64 max(const F64& a, const F64& b) {
  return F64::map([&](int i) { return vmaxq_f64(a.v[i], b.v[i]); });
}
inline F64 negative_magnitude(const F64& a) {
  return F64::map([&](int i) { return vnegq_f64(vabsq_f64(a.v[i])); });
}
inline F64 select_negative(const F64& sign, const F64& a, const F64& b) {
  return F64::map([&](int i) { return vbslq_f64(vcltzq_s64(vreinterpretq_s64_f64(sign.v[i])), a.v[i], b.v[i]); });
}
inline F64 shift_to_exponent(const F64& a) {
  return F64::map([&](int i) { return vreinterpretq_f64_u64(vshlq_n_u64(vreinterpretq_u64_f64(a.v[i]), 52)); });
}

#include "table-inl.h"

}  // namespace

const KernelTable kNeonTable = make_table("neon");

}  // namespace groupnorm
