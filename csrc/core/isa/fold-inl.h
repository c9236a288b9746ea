// The fold: from the sums of channels to those of groups and of the batch (docs/math.md, "The gradient").

template <class Weight>
double fold(const double* values, const Weight* weights, int64_t count) {
  F64 sum = F64::zero();
  const F64 one = F64::set1(1.0);
  for (int64_t i = 0; i < count; i += kLanes) {
    if (i + kLanes <= count) {
      sum = fma(weights ? F64::load(weights + i) : one, F64::load(values + i), sum);
    } else {
      const int rest = static_cast<int>(count - i);
      const F64 weight = weights ? F64::load(weights + i, rest) : one;
      sum = F64::select_first(rest, fma(weight, F64::load(values + i, rest), sum), sum);
    }
  }
  return sum.folded().sum();
}

// `count` channels of a group from channel c of the span on: what their sums go through, and theirs to the group's.
template <bool kWhole, class Acc>
void fold_channels(const FoldOf<Acc>& fold, int64_t group, int64_t c, int count, F64 (&sum)[2]) {
  const auto read = [count](const auto* from) { return kWhole ? F64::load(from) : F64::load(from, count); };
  const auto write = [count](const F64& value, double* to) { kWhole ? value.store_raw(to) : value.store(to, count); };
  // A sum that is zero has the sign of terms that underflowed, or not, as the span was cut: plus from here on.
  F64 of[2] = {add(read(fold.sums[0] + c), F64::zero()), add(read(fold.sums[1] + c), F64::zero())};
  if (fold.ratios) {
    of[1] = mul(of[1], F64::set1(fold.ratios[group]));
    const double shift = fold.shifts[group];
    if (shift != 0) of[1] = sub(of[1], mul(F64::set1(shift), of[0]));
    write(of[1], fold.sums[1] + c);
  }
  for (int k = 0; k < 2; ++k) {
    if (double* const total = fold.totals[k]) write(fold.starts ? of[k] : add(read(total + c), of[k]), total + c);
  }
  const F64 gamma = read(fold.gamma + c);
  for (int k = 0; k < 2; ++k) sum[k] = fma(gamma, of[k], sum[k]);
}

// Where a group is a channel: plain loops over groups, which compilers make vectors of.
template <class Acc>
void fold_single(const FoldOf<Acc>& fold) {
  const int64_t groups = fold.groups;
  for (int k = 0; k < 2; ++k) {
    for (int64_t g = 0; g < groups; ++g) fold.sums[k][g] += 0.0;  // -0, too, becomes 0: see above
  }
  if (fold.ratios) {
    for (int64_t g = 0; g < groups; ++g) {
      const double scaled = fold.sums[1][g] * fold.ratios[g];
      fold.sums[1][g] = fold.shifts[g] != 0 ? scaled - fold.shifts[g] * fold.sums[0][g] : scaled;
    }
  }
  for (int k = 0; k < 2; ++k) {
    const double* const sums = fold.sums[k];
    if (double* const total = fold.totals[k]) {
      for (int64_t g = 0; g < groups; ++g) total[g] = fold.starts ? sums[g] : total[g] + sums[g];
    }
    if (double* const folded = fold.folded[k]) {  // a lane and zeros
      for (int64_t g = 0; g < groups; ++g) folded[g] = static_cast<double>(fold.gamma[g]) * sums[g] + 0.0;
    }
  }
}

// All of a span in one pass over its sums.
template <class Acc>
void fold_groups(const FoldOf<Acc>& fold) {
  const int64_t d = fold.channels_per_group;
  if (d == 1) return fold_single(fold);
  for (int64_t first = 0; first < fold.groups; first += kRows) {
    const int count = static_cast<int>(fold.groups - first < kRows ? fold.groups - first : kRows);
    Folded lanes[2][kRows];
    for (int r = 0; r < count; ++r) {
      const int64_t group = first + r;
      const int64_t end = (group + 1) * d;
      F64 sum[2] = {F64::zero(), F64::zero()};
      int64_t c = group * d;
      for (; c + kLanes <= end; c += kLanes) fold_channels<true>(fold, group, c, kLanes, sum);
      if (c < end) {  // lanes past the end keep what they hold
        const int rest = static_cast<int>(end - c);
        F64 next[2] = {sum[0], sum[1]};
        fold_channels<false>(fold, group, c, rest, next);
        for (int k = 0; k < 2; ++k) sum[k] = F64::select_first(rest, next[k], sum[k]);
      }
      for (int k = 0; k < 2; ++k) lanes[k][r] = sum[k].folded();
    }
    for (int k = 0; k < 2; ++k) {
      if (fold.folded[k]) Folded::sum_rows(lanes[k], count, fold.folded[k] + first);
    }
  }
}
