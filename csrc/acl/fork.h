// A fork copies locks as they are. Those of the tables are taken before it and released after, so that the child can go
// on; streams, contexts and events of the parent have no threads there, and are refused. And what has a lock is made
// when its library is loaded (the g_ lines beside the get functions): a child would wait forever for a first use that
// another thread of its parent had begun.
#pragma once

#include "host.h"

namespace groupnorm::host {

void keep_lock(LockRank rank, void* lock, void (*take)(void*), void (*release)(void*));

// For locks of every library.
template <class Mutex>
void keep_over_forks(LockRank rank, Mutex& mutex) {
  groupnorm_host()->keep_lock(
      rank, &mutex, [](void* lock) { static_cast<Mutex*>(lock)->lock(); },
      [](void* lock) { static_cast<Mutex*>(lock)->unlock(); });
}

// How many forks lie between the process and its first ancestor with this library.
int generation();

}  // namespace groupnorm::host
