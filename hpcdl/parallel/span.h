#pragma once
// Blocks of neighbouring ranks that each hold the divided state of a training once, where the ranks that share a batch
// do not all divide it among themselves: those of a host, so that values never travel between hosts. Source: hpZ of Wang
// et al., "ZeRO++: extremely efficient collective communication for giant model training", 2023.

#include "hpcdl/group.h"

namespace hpcdl::parallel {

/// The ranks of a group that are on one host. Throws UsageError unless every host has equally many of them, neighbours
/// in the group. A group without processes is on one host.
int ranks_of_each_host(const comm::Group& group);

struct Span {
  comm::Group within;  // the ranks of a block, which divide the state among themselves
  comm::Group across;  // the ranks that have the same share of it, one of each block
};

/// Collective. Blocks of `ranks` neighbours, whose number divides the group.
Span span_of(const comm::Group& group, int ranks);

}  // namespace hpcdl::parallel
