#include "operators.h"

#include <algorithm>
#include <cstring>

#include "aclnn_group_normalization_grad.h"
#include "aclnnop/aclnn_group_norm.h"
#include "aclnnop/aclnn_group_norm_backward.h"
#include "aclnnop/aclnn_group_norm_silu.h"
#include "aclnnop/aclnn_group_norm_swish.h"
#include "aclnnop/aclnn_group_norm_swish_grad.h"

namespace groupnorm::fuzz {
namespace {

int64_t product(const std::vector<int64_t>& dims, size_t from) {
  int64_t all = 1;
  for (size_t i = from; i < dims.size(); ++i) all *= dims[i];
  return all;
}

aclDataType float_type(Input& in) {
  static constexpr aclDataType kTypes[] = {ACL_FLOAT, ACL_FLOAT16, ACL_BF16};
  return in.pick(kTypes);
}

void take_sizes(Case& one) {
  Arguments& a = one.arguments;
  a.n = one.shape[0];
  a.channels = one.shape[1];
  a.length = product(one.shape, 2);
}

// x, dy, gamma, dx: [N, G, *].
void build_printed(Case& one, Input& in) {
  one.type = float_type(in);
  if (one.shape.size() < 3) one.shape.push_back(1 + in.byte() % 4);
  take_sizes(one);
  const std::vector<int64_t> stats{one.shape[0], one.shape[1]};
  for (const char* name : {"x", "dy", "gamma"}) one.add(name, false, one.shape, one.type, false).in_step = true;
  for (const char* name : {"mean", "rstd"}) one.add(name, false, stats, one.type, false);
  one.add("dx", true, one.shape, one.type, false).in_step = true;
}

// Only the number of elements counts in x and dy.
void build_backward(Case& one, Input& in) {
  one.type = float_type(in);
  const aclDataType stats_type = in.chance(64) ? ACL_FLOAT : one.type;
  take_sizes(one);
  Arguments& a = one.arguments;
  if (a.channels % a.groups != 0) a.groups = 1;
  const std::vector<int64_t> flat{a.n * a.channels * a.length};
  const std::vector<int64_t> x = in.chance(32) ? flat : one.shape;
  const std::vector<int64_t> stats =
      in.chance(64) ? std::vector<int64_t>{a.n * a.groups} : std::vector<int64_t>{a.n, a.groups};
  one.add("gradOut", false, in.chance(32) ? flat : one.shape, one.type).in_step = true;
  one.add("input", false, x, one.type).in_step = true;
  one.add("mean", false, stats, stats_type);
  one.add("rstd", false, stats, stats_type);
  one.add("gamma", false, {a.channels}, stats_type).given = !in.chance(64);
  one.add("gradInput", true, x, one.type).in_step = true;
  one.add("gradGammaOut", true, {a.channels}, stats_type);
  one.add("gradBetaOut", true, {a.channels}, stats_type);
  for (size_t i = 0; i < 3; ++i) {
    Operand& output = one.operands[5 + i];
    one.mask[i] = output.written = !in.chance(48);
    output.given = output.written || in.chance(128);
  }
}

void build_forward(Case& one, Input& in) {
  static constexpr double kEps[] = {1e-5, 1e-3, 1};
  one.type = float_type(in);
  take_sizes(one);
  Arguments& a = one.arguments;
  if (a.channels % a.groups != 0) a.groups = 1;
  a.eps = in.pick(kEps);
  one.add("self", false, one.shape, one.type).in_step = true;
  for (const char* name : {"gamma", "beta"}) {
    one.add(name, false, {a.channels}, one.type).given = !in.chance(64);
  }
  one.add("out", true, one.shape, one.type).in_step = true;
  one.add("meanOut", true, {a.n, a.groups}, one.type);
  one.add("rstdOut", true, {a.n, a.groups}, one.type);
}

// The operators that activate: no empty tensors, groups that divide, contiguous outputs.
void take_full_sizes(Case& one) {
  for (int64_t& dim : one.shape) dim = std::max<int64_t>(1, dim);
  take_sizes(one);
  Arguments& a = one.arguments;
  if (a.channels % a.groups != 0) a.groups = 1;
}

void build_activated(Case& one, Input& in, bool gamma_has_stats, bool needs_affine) {
  static constexpr double kScales[] = {1, 1.702, -1, 0, 20};
  one.type = float_type(in);
  take_full_sizes(one);
  Arguments& a = one.arguments;
  a.swish_scale = in.pick(kScales);
  const aclDataType affine_type = in.chance(64) ? ACL_FLOAT : one.type;
  one.add("self", false, one.shape, one.type).in_step = true;
  for (const char* name : {"gamma", "beta"}) {
    one.add(name, false, {a.channels}, affine_type).given = needs_affine || !in.chance(64);
  }
  const aclDataType stats_type = gamma_has_stats ? affine_type : one.type;
  one.add("out", true, one.shape, one.type, false).in_step = true;
  one.add("meanOut", true, {a.n, a.groups}, stats_type, false);
  one.add("rstdOut", true, {a.n, a.groups}, stats_type, false);
}

void build_silu(Case& one, Input& in) {
  build_activated(one, in, false, false);
  one.arguments.swish_scale = 1;
  one.arguments.activate = true;
}

void build_silu_v2(Case& one, Input& in) {
  build_silu(one, in);
  one.arguments.activate = !in.chance(64);
}

char* data_format(Input& in) {
  static char accepted[] = "NCHW";
  return in.chance(128) ? accepted : nullptr;
}

void build_swish(Case& one, Input& in) {
  build_activated(one, in, true, true);
  one.arguments.activate = !in.chance(64);
  one.arguments.format = data_format(in);
}

void build_swish_grad(Case& one, Input& in) {
  static constexpr double kScales[] = {1, 1.702, -1, 0, 20};
  one.type = float_type(in);
  take_full_sizes(one);
  Arguments& a = one.arguments;
  a.swish_scale = in.pick(kScales);
  a.format = data_format(in);
  one.add("dy", false, one.shape, one.type).in_step = true;
  for (const char* name : {"mean", "rstd"}) one.add(name, false, {a.n, a.groups}, one.type);
  one.add("x", false, one.shape, one.type).in_step = true;
  for (const char* name : {"gamma", "beta"}) one.add(name, false, {a.channels}, one.type);
  one.add("dxOut", true, one.shape, one.type, false).in_step = true;
  for (const size_t i : {0, 1}) {
    a.required[i] = !in.chance(48);
    one.add(i == 0 ? "dgammaOut" : "dbetaOut", true, {a.channels}, one.type, false).written = a.required[i];
  }
}

}  // namespace

// An operator more is a line here, its `build` above and, where it computes something else, its `expect`.
const Operator kOperators[] = {
    {"aclnnGroupNormalizationGrad", 6, build_printed, expect_printed,
     [](const Arguments& a, uint64_t* size, aclOpExecutor** executor) {
       return aclnnGroupNormalizationGradGetWorkspaceSize(a.tensor[0], a.tensor[1], a.tensor[2], a.tensor[3],
                                                          a.tensor[4], a.tensor[5], size, executor);
     },
     aclnnGroupNormalizationGrad},
    {"aclnnGroupNormBackward", 8, build_backward, expect_backward,
     [](const Arguments& a, uint64_t* size, aclOpExecutor** executor) {
       return aclnnGroupNormBackwardGetWorkspaceSize(a.tensor[0], a.tensor[1], a.tensor[2], a.tensor[3], a.tensor[4],
                                                     a.n, a.channels, a.length, a.groups, a.mask, a.tensor[5],
                                                     a.tensor[6], a.tensor[7], size, executor);
     },
     aclnnGroupNormBackward},
    {"aclnnGroupNorm", 6, build_forward, expect_forward,
     [](const Arguments& a, uint64_t* size, aclOpExecutor** executor) {
       return aclnnGroupNormGetWorkspaceSize(a.tensor[0], a.tensor[1], a.tensor[2], a.n, a.channels, a.length, a.groups,
                                             a.eps, a.tensor[3], a.tensor[4], a.tensor[5], size, executor);
     },
     aclnnGroupNorm},
    {"aclnnGroupNormSilu", 6, build_silu, expect_forward,
     [](const Arguments& a, uint64_t* size, aclOpExecutor** executor) {
       return aclnnGroupNormSiluGetWorkspaceSize(a.tensor[0], a.tensor[1], a.tensor[2], a.groups, a.eps, a.tensor[3],
                                                 a.tensor[4], a.tensor[5], size, executor);
     },
     aclnnGroupNormSilu},
    {"aclnnGroupNormSiluV2", 6, build_silu_v2, expect_forward,
     [](const Arguments& a, uint64_t* size, aclOpExecutor** executor) {
       return aclnnGroupNormSiluV2GetWorkspaceSize(a.tensor[0], a.tensor[1], a.tensor[2], a.groups, a.eps, a.activate,
                                                   a.tensor[3], a.tensor[4], a.tensor[5], size, executor);
     },
     aclnnGroupNormSiluV2},
    {"aclnnGroupNormSwish", 6, build_swish, expect_forward,
     [](const Arguments& a, uint64_t* size, aclOpExecutor** executor) {
       return aclnnGroupNormSwishGetWorkspaceSize(a.tensor[0], a.tensor[1], a.tensor[2], a.groups, a.format, a.eps,
                                                  a.activate, a.swish_scale, a.tensor[3], a.tensor[4], a.tensor[5],
                                                  size, executor);
     },
     aclnnGroupNormSwish},
    {"aclnnGroupNormSwishGrad", 9, build_swish_grad, expect_swish_grad,
     [](const Arguments& a, uint64_t* size, aclOpExecutor** executor) {
       return aclnnGroupNormSwishGradGetWorkspaceSize(
           a.tensor[0], a.tensor[1], a.tensor[2], a.tensor[3], a.tensor[4], a.tensor[5], a.groups, a.format,
           a.swish_scale, a.required[0], a.required[1], a.tensor[6], a.tensor[7], a.tensor[8], size, executor);
     },
     aclnnGroupNormSwishGrad},
};
const size_t kOperatorCount = sizeof kOperators / sizeof *kOperators;

int64_t Operand::count() const { return product(dims, 0); }

Operand& Case::add(const char* name, bool output, std::vector<int64_t> dims, aclDataType type, bool strided) {
  Operand operand;
  operand.name = name;
  operand.output = output;
  operand.strided = strided;
  operand.type = type;
  operand.dims = std::move(dims);
  operands.push_back(std::move(operand));
  return operands.back();
}

std::vector<double> Case::load(size_t index) const {
  const Operand& operand = operands[index];
  const std::vector<uint8_t>& bytes = memory[operand.memory].before;
  std::vector<double> values;
  for_each_element(operand, [&](size_t at) { values.push_back(decode(operand.type, bytes.data() + at)); });
  return values;
}

// The bounds are loose: they tell a wrong result from a right one, not a good from a better.
void Case::want(size_t index, std::vector<double> values, std::vector<double> scales) {
  Operand& operand = operands[index];
  const double unit = operand.type == ACL_FLOAT ? 1e-5 : operand.type == ACL_FLOAT16 ? 0x1p-9 : 0x1p-6;
  for (double& scale : scales) scale = scale * unit + 1e-6;
  operand.expect = std::move(values);
  operand.bound = std::move(scales);
}

size_t item_size(aclDataType type) { return type == ACL_FLOAT ? 4 : 2; }

double decode(aclDataType type, const uint8_t* from) {
  if (type == ACL_FLOAT) {
    float value;
    std::memcpy(&value, from, sizeof value);
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, from, sizeof bits);
  if (type == ACL_FLOAT16) return aclFloat16ToFloat(bits);
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, sizeof value);
  return value;
}

void encode(aclDataType type, double value, uint8_t* to) {
  const auto narrow = static_cast<float>(value);
  if (type == ACL_FLOAT16) {
    const uint16_t bits = aclFloatToFloat16(narrow);
    std::memcpy(to, &bits, sizeof bits);
    return;
  }
  uint32_t bits;
  std::memcpy(&bits, &narrow, sizeof bits);
  const auto high = static_cast<uint16_t>(bits >> 16);
  std::memcpy(to, type == ACL_FLOAT ? static_cast<const void*>(&bits) : &high, item_size(type));
}

void any_phase1(World& world, Input& in) {
  const Operator& op = kOperators[in.slot(kOperatorCount, 16)];
  Arguments a;
  for (size_t i = 0; i < op.tensors; ++i) a.tensor[i] = world.get<aclTensor>(kTensor);
  for (int64_t* size : {&a.n, &a.channels, &a.length, &a.groups}) *size = in.edge();
  static constexpr double kEps[] = {1e-5, 0, -1, 1e300, -1e-300};
  a.eps = in.pick(kEps);
  a.mask = world.get<aclBoolArray>(kBools);
  uint64_t size = 0;
  aclOpExecutor* executor = nullptr;
  auto* size_to = static_cast<uint64_t*>(world.maybe_null(&size));
  if (world.status(op.phase1(a, size_to, static_cast<aclOpExecutor**>(world.maybe_null(&executor)))) == 0) {
    world.add(kExecutor, executor);
  }
}

void any_phase2(World& world, Input& in) {
  const Operator& op = kOperators[in.slot(kOperatorCount, 16)];
  auto* executor = world.get<aclOpExecutor>(kExecutor);
  void* workspace = world.device_pointer();
  const uint64_t size = in.size();
  world.status(op.phase2(workspace, size, executor, world.handle(kStream)));
}

}  // namespace groupnorm::fuzz
