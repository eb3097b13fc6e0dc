#pragma once
// Which samples each rank takes. The training samples form one endless sequence for any number of ranks: an
// optimizer step takes the next samples of it, which are divided among the ranks in order. So N ranks with batch B see
// the same samples as one rank with batch N * B, and a run that was stopped on N ranks continues exactly on M.

#include <algorithm>
#include <cstdint>

#include "hpcdl/core/error.h"

namespace hpcdl::data {

/// The position of a loader: `index` samples of epoch `epoch` have been returned, over all ranks.
struct LoaderState {
  std::int64_t epoch = 0, index = 0;
  bool operator==(const LoaderState&) const = default;
};

/// Consecutive samples of the endless sequence.
struct DataSplit {
  LoaderState first;       // the first sample of this rank; index < samples of an epoch
  std::int64_t count = 0;  // samples of this rank, consecutive; they may reach into the next epoch
  LoaderState after;       // the position after the samples of all ranks
};

/// The position `n` samples later, with epochs of `samples`.
constexpr LoaderState advanced(LoaderState at, std::int64_t n, std::int64_t samples) {
  return {at.epoch + (at.index + n) / samples, (at.index + n) % samples};
}

/// The part of rank `rank` of `world` in the next `global` samples after `at`. Parts are ordered by rank; if
/// `world` does not divide `global`, the first global % world ranks take one sample more.
constexpr DataSplit split_data(LoaderState at, std::int64_t global, std::int64_t samples, int rank, int world) {
  if (samples < 1 || global < 0 || world < 1 || rank < 0 || rank >= world || at.epoch < 0 || at.index < 0)
    fail("data", "cannot split {} samples at epoch {}, index {} (of {} samples) for rank {} of {}", global, at.epoch,
         at.index, samples, rank, world);
  const std::int64_t each = global / world, more = global % world;
  return {advanced(at, each * rank + std::min<std::int64_t>(rank, more), samples), each + (rank < more ? 1 : 0),
          advanced(at, global, samples)};
}

}  // namespace hpcdl::data
