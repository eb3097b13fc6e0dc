#pragma once

#include <functional>
#include <memory>
#include <string>

#include "hpcdl/comm/group.h"
#include "hpcdl/comm/ledger.h"

namespace hpcdl::comm {

/// The sentence for people when a peer is lost: who waited for whom in what.
using OnLost = std::function<std::string(const Ledger& mine, const PeerLost& lost)>;

struct WorldOptions {
  double deadline_seconds = 600;  // of every collective
  OnLost on_lost;                 // none: a sentence of what this rank knows
};

/// Collective over all ranks of the transport: the group that all others come from.
Group make_world(std::unique_ptr<Transport> transport, WorldOptions options = {});

}  // namespace hpcdl::comm
