// The arguments of a phase 1, looked at in the order of the operator's document. Every check throws a Fault that
// names the argument, what came and what is accepted: 161001 for a null pointer, 161002 for the rest.
#pragma once

#include <initializer_list>

#include "core/dtype.h"
#include "nnopbase/meta.h"

namespace groupnorm::host {

// A tensor that was given for a parameter; none for a null that is allowed.
struct Argument {
  const char* name = "";
  std::shared_ptr<const Tensor> tensor;
  bool output = false;

  explicit operator bool() const { return tensor != nullptr; }
  const std::vector<int64_t>& shape() const { return tensor->view; }
};

Argument input(const char* name, const aclTensor* handle);
Argument output(const char* name, const aclTensor* handle);
// None when the handle is null.
Argument optional_input(const char* name, const aclTensor* handle);

// "[2, 4, 128]"
std::string shape_text(const std::vector<int64_t>& shape);

// Elements of the view; throws for negative dimensions and for more than any memory holds.
int64_t elements(const Argument& argument);

// float32, float16 or bfloat16.
DType dtype_of(const Argument& argument);
// The dtype that `like` has; a tensor that was not given has any.
void check_dtype(const Argument& argument, const Argument& like);
// That, or float32.
void check_dtype_or_float(const Argument& argument, const Argument& like);

void check_rank(const Argument& argument, size_t least, size_t most);
void check_shape(const Argument& argument, const std::vector<int64_t>& shape, const std::string& meaning);
void check_elements(const Argument& argument, int64_t count, const std::string& meaning);
void check_format(const Argument& argument, std::initializer_list<aclFormat> accepted);
void check_contiguous(const Argument& argument);
void check_not_empty(const Argument& argument);

// group > 0 that divides the channels.
void check_group(const char* name, int64_t group, int64_t channels);
void check_at_least(const char* name, int64_t value, int64_t least);
void check_eps(double eps);
void check_data_format(const char* format);

bool is_contiguous(const Tensor& tensor);

}  // namespace groupnorm::host
