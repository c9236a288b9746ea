// Prints a hash of every output over a table of cases, for the SIMD level and threads of the environment:
// what two machines or compilers compare. Inputs come from integer arithmetic alone.
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "../../csrc/core/dispatch.h"
#include "../../csrc/core/group_norm.h"

namespace {

using namespace groupnorm;

// SplitMix64 of an index, as a multiple of 2^-23 in [-1, 1).
double uniform(uint64_t index, uint64_t seed) {
  uint64_t z = (index + 1) * 0x9E3779B97F4A7C15u + seed * 0xD1B54A32D192ED03u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  z ^= z >> 31;
  return static_cast<double>(z >> 40) / 8388608.0 - 1.0;
}

// count elements of dtype: scale * uniform + shift, each rounded once.
std::vector<char> fill(int64_t count, DType dtype, uint64_t seed, double scale, double shift) {
  std::vector<char> bytes(static_cast<size_t>(count * element_size(dtype)));
  with_storage(dtype, [&](auto* type) {
    auto* to = reinterpret_cast<decltype(type)>(bytes.data());
    for (int64_t i = 0; i < count; ++i) narrow_sum(scale * uniform(static_cast<uint64_t>(i), seed) + shift, to + i);
  });
  return bytes;
}

uint64_t hash(const std::vector<char>& bytes, uint64_t seed) {  // FNV-1a
  uint64_t value = seed;
  for (char byte : bytes) value = (value ^ static_cast<unsigned char>(byte)) * 0x100000001B3u;
  return value;
}

struct Shape {
  int64_t n, channels, length, groups;
};

constexpr Shape kShapes[] = {{1, 4, 4, 2},     {2, 8, 35, 2},   {5, 12, 1, 3},    {3, 40, 17, 1},   {2, 64, 16, 32},
                             {300, 32, 3, 16}, {1, 4, 4970, 2}, {2, 24, 1681, 1}, {3, 37, 640, 37}, {4, 32, 576, 8}};
constexpr const char* kDTypes[] = {"float32", "float16", "bfloat16", "float64"};

void report(const char* op, const Shape& s, int dtype, int layout, int threads, const Problem& problem,
            const Inputs& inputs, const Outputs& outputs, const std::vector<std::vector<char>*>& results) {
  std::vector<char> workspace(workspace_bytes(problem, outputs, threads));
  const Status status = run(problem, inputs, outputs, workspace.data(), workspace.size(), threads);
  uint64_t value = 0xCBF29CE484222325u;
  for (const auto* bytes : results) value = hash(*bytes, value);
  std::printf("%s %" PRId64 "x%" PRId64 "x%" PRId64 "/%" PRId64 " %s %s %d %016" PRIx64 "\n", op, s.n, s.channels,
              s.length, s.groups, kDTypes[dtype], layout ? "channels_last" : "contiguous", static_cast<int>(status),
              value);
}

void run_case(const Shape& s, int dtype_code, int layout, int threads) {
  const auto dtype = static_cast<DType>(dtype_code);
  const DType stats = dtype == DType::kFloat64 ? dtype : DType::kFloat32;
  const int64_t count = s.n * s.channels * s.length;
  const auto x = fill(count, dtype, 1, 1.5, 0.25);
  const auto dy = fill(count, dtype, 2, 1, 0.5);
  const auto gamma = fill(s.channels, stats, 3, 0.5, 1);
  const auto beta = fill(s.channels, stats, 4, 0.5, 0);
  const auto mean = fill(s.n * s.groups, stats, 5, 0.25, 0.125);
  const auto rstd = fill(s.n * s.groups, stats, 6, 0.25, 1.25);
  std::vector<char> dx(x.size()), dgamma(gamma.size()), dbeta(gamma.size()), y(x.size());
  std::vector<char> mean_out(mean.size()), rstd_out(rstd.size());

  for (const bool recenter : {false, true}) {
    const Problem problem{Operator::kGroupNormBackward,
                          dtype,
                          stats,
                          stats,
                          stats,
                          static_cast<Layout>(layout),
                          s.n,
                          s.channels,
                          s.length,
                          s.groups,
                          recenter,
                          0};
    report(recenter ? "recentred" : "backward", s, dtype_code, layout, threads, problem,
           {x.data(), dy.data(), gamma.data(), nullptr, mean.data(), rstd.data()},
           {dx.data(), dgamma.data(), dbeta.data(), nullptr, nullptr, nullptr}, {&dx, &dgamma, &dbeta});
  }
  Problem forward{Operator::kGroupNorm, dtype,    stats,    stats, stats, static_cast<Layout>(layout), s.n,
                  s.channels,           s.length, s.groups, false, 1e-5};
  const auto run_forward = [&](const char* op) {
    report(op, s, dtype_code, layout, threads, forward,
           {x.data(), nullptr, gamma.data(), beta.data(), nullptr, nullptr},
           {nullptr, nullptr, nullptr, y.data(), mean_out.data(), rstd_out.data()}, {&y, &mean_out, &rstd_out});
  };
  run_forward("forward");

  // The second scale takes exp through all of its range, to where it is subnormal and 0.
  for (const double scale : {1.702, -60.0}) {
    Problem swish = forward;
    forward.activation = swish.activation = Activation::kSwish;
    forward.swish_scale = swish.swish_scale = scale;
    swish.op = Operator::kGroupNormBackward;
    report(scale > 0 ? "backward_swish" : "backward_swish_steep", s, dtype_code, layout, threads, swish,
           {x.data(), dy.data(), gamma.data(), beta.data(), mean.data(), rstd.data()},
           {dx.data(), dgamma.data(), dbeta.data(), nullptr, nullptr, nullptr}, {&dx, &dgamma, &dbeta});
    run_forward(scale > 0 ? "forward_swish" : "forward_swish_steep");
  }

  if (layout == 0 && dtype != DType::kFloat64) {
    const int64_t m = s.channels / s.groups * s.length;
    const auto wide = fill(count, dtype, 7, 0.5, 1);
    const auto low_mean = fill(s.n * s.groups, dtype, 5, 0.25, 0.125);
    const auto low_rstd = fill(s.n * s.groups, dtype, 6, 0.25, 1.25);
    const Problem printed{Operator::kGroupNormalizationGrad,
                          dtype,
                          dtype,
                          dtype,
                          dtype,
                          Layout::kContiguous,
                          s.n,
                          s.groups,
                          m,
                          s.groups,
                          false,
                          0};
    report("printed", s, dtype_code, layout, threads, printed,
           {x.data(), dy.data(), wide.data(), nullptr, low_mean.data(), low_rstd.data()},
           {dx.data(), nullptr, nullptr, nullptr, nullptr, nullptr}, {&dx});
  }
}

}  // namespace

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 1;
  if (!current_kernels()) {
    std::fprintf(stderr, "GROUPNORM_ISA: this build or CPU does not have that level\n");
    return 2;
  }
  std::fprintf(stderr, "level %s, %d threads\n", current_kernels()->name, threads);
  for (const Shape& shape : kShapes) {
    for (int dtype = 0; dtype < kDTypeCount; ++dtype) {
      for (int layout = 0; layout < kLayoutCount; ++layout) run_case(shape, dtype, layout, threads);
    }
  }
  return 0;
}
