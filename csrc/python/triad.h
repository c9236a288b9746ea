// The limit that memory sets on a benchmark: one to three arrays read, one written, nothing else done.
#pragma once

#include <cstdint>

namespace groupnorm {

// Writes to `output` the sums, as 32-bit integers, of `count` inputs (1 to 3) of `bytes` bytes each, on the threads
// that the core would use. With `stream` the results go past the caches.
void triad(const void* const* inputs, int count, void* output, int64_t bytes, bool stream, int threads);

}  // namespace groupnorm
