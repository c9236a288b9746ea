# The autograd function of groupnorm.torch in C++, where the Python that this is built for has a PyTorch whose headers
# it is written for. A module is for one PyTorch, and named after it: another finds none, and does with Python.
set(GROUPNORM_TORCH_SINCE 2.13)

execute_process(
  COMMAND ${Python_EXECUTABLE} -c
    "import re, torch; from torch.utils.cpp_extension import include_paths, library_paths; print(torch.__version__.split('+')[0], re.sub(r'\\W', '_', torch.__version__), ':'.join(include_paths()), ':'.join(library_paths()), sep='\\n')"
  OUTPUT_VARIABLE found RESULT_VARIABLE failed ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
if(failed)
  message(STATUS "groupnorm.torch: no PyTorch to build for; its autograd function is the one in Python")
  return()
endif()
string(REPLACE "\n" ";" found "${found}")
list(GET found 0 version)
list(GET found 1 suffix)
list(GET found 2 include)
list(GET found 3 lib)
string(REPLACE ":" ";" include "${include}")
string(REPLACE ":" ";" lib "${lib}")
if(version VERSION_LESS GROUPNORM_TORCH_SINCE OR NOT "cxx_std_20" IN_LIST CMAKE_CXX_COMPILE_FEATURES)
  message(STATUS "groupnorm.torch: PyTorch ${version} with this compiler; its autograd function is the one in Python")
  return()
endif()

set(module _function_${suffix})
nanobind_add_module(${module} NB_STATIC csrc/torch/function.cc)
target_compile_features(${module} PRIVATE cxx_std_20)
target_compile_definitions(${module} PRIVATE GROUPNORM_TORCH_MODULE=${module})
target_include_directories(${module} SYSTEM PRIVATE ${include})
target_link_directories(${module} PRIVATE ${lib})
# What is imported before it has them loaded already.
target_link_libraries(${module} PRIVATE torch_python torch_cpu c10)
install(TARGETS ${module} LIBRARY DESTINATION groupnorm/torch)
