#pragma once

#include "hpcdl/pipe/schedule.h"

namespace hpcdl::pipe {

/// Adds to the compute actions of `orders` everything that they need:
///
///   send, receive     activations and gradients between stages of different ranks; slot: where they arrive
///   load, store       if stages are on the host: frames of a micro-batch, values of a stage (micro -1, slot 0 or 1 of the
///                     rank), and gradients of a stage (micro -1)
///   reduce, update    of each stage: the sum of its gradients over replicas, and the optimizer, which needs the norm of
///                     all gradients
///   sum_rows, ...     of a vocabulary that the ranks divide: the exchanges of all of them (schedule.h)
///   slot              of forward, backward and its halves: the frame, the memory that a micro-batch keeps from its
///                     forward to its last gradient. Forward moves what it reads into the frame
///
/// A stage has as many frames as it has micro-batches in flight. Transfers are issued in the order in which their data
/// would be ready if a forward and each half of a backward took one unit of time, passes of a vocabulary less
/// (vocabulary.h), and transfers none. All ranks use this one
/// order, so no wiring of links (waits.h) can deadlock. Where data arrive there are at least two slots, so that a
/// transfer can overlap the action before its own.
/// Throws UsageError with the first fault or the cycle (check.h) if the orders cannot be run.
Schedule lower(const Schedule& orders);

/// Of one micro-batch that goes forward through the stages of `schedule`, and not back: lowered.
Schedule forward_only(const Schedule& schedule);

}  // namespace hpcdl::pipe
