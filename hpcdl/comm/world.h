#pragma once

#include <functional>
#include <memory>
#include <string>

#include "hpcdl/comm/ledger.h"
#include "hpcdl/group.h"

namespace hpcdl::comm {

/// Makes the sentence for people when a peer is lost: which rank waited for which, and in what.
using OnLost = std::function<std::string(const Ledger& mine, const PeerLost& lost)>;

struct WorldOptions {
  double deadline_seconds = 600;  // deadline of every collective
  OnLost on_lost;                 // null: a sentence from what this rank knows
};

/// Collective over all ranks of the transport: the group from which all others are split.
Group make_world(std::unique_ptr<Transport> transport, WorldOptions options = {});

}  // namespace hpcdl::comm
