// Tensors, scalars, arrays, lists and executors.
#include <algorithm>
#include <memory>
#include <string>

#include "aclnn/aclnn_base.h"
#include "world.h"

namespace groupnorm::fuzz {
namespace {

constexpr size_t kDims = 10;
constexpr size_t kValues = 16;

aclDataType dtype(Input& in) {
  static constexpr int kTypes[] = {0, 1, 27, 0, 1, 27, 11, 3, 13, 17, 12, -1, 5, 100, INT32_MIN};
  return static_cast<aclDataType>(in.pick(kTypes));
}

aclFormat format(Input& in) {
  static constexpr int kFormats[] = {2, 0, 1, 30, 47, 2, 2, 29, -1, 16, 1000, INT32_MAX};
  return static_cast<aclFormat>(in.pick(kFormats));
}

// The arguments that describe a tensor.
struct Description {
  int64_t view[kDims];
  int64_t strides[kDims];
  int64_t storage[kDims];
  const int64_t* view_dims;
  const int64_t* stride_dims;
  const int64_t* storage_dims;
  uint64_t view_count;
  uint64_t storage_count;
  aclDataType type;
  aclFormat layout;
  int64_t offset;
  void* data;

  Description(World& world, Input& in) : type(dtype(in)), layout(format(in)), data(world.device_pointer()) {
    view_count = in.below(in.chance(32) ? kDims + 1 : 5);
    storage_count = in.chance(64) ? in.below(kDims + 1) : view_count;
    const bool wild = in.chance(48);
    for (size_t i = 0; i < kDims; ++i) {
      const bool used = i < view_count;
      view[i] = !used ? 1 : wild ? in.edge() : static_cast<int64_t>(in.below(5));
      strides[i] = used && wild ? in.edge() : 1;
      storage[i] = view[i];
    }
    view_dims = view;
    stride_dims = wild && in.chance(128) ? strides : nullptr;
    storage_dims = storage;
    offset = in.chance(48) ? in.edge() : 0;
    // A count of more than any tensor has is refused before anything is read.
    if (in.chance(8)) view_count = 1025 + in.size() % (uint64_t{1} << 63);
    if (in.chance(8)) storage_count = 1025 + in.size() % (uint64_t{1} << 63);
    if (in.chance(8)) view_dims = nullptr;
    if (in.chance(8)) storage_dims = nullptr;
  }
};

void create_tensor(World& world, Input& in) {
  const Description d(world, in);
  const aclTensor* tensor = aclCreateTensor(d.view_dims, d.view_count, d.type, d.stride_dims, d.offset, d.layout,
                                            d.storage_dims, d.storage_count, d.data);
  if (tensor) world.add(kTensor, tensor);
}

void init_tensor(World& world, Input& in) {
  const Description d(world, in);
  world.status(aclInitTensor(world.get<aclTensor>(kTensor), d.view_dims, d.view_count, d.type, d.stride_dims, d.offset,
                             d.layout, d.storage_dims, d.storage_count, d.data));
}

using Dims = aclnnStatus(const aclTensor*, int64_t**, uint64_t*);

void get_dims(World& world, Dims* call) {
  int64_t* dims = nullptr;
  uint64_t count = 0;
  auto* tensor = world.get<aclTensor>(kTensor);
  auto** to = static_cast<int64_t**>(world.maybe_null(&dims));
  if (world.status(call(tensor, to, static_cast<uint64_t*>(world.maybe_null(&count)))) != 0) return;
  int64_t sum = 0;
  for (uint64_t i = 0; i < count; ++i) sum ^= dims[i];
  FUZZ_CHECK(count <= 1024, "%lld", static_cast<long long>(sum));
  delete[] dims;
}

template <class Handle, Kind kind>
void destroy(World& world, aclnnStatus (*call)(const Handle*)) {
  auto* handle = world.get<Handle>(kind);
  if (world.status(call(handle)) == 0) world.drop(kind, handle);
}

template <class Handle, Kind kind>
void get_size(World& world, aclnnStatus (*call)(const Handle*, uint64_t*)) {
  uint64_t size = 0;
  auto* handle = world.get<Handle>(kind);
  if (world.status(call(handle, static_cast<uint64_t*>(world.maybe_null(&size)))) == 0) FUZZ_CHECK(size <= kValues);
}

// Any bytes, in a block of exactly their size.
template <class Value, class Handle, Kind kind>
void create_array(World& world, Input& in, Handle* (*call)(const Value*, uint64_t)) {
  const uint64_t count = in.below(kValues + 1);
  auto bytes = std::make_unique<unsigned char[]>(count * sizeof(Value));
  std::generate_n(bytes.get(), count * sizeof(Value), [&] { return in.byte(); });
  const bool null = in.chance(16);
  const Handle* array = call(null ? nullptr : reinterpret_cast<Value*>(bytes.get()), null ? in.size() : count);
  if (array) world.add(kind, array);
}

template <class Element, class Handle, Kind element_kind, Kind kind>
void create_list(World& world, Input& in, Handle* (*call)(const Element* const*, uint64_t)) {
  const uint64_t count = in.below(5);
  auto elements = std::make_unique<const Element*[]>(count);
  for (uint64_t i = 0; i < count; ++i) elements[i] = world.get<Element>(element_kind);
  const bool null = in.chance(16);
  const Handle* list = call(null ? nullptr : elements.get(), null ? in.size() : count);
  if (list) world.add(kind, list);
}

const Call kMetaCalls[] = {
    {"aclCreateTensor", create_tensor},
    {"aclInitTensor", init_tensor},
    {"aclDestroyTensor", [](World& w, Input&) { destroy<aclTensor, kTensor>(w, aclDestroyTensor); }},
    {"aclGetViewShape", [](World& w, Input&) { get_dims(w, aclGetViewShape); }},
    {"aclGetStorageShape", [](World& w, Input&) { get_dims(w, aclGetStorageShape); }},
    {"aclGetViewStrides", [](World& w, Input&) { get_dims(w, aclGetViewStrides); }},
    {"aclGetViewOffset",
     [](World& w, Input&) {
       int64_t offset;
       auto* tensor = w.get<aclTensor>(kTensor);
       w.status(aclGetViewOffset(tensor, static_cast<int64_t*>(w.maybe_null(&offset))));
     }},
    {"aclGetFormat",
     [](World& w, Input&) {
       aclFormat to;
       auto* tensor = w.get<aclTensor>(kTensor);
       w.status(aclGetFormat(tensor, static_cast<aclFormat*>(w.maybe_null(&to))));
     }},
    {"aclGetDataType",
     [](World& w, Input&) {
       aclDataType to;
       auto* tensor = w.get<aclTensor>(kTensor);
       w.status(aclGetDataType(tensor, static_cast<aclDataType*>(w.maybe_null(&to))));
     }},
    {"aclSetRawTensorAddr",
     [](World& w, Input&) {
       auto* tensor = w.get<aclTensor>(kTensor);
       w.status(aclSetRawTensorAddr(tensor, w.device_pointer()));
     }},
    {"aclGetRawTensorAddr",
     [](World& w, Input&) {
       void* address;
       auto* tensor = w.get<aclTensor>(kTensor);
       w.status(aclGetRawTensorAddr(tensor, static_cast<void**>(w.maybe_null(&address))));
     }},
    {"aclCreateScalar",
     [](World& w, Input& in) {
       const aclDataType type = dtype(in);
       const size_t size = aclDataTypeSize(type);
       auto value = std::make_unique<unsigned char[]>(size);
       std::generate_n(value.get(), size, [&] { return in.byte(); });
       const aclScalar* scalar = aclCreateScalar(w.maybe_null(value.get()), type);
       if (scalar) w.add(kScalar, scalar);
     }},
    {"aclDestroyScalar", [](World& w, Input&) { destroy<aclScalar, kScalar>(w, aclDestroyScalar); }},
    {"aclCreateIntArray",
     [](World& w, Input& in) { create_array<int64_t, aclIntArray, kInts>(w, in, aclCreateIntArray); }},
    {"aclCreateFloatArray",
     [](World& w, Input& in) { create_array<float, aclFloatArray, kFloats>(w, in, aclCreateFloatArray); }},
    {"aclCreateBoolArray",
     [](World& w, Input& in) { create_array<bool, aclBoolArray, kBools>(w, in, aclCreateBoolArray); }},
    {"aclDestroyIntArray", [](World& w, Input&) { destroy<aclIntArray, kInts>(w, aclDestroyIntArray); }},
    {"aclDestroyFloatArray", [](World& w, Input&) { destroy<aclFloatArray, kFloats>(w, aclDestroyFloatArray); }},
    {"aclDestroyBoolArray", [](World& w, Input&) { destroy<aclBoolArray, kBools>(w, aclDestroyBoolArray); }},
    {"aclGetIntArraySize", [](World& w, Input&) { get_size<aclIntArray, kInts>(w, aclGetIntArraySize); }},
    {"aclGetFloatArraySize", [](World& w, Input&) { get_size<aclFloatArray, kFloats>(w, aclGetFloatArraySize); }},
    {"aclGetBoolArraySize", [](World& w, Input&) { get_size<aclBoolArray, kBools>(w, aclGetBoolArraySize); }},
    {"aclCreateTensorList",
     [](World& w, Input& in) { create_list<aclTensor, aclTensorList, kTensor, kTensors>(w, in, aclCreateTensorList); }},
    {"aclCreateScalarList",
     [](World& w, Input& in) { create_list<aclScalar, aclScalarList, kScalar, kScalars>(w, in, aclCreateScalarList); }},
    {"aclDestroyTensorList", [](World& w, Input&) { destroy<aclTensorList, kTensors>(w, aclDestroyTensorList); }},
    {"aclDestroyScalarList", [](World& w, Input&) { destroy<aclScalarList, kScalars>(w, aclDestroyScalarList); }},
    {"aclGetTensorListSize", [](World& w, Input&) { get_size<aclTensorList, kTensors>(w, aclGetTensorListSize); }},
    {"aclGetScalarListSize", [](World& w, Input&) { get_size<aclScalarList, kScalars>(w, aclGetScalarListSize); }},
};

using SetTensor = aclnnStatus(aclOpExecutor*, const size_t, aclTensor*, void*);
using SetList = aclnnStatus(aclOpExecutor*, size_t, const size_t, aclTensorList*, void*);

size_t index(Input& in) { return in.chance(32) ? in.size() : in.below(10); }

void set_tensor(World& world, Input& in, SetTensor* call) {
  auto* executor = world.get<aclOpExecutor>(kExecutor);
  const size_t at = index(in);
  auto* tensor = world.get<aclTensor>(kTensor);
  world.status(call(executor, at, tensor, world.device_pointer()));
}

void set_list(World& world, Input& in, SetList* call) {
  auto* executor = world.get<aclOpExecutor>(kExecutor);
  const size_t at = index(in);
  const size_t element = index(in);
  auto* tensors = world.get<aclTensorList>(kTensors);
  FUZZ_CHECK(world.status(call(executor, at, element, tensors, world.device_pointer())) != 0);
}

const Call kExecutorCalls[] = {
    {"aclSetAclOpExecutorRepeatable",
     [](World& w, Input&) { w.status(aclSetAclOpExecutorRepeatable(w.get<aclOpExecutor>(kExecutor))); }},
    {"aclDestroyAclOpExecutor",
     [](World& w, Input&) {
       auto* executor = w.get<aclOpExecutor>(kExecutor);
       if (w.status(aclDestroyAclOpExecutor(executor)) == 0) w.drop(kExecutor, executor);
     }},
    {"aclSetInputTensorAddr", [](World& w, Input& in) { set_tensor(w, in, aclSetInputTensorAddr); }},
    {"aclSetOutputTensorAddr", [](World& w, Input& in) { set_tensor(w, in, aclSetOutputTensorAddr); }},
    {"aclSetTensorAddr", [](World& w, Input& in) { set_tensor(w, in, aclSetTensorAddr); }},
    {"AclSetInputTensorAddr", [](World& w, Input& in) { set_tensor(w, in, AclSetInputTensorAddr); }},
    {"AclSetOutputTensorAddr", [](World& w, Input& in) { set_tensor(w, in, AclSetOutputTensorAddr); }},
    {"AclSetTensorAddr", [](World& w, Input& in) { set_tensor(w, in, AclSetTensorAddr); }},
    {"aclSetDynamicInputTensorAddr", [](World& w, Input& in) { set_list(w, in, aclSetDynamicInputTensorAddr); }},
    {"aclSetDynamicOutputTensorAddr", [](World& w, Input& in) { set_list(w, in, aclSetDynamicOutputTensorAddr); }},
    {"aclSetDynamicTensorAddr", [](World& w, Input& in) { set_list(w, in, aclSetDynamicTensorAddr); }},
    {"AclSetDynamicInputTensorAddr", [](World& w, Input& in) { set_list(w, in, AclSetDynamicInputTensorAddr); }},
    {"AclSetDynamicOutputTensorAddr", [](World& w, Input& in) { set_list(w, in, AclSetDynamicOutputTensorAddr); }},
    {"AclSetDynamicTensorAddr", [](World& w, Input& in) { set_list(w, in, AclSetDynamicTensorAddr); }},
    {"aclDumpOpTensors",
     [](World& w, Input&) {
       aclTensor* tensors[2] = {w.get<aclTensor>(kTensor), w.get<aclTensor>(kTensor)};
       FUZZ_CHECK(w.status(aclDumpOpTensors("type", "name", tensors, 1, 1, w.handle(kStream))) != 0);
     }},
    {"aclnnInit", [](World& w, Input&) { w.status(aclnnInit(nullptr)); }},
    {"aclnnFinalize", [](World& w, Input&) { w.status(aclnnFinalize()); }},
    {"phase 1 of an operator", any_phase1},
    {"phase 2 of an operator", any_phase2},
    {"phase 1 of an operator", any_phase1},
    {"phase 2 of an operator", any_phase2},
};

}  // namespace

Calls meta_calls() { return {kMetaCalls, sizeof kMetaCalls / sizeof *kMetaCalls}; }
Calls executor_calls() { return {kExecutorCalls, sizeof kExecutorCalls / sizeof *kExecutorCalls}; }

}  // namespace groupnorm::fuzz
