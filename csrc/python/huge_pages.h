// Memory for results, before the first touch.
#pragma once

#ifdef __linux__
#include <sys/mman.h>
#endif

#include <cstdint>

namespace groupnorm {

// A fault for each page of 4 KiB costs several times what computing it does. Advice, no more: what the system makes of
// it does not matter.
inline void ask_for_huge_pages(void* data, int64_t bytes) {
#ifdef MADV_HUGEPAGE
  constexpr uintptr_t kPage = 4096;
  constexpr int64_t kWorthwhile = int64_t{4} << 20;
  if (bytes < kWorthwhile) return;
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(data) + kPage - 1) / kPage * kPage;
  const uintptr_t end = (reinterpret_cast<uintptr_t>(data) + static_cast<uintptr_t>(bytes)) / kPage * kPage;
  madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
#else
  (void)data;
  (void)bytes;
#endif
}

}  // namespace groupnorm
