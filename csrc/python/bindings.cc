// The core as Python sees it: raw addresses in, the GIL released, no logic. The checks are spec.py's.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "../core/dispatch.h"
#include "../core/group_norm.h"
#include "../core/parallel.h"
#include "plain.h"
#include "run.h"
#include "tensor.h"
#include "triad.h"

namespace nb = nanobind;
namespace gn = groupnorm;

namespace {

using Address = uintptr_t;

void* pointer(Address address) { return reinterpret_cast<void*>(address); }

gn::Problem problem_of(gn::Operator op, int dtype, int gamma_dtype, int beta_dtype, int stats_dtype, int layout,
                       int64_t n, int64_t channels, int64_t length, int64_t groups) {
  gn::Problem problem{};
  problem.op = op;
  problem.dtype = static_cast<gn::DType>(dtype);
  problem.gamma_dtype = static_cast<gn::DType>(gamma_dtype);
  problem.beta_dtype = static_cast<gn::DType>(beta_dtype);
  problem.stats_dtype = static_cast<gn::DType>(stats_dtype);
  problem.layout = static_cast<gn::Layout>(layout);
  problem.n = n;
  problem.channels = channels;
  problem.length = length;
  problem.groups = groups;
  return problem;
}

void group_normalization_grad(int dtype, int64_t n, int64_t groups, int64_t length, Address x, Address dy,
                              Address gamma, Address mean, Address rstd, Address dx, int threads) {
  const gn::Problem problem = problem_of(gn::Operator::kGroupNormalizationGrad, dtype, dtype, dtype, dtype,
                                         static_cast<int>(gn::Layout::kContiguous), n, groups, length, groups);
  gn::run_released(problem, {pointer(x), pointer(dy), pointer(gamma), nullptr, pointer(mean), pointer(rstd)},
                   {pointer(dx), nullptr, nullptr, nullptr, nullptr, nullptr}, threads);
}

void group_norm_backward(int dtype, int gamma_dtype, int beta_dtype, int stats_dtype, int layout, int64_t n,
                         int64_t channels, int64_t length, int64_t groups, Address dy, Address x, Address mean,
                         Address rstd, Address gamma, Address beta, Address dx, Address dgamma, Address dbeta,
                         bool recenter, int activation, double swish_scale, int threads) {
  gn::Problem problem = problem_of(gn::Operator::kGroupNormBackward, dtype, gamma_dtype, beta_dtype, stats_dtype,
                                   layout, n, channels, length, groups);
  problem.recenter = recenter;
  problem.activation = static_cast<gn::Activation>(activation);
  problem.swish_scale = swish_scale;
  gn::run_released(problem, {pointer(x), pointer(dy), pointer(gamma), pointer(beta), pointer(mean), pointer(rstd)},
                   {pointer(dx), pointer(dgamma), pointer(dbeta), nullptr, nullptr, nullptr}, threads);
}

void group_norm(int dtype, int gamma_dtype, int beta_dtype, int stats_dtype, int layout, int64_t n, int64_t channels,
                int64_t length, int64_t groups, Address x, Address gamma, Address beta, double eps, int activation,
                double swish_scale, Address y, Address mean, Address rstd, int threads) {
  gn::Problem problem = problem_of(gn::Operator::kGroupNorm, dtype, gamma_dtype, beta_dtype, stats_dtype, layout, n,
                                   channels, length, groups);
  problem.eps = eps;
  problem.activation = static_cast<gn::Activation>(activation);
  problem.swish_scale = swish_scale;
  gn::run_released(problem, {pointer(x), nullptr, pointer(gamma), pointer(beta), nullptr, nullptr},
                   {nullptr, nullptr, nullptr, pointer(y), pointer(mean), pointer(rstd)}, threads);
}

// A part of a tensor, group_norm.h: one of given and sums is 0.
void group_norm_backward_part(int dtype, int gamma_dtype, int beta_dtype, int stats_dtype, int layout, int64_t n,
                              int64_t channels, int64_t length, int64_t groups, Address dy, Address x, Address mean,
                              Address rstd, Address gamma, Address beta, Address given, Address dx, Address dgamma,
                              Address dbeta, Address sums, int activation, int64_t total_length, int threads) {
  gn::Problem problem = problem_of(gn::Operator::kGroupNormBackward, dtype, gamma_dtype, beta_dtype, stats_dtype,
                                   layout, n, channels, length, groups);
  problem.activation = static_cast<gn::Activation>(activation);
  problem.total_length = total_length;
  gn::run_released(
      problem,
      {pointer(x), pointer(dy), pointer(gamma), pointer(beta), pointer(mean), pointer(rstd),
       static_cast<const double*>(pointer(given))},
      {pointer(dx), pointer(dgamma), pointer(dbeta), nullptr, nullptr, nullptr, static_cast<double*>(pointer(sums))},
      threads);
}

void group_norm_part(int dtype, int gamma_dtype, int beta_dtype, int stats_dtype, int layout, int64_t n,
                     int64_t channels, int64_t length, int64_t groups, Address x, Address gamma, Address beta,
                     Address given, double eps, int activation, Address y, Address mean, Address rstd, Address sums,
                     int64_t total_length, int threads) {
  gn::Problem problem = problem_of(gn::Operator::kGroupNorm, dtype, gamma_dtype, beta_dtype, stats_dtype, layout, n,
                                   channels, length, groups);
  problem.eps = eps;
  problem.activation = static_cast<gn::Activation>(activation);
  problem.total_length = total_length;
  gn::run_released(
      problem,
      {pointer(x), nullptr, pointer(gamma), pointer(beta), nullptr, nullptr,
       static_cast<const double*>(pointer(given))},
      {nullptr, nullptr, nullptr, pointer(y), pointer(mean), pointer(rstd), static_cast<double*>(pointer(sums))},
      threads);
}

// For benchmarks. An address of 0 is an input that is not there.
void triad(Address first, Address second, Address third, Address output, int64_t bytes, bool stream, int threads) {
  const void* const inputs[] = {pointer(first), pointer(second), pointer(third)};
  const int count = third ? 3 : second ? 2 : 1;
  nb::gil_scoped_release release;
  gn::triad(inputs, count, pointer(output), bytes, stream, threads);
}

// The address of an array's first element. NumPy gives a buffer without asking for the dtype's format
// letter, which extension dtypes lack.
Address address(nb::handle array) {
  Py_buffer view;
  if (PyObject_GetBuffer(array.ptr(), &view, PyBUF_STRIDES) != 0) throw nb::python_error();
  const Address at = reinterpret_cast<Address>(view.buf);
  PyBuffer_Release(&view);
  return at;
}

using Bits = nb::ndarray<nb::numpy, uint16_t>;
constexpr nb::dlpack::dtype kBFloat16{static_cast<uint8_t>(nb::dlpack::dtype_code::Bfloat), 16, 1};

// NumPy has no bfloat16 of its own: these two carry it over DLPack as its bits.
std::tuple<std::vector<size_t>, std::vector<int64_t>> shape_and_strides(const nb::ndarray<>& array) {
  std::vector<size_t> shape(array.ndim());
  std::vector<int64_t> strides(array.ndim());
  for (size_t i = 0; i < array.ndim(); ++i) {
    shape[i] = array.shape(i);
    strides[i] = array.stride(i);
  }
  return {shape, strides};
}

nb::object bfloat16_bits(const nb::ndarray<nb::ro, nb::device::cpu>& array) {
  if (array.dtype() != kBFloat16) return nb::none();
  nb::ndarray<> view(array);
  const auto [shape, strides] = shape_and_strides(view);
  nb::object owner = nb::cast(array, nb::rv_policy::reference);
  return nb::cast(Bits(const_cast<void*>(array.data()), array.ndim(), shape.data(), owner, strides.data()),
                  nb::rv_policy::reference);
}

nb::object bfloat16_array(const Bits& bits) {
  const auto [shape, strides] = shape_and_strides(nb::ndarray<>(bits));
  nb::object owner = nb::cast(bits, nb::rv_policy::reference);
  return nb::cast(nb::ndarray<nb::device::cpu>(const_cast<uint16_t*>(bits.data()), bits.ndim(), shape.data(), owner,
                                               strides.data(), kBFloat16),
                  nb::rv_policy::reference);
}

std::vector<std::tuple<std::string, bool, bool>> isa_list() {
  int count;
  const gn::Isa* list = gn::isa_list(&count);
  std::vector<std::tuple<std::string, bool, bool>> levels;
  for (int i = 0; i < count; ++i) levels.emplace_back(list[i].name, list[i].table != nullptr, list[i].supported);
  return levels;
}

std::optional<std::string> current_isa() {
  const gn::KernelTable* table = gn::current_kernels();
  return table ? std::optional<std::string>(table->name) : std::nullopt;
}

}  // namespace

NB_MODULE(_core, m) {
  gn::plain::init();
  m.def("plain_group_normalization_grad", &gn::plain::group_normalization_grad, nb::arg().none(), nb::arg().none(),
        nb::arg().none(), nb::arg().none(), nb::arg().none(), nb::arg().none(), nb::arg());
  m.def("plain_group_norm_backward", &gn::plain::group_norm_backward, nb::arg().none(), nb::arg().none(),
        nb::arg().none(), nb::arg().none(), nb::arg().none(), nb::arg(), nb::arg().none(), nb::arg());
  m.def("plain_group_norm", &gn::plain::group_norm, nb::arg().none(), nb::arg().none(), nb::arg().none(),
        nb::arg().none(), nb::arg().none(), nb::arg().none(), nb::arg());
  m.def("use_torch", &gn::tensor::use);
  m.def("plain_tensors", &gn::tensor::are_plain);
  m.def("plain_tensors_group_norm_backward", &gn::tensor::group_norm_backward, nb::arg(), nb::arg(), nb::arg(),
        nb::arg().none(), nb::arg().none(), nb::arg().none(), nb::arg().none(), nb::arg().none(), nb::arg().none(),
        nb::arg(), nb::arg("activation") = nb::none());
  m.def("plain_tensors_group_norm", &gn::tensor::group_norm, nb::arg(), nb::arg(), nb::arg(), nb::arg().none(),
        nb::arg().none(), nb::arg("weight") = nb::none(), nb::arg("bias") = nb::none(), nb::arg("eps").none() = 1e-5,
        nb::arg("activation") = nb::none());
  m.def("register_bfloat16", &gn::plain::register_bfloat16);
  m.def("group_normalization_grad", &group_normalization_grad);
  m.def("group_norm_backward", &group_norm_backward);
  m.def("group_norm", &group_norm);
  m.def("group_norm_backward_part", &group_norm_backward_part);
  m.def("group_norm_part", &group_norm_part);
  m.def("triad", &triad);
  m.def("address", &address);
  m.def("bfloat16_bits", &bfloat16_bits);
  m.def("bfloat16_array", &bfloat16_array);
  m.def("default_threads", &gn::default_threads);
  m.def("use_team", [](Address parallel, Address thread_number) {
    gn::use_team({reinterpret_cast<decltype(gn::Team::parallel)>(parallel),
                  reinterpret_cast<decltype(gn::Team::thread_number)>(thread_number)});
  });
  m.def("isa_list", &isa_list);
  m.def("current_isa", &current_isa);
  m.def(
      "select_isa", [](std::optional<std::string> name) { return gn::select_isa(name ? name->c_str() : nullptr); },
      nb::arg("name").none());
  m.attr("RUN") = nb::capsule(reinterpret_cast<void*>(&gn::run_unlocked), gn::kRunCapsule);
  m.attr("MAX_THREADS") = gn::kMaxThreads;
  m.attr("BUILD") = GROUPNORM_BUILD_INFO;
}
