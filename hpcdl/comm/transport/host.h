#pragma once
// Which ranks are on one host, and memory that they share.

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "hpcdl/comm/transport.h"

namespace hpcdl::comm {

/// Equal for processes that run under one kernel and call their host by one name, and for no others.
std::string host_key();

/// Host numbers by rank, as Transport::host() wants them, from the keys by rank.
std::vector<int> number_hosts(std::span<const std::string> keys);

/// Transport::share() by means of messages: the first rank makes the memory, the others map it, and nothing of it has a
/// name when this returns, so that nothing remains of ranks that are killed. Null where not all of them can map it.
std::shared_ptr<Window> share_memory(Transport& transport, std::span<const int> ranks, std::uint32_t tag,
                                     std::int64_t bytes, Deadline deadline);

}  // namespace hpcdl::comm
