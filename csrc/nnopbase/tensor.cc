#include "tensor.h"

#include <algorithm>

namespace groupnorm::host {
namespace {

// No tensor has as many dimensions: a larger count is a mistake, and reading that far would be another.
constexpr uint64_t kMaxDims = 1024;

std::vector<int64_t> copy_dims(const char* name, const int64_t* dims, uint64_t count) {
  if (count > kMaxDims) {
    throw Fault{kParamInvalid, text(name, "Num is ", count, "; accepted: up to ", kMaxDims)};
  }
  if (count > 0) require(dims, name, kParamNullptr);
  return count == 0 ? std::vector<int64_t>() : std::vector<int64_t>(dims, dims + count);
}

std::vector<int64_t> contiguous_strides(const std::vector<int64_t>& dims) {
  std::vector<int64_t> strides(dims.size());
  int64_t stride = 1;
  for (size_t i = dims.size(); i-- > 0;) {
    strides[i] = stride;
    if (__builtin_mul_overflow(stride, dims[i], &stride)) stride = INT64_MAX;
  }
  return strides;
}

std::shared_ptr<const Tensor> make(const int64_t* view, uint64_t view_count, aclDataType dtype, const int64_t* strides,
                                   int64_t offset, aclFormat format, const int64_t* storage, uint64_t storage_count,
                                   void* data) {
  auto tensor = std::make_shared<Tensor>();
  tensor->view = copy_dims("viewDims", view, view_count);
  tensor->storage = copy_dims("storageDims", storage, storage_count);
  tensor->strides = strides ? copy_dims("stride", strides, view_count) : contiguous_strides(tensor->view);
  tensor->offset = offset;
  tensor->dtype = dtype;
  tensor->format = format;
  tensor->data = data;
  return tensor;
}

aclnnStatus get_dims(const char* function, const aclTensor* tensor, const char* name, int64_t** dims,
                     const char* count_name, uint64_t* count, std::vector<int64_t> Tensor::* member) {
  return entry(function, [&] {
    require(tensor, "tensor", kParamNullptr);
    require(dims, name, kParamNullptr);
    require(count, count_name, kParamNullptr);
    const std::shared_ptr<const Tensor> found = tensor_of("tensor", tensor);
    const std::vector<int64_t>& values = (*found).*member;
    auto copy = std::make_unique<int64_t[]>(values.size());
    std::copy(values.begin(), values.end(), copy.get());
    *dims = copy.release();
    *count = values.size();
  });
}

template <class T, class Value>
aclnnStatus get(const char* function, const aclTensor* tensor, const char* name, T* to, Value Tensor::* member) {
  return entry(function, [&] {
    require(tensor, "tensor", kParamNullptr);
    require(to, name, kParamNullptr);
    *to = (*tensor_of("tensor", tensor)).*member;
  });
}

}  // namespace

Handles<const Tensor>& tensors() { return handles_of<const Tensor>(Kind::kTensor); }
[[maybe_unused]] const auto& g_tensors = tensors();

std::shared_ptr<const Tensor> tensor_of(const char* name, const aclTensor* handle) {
  return find_or_throw(tensors(), name, handle, kParamInvalid);
}

void set_address(const char* name, aclTensor* handle, void* address) {
  auto changed = std::make_shared<Tensor>(*tensor_of(name, handle));
  changed->data = address;
  tensors().replace(handle, std::move(changed));
}

}  // namespace groupnorm::host

using namespace groupnorm::host;

aclTensor* aclCreateTensor(const int64_t* viewDims, uint64_t viewDimsNum, aclDataType dataType, const int64_t* stride,
                           int64_t offset, aclFormat format, const int64_t* storageDims, uint64_t storageDimsNum,
                           void* tensorData) {
  return entry_handle(__func__, [&] {
    return static_cast<aclTensor*>(tensors().add(
        make(viewDims, viewDimsNum, dataType, stride, offset, format, storageDims, storageDimsNum, tensorData)));
  });
}

aclnnStatus aclInitTensor(aclTensor* tensor, const int64_t* viewDims, uint64_t viewDimsNum, aclDataType dataType,
                          const int64_t* stride, int64_t offset, aclFormat format, const int64_t* storageDims,
                          uint64_t storageDimsNum, void* tensorDataAddr) {
  return entry(__func__, [&] {
    require(tensor, "tensor", kParamNullptr);
    auto made =
        make(viewDims, viewDimsNum, dataType, stride, offset, format, storageDims, storageDimsNum, tensorDataAddr);
    if (!tensors().replace(tensor, std::move(made))) throw Fault{kParamInvalid, tensors().refusal("tensor", tensor)};
  });
}

aclnnStatus aclDestroyTensor(const aclTensor* tensor) {
  return entry(__func__, [&] {
    if (tensor && !tensors().take(tensor)) throw Fault{kParamInvalid, tensors().refusal("tensor", tensor)};
  });
}

aclnnStatus aclGetViewShape(const aclTensor* tensor, int64_t** viewDims, uint64_t* viewDimsNum) {
  return get_dims(__func__, tensor, "viewDims", viewDims, "viewDimsNum", viewDimsNum, &Tensor::view);
}

aclnnStatus aclGetStorageShape(const aclTensor* tensor, int64_t** storageDims, uint64_t* storageDimsNum) {
  return get_dims(__func__, tensor, "storageDims", storageDims, "storageDimsNum", storageDimsNum, &Tensor::storage);
}

aclnnStatus aclGetViewStrides(const aclTensor* tensor, int64_t** stridesValue, uint64_t* stridesNum) {
  return get_dims(__func__, tensor, "stridesValue", stridesValue, "stridesNum", stridesNum, &Tensor::strides);
}

aclnnStatus aclGetViewOffset(const aclTensor* tensor, int64_t* offset) {
  return get(__func__, tensor, "offset", offset, &Tensor::offset);
}

aclnnStatus aclGetFormat(const aclTensor* tensor, aclFormat* format) {
  return get(__func__, tensor, "format", format, &Tensor::format);
}

aclnnStatus aclGetDataType(const aclTensor* tensor, aclDataType* dataType) {
  return get(__func__, tensor, "dataType", dataType, &Tensor::dtype);
}

aclnnStatus aclSetRawTensorAddr(aclTensor* tensor, void* addr) {
  return entry(__func__, [&] {
    require(tensor, "tensor", kParamNullptr);
    require(addr, "addr", kParamNullptr);
    set_address("tensor", tensor, addr);
  });
}

aclnnStatus aclGetRawTensorAddr(const aclTensor* tensor, void** addr) {
  return get(__func__, tensor, "addr", addr, &Tensor::data);
}
