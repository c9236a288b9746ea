#pragma once

#include "acl/handles.h"
#include "meta.h"

namespace groupnorm::host {

Handles<const Tensor>& tensors();
std::shared_ptr<const Tensor> tensor_of(const char* name, const aclTensor* handle);
std::vector<bool> bools_of(const char* name, const aclBoolArray* handle);
// The element of a list.
aclTensor* list_element(const char* name, const aclTensorList* handle, size_t index);
// The same tensor on other memory.
void set_address(const char* name, aclTensor* handle, void* address);

}  // namespace groupnorm::host
