#include "error.h"

#include "thread_state.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace groupnorm::host {
namespace {

struct Recent {
  std::string message;  // what aclGetRecentErrMsg will give
  std::string given;    // what it gave last
  bool pending = false;
  int code = ACL_SUCCESS;
};

Recent& recent() { return thread_state<Recent>(); }
[[maybe_unused]] const auto& g_recent = recent();

constexpr int kMaxWarnings = 64;

}  // namespace

int report(const char* function, const Fault& fault) {
  Recent& last = recent();
  const bool parameter = fault.code == 161001 || fault.code == 161002;
  last.message = text("[PID:", getpid(), "] ", parameter ? "AclNN_Parameter_Error(EZ1001): " : "", function, ": ",
                      fault.message, " [", fault.code, "]");
  last.pending = true;
  last.code = fault.code;
  return fault.code;
}

void warn(const char* function, const std::string& message) {
  static std::atomic<int> count{0};
  const int number = ++count;
  if (number > kMaxWarnings) return;
  std::fprintf(stderr, "groupnorm: warning: %s: %s\n%s", function, message.c_str(),
               number == kMaxWarnings ? "groupnorm: warning: no further warnings will be shown\n" : "");
}

bool strict() {
  const char* value = std::getenv("GROUPNORM_ACL_STRICT");
  return value && *value && std::strcmp(value, "0") != 0;
}

void warn_or_throw(const char* function, int strict_code, const std::string& message) {
  if (strict()) throw Fault{strict_code, message};
  warn(function, message);
}

}  // namespace groupnorm::host

using namespace groupnorm::host;

namespace {

void check_level(int level) {
  if (level != ACL_RT_THREAD_LEVEL) {
    throw Fault{ACL_ERROR_INVALID_PARAM, text("level is ", level, "; accepted: ACL_RT_THREAD_LEVEL (0)")};
  }
}

}  // namespace

const char* aclGetRecentErrMsg(void) {
  auto& last = recent();
  if (!last.pending) return nullptr;
  last.given = std::move(last.message);
  last.pending = false;
  return last.given.c_str();
}

aclError aclrtPeekAtLastError(aclrtLastErrLevel level) {
  const int checked = entry(__func__, [&] { check_level(level); });
  return checked == ACL_SUCCESS ? recent().code : checked;
}

aclError aclrtGetLastError(aclrtLastErrLevel level) {
  const int checked = entry(__func__, [&] { check_level(level); });
  return checked == ACL_SUCCESS ? std::exchange(recent().code, ACL_SUCCESS) : checked;
}
