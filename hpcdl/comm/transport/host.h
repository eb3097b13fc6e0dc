#pragma once
// Which ranks are on one host, and memory that they share.

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "hpcdl/comm/transport.h"

namespace hpcdl::comm {

/// Equal for processes under the same kernel with the same host name, and for no others.
std::string host_key();

/// Host numbers by rank, for Transport::host(), from the keys by rank.
std::vector<int> number_hosts(std::span<const std::string> keys);

/// Transport::share() by messages: the first rank makes the memory, the others map it, and it has no
/// name when this returns, so nothing remains of ranks that are killed. Null if not all of them can map it.
std::shared_ptr<Window> share_memory(Transport& transport, std::span<const int> ranks, std::uint32_t tag,
                                     std::int64_t bytes, Deadline deadline);

}  // namespace hpcdl::comm
