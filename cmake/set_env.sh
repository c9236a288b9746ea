# Points this shell's builds and programs at the host prefix: . set_env.sh
# It must not be used in a shell that is set up for a real CANN: both have libraries of the same names.
_groupnorm_cann="$(cd "$(dirname "${BASH_SOURCE:-$0}")" && pwd)"
if [ ! -f "${_groupnorm_cann}/include/acl/acl.h" ]; then
  echo "set_env.sh: cannot tell where it is from this shell; accepted: bash, or ASCEND_HOME_PATH set by hand" >&2
  unset _groupnorm_cann
  return 1
fi
export ASCEND_HOME_PATH="${_groupnorm_cann}"
export ASCEND_TOOLKIT_HOME="${_groupnorm_cann}"
export ASCEND_OPP_PATH="${_groupnorm_cann}/opp"
export LD_LIBRARY_PATH="${_groupnorm_cann}/lib64:${_groupnorm_cann}/opp/vendors/custom_nn/op_api/lib${LD_LIBRARY_PATH:+:${LD_LIBRARY_PATH}}"
unset _groupnorm_cann
