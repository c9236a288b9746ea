// Formulas x dtypes x layouts of one SIMD level. Included last in isa/<level>.cc, inside its anonymous
// namespace, after F32 and F64: 16 lanes of float and of double with
//   zero set1 load(p) load(p, n) select_first(n, a, b), store(p) store(p, n) stream(p) store_raw(p), stream_line(p, q),
//   add sub mul div fma(a, b, c) = a * b + c and fnma(a, b, c) = c - a * b,
//   min max negative_magnitude(a) = -|a| select_negative(sign, a, b) shift_to_exponent(a); F64 also widen(v),
//   folded(): lanes l and l + 8 added, in their own type, as 8 lanes of double, a Folded
// and after Folded, with
//   zero add sum(), and sum_rows(rows, n, p), the sum() of up to kRows each.
// load(p, n) and store(p, n) touch the first n elements alone; missing lanes load as 0. store() turns
// NaN into the one NaN of the type, store_raw() leaves bits alone. stream() is store() past the caches
// where the CPU can, p on a multiple of the vector's size in memory, stream_line() copies the line p to the line q in
// the same way; fence() orders them. sum() folds lanes l and l + 4, 2, 1. min and max give b where a or b is NaN,
// and a is none. select_negative takes a where the sign bit is set, else b. shift_to_exponent shifts the bits left
// until the lowest is the exponent's.

// Whether lanes l and l + 8 of sum k are added in float32: of sum 0, whose terms are not products and have had a
// rounding less, and of what is left of rounded terms.
constexpr bool adds_lanes_narrow(int k, int sums) { return k == 0 || k >= sums; }

#include "../formula/centred-inl.h"
#include "../formula/group_norm-inl.h"
#include "../formula/group_norm_backward-inl.h"
#include "../formula/group_normalization_grad-inl.h"
#include "../formula/swish-inl.h"
#include "../layout/cache_lines-inl.h"
#include "../layout/channel_pieces-inl.h"
#include "../layout/channels_last-inl.h"
#include "../layout/contiguous-inl.h"
#include "fold-inl.h"

template <class T>
using VectorOf = std::conditional_t<std::is_same_v<T, double>, F64, F32>;

template <template <class> class F, class T>
constexpr void set_reduce(KernelTable& table, Formula formula, DType dtype) {
  Kernel* row = table.kernels[static_cast<int>(formula)][static_cast<int>(dtype)];
  row[static_cast<int>(Layout::kContiguous)] = &Contiguous<F, VectorOf<T>, T>::reduce;
  row[static_cast<int>(Layout::kChannelsLast)] = &ChannelsLast<F, VectorOf<T>, T>::reduce;
}

template <template <class> class F, class T>
constexpr void set_apply(KernelTable& table, Formula formula, DType dtype) {
  Kernel* row = table.kernels[static_cast<int>(formula)][static_cast<int>(dtype)];
  row[static_cast<int>(Layout::kContiguous)] = &Contiguous<F, VectorOf<T>, T>::apply;
  row[static_cast<int>(Layout::kChannelsLast)] = &ChannelsLast<F, VectorOf<T>, T>::apply;
}

template <DType dtype>
constexpr void set_dtype(KernelTable& table) {
  using T = typename StorageOf<dtype>::type;
  set_reduce<BackwardReduce, T>(table, Formula::kBackwardReduce, dtype);
  set_reduce<BackwardReduceRecentred, T>(table, Formula::kBackwardReduceRecentred, dtype);
  set_apply<BackwardApply, T>(table, Formula::kBackwardApply, dtype);
  set_reduce<PrintedReduce, T>(table, Formula::kPrintedReduce, dtype);
  set_apply<PrintedApply, T>(table, Formula::kPrintedApply, dtype);
  set_reduce<ForwardReduce, T>(table, Formula::kForwardReduce, dtype);
  set_apply<ForwardApply, T>(table, Formula::kForwardApply, dtype);
  set_reduce<SwishReduce, T>(table, Formula::kSwishReduce, dtype);
  set_apply<SwishApply, T>(table, Formula::kSwishApply, dtype);
  set_apply<SwishForward, T>(table, Formula::kSwishForward, dtype);
}

constexpr KernelTable make_table(const char* name) {
  KernelTable table{name, {}, &fold<float>, &fold<double>, &fold_groups<float>, &fold_groups<double>};
  set_dtype<DType::kFloat32>(table);
  set_dtype<DType::kFloat16>(table);
  set_dtype<DType::kBFloat16>(table);
  set_dtype<DType::kFloat64>(table);
  return table;
}
