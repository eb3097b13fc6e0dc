#pragma once
// Sockets between all pairs of ranks: for launches without MPI.

#include <memory>

#include "hpcdl/comm/transport.h"

namespace hpcdl::comm {

class Store;

/// Collective over all ranks of the store, which tells them each other's addresses. Throws PeerLost when not all are connected by the deadline.
/// Keeps the store. Ranks of one host share memory. A rank whose transport is destroyed has left: whoever waits for it loses it at once.
std::unique_ptr<Transport> tcp_transport(std::shared_ptr<Store> store, Deadline deadline);

}  // namespace hpcdl::comm
