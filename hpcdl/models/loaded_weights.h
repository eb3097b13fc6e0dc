#pragma once
// The weights of a model in memory of their own, where they do not all fit into it at a time: what stays, and the ring
// through which layers pass.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "hpcdl/buffer.h"
#include "hpcdl/graph.h"
#include "hpcdl/io/layer_ring.h"
#include "hpcdl/io/mapped_file.h"
#include "hpcdl/models/layer_source.h"
#include "hpcdl/models/stream_plan.h"
#include "hpcdl/state/table.h"

namespace hpcdl::models {

class LoadedWeights : public LayerSource {
 public:
  /// The layer that a parameter belongs to; -1: none.
  using LayerOf = std::function<int(std::string_view name)>;

  /// Moves the entries of a table that lie in the mapped `files` into at most `ram` bytes of memory, and reads those that
  /// stay there. Throws Error if `ram` is too small or a file cannot be read.
  LoadedWeights(const std::vector<const io::MappedFile*>& files, StateTable& table, std::int64_t layers,
                const LayerOf& layer_of, std::int64_t ram);

  const StreamPlan& plan() const { return plan_; }
  bool streams(int layer) const { return plan_.streams[static_cast<std::size_t>(layer)]; }
  void fetch(Graph& g, int layer) const override;
  void release(Graph& g, int layer) const override;
  /// What is in memory and how the rest is read, in words.
  std::string describe() const;
  /// Null if no layer streams.
  const io::LayerRing* ring() const { return ring_ ? &*ring_ : nullptr; }

 private:
  void hold(Graph& g, int layer, bool begin) const;
  bool direct() const;  // whether all files are read past the page cache

  StreamPlan plan_;
  std::int64_t all_ = 0;      // bytes of weights
  std::vector<int> in_ring_;  // of each layer; -1: it stays
  std::vector<io::DirectFile> files_;
  Buffer resident_, blocks_;
  std::optional<io::FileQueue> queue_;  // of the ring
  std::optional<io::LayerRing> ring_;
};

}  // namespace hpcdl::models
