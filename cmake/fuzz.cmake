# The fuzz target of tests/fuzz over the sources of the host libraries, in one program: with libFuzzer where
# GROUPNORM_FUZZ says so (clang; `make fuzz` has the flags), and one that replays files, for any compiler.
add_library(groupnorm_fuzz_target OBJECT
  tests/fuzz/acl_fuzz.cc tests/fuzz/flow.cc tests/fuzz/flow_case.cc tests/fuzz/memory_calls.cc tests/fuzz/meta_calls.cc
  tests/fuzz/operators.cc tests/fuzz/reference.cc tests/fuzz/runtime_calls.cc tests/fuzz/stream_calls.cc
  tests/fuzz/world.cc
  ${GROUPNORM_ASCENDCL_SOURCES} ${GROUPNORM_NNOPBASE_SOURCES} ${GROUPNORM_ACLNN_SOURCES}
  ${GROUPNORM_CUST_OPAPI_SOURCES} ${GROUPNORM_OPAPI_NN_SOURCES})
target_include_directories(groupnorm_fuzz_target PRIVATE include csrc)
target_compile_options(groupnorm_fuzz_target PRIVATE -Wall -Wextra)
if(GROUPNORM_SANITIZE MATCHES "undefined")
  # An enum of the interface is an int of the caller's: any value may come.
  target_compile_options(groupnorm_fuzz_target PRIVATE -fno-sanitize=enum)
endif()

add_executable(acl_replay tests/fuzz/replay.cc)
target_link_libraries(acl_replay PRIVATE groupnorm_fuzz_target groupnorm_core)

if(GROUPNORM_FUZZ)
  # What is not the interface is not worth the time that following its branches takes: arithmetic and its checks.
  set_property(SOURCE tests/fuzz/flow_case.cc tests/fuzz/reference.cc tests/fuzz/world.cc
    csrc/core/isa/scalar.cc csrc/core/isa/avx2.cc csrc/core/isa/avx512.cc csrc/core/isa/neon.cc
    APPEND PROPERTY COMPILE_OPTIONS -fno-sanitize=fuzzer-no-link)
  add_executable(acl_fuzz)
  target_link_libraries(acl_fuzz PRIVATE groupnorm_fuzz_target groupnorm_core)
  target_link_options(acl_fuzz PRIVATE -fsanitize=fuzzer)
  set_target_properties(acl_fuzz PROPERTIES LINKER_LANGUAGE CXX)
endif()
