#pragma once

#include <string>
#include <vector>

#include "hpcdl/pipe/partition.h"
#include "hpcdl/program.h"

namespace hpcdl::pipe {

/// A slot that lives longer than one segment, or that a caller fills or reads: memory of the micro-batch, in its frame.
struct Carried {
  int slot = -1;     // of all programs
  std::string name;  // under which an Instance binds its memory
};

/// Programs with the same slots: a stage's part of the pass. The stages' forwards in order and then their backwards in
/// reverse are the records of the whole pass in order.
struct Cut {
  std::vector<Program> forward, backward;  // by stage
  std::vector<Program> weights;            // the same: gradients of weights; empty: they are in backward
  std::vector<Carried> carried;
};

enum class Backward { whole, halves };

/// Cuts the pass of one micro-batch (micro_batch.h) between layers. Arithmetic stays the same: the kind and the name of
/// carried slots change, and for halves weight_pass() adds copies. Throws Error if the partition does not have the layers
/// of the pass, or if records of stages are not one after another.
Cut cut(const Program& pass, const Partition& partition, Backward backward = Backward::whole);

}  // namespace hpcdl::pipe
