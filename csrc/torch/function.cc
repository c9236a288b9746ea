// groupnorm.torch.group_norm with its derivative, for plain CPU tensors, without Python between a training step and the
// core: as a function of PyTorch's autograd in C++. Built where PyTorch's headers are (cmake/torch.cmake), for that
// PyTorch alone; elsewhere src/groupnorm/torch/eager.py does the same from Python.
//
// What is not plain (csrc/python/tensor.h) or is looked at on its way is left: the forward says None to it, and the
// derivative calls the operator, which takes everything or names the mistake.
#include <ATen/EmptyTensor.h>
#include <ATen/Parallel.h>
#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/record_function.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <nanobind/nanobind.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <array>
#include <exception>
#include <initializer_list>
#include <optional>
#include <tuple>
#include <utility>

#include "../python/accepted.h"
#include "../python/huge_pages.h"
#include "../python/run.h"

namespace nb = nanobind;

namespace groupnorm::torch_function {
namespace {

using c10::DispatchKey;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

using Grads = std::tuple<at::Tensor, at::Tensor, at::Tensor>;
using BackwardOperator = Grads(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& mean,
                               const at::Tensor& rstd, const std::optional<at::Tensor>& gamma,
                               const std::optional<at::Tensor>& beta, std::array<bool, 3> wanted,
                               std::optional<c10::string_view> activation);

// Found when the module is loaded.
Run* run = nullptr;  // the core
std::optional<c10::TypedOperatorHandle<BackwardOperator>> backward_operator;

// ---- what is plain ----

bool dtype_of(at::ScalarType from, DType* to) {
  switch (from) {
    case at::kFloat:
      *to = DType::kFloat32;
      return true;
    case at::kHalf:
      *to = DType::kFloat16;
      return true;
    case at::kBFloat16:
      *to = DType::kBFloat16;
      return true;
    case at::kDouble:
      *to = DType::kFloat64;
      return true;
    default:
      return false;
  }
}

// One operand: a tensor that its caller keeps alive, or none.
struct Operand {
  const at::Tensor* tensor = nullptr;
  DType dtype = DType::kFloat32;
  bool present = false;

  const void* data() const { return present ? tensor->const_data_ptr() : nullptr; }
  int rank() const { return static_cast<int>(tensor->dim()); }
  int64_t size(int axis) const { return tensor->sizes()[axis]; }
  bool lies_in(Layout layout) const {
    const int64_t* const shape = tensor->sizes().data();
    const int64_t* const strides = tensor->strides().data();
    return layout == Layout::kContiguous ? is_contiguous<int64_t>(rank(), shape, strides, 1)
                                         : is_channels_last<int64_t>(rank(), shape, strides, 1);
  }
  bool has_shape(at::IntArrayRef shape) const { return tensor->sizes() == shape; }
  bool same_shape(const Operand& other) const { return has_shape(other.tensor->sizes()); }
};

// A dense tensor of the CPU that is neither negated nor wrapped nor of a class in Python, and moves in no forward mode.
// False also where memory was freed under it, as FSDP does.
bool read(const at::Tensor& tensor, Operand* operand) {
  constexpr c10::DispatchKeySet kPlain(
      {DispatchKey::CPU, DispatchKey::AutogradCPU, DispatchKey::AutocastCPU, DispatchKey::ADInplaceOrView});
  if (!tensor.defined() || !kPlain.has_all(tensor.key_set()) || !dtype_of(tensor.scalar_type(), &operand->dtype)) {
    return false;
  }
  operand->tensor = &tensor;
  operand->present = true;
  if (tensor._fw_grad(0).defined()) return false;
  if (tensor.numel() == 0) return true;
  const int64_t size = static_cast<int64_t>(tensor.itemsize());
  return static_cast<int64_t>(tensor.storage().nbytes()) >= (tensor.storage_offset() + tensor.numel()) * size &&
         reinterpret_cast<uintptr_t>(operand->data()) % static_cast<uintptr_t>(size) == 0;
}

bool read_optional(const at::Tensor& tensor, Operand* operand) { return !tensor.defined() || read(tensor, operand); }

// Whether no mode, trace or transform has to see what is called.
bool unwatched() {
  const c10::DispatchKeySet usual({DispatchKey::BackendSelect, DispatchKey::ADInplaceOrView});
  return usual.has_all(c10::impl::tls_local_dispatch_key_set().included_) && !at::impl::torch_function_mode_enabled();
}

// Whether autograd looks: not in inference mode, nor in the kernel of someone's operator.
bool records(std::initializer_list<const at::Tensor*> tensors) {
  if (!at::GradMode::is_enabled()) return false;
  if (c10::impl::tls_local_dispatch_key_set().excluded_.has(DispatchKey::AutogradFunctionality)) return false;
  for (const at::Tensor* one : tensors) {
    if (one->defined() && one->requires_grad()) return true;
  }
  return false;
}

// ---- computing ----

at::Tensor new_strided(at::IntArrayRef shape, at::IntArrayRef strides, at::ScalarType dtype) {
  at::Tensor made(at::detail::empty_strided_cpu(shape, strides, dtype));
  ask_for_huge_pages(made.mutable_data_ptr(), static_cast<int64_t>(made.nbytes()));
  return made;
}

at::Tensor new_like(const at::Tensor& x) { return new_strided(x.sizes(), x.strides(), x.scalar_type()); }

// The arguments of a forward that were found to be plain.
struct Forward {
  Operand x, gamma, beta;
  Layout layout;
  int64_t groups;
  double eps;
  Activation activation;

  struct Result {
    at::Tensor y, mean, rstd;
  };

  Result compute() const {
    const DType stats = statistics_of(x.dtype);
    const int64_t table[] = {x.size(0), groups}, strides[] = {std::max<int64_t>(groups, 1), 1};
    Result result;
    result.y = new_like(*x.tensor);
    for (at::Tensor* one : {&result.mean, &result.rstd}) {
      *one = new_strided(table, strides, stats == DType::kFloat64 ? at::kDouble : at::kFloat);
    }
    Problem problem = problem_of(Operator::kGroupNorm, x, gamma, beta, stats, layout, groups, activation);
    problem.eps = eps;
    run(problem, {x.data(), nullptr, gamma.data(), beta.data(), nullptr, nullptr},
        {nullptr, nullptr, nullptr, result.y.mutable_data_ptr(), result.mean.mutable_data_ptr(),
         result.rstd.mutable_data_ptr()},
        at::get_num_threads());
    return result;
  }
};

// What a hook made of what was saved may be anything.
std::optional<Grads> backward_of_plain(const at::Tensor& dy_, const at::Tensor& x_, const at::Tensor& mean_,
                                       const at::Tensor& rstd_, const at::Tensor& gamma_, const at::Tensor& beta_,
                                       std::array<bool, 3> wanted, Activation activation) {
  Operand dy, x, mean, rstd, gamma, beta;
  Layout layout;
  if (!read(x_, &x) || !read(dy_, &dy) || !read(mean_, &mean) || !read(rstd_, &rstd) ||
      !read_optional(gamma_, &gamma) || !read_optional(beta_, &beta) ||
      !fit_backward(dy, x, mean, rstd, gamma, beta, &layout)) {
    return std::nullopt;
  }
  // dgamma and dbeta are made like gamma.
  if ((wanted[1] || wanted[2]) && !gamma.present) return std::nullopt;
  at::Tensor dx, dgamma, dbeta;
  if (wanted[0]) dx = new_like(x_);
  if (wanted[1]) dgamma = new_like(gamma_);
  if (wanted[2]) dbeta = new_like(gamma_);
  const auto memory = [](at::Tensor& output) { return output.defined() ? output.mutable_data_ptr() : nullptr; };

  const Problem problem =
      problem_of(Operator::kGroupNormBackward, x, gamma, beta, mean.dtype, layout, mean.size(1), activation);
  run(problem, {x.data(), dy.data(), gamma.data(), beta.data(), mean.data(), rstd.data()},
      {memory(dx), memory(dgamma), memory(dbeta), nullptr, nullptr, nullptr}, at::get_num_threads());
  return Grads{dx, dgamma, dbeta};
}

Grads backward_of_operator(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& mean, const at::Tensor& rstd,
                           const at::Tensor& gamma, const at::Tensor& beta, std::array<bool, 3> wanted, bool silu) {
  const auto optional = [](const at::Tensor& tensor) {
    return tensor.defined() ? std::optional<at::Tensor>(tensor) : std::nullopt;
  };
  return backward_operator->call(dy, x, mean, rstd, optional(gamma), optional(beta), wanted,
                                 silu ? std::optional<c10::string_view>("silu") : std::nullopt);
}

// ---- the function of autograd ----

struct GroupNorm : torch::autograd::Function<GroupNorm> {
  static constexpr bool is_traceable = true;  // by compiled autograd: what backward reads is what was saved

  // weight and bias again, for autograd: a tensor that is not there is none of its variables.
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input, const std::optional<at::Tensor>& weight,
                            const std::optional<at::Tensor>& bias, const Forward& arguments) {
    Forward::Result result = arguments.compute();
    const bool silu = arguments.activation == Activation::kSwish;
    const at::Tensor none;
    context->save_for_backward(
        {input, std::move(result.mean), std::move(result.rstd), weight ? *weight : none, bias && silu ? *bias : none});
    context->saved_data["has_bias"] = bias.has_value();
    context->saved_data["silu"] = silu;
    return result.y;
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    RECORD_FUNCTION("groupnorm::group_norm_backward", c10::ArrayRef<const c10::IValue>{});
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &dy = grads[0], &x = saved[0], &mean = saved[1], &rstd = saved[2], &weight = saved[3];
    const at::Tensor& bias = saved[4];
    const bool silu = context->saved_data["silu"].toBool(), has_bias = context->saved_data["has_bias"].toBool();
    size_t edge = 0;
    std::array<bool, 3> wanted{};
    wanted[0] = context->needs_input_grad(edge++);
    if (weight.defined()) wanted[1] = context->needs_input_grad(edge++);
    if (has_bias) wanted[2] = context->needs_input_grad(edge++);

    std::optional<Grads> found;
    // A graph of the gradient is the operator's affair.
    if (unwatched() && !records({&dy, &x, &weight, &bias})) {
      found = backward_of_plain(dy, x, mean, rstd, weight, bias, wanted, silu ? Activation::kSwish : Activation::kNone);
    }
    if (!found) found = backward_of_operator(dy, x, mean, rstd, weight, bias, wanted, silu);
    auto& [dx, dgamma, dbeta] = *found;
    return {dx, dgamma, dbeta, at::Tensor()};
  }
};

// ---- Python ----

bool is_own(nb::handle object) { return THPVariable_CheckExact(object.ptr()); }

bool unpack_optional(nb::handle object, std::optional<at::Tensor>* tensor) {
  if (object.is_none()) return true;
  if (!is_own(object)) return false;
  *tensor = THPVariable_Unpack(object.ptr());
  return true;
}

nb::object group_norm(nb::handle input_, nb::handle num_groups, nb::handle weight_, nb::handle bias_, nb::handle eps,
                      nb::handle activation) {
  if (!is_own(input_) || !PyLong_CheckExact(num_groups.ptr()) || !PyFloat_CheckExact(eps.ptr())) return nb::none();
  std::optional<at::Tensor> weight, bias;
  if (!unpack_optional(weight_, &weight) || !unpack_optional(bias_, &bias) || !unwatched()) return nb::none();
  const at::Tensor& input = THPVariable_Unpack(input_.ptr());

  Forward arguments{};
  if (!activation.is_none()) {
    if (!PyUnicode_CheckExact(activation.ptr()) || PyUnicode_CompareWithASCIIString(activation.ptr(), "silu") != 0) {
      return nb::none();
    }
    arguments.activation = Activation::kSwish;
  }
  int overflow;
  arguments.groups = PyLong_AsLongLongAndOverflow(num_groups.ptr(), &overflow);
  arguments.eps = PyFloat_AS_DOUBLE(eps.ptr());
  const at::Tensor none;
  const at::Tensor& gamma = weight ? *weight : none;
  const at::Tensor& beta = bias ? *bias : none;
  if (overflow || !read(input, &arguments.x) || !read_optional(gamma, &arguments.gamma) ||
      !read_optional(beta, &arguments.beta) ||
      !fit_forward(arguments.x, arguments.gamma, arguments.beta, arguments.groups, arguments.eps, &arguments.layout)) {
    return nb::none();
  }
  at::Tensor output;
  try {
    nb::gil_scoped_release release;
    RECORD_FUNCTION("groupnorm::group_norm", c10::ArrayRef<const c10::IValue>{});
    output =
        records({&input, &gamma, &beta}) ? GroupNorm::apply(input, weight, bias, arguments) : arguments.compute().y;
  } catch (python_error& error) {  // of a hook on what is saved: checkpointing ends a forward so
    error.restore();
    throw nb::python_error();
  } catch (const c10::Error&) {
    torch::translate_exception_to_python(std::current_exception());
    throw nb::python_error();
  }
  return nb::steal(THPVariable_Wrap(std::move(output)));
}

}  // namespace
}  // namespace groupnorm::torch_function

// After the operators were defined.
NB_MODULE(GROUPNORM_TORCH_MODULE, m) {
  namespace function = groupnorm::torch_function;
  const nb::object capsule = nb::module_::import_("groupnorm._core").attr("RUN");
  void* const run = PyCapsule_GetPointer(capsule.ptr(), groupnorm::kRunCapsule);
  if (!run) throw nb::python_error();
  function::run = reinterpret_cast<groupnorm::Run*>(run);
  function::backward_operator = c10::Dispatcher::singleton()
                                    .findSchemaOrThrow("groupnorm::group_norm_backward", "")
                                    .typed<function::BackwardOperator>();
  m.def("group_norm", &function::group_norm, nb::arg().none(), nb::arg().none(), nb::arg().none(), nb::arg().none(),
        nb::arg().none(), nb::arg().none());
}
