#pragma once
// Which samples each rank takes. The order of training samples is one endless row, whatever the number of ranks: an
// optimizer step takes the next samples of it, and ranks share them out in order. So N ranks with batch B see what one
// rank with batch N * B sees, and a run stopped on N ranks goes on exactly on M.

#include <algorithm>
#include <cstdint>

#include "hpcdl/core/error.h"

namespace hpcdl::data {

/// The position of a loader: `index` samples of epoch `epoch` have been returned, over all ranks.
struct LoaderState {
  std::int64_t epoch = 0, index = 0;
  bool operator==(const LoaderState&) const = default;
};

/// A run of samples of the endless row.
struct DataSplit {
  LoaderState first;       // the first sample of this rank; index < samples of an epoch
  std::int64_t count = 0;  // of this rank, one after the other; they may reach into the next epoch
  LoaderState after;       // after the samples of all ranks
};

/// `n` samples further, in epochs of `samples`.
constexpr LoaderState advanced(LoaderState at, std::int64_t n, std::int64_t samples) {
  return {at.epoch + (at.index + n) / samples, (at.index + n) % samples};
}

/// The part of rank `rank` of `world` in the next `global` samples after `at`. Parts follow each other by rank; where
/// `global` does not divide, the first global % world ranks take one sample more.
constexpr DataSplit split_data(LoaderState at, std::int64_t global, std::int64_t samples, int rank, int world) {
  if (samples < 1 || global < 0 || world < 1 || rank < 0 || rank >= world || at.epoch < 0 || at.index < 0)
    fail("data", "cannot split {} samples at epoch {}, index {} (of {} samples) for rank {} of {}", global, at.epoch,
         at.index, samples, rank, world);
  const std::int64_t each = global / world, more = global % world;
  return {advanced(at, each * rank + std::min<std::int64_t>(rank, more), samples), each + (rank < more ? 1 : 0),
          advanced(at, global, samples)};
}

}  // namespace hpcdl::data
