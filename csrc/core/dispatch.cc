#include "dispatch.h"

#include <atomic>
#include <cstdlib>
#include <cstring>

#include "isa/tables.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace groupnorm {
namespace {

#if defined(GROUPNORM_HAVE_AVX512)
constexpr const KernelTable* kAvx512 = &kAvx512Table;
#else
constexpr const KernelTable* kAvx512 = nullptr;
#endif
#if defined(GROUPNORM_HAVE_AVX2)
constexpr const KernelTable* kAvx2 = &kAvx2Table;
#else
constexpr const KernelTable* kAvx2 = nullptr;
#endif
#if defined(GROUPNORM_HAVE_NEON)
constexpr const KernelTable* kNeon = &kNeonTable;
#else
constexpr const KernelTable* kNeon = nullptr;
#endif

bool cpu_has_avx512() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#else
  return false;
#endif
}

bool cpu_has_avx2() {
#if defined(__x86_64__)
  // Clang before 17 does not know "f16c" here; that the system keeps its registers is part of "avx2".
  unsigned eax, ebx, ecx, edx;
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __get_cpuid(1, &eax, &ebx, &ecx, &edx) &&
         (ecx & bit_F16C) != 0;
#else
  return false;
#endif
}

bool cpu_has_neon() {
#if defined(__aarch64__)
  return true;
#else
  return false;
#endif
}

constexpr int kIsaCount = 4;
const Isa g_isas[kIsaCount] = {{"avx512", kAvx512, cpu_has_avx512()},
                               {"avx2", kAvx2, cpu_has_avx2()},
                               {"neon", kNeon, cpu_has_neon()},
                               {"scalar", &kScalarTable, true}};

const KernelTable* find(const char* name) {
  int count;
  const Isa* list = isa_list(&count);
  for (int i = 0; i < count; ++i) {
    if (list[i].table && list[i].supported && (!name || std::strcmp(name, list[i].name) == 0)) return list[i].table;
  }
  return nullptr;
}

std::atomic<const KernelTable*> g_forced{nullptr};

}  // namespace

const Isa* isa_list(int* count) {
  *count = kIsaCount;
  return g_isas;
}

const KernelTable* current_kernels() {
  if (const KernelTable* forced = g_forced.load(std::memory_order_relaxed)) return forced;
  static std::atomic<const KernelTable*> chosen{nullptr};  // a failure is not remembered
  const KernelTable* table = chosen.load(std::memory_order_relaxed);
  if (!table) {
    const char* name = std::getenv("GROUPNORM_ISA");
    table = find(name && *name ? name : nullptr);
    chosen.store(table, std::memory_order_relaxed);
  }
  return table;
}

bool select_isa(const char* name) {
  const KernelTable* table = name ? find(name) : nullptr;
  if (name && !table) return false;
  g_forced.store(table, std::memory_order_relaxed);
  return true;
}

}  // namespace groupnorm
