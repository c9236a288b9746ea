#include "init.h"

#include <sys/stat.h>

#include <cstdio>
#include <cstring>
#include <mutex>

#include "error.h"
#include "event.h"
#include "fork.h"
#include "memory.h"
#include "stream.h"

namespace groupnorm::host {
namespace {

// The version of CANN whose interface this is.
constexpr int kMajor = 9;
constexpr int kMinor = 1;
constexpr int kPatch = 0;
constexpr int64_t kMaxConfig = 1 << 20;
constexpr int kPackages = ACL_PKG_NAME_DRIVER + 1;

struct Process {
  std::mutex mutex;
  uint64_t uses = 0;  // aclInit, also when repeated
  bool finalised = false;
  bool warned = false;
  std::string config;

  Process() {
    // What is asked with the lock held is made before: to make it takes the lock that a fork holds.
    describe_leaks();
    event_count();
    keep_over_forks(LockRank::kProcess, mutex);
  }
  static Process& get() {
    static Process* const process = new Process;
    return *process;
  }
};

[[maybe_unused]] const auto& g_process = Process::get();

std::string read_config(const char* path) {
  if (!path) return {};
  struct stat info;
  const bool regular = stat(path, &info) == 0 && S_ISREG(info.st_mode) && info.st_size <= kMaxConfig;
  std::FILE* const file = regular ? std::fopen(path, "rb") : nullptr;
  if (!file) {
    throw Fault{ACL_ERROR_INVALID_FILE,
                text("configPath is '", path, "'; accepted: a file that can be read, of up to ", kMaxConfig, " bytes")};
  }
  std::string content(static_cast<size_t>(info.st_size), '\0');
  content.resize(std::fread(&content[0], 1, content.size(), file));
  std::fclose(file);
  return content;
}

// Called with the lock held: what the program leaves behind.
void finalise(Process& process) {
  std::string left = describe_leaks();
  if (const size_t events = event_count()) left += text(left.empty() ? "" : " and ", events, " event(s)");
  if (!left.empty()) {
    warn_or_throw("aclFinalize", ACL_ERROR_RELATIVE_RESOURCE_NOT_CLEARED, "not freed: " + left);
  }
  process.uses = 0;
  process.finalised = true;
}

void check_initialised(const Process& process) {
  if (process.uses == 0) {
    throw Fault{ACL_ERROR_REPEAT_FINALIZE, process.finalised ? "ACL was finalised already" : "ACL was not initialised"};
  }
}

}  // namespace

void warn_unless_initialised(const char* function) {
  Process& process = Process::get();
  const std::lock_guard<std::mutex> lock(process.mutex);
  if (process.uses > 0 || std::exchange(process.warned, !strict())) return;
  warn_or_throw(function, ACL_ERROR_UNINITIALIZE, "called before aclInit");
}

}  // namespace groupnorm::host

using namespace groupnorm::host;

aclError aclInit(const char* configPath) {
  return entry(__func__, [&] {
    const std::string config = read_config(configPath);
    Process& process = Process::get();
    const std::lock_guard<std::mutex> lock(process.mutex);
    if (process.uses > 0) {
      if (configPath && config != process.config) {
        throw Fault{ACL_ERROR_INVALID_PARAM,
                    "ACL was initialised already, with another configuration; accepted: the same, or null"};
      }
      ++process.uses;
      throw Fault{ACL_ERROR_REPEAT_INITIALIZE,
                  "ACL was initialised already; the call only counts for aclFinalizeReference"};
    }
    process.config = config;
    process.uses = 1;
    process.finalised = false;
  });
}

aclError aclFinalize(void) {
  return entry(__func__, [&] {
    Process& process = Process::get();
    const std::lock_guard<std::mutex> lock(process.mutex);
    check_initialised(process);
    finalise(process);
  });
}

aclError aclFinalizeReference(uint64_t* refCount) {
  return entry(__func__, [&] {
    Process& process = Process::get();
    const std::lock_guard<std::mutex> lock(process.mutex);
    check_initialised(process);
    const uint64_t left = process.uses - 1;
    if (left > 0) {
      process.uses = left;
    } else {
      finalise(process);
    }
    if (refCount) *refCount = left;
  });
}

aclError aclrtGetVersion(int32_t* majorVersion, int32_t* minorVersion, int32_t* patchVersion) {
  return entry(__func__, [&] {
    require(majorVersion, "majorVersion");
    require(minorVersion, "minorVersion");
    require(patchVersion, "patchVersion");
    *majorVersion = ACL_MAJOR_VERSION;
    *minorVersion = ACL_MINOR_VERSION;
    *patchVersion = ACL_PATCH_VERSION;
  });
}

aclError aclsysGetCANNVersion(aclCANNPackageName name, aclCANNPackageVersion* version) {
  return entry(__func__, [&] {
    require(version, "version");
    const int package = name;  // any int of the caller's, whatever the enum's own values are
    if (package < 0 || package >= kPackages) {
      throw Fault{ACL_ERROR_INVALID_PARAM, text("name is ", package, "; accepted: a value of aclCANNPackageName")};
    }
    *version = {};
    std::snprintf(version->version, sizeof version->version, "%d.%d.%d", kMajor, kMinor, kPatch);
    std::snprintf(version->majorVersion, sizeof version->majorVersion, "%d", kMajor);
    std::snprintf(version->minorVersion, sizeof version->minorVersion, "%d", kMinor);
    std::snprintf(version->releaseVersion, sizeof version->releaseVersion, "%d", kPatch);
  });
}

aclError aclsysGetVersionStr(char* pkgName, char* versionStr) {
  return entry(__func__, [&] {
    require(pkgName, "pkgName");
    require(versionStr, "versionStr");
    std::snprintf(versionStr, ACL_PKG_VERSION_MAX_SIZE, "%d.%d.%d", kMajor, kMinor, kPatch);
  });
}

aclError aclsysGetVersionNum(char* pkgName, int32_t* versionNum) {
  return entry(__func__, [&] {
    require(pkgName, "pkgName");
    require(versionNum, "versionNum");
    *versionNum = kMajor * 10000000 + kMinor * 100000 + kPatch * 1000;
  });
}
