#pragma once

#include "hpcdl/pipe/generate.h"

namespace hpcdl::pipe {

/// Calls f(kind, shape) for all schedules with up to so many ranks, chunks and micro-batches.
template <class F> void for_every_schedule(int ranks, int chunks, int micros, F f) {
  for (const auto& kind : schedule_kinds())
    for (PipeShape shape{.ranks = 1}; shape.ranks <= ranks; ++shape.ranks)
      for (shape.chunks = 1; shape.chunks <= chunks; ++shape.chunks)
        for (shape.micros = 1; shape.micros <= micros; ++shape.micros)
          if (shape.chunks >= kind.least_chunks && shape.chunks <= kind.most_chunks) f(kind, shape);
}

}  // namespace hpcdl::pipe
