#include "flow.h"

#include <cmath>

namespace groupnorm::fuzz {
namespace {

// What is wrong with a call beside its tensors and attributes.
struct Wrong {
  bool anything = false;
  bool no_size = false;
  bool no_executor = false;
  bool foreign_function = false;
  bool executor = false;
  bool workspace = false;
  bool workspace_size = false;
  bool stream = false;
  bool freed = false;
};

std::vector<int64_t> changed(std::vector<int64_t> dims, Input& in) {
  if (dims.empty() || in.chance(32)) dims.push_back(in.edge());
  switch (in.below(4)) {
    case 0:
      dims[in.below(dims.size())] = in.edge();
      break;
    case 1:
      dims[in.below(dims.size())] += in.chance(128) ? 1 : -1;
      break;
    case 2:
      dims.pop_back();
      break;
    default:
      for (int64_t& dim : dims) dim = in.edge();
  }
  return dims;
}

void spoil_tensor(Case& one, Input& in) {
  World& world = one.world;
  const size_t index = in.below(one.operands.size());
  const Operand& operand = one.operands[index];
  aclTensor*& tensor = one.arguments.tensor[index];
  char* const base = one.memory[operand.memory].data;
  void* const data = base + operand.at;
  switch (in.below(10)) {
    case 0:
      tensor = nullptr;
      return;
    case 1:
      if (tensor && world.status(aclDestroyTensor(tensor)) == 0) world.drop(kTensor, tensor);
      return;
    case 2:
      tensor = static_cast<aclTensor*>(world.wrong_handle(kTensor));
      return;
    case 3: {
      static constexpr int kTypes[] = {ACL_FLOAT, ACL_FLOAT16, ACL_BF16, ACL_DOUBLE, ACL_INT32, ACL_STRING, -1, 1000};
      const auto type = static_cast<aclDataType>(in.pick(kTypes));
      return replace_tensor(one, index, type, operand.dims, operand.strides, operand.offset, ACL_FORMAT_ND, data);
    }
    case 4:
      return replace_tensor(one, index, operand.type, changed(operand.dims, in), {}, operand.offset, ACL_FORMAT_ND,
                            data);
    case 5: {
      std::vector<int64_t> strides = operand.strides;
      for (int64_t& stride : strides) stride = in.chance(128) ? in.edge() : stride;
      return replace_tensor(one, index, operand.type, operand.dims, strides, operand.offset, ACL_FORMAT_ND, data);
    }
    case 6:
      return replace_tensor(one, index, operand.type, operand.dims, operand.strides, in.edge(), ACL_FORMAT_ND, data);
    case 7: {
      static constexpr int kFormats[] = {ACL_FORMAT_NHWC, ACL_FORMAT_NCHW, ACL_FORMAT_FRACTAL_NZ, -1, 1000};
      return replace_tensor(one, index, operand.type, operand.dims, operand.strides, operand.offset,
                            static_cast<aclFormat>(in.pick(kFormats)), data);
    }
    case 8:
      return replace_tensor(one, index, operand.type, operand.dims, operand.strides, operand.offset, ACL_FORMAT_ND,
                            world.device_pointer());
    default: {  // into the memory of another, or beside its own
      const Operand& other = one.operands[in.below(one.operands.size())];
      return replace_tensor(one, index, operand.type, operand.dims, operand.strides, operand.offset, ACL_FORMAT_ND,
                            one.memory[other.memory].data + in.byte() % 16);
    }
  }
}

void spoil_attribute(Case& one, Input& in) {
  static char not_accepted[] = "NHWC";
  Arguments& a = one.arguments;
  switch (in.below(6)) {
    case 0:
      a.n = in.edge();
      return;
    case 1:
      a.channels = in.edge();
      return;
    case 2:
      a.length = in.edge();
      return;
    case 3:
      a.groups = in.edge();
      return;
    case 4: {
      static const double kEps[] = {0, -1, std::nan(""), INFINITY, 1e-320};
      a.eps = a.swish_scale = in.pick(kEps);
      a.format = not_accepted;
      return;
    }
    default:
      a.mask = one.world.get<aclBoolArray>(kBools);
      if (in.chance(128)) a.mask = static_cast<aclBoolArray*>(one.world.wrong_handle(kBools));
  }
}

Wrong spoil(Case& one, Input& in) {
  Wrong wrong;
  const uint8_t how = in.byte();
  if (how < 144) return wrong;
  wrong.anything = true;
  for (int i = how >= 240 ? 3 : 1; i > 0; --i) {
    switch (in.below(16)) {
      case 0:
        wrong.no_size = true;
        break;
      case 1:
        wrong.no_executor = true;
        break;
      case 2:
        wrong.foreign_function = true;
        break;
      case 3:
        wrong.executor = true;
        break;
      case 4:
        wrong.workspace = true;
        break;
      case 5:
        wrong.workspace_size = true;
        break;
      case 6:
        wrong.stream = true;
        break;
      case 7:
        wrong.freed = true;
        break;
      case 8:
      case 9:
        spoil_attribute(one, in);
        break;
      default:
        spoil_tensor(one, in);
    }
  }
  return wrong;
}

// A stream of the current context with nothing on it, nor a fault.
aclrtStream ready_stream(World& world, Input& in) {
  aclrtStream stream = in.chance(64) ? nullptr : world.handle(kStream);
  for (int tries = 0; tries < 2; ++tries) {
    if (world.status(aclrtSynchronizeStream(stream)) == 0) return stream;
  }
  FUZZ_CHECK(world.status(aclrtCreateStream(&stream)) == 0);
  world.add(kStream, stream);
  return stream;
}

void synchronize(World& world, Input& in, aclrtStream stream) {
  const bool by_event = in.chance(32);
  aclrtEvent event;
  if (by_event && world.status(aclrtCreateEvent(&event)) == 0) {
    world.add(kEvent, event);
    FUZZ_CHECK(world.status(aclrtRecordEvent(event, stream)) == 0);
    FUZZ_CHECK(world.status(aclrtSynchronizeEvent(event)) == 0);
    aclrtEventStatus status;
    FUZZ_CHECK(world.status(aclrtQueryEvent(event, &status)) == 0 && status == ACL_EVENT_STATUS_COMPLETE);
  }
  FUZZ_CHECK(world.status(aclrtSynchronizeStream(stream)) == 0);
}

// Once more with the first input in other memory, then the executor's end.
void repeat(Case& one, Input& in, const Operator& op, void* workspace, uint64_t size, aclOpExecutor* executor,
            aclrtStream stream) {
  World& world = one.world;
  upload(one, stream, false);
  Operand& input = one.operands[0];
  Memory& memory = one.memory[input.memory];
  std::vector<uint8_t> kept = memory.before;
  bool shared = false;
  for (size_t i = 1; i < one.operands.size(); ++i) shared = shared || one.operands[i].memory == input.memory;
  char* moved = nullptr;
  if (!shared && input.count() > 0) {
    moved = static_cast<char*>(world.allocate(kept.size()));
    FUZZ_CHECK(aclrtMemcpy(moved, kept.size(), memory.data, kept.size(), ACL_MEMCPY_DEVICE_TO_DEVICE) == 0);
    FUZZ_CHECK(aclrtMemset(memory.data, kept.size(), 0xff, kept.size()) == 0);
    memory.before.assign(kept.size(), 0xff);
    const auto set = in.chance(128) ? aclSetTensorAddr : aclSetInputTensorAddr;
    FUZZ_CHECK(world.status(set(executor, 0, one.arguments.tensor[0], moved + input.at)) == 0);
  }
  FUZZ_CHECK(world.status(op.phase2(workspace, size, executor, stream)) == 0);
  synchronize(world, in, stream);
  check_results(one);
  FUZZ_CHECK(world.status(aclDestroyAclOpExecutor(executor)) == 0);
  world.drop(kExecutor, executor);
  if (moved) world.free_device(moved);
}

struct Launch {
  void* workspace = nullptr;
  uint64_t size = 0;
  aclOpExecutor* executor = nullptr;
};

// Everything between the phases, right or as `wrong` says. False where nothing can be launched.
bool prepare(Case& one, Input& in, const Wrong& wrong, Launch& launch, aclrtStream& stream) {
  World& world = one.world;
  if (launch.size > kLargest) {
    FUZZ_CHECK(wrong.anything, "a workspace of %llu bytes", static_cast<unsigned long long>(launch.size));
    return false;
  }
  if (launch.size > 0) launch.workspace = world.allocate(launch.size);
  if (wrong.workspace) launch.workspace = in.chance(64) ? one.memory[0].data : world.device_pointer();
  if (wrong.workspace_size) launch.size = in.chance(128) ? launch.size - 1 : in.size();
  if (wrong.executor) launch.executor = static_cast<aclOpExecutor*>(world.wrong_handle(kExecutor));
  if (wrong.stream) stream = world.wrong_handle(kStream);
  if (wrong.freed) {
    Memory& memory = one.memory[in.below(one.memory.size())];
    world.free_device(memory.data);
    memory.data = nullptr;
  }
  return true;
}

void end(Case& one, Input& in, void* workspace) {
  World& world = one.world;
  if (in.chance(64)) return;  // others may use what is left
  for (aclTensor* tensor : one.arguments.tensor) {
    if (tensor && world.status(aclDestroyTensor(tensor)) == 0) world.drop(kTensor, tensor);
  }
  for (const Memory& memory : one.memory) {
    if (memory.data) world.free_device(memory.data);
  }
  if (workspace) world.free_device(workspace);
}

}  // namespace

void run_operator(World& world, Input& in) {
  world.settle();
  world.require_device();
  aclrtStream stream = ready_stream(world, in);
  aclrtStream const right_stream = stream;
  Case one(world);
  const Operator& op = choose_case(one, in);
  upload(one, stream, in.chance(64));
  create_tensors(one);
  Wrong wrong = spoil(one, in);
  const bool clash = one.clash && !wrong.anything;
  wrong.anything = wrong.anything || clash;

  Launch launch;
  const bool repeatable = in.chance(32);
  int code = world.status(
      op.phase1(one.arguments, wrong.no_size ? nullptr : &launch.size, wrong.no_executor ? nullptr : &launch.executor));
  FUZZ_CHECK(wrong.anything || code == 0, "%s phase 1: %d, %s", op.name, code, world.said);
  if (code == 0) {
    world.add(kExecutor, launch.executor);
    aclOpExecutor* const executor = launch.executor;
    if (repeatable) FUZZ_CHECK(world.status(aclSetAclOpExecutorRepeatable(executor)) == 0);
    void* own_workspace = nullptr;
    if (prepare(one, in, wrong, launch, stream)) {
      own_workspace = launch.workspace;
      const Operator& called = wrong.foreign_function ? kOperators[in.slot(kOperatorCount, 16)] : op;
      code = world.status(called.phase2(launch.workspace, launch.size, launch.executor, stream));
      FUZZ_CHECK(wrong.anything || code == 0, "%s phase 2: %d, %s", op.name, code, world.said);
      FUZZ_CHECK(!clash || code != 0, "%s where an output clashes", op.name);
      FUZZ_CHECK(!wrong.foreign_function || &called == &op || code != 0);
    }
    if (!wrong.anything) {
      synchronize(world, in, right_stream);
      check_results(one);
      if (repeatable) {
        repeat(one, in, op, own_workspace, launch.size, executor, right_stream);
      } else {
        world.drop(kExecutor, executor);
      }
      if (in.chance(64)) {  // it is used up
        upload(one, right_stream, false);
        FUZZ_CHECK(world.status(op.phase2(own_workspace, launch.size, executor, right_stream)) != 0);
        FUZZ_CHECK(world.status(aclDestroyAclOpExecutor(executor)) != 0);
        synchronize(world, in, right_stream);
        check_unchanged(one);
      }
      return end(one, in, own_workspace);
    }
  }
  world.quiesce();
  world.status(aclrtSynchronizeStream(right_stream));
  if (code != 0) check_unchanged(one);
  end(one, in, nullptr);
}

}  // namespace groupnorm::fuzz
