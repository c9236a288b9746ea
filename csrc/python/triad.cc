#include "triad.h"

#include <algorithm>
#include <cstring>

#include "../core/parallel.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace groupnorm {
namespace {

// Bytes below which a second thread costs more than it brings, and the unit in which threads share the rest.
constexpr int64_t kSerialBytes = 128 * 1024;
constexpr int64_t kUnit = 4096;

// Bytes [at, end) in words; what is left of a word at the very end is copied.
template <int kCount>
void plain(const char* const* in, char* out, int64_t at, int64_t end) {
  for (; at + 4 <= end; at += 4) {
    uint32_t total = 0;
    for (int k = 0; k < kCount; ++k) {
      uint32_t word;
      std::memcpy(&word, in[k] + at, 4);
      total += word;
    }
    std::memcpy(out + at, &total, 4);
  }
  std::memcpy(out + at, in[0] + at, static_cast<size_t>(end - at));
}

#if defined(__x86_64__)
// The head up to a whole line of the output, which streaming stores need.
template <int kCount>
int64_t align(const char* const* in, char* out, int64_t at, int64_t end) {
  const int64_t head = (64 - static_cast<int64_t>(reinterpret_cast<uintptr_t>(out + at) % 64)) % 64;
  const int64_t aligned = std::min(end, at + head);
  plain<kCount>(in, out, at, aligned);
  return aligned;
}

template <int kCount, bool kStream>
__attribute__((target("avx512f"))) void avx512(const char* const* in, char* out, int64_t at, int64_t end) {
  at = align<kCount>(in, out, at, end);
  for (; at + 64 <= end; at += 64) {
    __m512i total = _mm512_loadu_si512(in[0] + at);
    for (int k = 1; k < kCount; ++k) total = _mm512_add_epi32(total, _mm512_loadu_si512(in[k] + at));
    if (kStream) {
      _mm512_stream_si512(reinterpret_cast<__m512i*>(out + at), total);
    } else {
      _mm512_store_si512(out + at, total);
    }
  }
  if (kStream) _mm_sfence();
  plain<kCount>(in, out, at, end);
}

template <int kCount, bool kStream>
__attribute__((target("avx2"))) void avx2(const char* const* in, char* out, int64_t at, int64_t end) {
  at = align<kCount>(in, out, at, end);
  for (; at + 32 <= end; at += 32) {
    __m256i total = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(in[0] + at));
    for (int k = 1; k < kCount; ++k) {
      total = _mm256_add_epi32(total, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(in[k] + at)));
    }
    __m256i* to = reinterpret_cast<__m256i*>(out + at);
    if (kStream) {
      _mm256_stream_si256(to, total);
    } else {
      _mm256_store_si256(to, total);
    }
  }
  if (kStream) _mm_sfence();
  plain<kCount>(in, out, at, end);
}
#endif

using Part = void (*)(const char* const* in, char* out, int64_t at, int64_t end);

template <int kCount>
Part best(bool stream) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return stream ? &avx512<kCount, true> : &avx512<kCount, false>;
  if (__builtin_cpu_supports("avx2")) return stream ? &avx2<kCount, true> : &avx2<kCount, false>;
#endif
  static_cast<void>(stream);
  return &plain<kCount>;
}

}  // namespace

void triad(const void* const* inputs, int count, void* output, int64_t bytes, bool stream, int threads) {
  const char* in[3] = {};
  for (int k = 0; k < count; ++k) in[k] = static_cast<const char*>(inputs[k]);
  char* out = static_cast<char*>(output);
  const Part part = count == 1 ? best<1>(stream) : count == 2 ? best<2>(stream) : best<3>(stream);
  if (threads == 1 || bytes < kSerialBytes) return part(in, out, 0, bytes);
  // A few parts a thread, so that one that is held up does not hold up all.
  const int64_t units = (bytes + kUnit - 1) / kUnit;
  const int64_t per_part = (units + 4 * threads - 1) / (4 * threads) * kUnit;
  parallel_for((bytes + per_part - 1) / per_part, threads,
               [&](int64_t index, int) { part(in, out, index * per_part, std::min(bytes, (index + 1) * per_part)); });
}

}  // namespace groupnorm
