// One operator from its arguments to its results.
#pragma once

#include "operators.h"

namespace groupnorm::fuzz {

// Chooses operator, shapes, layouts, aliases and data of a call that has to succeed, and puts them into device memory.
const Operator& choose_case(Case& one, Input& in);
void upload(Case& one, aclrtStream stream, bool async);
// One tensor for each operand that is given.
void create_tensors(Case& one);
// Replaces the tensor of an operand by one on other terms.
void replace_tensor(Case& one, size_t operand, aclDataType type, const std::vector<int64_t>& dims,
                    const std::vector<int64_t>& strides, int64_t offset, aclFormat format, void* data);
std::vector<uint8_t> download(const Memory& memory);
// Nothing was written.
void check_unchanged(const Case& one);
// The outputs are what they have to be, and no other byte changed.
void check_results(const Case& one);

}  // namespace groupnorm::fuzz
