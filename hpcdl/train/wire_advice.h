#pragma once
// Whether values that travel as fewer bytes save time on the links of a run.

#include <string>

#include "hpcdl/group.h"
#include "hpcdl/ops/wire_codes/wire_codes.h"
#include "hpcdl/pool.h"

namespace hpcdl::train {

/// Seconds for a million elements.
struct WireTimes {
  double plain = 0;   // on the link, as they are
  double coded = 0;   // on the link, as messages
  double coding = 0;  // into messages and back
  bool pointless() const { return coded + coding >= plain; }
};

/// link: bytes per second that a rank sends. coding: seconds for an element.
WireTimes wire_times(double link, double coding, double plain_bytes, WireCode code);

/// Collective, some tens of milliseconds on a slow link: bytes per second that this rank sends to others.
double measured_link(const comm::Group& group, Pool& pool);
/// Seconds to turn an element into a message and back.
double measured_coding(WireCode code, Pool& pool);

/// "parallel.wire_gradients = "int4" ..." if that is pointless, else "". plain_bytes: of an element.
std::string wire_warning(const std::string& key, const WireTimes& times, double link, double plain_bytes,
                         WireCode code);

}  // namespace hpcdl::train
