#include "check.h"

#include <cmath>
#include <cstring>
#include <utility>

namespace groupnorm::host {
namespace {

// More than any address space has room for. Below it no product of a few sizes overflows.
constexpr int64_t kMaxElements = int64_t{1} << 47;

const char* dtype_name(int value) {
  static constexpr std::pair<int, const char*> names[] = {
      {ACL_FLOAT, "ACL_FLOAT"},   {ACL_FLOAT16, "ACL_FLOAT16"},     {ACL_INT8, "ACL_INT8"},
      {ACL_INT32, "ACL_INT32"},   {ACL_UINT8, "ACL_UINT8"},         {ACL_INT16, "ACL_INT16"},
      {ACL_UINT16, "ACL_UINT16"}, {ACL_UINT32, "ACL_UINT32"},       {ACL_INT64, "ACL_INT64"},
      {ACL_UINT64, "ACL_UINT64"}, {ACL_DOUBLE, "ACL_DOUBLE"},       {ACL_BOOL, "ACL_BOOL"},
      {ACL_STRING, "ACL_STRING"}, {ACL_COMPLEX64, "ACL_COMPLEX64"}, {ACL_COMPLEX128, "ACL_COMPLEX128"},
      {ACL_BF16, "ACL_BF16"}};
  for (const auto& [known, name] : names) {
    if (known == value) return name;
  }
  return "aclDataType";
}

std::string dtype_text(aclDataType dtype) { return text(dtype_name(dtype), " (", static_cast<int>(dtype), ")"); }

const char* format_name(int value) {
  static constexpr std::pair<int, const char*> names[] = {{ACL_FORMAT_ND, "ACL_FORMAT_ND"},
                                                          {ACL_FORMAT_NCHW, "ACL_FORMAT_NCHW"},
                                                          {ACL_FORMAT_NHWC, "ACL_FORMAT_NHWC"},
                                                          {ACL_FORMAT_NCDHW, "ACL_FORMAT_NCDHW"},
                                                          {ACL_FORMAT_NCL, "ACL_FORMAT_NCL"},
                                                          {ACL_FORMAT_NC1HWC0, "ACL_FORMAT_NC1HWC0"},
                                                          {ACL_FORMAT_FRACTAL_Z, "ACL_FORMAT_FRACTAL_Z"},
                                                          {ACL_FORMAT_HWCN, "ACL_FORMAT_HWCN"},
                                                          {ACL_FORMAT_NDHWC, "ACL_FORMAT_NDHWC"},
                                                          {ACL_FORMAT_FRACTAL_NZ, "ACL_FORMAT_FRACTAL_NZ"},
                                                          {ACL_FORMAT_NDC1HWC0, "ACL_FORMAT_NDC1HWC0"},
                                                          {ACL_FORMAT_NC, "ACL_FORMAT_NC"}};
  for (const auto& [known, name] : names) {
    if (known == value) return name;
  }
  return "aclFormat";
}

Argument argument(const char* name, const aclTensor* handle, bool output) {
  require(handle, name, kParamNullptr);
  return {name, meta().tensor(name, handle), output};
}

[[noreturn]] void refuse(const std::string& message) { throw Fault{kParamInvalid, message}; }

}  // namespace

Argument input(const char* name, const aclTensor* handle) { return argument(name, handle, false); }
Argument output(const char* name, const aclTensor* handle) { return argument(name, handle, true); }
Argument optional_input(const char* name, const aclTensor* handle) {
  return handle ? argument(name, handle, false) : Argument{name, nullptr, false};
}

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string all = "[";
  for (size_t i = 0; i < shape.size(); ++i) all += text(i == 0 ? "" : ", ", shape[i]);
  return all + "]";
}

int64_t elements(const Argument& argument) {
  int64_t count = 1;
  bool overflow = false;
  bool empty = false;
  for (const int64_t dim : argument.shape()) {
    if (dim < 0) {
      refuse(text(argument.name, " has shape ", shape_text(argument.shape()), "; accepted: dimensions of 0 or more"));
    }
    empty = empty || dim == 0;
    overflow = __builtin_mul_overflow(count, dim == 0 ? 1 : dim, &count) || overflow;
  }
  if (overflow || count > kMaxElements) {
    refuse(text(argument.name, " has shape ", shape_text(argument.shape()),
                "; accepted: as many elements as memory holds"));
  }
  return empty ? 0 : count;
}

DType dtype_of(const Argument& argument) {
  switch (argument.tensor->dtype) {
    case ACL_FLOAT:
      return DType::kFloat32;
    case ACL_FLOAT16:
      return DType::kFloat16;
    case ACL_BF16:
      return DType::kBFloat16;
    default:
      refuse(text(argument.name, " has dtype ", dtype_text(argument.tensor->dtype),
                  "; accepted: ACL_FLOAT, ACL_FLOAT16 or ACL_BF16"));
  }
}

void check_dtype(const Argument& argument, const Argument& like) {
  if (!argument) return;
  dtype_of(argument);
  if (argument.tensor->dtype != like.tensor->dtype) {
    refuse(text(argument.name, " has dtype ", dtype_text(argument.tensor->dtype), "; accepted: that of ", like.name,
                ", ", dtype_text(like.tensor->dtype)));
  }
}

void check_dtype_or_float(const Argument& argument, const Argument& like) {
  if (!argument || argument.tensor->dtype == ACL_FLOAT) return;
  dtype_of(argument);
  if (argument.tensor->dtype != like.tensor->dtype) {
    refuse(text(argument.name, " has dtype ", dtype_text(argument.tensor->dtype), "; accepted: that of ", like.name,
                ", ", dtype_text(like.tensor->dtype), ", or ACL_FLOAT"));
  }
}

void check_rank(const Argument& argument, size_t least, size_t most) {
  const size_t rank = argument.shape().size();
  if (rank < least || rank > most) {
    refuse(text(argument.name, " has ", rank, " dimensions; accepted: ", least, " to ", most));
  }
}

void check_shape(const Argument& argument, const std::vector<int64_t>& shape, const std::string& meaning) {
  if (argument && argument.shape() != shape) {
    refuse(text(argument.name, " has shape ", shape_text(argument.shape()), "; accepted: ", shape_text(shape), ", ",
                meaning));
  }
}

void check_elements(const Argument& argument, int64_t count, const std::string& meaning) {
  if (argument && elements(argument) != count) {
    refuse(text(argument.name, " has ", elements(argument), " elements, shape ", shape_text(argument.shape()),
                "; accepted: ", count, ", ", meaning));
  }
}

void check_format(const Argument& argument, std::initializer_list<aclFormat> accepted) {
  if (!argument) return;
  std::string names;
  for (const aclFormat format : accepted) {
    if (argument.tensor->format == format) return;
    names += text(names.empty() ? "" : ", ", format_name(format));
  }
  const int format = argument.tensor->format;
  refuse(text(argument.name, " has format ", format_name(format), " (", format, "); accepted: ", names));
}

bool is_contiguous(const Tensor& tensor) {
  int64_t expected = 1;
  for (const int64_t dim : tensor.view) {
    if (dim == 0) return true;
  }
  for (size_t i = tensor.view.size(); i-- > 0;) {
    if (tensor.view[i] == 1) continue;
    if (tensor.strides[i] != expected) return false;
    expected *= tensor.view[i];
  }
  return true;
}

void check_contiguous(const Argument& argument) {
  if (!is_contiguous(*argument.tensor)) {
    refuse(text(argument.name, " has shape ", shape_text(argument.shape()), " and strides ",
                shape_text(argument.tensor->strides), "; accepted: a contiguous tensor"));
  }
}

void check_not_empty(const Argument& argument) {
  if (elements(argument) == 0) {
    refuse(text(argument.name, " has shape ", shape_text(argument.shape()), "; accepted: a tensor that is not empty"));
  }
}

void check_at_least(const char* name, int64_t value, int64_t least) {
  if (value < least) refuse(text(name, " is ", value, "; accepted: ", least, " or more"));
}

void check_group(const char* name, int64_t group, int64_t channels) {
  check_at_least(name, group, 1);
  if (channels % group != 0) {
    refuse(text(name, " is ", group, "; accepted: a divisor of the ", channels, " channels"));
  }
}

void check_eps(double eps) {
  if (!(eps > 0) || !std::isfinite(eps)) refuse(text("eps is ", eps, "; accepted: a finite number above 0"));
}

void check_data_format(const char* format) {
  if (format && *format && std::strcmp(format, "NCHW") != 0) {
    refuse(text("dataFormatOptional is '", std::string(format, strnlen(format, 32)), "'; accepted: null or \"NCHW\""));
  }
}

}  // namespace groupnorm::host
