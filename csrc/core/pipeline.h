// reduce -> fold -> apply, for the three operators, in the accumulator of the dtype.
#pragma once

#include <cmath>
#include <iterator>
#include <limits>

#include "operand.h"
#include "parallel.h"
#include "pivot.h"
#include "scratch.h"
#include "spread.h"

namespace groupnorm {

template <class Acc>
class Pipeline {
 public:
  Pipeline(const Problem& problem, const Inputs& inputs, const Outputs& outputs, const KernelTable& table,
           const Plan& plan, void* workspace)
      : problem_(problem),
        inputs_(inputs),
        outputs_(outputs),
        table_(table),
        plan_(plan),
        positions_(static_cast<double>(problem.total_length > 0 ? problem.total_length : problem.length)),
        gamma_(static_cast<Acc*>(aligned(workspace))),
        beta_(reinterpret_cast<Acc*>(reinterpret_cast<char*>(gamma_) + plan.affine_bytes)),
        slots_(reinterpret_cast<char*>(beta_) + plan.affine_bytes),
        partial_(slots_ + plan.slots * plan.slot_bytes),
        scratch_(partial_ + plan.partial_bytes),
        spread_(problem, table, plan, reinterpret_cast<double*>(partial_)) {}

  void run() {
    if (problem_.op != Operator::kGroupNormalizationGrad) {
      load_all(inputs_.gamma, problem_.gamma_dtype, problem_.channels, Acc{1}, gamma_);
      load_all(inputs_.beta, problem_.beta_dtype, problem_.channels, Acc{0}, beta_);
    }
    const auto task = [this](int64_t index, int worker) { run_task(index / plan_.spans, index % plan_.spans, worker); };
    const int64_t tasks = plan_.slots * plan_.spans;
    if (plan_.split) {
      for (int64_t index = 0; index < tasks; ++index) task(index, 0);
    } else {
      parallel_for(tasks, plan_.workers, task);
    }
    if (plan_.keep_sums) fold_batch();
  }

 private:
  static void* aligned(void* workspace) {
    const int64_t address = static_cast<int64_t>(reinterpret_cast<uintptr_t>(workspace));
    return static_cast<char*>(workspace) + (round_up(address, kLine) - address);
  }

  using Scratch = groupnorm::Scratch<Acc>;

  // One span of one sample.
  struct Place {
    int64_t n, first_group, groups, first_channel;
  };

  double load_stat(const void* from, int64_t n, int64_t group) const {
    return load(from, problem_.stats_dtype, n * problem_.groups + group);
  }

  void store_stat(void* to, int64_t n, int64_t group, double value) const {
    store(value, to, problem_.stats_dtype, n * problem_.groups + group);
  }

  // ---- one task: a span of every sample of a slot ----

  void run_task(int64_t slot, int64_t span, int worker) const {
    const Scratch scratch(scratch_ + worker * plan_.scratch_bytes, plan_.width);
    Place place;
    place.first_group = span * plan_.groups_per_span;
    place.groups = std::min(plan_.groups_per_span, problem_.groups - place.first_group);
    place.first_channel = place.first_group * plan_.channels_per_group;
    const int64_t begin = plan_.slot_begin(slot, problem_.n);
    const int64_t end = plan_.slot_begin(slot + 1, problem_.n);
    for (place.n = begin; place.n < end; ++place.n) {
      switch (problem_.op) {
        case Operator::kGroupNormalizationGrad:
          printed(place, scratch);
          break;
        case Operator::kGroupNormBackward:
          backward(place, scratch, slot, place.n == begin);
          break;
        case Operator::kGroupNorm:
          forward(place, scratch);
          break;
      }
    }
  }

  // docs/math.md, "The printed formula": a span channel is a group.
  void printed(const Place& at, const Scratch& scratch) const {
    const Span span = span_at(at, {inputs_.x, inputs_.dy, inputs_.gamma}, outputs_.dx, scratch);
    const double m = static_cast<double>(problem_.length);
    fill_stats(at, scratch);
    spread_.reduce(Formula::kPrintedReduce, 2, scratch.for_sums(span));
    for (int64_t c = 0; c < at.groups; ++c) {
      const double s1 = scratch.sums[0][c];
      double s2 = scratch.sums[1][c] * scratch.ratios[c];  // of dy * gamma * t, becomes that of dy * gamma * xhat
      if (scratch.shifts[c] != 0) s2 -= scratch.shifts[c] * s1;
      fill_mean_and_slope(scratch, c, s1 / m, s2 / m);
    }
    spread_.apply(Formula::kPrintedApply, scratch.for_gradient(span, nullptr));
  }

  // docs/math.md, "The gradient".
  void backward(const Place& at, const Scratch& scratch, int64_t slot, bool first_of_slot) const {
    const int64_t d = plan_.channels_per_group;
    const double m = static_cast<double>(d) * positions_;
    const Span span = span_at(at, {inputs_.x, inputs_.dy, nullptr}, outputs_.dx, scratch);
    if (!inputs_.sums || outputs_.dx) {
      fill_stats(at, scratch);
      if (swish()) fill_swish(at, scratch);
    }
    if (inputs_.sums) {
      copy_sums(inputs_.sums, at,
                [&](int k, const double* given) { std::copy_n(given, at.groups * d, scratch.sums[k]); });
    } else {
      reduce_backward(span, at, scratch);
    }
    FoldOf<Acc> fold{};
    fold.groups = at.groups;
    fold.channels_per_group = d;
    fold.ratios = inputs_.sums ? nullptr : scratch.ratios;
    fold.shifts = scratch.shifts;
    fold.starts = first_of_slot;
    fold.gamma = gamma_ + at.first_channel;
    for (int k = 0; k < 2; ++k) {
      fold.sums[k] = scratch.sums[k];
      fold.totals[k] = plan_.keep_sums ? slot_sums(slot, k) + at.first_channel : nullptr;
      fold.folded[k] = outputs_.dx ? scratch.folded[k] : nullptr;
    }
    table_.fold_groups(fold);
    if (outputs_.sums) {
      copy_sums(outputs_.sums, at, [&](int k, double* to) { std::copy_n(scratch.sums[k], at.groups * d, to); });
    }
    if (!outputs_.dx) return;
    for (int64_t g = 0; g < at.groups; ++g) {
      fill_mean_and_slope(scratch, g, scratch.folded[0][g] / m, scratch.folded[1][g] / m);
    }
    spread_.apply(swish() ? Formula::kSwishApply : Formula::kBackwardApply,
                  scratch.for_gradient(span, gamma_ + at.first_channel));
  }

  // Of each channel the sums of dy and of dy * xhat, dy being that of gn where an activation follows.
  void reduce_backward(const Span& span, const Place& at, const Scratch& scratch) const {
    const int64_t d = plan_.channels_per_group;
    if (swish()) {
      spread_.reduce(Formula::kSwishReduce, 2, scratch.for_sums(span));
    } else if (problem_.recenter) {
      spread_.reduce(Formula::kBackwardReduceRecentred, 3, scratch.for_sums(span));
    } else {
      spread_.reduce(Formula::kBackwardReduce, 2, scratch.for_sums(span));
    }
    if (!problem_.recenter) return;
    for (int64_t g = 0; g < at.groups; ++g) {
      scratch.shifts[g] =
          scratch.ratios[g] * fold_channels(scratch.sums[2] + g * d, nullptr) / (static_cast<double>(d) * positions_);
    }
  }

  // docs/math.md, "The statistics".
  void forward(const Place& at, const Scratch& scratch) const {
    const Span span = span_at(at, {inputs_.x, nullptr, nullptr}, outputs_.y, scratch);
    if (!inputs_.sums) reduce_forward(span, at, scratch);
    if (!outputs_.y) return;
    for (int64_t g = 0; g < at.groups; ++g) {
      const Moments moments = moments_of(at, scratch, g);
      const double rstd = 1 / std::sqrt(moments.variance + problem_.eps);
      const double mean = moments.pivot + moments.left_over;
      const Acc high = static_cast<Acc>(mean);
      const Acc low = static_cast<Acc>(moments.left_over - (static_cast<double>(high) - moments.pivot));
      store_stat(outputs_.mean, at.n, at.first_group + g, mean);
      store_stat(outputs_.rstd, at.n, at.first_group + g, rstd);
      fill(scratch.mean_high, g, high);
      fill(scratch.mean_low, g, std::isfinite(low) ? low : Acc{0});
      fill(scratch.rstd, g, static_cast<Acc>(rstd));
      if (swish()) fill(scratch.scale, g, saturated<Acc>(problem_.swish_scale));
    }
    spread_.apply(swish() ? Formula::kSwishForward : Formula::kForwardApply,
                  scratch.for_forward(span, gamma_ + at.first_channel, beta_ + at.first_channel));
  }

  // The sums of d = x - pivot and of d * d. The pivot of a group comes from a sample; where that turns out to lie more
  // than a deviation from the mean, from these sums, and they are taken again.
  void reduce_forward(const Span& span, const Place& at, const Scratch& scratch) const {
    constexpr int kPasses = 3;  // a pivot far off says but roughly how coarse the next may be
    for (int64_t g = 0; g < at.groups; ++g) fill(scratch.pivot, g, sample_pivot(span, g));
    bool near = false;
    for (int pass = 1; pass <= kPasses && !near; ++pass) {
      spread_.reduce(Formula::kForwardReduce, 2, scratch.for_moments(span));
      near = true;
      for (int64_t g = 0; g < at.groups; ++g) {
        const int64_t c = g * plan_.channels_per_group;
        const double mean_d = fold_channels(scratch.sums[0] + c, nullptr) / elements_of_group();
        const double mean_dd = fold_channels(scratch.sums[1] + c, nullptr) / elements_of_group();
        scratch.folded[0][g] = mean_d;
        scratch.folded[1][g] = mean_dd;
        const bool is_near = 2 * mean_d * mean_d <= mean_dd && std::isfinite(mean_dd);
        if (is_near || !std::isfinite(pivot(scratch, g)) || pass == kPasses) continue;
        near = false;
        const bool overflowed = !std::isfinite(mean_d) && pivot(scratch, g) != 0;  // from 0 it may not
        const double mean = overflowed ? 0 : pivot(scratch, g) + mean_d;
        fill(scratch.pivot, g, pivot_of<Acc>(mean, std::sqrt(mean_dd)));
      }
    }
    if (!outputs_.sums) return;
    for (int64_t g = 0; g < at.groups; ++g) {
      const Moments moments = moments_of(at, scratch, g);
      group_sum(outputs_.sums, 0, at, g) = moments.pivot + moments.left_over;
      group_sum(outputs_.sums, 1, at, g) = moments.variance * elements_of_group();
    }
  }

  Acc sample_pivot(const Span& span, int64_t g) const {
    const int64_t first_channel = g * plan_.channels_per_group;
    const int64_t count = plan_.channels_per_group * problem_.length;
    Acc pivot{};
    with_storage(problem_.dtype, [&](auto* type) {
      const auto* x = static_cast<decltype(type)>(const_cast<void*>(span.inputs[0]));
      x += plan_.offset(span, first_channel, 0);
      if (problem_.length == 1 || plan_.layout == Layout::kContiguous) {  // in the order of memory
        pivot = pivot_by_sample<Acc>(count, [&](int64_t i) { return widen(x[i]); });
      } else {
        pivot = pivot_by_sample<Acc>(
            count, [&](int64_t i) { return widen(x[plan_.offset(span, i / problem_.length, i % problem_.length)]); });
      }
    });
    return pivot;
  }

  double pivot(const Scratch& scratch, int64_t g) const {
    return static_cast<double>(scratch.pivot[g * plan_.coefs_per_group]);
  }

  // The mean, as pivot + left_over, and the variance of a group.
  struct Moments {
    double pivot, left_over, variance;
  };

  Moments moments_of(const Place& at, const Scratch& scratch, int64_t g) const {
    if (inputs_.sums) return {group_sum(inputs_.sums, 0, at, g), 0, group_sum(inputs_.sums, 1, at, g)};
    const double mean_d = scratch.folded[0][g];
    const double mean_dd = scratch.folded[1][g];
    const bool overflowed = std::isinf(mean_dd) && std::isfinite(mean_d);
    const double variance = overflowed ? mean_dd : mean_dd - mean_d * mean_d;
    return {pivot(scratch, g), std::isfinite(pivot(scratch, g)) ? mean_d : 0, variance < 0 ? 0 : variance};
  }

  // Of x, or its part.
  double elements_of_group() const { return static_cast<double>(plan_.channels_per_group * problem_.length); }

  // Of sums that go in and out, for each k: what belongs to the channels of a span, [2][N][C], or to a group,
  // [2][N][G].
  template <class Sums, class Fn>
  void copy_sums(Sums* sums, const Place& at, Fn&& fn) const {
    for (int k = 0; k < 2; ++k) fn(k, sums + (k * problem_.n + at.n) * problem_.channels + at.first_channel);
  }

  template <class Sums>
  Sums& group_sum(Sums* sums, int k, const Place& at, int64_t g) const {
    return sums[(k * problem_.n + at.n) * problem_.groups + at.first_group + g];
  }

  // ---- the parts of a task ----

  Span span_at(const Place& at, const void* const (&inputs)[kMaxInputs], void* output, const Scratch& scratch) const {
    Span span{};
    span.channels = at.groups * plan_.channels_per_group;
    span.length = problem_.length;
    span.stride = plan_.layout == Layout::kContiguous ? problem_.length : problem_.channels;
    const int64_t sample = at.n * problem_.channels * problem_.length;
    const int64_t bytes = (sample + plan_.offset(span, at.first_channel, 0)) * element_size(problem_.dtype);
    for (int k = 0; k < kMaxInputs; ++k) {
      span.inputs[k] = inputs[k] ? static_cast<const char*>(inputs[k]) + bytes : nullptr;
    }
    span.output = output ? static_cast<char*>(output) + bytes : nullptr;
    // In place, the lines of the output are in the cache as inputs.
    span.stream = plan_.stream && output != inputs[0] && output != inputs[1];
    span.channels_per_group = plan_.channels_per_group;
    std::copy(std::begin(scratch.sums), std::end(scratch.sums), span.sums);
    return span;
  }

  double fold_channels(const double* values, const Acc* weights) const {
    if (plan_.channels_per_group > 1) return table_.fold(values, weights, plan_.channels_per_group);
    return (weights ? *values * static_cast<double>(*weights) : *values) + 0.0;  // a lane and zeros, folded
  }

  // A coefficient of a group.
  void fill(Acc* coefs, int64_t group, Acc value) const {
    std::fill_n(coefs + group * plan_.coefs_per_group, plan_.coefs_per_group, value);
  }

  // rstd and, for the mean, a pivot near it; the rest of the mean goes to shifts, as what xhat is too large by when the
  // pivot is subtracted in its place. The sums are taken with a power of two for rstd, and ratios have what that
  // leaves of it.
  void fill_stats(const Place& at, const Scratch& scratch) const {
    const bool alone = static_cast<double>(plan_.channels_per_group) * positions_ == 1;
    for (int64_t g = 0; g < at.groups; ++g) {
      const double mean = load_stat(inputs_.mean, at.n, at.first_group + g);
      const double rstd = load_stat(inputs_.rstd, at.n, at.first_group + g);
      // Of one element x - mean is all there is: it has to be exact.
      const Acc pivot = alone ? static_cast<Acc>(mean) : pivot_of<Acc>(mean, 1 / rstd);
      const double rest = mean - static_cast<double>(pivot);
      const Binary scale = binary<Acc>(rstd, static_cast<double>(pivot));
      scratch.shifts[g] = rest == 0 || !std::isfinite(rest) ? 0 : rest * rstd;
      scratch.ratios[g] = scale.ratio;
      fill(scratch.pivot, g, pivot);
      fill(scratch.rstd, g, static_cast<Acc>(rstd));
      fill(scratch.scale, g, static_cast<Acc>(scale.power));
      fill(scratch.minus_pivot, g, static_cast<Acc>(-static_cast<double>(pivot) * scale.power));
    }
  }

  bool swish() const { return problem_.activation == Activation::kSwish; }

  // What makes swish_scale * gn of x - pivot: xhat is (x - pivot) * rstd - shift.
  void fill_swish(const Place& at, const Scratch& scratch) const {
    const int64_t d = plan_.channels_per_group;
    for (int64_t g = 0; g < at.groups; ++g) {
      const double rstd = load_stat(inputs_.rstd, at.n, at.first_group + g);
      for (int64_t c = g * d; c < (g + 1) * d; ++c) {
        const double gamma = static_cast<double>(gamma_[at.first_channel + c]);
        const double beta = static_cast<double>(beta_[at.first_channel + c]);
        scratch.swish_a[c] = saturated<Acc>(problem_.swish_scale * (gamma * rstd));
        scratch.swish_b[c] = saturated<Acc>(problem_.swish_scale * (beta - gamma * scratch.shifts[g]));
      }
    }
  }

  // Minus the mean of dxhat as high + low, and the slope: the mean of dxhat * xhat. The kernel multiplies the slope by
  // xhat + shift, so the mean gives that back.
  void fill_mean_and_slope(const Scratch& scratch, int64_t group, double mean, double slope) const {
    const double shift = scratch.shifts[group];
    const double shifted = shift == 0 ? mean : mean - shift * slope;
    const Acc high = static_cast<Acc>(shifted);
    const Acc low = std::isfinite(high) ? static_cast<Acc>(shifted - static_cast<double>(high)) : Acc{0};
    fill(scratch.mean_high, group, -high);
    fill(scratch.mean_low, group, -low);
    fill(scratch.slope, group, static_cast<Acc>(slope));
  }

  double* slot_sums(int64_t slot, int k) const {
    return reinterpret_cast<double*>(slots_ + slot * plan_.slot_bytes + k * (plan_.slot_bytes / 2));
  }

  // dgamma and dbeta: the slots added in order.
  void fold_batch() const {
    for (int k = 0; k < 2; ++k) {
      void* output = k == 0 ? outputs_.dbeta : outputs_.dgamma;
      if (!output) continue;
      double* total = slot_sums(0, k);
      for (int64_t slot = 1; slot < plan_.slots; ++slot) {
        const double* sums = slot_sums(slot, k);
        for (int64_t c = 0; c < problem_.channels; ++c) total[c] += sums[c];
      }
      store_all(total, problem_.channels, output, problem_.gamma_dtype);
    }
  }

  const Problem& problem_;
  const Inputs& inputs_;
  const Outputs& outputs_;
  const KernelTable& table_;
  const Plan& plan_;
  const double positions_;  // of a channel, in all parts
  Acc* const gamma_;
  Acc* const beta_;
  char* const slots_;
  char* const partial_;
  char* const scratch_;
  const Spread<Acc> spread_;
};

}  // namespace groupnorm
