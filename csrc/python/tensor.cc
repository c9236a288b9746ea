#include "tensor.h"

#include <nanobind/ndarray.h>
#include <algorithm>
#include <initializer_list>
#include <utility>

#include "accepted.h"
#include "huge_pages.h"
#include "run.h"

namespace nb = nanobind;

namespace groupnorm::tensor {
namespace {

// The table of functions of DLPack 1, of which one is used here.
struct Exchange {
  struct {
    uint32_t major, minor;
  } version;
  const void* previous;
  const void* allocate;
  const void* owned_from_object;
  const void* object_from_owned;
  int (*view_of_object)(PyObject* object, nb::dlpack::dltensor* view);  // -1 and a Python exception if it cannot
  const void* current_stream;
};

// What was taken from PyTorch; it lives as long as the process.
struct Torch {
  const Exchange* exchange = nullptr;
  PyTypeObject* tensor = nullptr;
  PyTypeObject* parameter = nullptr;
  PyObject* empty_like = nullptr;
  PyObject* empty_strided = nullptr;  // on the CPU, without a way through the dispatcher; null where there is none
  PyObject* dtypes[kDTypeCount] = {};
  PyObject* is_neg = nullptr;          // of Tensor
  PyObject* storage_offset = nullptr;  // of Tensor
  // Names.
  PyObject* requires_grad = nullptr;
  PyObject* new_empty = nullptr;
  PyObject* dtype = nullptr;  // in a tuple
} torch;

bool is_true(PyObject* owned) {
  if (!owned) throw nb::python_error();
  const bool value = owned == Py_True;
  Py_DECREF(owned);
  return value;
}

bool dtype_of(nb::dlpack::dtype from, DType* to) {
  const auto is = [&](nb::dlpack::dtype_code code, int bits) {
    return from.code == static_cast<uint8_t>(code) && from.bits == bits && from.lanes == 1;
  };
  using Code = nb::dlpack::dtype_code;
  if (is(Code::Float, 32)) {
    *to = DType::kFloat32;
  } else if (is(Code::Bfloat, 16)) {
    *to = DType::kBFloat16;
  } else if (is(Code::Float, 16)) {
    *to = DType::kFloat16;
  } else if (is(Code::Float, 64)) {
    *to = DType::kFloat64;
  } else {
    return false;
  }
  return true;
}

// One operand: a view of a tensor that its caller keeps alive, or none.
struct Operand {
  nb::dlpack::dltensor at{};
  DType dtype = DType::kFloat32;
  bool present = false;

  void* data() const { return present ? static_cast<char*>(at.data) + at.byte_offset : nullptr; }
  bool is_aligned() const { return reinterpret_cast<uintptr_t>(data()) % (at.dtype.bits / 8) == 0; }
  int rank() const { return at.ndim; }
  int64_t size(int axis) const { return at.shape[axis]; }
  bool lies_in(Layout layout) const {
    return layout == Layout::kContiguous ? is_contiguous<int64_t>(rank(), at.shape, at.strides, 1)
                                         : is_channels_last<int64_t>(rank(), at.shape, at.strides, 1);
  }
  bool has_shape(std::initializer_list<int64_t> shape) const {
    return rank() == static_cast<int>(shape.size()) && std::equal(shape.begin(), shape.end(), at.shape);
  }
  bool same_shape(const Operand& other) const {
    return rank() == other.rank() && std::equal(at.shape, at.shape + rank(), other.at.shape);
  }
};

bool is_own(nb::handle object) {
  return Py_TYPE(object.ptr()) == torch.tensor || Py_TYPE(object.ptr()) == torch.parameter;
}

// Whether memory was freed under a tensor, as FSDP does: what is left of its address is its offset.
bool is_freed(nb::handle object, const Operand& operand) {
  constexpr uintptr_t kAnyOffset = uintptr_t{1} << 40;
  if (reinterpret_cast<uintptr_t>(operand.data()) >= kAnyOffset) return false;
  const nb::object offset = nb::steal(PyObject_CallOneArg(torch.storage_offset, object.ptr()));
  if (!offset.is_valid()) throw nb::python_error();
  return reinterpret_cast<uintptr_t>(operand.data()) == nb::cast<uintptr_t>(offset) * operand.at.dtype.bits / 8;
}

// What memory and dtype alone tell. False for anything but a plain tensor.
bool view(nb::handle object, Operand* operand) {
  if (torch.exchange->view_of_object(object.ptr(), &operand->at) != 0) {
    PyErr_Clear();
    return false;
  }
  if (operand->at.device.device_type != nb::device::cpu::value) return false;
  operand->present = true;
  int64_t elements = 1;
  for (int axis = 0; axis < operand->rank(); ++axis) elements *= operand->size(axis);
  return elements == 0 || !is_freed(object, *operand);
}

// What else computing a call otherwise might see.
struct Watch {
  bool gradient;
  bool sign;
};

// The same for an argument, on which there is nothing to see.
bool read(nb::handle object, Watch watch, Operand* operand) {
  if (!is_own(object) || !view(object, operand) || !dtype_of(operand->at.dtype, &operand->dtype)) return false;
  if (!operand->is_aligned()) return false;
  if (watch.gradient && is_true(PyObject_GetAttr(object.ptr(), torch.requires_grad))) return false;
  return !(watch.sign && is_true(PyObject_CallOneArg(torch.is_neg, object.ptr())));
}

bool read_optional(nb::handle object, Watch watch, Operand* operand) {
  return object.is_none() || read(object, watch, operand);
}

bool activation_of(nb::handle object, Activation* activation) {
  *activation = object.is_none() ? Activation::kNone : Activation::kSwish;
  if (object.is_none()) return true;
  return PyUnicode_CheckExact(object.ptr()) && PyUnicode_CompareWithASCIIString(object.ptr(), "silu") == 0;
}

// ---- outputs ----

// What a mode of the caller makes may be anything: what is written is looked at.
struct Output : Operand {
  nb::object owner = nb::none();

  // With the strides of what it is like, which is dense.
  bool make_like(nb::handle tensor, const Operand& operand, Layout layout) {
    PyObject* const made = torch.empty_strided
                               ? strided(operand.rank(), operand.at.shape, operand.at.strides, operand.dtype)
                               : PyObject_CallOneArg(torch.empty_like, tensor.ptr());
    if (!take(made, operand.dtype) || !same_shape(operand) || !lies_in(layout)) return false;
    int64_t bytes = at.dtype.bits / 8;
    for (int axis = 0; axis < rank(); ++axis) bytes *= size(axis);
    ask_for_huge_pages(data(), bytes);  // as NumPy does for its arrays
    return true;
  }
  bool make_table(nb::handle beside, int64_t n, int64_t groups, DType dtype) {
    return take(torch.empty_strided ? new_table(n, groups, dtype) : new_table(beside, n, groups, dtype), dtype) &&
           has_shape({n, groups}) && lies_in(Layout::kContiguous);
  }

 private:
  static PyObject* new_table(nb::handle beside, int64_t n, int64_t groups, DType dtype) {
    const nb::tuple shape = nb::make_tuple(n, groups);
    PyObject* const arguments[] = {beside.ptr(), shape.ptr(), torch.dtypes[static_cast<int>(dtype)]};
    return PyObject_VectorcallMethod(torch.new_empty, arguments, 2, torch.dtype);
  }
  static PyObject* new_table(int64_t n, int64_t groups, DType dtype) {
    const int64_t shape[] = {n, groups};
    const int64_t strides[] = {std::max<int64_t>(groups, 1), 1};
    return strided(2, shape, strides, dtype);
  }
  static PyObject* strided(int rank, const int64_t* shape, const int64_t* strides, DType dtype) {
    const nb::object sizes = tuple_of(rank, shape), steps = tuple_of(rank, strides);
    PyObject* const arguments[] = {sizes.ptr(), steps.ptr(), torch.dtypes[static_cast<int>(dtype)]};
    return PyObject_Vectorcall(torch.empty_strided, arguments, 3, nullptr);
  }
  static nb::object tuple_of(int count, const int64_t* values) {
    const nb::object tuple = nb::steal(PyTuple_New(count));
    if (!tuple.is_valid()) throw nb::python_error();
    for (int i = 0; i < count; ++i) {
      PyObject* const value = PyLong_FromLongLong(values[i]);
      if (!value) throw nb::python_error();
      PyTuple_SET_ITEM(tuple.ptr(), i, value);
    }
    return tuple;
  }

  bool take(PyObject* made, DType expected) {
    if (!made) throw nb::python_error();
    owner = nb::steal(made);
    return is_own(owner) && view(owner, this) && dtype_of(at.dtype, &dtype) && dtype == expected && is_aligned();
  }
};

// What PyTorch's compiler calls for the memory of a result; not part of its interface, and so perhaps not there.
PyObject* allocator(nb::handle module) {
  nb::object found = nb::borrow(module);
  for (const char* name : {"_C", "_dynamo", "guards", "_empty_strided_cpu"}) {
    if (!nb::hasattr(found, name)) return nullptr;
    found = found.attr(name);
  }
  return found.release().ptr();
}

}  // namespace

bool use(nb::handle module) {
  const nb::object tensor = module.attr("Tensor");
  if (!nb::hasattr(tensor, "__dlpack_c_exchange_api__")) return false;
  const nb::object exchange = tensor.attr("__dlpack_c_exchange_api__");
  const auto* table = static_cast<const Exchange*>(PyCapsule_GetPointer(exchange.ptr(), "dlpack_exchange_api"));
  if (!table) throw nb::python_error();
  if (table->version.major != 1 || !table->view_of_object) return false;
  const auto keep = [&](const char* name) { return nb::object(module.attr(name)).release().ptr(); };
  torch.tensor = reinterpret_cast<PyTypeObject*>(keep("Tensor"));
  torch.parameter = reinterpret_cast<PyTypeObject*>(nb::object(module.attr("nn").attr("Parameter")).release().ptr());
  torch.empty_like = keep("empty_like");
  for (const auto& [dtype, name] : {std::pair{DType::kFloat32, "float32"},
                                    {DType::kFloat16, "float16"},
                                    {DType::kBFloat16, "bfloat16"},
                                    {DType::kFloat64, "float64"}}) {
    torch.dtypes[static_cast<int>(dtype)] = keep(name);
  }
  torch.empty_strided = allocator(module);
  torch.is_neg = nb::object(tensor.attr("is_neg")).release().ptr();
  torch.storage_offset = nb::object(tensor.attr("storage_offset")).release().ptr();
  torch.requires_grad = PyUnicode_InternFromString("requires_grad");
  torch.new_empty = PyUnicode_InternFromString("new_empty");
  torch.dtype = nb::make_tuple("dtype").release().ptr();
  torch.exchange = table;
  return true;
}

bool are_plain(nb::handle tensors) {
  if (!torch.exchange) return false;
  for (nb::handle one : nb::borrow<nb::tuple>(tensors)) {
    Operand operand;
    if (!read_optional(one, {false, true}, &operand)) return false;
  }
  return true;
}

nb::object group_norm_backward(bool may_record, bool may_negate, int threads, nb::handle dy_, nb::handle x_,
                               nb::handle mean_, nb::handle rstd_, nb::handle gamma_, nb::handle beta_, nb::handle mask,
                               nb::handle activation) {
  const Watch watch{may_record, may_negate};
  Operand dy, x, mean, rstd, gamma, beta;
  Layout layout;
  Activation follows;
  if (!torch.exchange || !read(x_, watch, &x) || !read(dy_, watch, &dy) || !read(mean_, watch, &mean) ||
      !read(rstd_, watch, &rstd) || !read_optional(gamma_, watch, &gamma) || !read_optional(beta_, watch, &beta) ||
      !fit_backward(dy, x, mean, rstd, gamma, beta, &layout) || !activation_of(activation, &follows)) {
    return nb::none();
  }

  bool wanted[3];
  if (PySequence_Size(mask.ptr()) != 3) {
    PyErr_Clear();
    return nb::none();
  }
  for (int i = 0; i < 3; ++i) wanted[i] = is_true(PySequence_GetItem(mask.ptr(), i));
  // dgamma and dbeta are made like gamma.
  if ((wanted[1] || wanted[2]) && !gamma.present) return nb::none();
  Output dx, dgamma, dbeta;
  if (wanted[0] && !dx.make_like(x_, x, layout)) return nb::none();
  if (wanted[1] && !dgamma.make_like(gamma_, gamma, Layout::kContiguous)) return nb::none();
  if (wanted[2] && !dbeta.make_like(gamma_, gamma, Layout::kContiguous)) return nb::none();

  const Problem problem =
      problem_of(Operator::kGroupNormBackward, x, gamma, beta, mean.dtype, layout, mean.size(1), follows);
  run_released(problem, {x.data(), dy.data(), gamma.data(), beta.data(), mean.data(), rstd.data()},
               {dx.data(), dgamma.data(), dbeta.data(), nullptr, nullptr, nullptr}, threads);
  return nb::make_tuple(dx.owner, dgamma.owner, dbeta.owner);
}

nb::object group_norm(bool may_record, bool may_negate, int threads, nb::handle x_, nb::handle num_groups,
                      nb::handle gamma_, nb::handle beta_, nb::handle eps_, nb::handle activation) {
  const Watch watch{may_record, may_negate};
  Operand x, gamma, beta;
  Layout layout;
  Activation follows;
  if (!torch.exchange || !read(x_, watch, &x) || !read_optional(gamma_, watch, &gamma) ||
      !read_optional(beta_, watch, &beta) || !activation_of(activation, &follows) ||
      !PyLong_CheckExact(num_groups.ptr()) || !PyFloat_CheckExact(eps_.ptr())) {
    return nb::none();
  }
  int overflow;
  const long long groups = PyLong_AsLongLongAndOverflow(num_groups.ptr(), &overflow);
  const double eps = PyFloat_AS_DOUBLE(eps_.ptr());
  if (overflow || !fit_forward(x, gamma, beta, groups, eps, &layout)) return nb::none();

  const DType stats = statistics_of(x.dtype);
  Output y, mean, rstd;
  if (!y.make_like(x_, x, layout) || !mean.make_table(x_, x.size(0), groups, stats)) return nb::none();
  if (!rstd.make_like(mean.owner, mean, Layout::kContiguous)) return nb::none();
  Problem problem = problem_of(Operator::kGroupNorm, x, gamma, beta, stats, layout, groups, follows);
  problem.eps = eps;
  run_released(problem, {x.data(), nullptr, gamma.data(), beta.data(), nullptr, nullptr},
               {nullptr, nullptr, nullptr, y.data(), mean.data(), rstd.data()}, threads);
  return nb::make_tuple(y.owner, mean.owner, rstd.owner);
}

}  // namespace groupnorm::tensor
