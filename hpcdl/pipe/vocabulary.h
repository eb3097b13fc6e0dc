#pragma once
// A vocabulary whose rows all ranks divide, so that the head weighs on no stage alone. In every micro-batch a rank looks up
// the tokens that it has (lookup), computes its share of the logits once the last stage has given all ranks the input of
// the head (logits), and the loss with its share of the gradients once it knows what the logits of the others are like
// (loss). The gradient of that input goes back to the last stage. At the end the first stage gives all ranks the gradient
// of the embedding (lookup_gradient).
//
// Source: Yeung et al., "Balancing Pipeline Parallelism with Vocabulary Parallelism", 2024.

#include "hpcdl/pipe/generate.h"
#include "hpcdl/pipe/schedule.h"

namespace hpcdl::pipe {

struct VocabularyPasses {
  /// 2: all ranks wait for the statistics of the logits, and the last stage for a gradient that they then compute. 1: that
  /// gradient is computed before, so that the last stage waits once and `loss` can come later.
  int barriers = 2;
  /// The embedding and the head are one table: all gradients of the head are added before those of the embedding, so that
  /// the bits do not depend on the schedule.
  bool tied = false;
};

/// The orders with the passes of the vocabulary, each where its rank would otherwise wait or another one waits for it: as
/// early as a rank comes to it if a forward takes four units of time, a backward eight, logits and loss two and a lookup
/// one. `orders`: not lowered, without such passes. Throws UsageError as require_sound() does, and if stages are on the
/// host or the first one is not on the first rank, where positions are.
Schedule with_vocabulary(const Schedule& orders, const VocabularyPasses& passes);

/// Orders by name for these passes: what the last stage waits for takes time, so more micro-batches are in flight.
Schedule make_schedule(const ScheduleKind& kind, PipeShape shape, const VocabularyPasses& passes);

/// The time of an act in the units in which orders are compared.
int units_of(Act act);

}  // namespace hpcdl::pipe
