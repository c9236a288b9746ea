// The caches of this CPU.
#pragma once

#include <cstdint>
#include <cstdio>

namespace groupnorm {

struct CacheSizes {
  int64_t core;  // level 2: what a core has to itself
  int64_t last;  // the largest level
};

// As Linux reports them for the first CPU; sysconf(_SC_LEVEL3_CACHE_SIZE) counts AMD's level 3 several times.
inline CacheSizes read_cache_sizes() {
  CacheSizes found{512 * 1024, 8 * 1024 * 1024};  // where nothing is reported
  int largest = 1;
  for (int index = 0; index < 8; ++index) {
    const auto read = [index](const char* name, long* value) {
      char path[96];
      std::snprintf(path, sizeof(path), "/sys/devices/system/cpu/cpu0/cache/index%d/%s", index, name);
      std::FILE* file = std::fopen(path, "r");
      if (!file) return false;
      const bool ok = std::fscanf(file, "%ld", value) == 1;
      std::fclose(file);
      return ok;
    };
    long level = 0;
    long kilobytes = 0;
    if (!read("level", &level) || !read("size", &kilobytes) || kilobytes <= 0) continue;
    if (level == 2) found.core = kilobytes * 1024;
    if (level >= 2 && level >= largest) {
      largest = static_cast<int>(level);
      found.last = kilobytes * 1024;
    }
  }
  return found;
}

// Read at load, as everything that is found out once: a child forked while another thread finds it out at first use
// would wait forever for a thread it does not have.
inline const CacheSizes g_cache_sizes = read_cache_sizes();

}  // namespace groupnorm
