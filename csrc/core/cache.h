// The caches of this CPU, as the system reports them.
#pragma once

#include <unistd.h>

#include <cstdint>

namespace groupnorm {

struct CacheSizes {
  int64_t core;  // the largest that a core has to itself
  int64_t last;  // the largest of all, shared
};

inline const CacheSizes& cache_sizes() {
  static const CacheSizes sizes = [] {
    const auto ask = [](int name, int64_t otherwise) {
      const long bytes = sysconf(name);
      return bytes > 0 ? static_cast<int64_t>(bytes) : otherwise;
    };
    CacheSizes found;
    found.core = ask(_SC_LEVEL2_CACHE_SIZE, 512 * 1024);
    found.last = ask(_SC_LEVEL3_CACHE_SIZE, 8 * 1024 * 1024);
    return found;
  }();
  return sizes;
}

}  // namespace groupnorm
