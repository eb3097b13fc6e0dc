#pragma once
// N ranks as N threads of one process: for tests, and for ranks without a launcher.

#include <memory>
#include <vector>

#include "hpcdl/comm/transport.h"

namespace hpcdl::comm {

/// One transport for each of n ranks. hosts: the host on which each pretends to be, numbered as in Transport::host();
/// empty: all on one. A rank whose transport is destroyed has left: ranks that wait for it lose it at once.
std::vector<std::unique_ptr<Transport>> thread_transports(int n, std::vector<int> hosts = {});

}  // namespace hpcdl::comm
