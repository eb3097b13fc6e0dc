#pragma once
// Sockets between ranks, each made when two of them first need it: for launches without MPI.

#include <memory>
#include <string>

#include "hpcdl/comm/transport.h"

namespace hpcdl::comm {

class Store;

/// Collective over all ranks of the store, which exchanges their addresses. Throws PeerLost if not
/// all have come by the deadline. Keeps the store. Ranks of one host share memory; `host`: the name of this rank's
/// host, empty: from the system. A rank whose transport is destroyed has left: ranks that wait for it lose it at
/// once.
std::unique_ptr<Transport> tcp_transport(std::shared_ptr<Store> store, Deadline deadline, const std::string& host = {});

}  // namespace hpcdl::comm
