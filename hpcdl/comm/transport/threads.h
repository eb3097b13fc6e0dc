#pragma once
// N ranks as N threads of one process: for tests, and for whoever wants ranks without a launcher.

#include <memory>
#include <vector>

#include "hpcdl/comm/transport.h"

namespace hpcdl::comm {

/// One transport for each of n ranks. hosts: the host that each pretends to be on, numbered as Transport::host() wants
/// it; empty: all on one. A rank whose transport is destroyed has left: whoever waits for it loses it at once.
std::vector<std::unique_ptr<Transport>> thread_transports(int n, std::vector<int> hosts = {});

}  // namespace hpcdl::comm
