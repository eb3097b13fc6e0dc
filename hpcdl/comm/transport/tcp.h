#pragma once
// Sockets between ranks, each made when two of them first need it: for launches without MPI.

#include <memory>
#include <string>

#include "hpcdl/comm/transport.h"

namespace hpcdl::comm {

class Store;

/// Collective over all ranks of the store, by which they come to know each other's addresses. Throws PeerLost when not
/// all have come by the deadline. Keeps the store. Ranks of one host share memory; `host`: what this rank calls its host,
/// empty: as the system does. A rank whose transport is destroyed has left: whoever waits for it loses it at once.
std::unique_ptr<Transport> tcp_transport(std::shared_ptr<Store> store, Deadline deadline, const std::string& host = {});

}  // namespace hpcdl::comm
