// State of a thread that outlives its thread_local objects: destructors of the program may still call in. It goes with
// the thread's last round of destructors, and whoever comes after that gets a new one.
#pragma once

#include <pthread.h>

namespace groupnorm::host {

template <class T>
T& thread_state() {
  thread_local T* state = nullptr;  // a plain pointer: nothing destroys it
  thread_local T** const own = &state;
  if (!state) {
    static const pthread_key_t key = [] {
      pthread_key_t made;
      pthread_key_create(&made, [](void* slot) {
        T** const thread = static_cast<T**>(slot);
        delete *thread;
        *thread = nullptr;
      });
      return made;
    }();
    state = new T;
    pthread_setspecific(key, own);
  }
  return *state;
}

}  // namespace groupnorm::host
