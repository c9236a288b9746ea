# The libraries under the vendor's names, split as the vendor splits them, and the tree they are installed in.
set(prefix groupnorm/cann)
set(vendor ${prefix}/opp/vendors/custom_nn/op_api)

function(groupnorm_host_library name)
  add_library(${name} SHARED ${ARGN})
  target_include_directories(${name} PRIVATE include csrc)
  target_compile_definitions(${name} PRIVATE FUNC_VISIBILITY)
  target_compile_options(${name} PRIVATE -Wall -Wextra)
  if(GROUPNORM_SANITIZE MATCHES "undefined")
    # An enum of the interface is an int of the caller's: any value may come.
    target_compile_options(${name} PRIVATE -fno-sanitize=enum)
  endif()
  # A function of ours calls ours, whatever else the process has loaded under the same name.
  target_link_options(${name} PRIVATE -Wl,--no-undefined -Wl,--no-as-needed -Wl,-z,nodelete -Wl,-Bsymbolic-functions -Wl,--version-script=${PROJECT_SOURCE_DIR}/csrc/host.map)
  set_target_properties(${name} PROPERTIES CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON
    LINK_DEPENDS ${PROJECT_SOURCE_DIR}/csrc/host.map INSTALL_RPATH "$ORIGIN"
    LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/cann/lib64)
  target_link_libraries(${name} PRIVATE Threads::Threads)
endfunction()

set(GROUPNORM_ASCENDCL_SOURCES
  csrc/acl/callback.cc csrc/acl/context.cc csrc/acl/copy.cc csrc/acl/data.cc csrc/acl/error.cc csrc/acl/event.cc csrc/acl/fork.cc
  csrc/acl/host.cc csrc/acl/init.cc csrc/acl/host_memory.cc csrc/acl/memory.cc csrc/acl/stream.cc csrc/acl/unsupported.cc)
set(GROUPNORM_NNOPBASE_SOURCES csrc/nnopbase/collections.cc csrc/nnopbase/executor.cc csrc/nnopbase/tensor.cc)
# Each operator library has the core inside, as the vendor's have their kernels, and these beside it.
set(GROUPNORM_ACLNN_SOURCES csrc/aclnn/check.cc csrc/aclnn/operation.cc)
set(GROUPNORM_CUST_OPAPI_SOURCES csrc/aclnn/group_normalization_grad.cc)
set(GROUPNORM_OPAPI_NN_SOURCES
  csrc/aclnn/forward.cc csrc/aclnn/group_norm.cc csrc/aclnn/group_norm_backward.cc
  csrc/aclnn/group_norm_silu.cc csrc/aclnn/group_norm_swish.cc)

groupnorm_host_library(ascendcl ${GROUPNORM_ASCENDCL_SOURCES})
groupnorm_host_library(nnopbase ${GROUPNORM_NNOPBASE_SOURCES})
target_link_libraries(nnopbase PUBLIC ascendcl)

groupnorm_host_library(cust_opapi ${GROUPNORM_ACLNN_SOURCES} ${GROUPNORM_CUST_OPAPI_SOURCES})
groupnorm_host_library(opapi_nn ${GROUPNORM_ACLNN_SOURCES} ${GROUPNORM_OPAPI_NN_SOURCES})
foreach(library cust_opapi opapi_nn)
  target_link_libraries(${library} PRIVATE nnopbase groupnorm_core)
endforeach()
set_target_properties(cust_opapi PROPERTIES INSTALL_RPATH "$ORIGIN;$ORIGIN/../../../../../lib64")

# Other names that link lines use. A wheel holds no links, and a copy would be a second runtime beside the first; so
# each is a filter: the linker finds the names in it, the loader takes what they stand for from the library itself.
function(groupnorm_host_alias name library)
  set(source ${PROJECT_BINARY_DIR}/alias/${name}.c)
  add_custom_command(OUTPUT ${source}
    COMMAND ${CMAKE_COMMAND} -DNM=${CMAKE_NM} -DLIBRARY=$<TARGET_FILE:${library}> -DOUTPUT=${source}
      -P ${PROJECT_SOURCE_DIR}/cmake/alias.cmake
    DEPENDS ${library} ${PROJECT_SOURCE_DIR}/cmake/alias.cmake VERBATIM)
  add_library(${name} SHARED ${source})
  target_link_options(${name} PRIVATE -Wl,--filter=lib${library}.so)
  target_link_libraries(${name} PRIVATE ${library})
  set_target_properties(${name} PROPERTIES INSTALL_RPATH "$ORIGIN" LINKER_LANGUAGE C
    LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/cann/lib64)
endfunction()

enable_language(C)
groupnorm_host_alias(acl_rt ascendcl)
groupnorm_host_alias(opapi opapi_nn)
# There is no operator of the math library here, but link lines name it.
file(WRITE ${PROJECT_BINARY_DIR}/alias/opapi_math.c "extern int groupnorm_host_has_no_math_operators;\n")
add_library(opapi_math SHARED ${PROJECT_BINARY_DIR}/alias/opapi_math.c)
set_target_properties(opapi_math PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/cann/lib64)

install(TARGETS ascendcl nnopbase opapi_nn acl_rt opapi opapi_math LIBRARY DESTINATION ${prefix}/lib64)
install(TARGETS cust_opapi LIBRARY DESTINATION ${vendor}/lib)
install(DIRECTORY include/acl include/aclnn include/aclnnop DESTINATION ${prefix}/include)
install(FILES include/aclnn_group_normalization_grad.h DESTINATION ${vendor}/include)
install(FILES cmake/set_env.sh DESTINATION ${prefix})
