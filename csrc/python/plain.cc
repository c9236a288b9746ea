#include "plain.h"

#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#include <numpy/arrayobject.h>

#include <algorithm>
#include <initializer_list>

#include "accepted.h"
#include "run.h"

namespace nb = nanobind;

namespace groupnorm::plain {
namespace {

int bfloat16_number = -1;

// One operand: a view of an array that its caller keeps alive, or none.
struct Operand {
  PyArrayObject* array = nullptr;
  DType dtype = DType::kFloat32;

  void* data() const { return array ? PyArray_DATA(array) : nullptr; }
  int rank() const { return PyArray_NDIM(array); }
  int number() const { return PyArray_TYPE(array); }  // of its dtype, as NumPy counts them
  PyArray_Descr* descr() const {                      // a new reference
    PyArray_Descr* const descr = PyArray_DESCR(array);
    Py_INCREF(descr);
    return descr;
  }
  npy_intp size(int axis) const { return PyArray_DIM(array, axis); }
  const char* begin() const { return static_cast<const char*>(PyArray_DATA(array)); }
  const char* end() const { return begin() + PyArray_NBYTES(array); }
  bool contiguous() const { return PyArray_IS_C_CONTIGUOUS(array); }
  bool same_shape(const Operand& other) const {
    return rank() == other.rank() && PyArray_CompareLists(PyArray_DIMS(array), PyArray_DIMS(other.array), rank());
  }
  bool apart(const Operand& other) const {
    return !array || !other.array || end() <= other.begin() || other.end() <= begin();
  }
};

// False for anything but a plain array.
bool read(nb::handle object, Operand* operand) {
  if (Py_TYPE(object.ptr()) != &PyArray_Type) return false;
  auto* array = reinterpret_cast<PyArrayObject*>(object.ptr());
  if (!PyArray_ISALIGNED(array) || !PyArray_ISNOTSWAPPED(array)) return false;
  operand->array = array;
  switch (const int number = PyArray_TYPE(array)) {
    case NPY_FLOAT:
      operand->dtype = DType::kFloat32;
      return true;
    case NPY_HALF:
      operand->dtype = DType::kFloat16;
      return true;
    case NPY_DOUBLE:
      operand->dtype = DType::kFloat64;
      return true;
    default:
      operand->dtype = DType::kBFloat16;
      return number == bfloat16_number;
  }
}

bool read_optional(nb::handle object, Operand* operand) { return object.is_none() || read(object, operand); }

// Whether x [N, C, *] lies as [N, *, C].
bool channels_last(const Operand& x) {
  return is_channels_last<npy_intp>(x.rank(), PyArray_DIMS(x.array), PyArray_STRIDES(x.array),
                                    PyArray_ITEMSIZE(x.array));
}

bool lies_in(const Operand& operand, Layout layout) {
  return layout == Layout::kContiguous ? operand.contiguous() : channels_last(operand);
}

bool layout_of(const Operand& x, Layout* layout) {
  *layout = x.contiguous() ? Layout::kContiguous : Layout::kChannelsLast;
  return lies_in(x, *layout);
}

bool is_vector(const Operand& parameter, npy_intp channels) {
  return parameter.rank() == 1 && parameter.size(0) == channels && parameter.contiguous();
}

bool is_table(const Operand& stats, npy_intp n, npy_intp groups) {
  return stats.rank() == 2 && stats.size(0) == n && stats.size(1) == groups && stats.contiguous();
}

// The sizes of x [N, C, *] that run() takes.
Problem problem_of(Operator op, const Operand& x, Layout layout, DType gamma, DType beta, DType stats,
                   npy_intp groups) {
  npy_intp length = 1;
  for (int axis = 2; axis < x.rank(); ++axis) length *= x.size(axis);
  return {op, x.dtype, gamma, beta, stats, layout, x.size(0), x.size(1), length, groups, false, 0};
}

// ---- outputs ----

// An output with the shape of a list of sizes: the caller's own, or a new one.
struct Output : Operand {
  nb::object owner;

  bool read_given(nb::handle object) {
    owner = nb::borrow(object);
    return read(object, this) && PyArray_ISWRITEABLE(array);
  }
  void make(PyArray_Descr* descr, int rank, const npy_intp* shape) {  // takes over descr
    take(PyArray_NewFromDescr(&PyArray_Type, descr, rank, const_cast<npy_intp*>(shape), nullptr, nullptr, 0, nullptr));
  }
  void make_like(const Operand& x) { take(PyArray_NewLikeArray(x.array, NPY_KEEPORDER, nullptr, 0)); }
  nb::object result() const { return owner.is_valid() ? owner : nb::none(); }

 private:
  void take(PyObject* made) {
    if (!made) throw nb::python_error();
    owner = nb::steal(made);
    read(owner, this);
  }
};

// The entries of `out`; false unless it is None or a tuple with None wherever nothing is wanted.
bool entries(nb::handle out, const bool (&wanted)[3], nb::handle (*entry)[3]) {
  for (nb::handle& one : *entry) one = nb::handle(Py_None);
  if (out.is_none()) return true;
  if (!PyTuple_Check(out.ptr())) return false;
  if (PyTuple_GET_SIZE(out.ptr()) != 3) return false;
  for (int i = 0; i < 3; ++i) {
    (*entry)[i] = PyTuple_GET_ITEM(out.ptr(), i);
    if (!(*entry)[i].is_none() && !wanted[i]) return false;
  }
  return true;
}

using Operands = std::initializer_list<const Operand*>;

bool apart_from(const Operand& output, Operands others) {
  return std::all_of(others.begin(), others.end(), [&](const Operand* one) { return one->apart(output); });
}

// Whether dx or y may be written: like x, apart from the others, and from those it may replace or at their place.
bool fits_x(const Operand& output, const Operand& x, Layout layout, Operands in_place, Operands others) {
  return output.number() == x.number() && output.same_shape(x) && lies_in(output, layout) &&
         apart_from(output, others) && std::all_of(in_place.begin(), in_place.end(), [&](const Operand* one) {
           return one->begin() == output.begin() || one->apart(output);
         });
}

bool fits(const Operand& output, int number, int rank, const npy_intp* shape, Operands others) {
  return output.number() == number && output.rank() == rank &&
         PyArray_CompareLists(PyArray_DIMS(output.array), shape, rank) && output.contiguous() &&
         apart_from(output, others);
}

}  // namespace

void init() {
  if (_import_array() < 0) throw nb::python_error();
}

void register_bfloat16(int number) { bfloat16_number = number; }

nb::object group_norm_backward(nb::handle dy_, nb::handle x_, nb::handle mean_, nb::handle rstd_, nb::handle gamma_,
                               nb::handle mask, nb::handle out, int threads) {
  Operand dy, x, mean, rstd, gamma;
  Layout layout;
  if (!read(x_, &x) || !read(dy_, &dy) || !read(mean_, &mean) || !read(rstd_, &rstd) ||
      !read_optional(gamma_, &gamma) || dy.dtype != x.dtype || rstd.dtype != mean.dtype ||
      !goes_with(mean.dtype, x.dtype) || x.rank() < 2 || !dy.same_shape(x) || !layout_of(x, &layout) ||
      !lies_in(dy, layout) || mean.rank() != 2) {
    return nb::none();
  }
  const npy_intp n = x.size(0), channels = x.size(1), groups = mean.size(1);
  const Operand& parameter = gamma.array ? gamma : mean;
  if (groups < 1 || channels % groups != 0 || !is_table(mean, n, groups) || !is_table(rstd, n, groups) ||
      !goes_with(parameter.dtype, x.dtype) || (gamma.array && !is_vector(gamma, channels))) {
    return nb::none();
  }

  Output dx, dgamma, dbeta;
  nb::handle given[3];
  const bool wanted[3] = {PyTuple_GET_ITEM(mask.ptr(), 0) == Py_True, PyTuple_GET_ITEM(mask.ptr(), 1) == Py_True,
                          PyTuple_GET_ITEM(mask.ptr(), 2) == Py_True};
  if (!entries(out, wanted, &given)) return nb::none();
  const Operands all = {&x, &dy, &mean, &rstd, &gamma};
  if (!given[0].is_none() && !(dx.read_given(given[0]) && fits_x(dx, x, layout, {&x, &dy}, {&mean, &rstd, &gamma}))) {
    return nb::none();
  }
  if (!given[1].is_none() &&
      !(dgamma.read_given(given[1]) && fits(dgamma, parameter.number(), 1, &channels, all) && dgamma.apart(dx))) {
    return nb::none();
  }
  if (!given[2].is_none() && !(dbeta.read_given(given[2]) && fits(dbeta, parameter.number(), 1, &channels, all) &&
                               dbeta.apart(dx) && dbeta.apart(dgamma))) {
    return nb::none();
  }
  if (wanted[0] && !dx.array) dx.make_like(x);
  if (dx.array && !lies_in(dx, layout)) return nb::none();
  if (wanted[1] && !dgamma.array) dgamma.make(parameter.descr(), 1, &channels);
  if (wanted[2] && !dbeta.array) dbeta.make(parameter.descr(), 1, &channels);

  run_released(
      problem_of(Operator::kGroupNormBackward, x, layout, parameter.dtype, parameter.dtype, mean.dtype, groups),
      {x.data(), dy.data(), gamma.data(), nullptr, mean.data(), rstd.data()},
      {dx.data(), dgamma.data(), dbeta.data(), nullptr, nullptr, nullptr}, threads);
  return nb::make_tuple(dx.result(), dgamma.result(), dbeta.result());
}

nb::object group_normalization_grad(nb::handle x_, nb::handle dy_, nb::handle gamma_, nb::handle mean_,
                                    nb::handle rstd_, nb::handle out, int threads) {
  Operand x, dy, gamma, mean, rstd;
  if (!read(x_, &x) || !read(dy_, &dy) || !read(gamma_, &gamma) || !read(mean_, &mean) || !read(rstd_, &rstd) ||
      x.dtype == DType::kFloat64 || x.rank() < 3 || x.rank() > 8) {
    return nb::none();
  }
  const npy_intp n = x.size(0), groups = x.size(1);
  for (const Operand* one : {&x, &dy, &gamma}) {
    if (one->dtype != x.dtype || !one->same_shape(x) || !one->contiguous()) return nb::none();
  }
  if (mean.dtype != x.dtype || rstd.dtype != x.dtype || !is_table(mean, n, groups) || !is_table(rstd, n, groups)) {
    return nb::none();
  }

  Output dx;
  if (out.is_none()) {
    dx.make(x.descr(), x.rank(), PyArray_DIMS(x.array));
  } else if (!dx.read_given(out) || !fits_x(dx, x, Layout::kContiguous, {&x, &dy}, {&gamma, &mean, &rstd})) {
    return nb::none();
  }
  Problem problem =
      problem_of(Operator::kGroupNormalizationGrad, x, Layout::kContiguous, x.dtype, x.dtype, x.dtype, groups);
  run_released(problem, {x.data(), dy.data(), gamma.data(), nullptr, mean.data(), rstd.data()},
               {dx.data(), nullptr, nullptr, nullptr, nullptr, nullptr}, threads);
  return dx.result();
}

nb::object group_norm(nb::handle x_, nb::handle num_groups, nb::handle gamma_, nb::handle beta_, nb::handle eps_,
                      nb::handle out, int threads) {
  Operand x, gamma, beta;
  Layout layout;
  if (!read(x_, &x) || !read_optional(gamma_, &gamma) || !read_optional(beta_, &beta) || x.rank() < 2 ||
      !layout_of(x, &layout) || !PyLong_CheckExact(num_groups.ptr()) || !PyFloat_CheckExact(eps_.ptr())) {
    return nb::none();
  }
  const npy_intp n = x.size(0), channels = x.size(1);
  int overflow;
  const long long groups = PyLong_AsLongLongAndOverflow(num_groups.ptr(), &overflow);
  const double eps = PyFloat_AS_DOUBLE(eps_.ptr());
  if (overflow || groups < 1 || channels % groups != 0 || !(eps >= 0 && eps <= 1e300)) return nb::none();
  for (const Operand* one : {&gamma, &beta}) {
    if (one->array && (!goes_with(one->dtype, x.dtype) || !is_vector(*one, channels))) return nb::none();
  }

  Output y, mean, rstd;
  nb::handle given[3];
  if (!entries(out, {true, true, true}, &given)) return nb::none();
  const DType stats = x.dtype == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
  const int stats_number = stats == DType::kFloat64 ? NPY_DOUBLE : NPY_FLOAT;
  const npy_intp table[2] = {n, static_cast<npy_intp>(groups)};
  const Operands all = {&x, &gamma, &beta};
  if (!given[0].is_none() && !(y.read_given(given[0]) && fits_x(y, x, layout, {&x}, {&gamma, &beta})))
    return nb::none();
  if (!given[1].is_none() && !(mean.read_given(given[1]) && fits(mean, stats_number, 2, table, all) && mean.apart(y))) {
    return nb::none();
  }
  if (!given[2].is_none() &&
      !(rstd.read_given(given[2]) && fits(rstd, stats_number, 2, table, all) && rstd.apart(y) && rstd.apart(mean))) {
    return nb::none();
  }
  if (!y.array) y.make_like(x);
  if (!lies_in(y, layout)) return nb::none();
  if (!mean.array) mean.make(PyArray_DescrFromType(stats_number), 2, table);
  if (!rstd.array) rstd.make(PyArray_DescrFromType(stats_number), 2, table);

  Problem problem = problem_of(Operator::kGroupNorm, x, layout, gamma.array ? gamma.dtype : stats,
                               beta.array ? beta.dtype : stats, stats, groups);
  problem.eps = eps;
  run_released(problem, {x.data(), nullptr, gamma.data(), beta.data(), nullptr, nullptr},
               {nullptr, nullptr, nullptr, y.data(), mean.data(), rstd.data()}, threads);
  return nb::make_tuple(y.result(), mean.result(), rstd.result());
}

}  // namespace groupnorm::plain
