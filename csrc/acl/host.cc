#include "host.h"

#include "error.h"
#include "fork.h"
#include "memory.h"
#include "stream.h"

namespace groupnorm::host {
namespace {

void enqueue(aclrtStream stream, const std::vector<Extent>& extents, std::unique_ptr<Work> work) {
  const std::shared_ptr<Stream> on = stream_of(stream);
  std::vector<Pin> pins;
  pins.reserve(extents.size());
  for (const Extent& extent : extents) {
    pins.emplace_back(check_extent(extent, ACL_ERROR_RT_PARAM_INVALID), extent.written);
  }
  on->push(std::move(work), std::move(pins));
}

}  // namespace
}  // namespace groupnorm::host

groupnorm::host::Host* groupnorm_host() {
  using namespace groupnorm::host;
  static Host host{
      kHostVersion, report,          warn,      [](const Extent& extent, int code) { check_extent(extent, code); },
      enqueue,      aclDataTypeSize, keep_lock, nullptr};
  return &host;
}
