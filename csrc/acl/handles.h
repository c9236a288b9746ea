// Handles that are numbers: looked up, never followed, and never given out twice. So any value may be passed for
// any handle, and one that was destroyed stays destroyed.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "fork.h"
#include "host.h"

namespace groupnorm::host {

enum class Kind : uint8_t {
  kContext = 1,
  kStream,
  kEvent,
  kDataBuffer,
  kTensor,
  kScalar,
  kIntArray,
  kFloatArray,
  kBoolArray,
  kTensorList,
  kScalarList,
  kExecutor,
};

inline const char* kind_name(Kind kind) {
  static constexpr const char* names[] = {"nothing",          "an aclrtContext", "an aclrtStream",   "an aclrtEvent",
                                          "an aclDataBuffer", "an aclTensor",    "an aclScalar",     "an aclIntArray",
                                          "an aclFloatArray", "an aclBoolArray", "an aclTensorList", "an aclScalarList",
                                          "an aclOpExecutor"};
  return names[static_cast<int>(kind)];
}

// No address of a program looks like this.
inline constexpr uintptr_t kHandleMark = uintptr_t{0x6e67} << 48;
inline constexpr int kKindShift = 40;

inline std::string hex(const void* value) { return text("0x", std::hex, reinterpret_cast<uintptr_t>(value)); }

template <class T>
class Handles {
 public:
  explicit Handles(Kind kind) : kind_(kind) { keep_over_forks(LockRank::kHandles, mutex_); }

  void* add(std::shared_ptr<T> object) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const uintptr_t handle = kHandleMark | static_cast<uintptr_t>(kind_) << kKindShift | ++last_;
    objects_.emplace(handle, std::move(object));
    return reinterpret_cast<void*>(handle);
  }

  std::shared_ptr<T> find(const void* handle) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = objects_.find(reinterpret_cast<uintptr_t>(handle));
    return found == objects_.end() ? nullptr : found->second;
  }

  // Removes it; null when it was not there, so of two callers one gets it.
  std::shared_ptr<T> take(const void* handle) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = objects_.find(reinterpret_cast<uintptr_t>(handle));
    if (found == objects_.end()) return nullptr;
    std::shared_ptr<T> object = std::move(found->second);
    objects_.erase(found);
    return object;
  }

  bool replace(const void* handle, std::shared_ptr<T> object) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = objects_.find(reinterpret_cast<uintptr_t>(handle));
    if (found == objects_.end()) return false;
    found->second = std::move(object);
    return true;
  }

  std::vector<std::shared_ptr<T>> all() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::vector<std::shared_ptr<T>> objects;
    for (const auto& entry : objects_) objects.push_back(entry.second);
    return objects;
  }

  // Why a value that find() does not know is refused.
  std::string refusal(const char* name, const void* handle) const {
    const uintptr_t value = reinterpret_cast<uintptr_t>(handle);
    const uintptr_t kind = value >> kKindShift & 0xff;
    std::string reason = text(name, " is ", hex(handle), ", ");
    if (value >> 48 != kHandleMark >> 48 || kind == 0 || kind > static_cast<uintptr_t>(Kind::kExecutor)) {
      reason += text("which is not ", kind_name(kind_), " of this library");
    } else if (kind != static_cast<uintptr_t>(kind_)) {
      reason += text("which is ", kind_name(static_cast<Kind>(kind)), "; accepted: ", kind_name(kind_));
    } else {
      reason +=
          text(kind_name(kind_), kind_ == Kind::kExecutor
                                     ? " that was already used or destroyed; accepted: one from phase 1, once, or "
                                       "again after aclSetAclOpExecutorRepeatable"
                                     : " that was already destroyed");
    }
    return reason;
  }

 private:
  const Kind kind_;
  mutable std::mutex mutex_;
  uintptr_t last_ = 0;
  std::unordered_map<uintptr_t, std::shared_ptr<T>> objects_;
};

// Tables outlive the destructors of the program: its threads may still be at work then.
template <class T>
Handles<T>& handles_of(Kind kind) {
  static Handles<T>* const handles = new Handles<T>(kind);
  return *handles;
}

template <class T>
std::shared_ptr<T> find_or_throw(const Handles<T>& handles, const char* name, const void* handle, int code) {
  std::shared_ptr<T> object = handles.find(handle);
  if (!object) throw Fault{code, handles.refusal(name, handle)};
  return object;
}

}  // namespace groupnorm::host
