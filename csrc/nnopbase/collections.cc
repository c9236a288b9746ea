// Scalars, arrays and lists.
#include <cstring>

#include "tensor.h"

namespace groupnorm::host {
namespace {

struct Scalar {
  unsigned char bytes[16];
  aclDataType dtype;
};

// What a list holds are handles, and it destroys them with itself.
template <class Element>
struct List {
  std::vector<const Element*> elements;
};

Handles<Scalar>& scalars() { return handles_of<Scalar>(Kind::kScalar); }
Handles<std::vector<int64_t>>& int_arrays() { return handles_of<std::vector<int64_t>>(Kind::kIntArray); }
Handles<std::vector<float>>& float_arrays() { return handles_of<std::vector<float>>(Kind::kFloatArray); }
Handles<std::vector<bool>>& bool_arrays() { return handles_of<std::vector<bool>>(Kind::kBoolArray); }
Handles<List<aclTensor>>& tensor_lists() { return handles_of<List<aclTensor>>(Kind::kTensorList); }
Handles<List<aclScalar>>& scalar_lists() { return handles_of<List<aclScalar>>(Kind::kScalarList); }
[[maybe_unused]] const auto& g_scalars = scalars();
[[maybe_unused]] const auto& g_int_arrays = int_arrays();
[[maybe_unused]] const auto& g_float_arrays = float_arrays();
[[maybe_unused]] const auto& g_bool_arrays = bool_arrays();
[[maybe_unused]] const auto& g_tensor_lists = tensor_lists();
[[maybe_unused]] const auto& g_scalar_lists = scalar_lists();

template <class Handle, class Value, class T>
Handle* create_array(const char* function, const Value* value, uint64_t size, Handles<std::vector<T>>& (*table)()) {
  return entry_handle(function, [&] {
    if (size > 0) require(value, "value", kParamNullptr);
    auto values =
        size == 0 ? std::make_shared<std::vector<T>>() : std::make_shared<std::vector<T>>(value, value + size);
    return static_cast<Handle*>(table().add(std::move(values)));
  });
}

template <class T>
aclnnStatus destroy(const char* function, const char* name, const void* handle, Handles<T>& (*table)()) {
  return entry(function, [&] {
    if (handle && !table().take(handle)) throw Fault{kParamInvalid, table().refusal(name, handle)};
  });
}

template <class T, class Size>
aclnnStatus get_size(const char* function, const char* name, const void* handle, uint64_t* size, Handles<T>& (*table)(),
                     Size&& size_of) {
  return entry(function, [&] {
    require(handle, name, kParamNullptr);
    require(size, "size", kParamNullptr);
    *size = size_of(*find_or_throw(table(), name, handle, kParamInvalid));
  });
}

template <class Handle, class Element, class Known>
Handle* create_list(const char* function, const Element* const* value, uint64_t size,
                    Handles<List<Element>>& (*table)(), Known&& check) {
  return entry_handle(function, [&] {
    if (size > 0) require(value, "value", kParamNullptr);
    auto list = std::make_shared<List<Element>>();
    for (uint64_t i = 0; i < size; ++i) {
      check(text("value[", i, "]"), value[i]);
      list->elements.push_back(value[i]);
    }
    return static_cast<Handle*>(table().add(std::move(list)));
  });
}

}  // namespace

std::vector<bool> bools_of(const char* name, const aclBoolArray* handle) {
  return *find_or_throw(bool_arrays(), name, handle, kParamInvalid);
}

aclTensor* list_element(const char* name, const aclTensorList* handle, size_t index) {
  const auto list = find_or_throw(tensor_lists(), name, handle, kParamInvalid);
  if (index >= list->elements.size()) {
    throw Fault{kParamInvalid,
                text("relativeIndex is ", index, "; accepted: below ", list->elements.size(), ", the list's size")};
  }
  return const_cast<aclTensor*>(list->elements[index]);
}

}  // namespace groupnorm::host

using namespace groupnorm::host;

aclScalar* aclCreateScalar(void* value, aclDataType dataType) {
  return entry_handle(__func__, [&] {
    require(value, "value", kParamNullptr);
    const size_t size = groupnorm_host()->data_type_size(dataType);
    auto scalar = std::make_shared<Scalar>();
    scalar->dtype = dataType;
    std::memcpy(scalar->bytes, value, size);
    return static_cast<aclScalar*>(scalars().add(std::move(scalar)));
  });
}

aclIntArray* aclCreateIntArray(const int64_t* value, uint64_t size) {
  return create_array<aclIntArray>(__func__, value, size, int_arrays);
}

aclFloatArray* aclCreateFloatArray(const float* value, uint64_t size) {
  return create_array<aclFloatArray>(__func__, value, size, float_arrays);
}

aclBoolArray* aclCreateBoolArray(const bool* value, uint64_t size) {
  // Bytes of any value, as other languages may have them: what is not 0 is true.
  return create_array<aclBoolArray>(__func__, reinterpret_cast<const unsigned char*>(value), size, bool_arrays);
}

aclTensorList* aclCreateTensorList(const aclTensor* const* value, uint64_t size) {
  return create_list<aclTensorList>(__func__, value, size, tensor_lists,
                                    [](const std::string& name, const aclTensor* element) {
                                      require(element, name.c_str(), kParamNullptr);
                                      tensor_of(name.c_str(), element);
                                    });
}

aclScalarList* aclCreateScalarList(const aclScalar* const* value, uint64_t size) {
  return create_list<aclScalarList>(__func__, value, size, scalar_lists,
                                    [](const std::string& name, const aclScalar* element) {
                                      require(element, name.c_str(), kParamNullptr);
                                      find_or_throw(scalars(), name.c_str(), element, kParamInvalid);
                                    });
}

aclnnStatus aclDestroyScalar(const aclScalar* scalar) { return destroy(__func__, "scalar", scalar, scalars); }
aclnnStatus aclDestroyIntArray(const aclIntArray* array) { return destroy(__func__, "array", array, int_arrays); }
aclnnStatus aclDestroyFloatArray(const aclFloatArray* array) { return destroy(__func__, "array", array, float_arrays); }
aclnnStatus aclDestroyBoolArray(const aclBoolArray* array) { return destroy(__func__, "array", array, bool_arrays); }

aclnnStatus aclDestroyTensorList(const aclTensorList* array) {
  return entry(__func__, [&] {
    if (!array) return;
    const auto list = tensor_lists().take(array);
    if (!list) throw Fault{kParamInvalid, tensor_lists().refusal("array", array)};
    for (const aclTensor* element : list->elements) tensors().take(element);
  });
}

aclnnStatus aclDestroyScalarList(const aclScalarList* array) {
  return entry(__func__, [&] {
    if (!array) return;
    const auto list = scalar_lists().take(array);
    if (!list) throw Fault{kParamInvalid, scalar_lists().refusal("array", array)};
    for (const aclScalar* element : list->elements) scalars().take(element);
  });
}

aclnnStatus aclGetIntArraySize(const aclIntArray* array, uint64_t* size) {
  return get_size(__func__, "array", array, size, int_arrays, [](const auto& values) { return values.size(); });
}

aclnnStatus aclGetFloatArraySize(const aclFloatArray* array, uint64_t* size) {
  return get_size(__func__, "array", array, size, float_arrays, [](const auto& values) { return values.size(); });
}

aclnnStatus aclGetBoolArraySize(const aclBoolArray* array, uint64_t* size) {
  return get_size(__func__, "array", array, size, bool_arrays, [](const auto& values) { return values.size(); });
}

aclnnStatus aclGetTensorListSize(const aclTensorList* tensorList, uint64_t* size) {
  return get_size(__func__, "tensorList", tensorList, size, tensor_lists,
                  [](const auto& list) { return list.elements.size(); });
}

aclnnStatus aclGetScalarListSize(const aclScalarList* scalarList, uint64_t* size) {
  return get_size(__func__, "scalarList", scalarList, size, scalar_lists,
                  [](const auto& list) { return list.elements.size(); });
}
