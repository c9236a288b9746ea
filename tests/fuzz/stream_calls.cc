// Streams, events and callbacks.
#include <pthread.h>

#include "world.h"

namespace groupnorm::fuzz {
namespace {

int called = 0;  // callbacks run in the thread that asks for them, this one

void count_call(void*) { ++called; }

uint64_t thread_id(Input& in) { return in.chance(32) ? in.word() : static_cast<uint64_t>(pthread_self()); }

void create_stream(World& world, aclError code, const aclrtStream& stream) {
  if (world.status(code) == 0) world.add(kStream, stream);
}

void destroy_stream(World& world, aclError (*call)(aclrtStream)) {
  aclrtStream stream = world.handle(kStream);
  if (world.status(call(stream)) == 0) world.drop(kStream, stream);
}

const Call kStreamCalls[] = {
    {"aclrtCreateStream",
     [](World& w, Input&) {
       aclrtStream stream;
       create_stream(w, aclrtCreateStream(static_cast<aclrtStream*>(w.maybe_null(&stream))), stream);
     }},
    {"aclrtCreateStreamWithConfig",
     [](World& w, Input& in) {
       aclrtStream stream;
       const uint32_t priority = in.chance(32) ? static_cast<uint32_t>(in.edge()) : 0;
       const uint32_t flag = in.chance(32) ? static_cast<uint32_t>(in.edge()) : in.byte() & 0x3f;
       auto* to = static_cast<aclrtStream*>(w.maybe_null(&stream));
       create_stream(w, aclrtCreateStreamWithConfig(to, priority, flag), stream);
     }},
    {"aclrtDestroyStream",
     [](World& w, Input&) {
       w.settle();
       destroy_stream(w, aclrtDestroyStream);
     }},
    {"aclrtDestroyStreamForce", [](World& w, Input&) { destroy_stream(w, aclrtDestroyStreamForce); }},
    {"aclrtSynchronizeStream",
     [](World& w, Input&) {
       w.settle();
       w.status(aclrtSynchronizeStream(w.handle(kStream)));
     }},
    {"aclrtSynchronizeStreamWithTimeout",
     [](World& w, Input&) {
       aclrtStream stream = w.handle(kStream);
       w.status(aclrtSynchronizeStreamWithTimeout(stream, w.timeout()));
     }},
    {"aclrtStreamQuery",
     [](World& w, Input&) {
       aclrtStreamStatus status;
       aclrtStream stream = w.handle(kStream);
       w.status(aclrtStreamQuery(stream, static_cast<aclrtStreamStatus*>(w.maybe_null(&status))));
     }},
    {"aclrtStreamAbort", [](World& w, Input&) { w.status(aclrtStreamAbort(w.handle(kStream))); }},
    {"aclrtSetStreamFailureMode",
     [](World& w, Input& in) {
       aclrtStream stream = w.handle(kStream);
       w.status(aclrtSetStreamFailureMode(stream, in.chance(32) ? in.size() : in.below(2)));
     }},

    {"aclrtSubscribeReport",
     [](World& w, Input& in) {
       const uint64_t thread = thread_id(in);
       w.status(aclrtSubscribeReport(thread, w.handle(kStream)));
     }},
    {"aclrtUnSubscribeReport",
     [](World& w, Input& in) {
       const uint64_t thread = thread_id(in);
       w.status(aclrtUnSubscribeReport(thread, w.handle(kStream)));
     }},
    {"aclrtLaunchCallback",
     [](World& w, Input& in) {
       static constexpr int kTypes[] = {ACL_CALLBACK_NO_BLOCK, ACL_CALLBACK_BLOCK, ACL_CALLBACK_NO_BLOCK, 2, -1};
       const int type = in.pick(kTypes);
       const aclrtCallback call = in.chance(8) ? nullptr : count_call;
       aclrtStream stream = w.handle(kStream);
       void* data = w.random_pointer();
       const int code = aclrtLaunchCallback(call, data, static_cast<aclrtCallbackBlockType>(type), stream);
       if (w.status(code) == 0 && type == ACL_CALLBACK_BLOCK) w.blocked = true;
     }},
    {"aclrtProcessReport",
     [](World& w, Input&) {
       const int before = called;
       const bool ran = w.status(aclrtProcessReport(w.timeout())) == 0;
       FUZZ_CHECK(called == before + ran);
     }},
    // Subscribe, launch, process, in the order of a program that knows what it does.
    {"callbacks",
     [](World& w, Input& in) {
       w.require_device();
       aclrtStream stream;
       if (w.status(aclrtCreateStream(&stream)) != 0) return;
       w.add(kStream, stream);
       const auto thread = static_cast<uint64_t>(pthread_self());
       while (aclrtProcessReport(0) == 0) {
       }
       FUZZ_CHECK(w.status(aclrtSubscribeReport(thread, stream)) == 0);
       FUZZ_CHECK(w.status(aclrtSubscribeReport(thread, stream)) == ACL_ERROR_RT_STREAM_SUBSCRIBE);
       const auto type = static_cast<aclrtCallbackBlockType>(in.below(2));
       FUZZ_CHECK(w.status(aclrtLaunchCallback(count_call, nullptr, type, stream)) == 0);
       // Callbacks of other streams may come between.
       int before = called;
       FUZZ_CHECK(w.status(aclrtProcessReport(-1)) == 0 && called == before + 1);
       w.blocked = w.blocked || type == ACL_CALLBACK_BLOCK;
       w.settle();
       FUZZ_CHECK(w.status(aclrtSynchronizeStream(stream)) == 0);
       FUZZ_CHECK(w.status(aclrtUnSubscribeReport(thread, stream)) == 0);
       FUZZ_CHECK(w.status(aclrtUnSubscribeReport(thread, stream)) == ACL_ERROR_RT_THREAD_SUBSCRIBE);
     }},
};

void create_event(World& world, aclError code, const aclrtEvent& event) {
  if (world.status(code) == 0) world.add(kEvent, event);
}

uint32_t event_flag(Input& in) {
  static constexpr uint32_t kFlags[] = {8, 1, 2, 9, 11, 0, 4, 16, UINT32_MAX};
  return in.pick(kFlags);
}

const Call kEventCalls[] = {
    {"aclrtCreateEvent",
     [](World& w, Input&) {
       aclrtEvent event;
       create_event(w, aclrtCreateEvent(static_cast<aclrtEvent*>(w.maybe_null(&event))), event);
     }},
    {"aclrtCreateEventWithFlag",
     [](World& w, Input& in) {
       aclrtEvent event;
       auto* to = static_cast<aclrtEvent*>(w.maybe_null(&event));
       create_event(w, aclrtCreateEventWithFlag(to, event_flag(in)), event);
     }},
    {"aclrtCreateEventExWithFlag",
     [](World& w, Input& in) {
       aclrtEvent event;
       auto* to = static_cast<aclrtEvent*>(w.maybe_null(&event));
       create_event(w, aclrtCreateEventExWithFlag(to, event_flag(in)), event);
     }},
    {"aclrtDestroyEvent",
     [](World& w, Input&) {
       aclrtEvent event = w.handle(kEvent);
       if (w.status(aclrtDestroyEvent(event)) == 0) w.drop(kEvent, event);
     }},
    {"aclrtRecordEvent",
     [](World& w, Input&) {
       aclrtEvent event = w.handle(kEvent);
       w.status(aclrtRecordEvent(event, w.handle(kStream)));
     }},
    {"aclrtResetEvent",
     [](World& w, Input&) {
       aclrtEvent event = w.handle(kEvent);
       w.status(aclrtResetEvent(event, w.handle(kStream)));
     }},
    {"aclrtStreamWaitEvent",
     [](World& w, Input&) {
       aclrtStream stream = w.handle(kStream);
       w.status(aclrtStreamWaitEvent(stream, w.handle(kEvent)));
     }},
    {"aclrtSynchronizeEvent",
     [](World& w, Input&) {
       w.settle();
       w.status(aclrtSynchronizeEvent(w.handle(kEvent)));
     }},
    {"aclrtSynchronizeEventWithTimeout",
     [](World& w, Input&) {
       aclrtEvent event = w.handle(kEvent);
       w.status(aclrtSynchronizeEventWithTimeout(event, w.timeout()));
     }},
    {"aclrtEventElapsedTime",
     [](World& w, Input&) {
       float ms = -1;
       aclrtEvent start = w.handle(kEvent);
       aclrtEvent end = w.handle(kEvent);
       if (w.status(aclrtEventElapsedTime(static_cast<float*>(w.maybe_null(&ms)), start, end)) == 0) {
         FUZZ_CHECK(ms >= 0);
       }
     }},
    {"aclrtQueryEvent",
     [](World& w, Input&) {
       aclrtEventStatus status;
       aclrtEvent event = w.handle(kEvent);
       w.status(aclrtQueryEvent(event, static_cast<aclrtEventStatus*>(w.maybe_null(&status))));
     }},
    {"aclrtQueryEventStatus",
     [](World& w, Input&) {
       aclrtEventRecordedStatus status;
       aclrtEvent event = w.handle(kEvent);
       w.status(aclrtQueryEventStatus(event, static_cast<aclrtEventRecordedStatus*>(w.maybe_null(&status))));
     }},
    {"aclrtQueryEventWaitStatus",
     [](World& w, Input&) {
       aclrtEventWaitStatus status;
       aclrtEvent event = w.handle(kEvent);
       w.status(aclrtQueryEventWaitStatus(event, static_cast<aclrtEventWaitStatus*>(w.maybe_null(&status))));
     }},
};

}  // namespace

Calls stream_calls() { return {kStreamCalls, sizeof kStreamCalls / sizeof *kStreamCalls}; }
Calls event_calls() { return {kEventCalls, sizeof kEventCalls / sizeof *kEventCalls}; }

}  // namespace groupnorm::fuzz
