#pragma once

#include <optional>
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

/// What is computed of a vocabulary whose rows the ranks divide, and the slots that they exchange in between.
struct VocabularyCut {
  Program lookup, logits, loss, lookup_gradient;
  Program merge;      // with one barrier: the gradient of the input of the head, before the last stage's backward
  int rows = -1;      // of the embedding: a summand on each rank; the sum, for the first stage
  int hidden = -1;    // the input of the head, from the last stage
  int mine = -1;      // what this rank knows of the logits
  int all = -1;       // the same of all ranks, one after the other
  int gradient = -1;  // of the input of the head: a summand; the sum, for the last stage. -1: inference
  int summands = -1;  // with one barrier: what the last stage makes that of, and the same of all ranks
  int all_summands = -1;
  int rows_gradient = -1;  // of the embedding, from the first stage. -1: inference
};

/// Programs with the same slots: a stage's part of the pass. The stages' forwards in order and then their backwards in
/// reverse are the records of the whole pass in order.
struct Cut {
  std::vector<Program> forward, backward;  // by stage
  std::vector<Program> weights;            // the same: gradients of weights; empty: they are in backward
  std::vector<Carried> carried;
  std::optional<VocabularyCut> vocabulary = {};  // of a pass with records in its scopes
};

enum class Backward { whole, halves };

/// Cuts the pass of one micro-batch (micro_batch.h) between layers. Arithmetic stays the same: the kind and the name of
/// carried slots change, and for halves weight_pass() adds copies. Throws Error if the partition does not have the layers
/// of the pass, or if records of stages are not one after another.
/// Records of a vocabulary are in no stage. What they exchange is in no program: the ranks do it between them.
Cut cut(const Program& pass, const Partition& partition, Backward backward = Backward::whole);

}  // namespace hpcdl::pipe
