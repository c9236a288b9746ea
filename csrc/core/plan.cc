#include "plan.h"

#include <numeric>

#include "cache.h"
#include "scratch.h"

namespace groupnorm {
namespace {

// Elements below which a second thread costs more than it brings.
constexpr int64_t kSerialElements = 32 * 1024;
// Elements of a group from which it pays to share the group out.
constexpr int64_t kSplitElements = 16 * 1024;

// Enough slots for any number of threads, few enough that their sums stay small beside x.
int64_t batch_slots(int64_t n, int64_t channels) { return std::min(n, std::max<int64_t>(16, 32768 / channels)); }

int64_t input_count(const Problem& problem) {
  switch (problem.op) {
    case Operator::kGroupNormalizationGrad:
      return 3;
    case Operator::kGroupNormBackward:
      return 2;
    case Operator::kGroupNorm:
      break;
  }
  return 1;
}

// What a core keeps between reduce and apply: a contiguous span has a quarter of its own cache. A
// channels-last span takes whole rows: every narrower one visits every page again.
int64_t span_groups(const Problem& problem, const Plan& plan) {
  if (plan.layout == Layout::kChannelsLast && problem.length > 1) return problem.groups;
  const int64_t group_elements = plan.channels_per_group * problem.length;
  const int64_t group_bytes = input_count(problem) * element_size(problem.dtype) * group_elements;
  return std::max<int64_t>(1, g_cache_sizes.core / 4 / group_bytes);
}

// Whether threads that take whole tasks would wait for the last one for more than an eighth of the time.
bool uneven(int64_t tasks, int workers) {
  const int64_t rounds = (tasks + workers - 1) / workers;
  return 8 * (rounds * workers - tasks) > rounds * workers;
}

}  // namespace

Plan make_plan(const Problem& problem, const Outputs& outputs, int threads) {
  Plan plan{};
  const int64_t elements = problem.n * problem.channels * problem.length;
  // Channels of one position lie alike in both layouts: take vectors across them.
  plan.layout = problem.length == 1 ? Layout::kChannelsLast : problem.layout;
  plan.channels_per_group = problem.channels / problem.groups;
  plan.coefs_per_group = plan.layout == Layout::kContiguous ? 1 : plan.channels_per_group;
  plan.keep_sums = problem.op == Operator::kGroupNormBackward && (outputs.dgamma || outputs.dbeta);
  plan.slots = plan.keep_sums ? batch_slots(problem.n, problem.channels) : problem.n;
  plan.workers = elements < kSerialElements ? 1 : threads;

  // Channels-last spans take whole rows, so there it is samples that threads can have to themselves.
  const bool across = plan.layout == Layout::kChannelsLast && problem.length > 1;
  const int64_t owners = across ? plan.slots : plan.slots * problem.groups;
  const int64_t owned = (across ? problem.channels : plan.channels_per_group) * problem.length;
  plan.split = uneven(owners, plan.workers) && owned >= kSplitElements;
  if (plan.split) {
    plan.groups_per_span = across ? problem.groups : 1;
    plan.chunks = (problem.length + kChunk - 1) / kChunk;
    const int64_t pieces = plan.chunks * (across ? (problem.channels + kLanes - 1) / kLanes : plan.channels_per_group);
    plan.workers = static_cast<int>(std::min<int64_t>(plan.workers, pieces));
  } else {
    const int64_t shared_out = across ? problem.groups : std::max<int64_t>(1, owners / (4 * plan.workers));
    plan.groups_per_span = std::min({span_groups(problem, plan), problem.groups, shared_out});
  }
  plan.spans = (problem.groups + plan.groups_per_span - 1) / plan.groups_per_span;
  if (!plan.split) plan.workers = static_cast<int>(std::min<int64_t>(plan.workers, plan.slots * plan.spans));

  const int64_t tensor = elements * element_size(problem.dtype);
  // Past the caches goes a line at a time: rows of few lines, most of them shared, cost more than they save.
  const int64_t row = plan.layout == Layout::kContiguous ? problem.length : problem.channels;
  const bool long_rows = row * element_size(problem.dtype) >= 4 * kLine;
  plan.stream = long_rows && tensor > g_cache_sizes.last / 2 / (input_count(problem) + 1);

  const bool wide = problem.dtype == DType::kFloat64;
  const int64_t accumulator = wide ? 8 : 4;
  const int64_t padded = round_up(problem.channels, kLanes) + kLanes;
  plan.width = round_up(plan.groups_per_span * plan.channels_per_group, kLanes) + kLanes;
  plan.affine_bytes = problem.op == Operator::kGroupNormalizationGrad ? 0 : round_up(padded * accumulator, kLine);
  plan.slot_bytes = plan.keep_sums ? 2 * round_up(padded * 8, kLine) : 0;
  plan.partial_bytes = plan.split ? round_up(plan.chunks * kMaxSums * plan.width * 8, kLine) : 0;
  plan.scratch_bytes = round_up(wide ? Scratch<double>::bytes(plan.width) : Scratch<float>::bytes(plan.width), kLine);
  plan.total_bytes = 2 * plan.affine_bytes + plan.slots * plan.slot_bytes + plan.partial_bytes +
                     (plan.split ? 1 : plan.workers) * plan.scratch_bytes + kLine;
  return plan;
}

}  // namespace groupnorm
