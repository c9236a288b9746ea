// The floating-point environment that the kernels count on: round to nearest, subnormals kept. A host
// program may have set another (torch.set_flush_denormal, -ffast-math start-up code, fesetround), and a
// new thread inherits its creator's. Held for the length of a call, then put back.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace groupnorm {

class FpEnvironment {
 public:
  FpEnvironment() : saved_(read()) { write(kDefault); }
  ~FpEnvironment() { write(saved_); }
  FpEnvironment(const FpEnvironment&) = delete;
  FpEnvironment& operator=(const FpEnvironment&) = delete;

 private:
#if defined(__x86_64__)
  using Word = unsigned int;
  static constexpr Word kDefault = 0x1F80;  // all exceptions masked
  static Word read() { return _mm_getcsr(); }
  static void write(Word word) { _mm_setcsr(word); }
#elif defined(__aarch64__)
  using Word = uint64_t;
  static constexpr Word kDefault = 0;
  static Word read() {
    Word word;
    __asm__ volatile("mrs %0, fpcr" : "=r"(word));
    return word;
  }
  static void write(Word word) { __asm__ volatile("msr fpcr, %0" : : "r"(word)); }
#else
  using Word = int;
  static constexpr Word kDefault = 0;
  static Word read() { return 0; }
  static void write(Word) {}
#endif
  Word saved_;
};

}  // namespace groupnorm
