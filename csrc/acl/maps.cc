// What memory the process has, as the system tells it.
#include <cstdio>

#include "memory.h"

namespace groupnorm::host {

bool host_has(const void* pointer, size_t bytes, bool written) {
  uintptr_t at = reinterpret_cast<uintptr_t>(pointer);
  if (bytes > UINTPTR_MAX - at) return false;
  const uintptr_t end = at + bytes;
  std::FILE* const maps = std::fopen("/proc/self/maps", "r");
  if (!maps) return true;  // nobody can say
  // Lines come in the order of addresses: "begin-end rwxp ...".
  char line[512];
  while (at < end && std::fgets(line, sizeof line, maps)) {
    unsigned long from;
    unsigned long to;
    char allowed[5];
    if (std::sscanf(line, "%lx-%lx %4s", &from, &to, allowed) != 3 || to <= at) continue;
    if (from > at || allowed[0] != 'r' || (written && allowed[1] != 'w')) break;
    at = to;
  }
  std::fclose(maps);
  return at >= end;
}

}  // namespace groupnorm::host
